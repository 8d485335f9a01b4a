from types import SimpleNamespace

import numpy as np
import pytest
from training_toy import BATCHES, ROWS, Batches, build, fit

from simretro.training import TerminateOnNonFinite, Throughput, TrainingCheckpoint, callbacks


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
    history = fit(build(run_eagerly=True), Batches(), callbacks=[Throughput(ROWS)], epochs=1)
    # Half a second each; the 200 seconds of the first step and the time between steps are left out.
    assert history.history["rows_per_second"] == [2 * ROWS]


def test_throughput_in_other_units():
    logs = {}
    for callback in (Throughput(), Throughput(640, unit="tokens")):
        callback._steps, callback._seconds = 3, 2.0
        callback.on_epoch_end(0, logs)
    assert logs == {"steps_per_second": 1.5, "tokens_per_second": 960.0}
