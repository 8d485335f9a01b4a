"""Files of tensors by name: safetensors, and torch's pickles where torch is installed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.variables import Found

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Tensors:
    """Files of tensors that have been opened: what they announce, and how one tensor is read.

    Attributes:
        source: str, the file, or the folder of several, for messages.
        found: {name: Found} of all tensors.
        read: name -> array.
    """

    source: str
    found: Mapping[str, Found]
    read: Callable[[str], np.ndarray]


def open_safetensors(paths: Sequence[Path]) -> Tensors:
    """Opens the shards of a safetensors checkpoint; nothing but their headers is read yet.

    Raises: CheckpointError naming the file that is missing or damaged, or a tensor that two files have.
    """
    found, place = {}, {}
    for path in paths:
        with _opened(path) as file:
            for name in file.keys():
                _refuse_twice(name, place, path)
                place[name] = path
                part = file.get_slice(name)
                found[name] = Found(tuple(part.get_shape()), _DTYPES.get(part.get_dtype(), part.get_dtype()))

    def read(name):
        if found[name].dtype == "bfloat16":
            import ml_dtypes  # noqa: F401  comes with Keras, and tells NumPy what a bfloat16 is
        with _opened(place[name]) as file:
            return file.get_tensor(name)

    return Tensors(_source(paths), found, read)


def open_torch(paths: Sequence[Path]) -> Tensors:
    """Opens the shards of a `pytorch_model.bin`; `weights_only`, so that nothing in the file is executed.

    Raises:
        CheckpointError: naming the file that is missing or damaged, or a tensor that two files have.
        ImportError: without torch.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{paths[0]} needs torch: `pip install torch`, or get the model as `model.safetensors`."
        ) from error
    tensors, place = {}, {}
    for path in paths:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a pickle can break in any way
            raise CheckpointError(f"{path} cannot be read as a file of torch weights: {error}") from error
        if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
            raise CheckpointError(f"{path} must hold a state dict, {{name: tensor}}; received something else.")
        for name, tensor in content.items():
            _refuse_twice(name, place, path)
            place[name] = path
            tensors[name] = tensor.detach()

    def read(name):
        tensor = tensors[name]
        if tensor.dtype != torch.bfloat16:
            return tensor.numpy()
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)

    found = {name: Found(tuple(tensor.shape), str(tensor.dtype).split(".")[-1]) for name, tensor in tensors.items()}
    return Tensors(_source(paths), found, read)


def _opened(path):
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.")
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {error}") from error


def _refuse_twice(name, place, path):
    if name in place:
        raise CheckpointError(f"{name} is in {place[name]} and in {path}.")


def _source(paths):
    return str(paths[0] if len(paths) == 1 else paths[0].parent)
