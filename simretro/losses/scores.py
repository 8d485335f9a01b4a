"""What the losses that compare vectors share."""

from keras import ops

from simretro.ops import unit_vectors

# Far below any score, and finite in float32, where it is applied.
HIDDEN_SCORE = -1e9


def comparable(similarity, *vectors):
    """Vectors whose dot products are the similarities.

    Args:
        similarity: "cosine", or "dot" = the vectors as they are.
        vectors: float (..., D) each, of any precision.
    Returns: list of float32 (..., D).
    Raises: ValueError for another `similarity`.
    """
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"`similarity` must be 'cosine' or 'dot'; received {similarity!r}.")
    return [unit_vectors(x) if similarity == "cosine" else ops.cast(x, "float32") for x in vectors]
