"""From the states of an encoder to the vector of a text."""

import keras
from keras import layers, ops

from simretro.ops import take_rows

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
    return vectors_and_states(encoder, token_ids, pooling, training=training)[0]


def vectors_and_states(encoder, token_ids, pooling: str, positions=None, training: bool | None = False):
    """`text_vectors`, and the last layer's states at some positions, of one pass.

    Args:
        encoder, token_ids, pooling, training: see `text_vectors`.
        positions: int32 (B, M), each in [0, L); None = no states.
    Returns: (float (B, H), float (B, M, H) or None).
    """
    segment_ids, first = ops.zeros_like(token_ids), ops.zeros_like(token_ids[:, :1])
    if pooling == "mean":
        hidden = encoder.hidden(token_ids, segment_ids, training=training)
        vectors = masked_mean(hidden, token_ids != encoder.config["pad_token_id"])
        return vectors, None if positions is None else take_rows(hidden, positions)
    read = first if positions is None else ops.concatenate([first, positions], axis=1)
    hidden = encoder.hidden_at(token_ids, segment_ids, read, training=training)
    vectors = encoder.pooler(hidden[:, 0]) if pooling == "pooler" else hidden[:, 0]
    return vectors, None if positions is None else hidden[:, 1:]


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
