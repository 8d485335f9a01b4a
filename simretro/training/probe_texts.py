"""Texts that a monitor encodes again and again."""

from collections.abc import Callable, Sequence

import numpy as np


def checked_texts(texts: Sequence[str], least: int, name: str = "texts") -> list[str]:
    """The texts as a list; equal ones have equal vectors, and would be found for one another.

    Raises: ValueError for what is no list of str, fewer than `least` texts, or equal ones.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` must be a list of str.")
    texts = list(texts)
    if len(set(texts)) < max(least, len(texts)):
        raise ValueError(
            f"`{name}` must be at least {least} and all different; received {len(texts)} texts, {len(set(texts))} "
            "different ones."
        )
    return texts


def encoded(encode: Callable, texts: list[str], of: str = "") -> np.ndarray:
    """Vectors (N, d) of the texts; raises ValueError if `encode` gives something else, `of` telling of which texts."""
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(
            f"`encode` must return a row per text; received shape {vectors.shape} for {len(texts)} texts{of}."
        )
    return vectors
