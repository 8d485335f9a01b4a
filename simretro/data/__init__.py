"""From texts to training batches: readers, pair sampling, masking."""

import importlib

_HOMES = {
    "Group": "groups",
    "SimilarPairs": "pairs",
    "StreamingSimilarPairs": "streaming",
    "iter_groups": "groups",
    "read_groups": "groups",
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
