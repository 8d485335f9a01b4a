"""Writing a model's folder: config, weights and tokenizer together, in the format that the next tool reads."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simretro.checkpoints import DenseStage, write_huggingface, write_parts, write_pipeline, write_simretro, write_tf1
from simretro.files import atomic_folder
from simretro.models.weights import export_weights

_FOREIGN_WRITERS = {"huggingface": write_huggingface, "tf1": write_tf1}
_FORMATS = ("simretro", "sentence-transformers", *_FOREIGN_WRITERS)


def write_folder(
    folder: str | Path,
    encoder,
    tokenizer=None,
    facts: dict | None = None,
    format: str = "simretro",
    parts: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> None:
    """Writes a folder that takes the place of an older one only when all of it is written.

    Args:
        folder: path.
        encoder: `Transformer`.
        tokenizer: of `simretro.tokenizers`, or None.
        facts: JSON values worth knowing of the model; kept by the formats "simretro" and "sentence-transformers". The
            latter reads in `sentence_encoder` how vectors are made.
        format: "simretro", "sentence-transformers" (that, transformers and Keras Hub load it), "huggingface"
            (transformers loads it) or "tf1" (bert4keras loads it).
        parts: {name: {name: array}}, what was trained beside the encoder; kept where the facts are kept. Of a folder of
            sentence-transformers a "projection" is a stage, and so is the pooler if vectors come from there.
    Raises: ValueError for an unknown format, or if the folder holds an index, a calibrator, an encoded corpus or the
        checkpoints of a training run.
    """
    if format not in _FORMATS:
        raise ValueError(f"`format` must be one of {_FORMATS}; received {format!r}.")
    weights = export_weights(encoder)
    with atomic_folder(folder, "a model") as staging:
        if format == "simretro":
            write_simretro(staging, encoder.config, weights, facts)
        elif format == "sentence-transformers":
            if "sentence_encoder" not in (facts or {}):
                raise ValueError("`format='sentence-transformers'` needs a tokenizer; the model has none.")
            write_huggingface(staging, encoder.config, _with_pooler(encoder.config, weights), facts)
            parts = dict(parts or {})
            settings, dense = _stages(facts["sentence_encoder"], weights, parts.pop("projection", None))
            write_pipeline(staging, encoder.config["hidden_size"], settings, dense)
        else:
            _FOREIGN_WRITERS[format](staging, encoder.config, weights)
        if parts and format not in _FOREIGN_WRITERS:
            write_parts(staging, parts)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)


def _stages(settings, weights, projection):
    """(settings of the pooling, dense stages behind it)."""
    dense = [] if projection is None else [DenseStage(projection["kernel"])]
    if settings["pooling"] != "pooler":
        return settings, dense
    pooler = DenseStage(weights["pooler/kernel"], weights["pooler/bias"], tanh=settings["with_pool"] != "linear")
    return {**settings, "pooling": "cls"}, [pooler, *dense]


def _with_pooler(config, weights):
    """Keras Hub opens no BERT without a pooler, though no hidden state depends on it: where there is none, zeros."""
    if config["model_type"] != "bert" or "pooler/bias" in weights:
        return weights
    size = config["hidden_size"]
    return {**weights, "pooler/kernel": np.zeros((size, size), "float32"), "pooler/bias": np.zeros(size, "float32")}
