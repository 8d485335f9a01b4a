import keras
import numpy as np
import pytest
from keras import ops

from simretro.training import OPTIMIZER_NAMES, AdamW, Muon, WarmupLinearDecay, build_optimizer

pytestmark = pytest.mark.backends
of_both = pytest.mark.parametrize("name", OPTIMIZER_NAMES)


class Block(keras.layers.Layer):
    """Variables with the names of ours, in a layer whose own name holds one of them."""

    def build(self, shape=None):
        for name in ("kernel", "bias", "gamma", "beta", "embeddings"):
            setattr(self, name, self.add_weight(shape=(2, 2), initializer="ones", name=name))
        self.built = True


def after_update_without_gradient(optimizer):
    layer = Block(name="alphabeta")
    layer.build()
    variables = layer.trainable_variables
    optimizer.apply([ops.zeros((2, 2)) for _ in variables], variables)
    return {variable.name: ops.convert_to_numpy(variable)[0, 0] for variable in variables}


@of_both
def test_biases_and_norms_do_not_decay_and_all_else_does(name):
    values = after_update_without_gradient(build_optimizer(name, 0.1, weight_decay=0.5))
    assert values == {"kernel": np.float32(0.95), "bias": 1, "gamma": 1, "beta": 1, "embeddings": np.float32(0.95)}


@of_both
def test_reloaded_optimizer_still_knows_what_does_not_decay(name):
    config = keras.saving.serialize_keras_object(build_optimizer(name, 0.1, weight_decay=0.5, not_decayed=["kernel"]))
    values = after_update_without_gradient(keras.saving.deserialize_keras_object(config))
    assert values["kernel"] == 1 and values["bias"] == np.float32(0.95)


def test_everything_decays_where_nothing_is_excluded():
    assert set(after_update_without_gradient(AdamW(0.1, 0.5, not_decayed=())).values()) == {np.float32(0.95)}


def test_schedule_follows_the_arguments():
    assert isinstance(build_optimizer("adamw", 1e-3, 10, 100)._learning_rate, WarmupLinearDecay)
    warm = build_optimizer("adamw", 1e-3, warmup_steps=10)
    assert float(warm.learning_rate) == 0
    variable = keras.Variable(np.ones(2, "float32"))
    for _ in range(20):
        warm.apply([ops.zeros(2)], [variable])
    assert float(warm.learning_rate) == np.float32(1e-3)
    assert float(build_optimizer("adamw", 1e-3).learning_rate) == np.float32(1e-3)


@pytest.mark.parametrize("clip, sizes", [({"clipnorm": 1.0}, [0.6, 0.8]), ({"global_clipnorm": 1.0}, [0.6, 0.8])])
def test_clipping_is_per_variable_or_global(clip, sizes):
    optimizer = build_optimizer("adamw", 1e-3, **clip)
    two = [ops.convert_to_tensor([3.0, 4.0]), ops.convert_to_tensor([0.0, 12.0])]
    first = ops.convert_to_numpy(optimizer._clip_gradients(two)[0])
    expected = sizes if "clipnorm" in clip else [3 / 13, 4 / 13]
    np.testing.assert_allclose(first, expected, rtol=1e-6)


def numpy_adamw(weights, gradients, rate, decay, beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False):
    """Loshchilov and Hutter 2019, algorithm 2, in float64, with epsilon beside the uncorrected root as Keras has it."""
    first, second, largest = (np.zeros_like(weights) for _ in range(3))
    for step, gradient in enumerate(gradients, start=1):
        weights = weights - rate * decay * weights
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        corrected = rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        largest = np.maximum(largest, second) if amsgrad else second
        weights = weights - corrected * first / (np.sqrt(largest) + epsilon)
    return weights


@pytest.mark.parametrize("amsgrad", [False, True])
def test_updates_are_those_of_the_paper(amsgrad):
    generator = np.random.default_rng(0)
    start = generator.normal(size=(5, 3))
    gradients = [generator.choice([-1.0, 1.0], (5, 3)) * (6 - step) for step in range(6)]  # the first are the largest
    variable = keras.Variable(start.astype("float32"), name="kernel")
    optimizer = AdamW(0.01, 0.1, beta_2=0.5, amsgrad=amsgrad)
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(gradient, "float32")], [variable])
    expected = numpy_adamw(start, gradients, 0.01, 0.1, beta_2=0.5, amsgrad=amsgrad)
    np.testing.assert_allclose(ops.convert_to_numpy(variable), expected, rtol=2e-5, atol=2e-6)


def numpy_muon(weights, gradients, rate, decay, momentum=0.95):
    """Jordan et al. 2024 with Nesterov's momentum and the factor of Liu et al. 2025, in float64."""
    buffer = np.zeros_like(weights)
    for gradient in gradients:
        weights = weights - rate * decay * weights
        buffer = momentum * buffer + gradient
        x = gradient + momentum * buffer
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        weights = weights - rate * 0.2 * np.sqrt(max(x.shape)) * x
    return weights


