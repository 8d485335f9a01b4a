"""Hugging Face folders of BERT, RoBERTa, XLM-R and RoFormer: `config.json` and `model.safetensors`.

Kernels are [out, in]. A backbone alone has bare names; in a model with a head they have a prefix, `bert.` for instance.
Reference: https://github.com/huggingface/transformers
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from simretro.arguments import warn
from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import MODEL_TYPES, checked_facts, normalize_config, read_json
from simretro.checkpoints.parts import read_parts
from simretro.checkpoints.sentence_folder import read_dense, read_pipeline
from simretro.checkpoints.tensors import Tensors, open_safetensors, open_torch
from simretro.checkpoints.variables import NameMap, check_weights, match_variables, variable_shapes
from simretro.checkpoints.vocabulary import tokenizer_folder, vocabulary_problems
from simretro.files import atomic_file, atomic_folder

WEIGHT_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_PREFIX = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "roformer": "roformer."}
_ARCHITECTURE = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "roformer": "RoFormer"}
_LAYERS = {
    "embeddings/token": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/segment": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
    "embeddings/projection": "embeddings_project",
    "block/query": "encoder.layer.{i}.attention.self.query",
    "block/key": "encoder.layer.{i}.attention.self.key",
    "block/value": "encoder.layer.{i}.attention.self.value",
    "block/attention_output": "encoder.layer.{i}.attention.output.dense",
    "block/attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "block/intermediate": "encoder.layer.{i}.intermediate.dense",
    "block/output": "encoder.layer.{i}.output.dense",
    "block/output_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
}
_HEAD = {
    "mlm_head": "cls.predictions",
    "mlm_head/dense": "cls.predictions.transform.dense",
    "mlm_head/norm": "cls.predictions.transform.LayerNorm",
}
_FAIRSEQ_HEAD = {"mlm_head": "lm_head", "mlm_head/dense": "lm_head.dense", "mlm_head/norm": "lm_head.layer_norm"}
_LEAVES = {"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias", "embeddings": ".weight"}
# Buffers that transformers computes, and the next-sentence head.
_HARMLESS = (
    *("embeddings.position_ids", "embeddings.token_type_ids", "encoder.embed_positions.weight"),
    *("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
)
_FACTS = "simretro"  # our key in their config
_OLD_ENDINGS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


def name_map(model_type: str) -> NameMap:
    """The names that transformers gives the variables of a model type, without the backbone's prefix."""
    head = _FAIRSEQ_HEAD if model_type in ("roberta", "xlm-roberta") else _HEAD
    return NameMap({**_LAYERS, **head}, _LEAVES, transposed=True)


def read_huggingface(folder: Path) -> Checkpoint:
    """Reads a Hugging Face folder, also that of a sentence-transformers model.

    Args:
        folder: with `config.json` and `model.safetensors`, `pytorch_model.bin` (needs torch), or shards of those.
    Raises:
        CheckpointError: if a file is missing or damaged, or if config, vocabulary and weights do not fit.
        ImportError: if there are only torch weights, and no torch.
    """
    folder, extras = read_pipeline(folder)
    config, facts = _read_config(folder / "config.json")
    if facts:
        extras["facts"] = facts
    names = name_map(config["model_type"])
    copies = _copies(names)
    tensors = _canonical(_open_weights(folder), _PREFIX[config["model_type"]], copies)
    found = {name: entry for name, entry in tensors.found.items() if name not in _HARMLESS and name not in copies}
    vocabulary = tokenizer_folder(folder)
    problems = vocabulary_problems(vocabulary, config, padded=True)
    matched = match_variables(config, names, found, tensors.source, problems)
    shapes = variable_shapes(config)
    weights = {name: names.ours(name, tensors.read(theirs), shapes[name]) for name, theirs in matched.items()}
    _check_tied(tensors, names, copies, weights)
    parts = read_parts(folder)
    if "projection_folder" in extras:
        parts["projection"] = read_dense(extras.pop("projection_folder"))
    if "pooler_folder" in extras:  # of a pooler beside the encoder this stage knows nothing, nor that of it
        weights |= {f"pooler/{name}": array for name, array in read_dense(extras.pop("pooler_folder")).items()}
    return Checkpoint(config, weights, tensors.source, vocabulary, extras, parts=parts)


