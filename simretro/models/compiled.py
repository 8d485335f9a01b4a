"""One way to compile an inference function of a model on each backend."""

from collections.abc import Callable, Hashable

import keras
from keras import ops

_ATTRIBUTE = "_compiled_functions"


def compiled(model: keras.Model, key: Hashable, build: Callable[[], Callable]) -> Callable:
    """The compiled function of `model` under `key`, built once.

    Args:
        model: keras.Model whose variables the function reads.
        key: hashable; everything that `build` bakes in.
        build: callable () -> function of tensors that calls layers of `model`.
    Returns: function of the same arguments. The weights are read at each call, also while training goes on.
    """
    # The functions refer to the model; kept anywhere but in it, they would keep it alive. Written past Keras'
    # `__setattr__`, which would track them as a part of the model to be saved.
    functions = model.__dict__.setdefault(_ATTRIBUTE, {})
    if key not in functions:
        functions[key] = _COMPILERS[keras.backend.backend()](model, build())
    return functions[key]


def _compile_tensorflow(model, function):
    import tensorflow as tf

    return tf.function(function, reduce_retracing=True)


def _compile_jax(model, function):
    import jax

    # The weights are arguments: as constants of the trace they would be frozen.
    @jax.jit
    def stateless(values, *args):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(*args)

    return lambda *args: stateless([v.value for v in model.variables], *args)


def _compile_torch(model, function):
    import torch

    def without_gradient(*args):
        with torch.no_grad():
            return function(*(ops.convert_to_tensor(a) for a in args))

    return without_gradient


_COMPILERS = {"tensorflow": _compile_tensorflow, "jax": _compile_jax, "torch": _compile_torch}
