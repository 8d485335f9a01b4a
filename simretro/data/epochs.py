"""A Keras data set whose epochs are numbered, and that goes on within one."""

import threading
from collections.abc import Iterator

import keras
import numpy as np

_PLANS_KEPT = 2


class EpochDataset(keras.utils.PyDataset):
    """Batches that are a function of (epoch, index), a position among them, and Keras' passes that move it.

    In `fit` epochs advance by themselves. Give `shuffle=False`, or Keras draws the order of the batches from Python's
    global random numbers: they stay the same, but a run can no longer be resumed within an epoch. `evaluate` on the
    data that are being trained on advances them, too; give validation data `fixed=True`. In a loop of your own:
    `data.resume(epoch)`, then `for batch in data`.

    After `resume(epoch, step)` the next pass begins at batch `step` of that epoch, and later ones are whole. A callback
    that calls it in `on_epoch_begin`, as `TrainingCheckpoint` does, may do so in each epoch and on all backends; it
    also ends the short pass, which Keras, who counts the batches beforehand, would run beyond.

    A subclass has `_make_plan(epoch)`, what is worked out once for an epoch, `_make_batch(plan, epoch, index)`, and the
    `_tokenizer` that the ids are of.

    Args:
        batches_per_epoch: int, the same for all epochs.
        fixed: bool; True: every pass is epoch 0, for validation data.
    """

    def __init__(self, batches_per_epoch: int, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self._batches_per_epoch = batches_per_epoch
        self._plans, self._lock = {}, threading.Lock()
        self._position = (0, 0)  # epoch, and the batch that its pass begins with
        self._within_pass = self._pass_complete = self._was_reset = False

    def _make_plan(self, epoch: int):
        raise NotImplementedError

    def _make_batch(self, plan, epoch: int, index: int) -> dict[str, np.ndarray]:
        raise NotImplementedError

    @property
    def state(self) -> tuple[int, int]:
        """(epoch, step) that the current pass began with, as for `resume`.

        How many of its batches were trained on only the training knows: they are asked for ahead of time.
        """
        return self._position

    @property
    def num_batches(self) -> int:
        """Batches of an epoch; within a pass of `fit` that `resume` made shorter, those of the pass."""
        return self._batches_per_epoch - self._offset()

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self.num_batches:
            raise IndexError(f"`index` must be in [0, {self.num_batches}); received {index}.")
        if self._within_pass and index == self.num_batches - 1:
            self._pass_complete = True
        return self.batch(self._position[0], index + self._offset())

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The rest of the current epoch, from where `resume` has set it."""
        epoch, step = self._position
        return (self.batch(epoch, index) for index in range(step, self._batches_per_epoch))

    def batch(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """Batch `index` of an epoch, whatever the data set's position is; with `fixed` of epoch 0."""
        epoch = 0 if self.fixed else epoch
        return self._make_batch(self._plan(epoch), epoch, index)

    def is_of(self, tokenizer) -> bool:
        """Whether the ids are those of this tokenizer, or of one that makes the same."""
        return tokenizer is self._tokenizer or tokenizer.fingerprint() == self._tokenizer.fingerprint()

    def resume(self, epoch: int, step: int = 0) -> None:
        """Sets the next pass: epoch `epoch`, from its batch `step` on.

        Args:
            epoch: int >= 0.
            step: int, batches of that epoch that are done; all of them: the next epoch begins.
        Raises: ValueError if one is out of range.
        """
        if epoch < 0 or not 0 <= step <= self._batches_per_epoch:
            raise ValueError(
                f"`epoch` must not be negative and `step` in [0, {self._batches_per_epoch}], an epoch's batches; "
                f"received epoch {epoch}, step {step}. Give the data and settings of the interrupted run."
            )
        self._position = (epoch + 1, 0) if step == self._batches_per_epoch else (epoch, step)
        self._within_pass = self._pass_complete = False

    def on_epoch_begin(self) -> None:
        """Called by Keras: a pass begins."""
        self._within_pass, self._pass_complete = True, False

    def on_epoch_end(self) -> None:
        """Called by Keras, also before the first pass; the next epoch begins if all batches of this one were taken."""
        # `fit` resets its data before training. On some backends it has taken a batch by then, to build the model.
        if self._was_reset and self._within_pass and self._pass_complete and not self.fixed:
            self._position = (self._position[0] + 1, 0)
        self._was_reset, self._within_pass = True, False

    def _offset(self):
        # Before a pass Keras counts the batches once for all epochs of `fit`: there the count must be a whole epoch's.
        return self._position[1] if self._within_pass and self._was_reset else 0

    def _plan(self, epoch):
        with self._lock:  # Keras asks from a thread of its own
            if epoch not in self._plans:
                while len(self._plans) >= _PLANS_KEPT:
                    del self._plans[next(iter(self._plans))]
                self._plans[epoch] = self._make_plan(epoch)
            return self._plans[epoch]
