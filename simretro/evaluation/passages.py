"""Passages that are too many to hold: encoded and searched block by block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from simretro.arguments import check_int
from simretro.evaluation.rows import text_list
from simretro.retrieval import normalize_rows

SIMILARITIES = ("dot", "cosine")


def search_passages(
    encode: Callable, queries: Sequence[str], passages: Iterable[tuple[str, str]], top_k: int = 100, *,
    encode_passages: Callable | None = None, similarity: str = "dot", block_size: int = 16_384,
) -> list[list[tuple[str, float]]]:  # fmt: skip
    """The best passages of each query; the vectors of one block are held, whatever the number of passages.

    Args:
        encode: called with a list of M texts, returns numbers (M, d).
        queries: Q strings.
        passages: pairs (id, text), read once.
        top_k: int >= 1.
        encode_passages: as `encode`, for the passages; None = `encode`.
        similarity: "dot", as dense retrievers after DPR are trained, or "cosine".
        block_size: int >= 1, passages given to `encode_passages` at once.
    Returns: for each query a list of (id, score), by descending score, equal scores in the order of the passages.
    Raises: TypeError for one str as queries; ValueError for a value out of range, or if an encoder returns another
        number of rows, another dimension or numbers that are not finite.
    """
    check_int("top_k", top_k, 1)
    check_int("block_size", block_size, 1)
    if similarity not in SIMILARITIES:
        raise ValueError(f"`similarity` must be one of {SIMILARITIES}; received {similarity!r}.")
    query_vectors = _vectors(encode, text_list(queries, "queries"), similarity, "encode")
    ids, scores = [], np.zeros((len(query_vectors), 0), "float32")
    places = np.zeros((len(query_vectors), 0), "int64")
    for block in _blocks(passages, block_size):
        vectors = _vectors(encode_passages or encode, [text for _, text in block], similarity, "encode_passages")
        if vectors.shape[1] != query_vectors.shape[1]:
            raise ValueError(
                f"`encode_passages` must give vectors of the queries' dimension {query_vectors.shape[1]}; received "
                f"{vectors.shape[1]}."
            )
        scores, places = _best(scores, places, query_vectors @ vectors.T, len(ids), top_k)
        ids.extend(name for name, _ in block)
    return [
        [(ids[place], score) for place, score in zip(*row, strict=True)]
        for row in zip(places.tolist(), scores.tolist(), strict=True)
    ]


def passage_text(title: str, text: str) -> str:
    """What is encoded: the title before the text."""
    return f"{title} {text}" if title else text


def _best(scores, places, block, start, top_k):
    """The best of what has been found and of a block that comes behind it.

    Sorting whole blocks would take longer than computing them: only what may get in among the best is sorted.

    Args:
        scores, places: float32 and int64 (Q, K), what has been found, best first.
        block: float32 (Q, N), scores of the passages from place `start` on.
        top_k: int >= K.
    Returns: scores and places (Q, min(K + N, top_k)), by descending score, equal scores by place.
    """
    if scores.shape[1] == top_k:
        enters = ~(block <= scores[:, -1:])  # an equal score comes too late; NaN is never left out, only sorted last
    elif block.shape[1] > top_k:
        enters = ~(-block > np.partition(-block, top_k - 1, axis=1)[:, top_k - 1 : top_k])
    else:
        enters = np.ones(block.shape, bool)
    rows, columns = np.nonzero(enters)
    counts = np.bincount(rows, minlength=len(block))
    targets = scores.shape[1] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    # Where a query has fewer candidates than another there is NaN, which is sorted behind everything.
    width = scores.shape[1] + int(counts.max(initial=0))
    all_scores, all_places = np.full((len(block), width), np.nan, "float32"), np.zeros((len(block), width), "int64")
    all_scores[:, : scores.shape[1]], all_places[:, : scores.shape[1]] = scores, places
    all_scores[rows, targets], all_places[rows, targets] = block[rows, columns], start + columns
    # Stable: what was found earlier stands further left, and stays ahead of its equals.
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(all_scores, order, axis=1), np.take_along_axis(all_places, order, axis=1)


def _blocks(passages, size) -> Iterator[list]:
    passages = iter(passages)
    while block := list(islice(passages, size)):
        yield block


def _vectors(encode, texts, similarity, name):
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"`{name}` must give one row per text; received shape {vectors.shape} for {len(texts)} texts.")
    if similarity == "cosine":
        return normalize_rows(vectors, f"{name}(texts)")
    if not np.isfinite(vectors).all():
        raise ValueError(f"`{name}(texts)` must be finite; row {int(np.argmin(np.isfinite(vectors).all(1)))} is not.")
    return vectors.astype("float32")
