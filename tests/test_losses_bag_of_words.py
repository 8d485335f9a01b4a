"""Bag-of-words reconstruction: the maximum over positions without all logits, and the target by hand."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from simretro.losses import bag_of_words_loss, max_pooled_logits
from tests.reference.harness import to_numpy, value_and_gradients
from tests.reference.numpy_retromae import bag_of_words

pytestmark = pytest.mark.backends
ROWS, LENGTH, WIDTH, VOCAB = 3, 10, 6, 13
CHUNK_SIZES = [1, 3, 5, 7, 10, 30, 1024]  # those that divide the positions and those that do not
tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads TensorFlow's graph")


@pytest.fixture
def problem():
    """(hidden (B, L, E), table (V, E), bias (V,)), mask (B, L) with holes and with padding at the end."""
    rng = np.random.default_rng(0)
    shapes = (ROWS, LENGTH, WIDTH), (VOCAB, WIDTH), (VOCAB,)
    mask = np.arange(LENGTH)[None] < np.array([10, 7, 1])[:, None]
    mask[0, [0, 4]] = False
    return [rng.normal(0, 1.5, shape).astype("float32") for shape in shapes], mask


def expected(arrays, mask):
    """Pooled logits (B, V) and, for each, the position of the maximum."""
    hidden, table, bias = (array.astype("float64") for array in arrays)
    logits = np.where(mask[..., None], hidden @ table.T + bias, -np.inf)
    return logits.max(1), logits.argmax(1)


def plain(mask):
    """The unchunked maximum as a function of (hidden, table, bias), for the backend to differentiate."""

    def function(hidden, table, bias):
        logits = ops.matmul(hidden, ops.transpose(table)) + bias
        return ops.max(ops.where(mask[..., None], logits, -1e9), axis=1)

    return function


def some_scalar(pooled):
    """A scalar to which each pooled logit adds with another slope."""
    weights = np.linspace(-1, 2, ROWS * VOCAB, dtype="float32").reshape(ROWS, VOCAB)
    return ops.sum(ops.multiply(ops.cast(pooled, "float32"), weights)) + ops.sum(
        ops.square(ops.cast(pooled, "float32"))
    )


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
def test_pooled_value(problem, chunk_size):
    arrays, mask = problem
    pooled = max_pooled_logits(*arrays, mask, chunk_size=chunk_size)
    assert tuple(pooled.shape) == (ROWS, VOCAB) and keras.backend.standardize_dtype(pooled.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(pooled), expected(arrays, mask)[0], atol=1e-5)


def test_pooled_value_by_default(problem):
    arrays, mask = problem
    np.testing.assert_allclose(to_numpy(max_pooled_logits(*arrays, mask)), expected(arrays, mask)[0], atol=1e-5)


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
def test_pooled_gradients(problem, chunk_size):
    """Against the backend's own differentiation, and by hand: a slope goes to the position of the maximum alone."""
    arrays, mask = problem
    value, gradients = value_and_gradients(
        lambda *a: some_scalar(max_pooled_logits(*a, mask, chunk_size=chunk_size)), arrays
    )
    wanted_value, wanted = value_and_gradients(lambda *a: some_scalar(plain(mask)(*a)), arrays)
    assert value == pytest.approx(wanted_value, rel=1e-5)
    for got, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-5)
    pooled, places = expected(arrays, mask)
    slopes = np.linspace(-1, 2, ROWS * VOCAB).reshape(ROWS, VOCAB) + 2 * pooled
    by_hand = np.zeros((ROWS, LENGTH, WIDTH))
    for b, v in np.ndindex(ROWS, VOCAB):
        by_hand[b, places[b, v]] += slopes[b, v] * arrays[1][v]
    np.testing.assert_allclose(gradients[0], by_hand, atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(gradients[2], slopes.sum(0), atol=1e-3, rtol=1e-4)


def test_masked_positions_have_no_say_and_no_gradient(problem):
    (hidden, table, bias), mask = problem
    wild = np.where(mask[..., None], hidden, np.float32(1e4))
    arrays = [wild, table, bias]
    np.testing.assert_allclose(
        to_numpy(max_pooled_logits(*arrays, mask, chunk_size=4)), expected((hidden, table, bias), mask)[0], atol=1e-5
    )
    _, gradients = value_and_gradients(lambda *a: some_scalar(max_pooled_logits(*a, mask, chunk_size=4)), arrays)
    np.testing.assert_array_equal(gradients[0][~mask], 0)
    assert np.abs(gradients[0][2, 0]).max() > 0


def test_a_row_without_positions_is_finite_and_has_no_gradient_of_its_own(problem):
    arrays, mask = problem
    mask = mask & (np.arange(ROWS) != 1)[:, None]
    pooled = to_numpy(max_pooled_logits(*arrays, mask, chunk_size=4))
    np.testing.assert_allclose(pooled[[0, 2]], expected(arrays, mask)[0][[0, 2]], atol=1e-5)
    assert np.isfinite(pooled).all()
    token_ids, counted = np.full((ROWS, LENGTH), 5, "int32"), mask

    def loss(*a):
        return ops.sum(bag_of_words_loss(max_pooled_logits(*a, mask, chunk_size=4), token_ids, counted))

    value, gradients = value_and_gradients(loss, arrays)
    assert np.isfinite(value) and all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][1], 0)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.15), ("float16", 0.02)])
