"""From texts to training batches: readers, pair sampling, masking."""

import importlib

_HOMES = {
    "ContextWindows": "context_windows",
    "Document": "documents",
    "Group": "groups",
    "MaskedDocuments": "masked_documents",
    "QueryPassages": "query_passages",
    "SimilarPairs": "pairs",
    "StreamingSimilarPairs": "streaming",
    "TrainingQuery": "training_queries",
    "iter_documents": "documents",
    "iter_groups": "groups",
    "iter_training_queries": "training_queries",
    "queries_of_collection": "training_queries",
    "read_groups": "groups",
    "read_training_queries": "training_queries",
    "sentences_of": "sentences",
    "sequence_padding": "text",
    "text_segmentate": "text",
    "truncate_sequences": "text",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    # On first use: reading a file of groups, for one, needs no Keras.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
