"""What a sentence-transformers folder says beyond its encoder: pooling, normalisation, the longest input.

Reference: https://www.sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.config import read_json
from simretro.checkpoints.tensors import open_safetensors

_MODES = {  # the switches of `1_Pooling/config.json`; several that are on are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DENSE_FILE, _DENSE_WEIGHT, _DENSE_BIAS = "model.safetensors", "linear.weight", "linear.bias"
_TOKENIZER, _NO_LIMIT = "tokenizer_config.json", 1_000_000  # transformers writes 1e30 where there is none
_LINEAR, _TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


@dataclass(frozen=True)
class DenseStage:
    """A dense layer between pooling and normalisation.

    Attributes:
        kernel: float (in, out).
        bias: float (out,) or None.
        tanh: bool, whether a tanh follows.
    """

    kernel: np.ndarray
    bias: np.ndarray | None = None
    tanh: bool = False


def read_pipeline(folder: Path) -> tuple[Path, dict]:
    """Reads `modules.json` and the small files that it names.

    Args:
        folder: of a sentence-transformers model, or any other.
    Returns: the folder of the encoder, and the `extras` of `Checkpoint`; `folder` and {} without a `modules.json`.
    Raises: CheckpointError if one of the files is missing or wrong.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return folder, {}
    encoder, extras, others = None, {"normalize": False}, []
    for module in read_json(path, list):
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise CheckpointError(f"{path} must hold objects with a `type`; received {module!r}.")
        kind, place = module["type"].rsplit(".", 1)[-1], _inside(folder, module.get("path", ""), path)
        if kind == "Transformer" and encoder is None:
            encoder = place
            extras |= _limits(place)
        elif kind == "Pooling" and "pooling" not in extras:
            extras["pooling"] = _pooling(place / "config.json")
        elif kind == "Normalize":
            extras["normalize"] = True
        elif kind == "Dense" and _is_pooler(config := _dense_config(place), extras):
            with_pool = config["activation_function"] == _TANH or "linear"
            extras |= {"pooling": "pooler", "pooler_folder": place, "with_pool": with_pool}
        elif kind == "Dense" and _is_projection(config, extras):
            extras["projection_folder"] = place
        elif kind != "Dropout":  # which does nothing outside training
            others.append(kind)
    if encoder is None:
        raise CheckpointError(f"{path} names no Transformer module.")
    extras |= _use(folder / "config_sentence_transformers.json")
    if others:
        extras["other_modules"] = others
    return encoder, extras


def read_dense(folder: Path) -> dict[str, np.ndarray]:
    """{"kernel": float32 (in, out)} of a Dense module, and with a bias "bias", float32 (out,).

    Raises: CheckpointError if its file is missing, damaged, or holds something else.
    """
    tensors = open_safetensors([folder / _DENSE_FILE])
    config = _dense_config(folder)
    wanted = {_DENSE_WEIGHT: (config.get("out_features"), config.get("in_features"))}
    if config.get("bias"):
        wanted[_DENSE_BIAS] = wanted[_DENSE_WEIGHT][:1]
    if {name: found.shape for name, found in tensors.found.items()} != wanted:
        told = " and ".join(f"{name} of shape {shape}" for name, shape in wanted.items())
        raise CheckpointError(f"{tensors.source} must hold {told}, and nothing else.")
    names = {"kernel": _DENSE_WEIGHT, "bias": _DENSE_BIAS}
    return {
        name: np.ascontiguousarray(tensors.read(theirs).T).astype("float32")
        for name, theirs in names.items()
        if theirs in wanted
    }


