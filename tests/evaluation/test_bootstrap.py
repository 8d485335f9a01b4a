import numpy as np
import pytest

from simretro.evaluation import bootstrap_interval, pair_metrics


def auc(cosines, labels):
    return pair_metrics(cosines, labels).auc


def test_the_interval_of_a_mean_has_the_known_width():
    values = np.random.default_rng(0).random(2000) < 0.3
    low, high = bootstrap_interval(np.mean, values, num_resamples=2000)
    half = 1.96 * values.std() / 2000**0.5  # the normal approximation
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)
    narrow = bootstrap_interval(np.mean, values, confidence=0.5)
    assert low < narrow[0] < values.mean() < narrow[1] < high


def test_ninety_of_a_hundred_intervals_hold_the_truth():
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        low, high = bootstrap_interval(np.mean, rng.normal(5, 2, 80), confidence=0.9, num_resamples=200, seed=seed)
        held += low <= 5 <= high
    assert 165 <= held <= 192  # 180 +- 4.2 expected; the percentile interval is a little narrow


def test_samples_are_drawn_together():
    # The two arrays are equal: drawn apart their difference would not be zero.
    values = np.arange(50)
    assert bootstrap_interval(lambda a, b: np.abs(a - b).max(), values, values) == (0, 0)


def test_the_seed_decides():
    values = np.random.default_rng(0).random(50)
    assert bootstrap_interval(np.mean, values, seed=3) == bootstrap_interval(np.mean, values, seed=3)
    assert bootstrap_interval(np.mean, values, seed=3) != bootstrap_interval(np.mean, values, seed=4)


def test_interval_of_an_auc():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    cosines = rng.random(400) + 0.3 * labels
    low, high = bootstrap_interval(auc, cosines, labels, strata=labels, num_resamples=200)
    assert low < auc(cosines, labels) < high and high - low < 0.15
    assert bootstrap_interval(auc, cosines, labels, num_resamples=200) == pytest.approx((low, high), abs=0.02)


def test_interval_of_an_auc_of_few_positives():
    """Of 1000 draws some have no positive at all, where there is no AUC."""
    rng = np.random.default_rng(1)
    labels = np.repeat([1, 0], [5, 35])
    cosines = rng.random(40) + 0.3 * labels
    with pytest.raises(ValueError, match="both must occur"):
        bootstrap_interval(auc, cosines, labels)
    low, high = bootstrap_interval(auc, cosines, labels, strata=labels)
    assert 0 <= low < auc(cosines, labels) < high <= 1


def test_strata_keep_their_sizes_and_their_places():
    kinds, values = np.array(["b", "a", "b", "c"]), np.array([1, 20, 3, 400])

    def check(drawn, drawn_kinds):
        assert drawn_kinds.tolist() == kinds.tolist() and drawn[1] == 20 and drawn[3] == 400
        return drawn[0] + drawn[2]

    assert bootstrap_interval(check, values, kinds, strata=kinds.tolist()) == (2, 6)
    one = bootstrap_interval(np.mean, values, seed=3, strata=[0] * 4)
    assert one == bootstrap_interval(np.mean, values, seed=3)


def test_one_query_has_no_spread():
    assert bootstrap_interval(np.mean, [0.25]) == (0.25, 0.25)


@pytest.mark.parametrize("samples, options, message", [
    (([1, 2], [1]), {}, "same number"), (([],), {}, "at least 1"), ((), {}, "`samples`"),
    (([1, 2],), {"strata": [1]}, r"`strata` must be \(2,\).*\(1,\)"),
    (([1],), {"confidence": 95}, "`confidence`.*95"), (([1],), {"num_resamples": 0}, "`num_resamples`"),
])  # fmt: skip
def test_refuses(samples, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(np.mean, *samples, **options)
