"""Exact search: every cosine is computed, never more than a block of them is kept."""

import numpy as np

from simretro.retrieval.index import VectorIndex

# A block of scores should stay in the cache between the matrix product that writes it and the comparison that reads
# it; the vectors of a block must be many enough for the product to run at full speed.
_QUERIES_PER_BLOCK = 128
_SCORES_PER_BLOCK = 1 << 20
_MIN_ROWS, _MAX_ROWS = 4096, 65536
_RESCORED_AT_ONCE = 1 << 22  # numbers, float64


class ExactIndex(VectorIndex):
    """Compares a query with all vectors: always right, linear in the size, nothing to build.

    Args:
        fingerprint: str or None, of the model that makes the vectors.
    """

    kind = "exact"

    def _search(self, queries, topn):
        return exact_search(self.vectors, queries, topn)


def exact_search(vectors: np.ndarray, queries: np.ndarray, topn: int) -> tuple[np.ndarray, np.ndarray]:
    """The `topn` largest inner products of each query; cosines, as both sides are normalised.

    The scores of a block of vectors come from one float32 matrix product. Only those above the query's `topn`-th best
    so far are looked at any further, and after the first blocks that is next to none: sorting or partitioning
    all of them would take longer than the product. The survivors are computed anew in float64, so that neither the
    blocks nor the number of queries changes a score or the order of equal ones.

    Args:
        vectors: float32 (N, d), normalised or zero.
        queries: float32 (Q, d), normalised or zero.
        topn: int, 1 <= topn <= N.
    Returns: scores float32 (Q, topn) and ids int64 (Q, topn), by descending score, then ascending id.
    """
    scores = np.empty((len(queries), topn), "float32")
    ids = np.empty((len(queries), topn), "int64")
    # The first block must hold `topn` vectors, so a large `topn` leaves room for fewer queries.
    num_queries = max(1, min(_QUERIES_PER_BLOCK, len(queries)))
    num_rows = max(topn, min(_MAX_ROWS, max(_MIN_ROWS, _SCORES_PER_BLOCK // num_queries)))
    num_queries = max(1, min(num_queries, _SCORES_PER_BLOCK // num_rows))
    for start in range(0, len(queries), num_queries):
        chosen = slice(start, start + num_queries)
        scores[chosen], ids[chosen] = _search_queries(vectors, queries[chosen], topn, num_rows)
    return scores, ids


def _search_queries(vectors, queries, topn, num_rows):
    """As `exact_search`, for queries few enough that their scores with `num_rows` vectors fit into a block."""
    num_queries, dimension = queries.shape
    # A float32 inner product of d terms of unit vectors is wrong by at most d/2^24; twice that, and some for the final
    # rounding, separates a sure loser from the `topn`-th best. The zeros of a zero query are exact.
    margin = np.where(queries.any(axis=1), 2 * (dimension + 8) * 2.0**-24, 0).astype("float32")
    buffer = np.empty(num_queries * min(num_rows, len(vectors)), "float32")
    survivors = _Survivors(vectors, queries, topn)
    for start in range(0, len(vectors), num_rows):
        block = vectors[start : start + num_rows]
        scores = buffer[: num_queries * len(block)].reshape(num_queries, len(block))
        np.matmul(queries, block.T, out=scores)
        if start == 0:
            best = np.partition(scores, len(block) - topn, axis=1)[:, len(block) - topn :].copy()  # (Q, topn), unsorted
            limit = best.min(axis=1) - margin
            passed = np.flatnonzero(scores >= limit[:, None])
        else:
            # `>`: a score that equals the limit of a zero query belongs to a larger id.
            passed = np.flatnonzero(scores > limit[:, None])
        if not len(passed):
            continue
        rows, columns = np.divmod(passed, len(block))
        found = scores.reshape(-1)[passed]
        if start:
            _merge(best, rows, found)
            limit = best.min(axis=1) - margin
        survivors.add(rows, columns + start, found, limit)
    rows, ids, scores = survivors.best(limit)
    return scores.reshape(num_queries, topn), ids.reshape(num_queries, topn)


def _merge(best, rows, found):
    """Puts the scores `found` of the queries `rows` (ascending) into the best scores so far, (Q, topn), in place."""
    topn = best.shape[1]
    touched, row, counts = np.unique(rows, return_inverse=True, return_counts=True)
    place = np.arange(len(rows)) - (np.cumsum(counts) - counts)[row]
    candidates = np.full((len(touched), topn + counts.max()), -np.inf, "float32")
    candidates[:, :topn] = best[touched]
    candidates[row, topn + place] = found
    best[touched] = np.partition(candidates, -topn, axis=1)[:, -topn:]


class _Survivors:
    """Pairs of query and vector that may still be among the best; thinned out when they become many."""

    def __init__(self, vectors, queries, topn):
        self.vectors, self.queries, self.topn = vectors, queries, topn
        self.pairs, self.count = [], 0
        self.allowed = max(1 << 18, 4 * len(queries) * topn)

    def add(self, rows, ids, scores, limit):
        self.pairs.append((rows, ids, scores))
        self.count += len(rows)
        if self.count > self.allowed:
            rows, ids, _ = self.best(limit)
            # Their place is sure until better ones come: no limit may drop them.
            self.pairs, self.count = [(rows, ids, np.full(len(rows), np.inf, "float32"))], len(rows)

    def best(self, limit):
        rows, ids, scores = (np.concatenate(part) for part in zip(*self.pairs, strict=True))
        kept = scores >= limit[rows]
        return rescore(self.vectors, self.queries, rows[kept], ids[kept], self.topn)


def rescore(vectors, queries, rows, ids, topn):
    """Computes the cosines of pairs anew in float64 and keeps the best of each query.

    Args:
        vectors: float32 (N, d).
        queries: float32 (Q, d).
        rows, ids: int (P,), query and vector of each pair; no pair twice.
        topn: int, pairs kept per query.
    Returns: rows, ids, scores float32 in [-1, 1], by row, then descending score, then ascending id.
    """
    scores = np.empty(len(rows), "float32")
    at_once = max(1, _RESCORED_AT_ONCE // vectors.shape[1])
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        left, right = queries[rows[part]].astype("float64"), vectors[ids[part]].astype("float64")
        scores[part] = np.einsum("ij,ij->i", left, right)
    np.clip(scores, -1, 1, out=scores)
    order = np.lexsort((ids, -scores, rows))
    rows, ids, scores = rows[order], ids[order], scores[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = place < topn
    return rows[kept], ids[kept], scores[kept]
