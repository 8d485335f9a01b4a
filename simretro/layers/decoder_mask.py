"""Which tokens a position of RetroMAE's enhanced decoder sees."""

import keras
from keras import ops

from simretro.ops import replica_context, take_rows


@keras.saving.register_keras_serializable(package="simretro")
class DecoderMask(keras.layers.Layer):
    """Attention mask of enhanced decoding: every row sees a random sample of the sentence, and never itself.

    Row `i` sees column `j` iff `j` is no padding, `j` is not `i`, and `j` is a special token ([CLS], where the
    sentence vector stands, or [SEP]) or an ordinary one that is drawn for this row. Draws are new at every call, also
    where nothing is trained, and made on the device.

    Args:
        mask_rate: float in [0, 1], probability with which an ordinary token is hidden from a row.
        pool_size: int; None draws each token of each row for itself. Else so many masks are drawn for a text, whole
            words in each, and each row takes one of them at random: the reference implementation's way.
        seed: int; None draws one from Keras' global random numbers.
    Call args:
        target_mask: bool (B, L); True = ordinary token, one that the decoder predicts.
        padding_mask: bool (B, L); True = token.
        word_ids: int (B, L), number of the word in its row, 0 <= number < L, negative = no word; for a pool.
    Returns: bool (B, 1, L, L); True at [b, 0, i, j] where row `i` sees column `j`.
    Raises: ValueError for a rate or a pool size out of range, an input that is not (B, L), or a pool without words.
    Reference: Xiao et al., 2022, https://arxiv.org/abs/2205.12035, section 3.3.
    """

    def __init__(self, mask_rate: float = 0.5, pool_size: int | None = None, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= mask_rate <= 1:
            raise ValueError(f"`mask_rate` must be in [0, 1]; received {mask_rate}.")
        if pool_size is not None and pool_size < 1:
            raise ValueError(f"`pool_size` must be None or at least 1; received {pool_size}.")
        self.mask_rate = mask_rate
        self.pool_size = pool_size
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, target_mask, padding_mask, word_ids=None):
        given = {"target_mask": target_mask, "padding_mask": padding_mask}
        if self.pool_size is not None:
            if word_ids is None:
                raise ValueError(f"`word_ids` is needed for `pool_size={self.pool_size}`; received None.")
            given["word_ids"] = word_ids
        for name, x in given.items():
            if len(x.shape) != 2:
                raise ValueError(f"`{name}` must be (batch, length); received shape {tuple(x.shape)}.")
        batch, length = ops.shape(target_mask)
        if self.pool_size is None:
            drawn = self._uniform((batch, length, length)) >= self.mask_rate
        else:
            drawn = self._pooled(word_ids, batch, length)
        visible = ops.logical_or(drawn, ops.logical_not(ops.cast(target_mask, "bool"))[:, None])  # (B, row, column)
        visible = ops.logical_and(visible, ops.cast(padding_mask, "bool")[:, None])
        places = ops.arange(length, dtype="int32")
        return ops.logical_and(visible, places[:, None] != places[None])[:, None]

    def _pooled(self, word_ids, batch, length):
        words = self._uniform((batch, self.pool_size, length)) >= self.mask_rate  # room for as many words as tokens
        choices = ops.cast(self._uniform((batch, length)) * self.pool_size, "int32")
        columns = ops.broadcast_to(ops.maximum(word_ids, 0)[:, None], (batch, self.pool_size, length))
        masks = ops.take_along_axis(words, columns, axis=2)
        return take_rows(masks, ops.minimum(choices, self.pool_size - 1))

    def _uniform(self, shape):
        context = replica_context()
        if context is None:
            return keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        import tensorflow as tf

        # Keras' generator has the same state on all replicas, whose rows would share their masks.
        seed, replica = ops.cast(self.seed_generator.next(), "int32"), context.replica_id_in_sync_group
        return tf.random.stateless_uniform(shape, tf.random.experimental.stateless_fold_in(seed, replica))

    def compute_output_spec(self, target_mask, padding_mask, word_ids=None):
        batch, length = target_mask.shape
        return keras.KerasTensor((batch, 1, length, length), dtype="bool")

    def get_config(self):
        config = {"mask_rate": self.mask_rate, "pool_size": self.pool_size, "seed": self.seed}
        return {**super().get_config(), **config}
