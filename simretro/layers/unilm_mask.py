"""The attention mask that makes a BERT a sequence-to-sequence model."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="simretro")
class UniLMMask(keras.layers.Layer):
    """Attention mask of a UniLM: free within the source, leftwards within the target.

    Query `i` sees key `j` iff `order[j] <= order[i]` and `j` is a token, where `order` is the running sum of
    `segment_ids`. The source never sees the target, so [CLS] has one vector, with or without a target behind it.

    Args:
        causal_source: bool; True reads the source left to right too (a plain language model). Default False.
    Call args:
        segment_ids: int (B, L); 0 = source or padding, 1 = target.
        padding_mask: bool (B, L); True = token.
    Returns: bool (B, 1, L, L); True at [b, 0, i, j] where query `i` sees key `j`.
    Raises: ValueError if an input is not (B, L).
    Reference: Dong et al., 2019, https://arxiv.org/abs/1905.03197
    """

    def __init__(self, causal_source: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.causal_source = causal_source

    def call(self, segment_ids, padding_mask):
        for name, tensor in (("segment_ids", segment_ids), ("padding_mask", padding_mask)):
            if len(tensor.shape) != 2:
                raise ValueError(f"`{name}` must be (batch, length); received shape {tuple(tensor.shape)}.")
        order = ops.cumsum(ops.ones_like(segment_ids) if self.causal_source else segment_ids, axis=1)
        visible = order[:, None, :] <= order[:, :, None]  # (B, query, key)
        # Padding behind a target has the order of the last target token: the order alone would show it.
        return ops.logical_and(visible, ops.cast(padding_mask, "bool")[:, None, :])[:, None]

    def get_config(self):
        return {**super().get_config(), "causal_source": self.causal_source}