@pytest.mark.parametrize("shape", [(6, 16), (16, 6)])
def test_matrices_move_alike_far_in_all_directions_and_all_else_as_with_adamw(shape):
    generator = np.random.default_rng(0)
    wide = shape[0] <= shape[1]
    names = ("kernel", "bias", "embeddings")
    starts = [generator.normal(size=size).astype("float32") for size in (shape, 7, (9, 4))]
    steps = [[generator.normal(size=start.shape).astype("float32") for start in starts] for _ in range(4)]
    variables = [keras.Variable(start, name=name) for name, start in zip(names, starts, strict=True)]
    optimizer = Muon(0.01, 0.1)
    for gradients in steps:
        optimizer.apply([ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    kernel, bias, embeddings = (ops.convert_to_numpy(variable) for variable in variables)
    of_kernel = [gradients[0] if wide else gradients[0].T for gradients in steps]
    expected = numpy_muon(starts[0] if wide else starts[0].T, of_kernel, 0.01, 0.1)
    moved = np.linalg.norm(expected - (starts[0] if wide else starts[0].T))
    assert np.linalg.norm((kernel if wide else kernel.T) - expected) < 0.06 * moved  # the products have 8 bits
    for found, index, decay in ((bias, 1, 0.0), (embeddings, 2, 0.1)):
        expected = numpy_adamw(starts[index], [gradients[index] for gradients in steps], 0.01, decay)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_a_gradient_of_any_size_moves_a_matrix_alike():
    """Its squares would overflow, or vanish, in bfloat16's sums."""
    gradient = np.random.default_rng(0).normal(size=(300, 200)).astype("float32")
    for size in (1e-12, 1.0, 1e12):
        variable = keras.Variable(np.zeros((300, 200), "float32"), name="kernel")
        Muon(1.0, 0.0, momentum=0.0).apply([ops.convert_to_tensor(size * gradient)], [variable])
        singular = np.linalg.svd(ops.convert_to_numpy(variable), compute_uv=False) / (0.2 * 300**0.5)
        assert 0.3 < singular.min() and singular.max() < 1.3


@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.01}, {"global_clipnorm": 0.01}])
def test_a_table_moves_alike_whether_rows_are_looked_up_or_multiplied(clip):
    """The gradient of a lookup on TensorFlow lists rows, one that is read twice two times: they count as their sum."""
    ids = np.array([[0, 3, 1, 1], [5, 1, 3, 3]], "int32")
    start = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
    tables = []
    for layer, inputs in ((keras.layers.Embedding(7, 4), ids), (keras.layers.Dense(4, use_bias=False), np.eye(7)[ids])):
        model = keras.Sequential([layer])
        model.compile(AdamW(0.01, 0.1, **clip), "mse")
        model.build(inputs.shape)
        layer.set_weights([start])
        for _ in range(3):
            model.train_on_batch(inputs, np.ones((2, 4, 4), "float32"))
        tables.append(layer.get_weights()[0])
    assert np.abs(tables[0] - start).min() > 1e-5
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-6)


@of_both
def test_averages_follow_the_weights(name):
    optimizer = build_optimizer(name, 0.1, weight_decay=0.0, use_ema=True, ema_momentum=0.5)
    variable = keras.Variable(np.array([1.0], "float32"), name="kernel")
    values = []
    for _ in range(2):
        optimizer.apply([ops.ones(1)], [variable])
        values.append(float(variable[0]))
    average = [v for v in optimizer.variables if v.path.endswith("average")][0]
    np.testing.assert_allclose(float(average[0]), (values[0] + values[1]) / 2, rtol=1e-6)


@pytest.mark.parametrize("optimizer", [AdamW, Muon])
def test_accumulating_gradients_counts_updates(optimizer):
    """Four batches an update: the schedule and the averages are those of ten updates without."""
    make, found = optimizer, []
    for steps in (None, 4):
        optimizer = make(
            WarmupLinearDecay(0.1, 2, 10), 0.0, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=steps
        )
        variable = keras.Variable(np.ones(1, "float32"), name="kernel")
        for gradient in (1.0, -0.5, 2.0, 1.0, 0.5, 1.0, -1.0, 3.0, 1.0, 1.0):
            for _ in range(steps or 1):
                optimizer.apply([ops.convert_to_tensor([gradient], "float32")], [variable])
        average = [v for v in optimizer.variables if v.path.endswith("average")][0]
        found.append([float(variable[0]), float(average[0]), float(optimizer.learning_rate)])
    assert found[0][2] == 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_averages_of_no_update_do_not_replace_the_weights():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(build_optimizer("adamw", 0.1, use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    before = model.get_weights()
    x = np.ones((2, 1), "float32")
    model.fit(x, x, epochs=1, initial_epoch=1, verbose=0)
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)
    model.fit(x, x, verbose=0)
    assert np.abs(model.get_weights()[0] - before[0]).max() > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"optimizer": "lamb"}, "`optimizer` must be one of .*muon.*lamb"),
        ({"warmup_steps": -1}, "`warmup_steps`.*-1"),
        ({"weight_decay": -0.1}, "`weight_decay`.*-0.1"),
        ({"learning_rate": -1.0}, "`learning_rate`.*-1"),
        ({"warmup_steps": 5, "total_steps": 5}, "`warmup_steps`.*`total_steps`"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(**options)
