"""What turns texts into vectors: models of this library, or a function of one's own."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SIMILARITIES = ("cosine", "dot")


class TextEncoders(NamedTuple):
    """How queries and passages become vectors, and how these are compared.

    Args:
        queries, passages: list of N texts -> numbers (N, d).
        similarity: "cosine" or "dot".
        fingerprint: str or None, of what makes the vectors of passages.
        passage_prefix: str, put before each passage by `passages`.
        engine: str or None, what computes the vectors of passages, see `SentenceEncoder`.
    """

    queries: Callable
    passages: Callable
    similarity: str
    fingerprint: str | None
    passage_prefix: str = ""
    engine: str | None = None


def encoders_of(model, similarity: str | None = None, batch_size: int = 32) -> TextEncoders:
    """The encoders of a model.

    Args:
        model: `BiEncoder` (its prefixes and its similarity are used), `SentenceEncoder` or another model with
            `encode`; or a function: list of texts -> vectors.
        similarity: "cosine" or "dot"; None = the model's own, or "cosine".
        batch_size: int, of a model's `encode`.
    Raises: ValueError for something else.
    """
    similarity = similarity or getattr(model, "similarity", "cosine")
    if similarity not in SIMILARITIES:
        raise ValueError(f"`similarity` must be one of {SIMILARITIES} or None; received {similarity!r}.")
    if hasattr(model, "encode_passages"):
        queries, passages = (_texts_alone(f, batch_size) for f in (model.encode_queries, model.encode_passages))
        encoder = model.passage_sentence_encoder
        engine = getattr(encoder, "engine", None)
        return TextEncoders(queries, passages, similarity, encoder.fingerprint(), model.passage_prefix, engine)
    if hasattr(model, "encode"):
        encode = _texts_alone(model.encode, batch_size)
        return TextEncoders(encode, encode, similarity, fingerprint_of(model), engine=getattr(model, "engine", None))
    if callable(model):
        return TextEncoders(model, model, similarity, None)
    raise ValueError(
        "`model` must have `encode` or `encode_passages`, or be a function from a list of texts to vectors; received "
        f"{type(model).__name__}."
    )


def fingerprint_of(model) -> str | None:
    """The fingerprint of what encodes passages; a str is one; None where the model has none."""
    if model is None or isinstance(model, str):
        return model
    if hasattr(model, "encode_passages"):
        model = model.passage_sentence_encoder
    elif not hasattr(model, "fingerprint"):
        model = getattr(model, "sentence_encoder", model)
    return model.fingerprint() if hasattr(model, "fingerprint") else None


def vectors_of(encode: Callable, texts: list[str], name: str) -> np.ndarray:
    """Vectors of texts, (N, d) as `encode` gives them.

    Raises: ValueError if `encode` returns another number of rows, or numbers that are not finite, naming the first row.
    """
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise ValueError(f"`{name}` must return a row per text; received shape {vectors.shape} for {len(texts)} texts.")
    with np.errstate(over="ignore"):
        finite = np.isfinite(vectors.astype("float32")).all(axis=1)
    if not finite.all():
        text = texts[int(np.argmin(finite))]
        raise ValueError(f"`{name}` must return finite float32 numbers; the vector of {text[:60]!r} is not finite.")
    return vectors


def _texts_alone(encode, batch_size):
    return lambda texts: encode(texts, batch_size=batch_size, show_progress=False)
