"""Evaluations of one's own within `fit`, whose numbers go where those of Keras go."""

from collections.abc import Callable

import keras

from simretro.arguments import check_int
from simretro.training.averages import averaged_weights
from simretro.training.state import updates_done, updates_each_batch


class PeriodicEvaluation(keras.callbacks.Callback):
    """Runs an evaluation at the end of each epoch, and every N steps; its numbers go into the logs of the epoch.

    ```python
    probe = PeriodicEvaluation(lambda: evaluate_retrieval(model.encode, collection).means, name="med")
    checkpoint = TrainingCheckpoint("runs/checkpoints", data, monitor="med_nDCG@10")
    model.fit(data, epochs=5, callbacks=[probe, checkpoint, keras.callbacks.TensorBoard("runs/logs")])
    ```

    Keras hands the logs of an epoch from callback to callback in the order of the list: put this one before those that
    read them (`TrainingCheckpoint(monitor=...)`, `TensorBoard`, `CSVLogger`, `EarlyStopping`). Progress bar and
    `History` are behind all others by themselves.

    Every N steps means whenever the optimizer's count of updates passes a multiple of N, so a resumed run evaluates at
    the same steps as one that was not interrupted. What is found within an epoch is printed, unless `fit` is silent
    (`verbose=0`), and is in `history` alone, with its step, since the logs of a batch hold what is measured on the
    training batches; the logs of the epoch get the numbers of its end. `TrainingCheckpoint(evaluations=...)` keeps all
    of them over the interruptions of a run.

    With averaged weights (`use_ema=True` of the optimizer) these are evaluated, as by `TrainingCheckpoint`. Training
    goes on as if nothing had been evaluated, provided that `evaluate` neither changes the model nor calls
    `model.evaluate` or `model.fit`, which set the running metrics of the epoch to zero.

    Args:
        evaluate: called without arguments, returns {name: number}.
        every_steps: int >= 1; evaluates every so many steps, too. None: at the end of epochs only.
        name: str, put before the names with a "_" between; None: the names stay as they are.
    Attributes:
        history: list of {"step": updates done, **numbers} of all evaluations of this `fit`.
    Raises:
        ValueError: if `every_steps` is out of range or, at an epoch's end, a name is in the logs already.
        TypeError: if `evaluate` returns no dict of numbers.
    """

    _last_told: tuple | None = None  # of all objects: the training, epoch and batch whose line was printed last

    def __init__(
        self, evaluate: Callable[[], dict[str, float]], every_steps: int | None = None, name: str | None = None
    ):  # fmt: skip
        super().__init__()
        if not callable(evaluate):
            raise TypeError(f"`evaluate` must be callable without arguments; received {type(evaluate).__name__}.")
        if every_steps is not None:
            check_int("every_steps", every_steps, 1)
        self.evaluate, self.every_steps, self.name = evaluate, every_steps, name
        self.history: list[dict] = []
        self._first = self._step = 0

    def on_train_begin(self, logs=None):
        self.history = []

    def on_epoch_begin(self, epoch, logs=None):
        self._first = self._step = updates_done(self.model.optimizer)

    def on_train_batch_end(self, batch, logs=None):
        if self.every_steps is None:
            return
        before, optimizer = self._step, self.model.optimizer
        # Where it can be counted from the beginning of the epoch: to ask the optimizer is to wait for the device.
        self._step = self._first + batch + 1 if updates_each_batch(optimizer) else updates_done(optimizer)
        if self._step // self.every_steps > before // self.every_steps:
            self._run(updates_done(self.model.optimizer))
            self._tell(batch)

    def on_epoch_end(self, epoch, logs=None):
        step = updates_done(self.model.optimizer)
        if not self.history or self.history[-1]["step"] != step:
            self._run(step)
        if logs is None:
            return
        numbers = {name: value for name, value in self.history[-1].items() if name != "step"}
        taken = sorted(set(numbers) & set(logs))
        if taken:
            raise ValueError(f"The logs of the epoch already have {taken}. Give this callback another `name`.")
        logs.update(numbers)

    def _run(self, step):
        with averaged_weights(self.model):
            found = self.evaluate()
        prefix = "" if self.name is None else f"{self.name}_"
        self.history.append({"step": step, **{prefix + key: number for key, number in _numbers(found).items()}})

    def _tell(self, batch):
        """Prints the last numbers on a line of their own, between two states of Keras' progress bar."""
        params = self.params or {}
        verbose, numbers = params.get("verbose", 0), dict(self.history[-1])
        told = f"step {numbers.pop('step')}: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if not numbers or not verbose or not keras.config.is_interactive_logging_enabled():
            return
        # The bar stays in its line; before the first step of an epoch there is none, and another callback of this kind
        # may have ended its line at this very step.
        place = (id(params), self._first, batch)
        within_line = verbose != 2 and batch > 0 and place != PeriodicEvaluation._last_told
        PeriodicEvaluation._last_told = place
        print(("\n" if within_line else "") + told, flush=True)


def _numbers(found):
    if not isinstance(found, dict):
        raise TypeError(f"`evaluate` must return a dict of numbers; it returned {type(found).__name__}.")
    numbers = {}
    for name, value in found.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            numbers[name] = None
        if numbers[name] is None or not isinstance(name, str):
            raise TypeError(f"`evaluate` must return a dict of numbers by name; it returned {name!r}: {value!r}.")
    return numbers
