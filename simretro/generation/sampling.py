"""Cached sampling: many sources and many samples of each in one compiled loop."""

import numpy as np
from keras import ops

from simretro.generation.cache import next_logits, prefill, step
from simretro.generation.sources import allowed_new_tokens, check_model, pad_sources
from simretro.models.compiled import compiled

# With `top_p` alone the nucleus is looked for among this many tokens: sorting a whole vocabulary at each step
# would halve the speed.
_NUCLEUS_CANDIDATES = 256
_FORBIDDEN = -1e9
_COLDEST = 1e-6  # below it logits / temperature leaves float32, and the most probable token has all the probability


def generate(
    model,
    source_ids,
    max_new_tokens,
    end_id,
    n=1,
    top_k=None,
    top_p=None,
    temperature=1.0,
    seed=None,
    min_new_tokens=1,
    forbidden_ids=(),
    max_rows=2048,
):
    """Samples targets of a UniLM.

    Keys and values are cached, a source runs through the model once for all its samples, and tokens are drawn by
    inverting the cumulative distribution at uniforms drawn beforehand: a seed gives the same texts on every backend.

    Args:
        model: `Transformer` with `application="unilm"`, `with_mlm="linear"`.
        source_ids: list of lists of int, each `[CLS] ... [SEP]`.
        max_new_tokens: int, most tokens of an output, its end token included.
        end_id: int, the token that ends an output ([SEP]).
        n: int, samples of each source.
        top_k: int or None, draw among the k most probable tokens; more than the vocabulary counts as all.
        top_p: float in (0, 1] or None: among these, keep the most probable ones up to and including the one whose
            cumulated probability crosses `top_p`. Probabilities are those among the `top_k`, or among the 256 most
            probable tokens where `top_k` is None; 1 = off.
        temperature: float >= 0; 0 = greedy.
        seed: int or None (fresh randomness).
        min_new_tokens: int, fewest tokens of an output, its end token included.
        forbidden_ids: ids that are never generated, beside the padding id.
        max_rows: int, samples that are decoded side by side; bounds the memory of the cache. The samples of one source
            are never split.
    Returns: for each source, in order, a list of n lists of ids without the end token.
    Raises: ValueError for a bad argument.
    """
    check_model(model)
    _check_sampling(n, top_k, top_p, temperature)
    check_tokens(model.config, end_id, forbidden_ids, min_new_tokens)
    top_p = None if top_p == 1 else top_p
    if not source_ids:
        return []
    _, lengths = pad_sources(model, source_ids)
    allowed = allowed_new_tokens(model, lengths, max_new_tokens)
    entropy = np.random.SeedSequence(seed).entropy
    outputs = [None] * len(source_ids)
    # Sources of like length side by side: less padding.
    order = np.argsort(lengths, kind="stable")
    sources_per_call = max(1, max_rows // n)
    for start in range(0, len(order), sources_per_call):
        chosen = order[start : start + sources_per_call]
        # The numbers of a source depend on the seed and its index alone, not on what it is decoded with.
        uniforms = np.stack(
            [np.random.default_rng([entropy, i]).random((max_new_tokens, n), dtype="float32") for i in chosen], axis=1
        )
        tokens = _sample(
            model,
            [source_ids[i] for i in chosen],
            allowed[chosen],
            uniforms.reshape(max_new_tokens, -1),
            (max_new_tokens, end_id, n, top_k, top_p, temperature, min_new_tokens, tuple(forbidden_ids)),
        )
        for i, rows in zip(chosen, tokens.reshape(len(chosen), n, -1), strict=True):
            outputs[i] = [cut_at(row, end_id, allowed[i]) for row in rows]
    return outputs


def cut_at(row, end_id, allowed):
    """Ids (T,) up to the first `end_id`, at most `allowed` of them, as list."""
    row = row[:allowed]
    ends = np.flatnonzero(row == end_id)
    return row[: ends[0]].tolist() if len(ends) else row.tolist()


def banned_logits(config, end_id, forbidden_ids):
    """What is added to logits, float32 (2, V): row 0 before the end token is allowed, row 1 from then on."""
    ban = np.zeros((2, config["vocab_size"]), "float32")
    # Padding is never a token of a target: read back, it would be hidden from the tokens behind it.
    ban[:, [*forbidden_ids, config["pad_token_id"]]] = _FORBIDDEN
    ban[0, end_id] = _FORBIDDEN
    return ban


def check_tokens(config, end_id, forbidden_ids, min_new_tokens):
    """Raises ValueError for ids outside the vocabulary and for a length that no output can have."""
    outside = [i for i in (end_id, *forbidden_ids) if not 0 <= i < config["vocab_size"]]
    if outside:
        raise ValueError(
            f"`end_id` and `forbidden_ids` must be in [0, {config['vocab_size']}), the vocabulary; received {outside}."
        )
    if min_new_tokens < 1:
        raise ValueError(f"`min_new_tokens` must be at least 1; received {min_new_tokens}.")


def _check_sampling(n, top_k, top_p, temperature):
    for name, value in (("n", n), ("top_k", top_k)):
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1; received {value}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be in (0, 1]; received {top_p}.")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"`temperature` must be finite and not negative; received {temperature}.")


def _sample(model, source_ids, allowed, uniforms, options):
    max_new_tokens, end_id, n, top_k, top_p, temperature, min_new_tokens, forbidden_ids = options
    vocab_size = model.config["vocab_size"]
    greedy = temperature < _COLDEST or top_k == 1
    candidates = 1 if greedy else min(top_k or (_NUCLEUS_CANDIDATES if top_p else vocab_size), vocab_size)
    ban = banned_logits(model.config, end_id, forbidden_ids)

    def build():
        def function(token_ids, lengths, allowed, uniforms, temperature, ban):
            draw = _drawer(candidates, top_p, greedy, min_new_tokens, uniforms, temperature, ban)
            return _loop(model, token_ids, lengths, allowed, n, max_new_tokens, end_id, draw)

        return function

    token_ids, lengths = pad_sources(model, source_ids)
    key = ("sample", n, max_new_tokens, end_id, candidates, top_p, greedy, min_new_tokens)
    function = compiled(model, key, build)
    tokens = function(token_ids, lengths, allowed, uniforms, np.float32(temperature or 1.0), ban)
    return ops.convert_to_numpy(tokens)


def _drawer(candidates, top_p, greedy, min_new_tokens, uniforms, temperature, ban):
    """Returns draw(t, logits (R, V)) -> int32 (R,)."""

    def draw(t, logits):
        forbidden = ban[ops.cast(t + 1 >= min_new_tokens, "int32")]
        if greedy:
            return ops.cast(ops.argmax(logits + forbidden, axis=-1), "int32")
        logits = logits / temperature + forbidden  # in this order: no temperature makes a ban weak
        ids = None
        if candidates < logits.shape[-1] or top_p:
            logits, ids = ops.top_k(logits, candidates)
        probabilities = ops.softmax(logits, axis=-1)
        cumulated = ops.cumsum(probabilities, axis=-1)
        if top_p:
            # Token i stays while what comes before it does not yet reach top_p.
            kept = ops.cast(cumulated - probabilities < top_p, "float32")
            total = ops.sum(probabilities * kept, axis=-1, keepdims=True)
        else:
            total = cumulated[:, -1:]
        threshold = ops.take(uniforms, t, axis=0)[:, None] * total
        index = ops.sum(ops.cast(cumulated <= threshold, "int32"), axis=-1)
        index = ops.minimum(index, candidates - 1)
        if ids is None:
            return index
        return ops.cast(ops.take_along_axis(ids, index[:, None], axis=1)[:, 0], "int32")

    return draw


def _loop(model, token_ids, lengths, allowed, n, max_new_tokens, end_id, draw):
    """Decodes; returns int32 (B * n, max_new_tokens), anything behind an end token being end tokens."""
    num_slots = ops.shape(token_ids)[1] + max_new_tokens - 1  # the last token is not fed
    source_length = ops.shape(token_ids)[1]
    padding_mask = ops.arange(source_length, dtype="int32")[None] < lengths[:, None]
    hidden, caches = prefill(model, token_ids, padding_mask, num_slots)
    logits = ops.repeat(next_logits(model, hidden), n, axis=0)
    caches = [tuple(ops.repeat(x, n, axis=0) for x in cache) for cache in caches]
    lengths, allowed = ops.repeat(lengths, n, axis=0), ops.repeat(allowed, n, axis=0)
    source_visible = ops.repeat(padding_mask, n, axis=0)
    slots = ops.arange(max_new_tokens - 1, dtype="int32")[None]

    first = draw(ops.convert_to_tensor(0, "int32"), logits)
    tokens = ops.concatenate(
        [first[:, None], ops.full((ops.shape(first)[0], max_new_tokens - 1), end_id, "int32")], axis=1
    )
    done = ops.logical_or(first == end_id, allowed <= 1)

    def unfinished(t, last, tokens, done, caches):
        return ops.logical_and(t < max_new_tokens, ops.logical_not(ops.all(done)))

    def body(t, last, tokens, done, caches):
        fed = t - 1  # index of the token that is fed now
        target_visible = ops.broadcast_to(slots <= fed, (ops.shape(last)[0], max_new_tokens - 1))
        visible = ops.concatenate([source_visible, target_visible], axis=1)
        # A finished row goes on being computed; its position stays within the table.
        positions = lengths + ops.minimum(fed, allowed - 1)
        hidden, caches = step(model, last, positions, caches, source_length + fed, visible)
        new = ops.where(done, end_id, draw(t, next_logits(model, hidden)))
        tokens = ops.slice_update(tokens, (0, t), new[:, None])
        done = ops.logical_or(done, ops.logical_or(new == end_id, t + 1 >= allowed))
        return t + 1, new, tokens, done, caches

    state = (ops.convert_to_tensor(1, "int32"), first, tokens, done, caches)
    return ops.while_loop(unfinished, body, state)[2]
