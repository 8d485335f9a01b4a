"""What is kept after training: encoders, their weights, and what turns texts into vectors."""

from simretro.models.builder import build_transformer_model, load_pretrained
from simretro.models.engines import ENGINE_NAMES
from simretro.models.folders import write_folder
from simretro.models.sentence_encoder import SentenceEncoder
from simretro.models.spelling import initialize_by_spelling
from simretro.models.transformer import Transformer
from simretro.models.weights import export_weights, load_weights

__all__ = [
    "ENGINE_NAMES",
    "SentenceEncoder",
    "Transformer",
    "build_transformer_model",
    "export_weights",
    "initialize_by_spelling",
    "load_pretrained",
    "load_weights",
    "write_folder",
]
