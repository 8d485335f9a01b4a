"""Small tensor functions that every room may use; they run on all Keras backends."""

import math
from functools import partial, wraps

import keras
from keras import ops

_LEAST_COMPILED = 128  # width
_GELU_TANH = {"gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "gelu_fast"}


def activation(name):
    """Returns the activation function that a `bert_config.json` names.

    Args:
        name: str; "gelu" is the exact one (erf), as in Google's BERT, and not Keras' tanh approximation,
            which is had by "gelu_new", "gelu_tanh", "gelu_pytorch_tanh" or "gelu_fast". Everything else is
            looked up in Keras.
    Returns: callable tensor -> tensor.
    Raises: ValueError if Keras does not know the name.
    """
    if name == "gelu":
        return _exact_gelu
    if name in _GELU_TANH:
        return _tanh_gelu
    return keras.activations.get(name)


def _exact_gelu(x):
    if keras.backend.backend() != "tensorflow":
        return ops.gelu(x, approximate=False)
    # Theirs takes the complementary error function, which has no vector instructions: four times as long in bfloat16.
    wide = ops.cast(x, "float32")
    return ops.cast(wide * _normal_cdf(wide), x.dtype)


def gelu_for_training(x):
    """Exact GELU `x * cdf(x)` whose gradient `cdf(x) + x * pdf(x)` is computed from `x` alone.

    Left to automatic differentiation, TensorFlow keeps three more tensors of the size of `x`, the widest there is in a
    transformer: a sixth of the memory of a training step.

    Args:
        x: float tensor.
    Returns: as `x`; computed in float32.
    """

    @ops.custom_gradient
    def gelu(x):
        def gradient(*args, upstream=None):
            return _gelu_gradient(x, args[0] if upstream is None else upstream)

        return _gelu_value(x), gradient

    return gelu(x)


def layer_norm_for_training(x, gamma, beta, epsilon):
    """Layer norm over the last axis that keeps its input alone for its gradient.

    TensorFlow's own differentiation keeps three tensors of that size.

    Args:
        x: float (..., D).
        gamma, beta: float (D,).
        epsilon: float.
    Returns: as `x`; computed in float32.
    """

    @ops.custom_gradient
    def normalize(x, gamma, beta):
        y, mean, scale = _layer_norm_value(x, gamma, beta, epsilon)

        def gradient(*args, upstream=None):
            return _layer_norm_gradient(x, gamma, beta, mean, scale, args[0] if upstream is None else upstream)

        return y, gradient

    return normalize(x, as_tensor(gamma), as_tensor(beta))


def _one_loop(function):
    """The function, on TensorFlow without an accelerator compiled by XLA, which makes one loop of it.

    TensorFlow's own operations go through memory one after the other, in bfloat16 without vector instructions: a GELU
    of theirs takes longer than the matrix product before it. On accelerators Keras compiles whole steps itself; on
    CPUs it does not, since there XLA's matrix products are the slow ones. Narrow tensors stay as they are: each new
    shape costs a tenth of a second for its compilation.

    Args:
        function: tensors, the first one (..., D), to tensors; of elements and means of rows, without products.
    """
    compiled = []

    @wraps(function)
    def call(x, *others):
        if keras.backend.backend() != "tensorflow" or x.shape[-1] < _LEAST_COMPILED:
            return function(x, *others)
        if not compiled:
            import tensorflow as tf

            only_cpu = {device.device_type for device in tf.config.list_physical_devices()} == {"CPU"}
            compiled.append(tf.function(function, autograph=False, jit_compile=True) if only_cpu else function)
        return compiled[0](x, *others)

    return call


_gelu_value = _one_loop(_exact_gelu)


@_one_loop
def _gelu_gradient(x, upstream):
    wide = ops.cast(x, "float32")
    pdf = ops.exp(-0.5 * wide * wide) * (2 * math.pi) ** -0.5
    return ops.cast(ops.cast(upstream, "float32") * (_normal_cdf(wide) + wide * pdf), x.dtype)


def _normal_cdf(x):
    return 0.5 * (ops.erf(x * 0.5**0.5) + 1.0)


@_one_loop
def _layer_norm_value(x, gamma, beta, epsilon):
    """(y, and float32 (..., 1) each the mean and what the differences to it are multiplied by)."""
    wide = ops.cast(x, "float32")
    mean = ops.mean(wide, axis=-1, keepdims=True)
    centred = wide - mean
    scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
    y = centred * scale * ops.cast(gamma, "float32") + ops.cast(beta, "float32")
    return ops.cast(y, x.dtype), mean, scale


@_one_loop
def _layer_norm_gradient(x, gamma, beta, mean, scale, upstream):
    upstream = ops.cast(upstream, "float32")
    hat = (ops.cast(x, "float32") - mean) * scale
    rows = tuple(range(len(x.shape) - 1))
    d_gamma, d_beta = ops.sum(upstream * hat, axis=rows), ops.sum(upstream, axis=rows)
    d_hat = upstream * ops.cast(gamma, "float32")
    mean_of = partial(ops.mean, axis=-1, keepdims=True)
    d_x = scale * (d_hat - mean_of(d_hat) - hat * mean_of(d_hat * hat))
    return ops.cast(d_x, x.dtype), ops.cast(d_gamma, gamma.dtype), ops.cast(d_beta, beta.dtype)


def as_tensor(x):
    """A tensor for sure, for functions with a gradient of their own.

    Run eagerly, Keras hands TensorFlow's variables on as they are, and the gradients of those go another way.
    """
    x = ops.convert_to_tensor(x)
    return ops.reshape(x, ops.shape(x))


def loop_in_turn(condition, body, state):
    """`ops.while_loop` whose rounds do not overlap.

    TensorFlow begins up to ten at once, as far as they do not wait for one another, and holds what each of them makes.

    Args: see `keras.ops.while_loop`; state: tuple.
    Returns: the last state.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.while_loop(condition, body, state)
    import tensorflow as tf

    return tf.while_loop(condition, body, state, parallel_iterations=1)


def replica_context():
    """TensorFlow's replica context where several replicas run in step, else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context


def _tanh_gelu(x):
    return ops.gelu(x, approximate=True)


def take_rows(x, positions):
    """Rows of a batch of sequences.

    Args:
        x: (B, L, ...) tensor.
        positions: int (B, T), each in [0, L).
    Returns: (B, T, ...), row `[b, t]` is `x[b, positions[b, t]]`.
    """
    shape = ops.shape(x)
    flat = ops.reshape(x, (-1, *shape[2:]))
    starts = ops.arange(shape[0], dtype="int32")[:, None] * shape[1]
    return ops.take(flat, ops.cast(positions, "int32") + starts, axis=0)


def unit_vectors(x):
    """Rows divided by their Euclidean norm, in float32; a zero row stays zero and has finite gradients.

    Args:
        x: (..., D) float tensor of any precision.
    Returns: float32 (..., D).
    """
    x = ops.cast(x, "float32")
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    # A floor in place of this choice would give a zero row gradients that overflow in float16.
    return x * ops.rsqrt(ops.where(squares > 1e-24, squares, 1.0))


def rotate(x, positions):
    """Rotary position embedding on interleaved pairs `(2i, 2i + 1)`, base 10000.

    Args:
        x: (B, T, heads, D) with even D.
        positions: int (B or 1, T).
    Returns: as `x`.
    Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864, eq. 34.
    """
    head_size, shape = x.shape[-1], ops.shape(x)
    frequencies = ops.exp(
        ops.arange(0, head_size, 2, dtype="float32") * (-9.210340371976184 / head_size)
    )  # 10000^(-2i/D)
    angles = ops.cast(positions, "float32")[:, :, None, None] * frequencies  # (B, T, 1, D/2)
    cos, sin = ops.cos(angles), ops.sin(angles)
    cos = ops.repeat(cos, 2, axis=-1)
    sin = ops.reshape(ops.stack([-sin, sin], axis=-1), ops.shape(cos))
    # The other one of each pair in its place. To take pairs apart and to join them again takes four times as long.
    others = ops.reshape(ops.flip(ops.reshape(x, (*shape[:-1], head_size // 2, 2)), axis=-1), shape)
    return x * ops.cast(cos, x.dtype) + others * ops.cast(sin, x.dtype)
