"""Is one run better than another, or were the queries kind to it?"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from simretro.arguments import check_int
from simretro.evaluation.bootstrap import bootstrap_interval

_SIGNS_AT_ONCE = 1 << 22  # int8


class PairedDifference(NamedTuple):
    """See `paired_difference`."""

    difference: float
    interval: tuple[float, float]
    p: float
    num_queries: int


def paired_difference(
    per_query_a: Mapping[str, float],
    per_query_b: Mapping[str, float],
    seed: int = 0,
    num_samples: int = 10_000,
    confidence: float = 0.95,
) -> PairedDifference:
    """Mean of a - b over the queries, its bootstrap interval, and the p of a paired randomisation test.

    The test asks how often a mean as far from 0 comes about, in either direction, if for each query it were chance
    which of the two values belongs to which run. All 2^N choices are looked at where they are no more than
    `num_samples`, else that many are drawn; p is then never below 1 / (num_samples + 1).

    Args:
        per_query_a: {query id: value}, of one metric, as in `RetrievalResult.per_query`.
        per_query_b: {query id: value} for the same queries, in any order.
        seed: int; the same seed gives the same interval and p.
        num_samples: int >= 1, for the test.
        confidence: float in (0, 1), share of the interval.
    Returns: PairedDifference(difference, (low, high), p, num_queries); a positive difference: a is better.
    Raises: ValueError if the queries are not the same or none, if a value is not finite or one is out of range.
    Reference: Smucker, Allan and Carterette, 2007, https://doi.org/10.1145/1321440.1321528
    """
    if set(per_query_a) != set(per_query_b) or not per_query_a:
        alone = sorted(set(per_query_a) ^ set(per_query_b), key=str)
        raise ValueError(
            "`per_query_a` and `per_query_b` must hold values of the same queries, at least one; received "
            f"{len(per_query_a)} and {len(per_query_b)}, not in both: {alone[:5]}."
        )
    check_int("num_samples", num_samples, 1)
    queries = sorted(per_query_a)  # one order, whatever the dicts have
    differences = np.array([per_query_a[query] - per_query_b[query] for query in queries], "float64")
    if not np.isfinite(differences).all():
        query = queries[int(np.flatnonzero(~np.isfinite(differences))[0])]
        raise ValueError(f"`per_query_a` and `per_query_b` must be finite; query {query!r} is not.")
    interval = bootstrap_interval(np.mean, differences, confidence=confidence, seed=seed)
    p = _randomisation_p(differences, num_samples, np.random.default_rng(seed))
    return PairedDifference(float(differences.mean()), interval, p, len(queries))


def _randomisation_p(differences, num_samples, rng):
    differences = differences[differences != 0]  # their sign changes nothing
    count = len(differences)
    # A little less, so that rounding does not lose the choices that give the same mean.
    observed = abs(differences.sum()) * (1 - 1e-9)
    if count < 60 and 2**count <= num_samples:
        choices = np.arange(2**count)[:, None] >> np.arange(count) & 1  # (2^N, N)
        return float(np.mean(np.abs((1 - 2 * choices) @ differences) >= observed))
    extreme, step = 0, max(1, _SIGNS_AT_ONCE // count)
    for start in range(0, num_samples, step):
        signs = 1 - 2 * rng.integers(0, 2, (min(step, num_samples - start), count), "int8")
        extreme += int(np.count_nonzero(np.abs(signs @ differences) >= observed))
    return (extreme + 1) / (num_samples + 1)
