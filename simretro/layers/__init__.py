"""Keras layers of the encoder, one public layer a file."""

from simretro.layers.mlm_head import MLMHead
from simretro.layers.padding_mask import PaddingMask
from simretro.layers.transformer_block import TransformerBlock
from simretro.layers.transformer_embeddings import TransformerEmbeddings
from simretro.layers.unilm_mask import UniLMMask

__all__ = ["MLMHead", "PaddingMask", "TransformerBlock", "TransformerEmbeddings", "UniLMMask"]
