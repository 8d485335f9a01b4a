"""Trains a tiny SimBERT on one device or on two logical ones and writes losses, logs and weights: `FOLDER REPLICAS`.

A program of its own, since TensorFlow takes logical devices only before its first operation.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from simretro.data import SimilarPairs
from simretro.methods import SimBERT
from simretro.models import build_transformer_model, export_weights
from simretro.tokenizers import Tokenizer
from simretro.training import TrainingCheckpoint

CONFIG = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# 11 pairs in batches of 4: the last batch has 3 pairs, 3 rows on each of two devices, so that a pair is torn apart.
GROUPS = [[chr(97 + i) * (1 + i % 4) + chr(98 + i), chr(98 + i) + chr(97 + i) * (2 + i % 3)] for i in range(11)]


def make_tokenizer():
    words = [chr(97 + i) for i in range(17)]
    return Tokenizer(
        {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *_pieces(words)])}
    )


def _pieces(words):
    return [f"##{word}" for word in words] + ["x"]


def make_simbert(mlm_weight=0.0, micro_batches=1, learning_rate=0.1):
    keras.utils.set_random_seed(0)
    encoder = build_transformer_model(CONFIG, application="unilm", with_pool="linear", with_mlm="linear")
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(3 * variable)  # so that the losses differ from those of a network without signal
    simbert = SimBERT(encoder, make_tokenizer(), mlm_weight=mlm_weight)
    simbert.compile(keras.optimizers.SGD(learning_rate, global_clipnorm=1.0), micro_batches=micro_batches)
    return simbert


def make_data(simbert, **options):
    return SimilarPairs(GROUPS, simbert.tokenizer, 4, maxlen=10, **options)


def main(folder, replicas):
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(names) if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        whole = _train(strategy)
        checkpointed = _train(strategy, folder / f"checkpoints-{replicas}", stop=True)
        resumed = _train(strategy, folder / f"checkpoints-{replicas}")
    del checkpointed
    for name, (logs, weights) in {"whole": whole, "resumed": resumed}.items():
        np.savez(folder / f"{name}-{replicas}.npz", **weights)
        (folder / f"{name}-{replicas}.json").write_text(json.dumps(logs))


def _train(strategy, folder=None, stop=False):
    simbert = make_simbert(mlm_weight=0.5)
    data = make_data(simbert, mlm_rate=0.3)
    callbacks, first_epoch = [], 0
    if folder:
        callbacks = [TrainingCheckpoint(folder, data)]
        first_epoch = callbacks[0].restore(simbert)
    epochs = 1 if stop else 3
    history = simbert.fit(data, epochs=epochs, initial_epoch=first_epoch, callbacks=callbacks, verbose=0)
    return {name: values for name, values in history.history.items()}, export_weights(simbert.encoder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
