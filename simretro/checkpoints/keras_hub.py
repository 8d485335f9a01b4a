"""Keras Hub presets of BERT, RoBERTa and XLM-R: `config.json` and `model.weights.h5`; a MaskedLM's head lies beside.

Keras names the groups of its HDF5 files after classes and attributes, so they are read without Keras Hub.
Reference: https://github.com/keras-team/keras-hub
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simretro.arguments import warn
from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import normalize_config, read_json
from simretro.checkpoints.tensors import Tensors
from simretro.checkpoints.variables import Found, NameMap, check_weights, match_variables, variable_shapes
from simretro.checkpoints.vocabulary import tokenizer_folder, vocabulary_problems
from simretro.files import atomic_file, atomic_folder

_BLOCK = "layers/transformer_encoder{_i}/"
_ATTENTION = _BLOCK + "_self_attention_layer/"
_LAYERS = {
    "embeddings/norm": "layers/layer_normalization",
    "block/query": _ATTENTION + "query_dense",
    "block/key": _ATTENTION + "key_dense",
    "block/value": _ATTENTION + "value_dense",
    "block/attention_output": _ATTENTION + "output_dense",
    "block/attention_norm": _BLOCK + "_self_attention_layer_norm",
    "block/intermediate": _BLOCK + "_feedforward_intermediate_dense",
    "block/output": _BLOCK + "_feedforward_output_dense",
    "block/output_norm": _BLOCK + "_feedforward_layer_norm",
    "pooler": "layers/dense",
    "mlm_head": "layers/masked_lm_head",
    "mlm_head/dense": "layers/masked_lm_head/_intermediate_dense",
    "mlm_head/norm": "layers/masked_lm_head/_intermediate_layer_norm",
}
_BERT_EMBEDDINGS = {
    "embeddings/token": "layers/reversible_embedding",
    "embeddings/position": "layers/position_embedding",
    "embeddings/segment": "layers/embedding",
}
_ROBERTA_EMBEDDINGS = {
    "embeddings/token": "layers/token_and_position_embedding/token_embedding",
    "embeddings/position": "layers/token_and_position_embedding/position_embedding",
    "embeddings/segment": "layers/embedding",  # which no RoBERTa of Keras Hub has
}
_LEAVES = {
    **{"kernel": "/vars/0", "bias": "/vars/1", "gamma": "/vars/0", "beta": "/vars/1"},
    "embeddings": "/vars/0",
}
_BACKBONES = {"BertBackbone": "bert", "RobertaBackbone": "roberta", "XLMRobertaBackbone": "xlm-roberta"}
_TASK_FILE = "task.weights.h5"
_ACTIVATIONS = dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
_MODULES = {"bert": "bert.bert", "roberta": "roberta.roberta", "xlm-roberta": "xlm_roberta.xlm_roberta"}


def read_keras_hub(folder: Path) -> Checkpoint:
    """Reads a Keras Hub preset from a folder.

    Raises: CheckpointError if the preset is of another backbone, quantized or sharded, if a file is missing or damaged,
        or if config, vocabulary and weights do not fit.
    """
    config = _read_config(folder / "config.json")
    if not (folder / "model.weights.h5").is_file() and (folder / "model.weights.json").is_file():
        raise CheckpointError(
            f"{folder} is sharded, which is not supported: load it with Keras Hub and save it with "
            "`save_to_preset(..., max_shard_size=None)`."
        )
    tensors = _open([folder / "model.weights.h5", *_existing(folder / _TASK_FILE)])
    names = _name_map(config["model_type"])
    vocabulary = tokenizer_folder(folder / "assets" / "tokenizer")
    problems = vocabulary_problems(vocabulary, config, padded=True)
    matched = match_variables(config, names, tensors.found, tensors.source, problems)
    shapes = variable_shapes(config)
    weights = {name: names.ours(name, tensors.read(theirs), shapes[name]) for name, theirs in matched.items()}
    return Checkpoint(config, weights, tensors.source, vocabulary, _read_extras(folder))


def write_keras_hub(folder: str | Path, config: Mapping, weights: Mapping[str, np.ndarray]) -> None:
    """Writes `config.json` and `model.weights.h5` of a preset; the MLM head, which is a task's there, is left out.

    Args:
        folder: replaced as a whole, see `atomic_folder`; the caller's own open folder gets the files added.
        config: the config of the weights.
        weights: {our name: float array}, all of them.
    Raises: CheckpointError if weights and config do not fit, or Keras Hub has no such backbone.
    """
    config = normalize_config(config)
    check_weights(config, weights)
    _check_expressible(config)
    weights = _their_weights(config, weights)
    names, heads = _name_map(config["model_type"]), config["num_attention_heads"]
    import h5py

    with atomic_folder(folder, "a model") as staging:
        with h5py.File(staging / "model.weights.h5", "w") as file:
            for name, array in weights.items():
                file[names.foreign(name)] = array.reshape(names.foreign_shape(name, array.shape, heads))
        with atomic_file(staging / "config.json", "w") as file:
            json.dump(_their_config(config, weights), file, indent=2)
            file.write("\n")


def keras_hub_object(model_type: str, kind: str, config: Mapping) -> dict:
    """How a preset's JSON describes an object: `kind` is "Backbone" or "Tokenizer"."""
    backbone = next(name for name, ours in _BACKBONES.items() if ours == model_type)
    name = backbone.replace("Backbone", kind)
    module = f"keras_hub.src.models.{_MODULES[model_type]}_{kind.lower()}"
    return {"module": module, "class_name": name, "config": dict(config), "registered_name": f"keras_hub>{name}"}


