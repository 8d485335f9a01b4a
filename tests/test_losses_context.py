"""The contrastive context loss: hand values, a plain NumPy loop, and its gradient."""

import keras
import numpy as np
import pytest
from keras import ops

from simretro.losses import context_loss, context_pairs, contrastive_loss
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends


def rows_of(documents, positions, languages=None, sides=None, keys=None):
    size = len(documents)
    rows = {"document_ids": documents, "sentence_positions": positions, "language_ids": languages or [0] * size}
    rows["sides"] = sides if sides is not None else [i % 2 for i in range(size)]
    if keys is not None:
        rows["sentence_keys"] = keys
    return {name: np.array(values, "int32") for name, values in rows.items()}


def pairs(rows, **options):
    return tuple(map(to_numpy, context_pairs(rows, **options)))


def matrix(text):
    return np.array([[c == "1" for c in row] for row in text.split()])


def vectors_of(rows, seed=0, width=5):
    return np.random.default_rng(seed).normal(0, 1, (rows, width)).astype("float32")


def loop(anchors, candidates, positives, visible, temperature, bank=None, bank_visible=None, exclude=False, dot=False):
    """Algorithm 1, one pair after the other."""
    if not dot:
        anchors, candidates = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (anchors, candidates))
    losses, hits = [], []
    for c, anchor in enumerate(anchors.astype("float64")):
        scores = candidates @ anchor / temperature
        rest = [scores[k] for k in range(len(candidates)) if visible[c, k] and not positives[c, k]]
        if bank is not None:
            rest += [bank[k] @ anchor / temperature for k in range(len(bank)) if bank_visible[c, k]]
        for i in np.flatnonzero(positives[c]):
            others = [scores[i]] if exclude else list(scores[positives[c]])
            losses.append(-scores[i] + np.log(np.sum(np.exp(others + rest))))
            hits.append(all(scores[i] > score for score in rest))
    return (np.mean(losses), np.mean(hits)) if losses else (0.0, 0.0)


# Who is whose context
def test_context_is_the_window_of_a_document_from_whichever_pair():
    # Document 1: sentences 0 1 2 5; document 2: 1 3.
    rows = rows_of([1, 1, 1, 1, 2, 2], [0, 1, 2, 5, 1, 3])
    positives, visible = pairs(rows, window_sentences=2)
    np.testing.assert_array_equal(positives, matrix("011000 101000 110000 000000 000001 000010"))
    np.testing.assert_array_equal(visible, matrix("011011 101011 110011 000011 111101 111110"))
    _, visible = pairs(rows, window_sentences=2, mask_same_document=False)
    np.testing.assert_array_equal(visible, ~np.eye(6, dtype=bool))
    positives, _ = pairs(rows, window_sentences=1)
    np.testing.assert_array_equal(positives, matrix("010000 101000 010000 000000 000000 000000"))


def test_the_same_sentence_in_another_row_is_neither_context_nor_negative():
    rows = rows_of([1, 1, 1, 2], [3, 4, 3, 0])
    positives, visible = pairs(rows, mask_same_document=False)
    np.testing.assert_array_equal(positives, matrix("0100 1010 0100 0000"))
    np.testing.assert_array_equal(visible, matrix("0101 1011 0101 1110"))
    keyed = rows_of([1, 1, 2, 3], [3, 4, 0, 0], keys=[7, 8, 7, -1])
    positives, visible = pairs(keyed)
    np.testing.assert_array_equal(positives, matrix("0100 1000 0000 0000"))
    np.testing.assert_array_equal(visible, matrix("0101 1001 0101 1110"))  # the third row has the text of a context
    unknown = rows_of([1, 1, 2, 3], [3, 4, 0, 0], keys=[-1] * 4)
    np.testing.assert_array_equal(pairs(unknown)[1], ~np.eye(4, dtype=bool))


