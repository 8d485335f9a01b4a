"""Metrics of sentence vectors and of rankings: geometry, pairs, groups, collections, baselines, intervals, tests."""

from simretro.evaluation.baselines import tfidf_vectors
from simretro.evaluation.bitext import BitextAccuracy, bitext_accuracy
from simretro.evaluation.bootstrap import bootstrap_interval
from simretro.evaluation.collections import RetrievalCollection, read_beir, write_beir
from simretro.evaluation.geometry import (
    cross_lingual_statistics,
    embedding_statistics,
    graph_spectrum,
    hubness,
    spectrum_distance,
)
from simretro.evaluation.groups import GroupRetrieval, bigram_overlap, group_retrieval
from simretro.evaluation.mr_tydi import MrTyDiResult, evaluate_mr_tydi
from simretro.evaluation.mteb_encoder import MtebEncoder
from simretro.evaluation.pairs import (
    LabelledPair,
    PairMetrics,
    evaluate_pairs,
    pair_cosines,
    pair_metrics,
    read_labelled_pairs,
)
from simretro.evaluation.passages import search_passages
from simretro.evaluation.ranking import Qrels, RetrievalResult, Run, fuse_runs, ranked, retrieval_metrics
from simretro.evaluation.search import bm25_run, evaluate_retrieval, search_collection, search_encoded
from simretro.evaluation.significance import PairedDifference, paired_difference
from simretro.evaluation.tatoeba import BitextResult, TextPair, evaluate_bitext, evaluate_tatoeba, read_tatoeba
from simretro.evaluation.trec import read_qrels, read_run, write_qrels, write_run
from simretro.evaluation.xor_retrieve import XorRetrieveResult, evaluate_xor_retrieve, word_tokenizer

__all__ = [
    "BitextAccuracy",
    "BitextResult",
    "GroupRetrieval",
    "LabelledPair",
    "MrTyDiResult",
    "MtebEncoder",
    "PairMetrics",
    "PairedDifference",
    "Qrels",
    "RetrievalCollection",
    "RetrievalResult",
    "Run",
    "TextPair",
    "XorRetrieveResult",
    "bigram_overlap",
    "bitext_accuracy",
    "bm25_run",
    "bootstrap_interval",
    "cross_lingual_statistics",
    "embedding_statistics",
    "evaluate_bitext",
    "evaluate_mr_tydi",
    "evaluate_pairs",
    "evaluate_retrieval",
    "evaluate_tatoeba",
    "evaluate_xor_retrieve",
    "fuse_runs",
    "graph_spectrum",
    "group_retrieval",
    "hubness",
    "pair_cosines",
    "pair_metrics",
    "paired_difference",
    "ranked",
    "read_beir",
    "read_labelled_pairs",
    "read_qrels",
    "read_run",
    "read_tatoeba",
    "retrieval_metrics",
    "search_collection",
    "search_encoded",
    "search_passages",
    "spectrum_distance",
    "tfidf_vectors",
    "word_tokenizer",
    "write_beir",
    "write_qrels",
    "write_run",
]
