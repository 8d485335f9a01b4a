"""Alternating batch normalization: who depends on whom, which statistics when, and that a step updates them once."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers, ops

from simretro.layers import AlternatingBatchNormalization, ProjectionHead
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends
SIDES = np.array([0, 1, 0, 1, 0, 1], "int32")
EPSILON = 1e-5


def inputs_of(seed=0, rows=6, width=3):
    return np.random.default_rng(seed).normal(2.0, 3.0, (rows, width)).astype("float32")


def layer_of(**options):
    layer = AlternatingBatchNormalization(**options)
    layer.build((None, 3))
    layer.layer.gamma.assign([1.5, 0.5, -2.0])
    layer.layer.beta.assign([0.1, 0.0, 3.0])
    return layer


def scaled(x, mean, variance):
    return (x - mean) / np.sqrt(variance + EPSILON) * np.array([1.5, 0.5, -2.0]) + np.array([0.1, 0.0, 3.0])


def state_of(layer):
    variables = (layer.phase, layer.updates, layer.layer.moving_mean, layer.layer.moving_variance)
    return [to_numpy(variable).copy() for variable in variables]


def same_state(layer, state):
    return all(np.array_equal(a, b) for a, b in zip(state_of(layer), state, strict=True))


def test_sides_exchange_their_modes_and_the_running_side_comes_first():
    layer, mean, variance = layer_of(), np.zeros(3), np.ones(3)
    for step in range(4):
        x = inputs_of(step)
        own = x[SIDES == step % 2]
        want = np.where((SIDES == step % 2)[:, None], scaled(x, own.mean(0), own.var(0)), scaled(x, mean, variance))
        np.testing.assert_allclose(to_numpy(layer(x, SIDES, training=True)), want, rtol=1e-4, atol=1e-4)
        mean, variance = 0.9 * mean + 0.1 * own.mean(0), 0.9 * variance + 0.1 * own.var(0)
        phase, updates, moving_mean, moving_variance = state_of(layer)
        assert (phase, updates) == ((step + 1) % 2, step + 1)
        np.testing.assert_allclose(moving_mean, mean, rtol=1e-5)
        np.testing.assert_allclose(moving_variance, variance, rtol=1e-5)
    np.testing.assert_allclose(to_numpy(layer(x, training=False)), scaled(x, mean, variance), rtol=1e-4, atol=1e-4)


def test_equals_two_passes_of_keras_layer_in_value_and_gradient():
    """The running side first, as an inference; then the other in training."""
    x, weights = inputs_of(), ops.convert_to_tensor(inputs_of(5))
    layer = layer_of()
    layer(inputs_of(1), SIDES, training=True)
    layer(inputs_of(2), SIDES, training=True)
    twin = layers.BatchNormalization(momentum=0.9, epsilon=EPSILON)
    twin.build((None, 3))
    twin.set_weights([to_numpy(variable) for variable in layer.layer.weights])

    def one_pass(x):
        return ops.sum(layer(x, SIDES, training=True) * weights)

    def two_passes(x):
        centres, contexts = x[0::2], x[1::2]
        running = twin(contexts, training=False)
        batch = twin(centres, training=True)
        return ops.sum(batch * weights[0::2]) + ops.sum(running * weights[1::2])

    (want, (want_gradient,)), (got, (gradient,)) = (value_and_gradients(f, [x]) for f in (two_passes, one_pass))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-4, atol=1e-6)
    if keras.backend.backend() != "jax":  # whose differentiation leaves tracers in the variables
        np.testing.assert_allclose(to_numpy(layer.layer.moving_mean), to_numpy(twin.moving_mean), rtol=1e-6)


@pytest.mark.parametrize("batch_norm, leaks", [("alternating", [True, False]), ("plain", [True, True]), (None, [])])
def test_no_row_of_the_running_side_reads_another_row(batch_norm, leaks):
    """Jacobian of the head's outputs: in training, step by step."""
    leaks = leaks or [False, False]
    keras.utils.set_random_seed(0)
    x = inputs_of(rows=6, width=5)
    for step in range(2):
        for side in range(2):
            for n in np.flatnonzero(SIDES == side):
                head = ProjectionHead(32, 4, batch_norm)  # wide: no row must lie behind dead units alone
                head.build((None, 5))
                if batch_norm:
                    head.norm.phase.assign(step)

                def output(x, head=head, n=n):
                    return ops.sum(ops.square(head(x, SIDES, training=True)[n]))

                gradient = np.abs(value_and_gradients(output, [x])[1][0]).max(1)
                assert gradient[n] > 1e-6
                others = np.delete(gradient, n).max()
                in_batch_mode = side == step
                if leaks[0 if in_batch_mode else 1]:
                    assert others > 1e-6
                else:
                    assert others == 0


def test_plain_mode_is_keras_batch_normalization():
    layer, x = layer_of(alternating=False), inputs_of()
    twin = layers.BatchNormalization(momentum=0.9, epsilon=EPSILON)
    twin.build((None, 3))
    twin.set_weights([to_numpy(variable) for variable in layer.layer.weights])
    for _ in range(2):
        np.testing.assert_allclose(
            to_numpy(layer(x, SIDES, training=True)), to_numpy(twin(x, training=True)), rtol=1e-4, atol=1e-4
        )
    np.testing.assert_allclose(to_numpy(layer.layer.moving_variance), to_numpy(twin.moving_variance), rtol=1e-5)


