"""Decoding by the book in NumPy: the whole row again for each token, every hypothesis enumerated."""

import itertools

import numpy as np

from tests.reference.numpy_bert import forward, log_softmax, next_logits, softmax


def greedy(config, weights, source, max_new_tokens, end_id, min_new_tokens=1, forbidden_ids=()):
    """The most probable token, step by step. Returns (tokens without the end, smallest lead over the runner-up).

    `min_new_tokens` and `max_new_tokens` count the end: with a minimum of 1 it may come at once.
    """
    output, lead = [], np.inf
    while len(output) < max_new_tokens:
        logits = next_logits(config, weights, source, output)
        logits[list(forbidden_ids)] = -np.inf
        if len(output) + 1 < min_new_tokens:
            logits[end_id] = -np.inf
        second, first = np.sort(logits)[-2:]
        lead = min(lead, first - second)
        token = int(logits.argmax())
        if token == end_id:
            break
        output.append(token)
    return output, lead


def log_probability(config, weights, source, tokens):
    """Sum of log p of `tokens` (the end among them, where it was written) behind `source`, in one pass."""
    row = [*source, *tokens]
    segments = [0] * len(source) + [1] * len(tokens)
    logits = forward(config, weights, [row], [segments], "unilm")["mlm_logits"][0, len(source) - 1 : -1]
    return float(log_softmax(logits)[np.arange(len(tokens)), tokens].sum())


def every_hypothesis(config, weights, source, max_new_tokens, end_id, alphabet):
    """Returns {tokens: (log p, ended)} of all sequences over `alphabet` that end, or reach `max_new_tokens` unended.

    The end is one of the `max_new_tokens`.
    """
    found = {}
    for length in range(max_new_tokens + 1):
        outputs = list(itertools.product(alphabet, repeat=length))
        rows = np.array([[*source, *output, end_id] for output in outputs])
        segments = np.tile([0] * len(source) + [1] * (length + 1), (len(rows), 1))
        steps = forward(config, weights, rows, segments, "unilm")["mlm_logits"][:, len(source) - 1 : -1]
        steps = np.take_along_axis(log_softmax(steps), rows[:, len(source) :, None], 2)[..., 0]  # (rows, length + 1)
        for output, step in zip(outputs, steps, strict=True):
            ended = length < max_new_tokens
            found[output] = (float(step.sum() if ended else step[:-1].sum()), ended)
    return found


def sampling_distribution(logits, top_k=None, top_p=None, temperature=1.0, excluded=()):
    """Probabilities (V,) to draw from: temperature, then the k best, then of those the smallest head of mass >= p."""
    logits = np.array(logits, "float64") / temperature
    logits[list(excluded)] = -np.inf
    order = np.argsort(-logits)
    if top_k is not None:
        logits[order[top_k:]] = -np.inf
    probabilities = softmax(logits)
    if top_p is not None:
        mass_before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[mass_before >= top_p]] = 0  # the token that crosses p stays
    return probabilities / probabilities.sum()
