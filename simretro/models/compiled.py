"""One way to compile an inference function of a model on each backend."""

from collections.abc import Callable, Hashable

import keras
from keras import ops

_ATTRIBUTE = "_compiled_functions"


def compiled(model: keras.Model, key: Hashable, build: Callable[[], Callable], any_shape: bool = False) -> Callable:
    """The compiled function of `model` under `key`, built once.

    Args:
        model: keras.Model whose variables the function reads.
        key: hashable; everything that `build` bakes in.
        build: callable () -> function of tensors that calls layers of `model`.
        any_shape: bool; True: TensorFlow traces the function once, for arguments of all shapes. Else it has traces of
            their own for the first shapes that it sees, whose results differ in the last bits: what is computed then
            depends on what was computed before, and a run that goes on after a break is not the unbroken one's equal.
    Returns: function of the same arguments. The weights are read at each call, also while training goes on.
    """
    # The functions refer to the model; kept anywhere but in it, they would keep it alive. Written past Keras'
    # `__setattr__`, which would track them as a part of the model to be saved.
    functions = model.__dict__.setdefault(_ATTRIBUTE, {})
    if key not in functions:
        functions[key] = _COMPILERS[keras.backend.backend()](model, build(), any_shape)
    return functions[key]


def _compile_tensorflow(model, function, any_shape):
    import tensorflow as tf

    if not any_shape:
        return tf.function(function, reduce_retracing=True)
    traces = []

    def of_any_shape(*args):
        args = [tf.convert_to_tensor(a) for a in args]
        if not traces:
            signature = [tf.TensorSpec([None] * a.shape.rank, a.dtype) for a in args]
            # Called for itself: to look for a trace that fits takes a tenth of the time of a query.
            traces.append(tf.function(function, signature).get_concrete_function())
        return traces[0](*args)

    return of_any_shape


def _compile_jax(model, function, any_shape):
    import jax

    # The weights are arguments: as constants of the trace they would be frozen.
    @jax.jit
    def stateless(values, *args):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(*args)

    return lambda *args: stateless([v.value for v in model.variables], *args)


def _compile_torch(model, function, any_shape):
    import torch

    def without_gradient(*args):
        with torch.no_grad():
            return function(*(ops.convert_to_tensor(a) for a in args))

    return without_gradient


_COMPILERS = {"tensorflow": _compile_tensorflow, "jax": _compile_jax, "torch": _compile_torch}
