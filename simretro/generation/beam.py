"""Cached beam search that keeps finished hypotheses."""

import numpy as np
from keras import ops

from simretro.generation.cache import next_logits, prefill, step
from simretro.generation.sampling import banned_logits, check_tokens, cut_at
from simretro.generation.sources import allowed_new_tokens, check_model, pad_sources
from simretro.models.compiled import compiled

_IMPOSSIBLE = -1e9


def beam_search(
    model,
    source_ids,
    max_new_tokens,
    end_id,
    beam_size=4,
    length_penalty=0.0,
    min_new_tokens=1,
    n=1,
    forbidden_ids=(),
    max_rows=512,
):
    """The most probable targets of a UniLM.

    A hypothesis that ends is set aside with its score and the search goes on without it; it is never lost because a
    longer one was ahead for a moment. Hypotheses that reach the last token without an end compete as they are.

    Args:
        model: `Transformer` with `application="unilm"`, `with_mlm="linear"`.
        source_ids: list of lists of int, each `[CLS] ... [SEP]`.
        max_new_tokens: int, most tokens of an output, its end token included.
        end_id: int, the token that ends an output ([SEP]).
        beam_size: int, hypotheses followed side by side; more than the vocabulary counts as all of it.
        length_penalty: float, p in `score = sum of log-probabilities / length ** p`, the end token counted in both;
            0 ranks by probability, 1 by the mean log-probability.
        min_new_tokens: int, fewest tokens of an output, its end token included.
        n: int <= `beam_size`, hypotheses returned for a source.
        forbidden_ids: ids that are never generated, beside the padding id.
        max_rows: int, hypotheses that are decoded side by side; bounds the memory of the cache.
    Returns: for each source, in order, a list of at most n pairs (ids without the end token, score), best first.
    Raises: ValueError for a bad argument.
    """
    check_model(model)
    check_tokens(model.config, end_id, forbidden_ids, min_new_tokens)
    for name, value in (("beam_size", beam_size), ("n", n)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; received {value}.")
    if n > beam_size:
        raise ValueError(f"`n` must not exceed `beam_size`; received n={n}, beam_size={beam_size}.")
    if not source_ids:
        return []
    beam_size = min(beam_size, model.config["vocab_size"])
    _, lengths = pad_sources(model, source_ids)
    allowed = allowed_new_tokens(model, lengths, max_new_tokens)
    ban = banned_logits(model.config, end_id, forbidden_ids)
    key = ("beam", beam_size, max_new_tokens, end_id, length_penalty, min_new_tokens)

    def build():
        return lambda *args: _loop(model, *args, beam_size, max_new_tokens, end_id, length_penalty, min_new_tokens)

    outputs = [None] * len(source_ids)
    order = np.argsort(lengths, kind="stable")
    sources_per_call = max(1, max_rows // beam_size)
    for start in range(0, len(order), sources_per_call):
        chosen = order[start : start + sources_per_call]
        token_ids, chosen_lengths = pad_sources(model, [source_ids[i] for i in chosen])
        tokens, scores = compiled(model, key, build)(token_ids, chosen_lengths, allowed[chosen], ban)
        tokens, scores = ops.convert_to_numpy(tokens), ops.convert_to_numpy(scores)
        for i, rows, row_scores in zip(chosen, tokens, scores, strict=True):
            outputs[i] = [
                (cut_at(row, end_id, allowed[i]), float(score))
                for row, score in list(zip(rows, row_scores, strict=True))[:n]
                if score > _IMPOSSIBLE / 2
            ]
    return outputs


def _loop(model, token_ids, lengths, allowed, ban, beams, max_new_tokens, end_id, length_penalty, min_new_tokens):
    """Returns the `beams` best hypotheses of each source: tokens (B, beams, T), scores (B, beams), best first."""
    batch, source_length = ops.shape(token_ids)
    num_slots = source_length + max_new_tokens - 1
    padding_mask = ops.arange(source_length, dtype="int32")[None] < lengths[:, None]
    hidden, caches = prefill(model, token_ids, padding_mask, num_slots)
    logits = ops.repeat(next_logits(model, hidden), beams, axis=0)
    caches = [tuple(ops.repeat(x, beams, axis=0) for x in cache) for cache in caches]
    source_visible = ops.repeat(padding_mask, beams, axis=0)
    row_lengths = ops.repeat(lengths, beams, axis=0)
    slots = ops.arange(max_new_tokens - 1, dtype="int32")[None]
    first_rows = ops.arange(batch, dtype="int32")[:, None] * beams

    # At first all beams of a source are the same: only one of them may be extended.
    alone = ops.where(ops.arange(beams) == 0, 0.0, _IMPOSSIBLE)
    alive_scores = ops.zeros((batch, 1)) + alone[None]
    none = ops.full((batch, beams, max_new_tokens), end_id, "int32")

    def extend(t, logits, alive, alive_scores, pool, pool_scores):
        """One token more: hypotheses that end or are full go to the pool, the best others stay alive."""
        log_probs = ops.log_softmax(logits + ban[ops.cast(t + 1 >= min_new_tokens, "int32")], axis=-1)
        vocab_size = log_probs.shape[-1]
        totals = alive_scores[:, :, None] + ops.reshape(log_probs, (batch, beams, vocab_size))
        # Of 2 * beams candidates at most `beams` end, so `beams` of them can go on.
        num_candidates = min(2 * beams, beams * vocab_size)
        scores, flat = ops.top_k(ops.reshape(totals, (batch, beams * vocab_size)), num_candidates)
        parents, new = flat // vocab_size, ops.cast(flat % vocab_size, "int32")
        grown = _select(alive, parents)
        grown = ops.where(ops.arange(max_new_tokens) == t, new[:, :, None], grown)
        ends = ops.logical_or(new == end_id, t + 1 >= allowed[:, None])
        ended_scores = scores / ops.cast(t + 1, "float32") ** length_penalty
        ended_scores = ops.where(ops.logical_and(ends, scores > _IMPOSSIBLE / 2), ended_scores, _IMPOSSIBLE)
        pool_scores, best = ops.top_k(ops.concatenate([pool_scores, ended_scores], axis=1), beams)
        pool = _select(ops.concatenate([pool, grown], axis=1), best)
        alive_scores, best = ops.top_k(ops.where(ends, _IMPOSSIBLE, scores), beams)
        parents = _select(parents, best)
        return _select(grown, best), alive_scores, pool, pool_scores, parents, _select(new, best)

    def search_on(t, last, alive, alive_scores, pool, pool_scores, caches):
        # A live hypothesis can only lose probability; the longest length is the mildest divisor for it.
        bound = ops.max(alive_scores, axis=1) / ops.cast(max_new_tokens, "float32") ** max(length_penalty, 0.0)
        hopeless = ops.min(pool_scores, axis=1) >= bound
        return ops.logical_and(t < max_new_tokens, ops.logical_not(ops.all(hopeless)))

    def body(t, last, alive, alive_scores, pool, pool_scores, caches):
        fed = t - 1
        target_visible = ops.broadcast_to(slots <= fed, (batch * beams, max_new_tokens - 1))
        visible = ops.concatenate([source_visible, target_visible], axis=1)
        positions = row_lengths + ops.minimum(fed, ops.repeat(allowed, beams, axis=0) - 1)
        hidden, caches = step(model, last, positions, caches, source_length + fed, visible)
        alive, alive_scores, pool, pool_scores, parents, new = extend(
            t, next_logits(model, hidden), alive, alive_scores, pool, pool_scores
        )
        rows = ops.reshape(first_rows + ops.cast(parents, "int32"), (-1,))
        caches = [tuple(ops.take(x, rows, axis=0) for x in cache) for cache in caches]
        return t + 1, ops.reshape(new, (-1,)), alive, alive_scores, pool, pool_scores, caches

    start = ops.convert_to_tensor(0, "int32")
    alive, alive_scores, pool, pool_scores, _, new = extend(
        start, logits, none, alive_scores, none, ops.full((batch, beams), _IMPOSSIBLE, "float32")
    )
    state = (start + 1, ops.reshape(new, (-1,)), alive, alive_scores, pool, pool_scores, caches)
    state = ops.while_loop(search_on, body, state)
    return state[4], state[5]


def _select(x, index):
    """Rows `index` (B, k) of each batch element of `x` (B, m, ...)."""
    index = ops.reshape(index, (*ops.shape(index), *([1] * (len(x.shape) - 2))))
    return ops.take_along_axis(x, index, axis=1)
