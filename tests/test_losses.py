"""Losses against float64 NumPy and against the differentiation of the plain formula."""

import math

import numpy as np
import pytest
from keras import ops

from simretro.losses import fused_cross_entropy, in_batch_similarity_loss
from tests.reference import numpy_bert as nb
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends

# Cross-entropy over the vocabulary
ROWS, WIDTH, VOCAB = 29, 6, 11


@pytest.fixture
def problem():
    """(hidden (N, E), table (V, E), bias (V,)), labels (N,) of which nearly a third is to be ignored."""
    rng = np.random.default_rng(0)
    arrays = rng.normal(0, 1.5, (ROWS, WIDTH)), rng.normal(0, 1, (VOCAB, WIDTH)), rng.normal(0, 1, VOCAB)
    labels = np.where(rng.random(ROWS) < 0.3, -1, rng.integers(0, VOCAB, ROWS)).astype("int32")
    return [array.astype("float32") for array in arrays], labels


def expected(arrays, labels, normalizer=None):
    """Loss, hits and gradients, by the formula: d loss / d logits = (softmax - one hot) / normalizer."""
    hidden, table, bias = (array.astype("float64") for array in arrays)
    logits = hidden @ table.T + bias
    kept = np.flatnonzero(labels >= 0)
    loss, correct = nb.cross_entropy(logits, labels)
    normalizer = normalizer or max(len(kept), 1)
    slope = np.zeros_like(logits)
    slope[kept] = nb.softmax(logits[kept])
    slope[kept, labels[kept]] -= 1
    slope /= normalizer
    gradients = slope @ table, slope.T @ hidden, slope.sum(0)
    return loss * len(kept) / normalizer, correct, gradients


def plain_loss(labels):
    """The unfused loss as a function of (hidden, table, bias), for the backend to differentiate."""

    def function(hidden, table, bias):
        logits = ops.matmul(hidden, ops.transpose(table)) + bias
        chosen = ops.take_along_axis(ops.log_softmax(logits), np.maximum(labels, 0)[:, None], axis=1)[:, 0]
        return -ops.sum(ops.multiply(chosen, (labels >= 0).astype("float32"))) / max((labels >= 0).sum(), 1)

    return function


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chunk_size", [1, 7, 16, 29, 1024])
def test_cross_entropy_value(problem, chunk_size, training):
    arrays, labels = problem
    loss, correct = fused_cross_entropy(*arrays, labels, chunk_size=chunk_size, training=training)
    want, hits, _ = expected(arrays, labels)
    assert loss.shape == () and to_numpy(loss) == pytest.approx(want, rel=1e-5)
    assert int(to_numpy(correct)) == hits > 0


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 29, 1024])
def test_cross_entropy_gradients(problem, chunk_size):
    arrays, labels = problem
    value, gradients = value_and_gradients(lambda *a: fused_cross_entropy(*a, labels, chunk_size=chunk_size)[0], arrays)
    want, _, wanted = expected(arrays, labels)
    assert value == pytest.approx(want, rel=1e-5)
    _, differentiated = value_and_gradients(plain_loss(labels), arrays)
    for got, formula, automatic in zip(gradients, wanted, differentiated, strict=True):
        np.testing.assert_allclose(got, formula, atol=1e-6)
        np.testing.assert_allclose(got, automatic, atol=1e-6)


def test_cross_entropy_gradient_passes_through_a_longer_chain(problem):
    """An upstream factor, and a table that is used twice (as embedding and as output layer)."""
    (hidden, table, bias), labels = problem

    def chain(loss):
        def function(hidden, table, bias):
            return 3 * loss(hidden + ops.take(table, np.arange(ROWS) % VOCAB, axis=0), table, bias)

        return function

    arrays = [hidden, table, bias]
    fused = value_and_gradients(chain(lambda *a: fused_cross_entropy(*a, labels, chunk_size=8)[0]), arrays)
    plain = value_and_gradients(chain(plain_loss(labels)), arrays)
    assert fused[0] == pytest.approx(plain[0], rel=1e-5)
    for got, want in zip(fused[1], plain[1], strict=True):
        np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_cross_entropy_normalizer_of_the_caller(problem, as_tensor):
    """Replicas divide by the count of the whole batch, not by their own."""
    arrays, labels = problem
    normalizer = ops.convert_to_tensor(70.0) if as_tensor else 70.0
    value, gradients = value_and_gradients(lambda *a: fused_cross_entropy(*a, labels, normalizer=normalizer)[0], arrays)
    want, _, wanted = expected(arrays, labels, 70.0)
    assert value == pytest.approx(want, rel=1e-5)
    for got, formula in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, formula, atol=1e-6)


