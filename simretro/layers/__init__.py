"""Keras layers of the encoder and of what is trained beside it, one public layer a file."""

from simretro.layers.alternating_batch_normalization import AlternatingBatchNormalization
from simretro.layers.decoder_mask import DecoderMask
from simretro.layers.memory_bank import MemoryBank
from simretro.layers.mlm_head import MLMHead
from simretro.layers.padding_mask import PaddingMask
from simretro.layers.projection_head import ProjectionHead
from simretro.layers.transformer_block import TransformerBlock
from simretro.layers.transformer_embeddings import TransformerEmbeddings
from simretro.layers.unilm_mask import UniLMMask

__all__ = [
    "AlternatingBatchNormalization",
    "DecoderMask",
    "MLMHead",
    "MemoryBank",
    "PaddingMask",
    "ProjectionHead",
    "TransformerBlock",
    "TransformerEmbeddings",
    "UniLMMask",
]
