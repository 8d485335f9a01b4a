"""Sentence pairs with a label: do the cosines of pairs that mean the same lie above the others?"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simretro.evaluation.rows import is_sparse, unit_rows
from simretro.lines import iter_lines, short


class LabelledPair(NamedTuple):
    """Two texts and whether they mean the same (1) or not (0)."""

    text1: str
    text2: str
    label: int


class PairMetrics(NamedTuple):
    """See `pair_metrics`."""

    auc: float
    spearman: float
    accuracy: float
    threshold: float


def pair_metrics(cosines, labels, threshold: float | None = None) -> PairMetrics:
    """AUC, Spearman correlation and accuracy of cosines against labels 0 and 1.

    Args:
        cosines: numbers (N,).
        labels: 0 or 1, (N,), both must occur.
        threshold: float or None; a pair is said to mean the same where `cosine >= threshold`. None = the one with the
            highest accuracy on these very pairs, the highest of these if there are several: an optimistic number, for a
            fair one take the threshold from other pairs.
    Returns: PairMetrics(auc, spearman, accuracy, threshold). `auc` is the share of (1, 0) pairs of pairs in the right
        order, equal cosines count half. `spearman` uses the mean rank of equal values and is NaN if all cosines are
        equal. The best `threshold` is one of the cosines, or just above the highest where it is best to accept none.
    Raises: ValueError for different lengths, other labels, one label only, or cosines that are not finite.
    """
    cosines, labels = np.asarray(cosines, "float64"), np.asarray(labels)
    if cosines.ndim != 1 or cosines.shape != labels.shape:
        raise ValueError(
            f"`cosines` and `labels` must be (N,) and as many; received shapes {cosines.shape} and {labels.shape}."
        )
    if not np.isfinite(cosines).all():
        raise ValueError(f"`cosines` must be finite; number {int(np.flatnonzero(~np.isfinite(cosines))[0])} is not.")
    present = np.unique(labels)
    if present.tolist() != [0, 1]:
        raise ValueError(f"`labels` must be 0 or 1, and both must occur; received the values {present.tolist()[:5]}.")
    same = labels == 1
    ranks = _mean_ranks(cosines)
    positives, negatives = int(same.sum()), int((~same).sum())
    # Mann-Whitney: the ranks of the positives above the least that they could have.
    auc = (ranks[same].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    if threshold is None:
        accuracy, threshold = _best_threshold(cosines, same)
    else:
        accuracy = float(((cosines >= threshold) == same).mean())
    return PairMetrics(float(auc), _correlation(ranks, _mean_ranks(labels)), accuracy, float(threshold))


def _mean_ranks(values):
    """Ranks from 1, equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def _correlation(left, right):
    left, right = left - left.mean(), right - right.mean()
    size = np.sqrt((left @ left) * (right @ right))
    return float(left @ right / size) if size > 0 else float("nan")


def _best_threshold(cosines, same):
    values, place = np.unique(cosines, return_inverse=True)  # ascending
    # Raising the threshold past a value rejects its pairs: right for the negatives, wrong for the positives.
    gained = np.bincount(place, weights=np.where(same, -1, 1), minlength=len(values))
    right = same.sum() + np.concatenate([[0], np.cumsum(gained)])  # for threshold = values[i], then above all
    thresholds = np.append(values, np.nextafter(values[-1], np.inf))
    best = len(right) - 1 - int(np.argmax(right[::-1]))
    return float(right[best] / len(same)), thresholds[best]


def read_labelled_pairs(path: str | os.PathLike) -> list[LabelledPair]:
    """Reads lines `text1<TAB>text2<TAB>label` without a header, UTF-8, label 0 or 1 (LCQMC, AFQMC, ...).

    Args:
        path: the file, packed if its name ends in `.gz`. Blank lines are skipped, a byte order mark and `\\r` at the
            end of a line too.
    Returns: the pairs in the order of the file.
    Raises: ValueError with file and line for another number of columns, an empty text, another label or bytes that
        are not UTF-8; ValueError for a file without pairs.
    """
    pairs = [_parse_pair(line, f"{os.fspath(path)}, line {number}") for number, line in iter_lines(path)]
    if not pairs:
        raise ValueError(f"{os.fspath(path)} holds no pair; expected lines text1<TAB>text2<TAB>label.")
    return pairs


def _parse_pair(line, where):
    columns = line.split("\t")
    if len(columns) != 3:
        raise ValueError(f"{where}: expected text1<TAB>text2<TAB>label; received {len(columns)} column(s).")
    text1, text2, label = columns
    if not text1.strip() or not text2.strip():
        raise ValueError(f"{where}: a text is empty. Remove the line.")
    if label.strip() not in ("0", "1"):
        raise ValueError(f"{where}: the label must be 0 or 1; received {label!r}. A header line must be removed.")
    return LabelledPair(text1, text2, int(label))


def pair_cosines(encode: Callable, pairs: Sequence[tuple[str, str, int]]) -> np.ndarray:
    """Cosine of each pair; every distinct text is encoded once, all in one call.

    Args:
        encode: called with a list of M texts, returns numbers (M, d) or a SciPy sparse matrix; need not be normalised.
        pairs: N times (text1, text2, ...).
    Returns: float64 (N,); 0 where a vector is zero.
    Raises: TypeError for a str in place of a pair; ValueError if `encode` returns another number of rows, or numbers
        that are not finite.
    """
    for pair in pairs:
        if isinstance(pair, str):
            raise TypeError(f"`pairs` must be a list of pairs; received the str {short(pair)}. Put one pair in a list.")
    places = {}
    left = [places.setdefault(pair[0], len(places)) for pair in pairs]
    right = [places.setdefault(pair[1], len(places)) for pair in pairs]
    if not places:
        return np.zeros(0)
    vectors = unit_rows(encode(list(places)), len(places), "encode(texts)")
    if is_sparse(vectors):
        return np.asarray(vectors[left].multiply(vectors[right]).sum(axis=1), "float64").reshape(-1)
    cosines = np.empty(len(left))
    for start in range(0, len(left), 8192):
        part = slice(start, start + 8192)
        # float64: neighbours among many pairs differ in the last digits, and their order is what counts here.
        cosines[part] = np.einsum("ij,ij->i", vectors[left[part]].astype("float64"), vectors[right[part]])
    return cosines


def evaluate_pairs(
    encode: Callable, pairs: Sequence[tuple[str, str, int]], threshold: float | None = None
) -> PairMetrics:  # fmt: skip
    """Encodes the texts of labelled pairs and measures how well their cosines tell the labels apart.

    Args:
        encode: called with a list of texts, see `pair_cosines`; `model.encode`, or `tfidf_vectors` for a baseline.
        pairs: N times (text1, text2, label), e.g. from `read_labelled_pairs`.
        threshold: see `pair_metrics`.
    Returns: PairMetrics(auc, spearman, accuracy, threshold).
    Raises: ValueError for no pairs, and see `pair_metrics` and `pair_cosines`.
    """
    pairs = list(pairs)
    if not pairs:
        raise ValueError("`pairs` must hold at least one pair of each label; received none.")
    return pair_metrics(pair_cosines(encode, pairs), [pair[2] for pair in pairs], threshold)
