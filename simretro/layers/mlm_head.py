"""From hidden states to vocabulary logits, with the token table as output matrix."""

import keras
from keras import layers, ops

from simretro.ops import activation


@keras.saving.register_keras_serializable(package="simretro")
class MLMHead(keras.layers.Layer):
    """BERT's prediction head: dense, activation, layer norm, product with the token table, bias.

    The output matrix is the token embedding table itself (tied), so it is an argument of the call. `transform` and
    `bias` are public for losses that never build all logits at once.

    Args:
        vocab_size: int.
        embedding_size: int, E: width of the token table.
        hidden_act: str, see `simretro.ops.activation`.
        layer_norm_eps: float.
        initializer_range: float, standard deviation of the truncated normal initialiser.
    Call args:
        hidden: float (..., H).
        table: float (V, E).
    Returns: float32 (..., V) logits.
    Reference: Devlin et al., 2018, https://arxiv.org/abs/1810.04805, appendix A.2.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        hidden_act: str = "gelu",
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_act = hidden_act
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self.dense = layers.Dense(
            embedding_size,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.norm = layers.LayerNormalization(epsilon=layer_norm_eps, dtype=self.dtype_policy, name="norm")
        self._activation = activation(hidden_act)

    def build(self, hidden_shape, table_shape=None):
        self.dense.build(hidden_shape)
        self.norm.build((*hidden_shape[:-1], self.embedding_size))
        self.bias = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="bias")

    def transform(self, hidden):
        """Hidden states (..., H) to the space of the token table (..., E)."""
        return self.norm(self._activation(self.dense(hidden)))

    def logits(self, transformed, table):
        """What `transform` gave (..., E) to float32 (..., V)."""
        table = ops.cast(ops.convert_to_tensor(table), transformed.dtype)
        logits = ops.matmul(transformed, ops.transpose(table))
        return ops.cast(logits, "float32") + ops.cast(self.bias, "float32")

    def call(self, hidden, table):
        return self.logits(self.transform(hidden), table)

    def compute_output_spec(self, hidden, table):
        return keras.KerasTensor((*hidden.shape[:-1], self.vocab_size), dtype="float32")

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding_size,
            "hidden_act": self.hidden_act,
            "layer_norm_eps": self.layer_norm_eps,
            "initializer_range": self.initializer_range,
        }
