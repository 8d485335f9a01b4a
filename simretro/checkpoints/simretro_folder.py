"""simretro's own folder: `config.json`, `model.safetensors` under our names, the tokenizer's files beside them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import normalize_config, read_json
from simretro.checkpoints.tensors import open_safetensors
from simretro.checkpoints.variables import OPTIONAL_PARTS, check_weights, compare, variable_shapes
from simretro.checkpoints.vocabulary import tokenizer_folder, vocabulary_problems
from simretro.files import atomic_file, atomic_folder

FORMAT, FORMAT_VERSION = "simretro", 1


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
    if not isinstance(content.get("config"), dict) or not isinstance(content.get("facts"), dict):
        raise CheckpointError(f"{path} must hold the objects `config` and `facts`.")
    config = normalize_config(content["config"], str(path))
    tensors = open_safetensors([folder / "model.safetensors"])
    parts = {part: any(name.startswith(f"{part}/") for name in tensors.found) for part in OPTIONAL_PARTS}
    vocabulary = tokenizer_folder(folder)
    problems = vocabulary_problems(vocabulary, config, padded=True)
    shapes = variable_shapes(config, **parts)
    compare(shapes, tensors.found, tensors.source, problems)
    weights = {name: tensors.read(name) for name in shapes}
    return Checkpoint(config, weights, tensors.source, vocabulary, {"facts": content["facts"]})


def write_simretro(
    folder: str | Path, config: Mapping, weights: Mapping[str, np.ndarray], facts: Mapping | None = None
) -> None:
    """Writes simretro's own folder.

    Args:
        folder: replaced as a whole, see `atomic_folder`; the caller's own open folder gets the files added.
        config: the config of the weights.
        weights: {our name: float array}, all of them.
        facts: what is worth knowing of the training; JSON values.
    Raises: CheckpointError if weights and config do not fit.
    """
    config = normalize_config(config)
    check_weights(config, weights)
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, "config": config, "facts": dict(facts or {})}
    with atomic_folder(folder) as staging:
        with atomic_file(staging / "config.json", "w") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
        arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
        save_file(arrays, staging / "model.safetensors", metadata={"format": FORMAT})