def test_rows_of_neither_side_change_nothing():
    layer = layer_of()
    layer(inputs_of(), SIDES, training=True)
    state, x = state_of(layer), inputs_of(1)
    y = to_numpy(layer(x, -np.ones(6, "int32"), training=True))
    assert same_state(layer, state)
    np.testing.assert_allclose(y, to_numpy(layer(x, training=False)), rtol=1e-5, atol=1e-6)
    assert layer(x[:0], SIDES[:0], training=True).shape == (0, 3) and same_state(layer, state)
    twin = layer_of()
    twin(inputs_of(), SIDES, training=True)
    padded = np.concatenate([x, 100 + x])
    layer(padded, np.concatenate([SIDES, np.full(6, -1, "int32")]), training=True)
    twin(x, SIDES, training=True)
    for a, b in zip(state_of(layer), state_of(twin), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_side_without_rows_is_no_update_but_a_step():
    layer = layer_of()
    before = state_of(layer)
    y = to_numpy(layer(inputs_of(), np.ones(6, "int32"), training=True))
    phase, updates, *statistics = state_of(layer)
    assert (phase, updates) == (1, 0) and np.isfinite(y).all()
    np.testing.assert_array_equal(statistics, before[2:])


def test_one_row_of_a_side_is_finite():
    layer = layer_of()
    y = to_numpy(layer(inputs_of(rows=2), np.array([0, 1], "int32"), training=True))
    np.testing.assert_allclose(y[0], [0.1, 0.0, 3.0], atol=1e-6)
    assert np.isfinite(y).all()


def test_warm_up_takes_the_mean_of_the_batches_so_far():
    layer, seen = layer_of(warmup_updates=3), []
    for step in range(4):
        x = inputs_of(step)
        seen.append(x[SIDES == step % 2])
        layer(x, SIDES, training=True)
        if step < 3:
            want = np.mean([own.mean(0) for own in seen], axis=0)
        else:
            want = 0.9 * want + 0.1 * seen[-1].mean(0)
        np.testing.assert_allclose(to_numpy(layer.layer.moving_mean), want, rtol=1e-4)


def test_frozen_weights_are_said_not_to_stop_the_modes():
    layer = layer_of()
    layer.trainable = False
    with pytest.warns(UserWarning, match="`trainable=False` freezes gamma and beta"):
        layer(inputs_of(), SIDES, training=True)
    assert state_of(layer)[0] == 1 and layer.trainable_variables == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(inputs_of(), SIDES, training=True)
    assert state_of(layer)[0] == 0


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_normalised_in_float32(dtype):
    # In float16 the squares of these would overflow.
    inner = layers.BatchNormalization(momentum=0.9, epsilon=EPSILON, dtype=dtype)
    layer = AlternatingBatchNormalization(inner, dtype=dtype)
    x = 1000 * inputs_of()
    y = layer(x, SIDES, training=True)
    assert keras.backend.standardize_dtype(y.dtype) == dtype.removeprefix("mixed_")
    own = x[0::2]
    np.testing.assert_allclose(to_numpy(y)[0::2], (own - own.mean(0)) / own.std(0), atol=0.02)


def test_a_file_keeps_settings_and_state(tmp_path):
    inputs, sides = keras.Input((3,)), keras.Input((), dtype="int32")
    inner = layers.BatchNormalization(momentum=0.8, epsilon=0.01)
    outputs = AlternatingBatchNormalization(inner, warmup_updates=2)(inputs, sides)
    model = keras.Model([inputs, sides], outputs)
    for seed in range(3):
        model([inputs_of(seed), SIDES], training=True)
    model.save(tmp_path / "norm.keras")
    loaded = keras.saving.load_model(tmp_path / "norm.keras")
    layer = loaded.layers[-1]
    assert (layer.layer.momentum, layer.layer.epsilon, layer.warmup_updates) == (0.8, 0.01, 2)
    assert same_state(layer, state_of(model.layers[-1])) and state_of(layer)[0] == 1
    x = [inputs_of(7), SIDES]
    np.testing.assert_allclose(to_numpy(loaded(x, training=True)), to_numpy(model(x, training=True)), rtol=1e-6)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="`layer`.*Dense"):
        AlternatingBatchNormalization(layers.Dense(2))
    with pytest.raises(ValueError, match="`layer`.*axis=0"):
        AlternatingBatchNormalization(layers.BatchNormalization(axis=0))
    with pytest.raises(ValueError, match="`warmup_updates`.*-1"):
        AlternatingBatchNormalization(warmup_updates=-1)
    with pytest.raises(ValueError, match="`sides`.*None"):
        layer_of()(inputs_of(), training=True)
    with pytest.raises(ValueError, match=r"`inputs`.*\(2, 3, 4\)"):
        AlternatingBatchNormalization()(np.zeros((2, 3, 4), "float32"), training=False)
    with pytest.raises(ValueError, match="`batch_norm`.*'group'"):
        ProjectionHead(8, 4, "group")
    with pytest.raises(ValueError, match="`output_size`.*0"):
        ProjectionHead(8, 0)
