"""Distillation against float64 NumPy, with scores that are missing, and on parts of a batch."""

import math

import numpy as np
import pytest
from keras import ops

from simretro.losses import count_distilled, distillation_loss, group_scores
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends
KINDS = ("kl", "margin_mse")


def numpy_distillation(scores, teacher, kind, teacher_temperature=1.0):
    """(mean loss, what it is a mean over) by the formula, query by query."""
    losses = []
    for student, other in zip(np.asarray(scores, "float64"), np.asarray(teacher, "float64"), strict=True):
        known = [j for j in range(len(other)) if not math.isnan(other[j])]
        target = {j: other[j] / teacher_temperature for j in known}
        if kind == "kl" and len(known) > 1:
            p, q = (np.exp([x[j] for j in known]) / np.sum(np.exp([x[j] for j in known])) for x in (target, student))
            losses.append(np.sum(p * np.log(p / q)))
        if kind == "margin_mse" and 0 in known:
            losses += [((student[0] - student[j]) - (target[0] - target[j])) ** 2 for j in known[1:]]
    return np.sum(losses) / max(len(losses), 1), len(losses)


def problem(seed=0, queries=6, group_size=4, missing=0.3):
    rng = np.random.default_rng(seed)
    scores, teacher = rng.normal(0, 2, (2, queries, group_size)).astype("float32")
    teacher[rng.random(teacher.shape) < missing] = np.nan
    return scores, teacher


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [0, 0.3, 0.7])
@pytest.mark.parametrize("teacher_temperature", [1.0, 0.3, 5.0])
def test_value_equals_numpy(kind, missing, teacher_temperature):
    scores, teacher = problem(missing=missing)
    want, count = numpy_distillation(scores, teacher, kind, teacher_temperature)
    loss = distillation_loss(scores, teacher, kind, teacher_temperature)
    assert loss.shape == () and "float32" in str(loss.dtype)
    assert float(to_numpy(loss)) == pytest.approx(want, rel=1e-5)
    assert float(to_numpy(count_distilled(teacher, kind))) == count


def test_by_hand():
    """Margins 2 and 1 of the student, 3 and (missing) of the teacher; two equal ones against odds of 3 to 1."""
    teacher = np.array([[4, 1, np.nan]], "float32")
    assert float(distillation_loss(np.array([[2, 0, 1]], "float32"), teacher, "margin_mse")) == pytest.approx(1)
    teacher = np.array([[2 * math.log(3), 0, np.nan]], "float32")
    want = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(distillation_loss(np.array([[1, 1, 9]], "float32"), teacher, "kl", 2.0)) == pytest.approx(want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_agrees_has_no_loss(kind):
    """Up to a constant, which neither ranking nor margin knows."""
    scores, teacher = problem()
    same = np.where(np.isnan(teacher), 77, teacher / 2 + 5).astype("float32")
    assert (
        abs(float(distillation_loss(same, teacher, kind, 2.0)))
        < 1e-5
        < float(distillation_loss(scores, teacher, kind, 2.0))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.1), ("dot", 1.0)])
def test_gradients_equal_numeric_ones(kind, similarity, temperature):
    """From the vectors on; a passage without a score has none, and nothing is NaN."""
    rng = np.random.default_rng(1)
    vectors = [rng.normal(size=(4, 5)).astype("float32"), rng.normal(size=(4, 3, 5)).astype("float32")]
    teacher = np.array([[1, -1, 0], [2, np.nan, 1], [np.nan, 3, 1], [np.nan, 1, np.nan]], "float32")

    def by_hand(queries, passages):
        if similarity == "cosine":
            queries, passages = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, passages))
        scores = np.einsum("qd,qgd->qg", queries, passages) / temperature
        return numpy_distillation(scores, teacher, kind, 2.0)[0]

    def function(queries, passages):
        return distillation_loss(group_scores(queries, passages, temperature, similarity), teacher, kind, 2.0)

    value, gradients = value_and_gradients(function, vectors)
    assert value == pytest.approx(by_hand(*[x.astype("float64") for x in vectors]), rel=1e-5)
    assert not gradients[0][3].any() and not gradients[1][1, 1].any()
    for number, gradient in enumerate(gradients):
        want = np.zeros_like(gradient, "float64")
        for place in np.ndindex(*gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.astype("float64") for x in vectors]
                moved[number][place] += step
                ends.append(by_hand(*moved))
            want[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, want, atol=2e-4 * np.abs(want).max())


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_batch(kind):
    scores, teacher = problem()
    count = count_distilled(teacher, kind)
    parts = [distillation_loss(scores[rows], teacher[rows], kind, 1.0, count) for rows in (slice(0, 2), slice(2, 6))]
    assert float(sum(parts)) == pytest.approx(float(distillation_loss(scores, teacher, kind)), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("teacher", [np.full((2, 3), np.nan), np.zeros((2, 1)), np.zeros((0, 3))])
def test_nothing_to_learn_from(kind, teacher):
    """No score, groups of one, no query: 0, and gradients that are 0."""
    scores = np.ones(teacher.shape, "float32")
    value, (gradient,) = value_and_gradients(lambda s: distillation_loss(s, teacher.astype("float32"), kind), [scores])
    assert value == 0 and not np.any(gradient)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision(dtype):
    scores, teacher = problem(missing=0)
    for kind in KINDS:
        low = distillation_loss(ops.cast(scores, dtype), ops.cast(teacher, dtype), kind)
        assert float(to_numpy(low)) == pytest.approx(float(distillation_loss(scores, teacher, kind)), rel=0.05)


def test_bad_choice_is_named():
    with pytest.raises(ValueError, match="`kind` must be 'kl' or 'margin_mse'; received 'mse'"):
        distillation_loss(*problem(), "mse")
    with pytest.raises(ValueError, match="`similarity` must be 'cosine' or 'dot'; received 'l2'"):
        group_scores(np.ones((1, 2)), np.ones((1, 1, 2)), similarity="l2")
