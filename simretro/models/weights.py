"""Weights by name: between a Keras model and a dict of arrays, with every variable accounted for."""

from collections.abc import Iterable

import numpy as np
from keras import ops

from simretro.checkpoints.variables import OPTIONAL_PARTS


def named_variables(model) -> dict:
    """{our name: variable} of a `Transformer`, e.g. "block_0/query/kernel"; seeds of dropout layers are left out."""
    named = {}
    for variable in model.weights:
        if variable.path in named:
            raise ValueError(f"Two variables of the model are named {variable.path!r}.")
        named[variable.path] = variable
    return {name: variable for name, variable in named.items() if "seed_generator" not in name}


def export_weights(model) -> dict[str, np.ndarray]:
    """{our name: float array} of a `Transformer`."""
    return {name: ops.convert_to_numpy(variable) for name, variable in named_variables(model).items()}


def load_weights(model, weights: dict, source: str, new_parts: Iterable[str] = ()) -> None:
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
