import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.training import PiecewiseLinear, WarmupLinearDecay

pytestmark = pytest.mark.backends


@pytest.mark.parametrize(
    "schedule, values",
    [
        # bert4keras' `lr_schedule={1000: 1, 2000: 0.1}`
        ({1000: 1, 2000: 0.1}, {0: 0, 250: 0.25, 1000: 1, 1500: 0.55, 2000: 0.1, 9000: 0.1}),
        ({0: 1, 10: 0}, {0: 1, 4: 0.6, 10: 0, 11: 0}),
        ({4: 1}, {0: 0, 1: 0.25, 4: 1, 1000000: 1}),
        ([(20, 0.5), (10, 1)], {5: 0.5, 10: 1, 15: 0.75, 20: 0.5, 21: 0.5}),  # any order
    ],
)
def test_values_by_hand(schedule, values):
    rate = PiecewiseLinear(0.02, schedule)
    for step, ratio in values.items():
        np.testing.assert_allclose(float(rate(step)), 0.02 * ratio, rtol=1e-6, atol=0)


def test_warmup_and_decay_by_hand():
    rate = WarmupLinearDecay(1e-3, warmup_steps=10, total_steps=110)
    got = [float(rate(step)) for step in (0, 5, 10, 60, 110, 500)]
    np.testing.assert_allclose(got, [0, 5e-4, 1e-3, 5e-4, 0, 0], rtol=1e-6)
    assert float(WarmupLinearDecay(1e-3, 0, 100)(0)) == np.float32(1e-3)
    np.testing.assert_allclose(float(WarmupLinearDecay(1e-3, 10, 110, end_ratio=0.2)(60)), 6e-4, rtol=1e-6)


@given(
    st.dictionaries(st.integers(0, 100000), st.floats(0, 4), min_size=1, max_size=6),
    st.integers(0, 120000),
)
def test_equals_linear_interpolation(schedule, step):
    points = sorted({0: 0.0, **schedule}.items())
    expected = np.interp(step, [s for s, _ in points], [r for _, r in points])
    np.testing.assert_allclose(float(PiecewiseLinear(1.0, schedule)(step)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "schedule", [PiecewiseLinear(0.1, {3: 1, 9: 0.5}), WarmupLinearDecay(0.1, 3, 9, end_ratio=0.5)]
)
def test_survives_a_file(schedule):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(schedule)))
    loaded = keras.saving.deserialize_keras_object(config)
    assert type(loaded) is type(schedule)
    assert [float(loaded(step)) for step in range(12)] == [float(schedule(step)) for step in range(12)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0.0, {1: 1}), "`learning_rate`"),
        ((float("nan"), {1: 1}), "`learning_rate`"),
        ((0.1, {}), "`schedule` must"),
        ((0.1, {-1: 1}), r"steps of `schedule`.*-1"),
        ((0.1, {1.5: 1}), r"steps of `schedule`.*1.5"),
        ((0.1, [(1, 1), (1, 2)]), "steps of `schedule`"),
        ((0.1, {1: -0.5}), r"ratios of `schedule`.*-0.5 at step 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseLinear(*arguments)


@pytest.mark.parametrize("steps", [(10, 10), (-1, 10)])
def test_warmup_must_be_shorter_than_the_training(steps):
    with pytest.raises(ValueError, match="`warmup_steps`.*`total_steps`"):
        WarmupLinearDecay(0.1, *steps)