def write_huggingface(
    folder: str | Path, config: Mapping, weights: Mapping[str, np.ndarray], facts: Mapping | None = None
) -> None:
    """Writes `config.json` and `model.safetensors` that transformers loads without a missing variable.

    With an MLM head the folder is that of a `...ForMaskedLM`, else of a `...Model`. transformers has no class with
    both pooler and MLM head alone, so one of the two is unexpected to it, and none for a RoFormer's pooler.

    Args:
        folder: replaced as a whole, see `atomic_folder`; the caller's own open folder gets the files added.
        config: the config of the weights.
        weights: {our name: float array}, all of them.
        facts: what is worth knowing of the training, JSON values; they go into `config.json`, as `simretro`.
    Raises: CheckpointError if weights and config do not fit, or transformers has no such model.
    """
    config = normalize_config(config)
    check_weights(config, weights)
    told = {_FACTS: checked_facts(facts)} if facts else {}
    _check_expressible(config, with_mlm="mlm_head/bias" in weights)
    config, weights = _with_their_positions(config, _with_segments(config, weights))
    names, prefix = name_map(config["model_type"]), _PREFIX[config["model_type"]]
    with_mlm = "mlm_head/bias" in weights
    arrays = {}
    for name, array in weights.items():
        own_prefix = prefix if with_mlm and not name.startswith("mlm_head/") else ""
        arrays[own_prefix + names.foreign(name)] = names.theirs(name, np.asarray(array))
    if config["position_embedding_type"] == "rotary":
        arrays[(prefix if with_mlm else "") + "encoder.embed_positions.weight"] = _sinusoids(config)
    with atomic_folder(folder, "a model") as staging:
        with atomic_file(staging / "config.json", "w") as file:
            json.dump({**_their_config(config, with_mlm), **told}, file, indent=2)
            file.write("\n")
        save_file(arrays, staging / "model.safetensors", metadata={"format": "pt"})


def _read_config(path):
    content = read_json(path)
    if content.get("model_type") is None:  # as old files have it: the class tells
        architecture = str((content.get("architectures") or ["Bert"])[0])
        kinds = [kind for kind in MODEL_TYPES if architecture.startswith(_ARCHITECTURE[kind])]
        content = {**content, "model_type": kinds[0] if kinds else architecture}
    facts = content.get(_FACTS, {})
    return normalize_config(content, str(path)), facts if isinstance(facts, dict) else {}


def _open_weights(folder):
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file():
            opener = open_torch if "pytorch_model" in name else open_safetensors
            return _open_shards(path, opener) if name.endswith(".json") else opener([path])
    raise CheckpointError(f"{folder} holds no weights; looked for {', '.join(WEIGHT_FILES)}.")


def _open_shards(index, opener):
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} must hold the object `weight_map`, {{name: file}}.")
    files = sorted(set(map(str, places.values())))
    outside = [file for file in files if Path(file).name != file]
    if outside:
        raise CheckpointError(f"{index} must name files of its own folder; received {', '.join(outside)}.")
    tensors = opener([index.with_name(file) for file in files])
    absent = sorted(places.keys() - tensors.found.keys())
    if absent:
        raise CheckpointError(f"{index} names tensors that its files lack: {', '.join(absent)}.")
    return tensors


def _copies(names):
    """{their name of a copy of a tied variable: their name of the variable}."""
    table, bias = names.foreign("embeddings/token/embeddings"), names.foreign("mlm_head/bias")
    decoder = bias.replace(".bias", ".decoder")
    return {f"{decoder}.weight": table, f"{decoder}.bias": bias}


