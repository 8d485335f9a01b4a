"""One way to compile an inference function of a model on each backend."""

import weakref

import keras
from keras import ops

_COMPILED = weakref.WeakKeyDictionary()


def compiled(model, key, build):
    """The compiled function of `model` under `key`, built once.

    Args:
        model: keras.Model whose variables the function reads.
        key: hashable; everything that `build` bakes in.
        build: callable () -> function of tensors that calls layers of `model`.
    Returns: function of the same arguments. The weights are read at each call, also while training goes on.
    """
    functions = _COMPILED.setdefault(model, {})
    if key not in functions:
        # The function must not keep its model alive, or the entry would never be dropped.
        functions[key] = _COMPILERS[keras.backend.backend()](weakref.ref(model), build)
    return functions[key]


def _compile_tensorflow(model_ref, build):
    import tensorflow as tf

    return tf.function(build(), reduce_retracing=True)


def _compile_jax(model_ref, build):
    import jax

    function = build()

    # The weights are arguments: as constants of the trace they would be frozen.
    @jax.jit
    def stateless(values, *args):
        with keras.StatelessScope(state_mapping=list(zip(model_ref().variables, values, strict=True))):
            return function(*args)

    return lambda *args: stateless([v.value for v in model_ref().variables], *args)


def _compile_torch(model_ref, build):
    import torch

    function = build()

    def without_gradient(*args):
        with torch.no_grad():
            return function(*(ops.convert_to_tensor(a) for a in args))

    return without_gradient


_COMPILERS = {"tensorflow": _compile_tensorflow, "jax": _compile_jax, "torch": _compile_torch}