def write_pipeline(folder: Path, dimension: int, settings: Mapping, dense: Sequence[DenseStage] = ()) -> None:
    """Adds to a Hugging Face folder what makes it one of sentence-transformers.

    Args:
        folder: with the encoder, being written.
        dimension: int, of what is pooled.
        settings: `pooling` ("cls" or "mean"), `normalize` and `maxlen`, as `SentenceEncoder.settings` gives them; also
            `prompts`, {name: what is put before a text}, and `similarity`, "cosine" or "dot", where they are known.
        dense: the stages behind the pooling.
    Raises: CheckpointError for another pooling.
    """
    if settings["pooling"] not in ("cls", "mean"):
        raise CheckpointError(
            f"A sentence-transformers folder needs `pooling` 'cls' or 'mean'; received {settings['pooling']!r}. Write "
            "the format 'simretro', or use `simretro.export`."
        )
    kinds = ["Transformer", "Pooling", *(["Dense"] * len(dense)), *(["Normalize"] if settings["normalize"] else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pooling = {switch: mode == settings["pooling"] for switch, mode in _MODES.items()}
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": settings["maxlen"], "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": dict(settings.get("prompts", {})),
            "default_prompt_name": None,
            "similarity_fn_name": settings.get("similarity"),
        },
        "1_Pooling/config.json": {"word_embedding_dimension": dimension, **pooling},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for module in modules[2:]:
        (folder / module["path"]).mkdir(exist_ok=True)
    for module, stage in zip(modules[2:], dense, strict=False):  # behind them comes `Normalize`, which has no files
        _write_dense(folder / module["path"], stage)


def _write_dense(folder, stage):
    config = {
        "in_features": stage.kernel.shape[0],
        "out_features": stage.kernel.shape[1],
        "bias": stage.bias is not None,
        "activation_function": _TANH if stage.tanh else _LINEAR,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    arrays = {_DENSE_WEIGHT: stage.kernel.T} | ({} if stage.bias is None else {_DENSE_BIAS: stage.bias})
    arrays = {name: np.ascontiguousarray(array, "float32") for name, array in arrays.items()}
    save_file(arrays, folder / _DENSE_FILE, metadata={"format": "pt"})


def _dense_config(folder):
    path = folder / "config.json"
    return read_json(path) if path.is_file() and (folder / _DENSE_FILE).is_file() else {}


def _is_pooler(config, extras):
    """Whether a dense stage is what BERT has as its pooler: right behind the first token's state, and as wide."""
    behind = extras.get("pooling") == "cls" and "projection_folder" not in extras and not extras["normalize"]
    square = config.get("in_features") == config.get("out_features")
    return behind and square and bool(config.get("bias")) and config.get("activation_function") in (_LINEAR, _TANH)


def _is_projection(config, extras):
    first = "pooling" in extras and "projection_folder" not in extras
    return first and config.get("bias") is False and config.get("activation_function") == _LINEAR


def _inside(folder, place, path):
    if not isinstance(place, str) or ".." in Path(place).parts or Path(place).is_absolute():
        raise CheckpointError(f"{path} must name folders inside its own; received {place!r}.")
    return folder / place


def _limits(folder):
    paths = sorted(folder.glob("sentence_*_config.json"))  # `bert`, `roberta`, `xlm-roberta`
    content = read_json(paths[0]) if paths else {}
    limits = {"maxlen": content.get("max_seq_length"), "do_lower_case": content.get("do_lower_case")}
    if limits["maxlen"] is None and (folder / _TOKENIZER).is_file():  # since version 5.7
        limit = read_json(folder / _TOKENIZER).get("model_max_length")
        limits["maxlen"] = limit if isinstance(limit, int) and limit < _NO_LIMIT else None
    return {key: value for key, value in limits.items() if value is not None}


def _use(path):
    """What texts begin with, {name: prompt}, and how vectors are compared, where the folder says so."""
    content = read_json(path) if path.is_file() else {}
    prompts, default = content.get("prompts") or {}, content.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise CheckpointError(f"{path}: `prompts` must be an object of strings; received {prompts!r}.")
    use = {"prompts": {name: prompt for name, prompt in prompts.items() if prompt}}
    use |= {"default_prompt": prompts.get(default), "similarity": content.get("similarity_fn_name")}
    return {key: value for key, value in use.items() if value}


def _pooling(path):
    content = read_json(path)
    modes = content.get("pooling_mode")  # new files have the name, or a list of names
    if modes is None:
        modes = [name for switch, name in _MODES.items() if content.get(switch)]
    return modes if isinstance(modes, str) else "+".join(map(str, modes)) or "mean"
