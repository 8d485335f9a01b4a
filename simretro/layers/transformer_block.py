"""The one block that encodes, decodes from a cache and reads from another stream."""

import keras
from keras import layers, ops

from simretro.layers.seeds import FixedSeed
from simretro.ops import activation, gelu_for_training, layer_norm_for_training, rotate


@keras.saving.register_keras_serializable(package="simretro")
class TransformerBlock(keras.layers.Layer):
    """Post-norm transformer block: multi-head attention and feed-forward network, each with residual and layer norm.

    Args:
        num_heads: int; must divide the width of the input.
        intermediate_size: int, F, width of the feed-forward network.
        hidden_act: str, see `simretro.ops.activation`.
        dropout_rate: float, on the output of attention and feed-forward network.
        attention_dropout_rate: float, on the attention probabilities.
        layer_norm_eps: float.
        rotary: bool; rotate queries and keys by their positions (RoFormer).
        initializer_range: float.
        recompute: bool; True keeps only the input of the block for the backward pass, which computes the rest again,
            with the same dropout: less memory for a third more work.
    Call args:
        x: float (B, T, H).
        attention_mask: bool, broadcastable to (B, heads, T, S), True = visible; None = all visible.
        positions: int (B or 1, T), positions of `x` for the rotary embedding; None = 0, 1, ... T - 1.
        cache: pair (keys, values), each (B, heads, S, H / heads), of earlier calls; the keys and values of `x` are
            written into it from slot `cache_index` on, and attention is over all S slots.
        cache_index: int scalar.
        context: float (B, S, H); keys and values are taken from it in place of `x`; its positions are 0, 1, ... S - 1.
        training: bool.
    Returns: float (B, T, H); with `cache` the pair (that, new cache).
    Raises: ValueError if H is no multiple of `num_heads`, or if both `cache` and `context` are given.
    Reference: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_size: int,
        hidden_act: str = "gelu",
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        layer_norm_eps: float = 1e-12,
        rotary: bool = False,
        initializer_range: float = 0.02,
        recompute: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.layer_norm_eps = layer_norm_eps
        self.rotary = rotary
        self.initializer_range = initializer_range
        self.recompute = recompute
        self.seed_generator = keras.random.SeedGenerator()
        self._activation = activation(hidden_act)

    def build(self, x_shape):
        hidden_size = x_shape[-1]
        if hidden_size % self.num_heads:
            raise ValueError(f"`num_heads` must divide the hidden size {hidden_size}; received {self.num_heads}.")
        self.hidden_size = hidden_size
        self.head_size = hidden_size // self.num_heads
        for name in ("query", "key", "value", "attention_output"):
            setattr(self, name, self._dense(hidden_size, name))
        self.intermediate = self._dense(self.intermediate_size, "intermediate")
        self.output_dense = self._dense(hidden_size, "output")
        self.attention_norm = self._norm("attention_norm")
        self.output_norm = self._norm("output_norm")
        for layer in (self.query, self.key, self.value, self.attention_output, self.attention_norm, self.intermediate):
            layer.build((None, None, hidden_size))
        self.output_dense.build((None, None, self.intermediate_size))
        self.output_norm.build((None, None, hidden_size))

    def _dense(self, units, name):
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return layers.Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

    def _norm(self, name):
        return layers.LayerNormalization(epsilon=self.layer_norm_eps, dtype=self.dtype_policy, name=name)

    def call(self, x, attention_mask=None, positions=None, cache=None, cache_index=None, context=None, training=None):
        if cache is not None and context is not None:
            raise ValueError("`cache` and `context` cannot both be given: a cache belongs to the stream of `x`.")
        if cache is not None:
            query, *new = self._project(x, x, positions, positions)
            cache = self._write(cache, cache_index, *map(_heads_first, new))
            return self._feed_forward(x, self._attend(query, *cache, attention_mask)), cache
        drops = training and (self.dropout_rate or self.attention_dropout_rate)
        seeds = [self.seed_generator.next() for _ in range(3)] if drops else None

        def compute(x, source):
            key_positions = positions if context is None else None
            query, key, value = self._project(x, source, positions, key_positions)
            fixed = _seeds_after(seeds, x) if seeds else [None] * 3
            if drops and self.attention_dropout_rate:
                # The fused operation has no dropout argument.
                attended = self._attend(query, _heads_first(key), _heads_first(value), attention_mask, fixed[0])
            else:
                attended = ops.dot_product_attention(query, key, value, mask=attention_mask)
            return self._feed_forward(x, attended, fixed[1:], training)

        if not (training and self.recompute):
            return compute(x, x if context is None else context)
        if context is None:
            return keras.remat(lambda x: compute(x, x))(x)
        return keras.remat(compute)(x, context)

    def _project(self, x, source, query_positions, key_positions):
        """Queries of `x`, keys and values of `source`, each (B, T or S, heads, D)."""
        query = self._split_heads(self.query(x))
        key, value = self._split_heads(self.key(source)), self._split_heads(self.value(source))
        if self.rotary:
            query = rotate(query, _positions_or_range(query_positions, x))
            key = rotate(key, _positions_or_range(key_positions, source))
        return query, key, value

    def _feed_forward(self, x, attended, seeds=(None, None), training=False):
        """All behind the attention, for `attended` (B, T, heads, D): residuals, norms, feed-forward network."""
        attended = ops.reshape(attended, (ops.shape(x)[0], ops.shape(x)[1], self.hidden_size))
        attended = self._drop(self.attention_output(attended), self.dropout_rate, seeds[0])
        x = self._normalize(self.attention_norm, x + attended, training)
        activate = gelu_for_training if training and self.hidden_act == "gelu" else self._activation
        fed = self.output_dense(activate(self.intermediate(x)))
        return self._normalize(self.output_norm, x + self._drop(fed, self.dropout_rate, seeds[1]), training)

    def _normalize(self, norm, x, training):
        return layer_norm_for_training(x, norm.gamma, norm.beta, self.layer_norm_eps) if training else norm(x)

    def _drop(self, x, rate, seed):
        return x if seed is None or not rate else keras.random.dropout(x, rate, seed=seed)

    def _split_heads(self, x):
        return ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], self.num_heads, self.head_size))

    def _write(self, cache, cache_index, key, value):
        start = (0, 0, cache_index, 0)
        return tuple(
            ops.slice_update(slots, start, ops.cast(new, slots.dtype))
            for slots, new in zip(cache, (key, value), strict=True)
        )

    def _attend(self, query, key, value, attention_mask, seed=None):
        """Attention of query (B, T, heads, D) over key and value (B, heads, S, D); returns (B, T, heads, D)."""
        query = _heads_first(query) * self.head_size**-0.5
        scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")
        if attention_mask is not None:
            scores = ops.where(attention_mask, scores, -1e9)
        probabilities = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        probabilities = self._drop(probabilities, self.attention_dropout_rate, seed)
        return _heads_first(ops.matmul(probabilities, value))

    def compute_output_spec(
        self, x, attention_mask=None, positions=None, cache=None, cache_index=None, context=None, training=None
    ):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        return output if cache is None else (output, cache)

    def get_config(self):
        names = ("num_heads", "intermediate_size", "hidden_act", "dropout_rate", "attention_dropout_rate")
        names += ("layer_norm_eps", "rotary", "initializer_range", "recompute")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _seeds_after(seeds, x):
    """The seeds, as values that depend on `x`, so that a recomputation draws after its `x` is there.

    The numbers drawn from a seed that does not depend on it would be drawn once and kept from the first pass to the
    second: as large as what the recomputation is to save.
    """
    zero = ops.cast(ops.any(ops.isnan(x[:1, :1, :1])), seeds[0].dtype)
    return [FixedSeed(seed + zero) for seed in seeds]


def _positions_or_range(positions, x):
    return ops.arange(ops.shape(x)[1], dtype="int32")[None] if positions is None else positions


def _heads_first(x):
    """(B, T, heads, D) <-> (B, heads, T, D): the layout in which a cached step's products need no transposition."""
    return ops.swapaxes(x, 1, 2)
