"""Callbacks of any training: stop at the first loss that is no number, show speed and learning rate."""

import math
import time

import keras
import numpy as np

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
    """Adds the training speed to the logs, where the progress bar and the history show it: `steps_per_s` and more.

    The mean over the epoch so far without its first step, which traces or compiles; validation and checkpoints
    do not count. Put it before callbacks that read the logs.

    Args:
        rows_per_step: int; the logs get `rows_per_s`, too.
        tokens_per_step: number; the logs get `tokens_per_s`, too. See `mean_tokens_per_step`.
    """

    def __init__(self, rows_per_step: int | None = None, tokens_per_step: float | None = None):
        super().__init__()
        per_step = {"steps": 1, "rows": rows_per_step, "tokens": tokens_per_step}
        self.per_step = {f"{unit}_per_s": count for unit, count in per_step.items() if count is not None}
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
            logs.update({name: self._steps * count / self._seconds for name, count in self.per_step.items()})


def mean_tokens_per_step(data, pad_token_id: int = 0, num_batches: int = 16) -> float:
    """Mean number of tokens, without padding, in a batch of `data`; estimated from some of its batches.

    A batch is on the device when a callback sees its step, so `Throughput` counts steps and takes this mean for each.

    Args:
        data: `keras.utils.PyDataset` whose items are dicts with `token_ids`.
        pad_token_id: int, of the tokenizer.
        num_batches: int >= 1, batches to look at, evenly spread over the epoch; all of them are exact.
    """
    total = data.num_batches
    chosen = sorted({i * total // num_batches for i in range(num_batches)})
    return sum(np.count_nonzero(data[index]["token_ids"] != pad_token_id) for index in chosen) / len(chosen)


class LearningRate(keras.callbacks.Callback):
    """Adds `learning_rate` to the logs: the one that the last update was made with.

    Under `steps_per_execution` it is that of the first update of the last execution.

    Put it before callbacks that read the logs.
    """

    def __init__(self):
        super().__init__()
        self._value = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        # A schedule is asked before the update: afterwards it gives the next one's, after the last update its end.
        self._value = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch, logs=None):
        self.on_epoch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["learning_rate"] = self._value