def test_pooled_in_low_precision(problem, dtype, tolerance):
    """Half-precision activations and a float32 bias, as a policy keeps them: float32 logits, finite gradients."""
    arrays, mask = problem

    def function(hidden, table, bias):
        return max_pooled_logits(ops.cast(hidden, dtype), ops.cast(table, dtype), bias, mask, chunk_size=4)

    pooled = function(*map(ops.convert_to_tensor, arrays))
    assert keras.backend.standardize_dtype(pooled.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(pooled), expected(arrays, mask)[0], atol=tolerance)
    value, gradients = value_and_gradients(lambda *a: some_scalar(function(*a)), arrays)
    assert np.isfinite(value)
    for gradient in gradients:
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    nothing = function(*map(ops.convert_to_tensor, arrays[:2]), np.full(VOCAB, -3e4, "float32"))
    assert np.isfinite(to_numpy(nothing)).all()


@pytest.mark.parametrize("chunk_size", [0, -1])
def test_chunk_size_out_of_range(problem, chunk_size):
    arrays, mask = problem
    with pytest.raises(ValueError, match=f"`chunk_size`.*{chunk_size}"):
        max_pooled_logits(*arrays, mask, chunk_size=chunk_size)


@tensorflow_only
def test_all_logits_never_exist():
    """No tensor of the step, the gradient's included, is as large as (B, L, V)."""
    import tensorflow as tf

    rows, length, width, vocab = 4, 24, 3, 50
    arrays = [tf.ones(shape) for shape in ((rows, length, width), (vocab, width), (vocab,))]
    mask = np.ones((rows, length), bool)

    @tf.function
    def step(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            value = ops.sum(max_pooled_logits(*arrays, mask, chunk_size=6))
        return tape.gradient(value, arrays)

    graph = step.get_concrete_function(*arrays).graph
    found = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    shapes = {
        tuple(t.shape) for g in found for op in g.get_operations() for t in op.outputs if t.shape.rank is not None
    }
    sizes = [math.prod(shape) for shape in shapes if None not in shape]
    assert (rows, vocab) in shapes and max(sizes) < rows * length * vocab


# The loss
LOGITS = np.log(np.array([[0.5, 0.25, 0.125, 0.125]] * 3, "float32"))
TOKEN_IDS = np.array([[3, 0, 1, 0, 2], [0, 1, 1, 3, 3], [0, 1, 2, 3, 0]], "int32")
COUNTED = np.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "bool")
LN2 = math.log(2)


@pytest.mark.parametrize(
    "options, first",
    [({}, (2 * 1 + 2) / 3), ({"target": "normalized"}, (2 * 1 + 2) / 3), ({"target": "reference"}, (1 + 2) / 3)],
)
def test_loss_by_hand(options, first):
    """Token 0 twice (ln 2 each) and token 1 once (2 ln 2) of three; one token; none at all."""
    losses = bag_of_words_loss(LOGITS, TOKEN_IDS, COUNTED, **options)
    assert tuple(losses.shape) == (3,) and keras.backend.standardize_dtype(losses.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(losses), [first * LN2, 2 * LN2, 0], rtol=1e-5)


def test_targets_sum_to_one():
    """Adding a constant to all logits adds nothing; so -sum(target) is the slope of the log normaliser."""
    _, (gradient,) = value_and_gradients(
        lambda logits: ops.sum(bag_of_words_loss(logits, TOKEN_IDS, COUNTED)), [LOGITS]
    )
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-6)  # sum of softmax - target
    np.testing.assert_allclose(gradient[0], np.exp(LOGITS[0]) - [2 / 3, 1 / 3, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(gradient[2], 0)


def test_reference_target_does_not_accumulate():
    _, (gradient,) = value_and_gradients(
        lambda logits: ops.sum(bag_of_words_loss(logits, TOKEN_IDS, COUNTED, target="reference")), [LOGITS]
    )
    np.testing.assert_allclose(gradient[0], np.exp(LOGITS[0]) * 2 / 3 - [1 / 3, 1 / 3, 0, 0], atol=1e-6)


@pytest.mark.parametrize("target", ["normalized", "reference"])
def test_loss_equals_numpy(target):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (5, 20)).astype("float32")
    token_ids, counted = rng.integers(0, 20, (5, 30)).astype("int32"), rng.random((5, 30)) < 0.6
    losses = to_numpy(bag_of_words_loss(logits, token_ids, counted, target=target))
    np.testing.assert_allclose(losses, bag_of_words(logits, token_ids, counted, target), rtol=1e-5)


@pytest.mark.parametrize("target", ["normalized", "reference"])
def test_what_is_not_counted_has_no_say(target):
    """Ids of padding and specials may be anything."""
    want = to_numpy(bag_of_words_loss(LOGITS, TOKEN_IDS, COUNTED, target=target))
    for other in (0, 3):
        changed = np.where(COUNTED, TOKEN_IDS, other).astype("int32")
        np.testing.assert_allclose(
            to_numpy(bag_of_words_loss(LOGITS, changed, COUNTED, target=target)), want, rtol=1e-6
        )


def test_loss_of_sure_logits_is_finite():
    losses = to_numpy(bag_of_words_loss(LOGITS * 1e4, TOKEN_IDS, COUNTED))
    assert np.isfinite(losses).all() and losses[0] > 1e3


def test_unknown_target_is_named():
    with pytest.raises(ValueError, match="`target`.*'counts'"):
        bag_of_words_loss(LOGITS, TOKEN_IDS, COUNTED, target="counts")
