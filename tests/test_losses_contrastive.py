"""The contrastive loss against float64 NumPy, on vectors made by hand and on shards of a batch."""

import math

import numpy as np
import pytest
from keras import ops

from simretro.losses import contrastive_loss, in_batch_similarity_loss, known_positives
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends


def numpy_loss(queries, passages, temperature=0.05, positives=None, left_out=None, similarity="cosine"):
    """(mean loss, accuracy) by the formula, row by row."""
    queries, passages = np.asarray(queries, "float64"), np.asarray(passages, "float64")
    if similarity == "cosine":
        queries, passages = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, passages))
    losses, hits = [], []
    for i, query in enumerate(queries):
        own = i * (len(passages) // len(queries)) if positives is None else positives[i]
        kept = [j for j in range(len(passages)) if j == own or left_out is None or not left_out[i, j]]
        scores = {j: float(query @ passages[j]) / temperature for j in kept}
        peak = max(scores.values())
        losses.append(math.log(sum(math.exp(s - peak) for s in scores.values())) + peak - scores[own])
        hits.append(all(scores[own] > s for j, s in scores.items() if j != own))
    return np.mean(losses), np.mean(hits)


def numbers(result):
    loss, accuracy = result
    assert loss.shape == () and accuracy.shape == () and "float32" in str(loss.dtype)
    return float(to_numpy(loss)), float(to_numpy(accuracy))


def random_problem(num_queries=5, group_size=3, size=8, seed=0):
    rng = np.random.default_rng(seed)
    passages = rng.normal(size=(num_queries * group_size, size))
    queries = passages[::group_size] + rng.normal(size=(num_queries, size))
    return queries.astype("float32"), passages.astype("float32")


@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.02), ("cosine", 1.0), ("dot", 1.0), ("dot", 0.3)])
@pytest.mark.parametrize("group_size", [1, 3])
def test_value_equals_numpy(group_size, similarity, temperature):
    problem = random_problem(group_size=group_size)
    want = numpy_loss(*problem, temperature, similarity=similarity)
    assert numbers(contrastive_loss(*problem, temperature, similarity=similarity)) == pytest.approx(want, rel=1e-5)


def test_the_positive_is_first_in_its_group():
    """Vectors by hand: the loss is known, and another order of positives and negatives gives another one (R4)."""
    queries = np.eye(4, dtype="float32")[:2]
    positive, near, far = np.eye(4)[:2], np.array([[1, 1, 0, 0], [1, 1, 0, 0]]), np.eye(4)[2:]
    by_query = np.stack([positive, near, far], axis=1).reshape(6, 4).astype("float32")  # P N N, P N N
    loss, accuracy = numbers(contrastive_loss(queries, by_query, 1.0))
    root = math.sqrt(0.5)
    want = math.log(math.e + 2 * math.exp(root) + 3) - 1  # itself; twice `near`; the other positive and both `far`
    assert (loss, accuracy) == (pytest.approx(want, rel=1e-5), 1.0)
    by_kind = np.concatenate([positive, near, far]).astype("float32")  # P P N N N N
    assert numbers(contrastive_loss(queries, by_kind, 1.0))[1] == 0.5
    placed = numbers(contrastive_loss(queries, by_kind, 1.0, positives=np.array([0, 1])))
    assert placed == pytest.approx((loss, accuracy), rel=1e-5)


def test_what_is_left_out_is_no_negative():
    queries, passages = random_problem()
    left_out = np.random.default_rng(1).random((5, 15)) < 0.4  # some positives among them, which count all the same
    assert left_out[range(5), range(0, 15, 3)].any()
    want = numpy_loss(queries, passages, left_out=left_out)
    assert numbers(contrastive_loss(queries, passages, left_out=left_out)) == pytest.approx(want, rel=1e-5)
    unseen = left_out.copy()
    unseen[range(5), range(0, 15, 3)] = False
    unseen[:, 4] = True
    _, gradients = value_and_gradients(lambda q, p: contrastive_loss(q, p, left_out=unseen)[0], [queries, passages])
    assert not gradients[1][4].any() and np.abs(gradients[1]).max(axis=1)[[0, 3, 6]].min() > 0
    everything = np.ones((5, 15), bool)
    assert numbers(contrastive_loss(queries, passages, left_out=everything)) == (pytest.approx(0, abs=1e-6), 1.0)


