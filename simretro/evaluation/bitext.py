"""Sentences and their translations: does each find its own among all of the other side?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simretro.arguments import check_int
from simretro.evaluation.rows import is_sparse, text_list, unit_rows

RETRIEVALS, TIES = ("cosine", "csls", "margin"), ("index", "text", "optimistic", "pessimistic")
_NEIGHBORS = {"cosine": 0, "csls": 10, "margin": 4}  # MUSE's and LASER's
_SCORES_PER_BLOCK = 1 << 22  # float64, 32 MB
# Scores closer than this are equal: products of the same float32 vectors differ so much between blocks and machines.
_TIE = 1e-6


@dataclass(frozen=True)
class BitextAccuracy:
    """Result of `bitext_accuracy`.

    Attributes:
        forward: float, share of the first side's sentences that find their translation; for Tatoeba xx -> en.
        backward: float, the same from the second side; en -> xx.
        mean: float, of the two. LASER prints error rates, `100 * (1 - forward)`; XTREME prints `100 * backward`.
        forward_hits, backward_hits: bool (N,), for intervals: `bootstrap_interval(np.mean, result.forward_hits)`.
    """

    forward: float
    backward: float
    mean: float
    forward_hits: np.ndarray
    backward_hits: np.ndarray


def bitext_accuracy(
    vectors, other_vectors, *, retrieval: str = "cosine", neighbors: int | None = None, ties: str = "index",
    texts: Sequence[str] | None = None, other_texts: Sequence[str] | None = None,
) -> BitextAccuracy:  # fmt: skip
    """Accuracy of the nearest neighbour in both directions; row i of the one side belongs to row i of the other.

    Args:
        vectors, other_vectors: numbers (N, d), or SciPy sparse matrices; normalised here.
        retrieval: "cosine"; "csls" = 2 cos(x, y) - r(x) - r(y); or "margin" = cos(x, y) / ((r(x) + r(y)) / 2), where r
            is the mean cosine to the nearest neighbours on the other side. CCP's numbers are "cosine".
        neighbors: int >= 1, how many r is the mean of; None = 10 for "csls", 4 for "margin".
        ties: what counts if several have the highest score (up to 1e-6). "index" = the first of them must be the right
            one, as with `argmax` in the reference programs; "text" = the first must have the right one's text, letter
            by letter; "optimistic" = the right one must be among them; "pessimistic" = it must be the only one. A model
            that maps all texts to one vector gets 1 by "optimistic" and 0 by "pessimistic".
        texts, other_texts: N strings each, needed for "text".
    Returns: a `BitextAccuracy`.
    Raises: ValueError for different numbers of rows or dimensions, no row, or a value that is not allowed; TypeError
        for one str as texts.
    Reference: Artetxe and Schwenk, 2019, https://arxiv.org/abs/1811.01136 (margin)
    """
    if retrieval not in RETRIEVALS:
        raise ValueError(f"`retrieval` must be one of {RETRIEVALS}; received {retrieval!r}.")
    if ties not in TIES:
        raise ValueError(f"`ties` must be one of {TIES}; received {ties!r}.")
    if neighbors is None:
        neighbors = _NEIGHBORS[retrieval]
    elif retrieval != "cosine":
        check_int("neighbors", neighbors, 1)
    left, right = _sides(vectors, other_vectors)
    labels, other_labels = np.arange(left.shape[0]), np.arange(left.shape[0])
    if ties == "text":
        labels, other_labels = _text_labels(texts, len(labels)), _text_labels(other_texts, len(labels), "other_texts")
    near = other_near = None
    if retrieval != "cosine":
        near, other_near = _neighborhood(left, right, neighbors), _neighborhood(right, left, neighbors)
    forward = _hits(left, right, near, other_near, retrieval, ties, other_labels)
    backward = _hits(right, left, other_near, near, retrieval, ties, labels)
    accuracies = float(forward.mean()), float(backward.mean())
    return BitextAccuracy(*accuracies, (accuracies[0] + accuracies[1]) / 2, forward, backward)


def _sides(vectors, other_vectors):
    rows = [(side if is_sparse(side) else np.asarray(side)).shape[0] for side in (vectors, other_vectors)]
    if rows[0] != rows[1] or not rows[0]:
        raise ValueError(
            f"`vectors` and `other_vectors` must have as many rows, at least one; received {rows[0]} and {rows[1]}."
        )
    left, right = unit_rows(vectors, rows[0]), unit_rows(other_vectors, rows[0], "other_vectors")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"The two sides must have one dimension; received {left.shape[1]} and {right.shape[1]}.")
    return left.astype("float64"), right.astype("float64")


def _text_labels(texts, count, name="texts"):
    """A number for each text, the same for equal texts."""
    texts = [] if texts is None else text_list(texts, name)
    if len(texts) != count:
        raise ValueError(
            f'`ties="text"` needs the {count} `texts` and `other_texts`; received {len(texts)} for one side.'
        )
    numbers = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts])


def _blocks(count):
    step = max(1, _SCORES_PER_BLOCK // count)
    return [slice(start, start + step) for start in range(0, count, step)]


def _cosines(queries, vectors):
    products = queries @ vectors.T
    return products.toarray() if is_sparse(products) else products


def _neighborhood(queries, vectors, neighbors):
    """Mean cosine to the nearest `neighbors` of the other side, or to all if there are fewer; (N,)."""
    count = vectors.shape[0]
    k = min(neighbors, count)
    parts = []
    for rows in _blocks(count):
        parts.append(np.partition(_cosines(queries[rows], vectors), count - k, axis=1)[:, count - k :].mean(axis=1))
    return np.concatenate(parts)


def _hits(queries, vectors, near, other_near, retrieval, ties, labels):
    count = vectors.shape[0]
    hits = np.empty(count, bool)
    for rows in _blocks(count):
        scores = _cosines(queries[rows], vectors)
        own = np.arange(count)[rows]
        if retrieval == "csls":
            scores = 2 * scores - near[rows, None] - other_near
        elif retrieval == "margin":
            # Where all neighbours are dissimilar the ratio has no meaning; so small a number keeps the cosines' order.
            scores = scores / np.maximum((near[rows, None] + other_near) / 2, _TIE)
        best = scores >= scores.max(axis=1, keepdims=True) - _TIE  # (block, N)
        if ties in ("index", "text"):
            hits[rows] = labels[best.argmax(axis=1)] == labels[own]
        else:
            hits[rows] = best[np.arange(len(own)), own]
            if ties == "pessimistic":
                hits[rows] &= best.sum(axis=1) == 1
    return hits