def _name_map(model_type):
    embeddings = _BERT_EMBEDDINGS if model_type == "bert" else _ROBERTA_EMBEDDINGS
    bias = {"mlm_head/bias": _LAYERS["mlm_head"] + "/vars/0"}
    return NameMap({**_LAYERS, **embeddings}, _LEAVES, bias, split_heads=True)


def _check_expressible(config):
    if config["model_type"] not in _BACKBONES.values() or config["position_embedding_type"] != "absolute":
        raise CheckpointError(
            f"Keras Hub has no encoder {config['model_type']!r} with {config['position_embedding_type']} positions. "
            "Write another format."
        )
    if config["embedding_size"] != config["hidden_size"]:
        raise CheckpointError(
            f"Keras Hub has no {config['model_type']!r} with `embedding_size` {config['embedding_size']} beside "
            f"`hidden_size` {config['hidden_size']}. Write another format."
        )
    fixed = _fixed(config["model_type"] == "bert")
    theirs = {key: fixed[key] for key in ("hidden_act", "layer_norm_eps")}
    ours = {**theirs, **{key: config[key] for key in theirs}}
    ours["hidden_act"] = _ACTIVATIONS.get(ours["hidden_act"], ours["hidden_act"])
    different = [f"`{key}` is {ours[key]!r}, there {theirs[key]!r}" for key in theirs if ours[key] != theirs[key]]
    if different:
        warn(
            f"Keras Hub's code decides what no preset can say: {'; '.join(different)}. Hidden states will differ a "
            "little from this model's (up to .004 were seen with 6 layers)."
        )


def _their_weights(config, weights):
    """Tables as Keras Hub has them: positions from row 0 on, two segments in BERT and none elsewhere."""
    weights = {name: np.asarray(array, "float32") for name, array in weights.items() if _part(name) != "mlm_head"}
    positions, segments = "embeddings/position/embeddings", "embeddings/segment/embeddings"
    weights[positions] = weights[positions][config["position_offset"] :]
    size = config["hidden_size"]
    if config["model_type"] != "bert":
        if segments in weights:  # the same for all tokens
            weights[positions] = weights[positions] + weights.pop(segments)[0]
        return {name: array for name, array in weights.items() if _part(name) != "pooler"}
    weights.setdefault(segments, np.zeros((1, size), "float32"))
    weights.setdefault("pooler/kernel", np.zeros((size, size), "float32"))
    weights.setdefault("pooler/bias", np.zeros(size, "float32"))
    return weights


