"""Indexes of sentence vectors, exact or with Annoy; corpora encoded to disk; mining of hard negatives."""

from simretro.retrieval.annoy import AnnoyIndex
from simretro.retrieval.build import build_index, load_index
from simretro.retrieval.corpus import encode_corpus
from simretro.retrieval.encoded_corpus import EncodedCorpus
from simretro.retrieval.exact import ExactIndex, exact_search
from simretro.retrieval.index import VectorIndex, normalize_rows
from simretro.retrieval.mining import mine_hard_negatives

__all__ = [
    "AnnoyIndex",
    "EncodedCorpus",
    "ExactIndex",
    "VectorIndex",
    "build_index",
    "encode_corpus",
    "exact_search",
    "load_index",
    "mine_hard_negatives",
    "normalize_rows",
]
