"""Prints how far weights are moved on one device and on two by the optimizers, and how far these are apart."""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import contextlib

import keras
import numpy as np
import tensorflow as tf

from simretro.training import OPTIMIZER_NAMES, build_optimizer

X = np.random.default_rng(0).integers(0, 9, (8, 5)).astype("int32")
Y = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")


def trained(name, strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        layers = [keras.Input((5,), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)])
        model.compile(build_optimizer(name, 0.01, warmup_steps=2, total_steps=9), "mse")
    before = model.get_weights()
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0)
    return [after - first for after, first in zip(model.get_weights(), before, strict=True)]


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {}
    for name in OPTIMIZER_NAMES:
        one, two = trained(name, None), trained(name, strategy)
        apart = [np.abs(left - right).max() for left, right in zip(one, two, strict=True)]
        found[name] = {"moved": [float(np.abs(x).max()) for x in one], "apart": [float(x) for x in apart]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
