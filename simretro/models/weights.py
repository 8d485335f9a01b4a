"""Weights by name: between a Keras model and a dict of arrays, with every variable accounted for."""

import math
import zlib
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from simretro.checkpoints.variables import OPTIONAL_PARTS
from simretro.models.compiled import compiled

_NUMBERS_OF_TABLE, _NUMBERS_OF_MATRIX = 512, 16  # that a quick checksum reads


def named_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """{our name: variable} of a `Transformer`, e.g. "block_0/query/kernel"; seeds of dropout layers are left out."""
    named = {}
    for variable in model.weights:
        if variable.path in named:
            raise ValueError(f"Two variables of the model are named {variable.path!r}.")
        named[variable.path] = variable
    return {name: variable for name, variable in named.items() if "seed_generator" not in name}


def export_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """{our name: float array} of a `Transformer`."""
    return {name: ops.convert_to_numpy(variable) for name, variable in named_variables(model).items()}


def quick_checksum(model: keras.Model) -> int:
    """A number that changes when the encoder's weights are replaced or trained, and takes a millisecond.

    Of all biases and gains, and of some numbers of each matrix, which an update changes as a whole; of more numbers of
    a table whose rows are looked up, spread over these: a few rows assigned by hand may go unnoticed. What is for the
    MLM head alone is left out. To compare models that are not in one process, take a fingerprint.
    """
    sample = compiled(model, "checksum", lambda: _sample(model), any_shape=True)
    return zlib.crc32(np.ascontiguousarray(ops.convert_to_numpy(sample())))


def _sample(model):
    checked = {name: v for name, v in named_variables(model).items() if not name.startswith("mlm_head/")}

    def function():
        # One array of them all: to fetch a hundred takes longer than to encode a query.
        return ops.concatenate([ops.cast(_some_of(*named), "float32") for named in checked.items()])

    return function


def _some_of(name, variable):
    """All numbers of a vector, the first ones of a matrix, every so many-th of a table."""
    if len(variable.shape) == 1:
        return variable
    if not name.startswith("embeddings/"):
        return variable[0, :_NUMBERS_OF_MATRIX]
    step = max(1, math.prod(variable.shape) // _NUMBERS_OF_TABLE)
    while math.gcd(step, variable.shape[-1]) > 1:  # they would all be of a few columns
        step += 1
    return ops.reshape(variable, (-1,))[::step]


def load_weights(
    model: keras.Model, weights: dict[str, np.ndarray], source: str, new_parts: Iterable[str] = ()
) -> None:
    """Assigns arrays to the variables of the same name.

    Args:
        model: `Transformer`.
        weights: {our name: array}. What belongs to "pooler" or "mlm_head" may be there without the model having it.
        source: str, where the arrays are from, for messages.
        new_parts: names among "pooler", "mlm_head" that may be missing: they keep their initial values.
    Raises: ValueError naming all variables that are missing, unexpected or of another shape, before any is assigned.
    """
    variables = named_variables(model)
    missing = [name for name in variables if name not in weights and _part(name) not in new_parts]
    unexpected = [name for name in weights if name not in variables and _part(name) not in OPTIONAL_PARTS]
    misshapen = [
        f"{name}: model {tuple(variable.shape)}, file {tuple(weights[name].shape)}"
        for name, variable in variables.items()
        if name in weights and tuple(variable.shape) != tuple(weights[name].shape)
    ]
    if missing or unexpected or misshapen:
        raise ValueError(_describe(source, missing, unexpected, misshapen))
    broken = [name for name, array in weights.items() if not np.isfinite(np.asarray(array).astype("float32")).all()]
    if broken:
        raise ValueError(f"The weights of {source} are damaged, they hold NaN or infinity: {', '.join(broken)}.")
    for name, variable in variables.items():
        if name in weights:
            variable.assign(np.asarray(weights[name]).astype("float32"))


def export_part(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """{name within the layer: array} of a layer that is trained beside an encoder; seeds are left out."""
    return {name: ops.convert_to_numpy(variable) for name, variable in _variables_of_part(layer).items()}


def load_part(layer: keras.layers.Layer, weights: dict[str, np.ndarray], source: str) -> None:
    """Assigns what `export_part` gave.

    Raises: ValueError naming all variables that are missing, unexpected or of another shape, before any is assigned.
    """
    variables = _variables_of_part(layer)
    found = {name: tuple(array.shape) for name, array in weights.items()}
    wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
    if found != wanted:
        different = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
        listed = "; ".join(f"{name}: model {wanted.get(name)}, file {found.get(name)}" for name in different)
        raise ValueError(f"The {layer.name} of {source} does not fit the model. {listed}.")
    for name, variable in variables.items():
        variable.assign(weights[name])


def _variables_of_part(layer):
    # Paths begin with the names of what the layer was built in; its own name ends that.
    named = {variable.path.split(f"{layer.name}/", 1)[-1]: variable for variable in layer.variables}
    return {name: variable for name, variable in named.items() if "seed_generator" not in name}


def _part(name):
    return name.split("/", 1)[0]


def _describe(source, missing, unexpected, misshapen):
    lines = [f"The weights of {source} do not fit the model."]
    if missing:
        lines.append(f"Missing in the file: {', '.join(missing)}.")
        parts = sorted({_part(name) for name in missing} & set(OPTIONAL_PARTS))
        if parts:
            lines.append(f"To start with new weights there, pass `new_parts={parts}`.")
    if unexpected:
        lines.append(f"Not in the model: {', '.join(unexpected)}.")
    if misshapen:
        lines.append(f"Of another shape: {'; '.join(misshapen)}.")
        lines.append(
            "Are `config`, vocabulary and checkpoint of one model, and is `keep_tokens` that of this checkpoint?"
        )
    return " ".join(lines)
