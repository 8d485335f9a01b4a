"""simretro's own folder: `config.json`, `model.safetensors` under our names, the tokenizer's files beside them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import checked_facts, normalize_config, read_json
from simretro.checkpoints.parts import read_parts
from simretro.checkpoints.tensors import open_safetensors
from simretro.checkpoints.variables import OPTIONAL_PARTS, check_weights, compare, variable_shapes
from simretro.checkpoints.vocabulary import tokenizer_folder, vocabulary_problems
from simretro.files import atomic_file, atomic_folder, crc32_of

FORMAT, FORMAT_VERSION = "simretro", 1
_WEIGHTS = "model.safetensors"


def read_simretro(folder: Path) -> Checkpoint:
    """Reads simretro's own folder.

    Raises: CheckpointError if a file is missing, damaged or of a later version, or the files do not fit together.
    """
    path = folder / "config.json"
    content = read_json(path)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: `format_version` is {version!r}, this simretro reads {FORMAT_VERSION}. Update simretro."
        )
    checksums = content.get("crc32", {})  # folders of the first versions have none
    if not all(isinstance(part, dict) for part in (content.get("config"), content.get("facts"), checksums)):
        raise CheckpointError(f"{path} must hold the objects `config` and `facts`, and `crc32` must be one.")
    config = normalize_config(content["config"], str(path))
    tensors = open_safetensors([folder / _WEIGHTS])
    parts = {part: any(name.startswith(f"{part}/") for name in tensors.found) for part in OPTIONAL_PARTS}
    vocabulary = tokenizer_folder(folder)
    problems = vocabulary_problems(vocabulary, config, padded=True)
    shapes = variable_shapes(config, **parts)
    compare(shapes, tensors.found, tensors.source, problems)
    if _WEIGHTS in checksums and checksums[_WEIGHTS] != crc32_of(folder / _WEIGHTS):
        raise CheckpointError(
            f"{tensors.source} is damaged: its checksum is not the one in {path}. Copy the folder again; if the "
            "weights were changed on purpose, remove `crc32` there."
        )
    weights = {name: tensors.read(name) for name in shapes}
    return Checkpoint(
        config, weights, tensors.source, vocabulary, {"facts": content["facts"]}, parts=read_parts(folder)
    )


def write_simretro(
    folder: str | Path, config: Mapping, weights: Mapping[str, np.ndarray], facts: Mapping | None = None
) -> None:
    """Writes simretro's own folder.

    Args:
        folder: replaced as a whole, see `atomic_folder`; the caller's own open folder gets the files added.
        config: the config of the weights.
        weights: {our name: float array}, all of them.
        facts: what is worth knowing of the training; JSON values.
    Raises:
        CheckpointError: if weights and config do not fit.
        TypeError, ValueError: if `facts` are no JSON values; NaN and infinity are none.
    """
    config = normalize_config(config)
    check_weights(config, weights)
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, "config": config, "facts": checked_facts(facts)}
    with atomic_folder(folder, "a model") as staging:
        arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
        save_file(arrays, staging / _WEIGHTS, metadata={"format": FORMAT})
        content["crc32"] = {_WEIGHTS: crc32_of(staging / _WEIGHTS)}
        with atomic_file(staging / "config.json", "w") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
