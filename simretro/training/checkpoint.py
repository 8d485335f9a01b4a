"""Checkpoints of a training run, from which it goes on as if it had never stopped."""

import json
import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import keras

from simretro.arguments import check_int, warn
from simretro.files import atomic_folder, recover_folder
from simretro.training import store
from simretro.training.averages import averaged_weights, exchange_averages
from simretro.training.callbacks import divergence_error, non_finite_loss
from simretro.training.checkpoint_checks import (
    check_fit,
    check_ready,
    checked_data,
    checked_evaluations,
    direction,
    name_of,
)
from simretro.training.facts import check_position, check_settings, data_facts, model_facts
from simretro.training.periodic import PeriodicEvaluation
from simretro.training.state import (
    as_array,
    assign_variables,
    build_optimizer_variables,
    first_non_finite,
    read_variables,
    state_variables,
)

_RATE = "learning_rate"


class TrainingCheckpoint(keras.callbacks.Callback):
    """Saves the whole state of the training after each epoch, and every N steps; `restore` goes on from there.

    ```python
    checkpoint = TrainingCheckpoint("runs/checkpoints", data, monitor="val_loss", save_best=model.save_pretrained)
    epoch = checkpoint.restore(model)  # 0 where there is nothing yet
    model.fit(data, epochs=5, initial_epoch=epoch, shuffle=False, callbacks=[checkpoint], validation_data=...)
    ```

    Saved are weights and other variables (banks, statistics, seeds of dropout), optimizer, running metrics, history,
    epoch and position in the data. On one machine the resumed run then equals the uninterrupted one bit by bit,
    provided that the data are a function of (seed, epoch, index): give `fit` `shuffle=False`, or Keras shuffles the
    batches of a `PyDataset` with Python's global random numbers; and draw random numbers from `SeedGenerator`s that
    the model owns. A kill at any moment loses the work since the last checkpoint at most, see `store`.

    Also saved are the settings of a method and the config of its encoder, and what the data say of themselves: a run
    goes on with the same settings and tokenizer, or not at all. Other data of that tokenizer are taken at the end of an
    epoch, with a warning. While a process trains, no other one can train into the same folder.

    The data are told their position at the beginning of each epoch, by `data.resume(epoch, step)`: "the next pass is
    epoch `epoch`, from its batch `step` on; until its end `num_batches` is what is left". The position is the number
    of finished steps, since the data set itself is asked for batches ahead of time.

    A checkpoint is written neither after a NaN or infinite loss nor with such a weight in it: training ends with an
    error instead, and the last good checkpoint stays.

    Averaged weights (`use_ema=True` of the optimizer): checkpoints hold the weights and their averages. With
    `monitor`, validation is done with the averages and the best model has them, since `fit` ends with them, too.
    Do not add `keras.callbacks.SwapEMAWeights`, which would exchange them once more.

    Args:
        folder: path of a folder for this run's checkpoints; made if missing.
        data: the training data given to `fit`, with `resume(epoch, step)` and a fixed number of batches; without it
            nobody tells the data where to go on.
        monitor: name of a validation metric in the logs of an epoch; the best model by it is kept in `folder/best`.
            A metric of the training batches is refused: it says nothing of unseen texts. Other callbacks may put
            metrics of their own into the logs, if they come before this one.
        mode: "min", "max" or "auto" (by the name of the metric).
        every_steps: int; saves every so many steps, too. Needs `data`.
        keep: int, how many checkpoints to keep besides the best.
        save_best: callable that writes the model into the folder it is given, for instance `model.save_pretrained`.
            None: only the variables are written, for `load_best`.
        evaluations: the `PeriodicEvaluation`s given to `fit`, before this callback; their numbers are kept, too.
    Attributes:
        step: int, training steps done, over all epochs and runs.
        history: list of dict, the logs of all epochs, those before `restore`, too. Of an epoch that another callback
            has stopped within they have `step_in_epoch`; when that epoch goes on, they are replaced.
        evaluations: {name: list of {"step": updates done, **numbers}}, all that `evaluations` have found.
        best: dict of "monitor", "value", "epoch" and "step", or None.
    Raises: ValueError if an argument is out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        data=None,
        monitor: str | None = None,
        mode: str = "auto",
        every_steps: int | None = None,
        keep: int = 1,
        save_best: Callable[[Path], object] | None = None,
        evaluations: Iterable[PeriodicEvaluation] = (),
    ):
        super().__init__()
        if every_steps is not None:
            check_int("every_steps", every_steps, 1)
        if every_steps is not None and data is None:
            raise ValueError(
                f"`every_steps` needs `data`; received every_steps={every_steps!r}, data=None. Within an epoch, only "
                "data with `resume(epoch, step)` can go on where the training stopped."
            )
        check_int("keep", keep, 1)
        self.folder = Path(folder)
        self.monitor, self.keep, self.every_steps, self.save_best = monitor, keep, every_steps, save_best
        self.sign = direction(monitor, mode)
        self.data = checked_data(data)
        self._evaluations = checked_evaluations(evaluations)
        self.step = 0
        self.history: list[dict] = []
        self.evaluations: dict[str, list[dict]] = {}
        self.best: dict | None = None
        self._evaluations_before: dict[str, list[dict]] = {}  # this `fit`
        self._resumed: dict | None = None  # state of `restore`, until the first epoch begins
        self._metrics: dict = {}  # of the checkpoint, for the rest of its epoch
        self._metrics_of_training: dict = {}  # of an epoch that was stopped within, before its validation
        self._monitor_missing = self._exchanged = False
        self._own_latest: Path | None = None  # the checkpoint that was restored or written last
        self._quiet = None
        self._epoch = self._first_step = self._steps_done = 0
        self._first_rate: float | None = None  # that the optimizer was made with; None of a schedule

    @property
    def latest(self) -> Path | None:
        """Path of the last complete checkpoint, None where there is none."""
        return store.latest_checkpoint(self.folder)

    def lock(self) -> None:
        """Keeps other processes from training into `folder`, as `fit` does by itself, until `fit` or this process ends.

        Called before `restore`, it tells of another run before there is work to wait for.

        Raises: ValueError if another process trains into it.
        """
        store.lock_folder(self.folder)

    def restore(self, model: keras.Model, data=None) -> int:
        """Puts model, optimizer, history and, when `fit` begins, the data where the last checkpoint was.

        Args:
            model: the compiled model, with all its variables made, by a first call if need be. Under a strategy,
                model and optimizer were made within its scope.
            data: the training data; None: as given to the constructor.
        Returns: int, the `initial_epoch` for `fit`; 0 where `folder` has no checkpoint yet.
        Raises: ValueError, before anything is assigned: for a model of other settings, naming all that differ; naming
            all variables that do not fit; for data of another tokenizer; within an epoch for any other data than those
            of the interrupted run, naming how they differ.

        A learning rate without a schedule goes on as it was, lowered by a callback perhaps; but if the optimizer was
        made with another one than that of the run, it keeps that, which a warning tells.
        """
        if data is not None:
            self.data = checked_data(data)
        check_ready(model)
        path = self.latest
        state = {"epoch": 0} if path is None else store.read_state(path)
        check_settings(state.get("model"), model_facts(model), path)
        if self.data is not None:
            # `fit` must count a whole epoch; where in it to begin is told when that epoch begins.
            self.data.resume(state["epoch"], 0)
        if path is None:
            return 0
        check_position(state, self.data, path)
        build_optimizer_variables(model)
        variables = state_variables(model)
        arrays = {group: store.read_arrays(path, group) for group in ("model", "optimizer")}
        self._first_rate = self._choose_rate(model.optimizer, state, variables["optimizer"], arrays["optimizer"])
        check_fit(variables, arrays, path)
        if not all([assign_variables(model, variables[group], arrays[group]) for group in arrays]):
            warnings.warn(
                f"{path} was written with more replicas; what differed between them (running statistics that are not "
                "synchronised, say) is taken from the first ones.",
                stacklevel=2,
            )
        self._exchanged = False  # weights and averages are those of the checkpoint, each in its place
        self._metrics = store.read_arrays(path, "metrics") if state["step_in_epoch"] else {}
        self.step, self.history, self.best, self._resumed = state["step"], state["history"], state["best"], state
        self.evaluations = state.get("evaluations", {})
        self._own_latest = path
        return state["epoch"]

    def _choose_rate(self, optimizer, state, variables, arrays):
        """Leaves the stored learning rate out of `arrays` if the optimizer was made with another; returns its own."""
        rate, before = _constant_rate(optimizer), state.get("first_rate")
        if rate == before or "first_rate" not in state:  # earlier versions did not write it down
            return rate
        for name in [name for name in {**variables, **arrays} if name.split("/")[-1] == _RATE]:
            variables.pop(name, None)
            arrays.pop(name, None)
        was, now = (f"{value:g}" if value is not None else "a schedule" for value in (before, rate))
        warn(f"The run goes on with the learning rate of this optimizer, {now}, in place of {was}.")
        return rate

    def load_best(self, model: keras.Model) -> None:
        """Gives the model the variables it had when `monitor` was best; for runs without `save_best`.

        Args:
            model: compiled `keras.Model`.
        Raises: ValueError if there is no best model yet, if it is of another kind (`save_best`), or does not fit.
        """
        path = self.folder / "best"
        if self.save_best is not None:
            raise ValueError(f"{path} was written by `save_best`: load it with what belongs to that, not `load_best`.")
        recover_folder(path)
        if not path.is_dir():
            raise ValueError(
                f"There is no best model in {self.folder}. It is kept by `monitor`, here {self.monitor!r}, from the "
                "first epoch on whose logs have that metric."
            )
        variables, arrays = state_variables(model), {"model": store.read_arrays(path, "model")}
        check_fit(variables, arrays, path)
        assign_variables(model, variables["model"], arrays["model"])
        self._exchanged = False

    def on_train_begin(self, logs=None):
        if self._exchanged:  # the last `fit` was interrupted within its validation
            self._exchanged = not exchange_averages(self.model)
        self.lock()
        latest = self.latest
        if latest not in (None, self._own_latest):  # a finished run's, or one that was written since `restore`
            store.unlock_folder(self.folder)
            raise ValueError(
                f"`folder` already holds a checkpoint, {latest}. Call `restore(model)` before `fit` to go on from it, "
                "or give another `folder`: this run would remove it."
            )
        self._evaluations_before = dict(self.evaluations)
        if not self.step:
            self._first_rate = _constant_rate(self.model.optimizer)
        steps = self.params.get("steps")
        if self.data is not None and steps != self.data.num_batches:
            raise ValueError(
                f"`fit` must go through `data` once an epoch: {self.data.num_batches} batches; received {steps} steps "
                "an epoch. Leave `steps_per_epoch` out, and give `fit` the data that this callback has."
            )

    def on_epoch_begin(self, epoch, logs=None):
        state, self._resumed = self._resumed, None
        self._first_step, self._metrics_of_training = 0, {}
        if state is not None:
            if epoch != state["epoch"]:
                raise ValueError(
                    f"`initial_epoch` of `fit` must be what `restore` returned, {state['epoch']}; received {epoch}."
                )
            self._first_step = state["step_in_epoch"] if self.data is not None else 0
            if self._first_step:
                self._restore_metrics()
        elif any(entry["epoch"] == epoch for entry in self._whole_epochs()):
            warn(
                f"Epoch {epoch + 1} is trained once more, on the same batches: `fit` begins at `initial_epoch`, "
                f"{epoch}. To go on, give it `initial_epoch={len(self._whole_epochs())}` and `epochs` behind that."
            )
        self.history = [entry for entry in self.history if entry["epoch"] != epoch or "step_in_epoch" not in entry]
        self._epoch, self._steps_done = epoch, self._first_step
        if self.data is not None:
            self.data.resume(epoch, self._first_step)

    def on_train_batch_begin(self, batch, logs=None):
        if self._first_step and self._steps_done == self.params["steps"]:
            # `fit` counted the batches of a whole epoch and would ask for one more. On TensorFlow that step fails for
            # want of data only after it has advanced the optimizer's counter and the seeds of dropout. So the epoch is
            # ended here, as Keras ends one whose data ran out, less the warning.
            self._quiet = warnings.catch_warnings()
            self._quiet.__enter__()
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            raise StopIteration

    def on_train_batch_end(self, batch, logs=None):
        if self.monitor is not None and self.monitor in (logs or {}):
            raise ValueError(
                f"`monitor` must be a validation metric; {self.monitor!r} is measured on the training batches. "
                f'Give `fit` `validation_data` and monitor "val_{self.monitor}".'
            )
        steps = self.params.get("steps")
        done = self._first_step + batch + 1
        if steps:
            done = min(done, steps)  # the last execution under `steps_per_execution` may be short
        before = self.step
        self.step += done - self._steps_done
        self._steps_done = done
        crossed = self.every_steps and self.step // self.every_steps > before // self.every_steps
        if crossed and done != steps:  # the end of the epoch is saved with the results of its validation
            self._save(self._epoch, done, logs)

    def on_test_begin(self, logs=None):
        self._end_quiet()
        if self._steps_done < (self.params.get("steps") or 0):
            # The training was stopped within the epoch, and `evaluate` begins with setting its running means to zero.
            self._metrics_of_training = read_variables(state_variables(self.model)["metrics"])
        if self.monitor is not None and not self._exchanged:
            self._exchanged = exchange_averages(self.model)

    def on_test_end(self, logs=None):
        if self._exchanged:
            self._exchanged = not exchange_averages(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self._end_quiet()
        logs = dict(logs or {})
        self._refuse_divergence(logs)
        steps = self.params.get("steps")
        stopped = steps and self._steps_done < steps  # by another callback, within the epoch
        place = {"epoch": epoch, "step": self.step} | ({"step_in_epoch": self._steps_done} if stopped else {})
        self.history.append({**place, **_numbers(logs)})
        if self.monitor is not None:
            self._save_if_best(epoch, logs)
        if stopped:
            self._save(epoch, self._steps_done, logs)
        else:
            self._save(epoch + 1, 0, logs)

    def on_train_end(self, logs=None):
        self._gather_evaluations()
        store.unlock_folder(self.folder)

    def _whole_epochs(self):
        return [entry for entry in self.history if "step_in_epoch" not in entry]

    def _gather_evaluations(self):
        for callback in self._evaluations:
            before = self._evaluations_before.get(name_of(callback), [])
            by_step = {entry["step"]: entry for entry in [*before, *callback.history]}
            self.evaluations[name_of(callback)] = list(by_step.values())

    def _save(self, epoch, step_in_epoch, logs):
        self._refuse_divergence(logs)
        self._gather_evaluations()
        state = {
            "epoch": epoch,
            "step_in_epoch": step_in_epoch,
            "step": self.step,
            "num_batches": self.params.get("steps"),
            "first_rate": self._first_rate,
            "data": data_facts(self.data),
            "model": model_facts(self.model),
            "best": self.best,
            "history": self.history,
            "evaluations": self.evaluations,
        }
        names = ("model", "optimizer", "metrics") if step_in_epoch else ("model", "optimizer")
        self._own_latest = store.write_checkpoint(self.folder, self.step, self._groups(names), state, self.keep)

    def _groups(self, names):
        variables = state_variables(self.model)
        for name in names:
            stopped = self._metrics_of_training if name == "metrics" else {}
            arrays = stopped or read_variables(variables[name])
            broken = None if name == "metrics" else first_non_finite(arrays)
            if broken is not None:
                raise divergence_error(f"The variable {broken!r} is not finite", self._where(), self.latest)
            yield name, arrays

    def _save_if_best(self, epoch, logs):
        value = logs.get(self.monitor)
        if value is None:
            if not self._monitor_missing:
                self._monitor_missing = True
                warnings.warn(
                    f"`monitor`: {self.monitor!r} is not in the logs of epoch {epoch + 1} and the best model is not "
                    f"kept without it; there are: {', '.join(logs)}. Give `fit` `validation_data`, or put the callback "
                    "that measures it before this one.",
                    stacklevel=2,
                )
            return
        if not math.isfinite(value) or (self.best and self.sign * value <= self.sign * self.best["value"]):
            return
        best = {"monitor": self.monitor, "value": float(value), "epoch": epoch, "step": self.step}
        # Before the checkpoint that speaks of it: killed in between, the same epoch finds it again.
        with averaged_weights(self.model), atomic_folder(self.folder / "best") as temporary:
            groups = dict(self._groups(["model"]))
            if self.save_best is None:
                store.write_arrays(temporary, "model", groups["model"])
            else:
                self.save_best(temporary)
            (temporary / "best.json").write_text(json.dumps(best), "utf-8")
        self.best = best

    def _restore_metrics(self):
        """The running means of the interrupted epoch; `fit` has just set them to zero."""
        variables = state_variables(self.model)["metrics"]
        assign_variables(self.model, variables, self._metrics)
        late = sorted(name for name in self._metrics if "@" not in name and name not in variables)
        if late:
            warnings.warn(
                f"The logs of this epoch hold only the rest of it for metrics that Keras makes at the first step: "
                f"{', '.join(late)}.",
                stacklevel=2,
            )
        self._metrics = {}

    def _refuse_divergence(self, logs):
        found = non_finite_loss(logs)
        if found is not None:
            raise divergence_error(f"`{found[0]}` became {found[1]}", self._where(), self.latest)

    def _where(self):
        return f"at or before step {self.step} (epoch {self._epoch + 1}, batch {self._steps_done})"

    def _end_quiet(self):
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None


def _constant_rate(optimizer):
    """The learning rate that is a variable; None of a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return float(as_array(inner._learning_rate)) if isinstance(inner._learning_rate, keras.Variable) else None


def _numbers(logs):
    numbers = {}
    for name, value in logs.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):  # another callback's text or array
            continue
    return numbers
