"""TensorFlow 1 checkpoints of BERT, SimBERT and RoFormer-Sim, as Google and bert4keras write them.

A folder holds `bert_config.json`, `vocab.txt` and `bert_model.ckpt.{index,data-00000-of-00001}`. Kernels are [in, out].
Reference: https://github.com/ZhuiyiTechnology/pretrained-models, https://github.com/bojone/bert4keras
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simretro.arguments import warn
from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import normalize_config, read_json
from simretro.checkpoints.variables import Found, NameMap, check_weights, match_variables, variable_shapes
from simretro.checkpoints.vocabulary import tokenizer_folder, vocabulary_problems
from simretro.files import atomic_file, atomic_folder

NAMES = NameMap(
    layers={
        "embeddings/norm": "bert/embeddings/LayerNorm",
        "embeddings/projection": "bert/encoder/embedding_hidden_mapping_in",
        "block/query": "bert/encoder/layer_{i}/attention/self/query",
        "block/key": "bert/encoder/layer_{i}/attention/self/key",
        "block/value": "bert/encoder/layer_{i}/attention/self/value",
        "block/attention_output": "bert/encoder/layer_{i}/attention/output/dense",
        "block/attention_norm": "bert/encoder/layer_{i}/attention/output/LayerNorm",
        "block/intermediate": "bert/encoder/layer_{i}/intermediate/dense",
        "block/output": "bert/encoder/layer_{i}/output/dense",
        "block/output_norm": "bert/encoder/layer_{i}/output/LayerNorm",
        "pooler": "bert/pooler/dense",
        "mlm_head/dense": "cls/predictions/transform/dense",
        "mlm_head/norm": "cls/predictions/transform/LayerNorm",
    },
    leaves={"kernel": "/kernel", "bias": "/bias", "gamma": "/gamma", "beta": "/beta"},
    whole={
        "embeddings/token/embeddings": "bert/embeddings/word_embeddings",
        "embeddings/position/embeddings": "bert/embeddings/position_embeddings",
        "embeddings/segment/embeddings": "bert/embeddings/token_type_embeddings",
        "mlm_head/bias": "cls/predictions/output_bias",
    },
)
_POSITIONS = NAMES.foreign("embeddings/position/embeddings")
# Google's pre-training leaves the step, Adam's moments and the next-sentence head behind; nothing here reads them.
_HARMLESS = ("global_step", "cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias")
_HARMLESS_ENDINGS = ("/adam_m", "/adam_v")


def find_prefix(path: Path) -> Path | None:
    """The prefix of the checkpoint that `path` (folder, config file, prefix, or `.index` file) names; None without."""
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if path.name and path.with_name(f"{path.name}.index").is_file():
        return path
    if path.is_file() and path.suffix != ".json":
        return path  # the one-file format that came before
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        return None
    prefixes = sorted(index.with_suffix("") for index in folder.glob("*.index"))
    usual = folder / "bert_model.ckpt"
    if len(prefixes) > 1 and usual not in prefixes:
        names = ", ".join(prefix.name for prefix in prefixes)
        raise CheckpointError(f"{folder} holds several checkpoints ({names}): give the path of one of them.")
    if not prefixes:
        return None
    return usual if usual in prefixes else prefixes[0]


def read_tf1(path: Path, config: Mapping | str | Path | None = None) -> Checkpoint:
    """Reads a TensorFlow 1 checkpoint.

    Args:
        path: the folder, its config file, or the prefix of the checkpoint.
        config: the keys of `bert_config.json` or the path of that file, in place of the one beside the checkpoint.
    Returns: Checkpoint. A checkpoint without a position table whose config does not say its `model_type` is taken for
        a RoFormer of bert4keras, with a warning.
    Raises:
        CheckpointError: if a file is missing or damaged, or if config, vocabulary and checkpoint do not fit.
        ImportError: without TensorFlow.
    """
    prefix = find_prefix(path)
    if prefix is None:
        raise CheckpointError(f"{path}: no TensorFlow checkpoint there; looked for `bert_model.ckpt.index`.")
    if config is None:
        config = path if path.suffix == ".json" else _find_config(prefix.parent)
    config, config_source = (config, "`config`") if isinstance(config, Mapping) else (read_json(config), str(config))
    reader, found = _open(prefix)
    config = normalize_config(_with_model_type(config, found, config_source), config_source)
    folder = tokenizer_folder(prefix.parent)
    problems = vocabulary_problems(folder, config, padded=False)
    matched = match_variables(config, NAMES, found, str(prefix), problems)
    weights = {}
    shapes = variable_shapes(config)
    for name, foreign in matched.items():
        try:
            weights[name] = NAMES.ours(name, reader.get_tensor(foreign), shapes[name])
        except Exception as error:  # TensorFlow's errors share no base class that could be named without TensorFlow
            raise CheckpointError(f"{prefix}: {foreign} cannot be read, the file is damaged: {error}") from error
    return Checkpoint(config, weights, str(prefix), folder)


def write_tf1(folder: str | Path, config: Mapping, weights: Mapping[str, np.ndarray]) -> None:
    """Writes `bert_config.json` and `bert_model.ckpt` under the names that bert4keras and Google's BERT read.

    Args:
        folder: replaced as a whole, see `atomic_folder`; the caller's own open folder gets the files added.
        config: the config of the weights; bert4keras leaves alone the keys that it does not know.
        weights: {our name: float array}, all of them.
    Raises:
        CheckpointError: if weights and config do not fit, or the format has no place for the positions.
        ImportError: without TensorFlow.
    """
    config = normalize_config(config)
    check_weights(config, weights)
    if config["position_offset"]:
        raise CheckpointError(
            f"TensorFlow 1 checkpoints count positions from row 0; this config has a `position_offset` of "
            f"{config['position_offset']} ({config['model_type']}). Write a Hugging Face folder."
        )
    tf = _tensorflow()
    names = [NAMES.foreign(name) for name in weights]
    with atomic_folder(folder, "a model") as staging:
        with atomic_file(staging / "bert_config.json", "w") as file:
            json.dump(config, file, indent=2)
            file.write("\n")
        with tf.device("cpu"):
            tf.raw_ops.SaveV2(
                prefix=str(staging / "bert_model.ckpt"),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.constant(np.asarray(array)) for array in weights.values()],
            )


def _find_config(folder):
    for pattern in ("bert_config.json", "bert_config*.json", "config.json"):
        candidates = sorted(folder.glob(pattern))
        if len(candidates) > 1:
            names = ", ".join(candidate.name for candidate in candidates)
            raise CheckpointError(f"{folder} holds several configs ({names}): give the path of one of them.")
        if candidates:
            return candidates[0]
    raise CheckpointError(f"{folder} holds a checkpoint, but no `bert_config.json`: put it there, or pass its path.")


def _tensorflow():
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "TensorFlow 1 checkpoints need TensorFlow: `pip install tensorflow`, or convert the checkpoint once on a "
            "machine that has it, with `write_huggingface`."
        ) from error
    return tf


def _open(prefix):
    """(reader, {name: Found}) of a checkpoint, without what is known to be harmless."""
    tf = _tensorflow()
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:
        raise CheckpointError(f"{prefix} cannot be read as a TensorFlow checkpoint: {error}") from error
    found = {
        name: Found(tuple(shapes[name]), dtypes[name].name)
        for name in sorted(shapes)
        if name not in _HARMLESS and not name.endswith(_HARMLESS_ENDINGS)
    }
    return reader, found


def _with_model_type(config, found, source):
    """Completes what bert4keras knows from its arguments and no RoFormer's config says."""
    if config.get("model_type") is None and _POSITIONS not in found:
        warn(
            f'{source} has no `model_type` and the checkpoint has no position table: it is read as "roformer" (rotary '
            "positions). Write the `model_type` into the config to say so."
        )
        config = {**config, "model_type": "roformer"}
    if config.get("model_type") == "roformer":
        # Keras' epsilon in bert4keras' blocks, and BERT's in its MLM head
        config = {"layer_norm_eps": 1e-7, "mlm_layer_norm_eps": 1e-12, **config}
    return config