@pytest.mark.parametrize("negatives", ["all", "cross"])
@pytest.mark.parametrize("seed", range(4))
def test_no_negative_has_the_text_of_a_context(seed, negatives):
    """Whatever repeats: by a plain loop."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(-1, 6, 16)
    rows = rows_of(*rng.integers(0, 5, (2, 16)).tolist(), keys=keys.tolist())
    positives, visible = pairs(rows, negatives=negatives)
    _, before = pairs({name: rows[name] for name in rows if name != "sentence_keys"}, negatives=negatives)
    hidden = 0
    for i in range(16):
        own = {keys[i], *keys[positives[i]]} - {-1}
        for k in range(16):
            repeats = keys[k] in own and not positives[i, k]
            assert visible[i, k] == (before[i, k] and not repeats)
            hidden += before[i, k] and repeats and keys[k] != keys[i]
    assert hidden > 0


def test_languages_and_rows_that_take_no_part_are_kept_apart():
    rows = rows_of([1, 1, 2, 2, 2], [0, 1, 0, 1, 2], languages=[0, 0, 1, 1, 1], sides=[0, 1, 0, 1, -1])
    positives, visible = pairs(rows)
    np.testing.assert_array_equal(positives, matrix("01000 10000 00010 00100 00000"))
    np.testing.assert_array_equal(visible, positives)


def test_cross_compares_with_the_other_side_alone():
    rows = rows_of([1, 1, 2, 2, 1, 1], [0, 1, 0, 1, 2, 3])
    positives, visible = pairs(rows, negatives="cross")
    np.testing.assert_array_equal(positives, matrix("010000 100010 000100 001000 010001 000010"))
    np.testing.assert_array_equal(visible, matrix("010100 101010 010101 101010 010101 001010"))
    with pytest.raises(ValueError, match="`negatives`.*'some'"):
        context_pairs(rows, negatives="some")


@pytest.mark.parametrize("negatives", ["all", "cross"])
def test_parts_of_a_batch_are_the_rows_of_the_whole(negatives):
    rng = np.random.default_rng(0)
    rows = rows_of(*rng.integers(0, 4, (2, 12)).tolist(), keys=rng.integers(-1, 4, 12).tolist())
    whole = pairs(rows, negatives=negatives)
    for start, stop in ((0, 5), (5, 12), (12, 12)):
        part = {name: values[start:stop] for name, values in rows.items()}
        found = context_pairs(part, rows, start, negatives=negatives)
        for a, b in zip(found, whole, strict=True):
            np.testing.assert_array_equal(to_numpy(a), b[start:stop])


# The loss
def test_hand_values():
    """Two pairs of unit vectors at right angles, temperature 1."""
    z = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], "float32")
    positives, visible = pairs(rows_of([1, 1, 2, 2], [0, 1, 0, 1]))
    loss, accuracy = context_loss(z, z, positives, visible, 1.0)
    assert float(loss) == pytest.approx(np.log(np.e + 2) - 1, abs=1e-6) and float(accuracy) == 1
    bank = np.array([[0, 1], [0, -1], [-1, 0]], "float32")
    seen = matrix("100 010 000 001")  # scores 0, 0, none, 0
    loss, _ = context_loss(z, z, positives, visible, 1.0, bank, seen)
    assert float(loss) == pytest.approx((3 * np.log(np.e + 3) + np.log(np.e + 2)) / 4 - 1, abs=1e-6)
    with_tie = np.array([[1, 0]], "float32")
    _, accuracy = context_loss(z, z, positives, visible, 1.0, with_tie)
    assert float(accuracy) == 0.5


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("negatives", ["all", "cross"])
@pytest.mark.parametrize("with_bank", [False, True])
def test_equals_a_loop(with_bank, negatives, exclude, similarity):
    rng = np.random.default_rng(4)
    rows = rows_of(*rng.integers(0, 4, (2, 12)).tolist())
    positives, visible = pairs(rows, negatives=negatives)
    assert positives.sum(1).max() > 1 and positives.sum(1).min() == 0
    z = vectors_of(12)
    bank = bank_visible = None
    if with_bank:
        bank, bank_visible = vectors_of(7, 1), rng.random((12, 7)) < 0.6
        bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    want = loop(z, z, positives, visible, 0.3, bank, bank_visible, exclude, similarity == "dot")
    found = context_loss(z, z, positives, visible, 0.3, bank, bank_visible, exclude, similarity)
    np.testing.assert_allclose([float(x) for x in found], want, rtol=1e-5)


def test_parts_add_up_to_the_whole_in_value_and_gradient():
    rng = np.random.default_rng(5)
    rows = rows_of(*rng.integers(0, 4, (2, 10)).tolist())
    positives, visible = pairs(rows)
    z, total = vectors_of(10), np.float32(positives.sum())

    def whole(z):
        return context_loss(z, z, positives, visible)[0]

    def in_parts(z):
        parts = [slice(0, 3), slice(3, 10)]
        return sum(context_loss(z[p], z, positives[p], visible[p], normalizer=total)[0] for p in parts)

    (a, (da,)), (b, (db,)) = value_and_gradients(whole, [z]), value_and_gradients(in_parts, [z])
    np.testing.assert_allclose(b, a, rtol=1e-5)
    np.testing.assert_allclose(db, da, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exclude", [False, True])
def test_gradient_equals_finite_differences(exclude):
    rows = rows_of([1, 1, 1, 2, 2, 3], [0, 1, 2, 0, 1, 0])
    positives, visible = pairs(rows)
    z, bank = vectors_of(6), vectors_of(4, 1) / 3

    def value(z):
        return context_loss(z, z, positives, visible, 0.5, bank, exclude_positives=exclude)[0]

    _, (gradient,) = value_and_gradients(value, [z])
    seen = np.ones((6, 4), bool)
    for place in np.ndindex(z.shape):
        ends = []
        for step in (1e-4, -1e-4):
            moved = z.astype("float64")
            moved[place] += step
            ends.append(loop(moved, moved, positives, visible, 0.5, bank, seen, exclude)[0])
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)


def test_a_single_positive_each_is_the_contrastive_loss():
    positives, visible = pairs(rows_of([1, 1, 2, 2, 3, 3], [0, 1] * 3))
    z = vectors_of(6)
    partners = np.array([1, 0, 3, 2, 5, 4], "int32")
    want = contrastive_loss(z, z, 0.1, partners, np.eye(6, dtype=bool))
    for exclude in (False, True):
        found = context_loss(z, z, positives, visible, 0.1, exclude_positives=exclude)
        np.testing.assert_allclose([float(x) for x in found], [float(x) for x in want], rtol=1e-5)


@pytest.mark.parametrize("exclude", [False, True])
def test_nothing_to_tell_apart_is_zero_and_finite(exclude):
    """No positives at all; a pair without negatives; rows of zeros; no rows."""
    nothing = np.zeros((4, 4), bool)

    def value(z, positives=nothing, visible=nothing):
        bank = np.zeros((3, 5), "float32")
        return context_loss(z, z, positives, visible, 0.1, bank, np.zeros((4, 3), bool), exclude)[0]

    loss, (gradient,) = value_and_gradients(value, [vectors_of(4)])
    assert loss == 0 and (gradient == 0).all()
    pair = matrix("0100 1000 0000 0000")
    loss, (gradient,) = value_and_gradients(lambda z: value(z, pair, pair), [vectors_of(4)])
    assert loss == pytest.approx(0, abs=1e-6) and np.abs(gradient).max() < 1e-6
    _, (gradient,) = value_and_gradients(lambda z: value(z, pair, ~np.eye(4, dtype=bool)), [np.zeros((4, 5), "f4")])
    assert np.isfinite(gradient).all()
    if keras.backend.backend() == "torch":
        return  # no replica has no rows there
    no_rows = np.zeros((0, 4), bool)
    loss, accuracy = context_loss(vectors_of(0), vectors_of(4), no_rows, no_rows, exclude_positives=exclude)
    assert float(loss) == 0 and float(accuracy) == 0


def test_half_precision_is_computed_in_float32():
    positives, visible = pairs(rows_of([1, 1, 2, 2], [0, 1, 0, 1]))
    z = vectors_of(4)
    half = ops.cast(ops.convert_to_tensor(z), "float16")
    loss, _ = context_loss(half, half, positives, visible, 0.001)
    want = loop(*[to_numpy(half)] * 2, positives, visible, 0.001)[0]
    assert keras.backend.standardize_dtype(loss.dtype) == "float32" and float(loss) == pytest.approx(want, rel=1e-4)


def test_unknown_similarity_is_named():
    nothing = np.zeros((2, 2), bool)
    with pytest.raises(ValueError, match="`similarity`.*'l2'"):
        context_loss(vectors_of(2), vectors_of(2), nothing, nothing, similarity="l2")
