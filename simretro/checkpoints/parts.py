"""What was trained beside an encoder, a decoder for instance: a file of its own in the encoder's folder."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.tensors import open_safetensors

PARTS_FILE = "parts.safetensors"


def read_parts(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """{part: {name: array}} of a folder; {} where there are none.

    Raises: CheckpointError if the file is damaged, or not one of `write_parts`.
    """
    path = folder / PARTS_FILE
    if not path.is_file():
        return {}
    tensors = open_safetensors([path])
    parts: dict[str, dict[str, np.ndarray]] = {}
    for place in tensors.found:
        part, separator, name = place.partition("/")
        if not separator:
            raise CheckpointError(f"{path} must hold tensors named part/name; received {place!r}.")
        parts.setdefault(part, {})[name] = tensors.read(place)
    return parts


def write_parts(folder: Path, parts: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Adds parts to an open folder, for `read_parts`.

    Args:
        folder: of an encoder that is being written.
        parts: {part: {name: array}}.
    """
    arrays = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
    # Not `ascontiguousarray`, which makes a vector of a scalar.
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, folder / PARTS_FILE)
