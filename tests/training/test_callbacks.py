from types import SimpleNamespace

import keras
import numpy as np
import pytest
from training_toy import BATCHES, ROWS, Batches, build, fit

from simretro.training import (
    LearningRate,
    PiecewiseLinear,
    TerminateOnNonFinite,
    Throughput,
    TrainingCheckpoint,
    callbacks,
    mean_tokens_per_step,
)


class Poisoned(Batches):
    """One batch of one epoch has a target that is no number."""

    def __init__(self, epoch, index, value=np.nan):
        super().__init__()
        self.where, self.value = (epoch, index), value

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        if (self.epoch, self.first + index) == self.where:
            y[0] = self.value
        return x, y


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_training_ends_at_the_first_step_with_a_broken_loss(value):
    model = build(run_eagerly=True)
    message = r"`loss` became (nan|inf) in epoch 2, batch 3 \(update 7\).*`learning_rate`"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, Poisoned(1, 2, value), callbacks=[TerminateOnNonFinite()])
    assert int(model.optimizer.iterations) == BATCHES + 3


def test_error_names_the_last_good_checkpoint(tmp_path):
    data = Poisoned(1, 3)
    checkpoint = TrainingCheckpoint(tmp_path, data)
    with pytest.raises(FloatingPointError, match=r"last good checkpoint is kept: .*step-00000004"):
        fit(build(run_eagerly=True), data, checkpoint, [TerminateOnNonFinite(checkpoint)])


def test_broken_validation_counts():
    broken = (np.ones((ROWS, 4), "float32"), np.full((ROWS, 1), np.nan, "float32"))
    with pytest.raises(FloatingPointError, match=r"`val_loss` became nan at the end of epoch 1"):
        fit(build(run_eagerly=True), Batches(), callbacks=[TerminateOnNonFinite()], validation_data=broken)


def test_other_metrics_may_be_undefined():
    assert callbacks.non_finite_loss({"accuracy": float("nan"), "loss": 1.0, "lossless": float("inf")}) is None
    assert callbacks.non_finite_loss({"loss": 1.0, "similarity_loss": float("-inf")})[0] == "similarity_loss"


def test_throughput_leaves_the_first_step_out(monkeypatch):
    now = iter([0.0, *(time for step in range(BATCHES - 1) for time in (200.0 + step, 200.5 + step))])
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    history = fit(build(run_eagerly=True), Batches(), callbacks=[Throughput(ROWS, 100.5)], epochs=1).history
    # Half a second each; the 200 seconds of the first step and the time between steps are left out.
    assert [history[f"{unit}_per_s"] for unit in ("steps", "rows", "tokens")] == [[2], [2 * ROWS], [201]]


def test_throughput_logs_what_it_is_told_of():
    logs, throughput = {}, Throughput(tokens_per_step=640)
    throughput._steps, throughput._seconds = 3, 2.0
    throughput.on_epoch_end(0, logs)
    assert logs == {"steps_per_s": 1.5, "tokens_per_s": 960.0}


class Texts(keras.utils.PyDataset):
    """Batch i has i tokens and some padding."""

    num_batches = 32

    def __getitem__(self, index):
        assert 0 <= index < 32
        return {"token_ids": np.repeat([7, 1], [index, 5]).reshape(1, -1)}


def test_tokens_of_a_step():
    assert mean_tokens_per_step(Texts(), pad_token_id=1, num_batches=32) == 15.5
    assert mean_tokens_per_step(Texts(), pad_token_id=1, num_batches=1000) == 15.5
    assert abs(mean_tokens_per_step(Texts(), pad_token_id=1) - 15.5) <= 1
    assert mean_tokens_per_step(Texts(), pad_token_id=0, num_batches=1) == 5


@pytest.mark.parametrize("scaled", [False, True])
def test_learning_rate_is_that_of_the_last_update(scaled):
    model = build()
    optimizer = keras.optimizers.SGD(PiecewiseLinear(0.4, {0: 0, BATCHES: 1, 2 * BATCHES: 0}))
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse", run_eagerly=True)
    seen = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["learning_rate"]))
    history = fit(model, Batches(), callbacks=[LearningRate(), look], epochs=2)
    np.testing.assert_allclose(seen, [0, 0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1], atol=1e-7)
    np.testing.assert_allclose(history.history["learning_rate"], [0.3, 0.1], atol=1e-7)