@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.05), ("dot", 1.0)])
def test_gradients_equal_numeric_ones(similarity, temperature):
    problem = random_problem(3, 2, 4)
    left_out = np.zeros((3, 6), bool)
    left_out[0, 2] = left_out[2, 1] = True
    options = {"left_out": left_out, "similarity": similarity}
    _, gradients = value_and_gradients(lambda q, p: contrastive_loss(q, p, temperature, **options)[0], list(problem))
    for number, gradient in enumerate(gradients):
        want = np.zeros_like(gradient, "float64")
        for place in np.ndindex(*gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.astype("float64") for x in problem]
                moved[number][place] += step
                ends.append(numpy_loss(*moved, temperature, **options)[0])
            want[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_low_precision_and_a_small_temperature(dtype, similarity):
    """Finite, the loss of float32 of the rounded vectors, and gradients that are not zero (R3)."""
    queries, passages = random_problem()
    # Queries that are near none of the passages, or there would be nothing left to learn.
    problem = [to_numpy(ops.cast(x / 8, dtype)) for x in (np.roll(queries, 1, axis=0), passages)]
    left_out = np.zeros((5, 15), bool)
    left_out[:, 7] = True
    options = {"temperature": 0.02, "left_out": left_out, "similarity": similarity}

    def function(queries, passages):
        return contrastive_loss(ops.cast(queries, dtype), ops.cast(passages, dtype), **options)[0]

    value, gradients = value_and_gradients(function, problem)
    assert value == pytest.approx(numpy_loss(*problem, **options)[0], abs=1e-2, rel=1e-3)
    for gradient in gradients:
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    zeros = [np.zeros_like(x) for x in problem]
    value, gradients = value_and_gradients(function, zeros)
    assert value == pytest.approx(math.log(14), rel=1e-5) and all(np.isfinite(g).all() for g in gradients)


def test_a_tie_is_no_hit():
    same = np.ones((4, 3), "float32")
    assert numbers(contrastive_loss(same, same)) == (pytest.approx(math.log(4), rel=1e-5), 0.0)


def shards(queries, passages, borders, **options):
    """The batch's loss from parts of its queries, each against all passages (group size 3)."""
    total = 0.0
    for start, stop in zip(borders, borders[1:], strict=False):
        positives = 3 * (start + np.arange(stop - start))
        own = {"left_out": options["left_out"][start:stop]} if "left_out" in options else {}
        loss, _ = contrastive_loss(queries[start:stop], passages, 0.05, ops.convert_to_tensor(positives), **own)
        total = total + loss * ((stop - start) / borders[-1])
    return total


@pytest.mark.parametrize("borders", [[0, 2, 4], [0, 3, 4], [0, 4, 4]])
def test_shards_equal_the_whole_batch(borders):
    """Two replicas, two hard negatives for each query; also uneven ones, and one without queries (R4)."""
    problem = random_problem(4)
    left_out = np.zeros((4, 12), bool)
    left_out[3, 0] = left_out[1, 8] = True
    want, want_gradients = value_and_gradients(
        lambda q, p: contrastive_loss(q, p, 0.05, left_out=left_out)[0], list(problem)
    )
    value, gradients = value_and_gradients(lambda q, p: shards(q, p, borders, left_out=left_out), list(problem))
    assert value == pytest.approx(want, rel=1e-5)
    for gradient, wanted in zip(gradients, want_gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


def test_simbert_is_a_case_of_it():
    vectors = random_problem(6)[0]
    partners = np.arange(6) ^ 1
    want = numpy_loss(vectors, vectors, 1 / 30, partners, np.eye(6, dtype=bool))
    assert numbers(in_batch_similarity_loss(vectors)) == pytest.approx(want, rel=1e-5)


def test_known_positives_by_hand():
    keys = np.array([[4, 7, -1], [9, -1, -1]], "int32")
    passages = np.array([4, 9, 7, -1, 4], "int32")
    want = [[1, 0, 1, 1, 1], [0, 1, 0, 1, 0]]
    np.testing.assert_array_equal(to_numpy(known_positives(keys, passages)), np.array(want, bool))


def test_known_positives_of_many_keys():
    rng = np.random.default_rng(0)
    keys, passages = rng.integers(-1, 60, (7, 21)), rng.integers(-1, 60, 30)
    want = [[p < 0 or p in row for p in passages.tolist()] for row in keys.tolist()]
    np.testing.assert_array_equal(to_numpy(known_positives(keys, passages)), want)


def test_bad_arguments_are_named():
    queries, passages = random_problem()
    with pytest.raises(ValueError, match="`similarity`.*'euclid'"):
        contrastive_loss(queries, passages, similarity="euclid")
    with pytest.raises(ValueError, match="`passages` must come in groups.*5 `queries`.*14 passages"):
        contrastive_loss(queries, passages[:14])
