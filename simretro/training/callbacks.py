"""Callbacks of any training: stop at the first loss that is no number, measure the speed."""

import math
import time

import keras

from simretro.training.state import updates_done


def non_finite_loss(logs: dict | None) -> tuple[str, float] | None:
    """(name, value) of the first loss in `logs` that is NaN or infinite; losses are named "loss" or "..._loss"."""
    for name, value in (logs or {}).items():
        if (name == "loss" or name.endswith("_loss")) and not math.isfinite(value):
            return name, value
    return None


def divergence_error(what: str, where: str, last_good: object = None) -> FloatingPointError:
    """The error of a training that has run into NaN or infinity: what, where, what to do."""
    if last_good is None:
        advice = "No checkpoint is known to go on from. Start again with"
    else:
        advice = f"The last good checkpoint is kept: {last_good}. Go on from it (`TrainingCheckpoint.restore`) with"
    return FloatingPointError(
        f"{what} {where}. {advice} a lower `learning_rate`, more `warmup_steps` or gradient clipping; under "
        '"mixed_float16" try "mixed_bfloat16"; and look for empty batches or texts in the data.'
    )


class TerminateOnNonFinite(keras.callbacks.Callback):
    """Ends `fit` with an error at the step whose loss is NaN or infinite.

    All losses in the logs count (`loss` and what ends in `_loss`), also those of the validation. Keras logs running
    means, in which a NaN stays until the end of the epoch, so the step that is named is the one that brought it.
    Unlike `keras.callbacks.TerminateOnNaN` it raises: nothing runs on and saves or averages broken weights.

    Args:
        checkpoint: `TrainingCheckpoint` of the same run or None; the error then names the last good checkpoint.
    Raises: FloatingPointError from `fit`.
    """

    def __init__(self, checkpoint=None):
        super().__init__()
        self.checkpoint = checkpoint
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._check(logs, f"in epoch {self._epoch + 1}, batch {batch + 1}")

    def on_epoch_end(self, epoch, logs=None):
        self._check(logs, f"at the end of epoch {epoch + 1}")

    def _check(self, logs, where):
        found = non_finite_loss(logs)
        if found is not None:
            name, value = found
            where = f"{where} (update {updates_done(self.model.optimizer)})"
            last_good = None if self.checkpoint is None else self.checkpoint.latest
            raise divergence_error(f"`{name}` became {value}", where, last_good)


class Throughput(keras.callbacks.Callback):
    """Adds the training speed to the logs, where the progress bar and the history show it.

    The mean over the epoch so far without its first step, which traces or compiles; validation and checkpoints
    do not count. Put it before callbacks that read the logs.

    Args:
        rows_per_step: int; the logs get `rows_per_second`. None: `steps_per_second`.
        unit: str, what a row is: "tokens" gives `tokens_per_second`. Default "rows".
    """

    def __init__(self, rows_per_step: int | None = None, unit: str = "rows"):
        super().__init__()
        self.rows_per_step = 1 if rows_per_step is None else rows_per_step
        self.name = f"{'steps' if rows_per_step is None else unit}_per_second"
        self._start = self._seconds = 0.0
        self._steps = 0
        self._last_batch = None

    def on_epoch_begin(self, epoch, logs=None):
        self._seconds, self._steps, self._last_batch = 0.0, 0, None

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self._last_batch is not None:
            self._seconds += time.perf_counter() - self._start
            self._steps += batch - self._last_batch  # more than 1 under `steps_per_execution`
        self._last_batch = batch
        self._log(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._log(logs)

    def _log(self, logs):
        if logs is not None and self._seconds > 0:
            logs[self.name] = self._steps * self.rows_per_step / self._seconds
