"""Metrics of sentence vectors: labelled pairs, retrieval within groups, a baseline without learning, intervals."""

from simretro.evaluation.baselines import tfidf_vectors
from simretro.evaluation.bootstrap import bootstrap_interval
from simretro.evaluation.groups import GroupRetrieval, bigram_overlap, group_retrieval
from simretro.evaluation.pairs import (
    LabelledPair,
    PairMetrics,
    evaluate_pairs,
    pair_cosines,
    pair_metrics,
    read_labelled_pairs,
)

__all__ = [
    "GroupRetrieval",
    "LabelledPair",
    "PairMetrics",
    "bigram_overlap",
    "bootstrap_interval",
    "evaluate_pairs",
    "group_retrieval",
    "pair_cosines",
    "pair_metrics",
    "read_labelled_pairs",
    "tfidf_vectors",
]
