"""What several rooms do with NumPy arrays."""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike


def unit_rows(vectors: ArrayLike, dtype: DTypeLike = "float32") -> np.ndarray:
    """L2-normalises rows; a row of zeros stays zero.

    Args:
        vectors: finite numbers (N, d), of any size: no square leaves the range of numbers.
        dtype: of the result; all is computed in float64.
    Returns: (N, d), a new array.
    """
    vectors = np.asarray(vectors, "float64")
    largest = np.abs(vectors).max(axis=1, initial=0, keepdims=True)
    vectors = vectors / np.where(largest > 0, largest, 1)
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return (vectors / np.where(norms > 0, norms, 1)).astype(dtype)
