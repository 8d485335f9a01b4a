import numpy as np
import pytest
from scipy.stats import permutation_test

from simretro.evaluation import bootstrap_interval, paired_difference
from simretro.evaluation.significance import _randomisation_p


def named(values):
    return {f"q{i}": float(value) for i, value in enumerate(values)}


def test_by_hand():
    a, b = named([0.5, 0.6, 0.7, 0.8, 0.9]), named([0.4, 0.5, 0.6, 0.7, 0.8])
    found = paired_difference(a, b)
    assert found.difference == pytest.approx(0.1) and found.interval == pytest.approx((0.1, 0.1))
    assert found.p == 2 / 2**5 and found.num_queries == 5  # all signs alike: 2 of 32 choices
    assert paired_difference(b, a).p == found.p and paired_difference(b, a).difference == pytest.approx(-0.1)


def test_equal_runs():
    found = paired_difference(named([0.5, 1.0]), named([0.5, 1.0]))
    assert found == (0, (0, 0), 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_equals_scipy_where_all_choices_are_looked_at(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, 12)) / 4  # many equal differences, some of them 0
    expected = permutation_test((a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
                                vectorized=True, n_resamples=np.inf).pvalue  # fmt: skip
    assert paired_difference(named(a), named(b)).p == pytest.approx(expected)


def test_drawn_choices_come_near_to_all_of_them():
    rng = np.random.default_rng(0)
    a, b = rng.random(12) + 0.15, rng.random(12)
    exact = paired_difference(named(a), named(b)).p
    drawn = [paired_difference(named(a), named(b), seed, num_samples=4000).p for seed in range(5)]
    assert 0.02 < exact < 0.6 and len(set(drawn)) > 1
    np.testing.assert_allclose(drawn, exact, atol=4 * (exact / 4000) ** 0.5)


def test_false_alarms_are_as_rare_as_p_says():
    rng = np.random.default_rng(0)
    ps = np.array([_randomisation_p(rng.random(40) - rng.random(40), 199, rng) for _ in range(800)])
    assert 0.06 < np.mean(ps <= 0.1) < 0.14  # 0.1 +- 0.011
    assert 0.43 < np.mean(ps <= 0.5) < 0.57


def test_finds_a_difference_that_the_queries_hide():
    rng = np.random.default_rng(1)
    hardness = rng.random(100)  # differs far more between queries than the runs do
    found = paired_difference(named(hardness + 0.02 + rng.normal(0, 0.02, 100)), named(hardness))
    assert found.p == 1 / 10_001 and 0.01 < found.interval[0] < found.difference < found.interval[1] < 0.03


def test_order_of_the_queries_and_seed():
    rng = np.random.default_rng(2)
    a, b = named(rng.random(30)), named(rng.random(30))
    backwards = dict(reversed(a.items()))
    assert paired_difference(a, b, 3) == paired_difference(backwards, b, 3) != paired_difference(a, b, 4)
    low, high = paired_difference(a, b, confidence=0.5).interval
    differences = [a[query] - b[query] for query in sorted(a)]
    assert (low, high) == bootstrap_interval(np.mean, differences, confidence=0.5)


@pytest.mark.parametrize("a, b, options, message", [
    ({"q1": 1.0}, {"q1": 1.0, "q2": 0.0}, {}, r"1 and 2.*\['q2'\]"), ({}, {}, {}, "at least one"),
    ({"q": float("nan")}, {"q": 1.0}, {}, "finite; query 'q'"), ({"q": 1.0}, {"q": 1.0}, {"num_samples": 0}, "`num_s"),
    ({"q": 1.0}, {"q": 1.0}, {"confidence": 2}, "`confidence`"),
])  # fmt: skip
def test_refuses(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(a, b, **options)
