"""Cached beam search that keeps finished hypotheses."""

from collections.abc import Sequence

from keras import ops

from simretro.arguments import check_int
from simretro.generation.cache import TargetDecoder
from simretro.generation.sampling import banned_logits, check_tokens, cut_at
from simretro.generation.sources import allowed_new_tokens, batches_of_sources, check_model
from simretro.models import Transformer
from simretro.models.compiled import compiled

_IMPOSSIBLE = -1e9


def beam_search(
    model: Transformer,
    source_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    end_id: int,
    beam_size: int = 4,
    length_penalty: float = 0.0,
    min_new_tokens: int = 1,
    n: int = 1,
    forbidden_ids: Sequence[int] = (),
    max_rows: int = 512,
) -> list[list[tuple[list[int], float]]]:
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
    beam_size, n = check_int("beam_size", beam_size, 1), check_int("n", n, 1)
    if n > beam_size:
        raise ValueError(f"`n` must not exceed `beam_size`; received n={n}, beam_size={beam_size}.")
    if not source_ids:
        return []
    allowed = allowed_new_tokens(model, source_ids, max_new_tokens)
    ban = banned_logits(model.config, end_id, forbidden_ids)
    beams = min(beam_size, model.config["vocab_size"])
    settings = beams, max_new_tokens, end_id, length_penalty, min_new_tokens
    function = compiled(model, ("beam", *settings), lambda: _Search(model, *settings).run)
    outputs = [None] * len(source_ids)
    for chosen, token_ids, lengths in batches_of_sources(model, source_ids, max(1, max_rows // beams)):
        tokens, scores = map(ops.convert_to_numpy, function(token_ids, lengths, allowed[chosen], ban))
        for i, rows, row_scores in zip(chosen, tokens, scores, strict=True):
            outputs[i] = [
                (cut_at(row, end_id, allowed[i]), float(score))
                for row, score in list(zip(rows, row_scores, strict=True))[:n]
                if score > _IMPOSSIBLE / 2
            ]
    return outputs


class _Search:
    """The loop: of each source, hypotheses that are alive and a pool of those that have ended.

    Tokens are int32 (B, beams, T), scores float32 (B, beams).
    """

    def __init__(self, model, beams, max_new_tokens, end_id, length_penalty, min_new_tokens):
        self.model, self.beams, self.max_new_tokens, self.end_id = model, beams, max_new_tokens, end_id
        self.length_penalty, self.min_new_tokens = length_penalty, min_new_tokens

    def run(self, token_ids, lengths, allowed, ban):
        """Returns the best hypotheses of each source: tokens (B, beams, T), scores (B, beams), best first."""
        batch = ops.shape(token_ids)[0]
        decoder = TargetDecoder(self.model, token_ids, lengths, allowed, self.beams, self.max_new_tokens)
        first_rows = ops.arange(batch, dtype="int32")[:, None] * self.beams
        # At first all beams of a source are the same: only one of them may be extended.
        alone = ops.where(ops.arange(self.beams) == 0, 0.0, _IMPOSSIBLE)
        none = ops.full((batch, self.beams, self.max_new_tokens), self.end_id, "int32")
        empty_pool = ops.full((batch, self.beams), _IMPOSSIBLE, "float32")

        def body(t, last, alive, alive_scores, pool, pool_scores, caches):
            logits, caches = decoder.feed(t, last, caches)
            *hypotheses, parents, new = self._extend(t, logits, allowed, ban, alive, alive_scores, pool, pool_scores)
            rows = ops.reshape(first_rows + ops.cast(parents, "int32"), (-1,))
            caches = [tuple(ops.take(x, rows, axis=0) for x in cache) for cache in caches]
            return t + 1, ops.reshape(new, (-1,)), *hypotheses, caches

        start = ops.convert_to_tensor(0, "int32")
        *hypotheses, _, new = self._extend(
            start, decoder.first_logits, allowed, ban, none, ops.zeros((batch, 1)) + alone[None], none, empty_pool
        )
        state = (start + 1, ops.reshape(new, (-1,)), *hypotheses, decoder.caches)
        state = ops.while_loop(self._search_on, body, state)
        return state[4], state[5]

    def _extend(self, t, logits, allowed, ban, alive, alive_scores, pool, pool_scores):
        """One token more: hypotheses that end or are full go to the pool, the best others stay alive."""
        batch, beams = ops.shape(alive)[0], self.beams
        log_probs = ops.log_softmax(logits + ban[ops.cast(t + 1 >= self.min_new_tokens, "int32")], axis=-1)
        vocab_size = log_probs.shape[-1]
        totals = alive_scores[:, :, None] + ops.reshape(log_probs, (batch, beams, vocab_size))
        # Of 2 * beams candidates at most `beams` end, so `beams` of them can go on.
        num_candidates = min(2 * beams, beams * vocab_size)
        scores, flat = ops.top_k(ops.reshape(totals, (batch, beams * vocab_size)), num_candidates)
        parents, new = flat // vocab_size, ops.cast(flat % vocab_size, "int32")
        grown = _select(alive, parents)
        grown = ops.where(ops.arange(self.max_new_tokens) == t, new[:, :, None], grown)
        ends = ops.logical_or(new == self.end_id, t + 1 >= allowed[:, None])
        ended_scores = scores / ops.cast(t + 1, "float32") ** self.length_penalty
        ended_scores = ops.where(ops.logical_and(ends, scores > _IMPOSSIBLE / 2), ended_scores, _IMPOSSIBLE)
        pool_scores, best = ops.top_k(ops.concatenate([pool_scores, ended_scores], axis=1), beams)
        pool = _select(ops.concatenate([pool, grown], axis=1), best)
        alive_scores, best = ops.top_k(ops.where(ends, _IMPOSSIBLE, scores), beams)
        parents = _select(parents, best)
        return _select(grown, best), alive_scores, pool, pool_scores, parents, _select(new, best)

    def _search_on(self, t, last, alive, alive_scores, pool, pool_scores, caches):
        # A live hypothesis can only lose probability; the longest length is the mildest divisor for it.
        longest = ops.cast(self.max_new_tokens, "float32") ** max(self.length_penalty, 0.0)
        hopeless = ops.min(pool_scores, axis=1) >= ops.max(alive_scores, axis=1) / longest
        return ops.logical_and(t < self.max_new_tokens, ops.logical_not(ops.all(hopeless)))


def _select(x, index):
    """Rows `index` (B, k) of each batch element of `x` (B, m, ...)."""
    index = ops.reshape(index, (*ops.shape(index), *([1] * (len(x.shape) - 2))))
    return ops.take_along_axis(x, index, axis=1)
