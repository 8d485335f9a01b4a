"""Public reports about contrastive pre-training with a bank and batch normalization, each as a test of its kind.

C1 anchors without a positive, C2 the last smaller batch, C3 the empty bank, C4 lengths in the bank, C5 the own positive
as a negative, C6 the own document in the bank, C7 sides of one device, C8 running statistics, C9 state that is traced.
"""

import sys
from collections import deque
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

sys.path.insert(0, str(Path(__file__).parent / "methods"))  # `mirrored_ccp` is a program and a module of the tests
import mirrored_ccp as toy

from simretro.layers import AlternatingBatchNormalization, MemoryBank
from simretro.losses import context_loss, context_pairs
from simretro.training import TrainingCheckpoint
from tests.reference.harness import to_numpy, value_and_gradients

pytestmark = pytest.mark.backends
BACKEND = keras.backend.backend()


def vectors_of(rows, width=6, seed=0):
    return np.random.default_rng(seed).normal(0, 1, (rows, width)).astype("float32")


def ccp_of(**options):
    ccp = toy.make_ccp(**options)
    ccp.run_eagerly = BACKEND == "tensorflow"
    return ccp


def run(ccp, batch):
    ccp.reset_metrics()
    return ccp.train_on_batch(batch, return_dict=True)


def pairs_of(batch):
    names = ("document_ids", "sentence_positions", "language_ids", "sides", "sentence_keys")
    return tuple(map(to_numpy, context_pairs({name: batch[name] for name in names})))


# C1
def test_c1_anchors_without_a_positive_add_nothing():
    windows = np.array([0, 1, 1, 3], "int32")
    rows = {"document_ids": windows, "sentence_positions": np.arange(4), "language_ids": 0 * windows}
    rows["sides"] = np.array([0, 0, 1, 1])
    positives, visible = map(to_numpy, context_pairs(rows))
    assert positives.sum() == 2 and not positives[[0, 3]].any()
    z = vectors_of(4)

    def value(z):
        return context_loss(z, z, positives, visible)[0]

    loss, (gradient,) = value_and_gradients(value, [z])
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    scores = unit @ unit.T / 0.1
    np.fill_diagonal(scores, -np.inf)
    want = [np.log(np.exp(scores[c]).sum()) - scores[c, i] for c, i in ((1, 2), (2, 1))]
    assert loss == pytest.approx(np.mean(want), rel=1e-5) and np.isfinite(gradient).all()


