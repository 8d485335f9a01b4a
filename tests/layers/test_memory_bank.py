"""The memory bank against deques: what is kept, who sees it, and that it is state."""

from collections import deque

import keras
import numpy as np
import pytest
from keras import ops

from simretro.layers import MemoryBank
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends


def bank_of(bank_size=10, dimension=4, **options):
    bank = MemoryBank(bank_size, dimension, **options)
    bank.build()
    return bank


def vectors_of(rows, seed=0, dimension=4):
    return np.random.default_rng(seed).normal(0, 2, (rows, dimension)).astype("float32")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def ids(*values):
    return np.array(values, "int32")


def seen(bank, language, document=-7, key=-1):
    """The vectors that one anchor sees, as a sorted list of rows."""
    vectors, visible = bank(ids(language), ids(document), ids(key))
    rows = to_numpy(vectors)[to_numpy(visible)[0]]
    return sorted(map(tuple, rows.round(5).tolist()))


def listed(rows):
    return sorted(map(tuple, np.array(rows, "float32").reshape(-1, 4).round(5).tolist()))


@pytest.mark.parametrize("sizes", [(4, 4, 3), (10, 1), (3, 25, 2), (7, 7, 7, 7), (0, 5)])
@pytest.mark.parametrize("kind", ["per_language", "tagged", "shared"])
def test_equals_a_deque(kind, sizes):
    """Short batches, writes across the end, and batches larger than the bank."""
    bank, want = bank_of(kind=kind), deque(maxlen=10)
    for seed, size in enumerate(sizes):
        vectors = vectors_of(size, seed)
        bank.enqueue(vectors, np.zeros(size, "int32"), np.arange(size, dtype="int32"))
        want.extend(unit(vectors))
        assert seen(bank, 0) == listed(list(want))
    assert to_numpy(bank.bank_filled) == [min(sum(sizes), 10)]
    assert to_numpy(bank.bank_pointer) == [sum(sizes) % 10]


def test_languages_have_rings_of_their_own_also_from_a_mixed_batch():
    rng = np.random.default_rng(3)
    bank, want = bank_of(5, num_languages=3), [deque(maxlen=5) for _ in range(3)]
    for seed in range(6):
        size = int(rng.integers(1, 14))
        vectors, languages = vectors_of(size, seed), rng.integers(0, 3, size).astype("int32")
        accepted = rng.random(size) < 0.7
        bank.enqueue(vectors, languages, languages, accepted=accepted)
        for vector, language in zip(unit(vectors[accepted]), languages[accepted], strict=True):
            want[language].append(vector)
        for language in range(3):
            assert seen(bank, language) == listed(list(want[language]))
    assert to_numpy(bank.bank_filled).tolist() == [len(ring) for ring in want]


def test_one_ring_for_all_languages_by_tag_or_by_none():
    vectors = vectors_of(6)
    for kind in ("tagged", "shared"):
        bank = bank_of(5, num_languages=2, kind=kind)
        bank.enqueue(vectors, ids(0, 1, 0, 1, 1, 0), np.arange(6, dtype="int32"))
        kept = unit(vectors)
        want = {"tagged": kept[[1, 3, 4]], "shared": kept[1:]}[kind]
        assert seen(bank, 1) == listed(want)


def test_rows_of_another_language_of_a_batch_see_none_of_its_ring():
    bank = bank_of(4, num_languages=2)
    bank.enqueue(vectors_of(4), ids(0, 0, 1, 1), ids(1, 2, 3, 4))
    _, visible = bank(ids(1, 0, -1), ids(9, 9, 9))
    assert to_numpy(visible).tolist() == [[True, True, False, False], [False] * 4, [False] * 4]


def test_rows_of_unknown_languages_are_not_kept():
    bank = bank_of(3, num_languages=2)
    bank.enqueue(vectors_of(3), ids(0, -1, 2), ids(1, 2, 3))
    assert to_numpy(bank.bank_filled).tolist() == [1, 0]


@pytest.mark.parametrize("masked", [True, False])
def test_own_document_and_own_text_are_not_seen(masked):
    bank, vectors = bank_of(6, mask_same_document=masked), vectors_of(4)
    bank.enqueue(vectors, ids(0, 0, 0, 0), ids(5, 6, 5, 7), ids(-1, 11, 12, 13))
    rows = unit(vectors)
    assert seen(bank, 0, document=5) == listed(rows[[1, 3]] if masked else rows)
    assert seen(bank, 0, document=9, key=12) == listed(rows[[0, 1, 3]])
    assert seen(bank, 0, document=9, key=-1) == listed(rows)


def test_texts_of_the_batch_are_seen_by_none_of_its_rows():
    bank = bank_of(6, mask_same_document=False)
    bank.enqueue(vectors_of(4), ids(0, 0, 0, 0), ids(5, 6, 5, 7), ids(-1, 11, 12, 13))
    _, visible = bank(ids(0, 0), ids(8, 9), ids(12, -1, 11, 40))  # of four rows two are another device's
    assert to_numpy(visible).tolist() == [[True, False, False, True, False, False]] * 2


def test_stored_vectors_have_length_one_unless_told_otherwise():
    vectors = 5 * unit(vectors_of(3))
    for normalized in (True, False):
        bank = bank_of(4, normalized=normalized)
        bank.enqueue(vectors, ids(0, 0, 0), ids(1, 2, 3))
        lengths = np.linalg.norm(to_numpy(bank.bank_vectors)[:3], axis=1)
        np.testing.assert_allclose(lengths, 1 if normalized else 5, rtol=1e-5)


def test_no_gradient_flows_into_it():
    bank = bank_of()
    assert bank.trainable_variables == []
    bank.enqueue(vectors_of(2), ids(0, 0), ids(1, 2))

    def product(x):
        vectors, _ = bank(ids(0, 0), ids(8, 9))
        # Written within the differentiation, as a training step does.
        bank.enqueue(x, ids(0, 0), ids(3, 4))
        return ops.sum(ops.matmul(x, ops.transpose(vectors)))

    x = vectors_of(2, 1)
    _, (gradient,) = value_and_gradients(product, [x])
    rows = unit(vectors_of(2)).sum(0)
    np.testing.assert_allclose(gradient, np.tile(rows, (2, 1)), rtol=1e-5)


def test_settings_come_back():
    bank = MemoryBank(7, 3, 2, "tagged", False, False)
    again = MemoryBank.from_config(bank.get_config())
    names = ("bank_size", "dimension", "num_languages", "kind", "normalized", "mask_same_document")
    assert [getattr(again, name) for name in names] == [7, 3, 2, "tagged", False, False]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="compiles with TensorFlow")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_writing_and_reading(jit_compile):
    import tensorflow as tf

    bank, want = bank_of(5, num_languages=2), deque(maxlen=5)

    @tf.function(jit_compile=jit_compile)
    def step(vectors, languages, documents):
        before, _ = bank(languages, documents)
        bank.enqueue(vectors, languages, documents)
        return before

    for seed in range(3):
        vectors = vectors_of(3, seed)
        before = step(*map(tf.constant, (vectors, ids(1, 1, 1), ids(0, 1, 2))))
        rows = to_numpy(before)
        assert listed(rows[: len(want)]) == listed(list(want)), "what is read is what was there before"
        want.extend(unit(vectors))
    assert seen(bank, 1) == listed(list(want)) and seen(bank, 0) == []


@pytest.mark.parametrize("name, value", [("bank_size", 0), ("dimension", 0), ("num_languages", 0), ("kind", "lifo")])
def test_bad_value_is_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
        MemoryBank(**{"bank_size": 4, "dimension": 4, name: value})
