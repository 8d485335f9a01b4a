"""Mean and variance of vectors, in float64 and block by block; what can be seen from them."""

import numpy as np

_BLOCK_ROWS = 8192
# A dimension whose variance is this much smaller than the largest one is constant up to rounding.
_CONSTANT = 1e-12
# Principal axes vary at least by this share of the widest one: the rest is noise, not to be made larger than tenfold.
_LEAST_VARIANCE = 1e-4
_FEWEST_TO_JUDGE, _FOREIGN = 100, 4.0


def check_vectors(vectors, name, dimension=None):
    """Returns numbers (N, d) as an array.

    Raises: ValueError if they are not that, or not of the dimension that is expected.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise ValueError(f"`{name}` must be (number of texts, dimension); received shape {vectors.shape}.")
    if vectors.dtype.kind not in "fiu":
        raise ValueError(f"`{name}` must hold real numbers; received dtype {vectors.dtype}.")
    if dimension is not None and vectors.shape[1] != dimension:
        raise ValueError(
            f"`{name}` must have the dimension {dimension} of the vectors that the calibrator was fitted with; "
            f"received dimension {vectors.shape[1]}. Encode them with the same model."
        )
    for start in range(0, len(vectors), _BLOCK_ROWS):
        finite = np.isfinite(vectors[start : start + _BLOCK_ROWS]).all(axis=1)
        if not finite.all():
            raise ValueError(f"`{name}` must be finite; row {start + int(np.argmin(finite))} is not.")
    return vectors


def moments(vectors, name):
    """Mean and (biased) variance of each dimension, float64 (d,).

    Raises: ValueError for fewer than two vectors, and for vectors that are all the same.
    """
    if len(vectors) < 2:
        raise ValueError(f"`{name}` must have at least two vectors; received {len(vectors)}.")
    blocks = [vectors[start : start + _BLOCK_ROWS] for start in range(0, len(vectors), _BLOCK_ROWS)]
    mean = sum(block.sum(axis=0, dtype="float64") for block in blocks) / len(vectors)
    # A second pass: E[x^2] - E[x]^2 loses all digits where the mean is large.
    variance = sum(np.square(block - mean).sum(axis=0) for block in blocks) / len(vectors)
    if not variance.max() > _CONSTANT * np.square(mean).max():
        raise ValueError(
            f"`{name}` must not be the same vector {len(vectors)} times: the encoder has collapsed, or reads no text."
        )
    return mean, variance


def divisor(variance, scale):
    """What each dimension is divided by, float64 (d,); 1 where it is constant, to make no signal of rounding errors."""
    constant = variance <= _CONSTANT * variance.max()
    return np.where(constant, 1.0, np.sqrt(variance) if scale == "std" else variance)


def half_whitening(clouds, means):
    """What halves the differences in spread, on a logarithmic scale, between the principal axes of several languages.

    Args:
        clouds: list of numbers (N, d), the vectors of each language; means: list of float64 (d,), theirs.
    Returns: float64 (d, d), symmetric, for row vectors: along each axis of the languages' mean covariance it divides by
        the square root of the standard deviation. Axes on which nothing varies count as those that vary least.
    """
    covariances = []
    for vectors, mean in zip(clouds, means, strict=True):
        blocks = (vectors[start : start + _BLOCK_ROWS] - mean for start in range(0, len(vectors), _BLOCK_ROWS))
        covariances.append(sum(block.T @ block for block in blocks) / len(vectors))
    variances, axes = np.linalg.eigh(np.mean(covariances, axis=0))
    variances = np.maximum(variances, _LEAST_VARIANCE * variances.max())
    return axes * variances**-0.25 @ axes.T


def squared_distance_ratio(vectors, mean, variance):
    """Mean squared distance from the mean by that of the fitted vectors, if it is far from 1; None if all is well."""
    if len(vectors) < _FEWEST_TO_JUDGE:
        return None
    blocks = (vectors[start : start + _BLOCK_ROWS] for start in range(0, len(vectors), _BLOCK_ROWS))
    ratio = float(sum(np.square(block - mean).sum() for block in blocks) / len(vectors) / variance.sum())
    return ratio if not 1 / _FOREIGN < ratio < _FOREIGN else None
