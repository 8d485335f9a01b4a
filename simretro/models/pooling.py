"""From the states of an encoder to the vector of a text."""

import keras
from keras import layers, ops

POOLINGS = ("cls", "mean", "pooler")


def check_pooling(encoder, pooling: str) -> None:
    """Raises ValueError for a pooling that is unknown or that the encoder cannot give."""
    if pooling not in POOLINGS:
        raise ValueError(f"`pooling` must be one of {POOLINGS}; received {pooling!r}.")
    if pooling == "pooler" and encoder.pooler is None:
        raise ValueError("`pooling='pooler'` needs an encoder built with `with_pool`.")


def text_vectors(encoder, token_ids, pooling: str, training: bool | None = False):
    """The vectors of texts, not normalised.

    Args:
        encoder: `Transformer`.
        token_ids: int32 (B, L), `[CLS] text [SEP]` padded with the encoder's pad id.
        pooling: "cls" (first token), "mean" (over the tokens of a text) or "pooler" (dense layer on the first token).
        training: bool.
    Returns: float (B, H); float32 for "mean".
    """
    segment_ids = ops.zeros_like(token_ids)
    if pooling == "mean":
        hidden = encoder.hidden(token_ids, segment_ids, training=training)
        return masked_mean(hidden, token_ids != encoder.config["pad_token_id"])
    first = ops.zeros_like(token_ids[:, :1])
    vectors = encoder.hidden_at(token_ids, segment_ids, first, training=training)[:, 0]
    return encoder.pooler(vectors) if pooling == "pooler" else vectors


def new_projection(encoder, size: int, name: str = "projection") -> layers.Dense:
    """A linear layer from the encoder's vectors to shorter ones, built, in float32.

    At first its rows are orthogonal: of the vectors' angles it keeps as much as so few numbers can.
    """
    projection = layers.Dense(
        size, use_bias=False, kernel_initializer=keras.initializers.Orthogonal(), dtype="float32", name=name
    )
    projection.build((None, encoder.config["hidden_size"]))
    return projection


def masked_mean(hidden, padding_mask):
    """float32 (B, H), the mean of float (B, L, H) over the positions where bool (B, L) is True; 0 if none is."""
    weights = ops.cast(padding_mask, "float32")[:, :, None]
    total = ops.sum(ops.cast(hidden, "float32") * weights, axis=1)
    return total / ops.maximum(ops.sum(weights, axis=1), 1.0)
