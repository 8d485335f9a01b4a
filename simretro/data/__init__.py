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
    "queries_of_columns": "training_formats",
    "read_groups": "groups",
    "read_id_triples": "training_formats",
    "read_passages": "training_formats",
    "read_queries": "training_formats",
    "read_training_queries": "training_queries",
    "sentences_of": "sentences",
    "sequence_padding": "text",
    "text_segmentate": "text",
    "truncate_sequences": "text",
    "write_training_queries": "query_writer",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    # On first use: reading a file of groups, for one, needs no Keras.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
