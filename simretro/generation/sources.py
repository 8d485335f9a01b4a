"""What every cached decoder does with its sources before the first step."""

import warnings

import numpy as np

from simretro.models.config import max_tokens

_LENGTH_MULTIPLE = 8


def check_model(model):
    """Raises ValueError if `model` is no UniLM with a vocabulary head."""
    if getattr(model, "application", None) != "unilm" or model.mlm_head is None:
        raise ValueError(
            "`model` must be a Transformer with `application='unilm'` and `with_mlm='linear'`; received "
            f"application={getattr(model, 'application', None)!r}, with_mlm={getattr(model, 'with_mlm', None)!r}."
        )


def pad_sources(model, source_ids):
    """Lists of ids -> (int32 (B, S), lengths int32 (B,)), S a multiple of 8 where the position table allows it."""
    lengths = np.array([len(ids) for ids in source_ids], "int32")
    if not lengths.all():
        raise ValueError("`source_ids` must not be empty lists; a source has at least its special tokens.")
    width = -(-int(lengths.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    width = max(int(lengths.max()), min(width, max_tokens(model.config) or width))
    padded = np.full((len(source_ids), width), model.config["pad_token_id"], "int32")
    padded[np.arange(width) < lengths[:, None]] = np.concatenate([np.asarray(ids, "int32") for ids in source_ids])
    return padded, lengths


def allowed_new_tokens(model, lengths, max_new_tokens):
    """How many tokens each source may get, int32 (B,): source + output never exceed the position table.

    Args:
        model: `Transformer`.
        lengths: int (B,), tokens of each source.
        max_new_tokens: int >= 1.
    Raises: ValueError if `max_new_tokens` is below 1, or if a source leaves no position for an output.
    """
    if max_new_tokens < 1:
        raise ValueError(f"`max_new_tokens` must be at least 1; received {max_new_tokens}.")
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
        warnings.warn(
            f"{int((allowed < max_new_tokens).sum())} of {len(lengths)} outputs are capped below the "
            f"{max_new_tokens} tokens asked for: source and output share {limit} positions.",
            stacklevel=3,
        )
    return allowed
