"""Rows of vectors, dense or sparse, as unit vectors; and the texts that they belong to."""

import numpy as np

from simretro.lines import short
from simretro.retrieval import normalize_rows


def is_sparse(vectors):
    """Tells a SciPy sparse matrix from anything else, without importing SciPy."""
    return hasattr(vectors, "tocsr") and hasattr(vectors, "nnz")


def text_list(texts, name="texts"):
    """A sequence of texts as a list.

    Raises: TypeError for a single str, whose letters would be taken for texts.
    """
    if isinstance(texts, str):
        raise TypeError(f"`{name}` must be a list of str; received one str. Write `[{short(texts)}]`.")
    return list(texts)


def unit_rows(vectors, count, name="vectors"):
    """L2-normalises the rows of a dense or sparse matrix; a row of zeros stays zero.

    Args:
        vectors: numbers (N, d) or a SciPy sparse matrix.
        count: int, the N that is expected.
        name: str, what it is called in an error.
    Returns: float32 (N, d), or a sparse CSR matrix of it.
    Raises: ValueError if it is not a matrix of `count` rows of finite numbers.
    """
    if is_sparse(vectors):
        vectors = vectors.tocsr().astype("float64")
        norms = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1)).reshape(-1))
        if not np.isfinite(norms).all():
            raise ValueError(f"`{name}` must be finite; row {int(np.flatnonzero(~np.isfinite(norms))[0])} is not.")
        lengths = np.repeat(np.where(norms > 0, norms, 1.0), np.diff(vectors.indptr))
        vectors.data /= lengths  # `astype` above made a copy
        vectors = vectors.astype("float32")
    else:
        vectors = normalize_rows(vectors, name)
    if vectors.shape[0] != count:
        raise ValueError(f"`{name}` must have one row per text; received {vectors.shape[0]} rows, {count} texts.")
    return vectors
