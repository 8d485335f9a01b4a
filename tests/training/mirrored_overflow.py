"""One step on two logical devices whose loss is scaled; on the second device alone a gradient overflows.

Prints, for each way to clip, the weight and the scale after the step. A program of its own, since TensorFlow takes
logical devices only before its first operation.
"""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from simretro.training.train_step import AdditiveLossModel


class Weight(AdditiveLossModel):
    """The mean of weight times value."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="ones", name="weight")

    def call(self, x, training=None):
        return self.weight * x["values"]

    def normalizers(self, x):
        return {"rows": ops.cast(ops.shape(x["values"])[0], "float32")}

    def additive_loss(self, x, y_pred, normalizers, training):
        return ops.sum(y_pred) / normalizers["rows"]


def step(values, **clip):
    model = Weight()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5, **clip), initial_scale=1024.0)
    model.compile(optimizer)
    values = np.array(values, "float32")
    model.fit(tf.data.Dataset.from_tensors({"values": values}).unbatch().batch(2), epochs=1, verbose=0)
    return [float(model.weight.numpy()), float(optimizer.dynamic_scale.numpy())]


def main():
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    found = {}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for clip in ({}, {"clipvalue": 0.1}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}):
            name = next(iter(clip), "none")
            found[name] = {"finite": step([1.0, 3.0], **clip), "overflow": step([1.0, 3e36], **clip)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
