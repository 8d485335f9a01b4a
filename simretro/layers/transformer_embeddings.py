"""From token ids to the first hidden states."""

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="simretro")
class TransformerEmbeddings(keras.layers.Layer):
    """Token + position + segment embedding, layer norm, dropout, and a projection where E is not H.

    Args:
        vocab_size: int, V.
        hidden_size: int, H.
        embedding_size: int, E; None = H. With E < H the tables are factorised: E -> H comes after norm and dropout.
        max_position_embeddings: int, rows of the position table; None = no table (rotary models).
        position_offset: int, row of the table that the first token takes (2 in RoBERTa and XLM-R).
        type_vocab_size: int, rows of the segment table; 0 = no table. Segment ids beyond the table take its last row,
            so a RoBERTa (one row) can be given the segments that drive a UniLM mask.
        dropout_rate: float.
        layer_norm_eps: float.
        initializer_range: float.
    Call args:
        token_ids: int (B, L).
        segment_ids: int (B, L), None = all 0.
        positions: int (B or 1, L), None = 0, 1, ... L - 1.
        training: bool.
    Returns: float (B, L, H).
    Reference: Devlin et al., 2018, https://arxiv.org/abs/1810.04805; factorised tables: Lan et al., 2019,
        https://arxiv.org/abs/1909.11942.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        embedding_size: int | None = None,
        max_position_embeddings: int | None = 512,
        position_offset: int = 0,
        type_vocab_size: int = 2,
        dropout_rate: float = 0.1,
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.embedding_size = embedding_size or hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.position_offset = position_offset
        self.type_vocab_size = type_vocab_size
        self.dropout_rate = dropout_rate
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self.token = self._table(vocab_size, "token")
        self.position = self._table(max_position_embeddings, "position") if max_position_embeddings else None
        self.segment = self._table(type_vocab_size, "segment") if type_vocab_size else None
        self.norm = layers.LayerNormalization(epsilon=layer_norm_eps, dtype=self.dtype_policy, name="norm")
        self.dropout = layers.Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.projection = None
        if self.embedding_size != hidden_size:
            initializer = keras.initializers.TruncatedNormal(stddev=initializer_range)
            self.projection = layers.Dense(
                hidden_size, kernel_initializer=initializer, dtype=self.dtype_policy, name="projection"
            )

    def _table(self, rows, name):
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return layers.Embedding(
            rows, self.embedding_size, embeddings_initializer=initializer, dtype=self.dtype_policy, name=name
        )

    def build(self, token_ids_shape, segment_ids_shape=None, positions_shape=None):
        for table in (self.token, self.position, self.segment):
            if table is not None:
                table.build(token_ids_shape)
        self.norm.build((None, None, self.embedding_size))
        if self.projection is not None:
            self.projection.build((None, None, self.embedding_size))

    def call(self, token_ids, segment_ids=None, positions=None, training=None):
        return self.finish(self.token(token_ids), segment_ids, positions, training)

    def finish(self, x, segment_ids=None, positions=None, training=None):
        """All behind the token table, for vectors that take the place of its rows.

        Args:
            x: float (B, L, E).
            segment_ids, positions, training: as in the call.
        Returns: float (B, L, H).
        """
        if self.position is not None:
            if positions is None:
                positions = ops.arange(ops.shape(x)[1], dtype="int32")[None]
            x = x + self.position(positions + self.position_offset)
        if self.segment is not None:
            if segment_ids is None:
                segment_ids = ops.zeros(ops.shape(x)[:2], "int32")
            x = x + self.segment(ops.minimum(segment_ids, self.type_vocab_size - 1))
        x = self.dropout(self.norm(x), training=training)
        return x if self.projection is None else self.projection(x)

    def position_vectors(self, length):
        """Rows of the position table for 0, 1, ... `length - 1`, projected, (length, H); None without a table."""
        if self.position is None:
            return None
        x = self.position(ops.arange(length, dtype="int32") + self.position_offset)
        return x if self.projection is None else self.projection(x)

    def compute_output_spec(self, token_ids, segment_ids=None, positions=None, training=None):
        return keras.KerasTensor((*token_ids.shape, self.hidden_size), dtype=self.compute_dtype)

    def get_config(self):
        names = ("vocab_size", "hidden_size", "embedding_size", "max_position_embeddings", "position_offset")
        names += ("type_vocab_size", "dropout_rate", "layer_norm_eps", "initializer_range")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
