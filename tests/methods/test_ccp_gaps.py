"""The gaps of CCP by hand, from the arrays of head and bank; and that measuring them changes nothing."""

import functools
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `mirrored_ccp` is a program and a module of the tests
import keras
import mirrored_ccp as toy
import numpy as np
import pytest

from simretro.methods import ccp_gaps
from tests.reference.harness import to_numpy
from tests.test_losses_context import loop, pairs

pytestmark = pytest.mark.backends
ROWS = ("document_ids", "sentence_positions", "language_ids", "sides", "sentence_keys")


def context_batch(seed, num_pairs=4, **options):
    """Other than in the toy's, the same sentence has the same tokens."""
    batch = toy.context_batch(seed, num_pairs, **options)
    for i, key in enumerate(batch["sentence_keys"]):
        batch["token_ids"][i] = toy.token_rows(np.random.default_rng(key), 1, 16)[0]
    return {**batch, "encoder_token_ids": batch["token_ids"]}


@functools.cache
def trained(learning_rate=0.0, steps=3, **options):
    """A model that has seen some batches, the last of which are in its bank; tests share it and leave it as it is."""
    ccp = toy.make_ccp(learning_rate, **{"bank_size": 16, **options})
    ccp.run_eagerly = keras.backend.backend() == "tensorflow"
    for step in range(steps):
        ccp.train_on_batch(context_batch(step, num_pairs=5))
    return ccp


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def hidden_of(ccp, batch):
    """What the head normalises, without Keras' layers of the head."""
    token_ids = batch["token_ids"]
    states = to_numpy(ccp.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)})["sequence"])
    return states[:, 0] @ to_numpy(ccp.head.hidden.kernel)


def heads_of(ccp, batch, groups):
    """(running, in batch) vectors; the rows of a group have that group's own statistics."""
    hidden, norm = hidden_of(ccp, batch), ccp.head.norm.layer
    running = (hidden - to_numpy(norm.moving_mean)) / np.sqrt(to_numpy(norm.moving_variance) + 1e-5)
    in_batch = hidden.copy()
    for rows in groups:
        in_batch[rows] = (hidden[rows] - hidden[rows].mean(0)) / np.sqrt(hidden[rows].var(0) + 1e-5)
    kernel, bias = to_numpy(ccp.head.projection.kernel), to_numpy(ccp.head.projection.bias)
    scaled = (x * to_numpy(norm.gamma) + to_numpy(norm.beta) for x in (running, in_batch))
    return [np.maximum(x, 0) @ kernel + bias for x in scaled]


@pytest.mark.parametrize("batch_norm", ["alternating", "plain"])
def test_modes(batch_norm):
    ccp, batch = trained(batch_norm=batch_norm), context_batch(7, num_pairs=6)
    sides = batch["sides"]
    groups = [sides == 0, sides == 1] if batch_norm == "alternating" else [sides >= 0]
    running, in_batch = heads_of(ccp, batch, groups)
    positives, visible = pairs({name: batch[name] for name in ROWS})
    bank = np.zeros((0, 8)), np.zeros((12, 0), bool)
    losses = [loop(z, z, positives, visible, 0.1, *bank)[0] for z in (running, in_batch)]
    found = ccp_gaps(ccp, [batch])
    assert found["mode_gap"] == pytest.approx(losses[0] - losses[1], abs=1e-3)
    assert found["mode_distance"] == pytest.approx(1 - (unit(running) * unit(in_batch)).sum(1).mean(), abs=1e-5)
    assert found["mode_distance"] > 0.01


def test_no_gap_where_the_statistics_are_the_batch_s():
    ccp, batch = trained(batch_norm="plain", bank_size=0), context_batch(7)
    hidden = hidden_of(ccp, batch)
    ccp.head.norm.layer.moving_mean.assign(hidden.mean(0))
    ccp.head.norm.layer.moving_variance.assign(hidden.var(0))
    assert ccp_gaps(ccp, [batch]) == pytest.approx({"mode_gap": 0, "mode_distance": 0}, abs=1e-4)


@pytest.mark.parametrize("steps", [2, 3])  # in the next step the centres, the contexts have their batch's statistics
def test_bank_gap(steps):
    ccp, batch = trained(steps=steps), context_batch(7, num_pairs=6)
    sides = batch["sides"]
    running, in_batch = heads_of(ccp, batch, [sides == 0, sides == 1])
    vectors = unit(np.where((sides == steps % 2)[:, None], in_batch, running))
    positives, visible = pairs({name: batch[name] for name in ROWS})
    count = 5 * steps
    bank_vectors, documents = (to_numpy(x)[:count] for x in (ccp.bank.bank_vectors, ccp.bank.bank_document_ids))
    keys, documents_now = to_numpy(ccp.bank.bank_sentence_keys)[:count], batch["document_ids"]
    new = np.flatnonzero(~np.isin(keys, batch["sentence_keys"]))  # texts of the batch are no negatives
    gaps = []
    for i in range(12):
        within = [vectors[i] @ vectors[k] for k in range(12) if visible[i, k] and not positives[i, k]]
        beyond = [vectors[i] @ bank_vectors[k] for k in range(count) if k in new and documents[k] != documents_now[i]]
        if within and beyond:
            gaps.append(np.mean(within) - np.mean(beyond))
    assert 0 < len(gaps) <= 12
    assert ccp_gaps(ccp, [batch])["bank_gap"] == pytest.approx(np.mean(gaps), abs=1e-5)


def test_bank_drift():
    """Nothing learnt and nothing normalised: the bank has what the model gives. Trained, it has what it gave."""
    last = context_batch(2, num_pairs=5)
    still, moved = (trained(rate, batch_norm=None) for rate in (0.0, 0.5))
    found = ccp_gaps(still, [last])
    assert found.keys() == {"bank_gap", "bank_drift"} and found["bank_drift"] == pytest.approx(0, abs=1e-6)
    assert ccp_gaps(moved, [last])["bank_drift"] > 1e-3
    new = context_batch(2, num_pairs=5, documents=range(50, 55))
    assert math.isnan(ccp_gaps(still, [new])["bank_drift"])
    both = ccp_gaps(moved, [last, new, toy.mlm_batch(4)])
    assert both["bank_drift"] == ccp_gaps(moved, [last])["bank_drift"]


def test_means_are_over_the_pairs_of_all_batches():
    ccp, batches = trained(), [context_batch(7, num_pairs=6), context_batch(8, num_pairs=3)]
    counts = [pairs({name: batch[name] for name in ROWS})[0].sum() for batch in batches]
    single = [ccp_gaps(ccp, [batch])["mode_gap"] for batch in batches]
    assert ccp_gaps(ccp, batches)["mode_gap"] == pytest.approx(np.average(single, weights=counts))


def test_nothing_changes():
    ccp = trained()
    before = {v.path: to_numpy(v).copy() for v in ccp.variables}
    ccp_gaps(ccp, [context_batch(7, language=1), context_batch(8)])
    assert all(np.array_equal(to_numpy(v), before[v.path]) for v in ccp.variables)


def test_refusals():
    ccp = toy.make_ccp()
    with pytest.raises(ValueError, match="`batches` must hold pairs"):
        ccp_gaps(ccp, [toy.mlm_batch(0)])
    with pytest.raises(ValueError, match="lacks `sides`"):
        ccp_gaps(ccp, [{"token_ids": np.zeros((2, 4), "int32")}])
