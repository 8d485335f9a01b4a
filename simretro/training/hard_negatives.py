"""Mining hard negatives anew while a retriever is trained."""

import re
from collections.abc import Callable
from pathlib import Path

import keras

from simretro.arguments import check_int
from simretro.training.state import updates_done

_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.jsonl")


class HardNegativeMining(keras.callbacks.Callback):
    """Mines negatives with the model as it is before every N-th epoch, and trains on with these.

    ```python
    def mine(path):
        write_training_queries(path, mine_hard_negatives(model, collection, num_negatives=8))

    data = QueryPassages(first_negatives, model.tokenizer, negatives_per_query=2)
    mining = HardNegativeMining(mine, data, "runs/retriever/negatives")
    model.fit(data, epochs=4, callbacks=[mining, checkpoint])
    ```

    Epochs are counted from 0; before epoch 0 nothing is mined: the data begin with the negatives that they were made
    with. What is mined is written to `folder` and read from there, so that a run that `TrainingCheckpoint` resumes
    within an epoch goes on with the very negatives of that epoch; the file of the mining before is kept, too.

    Args:
        mine: called with a path, to which it writes training queries: the same as those of `data`, in the same order,
            with new negatives.
        data: the training data given to `fit`, with `replace(path)`, such as `QueryPassages`.
        folder: path of a folder of this run's own; made if missing. A run that begins at epoch 0 removes the files of
            an earlier one.
        every_epochs: int >= 1.
    Raises:
        ValueError: if an argument is wrong; when a run is resumed without the file that it was trained on; when one
            begins at epoch 0 with data whose negatives were mined in an earlier `fit`.
        FileNotFoundError: if `mine` writes nothing.
    """

    def __init__(self, mine: Callable[[Path], object], data, folder: str | Path, every_epochs: int = 1):
        super().__init__()
        check_int("every_epochs", every_epochs, 1)
        if not callable(mine):
            raise ValueError(f"`mine` must be callable with a path; received {type(mine).__name__}.")
        if not callable(getattr(data, "replace", None)):
            raise ValueError(f"`data` must have a method `replace(path)`; received {type(data).__name__}.")
        self.mine, self.data, self.folder, self.every_epochs = mine, data, Path(folder), every_epochs
        self._is_first_epoch = True

    def on_train_begin(self, logs=None):
        self._is_first_epoch = True

    def on_epoch_begin(self, epoch, logs=None):
        is_first, self._is_first_epoch = self._is_first_epoch, False
        due = epoch - epoch % self.every_epochs  # the epoch before which this one's negatives are mined
        if epoch == 0:
            if getattr(self.data, "replaced", False):
                raise ValueError(
                    "`data` have negatives that were mined in an earlier `fit`, and this one begins at epoch 0: a run "
                    "that is interrupted could not go on with them. Make `data` anew, or give the `initial_epoch`."
                )
            for path in self._files():
                path.unlink()
        if due == 0:
            return
        step = updates_done(self.model.optimizer)
        if is_first:
            mined_before = [path for path in self._files(due) if _step(path) < step]
            if mined_before:  # a run is resumed within these epochs
                self.data.replace(mined_before[-1])
                return
            if epoch != due:
                raise ValueError(
                    f"{self.folder} has no negatives of epoch {due + 1}, which this run was trained on when it was "
                    "interrupted. Give the folder of that run."
                )
        if epoch == due:
            self._mine(epoch, step)

    def _mine(self, epoch, step):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"epoch-{epoch:04}-step-{step:08}.jsonl"
        self.mine(path)
        if not path.is_file():
            raise FileNotFoundError(f"`mine` must write training queries to the path it is given; {path} is missing.")
        self.data.replace(path)
        for old in self._files():
            if old != path and not epoch - self.every_epochs <= _epoch(old) < epoch:
                old.unlink()

    def _files(self, epoch=None):
        """In the order of epochs and steps."""
        found = [path for path in self.folder.glob("epoch-*.jsonl") if _NAME.fullmatch(path.name)]
        return sorted(path for path in found if epoch is None or _epoch(path) == epoch)


def _epoch(path):
    return int(_NAME.fullmatch(path.name)[1])


def _step(path):
    return int(_NAME.fullmatch(path.name)[2])
