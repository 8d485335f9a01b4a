"""Cached sampling: many sources and many samples of each in one compiled loop."""

from collections.abc import Sequence

import numpy as np
from keras import ops

from simretro.arguments import check_int
from simretro.generation.cache import TargetDecoder
from simretro.generation.sources import allowed_new_tokens, batches_of_sources, check_model
from simretro.models import Transformer
from simretro.models.compiled import compiled

# With `top_p` alone the nucleus is looked for among this many tokens: sorting a whole vocabulary at each step
# would halve the speed.
_NUCLEUS_CANDIDATES = 256
_FORBIDDEN = -1e9
_COLDEST = 1e-6  # below it logits / temperature leaves float32, and the most probable token has all the probability


def generate(
    model: Transformer,
    source_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    end_id: int,
    n: int = 1,
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
    min_new_tokens: int = 1,
    forbidden_ids: Sequence[int] = (),
    max_rows: int = 2048,
) -> list[list[list[int]]]:
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
    n = check_int("n", n, 1)
    top_k = top_k if top_k is None else check_int("top_k", top_k, 1)
    _check_sampling(top_p, temperature)
    check_tokens(model.config, end_id, forbidden_ids, min_new_tokens)
    if not source_ids:
        return []
    allowed = allowed_new_tokens(model, source_ids, max_new_tokens)
    ban = banned_logits(model.config, end_id, forbidden_ids)
    top_p = None if top_p == 1 else top_p
    function = _sampler(model, n, top_k, top_p is not None, temperature, max_new_tokens, end_id, min_new_tokens)
    numbers = np.float32(temperature or 1.0), np.float32(top_p or 1.0)
    entropy = np.random.SeedSequence(seed).entropy
    outputs = [None] * len(source_ids)
    for chosen, token_ids, lengths in batches_of_sources(model, source_ids, max(1, max_rows // n)):
        # The numbers of a source depend on the seed and its index alone, not on what it is decoded with.
        uniforms = np.stack(
            [np.random.default_rng([entropy, i]).random((max_new_tokens, n), dtype="float32") for i in chosen], axis=1
        ).reshape(max_new_tokens, -1)
        tokens = function(token_ids, lengths, allowed[chosen], uniforms, *numbers, ban)
        for i, rows in zip(chosen, ops.convert_to_numpy(tokens).reshape(len(chosen), n, -1), strict=True):
            outputs[i] = [cut_at(row, end_id, allowed[i]) for row in rows]
    return outputs


def cut_at(row: np.ndarray, end_id: int, allowed: int) -> list[int]:
    """Ids (T,) up to the first `end_id`, at most `allowed` of them, as list."""
    row = row[:allowed]
    ends = np.flatnonzero(row == end_id)
    return row[: ends[0]].tolist() if len(ends) else row.tolist()


def banned_logits(config: dict, end_id: int, forbidden_ids: Sequence[int]) -> np.ndarray:
    """What is added to logits, float32 (2, V): row 0 before the end token is allowed, row 1 from then on."""
    ban = np.zeros((2, config["vocab_size"]), "float32")
    # Padding is never a token of a target: read back, it would be hidden from the tokens behind it.
    ban[:, [*forbidden_ids, config["pad_token_id"]]] = _FORBIDDEN
    ban[0, end_id] = _FORBIDDEN
    return ban


def check_tokens(config: dict, end_id: int, forbidden_ids: Sequence[int], min_new_tokens: int) -> None:
    """Raises ValueError for ids outside the vocabulary and for a length that no output can have."""
    outside = [i for i in (end_id, *forbidden_ids) if not 0 <= i < config["vocab_size"]]
    if outside:
        raise ValueError(
            f"`end_id` and `forbidden_ids` must be in [0, {config['vocab_size']}), the vocabulary; received {outside}."
        )
    check_int("min_new_tokens", min_new_tokens, 1)


def _check_sampling(top_p, temperature):
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be in (0, 1]; received {top_p}.")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"`temperature` must be finite and not negative; received {temperature}.")


def _sampler(model, n, top_k, nucleus, temperature, max_new_tokens, end_id, min_new_tokens):
    """The compiled function of (token_ids, lengths, allowed, uniforms, temperature, top_p, ban) -> tokens."""
    vocab_size = model.config["vocab_size"]
    greedy = temperature < _COLDEST or top_k == 1
    candidates = 1 if greedy else min(top_k or (_NUCLEUS_CANDIDATES if nucleus else vocab_size), vocab_size)

    def build():
        def function(token_ids, lengths, allowed, uniforms, temperature, top_p, ban):
            draw = _drawer(candidates, nucleus and top_p, greedy, min_new_tokens, uniforms, temperature, ban)
            decoder = TargetDecoder(model, token_ids, lengths, allowed, n, max_new_tokens)
            return _decode(decoder, max_new_tokens, end_id, draw)

        return function

    key = ("sample", n, max_new_tokens, end_id, candidates, nucleus, greedy, min_new_tokens)
    return compiled(model, key, build)


def _drawer(candidates, top_p, greedy, min_new_tokens, uniforms, temperature, ban):
    """Returns draw(t, logits (R, V)) -> int32 (R,); `top_p` is False for all of the candidates."""

    def draw(t, logits):
        forbidden = ban[ops.cast(t + 1 >= min_new_tokens, "int32")]
        if greedy:
            return ops.cast(ops.argmax(logits + forbidden, axis=-1), "int32")
        logits = logits / temperature + forbidden  # in this order: no temperature makes a ban weak
        ids = None
        if candidates < logits.shape[-1] or top_p is not False:
            logits, ids = ops.top_k(logits, candidates)
        probabilities = ops.softmax(logits, axis=-1)
        cumulated = ops.cumsum(probabilities, axis=-1)
        if top_p is not False:
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


def _decode(decoder, max_new_tokens, end_id, draw):
    """Returns int32 (R, max_new_tokens), anything behind an end token being end tokens."""
    first = draw(ops.convert_to_tensor(0, "int32"), decoder.first_logits)
    tokens = ops.concatenate(
        [first[:, None], ops.full((ops.shape(first)[0], max_new_tokens - 1), end_id, "int32")], axis=1
    )
    done = ops.logical_or(first == end_id, decoder.allowed <= 1)

    def unfinished(t, last, tokens, done, caches):
        return ops.logical_and(t < max_new_tokens, ops.logical_not(ops.all(done)))

    def body(t, last, tokens, done, caches):
        logits, caches = decoder.feed(t, last, caches)
        new = ops.where(done, end_id, draw(t, logits))
        tokens = ops.slice_update(tokens, (0, t), new[:, None])
        done = ops.logical_or(done, ops.logical_or(new == end_id, t + 1 >= decoder.allowed))
        return t + 1, new, tokens, done, caches

    state = (ops.convert_to_tensor(1, "int32"), first, tokens, done, decoder.caches)
    return ops.while_loop(unfinished, body, state)[2]
