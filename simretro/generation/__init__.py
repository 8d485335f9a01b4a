"""Decoders: cached sampling and beam search of a UniLM, bert4keras' decoder class, synonyms."""

from simretro.generation.autoregressive import AutoRegressiveDecoder
from simretro.generation.beam import beam_search
from simretro.generation.sampling import generate
from simretro.generation.synonyms import SynonymGenerator

__all__ = ["AutoRegressiveDecoder", "SynonymGenerator", "beam_search", "generate"]
