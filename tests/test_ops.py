import math

import keras
import numpy as np
import pytest
from keras import ops

from simretro.ops import (
    activation,
    gelu_for_training,
    layer_norm_for_training,
    loop_in_turn,
    rotate,
    take_rows,
    unit_vectors,
)
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends


def test_gelu_is_exact_unless_the_config_says_tanh():
    x = np.array([-2.0, -0.5, 0.0, 1.0, 3.0], "float32")
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    tanh = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x]
    np.testing.assert_allclose(ops.convert_to_numpy(activation("gelu")(x)), exact, atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(gelu_for_training(ops.convert_to_tensor(x))), exact, atol=1e-6)
    for name in ("gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "gelu_fast"):
        np.testing.assert_allclose(ops.convert_to_numpy(activation(name)(x)), tanh, atol=1e-6)
    assert activation("relu") is keras.activations.relu
    with pytest.raises(ValueError, match="nonsense"):
        activation("nonsense")


# On TensorFlow tensors from 128 on in width go through compiled loops.
@pytest.mark.parametrize("width", [41, 128])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_gelu_for_training_and_its_gradient_are_those_of_the_formula(width, dtype, tolerance):
    x = to_numpy(ops.cast(np.linspace(-6, 6, 3 * width).reshape(3, width), dtype))
    weights = np.cos(np.arange(x.size)).reshape(x.shape).astype("float32")

    def weighted(v):
        y = gelu_for_training(ops.cast(v, dtype))
        assert keras.backend.standardize_dtype(y.dtype) == dtype
        return ops.sum(ops.multiply(ops.cast(y, "float32"), weights))

    value, (gradient,) = value_and_gradients(weighted, [x])
    cdf = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x.astype("float64"))
    pdf = np.exp(-0.5 * x.astype("float64") ** 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(to_numpy(gelu_for_training(ops.cast(x, dtype))), x * cdf, atol=4 * tolerance)
    np.testing.assert_allclose(value, np.sum(weights * x * cdf), atol=40 * tolerance)
    np.testing.assert_allclose(gradient, weights * (cdf + x * pdf), atol=tolerance)


@pytest.mark.parametrize("width", [8, 128])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float16", 2e-2)])
def test_layer_norm_for_training_equals_the_differentiated_formula(dtype, tolerance, width):
    rng = np.random.default_rng(0)
    x, gamma, beta = rng.normal(3, 2, (2, 5, width)), rng.normal(1, 0.3, width), rng.normal(0, 0.3, width)
    weights = rng.normal(size=(2, 5, width)).astype("float32")

    def plain(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        return centred / ops.sqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-3) * gamma + beta

    def own(x, gamma, beta):
        y = layer_norm_for_training(ops.cast(x, dtype), gamma, beta, 1e-3)
        assert keras.backend.standardize_dtype(y.dtype) == dtype
        return ops.cast(y, "float32")

    results = []
    for function in (plain, own):
        arguments = [value.astype("float32") for value in (x, gamma, beta)]
        results.append(value_and_gradients(lambda *v, f=function: ops.sum(ops.multiply(f(*v), weights)), arguments))
    (value, gradients), (own_value, own_gradients) = results
    np.testing.assert_allclose(own_value, value, rtol=tolerance, atol=tolerance)
    for gradient, own_gradient in zip(gradients, own_gradients, strict=True):
        np.testing.assert_allclose(own_gradient, gradient, rtol=tolerance, atol=tolerance)


def test_take_rows_takes_from_each_sequence():
    x = np.arange(24).reshape(2, 4, 3)
    taken = ops.convert_to_numpy(take_rows(ops.convert_to_tensor(x), np.array([[3, 0], [1, 1]], "int32")))
    np.testing.assert_array_equal(taken, [[x[0, 3], x[0, 0]], [x[1, 1], x[1, 1]]])


def test_unit_vectors_have_length_one_and_zero_stays_zero():
    vectors = ops.convert_to_numpy(unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0], [1e-3, 0.0]], "float16")))
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0], [1, 0]], atol=1e-3)
    _, (gradient,) = value_and_gradients(lambda v: ops.sum(unit_vectors(v)), [np.zeros((1, 2), "float32")])
    assert np.isfinite(gradient).all()


def test_rotate_turns_each_pair_by_its_angle():
    x = np.zeros((1, 1, 1, 4), "float32")
    x[..., 0] = x[..., 2] = 1.0
    turned = ops.convert_to_numpy(rotate(ops.convert_to_tensor(x), np.array([[3]], "int32")))[0, 0, 0]
    slow = 3 * 10000 ** (-2 / 4)
    np.testing.assert_allclose(turned, [math.cos(3), math.sin(3), math.cos(slow), math.sin(slow)], atol=1e-6)


def test_loop_in_turn_is_a_loop():
    index, total = loop_in_turn(lambda i, _: i < 5, lambda i, total: (i + 1, total + i), (ops.zeros((), "int32"),) * 2)
    assert (int(index), int(total)) == (5, 10)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends run no two rounds at once")
def test_rounds_of_the_loop_do_not_overlap():
    import tensorflow as tf

    @tf.function
    def add_up(x):
        return loop_in_turn(lambda i, _: i < 6, lambda i, total: (i + 1, total + x), (tf.constant(0), x))

    operations = add_up.get_concrete_function(tf.constant(1.0)).graph.get_operations()
    loops = [operation for operation in operations if operation.type in ("While", "StatelessWhile")]
    assert [loop.get_attr("parallel_iterations") for loop in loops] == [1]
