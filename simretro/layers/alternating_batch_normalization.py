"""Batch normalization in which of two sides one always has the batch's statistics and the other the running ones."""

import keras
from keras import ops

from simretro.arguments import warn
from simretro.ops import replica_context


@keras.saving.register_keras_serializable(package="simretro")
class AlternatingBatchNormalization(keras.layers.Wrapper):
    """Wraps a `BatchNormalization` so that a row and its partner never go through it in the same mode.

    Ordinary batch normalization tells a contrastive loss which rows came in one batch. Here the rows of one side are
    normalised by their own mean and variance, those of the other by the running ones, as they were before this step;
    the next step has it the other way round. Each step updates the running statistics once, from the first side alone.
    So no row of the second side depends on any other row.

    Which side is which is a variable, `phase`: the side that has the batch's statistics in the next step. A call in
    training takes both sides at once and flips it; a batch without rows of either side changes nothing. What is not
    trained is normalised by the running statistics, as in Keras.

    Modes and statistics go on with `trainable=False`, which in Keras' own layer would stop both: only gamma and beta
    are frozen then, and a warning says so.

    Args:
        layer: `keras.layers.BatchNormalization`, without `renorm`, with the last axis; with `synchronized=True` the
            batch's statistics are those of all replicas. None: momentum 0.9, epsilon 1e-5.
        alternating: bool; False: both sides have the batch's statistics, which is ordinary batch normalization, the
            paper's leaking baseline.
        warmup_updates: int; in the first so many updates the running statistics are the plain mean over all batches so
            far, in place of a slow start from mean 0 and variance 1, until the momentum gives the latest batch more
            weight than that (at 0.9 from the tenth batch on).
    Call args:
        inputs: float (B, D).
        sides: int (B,); 0 or 1, negative = a row of neither, which has the running statistics. Needed in training.
        training: bool.
    Returns: float (B, D).
    Raises: ValueError for another layer, an input that is not (B, D), or training without `sides`.
    Reference: Wu et al., 2022 (CCP), asymmetric batch normalization.
    """

    def __init__(self, layer=None, alternating: bool = True, warmup_updates: int = 0, **kwargs):
        if layer is None:
            layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name="batch_normalization")
        if not isinstance(layer, keras.layers.BatchNormalization):
            raise ValueError(f"`layer` must be a `BatchNormalization`; received {type(layer).__name__}.")
        if layer.axis not in (-1, 1) or layer.renorm:
            raise ValueError(
                "`layer` must normalise the last axis, without `renorm`; "
                f"received axis={layer.axis}, renorm={layer.renorm}."
            )
        if warmup_updates < 0:
            raise ValueError(f"`warmup_updates` must not be negative; received {warmup_updates}.")
        super().__init__(layer, **kwargs)
        self.alternating = alternating
        self.warmup_updates = warmup_updates
        self._warned = False

    def build(self, inputs_shape, sides_shape=None):
        if len(inputs_shape) != 2:
            raise ValueError(f"`inputs` must be (batch, features); received shape {tuple(inputs_shape)}.")
        super().build(inputs_shape)
        # Keras' own integer: on TensorFlow int64, since int32 variables do not live on a GPU.
        self.phase = self.add_weight(shape=(), dtype="int", initializer="zeros", trainable=False, name="phase")
        self.updates = self.add_weight(shape=(), dtype="int", initializer="zeros", trainable=False, name="updates")

    def call(self, inputs, sides=None, training=None):
        if not training:
            return self.layer(inputs, training=False)
        if sides is None:
            raise ValueError("`sides` is needed in training; received None.")
        self._warn_if_frozen()
        sides = ops.cast(sides, "int32")
        x = ops.cast(inputs, "float32")
        phase = ops.cast(ops.convert_to_tensor(self.phase), "int32")
        is_known = sides >= 0
        in_batch = ops.logical_and(is_known, sides == phase) if self.alternating else is_known
        # Read before the update, and copied: torch would change them in place under the gradient's eyes.
        running = [ops.copy(ops.convert_to_tensor(v)) for v in (self.layer.moving_mean, self.layer.moving_variance)]
        mean, variance, count = self._moments(x, in_batch)
        mean_of_row = ops.where(in_batch[:, None], mean, running[0])  # (B, D)
        variance_of_row = ops.where(in_batch[:, None], variance, running[1])
        y = (x - mean_of_row) * ops.rsqrt(variance_of_row + self.layer.epsilon)
        if self.layer.scale:
            y = y * ops.cast(self.layer.gamma, "float32")
        if self.layer.center:
            y = y + ops.cast(self.layer.beta, "float32")
        self._update(running, (mean, variance), count > 0)
        # Decided for all replicas alike: one that got no rows must not fall out of step.
        seen = _sum_over_replicas(ops.sum(ops.cast(is_known, "float32"))) > 0
        self.phase.assign(ops.cast(ops.where(seen, 1 - phase, phase), self.phase.dtype))
        return ops.cast(y, self.compute_dtype)

    def _moments(self, x, chosen):
        """Mean and (biased) variance of the chosen rows, (D,) each, and their number; 0 for no rows."""
        reduce = _sum_over_replicas if self.layer.synchronized else lambda x: x
        weights = ops.cast(chosen, "float32")
        count = reduce(ops.sum(weights))
        safe = ops.maximum(count, 1.0)
        mean = reduce(ops.sum(x * weights[:, None], axis=0)) / safe
        squares = ops.square(x - mean) * weights[:, None]
        return mean, reduce(ops.sum(squares, axis=0)) / safe, count

    def _update(self, running, found, is_update):
        updates = ops.cast(ops.convert_to_tensor(self.updates), "float32")
        rate = 1.0 - self.layer.momentum
        if self.warmup_updates:
            rate = ops.where(updates < self.warmup_updates, ops.maximum(rate, 1.0 / (updates + 1.0)), rate)
        rate = ops.where(is_update, rate, 0.0)
        for variable, before, now in zip(
            (self.layer.moving_mean, self.layer.moving_variance), running, found, strict=True
        ):
            variable.assign(before + rate * (ops.stop_gradient(now) - before))
        self.updates.assign(ops.convert_to_tensor(self.updates) + ops.cast(is_update, self.updates.dtype))

    def _warn_if_frozen(self):
        if self._warned or (self.trainable and self.layer.trainable):
            return
        self._warned = True
        warn(
            f"`trainable=False` freezes gamma and beta of `{self.name}` only: modes still alternate and the running "
            "statistics are updated, since a contrastive loss would leak or fail otherwise."
        )

    def compute_output_spec(self, inputs, sides=None, training=None):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "alternating": self.alternating, "warmup_updates": self.warmup_updates}


def _sum_over_replicas(x):
    """Sum over TensorFlow's replicas, through which gradients flow; without several of them the tensor itself."""
    context = replica_context()
    return x if context is None else context.all_reduce("SUM", x)
