"""Nearest neighbours under CSLS (cross-domain similarity local scaling), with no more than a block of scores in memory.

CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), where r is the mean cosine to the k nearest neighbours on the other side: a
vector that is near to everything (a hub) is nobody's best match.
Reference: Conneau et al., 2018, https://arxiv.org/abs/1710.04087
"""

import numpy as np

_SCORES_PER_BLOCK = 1 << 22  # float32, 16 MB


def neighborhood_cosines(vectors: np.ndarray, others: np.ndarray, k: int = 10) -> np.ndarray:
    """Mean cosine of each vector to its `k` nearest among the others: the r of CSLS.

    Args:
        vectors: float32 (N, d), l2-normalised.
        others: float32 (M, d), l2-normalised, M >= 1.
        k: int >= 1; above M there are only M.
    Returns: float32 (N,).
    """
    k = min(k, len(others))
    result = np.empty(len(vectors), "float32")
    for rows in _blocks(len(vectors), len(others)):
        cosines = vectors[rows] @ others.T
        result[rows] = np.partition(cosines, len(others) - k, axis=1)[:, len(others) - k :].mean(axis=1)
    return result


def csls_neighbors(source: np.ndarray, target: np.ndarray, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """The nearest neighbour by CSLS of each vector on either side.

    Args:
        source: float32 (S, d), l2-normalised, S >= 1.
        target: float32 (T, d), l2-normalised, T >= 1.
        k: int >= 1, size of the neighbourhood; clamped to the number of vectors.
    Returns: int64 (S,), places in `target`, and int64 (T,), places in `source`. The first of equal ones.
    """
    # A constant for each row does not change the row's best, so the halves of the formula suffice.
    source_r, target_r = neighborhood_cosines(source, target, k) / 2, neighborhood_cosines(target, source, k) / 2
    forward = np.empty(len(source), "int64")
    backward, best = np.zeros(len(target), "int64"), np.full(len(target), -np.inf, "float32")
    columns = np.arange(len(target))
    for rows in _blocks(len(source), len(target)):
        cosines = source[rows] @ target.T
        forward[rows] = np.argmax(cosines - target_r, axis=1)
        cosines -= source_r[rows, None]
        nearest = np.argmax(cosines, axis=0)
        scores = cosines[nearest, columns]
        better = scores > best  # `>`: of equal ones the first stays
        best[better], backward[better] = scores[better], nearest[better] + rows.start
    return forward, backward


def csls_pairs(source: np.ndarray, target: np.ndarray, k: int = 10, mutual: bool = True) -> np.ndarray:
    """Pairs of nearest neighbours by CSLS: a dictionary without labels.

    Args:
        source, target, k: see `csls_neighbors`.
        mutual: bool; True keeps the pairs that are nearest to each other, False takes the nearest of every source.
    Returns: int64 (P, 2), places in `source` (ascending) and in `target`. P can be 0.
    """
    forward, backward = csls_neighbors(source, target, k)
    places = np.arange(len(source))
    if mutual:
        places = places[backward[forward] == places]
    return np.stack([places, forward[places]], axis=1)


def partner_ranks(vectors: np.ndarray, partners: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Rank, from 1, of each vector's own partner among those of the pool, by cosine; int64 (N,).

    Args:
        vectors, partners: float32 (N, d), l2-normalised; row i of the one belongs to row i of the other.
        pool: float32 (M, d), l2-normalised; only what is nearer than the partner counts, so it may stand here too.
    """
    own = np.einsum("ij,ij->i", vectors, partners)
    ranks = np.empty(len(vectors), "int64")
    for rows in _blocks(len(vectors), len(pool)):
        ranks[rows] = 1 + np.count_nonzero(vectors[rows] @ pool.T > own[rows, None] + 1e-6, axis=1)
    return ranks


def _blocks(num_rows, num_columns):
    step = max(1, _SCORES_PER_BLOCK // num_columns)
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
