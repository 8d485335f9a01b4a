"""From an encoder's vector to the one that a contrastive loss compares."""

import keras
from keras import layers, ops

from simretro.layers.alternating_batch_normalization import AlternatingBatchNormalization

_BATCH_NORMS = ("alternating", "plain", None)


@keras.saving.register_keras_serializable(package="simretro")
class ProjectionHead(layers.Layer):
    """Linear, batch normalization, ReLU, linear: shared by both sides of a pair, thrown away after training.

    Args:
        hidden_size: int, between the two linear layers.
        output_size: int, length of the vectors.
        batch_norm: "alternating" (`AlternatingBatchNormalization`), "plain" (both sides have the batch's statistics:
            the paper's leaking baseline) or None.
        synchronized: bool, the batch's statistics are those of all replicas; TensorFlow only.
        momentum: float, of the running statistics.
        epsilon: float.
        warmup_updates: int, see `AlternatingBatchNormalization`.
    Call args:
        vectors: float (B, H).
        sides: int (B,); 0 or 1, negative = a row of neither. Needed in training, unless `batch_norm` is None.
        training: bool.
    Returns: float (B, `output_size`), not normalised.
    Raises: ValueError for another `batch_norm` or a size below 1.
    Reference: Wu et al., 2022 (CCP); Chen et al., 2020 (SimCLR), https://arxiv.org/abs/2002.05709.
    """

    def __init__(
        self,
        hidden_size: int,
        output_size: int = 128,
        batch_norm: str | None = "alternating",
        synchronized: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        warmup_updates: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if batch_norm not in _BATCH_NORMS:
            raise ValueError(f"`batch_norm` must be one of {_BATCH_NORMS}; received {batch_norm!r}.")
        for name, size in (("hidden_size", hidden_size), ("output_size", output_size)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1; received {size}.")
        self.hidden_size = hidden_size
        self.output_size = output_size
        self.batch_norm = batch_norm
        self.synchronized = synchronized
        self.momentum = momentum
        self.epsilon = epsilon
        self.warmup_updates = warmup_updates
        # The normalization takes its mean away and adds a bias of its own.
        self.hidden = layers.Dense(hidden_size, use_bias=batch_norm is None, dtype=self.dtype_policy, name="hidden")
        self.norm = self._norm() if batch_norm else None
        self.projection = layers.Dense(output_size, dtype=self.dtype_policy, name="projection")

    def _norm(self):
        inner = layers.BatchNormalization(
            momentum=self.momentum,
            epsilon=self.epsilon,
            synchronized=self.synchronized,
            dtype=self.dtype_policy,
            name="batch_normalization",
        )
        alternating = self.batch_norm == "alternating"
        return AlternatingBatchNormalization(
            inner, alternating, self.warmup_updates, dtype=self.dtype_policy, name="norm"
        )

    def build(self, vectors_shape, sides_shape=None):
        self.hidden.build(vectors_shape)
        if self.norm is not None:
            self.norm.build((None, self.hidden_size))
        self.projection.build((None, self.hidden_size))

    def call(self, vectors, sides=None, training=None):
        hidden = self.hidden(vectors)
        if self.norm is not None:
            hidden = self.norm(hidden, sides, training=training)
        return self.projection(ops.relu(hidden))

    def compute_output_spec(self, vectors, sides=None, training=None):
        return keras.KerasTensor((vectors.shape[0], self.output_size), dtype=self.compute_dtype)

    def get_config(self):
        names = ("hidden_size", "output_size", "batch_norm", "synchronized", "momentum", "epsilon", "warmup_updates")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
