"""Checkpoints: {name in a foreign file: array} <-> {our name: array}, one module per format; no Keras."""

from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import normalize_config, read_config
from simretro.checkpoints.huggingface import write_huggingface
from simretro.checkpoints.keras_hub import write_keras_hub
from simretro.checkpoints.onnx_model import write_onnx
from simretro.checkpoints.parts import write_parts
from simretro.checkpoints.read import read_checkpoint
from simretro.checkpoints.sentence_folder import DenseStage, write_pipeline
from simretro.checkpoints.simretro_folder import write_simretro
from simretro.checkpoints.tf1 import write_tf1
from simretro.checkpoints.variables import slice_vocabulary, variable_shapes

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DenseStage",
    "normalize_config",
    "read_checkpoint",
    "read_config",
    "slice_vocabulary",
    "variable_shapes",
    "write_huggingface",
    "write_keras_hub",
    "write_onnx",
    "write_parts",
    "write_pipeline",
    "write_simretro",
    "write_tf1",
]
