"""A small training run that can be interrupted: a module for the tests, and a program for other processes.

python training_toy.py train FOLDER RESULT.npz [--kill STAGE]    goes on from FOLDER, writes the final variables
python training_toy.py compare FOLDER [--replicas 2]             resumed and uninterrupted run in one process
"""

import argparse
import os
import signal

import keras
import numpy as np

from simretro.training import TerminateOnNonFinite, TrainingCheckpoint, build_optimizer, check_distribution, store
from simretro.training.state import read_variables, state_variables, updates_done

ROWS, WIDTH, BATCHES, EPOCHS = 8, 4, 4, 3


class Batches(keras.utils.PyDataset):
    """Batches that are a function of (seed, epoch, index), with the resuming that `TrainingCheckpoint` asks for."""

    def __init__(self, seed=0, num_batches=BATCHES):
        super().__init__()
        self.seed, self.total, self.epoch, self.first = seed, num_batches, 0, 0

    @property
    def num_batches(self):
        return self.total - self.first

    def __getitem__(self, index):
        rng = np.random.default_rng([self.seed, self.epoch, self.first + index])
        return rng.standard_normal((ROWS, WIDTH), "float32"), rng.standard_normal((ROWS, 1), "float32")

    def resume(self, epoch, step):
        self.epoch, self.first = epoch, step

    def on_epoch_end(self):
        # Keras calls this once more before the first epoch, so nothing is counted here.
        self.first = 0


class Diverging(Batches):
    """Infinite targets, and batches that are slow to make: the next one is always under way."""

    def __init__(self):
        super().__init__(num_batches=50)

    def __getitem__(self, index):
        np.linalg.svd(np.random.default_rng(0).standard_normal((300, 300)))
        x, y = super().__getitem__(index)
        return x, y + (np.inf if index == 3 else 0)


class Stop(Exception):
    """Stands for a run that dies."""


class StopAt(keras.callbacks.Callback):
    """Raises `Stop` after a number of steps, counted over all epochs, or after an epoch."""

    def __init__(self, step=None, epoch=None):
        super().__init__()
        self.step, self.epoch = step, epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.step is not None and updates_done(self.model.optimizer) >= self.step:
            raise Stop

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


def build(use_ema=False, units=6, seed=0, optimizer="adamw", **compile_options):
    """A compiled model with dropout, batch normalisation and a scheduled optimizer."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(units, name="hidden"),
        keras.layers.Dropout(0.5, name="dropout"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(1, name="out"),
    ]
    model = keras.Sequential(layers)
    optimizer = build_optimizer(optimizer, 0.05, warmup_steps=3, total_steps=40, global_clipnorm=1.0, use_ema=use_ema)
    model.compile(optimizer, "mse", **compile_options)
    return model


def fit(model, data, checkpoint=None, callbacks=(), epochs=EPOCHS, **options):
    """Trains from where the checkpoint is, if there is one; returns the history of `fit`."""
    epoch = 0 if checkpoint is None else checkpoint.restore(model)
    # Without a checkpoint somebody else has to tell the data which epoch it is.
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: data.resume(epoch, 0))
    callbacks = [begin if checkpoint is None else checkpoint, *callbacks]
    return model.fit(data, epochs=epochs, initial_epoch=epoch, shuffle=False, verbose=0, callbacks=callbacks, **options)


def everything(model):
    """All variables of model and optimizer as arrays."""
    groups = state_variables(model)
    return {f"{g}:{name}": array for g in ("model", "optimizer") for name, array in read_variables(groups[g]).items()}


def differences(left, right):
    """Names of what is not equal bit by bit."""
    return sorted(set(left) ^ set(right)) + [name for name in left if not np.array_equal(left[name], right.get(name))]


def run_both(folder, make=build, stop=None, every_steps=None, **options):
    """(uninterrupted, resumed): each the final variables and the losses of all epochs."""
    model = make()
    history = fit(model, Batches(), **options)
    plain = {**everything(model), "loss": np.array(history.history["loss"])}
    for stopping in (stop, StopAt()):
        model, data = make(), Batches()
        monitor = "val_loss" if "validation_data" in options else None
        checkpoint = TrainingCheckpoint(folder, data, monitor, every_steps=every_steps)
        try:
            fit(model, data, checkpoint, [stopping], **options)
        except Stop:
            continue
    resumed = {**everything(model), "loss": np.array([entry["loss"] for entry in checkpoint.history])}
    return plain, resumed


def kill_in_second_save():
    """Lets the process kill itself while it writes the arrays of its second checkpoint."""
    write_arrays, saves = store.write_arrays, []

    def dying_write(path, group, arrays):
        write_arrays(path, group, arrays)
        saves.append(group)
        if saves.count("optimizer") == 2:
            os.truncate(path / f"{group}.safetensors", 20)
            os.kill(os.getpid(), signal.SIGKILL)

    store.write_arrays = dying_write


def mirrored(replicas):
    """A function that builds the toy on several logical devices; for a process that has not used TensorFlow yet."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])

    def make():
        with strategy.scope():
            model = build(use_ema=True)
        check_distribution(strategy, model.optimizer)
        return model

    return make


def train(folder, result, kill):
    if kill:
        kill_in_second_save()
    model, data = build(), Batches()
    fit(model, data, TrainingCheckpoint(folder, data, every_steps=3))
    np.savez(result, **everything(model))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["train", "compare", "diverge"])
    parser.add_argument("folder")
    parser.add_argument("result", nargs="?")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    make = build if args.replicas == 1 else mirrored(args.replicas)
    if args.job == "train":
        train(args.folder, args.result, args.kill)
    elif args.job == "diverge":
        fit(make(), Diverging(), callbacks=[TerminateOnNonFinite()])
    else:
        options = {"every_steps": 3, "validation_data": Batches(seed=1)[0]}
        plain, resumed = run_both(args.folder, make, StopAt(step=7), **options)
        copies = sum("@" in name for name in plain)
        print("entries", len(plain), "copies", copies, "differences", differences(plain, resumed))


if __name__ == "__main__":
    main()
