"""What the tests need of Keras, whichever backend runs: a model with given weights, arrays, gradients."""

import warnings

import keras
import numpy as np
from keras import ops


def to_numpy(x):
    """Returns a tensor or variable of any dtype as a NumPy array; bfloat16 comes back as float32."""
    x = ops.convert_to_tensor(x)
    if keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16"):
        x = ops.cast(x, "float32")
    return ops.convert_to_numpy(x)


def build(config, weights, **options):
    """Builds a `Transformer` and gives it `weights`, by the variables' paths; each variable must have one."""
    from simretro.models import build_transformer_model

    model = build_transformer_model(dict(config), **options)
    load(model, weights)
    return model


def load(model, weights):
    """Assigns `weights` to the variables of the same path."""
    own = {variable.path: variable for variable in model.weights}
    unknown = sorted(set(own) - set(weights))
    assert not unknown, f"variables without a reference weight: {unknown}"
    for path, variable in own.items():
        assert tuple(variable.shape) == weights[path].shape, path
        variable.assign(weights[path])


def run(model, token_ids, segment_ids=None):
    """Calls a model on int32 arrays; returns its outputs as NumPy arrays."""
    token_ids = np.asarray(token_ids, "int32")
    segment_ids = np.zeros_like(token_ids) if segment_ids is None else np.asarray(segment_ids, "int32")
    outputs = model({"token_ids": token_ids, "segment_ids": segment_ids}, training=False)
    return {name: to_numpy(value) for name, value in outputs.items()}


def value_and_gradients(function, arrays):
    """Returns (value, [gradient per array]) of a scalar `function(*tensors)` by the backend's own differentiation."""
    backend = keras.backend.backend()
    tensors = [ops.convert_to_tensor(array) for array in arrays]
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        gradients = tape.gradient(value, tensors)
    elif backend == "jax":
        import jax

        value, gradients = jax.value_and_grad(function, argnums=tuple(range(len(tensors))))(*tensors)
    else:
        import torch

        tensors = [tensor.clone().detach().requires_grad_(True) for tensor in tensors]
        value = function(*tensors)
        gradients = torch.autograd.grad(value, tensors)
        value = value.detach()
    return to_numpy(value), [to_numpy(gradient) for gradient in gradients]


def position_warnings(function):
    """Result of `function()` and those of its warnings that speak of positions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, [str(w.message) for w in caught if "position" in str(w.message).lower()]