def test_cross_entropy_halves_add_up_to_the_whole(problem):
    (hidden, table, bias), labels = problem
    count = float((labels >= 0).sum())
    parts = [
        to_numpy(fused_cross_entropy(hidden[part], table, bias, labels[part], normalizer=count)[0])
        for part in (slice(0, 10), slice(10, None))
    ]
    assert sum(parts) == pytest.approx(expected((hidden, table, bias), labels)[0], rel=1e-5)


@pytest.mark.parametrize("chunk_size", [4, 1024])
def test_cross_entropy_without_any_label(problem, chunk_size):
    arrays, labels = problem
    nothing = np.full_like(labels, -1)
    _, correct = fused_cross_entropy(*arrays, nothing, chunk_size=chunk_size)
    assert int(to_numpy(correct)) == 0
    value, gradients = value_and_gradients(
        lambda *a: fused_cross_entropy(*a, nothing, chunk_size=chunk_size)[0], arrays
    )
    assert value == 0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_cross_entropy_ignored_rows_have_no_gradient_and_no_say(problem):
    (hidden, table, bias), labels = problem
    wild = np.where((labels < 0)[:, None], np.float32(1e4), hidden)
    arrays = [wild, table, bias]
    value, gradients = value_and_gradients(lambda *a: fused_cross_entropy(*a, labels, chunk_size=8)[0], arrays)
    want, _, wanted = expected((hidden, table, bias), labels)
    assert value == pytest.approx(want, rel=1e-5)
    np.testing.assert_array_equal(gradients[0][labels < 0], 0)
    assert np.abs(gradients[0][labels >= 0]).max(-1).min() > 0
    np.testing.assert_allclose(gradients[1], wanted[1], atol=1e-6)


def test_cross_entropy_of_very_sure_rows():
    """Logits of +-2e4 neither overflow nor lose the loss."""
    arrays = [np.array(x, "float32") for x in ([[1], [1]], [[2e4], [-2e4]], [0, 0])]
    labels = np.array([0, 1], "int32")
    value, gradients = value_and_gradients(lambda *a: fused_cross_entropy(*a, labels)[0], arrays)
    assert value == pytest.approx(2e4)
    np.testing.assert_allclose(gradients[2], [0.5, -0.5], atol=1e-6)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.03), ("float16", 4e-3)])
def test_cross_entropy_in_low_precision(problem, dtype, tolerance):
    """Half-precision activations, float32 bias as a policy keeps it: float32 loss, finite gradients of their dtype."""
    (hidden, table, bias), labels = problem
    want, _, wanted = expected((hidden, table, bias), labels)

    def function(hidden, table, bias):
        return fused_cross_entropy(ops.cast(hidden, dtype), ops.cast(table, dtype), bias, labels, chunk_size=8)[0]

    loss = function(*map(ops.convert_to_tensor, (hidden, table, bias)))
    assert "float32" in str(loss.dtype)
    value, gradients = value_and_gradients(function, [hidden, table, bias])
    assert value == pytest.approx(want, rel=tolerance)
    for got, formula in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, formula, atol=tolerance)


# Similarity in the batch
def random_vectors(rows=6, size=5, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, size)).astype("float32")


def similarity(vectors, *args, **options):
    loss, accuracy = in_batch_similarity_loss(vectors, *args, **options)
    assert loss.shape == () and accuracy.shape == ()
    return float(to_numpy(loss)), float(to_numpy(accuracy))


@pytest.mark.parametrize("temperature", [1 / 30, 0.05, 1.0])
@pytest.mark.parametrize("rows", [2, 6, 16])
def test_similarity_equals_numpy(rows, temperature):
    vectors = random_vectors(rows)
    want, accuracy = nb.similarity_loss(vectors, temperature)
    got = similarity(vectors, temperature)
    assert got[0] == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert got[1] == pytest.approx(accuracy)


def test_similarity_default_scale_is_thirty():
    vectors = random_vectors()
    assert similarity(vectors)[0] == pytest.approx(nb.similarity_loss(vectors, 1 / 30)[0], rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_similarity_of_collapsed_vectors(dtype):
    vectors = ops.cast(np.tile([[0.3, -2.0, 1.0]], (6, 1)), dtype)
    loss, accuracy = similarity(vectors)
    assert loss == pytest.approx(math.log(5), abs=1e-4)
    assert accuracy < 1, "a collapsed encoder tells nobody apart: ties must not count as hits"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_similarity_of_ideal_pairs(dtype):
    vectors = ops.cast(np.repeat(3 * np.eye(3), 2, axis=0), dtype)
    loss, accuracy = similarity(vectors)
    assert loss == pytest.approx(math.log1p(4 * math.exp(-30)), abs=1e-6) and accuracy == 1
    assert similarity(vectors, 1.0)[0] == pytest.approx(math.log1p(4 * math.exp(-1)), rel=1e-4)


def test_similarity_floor_of_a_repeated_group():
    vectors = np.repeat(np.eye(3, dtype="float32")[[0, 0, 1, 2]], 2, axis=0)
    assert similarity(vectors)[0] == pytest.approx(math.log(3) / 2, abs=1e-5)


def test_similarity_partner_is_the_neighbour_of_the_same_pair():
    """Rows 1 and 2 are alike but of different pairs: a partner at i + 1 would call that right."""
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1.0]], "float32")
    loss, accuracy = similarity(vectors, 1.0)
    assert loss == pytest.approx(nb.similarity_loss(vectors, 1.0)[0], rel=1e-5) and accuracy < 1


