"""What every cached decoder does with its sources before the first step."""

from collections.abc import Iterator, Sequence

import numpy as np

from simretro.arguments import check_int, warn
from simretro.models import Transformer
from simretro.models.config import max_tokens
from simretro.tokenizers.rows import round_up

_LENGTH_MULTIPLE = 8


def check_model(model: Transformer) -> None:
    """Raises ValueError if `model` is no UniLM with a vocabulary head."""
    if getattr(model, "application", None) != "unilm" or model.mlm_head is None:
        raise ValueError(
            "`model` must be a Transformer with `application='unilm'` and `with_mlm='linear'`; received "
            f"application={getattr(model, 'application', None)!r}, with_mlm={getattr(model, 'with_mlm', None)!r}."
        )


def pad_sources(model: Transformer, source_ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of ids -> (int32 (B, S), lengths int32 (B,)), S a multiple of 8 where the position table allows it."""
    lengths = _lengths(source_ids)
    width = round_up(lengths.max(), _LENGTH_MULTIPLE)
    width = max(int(lengths.max()), min(width, max_tokens(model.config) or width))
    padded = np.full((len(source_ids), width), model.config["pad_token_id"], "int32")
    padded[np.arange(width) < lengths[:, None]] = np.concatenate([np.asarray(ids, "int32") for ids in source_ids])
    return padded, lengths


def batches_of_sources(
    model: Transformer, source_ids: Sequence[Sequence[int]], sources_per_batch: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Sources of like length side by side, for less padding.

    Args:
        model: `Transformer`.
        source_ids: lists of ids.
        sources_per_batch: int >= 1.
    Yields: (places int (B,) in `source_ids`, token ids int32 (B, S), lengths int32 (B,)).
    """
    order = np.argsort([len(ids) for ids in source_ids], kind="stable")
    for start in range(0, len(order), sources_per_batch):
        chosen = order[start : start + sources_per_batch]
        yield chosen, *pad_sources(model, [source_ids[i] for i in chosen])


def allowed_new_tokens(model: Transformer, source_ids: Sequence[Sequence[int]], max_new_tokens: int) -> np.ndarray:
    """How many tokens each source may get, int32 (B,): source + output never exceed the position table.

    Args:
        model: `Transformer`.
        source_ids: B lists of ids.
        max_new_tokens: int >= 1.
    Raises: ValueError if `max_new_tokens` is no int of at least 1, or if a source is empty or leaves no position for an
        output.
    """
    check_int("max_new_tokens", max_new_tokens, 1)
    lengths = _lengths(source_ids)
    limit = max_tokens(model.config)
    if limit is None:
        return np.full(len(lengths), max_new_tokens, "int32")
    if lengths.max() >= limit:
        raise ValueError(
            f"A source of {lengths.max()} tokens leaves no room for an output: the model has {limit} positions. "
            "Truncate the source."
        )
    allowed = np.minimum(max_new_tokens, limit - lengths).astype("int32")
    if (allowed < max_new_tokens).any():
        warn(
            f"{int((allowed < max_new_tokens).sum())} of {len(lengths)} outputs are capped below the "
            f"{max_new_tokens} tokens asked for: source and output share {limit} positions."
        )
    return allowed


def _lengths(source_ids):
    lengths = np.array([len(ids) for ids in source_ids], "int32")
    if not lengths.all():
        raise ValueError("`source_ids` must not be empty lists; a source has at least its special tokens.")
    return lengths
