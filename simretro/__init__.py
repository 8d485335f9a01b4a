"""Sentence encoders that retrieve and generate, with Keras 3.

The names below are resolved on first use, so that `import simretro` stays light.
"""

import importlib

_HOMES = {
    "AutoRegressiveDecoder": "generation",
    "BiEncoder": "methods",
    "CCP": "methods",
    "CrossLingualCalibrator": "calibration",
    "EncodedCorpus": "retrieval",
    "MaskedDocuments": "data",
    "QueryPassages": "data",
    "RetroMAE": "methods",
    "SentenceEncoder": "models",
    "SimBERT": "methods",
    "SimilarPairs": "data",
    "Tokenizer": "tokenizers",
    "build_transformer_model": "models",
    "encode_corpus": "retrieval",
    "evaluate_mr_tydi": "evaluation",
    "evaluate_retrieval": "evaluation",
    "evaluate_tatoeba": "evaluation",
    "evaluate_xor_retrieve": "evaluation",
    "export": "exports",
    "gen_synonyms": "methods",
    "load_tokenizer": "tokenizers",
    "load_vocab": "tokenizers",
    "mine_hard_negatives": "retrieval",
    "most_similar": "methods",
    "save_vocab": "tokenizers",
    "train_wordpiece": "tokenizers",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