def _their_config(config, weights):
    theirs = {
        "vocabulary_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "hidden_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "dropout": config["hidden_dropout_prob"],
        "max_sequence_length": len(weights["embeddings/position/embeddings"]),
    }
    if config["model_type"] == "bert":
        theirs["num_segments"] = len(weights["embeddings/segment/embeddings"])
    return keras_hub_object(config["model_type"], "Backbone", theirs)


def _part(name):
    return name.split("/", 1)[0]


def _fixed(bert):
    """What Keras Hub does not write down, and its code decides.

    `gelu_approximate` and 1e-12 in BERT's blocks, the exact GELU and 1e-5 in RoBERTa's and in every MLM head; no
    position offset.
    """
    return {
        "hidden_act": "gelu_tanh" if bert else "gelu",
        "mlm_hidden_act": "gelu",
        "layer_norm_eps": 1e-12 if bert else 1e-5,
        "mlm_layer_norm_eps": 1e-5,
        "position_offset": 0,
    }


def _read_config(path):
    content = read_json(path)
    kind, theirs = content.get("class_name"), content.get("config")
    if kind not in _BACKBONES or not isinstance(theirs, dict):
        raise CheckpointError(f"{path}: `class_name` must be one of {tuple(_BACKBONES)}; received {kind!r}.")
    bert = kind == "BertBackbone"
    ours = {
        "model_type": _BACKBONES[kind],
        "vocab_size": theirs.get("vocabulary_size"),
        "hidden_size": theirs.get("hidden_dim"),
        "num_hidden_layers": theirs.get("num_layers"),
        "num_attention_heads": theirs.get("num_heads"),
        "intermediate_size": theirs.get("intermediate_dim"),
        "hidden_dropout_prob": theirs.get("dropout"),
        "attention_probs_dropout_prob": theirs.get("dropout"),
        "max_position_embeddings": theirs.get("max_sequence_length"),
        "type_vocab_size": theirs.get("num_segments", 2) if bert else 0,
        **_fixed(bert),
    }
    return normalize_config(ours, str(path))


def _open(paths):
    """Opens HDF5 files of Keras; the optimizer of a task is left out."""
    found, place = {}, {}
    for path in paths:
        for name, variable in _variables(path).items():
            # Older Keras had no public names for the projections of attention, Keras 2 another one for the layers
            today = re.sub(r"/_(query|key|value|output)_dense/", r"/\1_dense/", name)
            today = re.sub("^_layer_checkpoint_dependencies/", "layers/", today)
            found[today], place[today] = variable, (path, name)

    def read(today):
        path, name = place[today]
        with _opened(path) as file:
            try:
                array = np.array(file[name])
            except OSError as error:
                raise CheckpointError(f"{path} is damaged, {name} cannot be read: {error}") from error
        if found[today].dtype == "bfloat16":
            import ml_dtypes  # comes with Keras; HDF5 has no bfloat16 and keeps the bytes

            array = array.view(ml_dtypes.bfloat16)
        return array

    return Tensors(str(paths[0] if len(paths) == 1 else paths[0].parent), found, read)


def _variables(path):
    import h5py

    variables = {}

    def visit(name, entry):
        if not isinstance(entry, h5py.Dataset) or name.startswith("optimizer/"):
            return
        if entry.external or entry.is_virtual:
            raise CheckpointError(f"{path}: {name} refers to data in another file, which is not followed.")
        variables[name] = Found(entry.shape, entry.attrs.get("dtype", entry.dtype.name))

    with _opened(path) as file:
        file.visititems(visit)
    return variables


def _opened(path):
    import h5py  # comes with Keras, and with nothing else here

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path} is damaged, or no HDF5 file: {error}") from error


def _existing(path):
    return [path] if path.is_file() else []


def _read_extras(folder):
    extras = {}
    for path in _existing(folder / "task.json"):
        config = read_json(path).get("config") or {}
        extras |= {"pooling": config.get("pooling_mode"), "normalize": config.get("normalize")}
    for path in _existing(folder / "tokenizer.json"):
        extras["do_lower_case"] = (read_json(path).get("config") or {}).get("lowercase")
    return {key: value for key, value in extras.items() if value is not None}
