"""SimBERT's two helpers as plain functions, for notebooks and for those who come from its script."""

from collections.abc import Iterable

from simretro.methods.simbert import SimBERT


def gen_synonyms(text: str | Iterable[str], n: int = 100, k: int = 20, *, model: SimBERT, **options) -> list:
    """`model.gen_synonyms(text, n, k, ...)`: the k best of n sampled sentences that mean the same as `text`."""
    return model.gen_synonyms(text, n, k, **options)


def most_similar(text: str | Iterable[str], topn: int = 20, *, model: SimBERT) -> list:
    """`model.most_similar(text, topn)`: pairs (text, cosine) of the index that `model.build_index` made."""
    return model.most_similar(text, topn)