def test_similarity_invariances():
    vectors = random_vectors(8)
    want = similarity(vectors)
    assert similarity(vectors.reshape(4, 2, -1)[:, ::-1].reshape(8, -1)) == pytest.approx(want, rel=1e-5)
    assert similarity(vectors.reshape(4, 2, -1)[[2, 0, 3, 1]].reshape(8, -1)) == pytest.approx(want, rel=1e-5)
    lengths = np.array([[0.1], [7], [1], [30], [2], [0.5], [3], [4]], "float32")
    assert similarity(vectors * lengths) == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 5])
def test_similarity_refuses_an_odd_row_count(rows):
    with pytest.raises(ValueError, match=str(rows)):
        in_batch_similarity_loss(random_vectors(rows))


def numeric_gradient(function, x, step=1e-6):
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("temperature", [1 / 30, 0.5])
def test_similarity_gradient(temperature):
    vectors = random_vectors()
    _, (gradient,) = value_and_gradients(lambda v: in_batch_similarity_loss(v, temperature)[0], [vectors])
    want = numeric_gradient(lambda v: nb.similarity_loss(v, temperature)[0], vectors.astype("float64"))
    np.testing.assert_allclose(gradient, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("size", [1, 200])
@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.1), ("float16", 0.02)])
def test_similarity_in_low_precision(dtype, tolerance, size):
    """The rounded vectors decide, not the arithmetic: entries of 200 overflow a float16 sum of squares."""
    vectors = random_vectors(6, 8) * size
    rounded = to_numpy(ops.cast(vectors, dtype))

    def function(vectors):
        return in_batch_similarity_loss(ops.cast(vectors, dtype))[0]

    assert "float32" in str(function(vectors).dtype)
    value, (gradient,) = value_and_gradients(function, [vectors])
    assert value == pytest.approx(nb.similarity_loss(rounded)[0], rel=1e-3)
    assert value == pytest.approx(nb.similarity_loss(vectors)[0], abs=tolerance)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_similarity_with_zero_vectors_is_finite(dtype):
    vectors = random_vectors()
    vectors[2:4] = 0
    value, (gradient,) = value_and_gradients(lambda v: in_batch_similarity_loss(ops.cast(v, dtype))[0], [vectors])
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_similarity_of_shards_equals_the_whole_batch():
    """Each replica scores its own rows against the gathered ones; the offset says where its rows stand among them."""
    vectors = random_vectors(12)
    want, accuracy = similarity(vectors)
    parts = [similarity(vectors[start:stop], 1 / 30, vectors, start) for start, stop in ((0, 4), (4, 10), (10, 12))]
    shares = np.array([4, 6, 2]) / 12
    assert np.dot(shares, [loss for loss, _ in parts]) == pytest.approx(want, rel=1e-5)
    assert np.dot(shares, [hits for _, hits in parts]) == pytest.approx(accuracy)


def test_similarity_gradient_of_shards_equals_the_whole_batch():
    vectors = random_vectors(8)
    _, (want,) = value_and_gradients(lambda v: in_batch_similarity_loss(v)[0], [vectors])

    def sharded(v):
        halves = [in_batch_similarity_loss(v[i : i + 4], 1 / 30, v, i)[0] for i in (0, 4)]
        return (halves[0] + halves[1]) / 2

    _, (got,) = value_and_gradients(sharded, [vectors])
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_similarity_offset_may_be_a_tensor():
    """A replica knows its number only inside the step."""
    vectors = random_vectors(8)
    want = similarity(vectors[4:], 1 / 30, vectors, 4)
    assert similarity(vectors[4:], 1 / 30, vectors, ops.convert_to_tensor(4)) == pytest.approx(want)


def test_a_part_without_rows_adds_nothing():
    """What a replica gets when a last batch has fewer rows than there are devices."""
    empty = np.zeros((0, 4), "float32")
    loss, correct = fused_cross_entropy(
        ops.convert_to_tensor(empty), np.ones((6, 4), "float32"), np.zeros(6, "float32"), np.zeros(0, "int32"), 5.0
    )
    assert float(loss) == 0 and float(correct) == 0
    loss, accuracy = in_batch_similarity_loss(empty, 1 / 30, np.ones((4, 4), "float32"), 4)
    assert float(loss) == 0 and float(accuracy) == 0
