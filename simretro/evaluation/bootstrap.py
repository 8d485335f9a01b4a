"""How far a metric would move with other queries."""

from collections.abc import Callable, Sequence

import numpy as np


def bootstrap_interval(
    statistic: Callable, *samples, confidence: float = 0.95, num_resamples: int = 1000, seed: int = 0,
    strata: Sequence | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Percentile bootstrap interval of a statistic over queries or pairs.

    The queries are drawn with replacement, all `samples` by the same draw: `bootstrap_interval(np.mean, hits)`.

    With `strata` as many are drawn of each kind as there are, each kind among its own. An AUC needs that, for without
    both labels there is none, and a draw from 40 pairs of which 5 are positive now and then has one label only:
    `bootstrap_interval(lambda c, y: pair_metrics(c, y).auc, cosines, labels, strata=labels)`. The interval then holds
    for this share of positives, on which an AUC does not depend.

    Args:
        statistic: called with as many arrays as there are samples, returns a number.
        samples: arrays (N, ...), N >= 1, one entry per query.
        confidence: float in (0, 1), share of the interval.
        num_resamples: int >= 1.
        seed: int; the same seed gives the same interval.
        strata: (N,), the kind of each query, a label for instance; None = all are of one kind.
    Returns: (low, high).
    Raises: ValueError for samples of different lengths or none, for `strata` of another shape, or a confidence out of
        range; and what `statistic` raises.
    """
    samples = [np.asarray(sample) for sample in samples]
    counts = {len(sample) if sample.ndim else 0 for sample in samples}
    if len(counts) != 1 or counts == {0}:
        shapes = [sample.shape for sample in samples]
        raise ValueError(f"`samples` must be arrays with the same number of queries, at least 1; received {shapes}.")
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must lie between 0 and 1; received {confidence}.")
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` must be at least 1; received {num_resamples}.")
    count, rng = counts.pop(), np.random.default_rng(seed)
    kinds = _places_of_kinds(strata, count)
    values, drawn = [], np.empty(count, "int64")
    for _ in range(num_resamples):
        for places in kinds:
            drawn[places] = places[rng.integers(0, len(places), len(places))]
        values.append(statistic(*(sample[drawn] for sample in samples)))
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _places_of_kinds(strata, count):
    if strata is None:
        return [np.arange(count)]
    strata = np.asarray(strata)
    if strata.shape != (count,):
        raise ValueError(f"`strata` must be ({count},), a kind for each query; received shape {strata.shape}.")
    return [np.flatnonzero(strata == kind) for kind in np.unique(strata)]
