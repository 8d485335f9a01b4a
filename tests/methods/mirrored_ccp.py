"""Trains a tiny CCP on one device or on two logical ones and writes logs and variables: `FOLDER REPLICAS`.

A program of its own, since TensorFlow takes logical devices only before its first operation.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from simretro.data.epochs import EpochDataset
from simretro.methods import CCP, ccp_gaps
from simretro.models import build_transformer_model
from simretro.training import PeriodicEvaluation, TrainingCheckpoint
from simretro.training.state import read_variables, state_variables

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PAD, CLS, SEP, MASK = 0, 2, 3, 4
LANGUAGES = ("aa", "bb")


def token_rows(rng, rows, width):
    """Rows `[CLS] ... [SEP]` of several lengths, padded."""
    lengths = rng.integers(4, width + 1, rows)[:, None]
    lengths[0] = width
    columns = np.arange(width)[None]
    token_ids = np.where(columns < lengths, rng.integers(5, 50, (rows, width)), PAD)
    token_ids[:, 0] = CLS
    token_ids[columns == lengths - 1] = SEP
    return token_ids.astype("int32")


def context_batch(seed, num_pairs=4, width=16, language=0, filler=0, documents=None):
    """Pairs in adjacent rows, of few documents, so that rows have several positives."""
    rng = np.random.default_rng(seed)
    documents = rng.integers(0, 4, num_pairs) if documents is None else np.asarray(documents)
    centres = rng.integers(0, 6, num_pairs)
    token_ids, rows = token_rows(rng, 2 * num_pairs, width), 2 * num_pairs
    batch = {"token_ids": token_ids, "encoder_token_ids": token_ids}
    batch |= {"masked_positions": np.zeros((rows, filler)), "masked_ids": np.full((rows, filler), -1)}
    batch["document_ids"] = np.repeat(documents + 10 * language, 2)
    batch["sentence_positions"] = np.stack([centres, centres + rng.integers(1, 3, num_pairs)], axis=1).reshape(-1)
    batch["language_ids"] = np.full(rows, language)
    batch["sides"] = np.tile([0, 1], num_pairs)
    batch["sentence_keys"] = 100 * batch["document_ids"] + batch["sentence_positions"]
    return {name: values.astype("int32") for name, values in batch.items()}


def mlm_batch(seed, rows=8, width=16, num_masked=3):
    token_ids = token_rows(np.random.default_rng(seed), rows, width)
    batch = {"token_ids": token_ids, "encoder_token_ids": token_ids.copy()}
    batch["encoder_token_ids"][:, 1:3] = MASK
    batch["masked_positions"] = np.tile(np.arange(1, num_masked + 1, dtype="int32"), (rows, 1))
    batch["masked_ids"] = np.where(batch["masked_positions"] < 3, token_ids[:, 1 : num_masked + 1], -1).astype("int32")
    for name in ("document_ids", "sentence_positions", "language_ids", "sides", "sentence_keys"):
        batch[name] = np.full(rows, -1, "int32")
    return batch


class Batches(EpochDataset):
    """Batches of both tasks in two languages; the fourth has three pairs, of which two devices tear one apart."""

    def __init__(self, num_batches=6, languages=LANGUAGES, window_sentences=2):
        super().__init__(num_batches, fixed=False)
        self.languages, self.window_sentences = languages, window_sentences

    def is_of(self, tokenizer):
        return True

    def _make_plan(self, epoch):
        return None

    def _make_batch(self, plan, epoch, index):
        seed = 100 * epoch + index
        if index in (2, 4):
            return mlm_batch(seed)
        options = {"width": 32, "filler": 4} if index == 0 else {}
        language = seed % len(self.languages)
        return context_batch(seed, 3 if index == 3 else 4, language=language, **options)


def make_ccp(learning_rate=0.05, micro_batches=1, gradient_cache_rows=None, config=CONFIG, **options):
    keras.utils.set_random_seed(0)
    encoder = build_transformer_model(config, application="encoder", with_mlm="linear")
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(3 * variable)  # so that the losses differ from those of a network without signal
    settings = {"bank_size": 10, "languages": LANGUAGES, "projection_size": 8, "warmup_updates": 2, **options}
    ccp = CCP(encoder, **settings)
    optimizer = keras.optimizers.SGD(learning_rate, global_clipnorm=1.0)
    ccp.compile(optimizer, micro_batches=micro_batches, gradient_cache_rows=gradient_cache_rows)
    return ccp


def variables_of(ccp):
    """Every variable of the model by name, that of a replica that differs too."""
    return read_variables(state_variables(ccp)["model"])


def main(folder, replicas):
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(names) if replicas > 1 else tf.distribute.get_strategy()
    runs = {"together": {}, "by_target": {"enqueue": "eval", "pooling": "mean", "negatives": "cross"}}
    with strategy.scope():
        results = {name: _train(options) for name, options in runs.items()}
        if replicas > 1:
            _train({}, folder / "checkpoints", epochs=1)
            results["resumed"] = _train({}, folder / "checkpoints")
            results["apart"] = _train({"synchronized": False}, epochs=1, num_batches=3)
            results["cached"] = _train({"gradient_cache_rows": 3})
            results["in_parts"] = _train({"micro_batches": 2}, epochs=1, num_batches=3)
    for name, (logs, variables) in results.items():
        np.savez(folder / f"{name}-{replicas}.npz", **variables)
        (folder / f"{name}-{replicas}.json").write_text(json.dumps(logs))


def _train(options, folder=None, epochs=2, num_batches=6):
    ccp, data = make_ccp(**options), Batches(num_batches)
    # Of the second one the bank has the texts at the end of the second epoch.
    held_out = [context_batch(7), context_batch(105, language=1)]
    callbacks, first_epoch = [PeriodicEvaluation(lambda: ccp_gaps(ccp, held_out), name="gaps")], 0
    if folder:
        callbacks.append(TrainingCheckpoint(folder, data))
        first_epoch = callbacks[-1].restore(ccp)
    history = ccp.fit(data, epochs=epochs, initial_epoch=first_epoch, callbacks=callbacks, verbose=0)
    return dict(history.history), variables_of(ccp)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
