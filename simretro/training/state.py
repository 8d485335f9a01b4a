"""All that a training run knows, as arrays by name: weights, statistics, seeds, optimizer, running metrics."""

import contextlib
import re

import keras
import numpy as np

# What safetensors can hold; bfloat16 and float8 are widened to float32, which is exact.
_STORED_KINDS = "biuf"


def state_variables(model) -> dict[str, dict[str, keras.Variable]]:
    """{group: {name: variable}} of a compiled model: "model", "optimizer", "metrics".

    Names are the variables' paths, less what Keras numbers within a process (the names of model, optimizer and seed
    generators): a run that is started anew in the same notebook has the same names. Equal names get "#2", "#3", ...
    in the order of the model's variables.

    Args:
        model: compiled `keras.Model`, all variables built.
    """
    optimizers = [model.optimizer, getattr(model.optimizer, "inner_optimizer", None)]
    prefixes = [optimizer.name for optimizer in optimizers if optimizer is not None]
    return {
        "model": _named(model.variables, model.name, []),
        "optimizer": _named(model.optimizer.variables, model.name, prefixes),
        "metrics": _named(model.metrics_variables, model.name, []),
    }


def build_optimizer_variables(model) -> None:
    """Makes the slots of the optimizer, which Keras makes at the first step only."""
    if not model.optimizer.built:
        with strategy_scope(model):
            model.optimizer.build(model.trainable_variables)


def as_array(variable) -> np.ndarray:
    """Value of a Keras variable; under a strategy the first replica's."""
    return variable.numpy() if keras.backend.backend() == "tensorflow" else np.asarray(variable)


def updates_done(optimizer) -> int:
    """Updates that an optimizer has made."""
    return int(as_array(optimizer.iterations))  # plain `int` fails under a strategy


def updates_each_batch(optimizer) -> bool:
    """Whether an optimizer makes an update with every batch: it neither accumulates gradients nor leaves steps out."""
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    return inner is None and not getattr(optimizer, "gradient_accumulation_steps", None)


def read_variables(variables: dict) -> dict[str, np.ndarray]:
    """{name: array} of variables by name.

    Under a `tf.distribute` strategy each replica has a copy. Where a copy differs from the first (running statistics
    and metrics that are not synchronised), it is a further entry "name@1", "name@2", ...
    """
    arrays = {}
    for name, variable in variables.items():
        first, *others = (_storable(copy) for copy in _copies(variable))
        arrays[name] = first
        for replica, other in enumerate(others, start=1):
            if not np.array_equal(first, other, equal_nan=first.dtype.kind == "f"):
                arrays[f"{name}@{replica}"] = other
    return arrays


def misfits(variables: dict, arrays: dict[str, np.ndarray]) -> list[str]:
    """What keeps `assign_variables` from working, in words; empty where all fits."""
    names = {_split(name)[0] for name in arrays}
    missing = [name for name in variables if name not in names]
    unexpected = sorted(names - set(variables))
    misshapen = [
        f"{name} (model {tuple(variables[base].shape)}, file {array.shape})"
        for name, array in arrays.items()
        if (base := _split(name)[0]) in variables and tuple(variables[base].shape) != array.shape
    ]
    parts = (("missing in the file", missing), ("not in the model", unexpected), ("of another shape", misshapen))
    return [f"{what}: {', '.join(names)}" for what, names in parts if names]


def assign_variables(model, variables: dict, arrays: dict[str, np.ndarray]) -> bool:
    """Assigns arrays to the variables of the same name; entries "name@i" go to the copy of replica i.

    Args:
        model: the model, for its strategy.
        variables: {name: variable}.
        arrays: {name: array}, without `misfits`. Variables without an array keep their values.
    Returns: bool; False if copies of more replicas were stored than there are now.
    """
    known_replicas = True
    with strategy_scope(model):
        for name, variable in variables.items():
            if name in arrays:
                count = len(_replicas(variable) or [variable])
                _assign(variable, [arrays[name], *(arrays.get(f"{name}@{i}", arrays[name]) for i in range(1, count))])
                known_replicas &= f"{name}@{count}" not in arrays
    return known_replicas


def strategy_scope(model):
    """The scope of the `tf.distribute` strategy that the model was made under; on other backends nothing."""
    return model.distribute_strategy.scope() if keras.backend.backend() == "tensorflow" else contextlib.nullcontext()


def first_non_finite(arrays: dict[str, np.ndarray]) -> str | None:
    """Name of the first array with a NaN or an infinity in it."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return None


def _named(variables, model_name, optimizer_names):
    named = {}
    for variable in variables:
        base = name = _stable_name(variable.path, model_name, optimizer_names)
        count = 1
        while name in named:
            count += 1
            name = f"{base}#{count}"
        named[name] = variable
    return named


def _stable_name(path, model_name, optimizer_names):
    for optimizer_name in optimizer_names:
        path = path.removeprefix(f"{optimizer_name}/")
    if optimizer_names:  # a slot is named after its variable's path, slashes turned to underscores
        path = path.removeprefix(f"{model_name}_")
    path = path.removeprefix(f"{model_name}/")
    return re.sub(r"seed_generator(_\d+)?/", "seed_generator/", path)


def _split(name):
    base, at, replica = name.rpartition("@")
    return (base, int(replica)) if at and replica.isdigit() else (name, 0)


def _storable(array):
    array = np.asarray(array, order="C")
    return array if array.dtype.kind in _STORED_KINDS else array.astype("float32")


def _replicas(variable):
    """The TensorFlow variables of a distributed variable, one a replica; None for a plain one."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return variable.value.values if isinstance(variable.value, tf.distribute.DistributedValues) else None


def _copies(variable):
    replicas = _replicas(variable)
    return [as_array(variable)] if replicas is None else [replica.numpy() for replica in replicas]


def _assign(variable, arrays):
    replicas = _replicas(variable)
    if replicas is None:
        variable.assign(arrays[0])
        return
    # Copy by copy: assigning to the whole would divide a running sum by the number of replicas.
    for replica, array in zip(replicas, arrays, strict=True):
        replica.assign(array.astype(replica.dtype.as_numpy_dtype))
