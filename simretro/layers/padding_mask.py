"""Which positions of a batch hold tokens."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="simretro")
class PaddingMask(keras.layers.Layer):
    """True where a row holds a token; position 0 always counts as one.

    A row of padding only thus keeps one visible key, as in bert4keras: its softmax has something to be over.

    Args:
        pad_token_id: int.
    Call args:
        token_ids: int (B, L).
    Returns: bool (B, L).
    """

    def __init__(self, pad_token_id: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.pad_token_id = pad_token_id

    def call(self, token_ids):
        first = ops.arange(ops.shape(token_ids)[1]) == 0
        return ops.logical_or(token_ids != self.pad_token_id, first[None])

    def get_config(self):
        return {**super().get_config(), "pad_token_id": self.pad_token_id}
