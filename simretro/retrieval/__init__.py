"""Indexes of sentence vectors: exact, approximate with Annoy, one interface for both."""

from simretro.retrieval.annoy import AnnoyIndex
from simretro.retrieval.build import build_index, load_index
from simretro.retrieval.exact import ExactIndex, exact_search
from simretro.retrieval.index import VectorIndex, normalize_rows

__all__ = ["AnnoyIndex", "ExactIndex", "VectorIndex", "build_index", "exact_search", "load_index", "normalize_rows"]
