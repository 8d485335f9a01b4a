"""Trains tiny BiEncoders on one device or on two logical ones and writes logs and weights: `FOLDER REPLICAS`.

A program of its own, since TensorFlow takes logical devices only before its first operation.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from simretro.data import QueryPassages, TrainingQuery
from simretro.methods import BiEncoder
from simretro.models import build_transformer_model
from simretro.tokenizers import Tokenizer

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LETTERS = [chr(97 + i) for i in range(22)]


def make_tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), ":"]
    return Tokenizer({token: i for i, token in enumerate(tokens)})


def make_queries(number):
    """Queries that share letters with their passages; some passages answer two queries."""
    queries = []
    for i in range(number):
        a, b, c = (LETTERS[(i + j) % 20] for j in (0, 1, 5))
        positives = (f"{a} {b} " * (1 + i % 4), f"{b} {a} {c}")
        positives, negatives = positives[: 1 + i % 2], (f"{b} {c} {b}", f"{c} " * (1 + i % 5))
        scores = (2.0, 1.5)[: len(positives)], (0.1 * i, -1.0)
        queries.append(TrainingQuery(f"{a} {c}", positives, negatives, None, None, None, *scores))
    same = queries[0].positives[0]
    last = queries[-1]
    positives, scores = (*last.positives, same), (*last.positive_scores, 1.0)
    return [*queries[:-1], last._replace(positives=positives, positive_scores=scores)]


def make_encoder(seed=0, **options):
    keras.utils.set_random_seed(seed)
    encoder = build_transformer_model(CONFIG | options.pop("config", {}), **options)
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(3 * variable)  # so that the losses differ from those of a network without signal
    return encoder


def make_retriever(learning_rate=0.1, gradient_cache_rows=None, loss_scale=None, dtype=None, **options):
    retriever = BiEncoder(make_encoder(dtype=dtype), make_tokenizer(), **options)
    optimizer = keras.optimizers.SGD(learning_rate, global_clipnorm=1.0)
    if loss_scale is not None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, loss_scale)
    retriever.compile(optimizer, gradient_cache_rows=gradient_cache_rows)
    return retriever


def make_data(retriever, number=11, **options):
    options = {"queries_per_batch": 4, "negatives_per_query": 1, "query_maxlen": 8, "passage_maxlen": 16, **options}
    return QueryPassages(make_queries(number), retriever.tokenizer, length_multiple=8, **options)


def weights_of(retriever):
    """Every trained variable by its place: two encoders have variables of the same names."""
    return {f"{i}:{variable.path}": variable.numpy() for i, variable in enumerate(retriever.trainable_variables)}


def main(folder, replicas):
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(names) if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        # 11 queries: the last batch has 3 of them, 2 on one device and 1 on the other. 9: one device gets none.
        shared = _train(11, symmetric=True)
        towers = {"passage_encoder": make_encoder(1), "projection_size": 6, "pooling": "mean", "similarity": "dot"}
        apart = _train(9, temperature=1.0, **towers)
        # Two devices let one query at a time through their encoders, one device all four.
        taught = {"distillation": "kl", "temperature": 0.5, "matryoshka_sizes": [4, 8], "matryoshka_weights": [2, 0.5]}
        cached = _train(11, **taught, gradient_cache_rows=1 if replicas > 1 else None)
        half = _train(11, loss_scale=256.0, dtype="mixed_float16", temperature=0.1)  # gradients longer than 1
    runs = {
        "shared": shared,
        "apart": apart,
        "cached": cached,
        "half": half,
        "start": ({}, weights_of(make_retriever())),
    }
    for name, (logs, weights) in runs.items():
        np.savez(folder / f"{name}-{replicas}.npz", **weights)
        (folder / f"{name}-{replicas}.json").write_text(json.dumps(logs))


def _train(number, **options):
    retriever = make_retriever(**options)
    data = make_data(retriever, number, with_scores=retriever.distillation is not None)
    history = retriever.fit(data, epochs=3, verbose=0)
    return history.history, weights_of(retriever)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