def _canonical(tensors, prefix, copies):
    """The same tensors under today's names: no prefix, `weight` and `bias` for the norms."""
    theirs = {}
    for name in tensors.found:
        today = name.removeprefix(prefix)
        for old, new in _OLD_ENDINGS.items():
            today = today.removesuffix(old) + new if today.endswith(old) else today
        # bert4torch and ALBERT name the projection of factorised embeddings like TensorFlow's
        today = today.replace("encoder.embedding_hidden_mapping_in.", "embeddings_project.")
        if today in theirs:
            raise CheckpointError(f"{tensors.source} has {today} twice, as {theirs[today]} and as {name}.")
        theirs[today] = name
    for copy, original in copies.items():  # of tied variables a file may have kept either
        if copy in theirs and original not in theirs:
            theirs[original] = theirs.pop(copy)
    found = {today: tensors.found[name] for today, name in theirs.items()}
    return Tensors(tensors.source, found, lambda today: tensors.read(theirs[today]))


def _check_tied(tensors, names, copies, weights):
    originals = {names.foreign(name): name for name in weights}
    for copy, original in copies.items():
        if copy in tensors.found and not np.array_equal(tensors.read(copy), weights[originals[original]]):
            raise CheckpointError(
                f"{tensors.source}: {copy} differs from {original}, to which it must be tied; an output table of its "
                "own is not supported."
            )


def _check_expressible(config, with_mlm):
    if config["model_type"] != "roformer" and config["embedding_size"] != config["hidden_size"]:
        raise CheckpointError(
            f"transformers has no {config['model_type']!r} with `embedding_size` {config['embedding_size']} beside "
            f"`hidden_size` {config['hidden_size']}. Write a TensorFlow 1 checkpoint, or simretro's own folder."
        )
    if config["model_type"] != "roformer" and config["position_embedding_type"] == "rotary":
        raise CheckpointError('transformers has rotary positions for `model_type` "roformer" alone.')
    if config["model_type"] == "bert" and config["position_offset"]:
        raise CheckpointError('transformers has a `position_offset` for "roberta" and "xlm-roberta", not for "bert".')
    theirs = "gelu" if config["model_type"] in ("roberta", "xlm-roberta") else _their_activation(config["hidden_act"])
    if with_mlm and _their_activation(config["mlm_hidden_act"]) != theirs:
        warn(
            f"transformers will compute the MLM head with {theirs!r}, for which this model has "
            f"{config['mlm_hidden_act']!r}: its predictions will differ slightly, the encoder's vectors not."
        )


def _with_segments(config, weights):
    """transformers adds a segment vector always: where there is none, a zero one."""
    if config["type_vocab_size"]:
        return weights
    zeros = np.zeros((1, config["embedding_size"]), "float32")
    return {**weights, "embeddings/segment/embeddings": zeros}


def _with_their_positions(config, weights):
    """RoBERTa in transformers starts at the row after the padding token's id; Keras Hub's starts at row 0."""
    config = {**config, "type_vocab_size": config["type_vocab_size"] or 1}
    offset = config["pad_token_id"] + 1
    if config["model_type"] not in ("roberta", "xlm-roberta") or config["position_offset"] == offset:
        return config, weights
    used = weights["embeddings/position/embeddings"][config["position_offset"] :]
    table = np.concatenate([np.zeros((offset, used.shape[1]), used.dtype), used])
    config |= {"position_offset": offset, "max_position_embeddings": len(table)}
    return config, {**weights, "embeddings/position/embeddings": table}


def _their_activation(name):
    return "gelu_pytorch_tanh" if name in ("gelu_tanh", "gelu_new") else name


def _their_config(config, with_mlm):
    model_type = config["model_type"]
    architecture = _ARCHITECTURE[model_type] + ("ForMaskedLM" if with_mlm else "Model")
    theirs = {"architectures": [architecture], **config, "hidden_act": _their_activation(config["hidden_act"])}
    if model_type == "roformer":
        theirs["rotary_value"] = False
        del theirs["position_embedding_type"]  # not a key of theirs, and the model type says it
    return theirs


def _sinusoids(config):
    """RoFormer's table (positions, head) of sines, then cosines; transformers stores what it could compute."""
    head = config["hidden_size"] // config["num_attention_heads"]
    positions = np.arange(config["max_position_embeddings"])[:, None]
    angles = positions / np.power(10000, 2 * np.arange(head // 2) / head)
    table = np.zeros((len(positions), head))
    table[:, : head // 2], table[:, -(head // 2) :] = np.sin(angles), np.cos(angles)
    return table.astype("float32")