# C2
def test_c2_short_batches_are_written_across_the_end():
    bank, want = MemoryBank(10, 6), deque(maxlen=10)
    bank.build()
    for seed, size in enumerate((4, 4, 3)):
        vectors = vectors_of(size, seed=seed)
        bank.enqueue(vectors, np.zeros(size, "int32"), np.arange(size))
        want.extend(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    stored = to_numpy(bank.bank_vectors)[:10]
    np.testing.assert_allclose(np.roll(stored, -1, axis=0), np.array(want), atol=1e-6)  # the oldest is in slot 1
    assert (to_numpy(bank.bank_filled), to_numpy(bank.bank_pointer)) == ([10], [1])


# C3
def test_c3_an_empty_bank_is_none():
    batch = toy.context_batch(0)
    logs = [run(ccp_of(bank_size=size), batch) for size in (0, 32768)]
    assert logs[0] == logs[1], "exactly, to the last bit"


# C4
def test_c4_what_is_stored_has_length_one():
    bank = MemoryBank(8, 6)
    bank.build()
    vectors = vectors_of(3)
    bank.enqueue(5 * vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.zeros(3, "int32"), np.arange(3))
    np.testing.assert_allclose(np.linalg.norm(to_numpy(bank.bank_vectors)[:3], axis=1), 1, atol=1e-6)
    ccp = ccp_of()
    run(ccp, toy.context_batch(0))
    np.testing.assert_allclose(np.linalg.norm(to_numpy(ccp.bank.bank_vectors)[:4], axis=1), 1, atol=1e-5)


# C5
def test_c5_a_row_is_no_negative_of_its_own_step():
    """The bank as the loss finds it is the one before the step, for both directions."""
    ccp, found = ccp_of(bank_size=8, mask_same_document=False, learning_rate=0.0), []
    read = ccp.bank.call

    def spy(*args):
        vectors, visible = read(*args)
        found.append((to_numpy(vectors), to_numpy(visible)))
        return vectors, visible

    if BACKEND == "jax":
        pytest.skip("a compiled step cannot be watched")
    ccp.bank.call = spy
    for seed in range(2):
        before = to_numpy(ccp.bank.bank_vectors)[:8].copy()
        run(ccp, toy.context_batch(seed, num_pairs=2))
        vectors, visible = found[-1]
        np.testing.assert_array_equal(vectors, before)
        now = to_numpy(ccp.bank.bank_vectors)[2 * seed : 2 * seed + 2]
        assert visible.any() == (seed > 0)
        seen = vectors[visible.any(0)]
        assert len(seen) == 2 * seed and not any(np.allclose(row, z) for row in seen for z in now)
    assert len(found) == 2, "it is read once a step"


# C6
def test_c6_the_own_document_in_the_bank():
    """Three documents, and a bank that holds the whole corpus several times: off, half of it are false negatives."""
    chances = {}
    for masked in (True, False):
        ccp = ccp_of(bank_size=64, mask_same_document=masked, learning_rate=0.0)
        for seed in range(6):
            batch = toy.context_batch(seed, num_pairs=3, documents=[0, 1, 2])
            batch["sentence_keys"] = -np.ones(6, "int32")
            chances[masked] = run(ccp, batch)["context_chance"]
        filled = int(to_numpy(ccp.bank.bank_filled)[0])
        _, visible = ccp.bank(batch["language_ids"], batch["document_ids"], batch["sentence_keys"])
        assert filled == 18 and to_numpy(visible).sum(1).tolist() == [12 if masked else 18] * 6
    assert chances[True] == pytest.approx(np.log(5 + 10), rel=1e-5)
    assert chances[False] == pytest.approx(np.log(5 + 15), rel=1e-5)


# C7
def test_c7_the_sides_have_different_statistics_on_one_device():
    """A batch and its permutation, which is what shuffling leaves of batch normalization on one device."""
    x, sides = 3 + vectors_of(8, 4), np.tile([0, 1], 4).astype("int32")
    order = np.random.default_rng(1).permutation(8)

    def outputs(order):
        layer = AlternatingBatchNormalization()
        layer.build((None, 4))
        y = to_numpy(layer(x[order], sides[order], training=True))
        assert int(layer.updates) == 1
        return y[np.argsort(order)], to_numpy(layer.layer.moving_mean)

    (y, mean), (shuffled, other_mean) = outputs(np.arange(8)), outputs(order)
    np.testing.assert_allclose(shuffled, y, atol=1e-4)
    np.testing.assert_allclose(other_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(y[sides == 0].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(y[sides == 1], x[sides == 1] / np.sqrt(1 + 1e-5), rtol=1e-5)


# C8
def test_c8_running_statistics_are_updated_once_a_step():
    """The head's first layer gives 5 for every input: mean 5 (1 - 0.9^k) after k updates."""
    ccp = ccp_of(learning_rate=0.0, warmup_updates=0)
    ccp.head.hidden.call = lambda x, training=None: ops.zeros_like(x) + 5.0
    norm = ccp.head.norm
    for k in range(1, 4):
        run(ccp, toy.context_batch(k))
        for _ in range(2):
            np.testing.assert_allclose(to_numpy(norm.layer.moving_mean), 5 * (1 - 0.9**k), rtol=1e-5)
            assert int(norm.updates) == k
            ccp.evaluate(toy.context_batch(9), batch_size=8, verbose=0)
            ccp.predict(toy.context_batch(9), batch_size=8, verbose=0)
            run(ccp, toy.mlm_batch(9))


# C9
class Phases(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(int(to_numpy(self.model.head.norm.phase)))


@pytest.mark.skipif(BACKEND == "torch", reason="Keras compiles nothing on torch")
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"jit_compile": True}, marks=pytest.mark.slow), {"steps_per_execution": 2}]
)
def test_c9_the_phase_is_no_constant_of_a_trace(options, tmp_path):
    class Contexts(toy.Batches):
        def _make_batch(self, plan, epoch, index):
            return toy.context_batch(10 * epoch + index, width=32 if index == 0 else 16, filler=4 * (index == 0))

    phases = []
    for epochs in (1, 2):
        ccp, data, watch = toy.make_ccp(), Contexts(5), Phases()
        ccp.compile(keras.optimizers.SGD(0.01), **options)
        checkpoint = TrainingCheckpoint(tmp_path / "checkpoints", data)
        first = checkpoint.restore(ccp)
        ccp.fit(data, epochs=epochs, initial_epoch=first, callbacks=[checkpoint, watch], verbose=0)
        phases += watch.seen
    # After 1, 2, ... steps; in executions of two steps after 2, 4, 5. Five steps leave 1, from which it goes on.
    assert phases == ([0, 0, 1, 1, 1, 0] if "steps_per_execution" in options else [1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
