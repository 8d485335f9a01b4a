"""Trains a tiny RetroMAE on one device or on two logical ones and writes logs and weights: `FOLDER REPLICAS`.

A program of its own, since TensorFlow takes logical devices only before its first operation.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from simretro.data import MaskedDocuments
from simretro.layers import DecoderMask
from simretro.methods import RetroMAE
from simretro.models import build_transformer_model
from simretro.tokenizers import Tokenizer
from simretro.training import TrainingCheckpoint

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,  # wide enough for compiled loops
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LETTERS = [chr(97 + i) for i in range(22)]
# 11 documents in batches of 4: the last batch has 3 rows, 2 on one device and 1 on the other.
DOCUMENTS = [" ".join(LETTERS[(i + j) % 20] for j in range(4 + 2 * (i % 5))) for i in range(11)]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "x"]
    return Tokenizer({token: i for i, token in enumerate(tokens)})


def drawn_by_place(target_mask, padding_mask, word_ids=None):
    """A mask as of `DecoderMask`, in which the places of row and column decide in place of chance."""
    target_mask, padding_mask = ops.convert_to_tensor(target_mask), ops.convert_to_tensor(padding_mask)
    places = ops.arange(ops.shape(target_mask)[1], dtype="int32")
    rows, columns = places[:, None], places[None]
    shown = ops.logical_or((3 * rows + 5 * columns) % 4 > 1, ops.logical_not(target_mask)[:, None])
    seen = ops.logical_and(shown, padding_mask[:, None])
    return ops.logical_and(seen, rows != columns)[:, None]


def without_chance(mae):
    """Replaces the draw of the decoder's mask; returns the model."""
    mae.decoder_mask.call = drawn_by_place
    return mae


def make_retromae(learning_rate=0.1, **options):
    keras.utils.set_random_seed(0)
    encoder = build_transformer_model(CONFIG, application="encoder", with_mlm="linear")
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(3 * variable)  # so that the losses differ from those of a network without signal
    mae = RetroMAE(encoder, make_tokenizer(), **{"seed": 0, **options})
    mae.compile(keras.optimizers.SGD(learning_rate, global_clipnorm=1.0))
    return mae


def write_documents(folder, documents=DOCUMENTS):
    path = Path(folder) / "documents.txt"
    path.write_text("".join(f"{document}\n" for document in documents), "utf-8")
    return path


def make_data(path, mae, **options):
    return MaskedDocuments(path, mae.tokenizer, **{"rows_per_batch": 4, "maxlen": 32, "seed": 1, **options})


def weights_of(mae):
    """Every trained variable, decoder included, by its path."""
    return {variable.path: ops.convert_to_numpy(variable) for variable in mae.trainable_variables}


def main(folder, replicas):
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(names) if replicas > 1 else tf.distribute.get_strategy()
    documents = write_documents(folder)
    with strategy.scope():
        whole = _train(documents)
        stopped = _train(documents, folder / f"checkpoints-{replicas}", stop=True)
        resumed = _train(documents, folder / f"checkpoints-{replicas}")
        mask = DecoderMask(0.5, seed=0)
    del stopped
    if replicas > 1:
        np.savez(folder / "masks.npz", **_drawn(strategy, mask))
    for name, (logs, weights) in {"whole": whole, "resumed": resumed}.items():
        np.savez(folder / f"{name}-{replicas}.npz", **weights)
        (folder / f"{name}-{replicas}.json").write_text(json.dumps(logs))


def _drawn(strategy, mask):
    """Two draws of each replica, in a graph as `fit` has it."""
    tokens = ops.ones((4, 32), "bool")

    @tf.function
    def draw():
        return strategy.run(lambda: mask(tokens, tokens))

    draws = [strategy.experimental_local_results(draw()) for _ in range(2)]
    return {f"{i}-{step}": np.asarray(array) for step, arrays in enumerate(draws) for i, array in enumerate(arrays)}


def _train(documents, folder=None, stop=False):
    mae = without_chance(make_retromae(bow_weight=0.5))
    data = make_data(documents, mae)
    sizes = [len(data.batch(0, i)["token_ids"]) for i in range(len(data))]
    if 3 not in sizes:
        raise SystemExit(f"there is no short batch: {sizes}")
    callbacks, first_epoch = [], 0
    if folder:
        callbacks = [TrainingCheckpoint(folder, data)]
        first_epoch = callbacks[0].restore(mae)
    epochs = 1 if stop else 3
    history = mae.fit(data, epochs=epochs, initial_epoch=first_epoch, callbacks=callbacks, verbose=0)
    return dict(history.history), weights_of(mae)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
