"""Runs of a collection: by the vectors of an encoder, or by BM25."""

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simretro.arguments import check_int
from simretro.evaluation.collections import RetrievalCollection
from simretro.evaluation.ranking import RetrievalResult, retrieval_metrics
from simretro.retrieval import EncodedCorpus
from simretro.retrieval.encoders import SIMILARITIES, vectors_of
from simretro.titles import is_of_word

# Scripts that put no blanks between words: Chinese and Japanese; Thai and Lao, Burmese, Khmer, Burmese again.
_IDEOGRAPHS = (0x3040, 0x3100), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000)
_UNSPACED_LETTERS = (0xE00, 0xF00), (0x1000, 0x10A0), (0x1780, 0x1800), (0xA9E0, 0xAA00), (0xAA60, 0xAA80)
_VARIATION_SELECTORS = (0xFE00, 0xFE10), (0xE0100, 0xE01F0)
_JOINERS = "\u200c\u200d"
_ASCII_WORDS, _BEYOND_16_BITS = re.compile("[a-z0-9]+"), re.compile("[\U00010000-\U0010ffff]")


def search_collection(
    encode: Callable,
    collection: RetrievalCollection,
    top_k: int = 100,
    encode_queries: Callable | None = None,
    block_size: int = 16_384,
    similarity: str = "cosine",
) -> dict[str, dict[str, float]]:
    """Searches the documents nearest to each query; every one is compared.

    Args:
        encode: called with a list of M texts, returns numbers (M, d), which need not be normalised. Options go into a
            function of one's own: `lambda texts: encoder.encode(texts, batch_size=64, show_progress=False)`.
        collection: the documents and queries.
        top_k: int >= 1, documents per query; at least the largest cut-off of the metrics.
        encode_queries: as `encode`, for the queries; None = `encode`.
        block_size: int >= 1, documents that are given to `encode` at once; all vectors stay in memory.
        similarity: "cosine", or "dot" for models that were trained so (`BiEncoder.similarity`): vectors must be
            compared in search as in training.
    Returns: {query id: {document id: score}}, best first. Of documents with equal scores at the end of the list, those
        that come first in the collection are kept.
    Raises: ValueError for a value out of range, or if `encode` returns another number of rows or numbers that are not
        finite.
    """
    check_int("block_size", block_size, 1)
    check_int("top_k", top_k, 1)
    if similarity not in SIMILARITIES:
        raise ValueError(f"`similarity` must be one of {SIMILARITIES}; received {similarity!r}.")
    texts = list(collection.documents.values())
    starts = range(0, len(texts), block_size)
    vectors = np.concatenate([vectors_of(encode, texts[start : start + block_size], "encode") for start in starts])
    corpus = EncodedCorpus.of_vectors(vectors, list(collection.documents), similarity)
    name = "encode" if encode_queries is None else "encode_queries"
    queries = vectors_of(encode_queries or encode, list(collection.queries.values()), name)
    return _run(collection.queries, corpus.ids, *corpus.search(queries, top_k))


def search_encoded(
    encode_queries: Callable, queries: Mapping[str, str], corpus: EncodedCorpus, top_k: int = 100, **options
) -> dict[str, dict[str, float]]:
    """Searches a corpus that was encoded to disk.

    Args:
        encode_queries: called with a list of M texts, returns numbers (M, d).
        queries: {query id: text}.
        corpus: see `EncodedCorpus.load`; it knows how vectors are compared.
        top_k: int >= 1, documents per query.
        options: `rescore_multiplier`, see `EncodedCorpus.search`.
    Returns: {query id: {document id: score}}, best first, equal scores in the order of the corpus.
    Raises: ValueError, see `EncodedCorpus.search`; if `encode_queries` returns another number of rows.
    """
    vectors = vectors_of(encode_queries, list(queries.values()), "encode_queries")
    return _run(queries, corpus.ids, *corpus.search(vectors, top_k, **options))


def evaluate_retrieval(
    encode: Callable,
    collection: RetrievalCollection,
    metrics: Sequence[str] = ("nDCG@10", "RR@10", "R@100"),
    top_k: int = 100,
    encode_queries: Callable | None = None,
    seed: int = 0,
    similarity: str = "cosine",
) -> RetrievalResult:
    """Encodes a collection, searches it and measures what is found.

    Args:
        encode, collection, top_k, encode_queries, similarity: see `search_collection`.
        metrics, seed: see `retrieval_metrics`.
    Returns: a `RetrievalResult`: means, bootstrap intervals, the values of each query, and the run.
    Raises: ImportError without `ir-measures`; ValueError, see the two functions.
    """
    run = search_collection(encode, collection, top_k, encode_queries, similarity=similarity)
    return retrieval_metrics(run, collection.qrels, metrics, seed)


def bm25_run(
    collection: RetrievalCollection,
    top_k: int = 100,
    k1: float = 0.9,
    b: float = 0.4,
    tokenize: Callable[[str], Sequence[str]] | None = None,
) -> dict[str, dict[str, float]]:
    """Searches by words, with `bm25s` (Lucene's formula): what an encoder should be compared with.

    Where JAX is installed beside another backend, `bm25s` starts it, too.

    Args:
        collection: the documents and queries.
        top_k: int >= 1, documents per query; documents that share no word with it are not among them.
        k1, b: floats, saturation of the word counts and share of the length normalisation; as Anserini's.
        tokenize: text -> words; None = letters and digits with their marks, in lower case and composed (NFC), no
            stemming, no stop words. Scripts without blanks between words are cut into characters, marks staying with
            their letter: Chinese, Japanese, Thai, Lao, Khmer, Burmese.
    Returns: {query id: {document id: score}}, best first; equal scores in the order of the collection.
    Raises: ImportError without `bm25s`, naming the extra; ValueError if `top_k` is below 1.
    Reference: Robertson and Zaragoza, 2009, https://doi.org/10.1561/1500000019; Lù, 2024,
        https://arxiv.org/abs/2407.03618
    """
    check_int("top_k", top_k, 1)
    try:
        import bm25s
    except ImportError as error:
        raise ImportError('BM25 needs bm25s: `pip install "simretro[eval]"`.') from error
    tokenize = tokenize or _words
    vocabulary, documents = {}, []
    for text in collection.documents.values():
        documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in tokenize(text)])
    if not vocabulary:
        return {query: {} for query in collection.queries}
    model = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    model.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    ids, run = list(collection.documents), {}
    for query, text in collection.queries.items():
        known = [vocabulary[word] for word in tokenize(text) if word in vocabulary]
        best = _best(model.get_scores_from_ids(known), top_k) if known else []
        run[query] = {ids[place]: float(score) for place, score in best}
    return run


def _run(queries, documents, scores, rows):
    return {
        query: {documents[i]: score for i, score in zip(row, row_scores, strict=True)}
        for query, row, row_scores in zip(queries, rows.tolist(), scores.tolist(), strict=True)
    }


def _words(text):
    """The words of a text, see `bm25_run`."""
    if text.isascii():
        return _ASCII_WORDS.findall(text.lower())
    text = unicodedata.normalize("NFC", text.lower())
    # With 16 bits `re` has a table; that a character is none of those beyond, it finds out range by range. Emoji are no
    # reason for that, only letters and marks.
    beyond = set(_BEYOND_16_BITS.findall(text))
    words, joiners = _patterns(0x110000 if any(map(is_of_word, beyond)) else 0x10000)
    if any(joiner in text for joiner in _JOINERS):
        text = joiners.sub("", text)
    return words.findall(text)


@functools.cache
def _patterns(limit):
    """(words, characters within words that only say how letters are drawn), where no character is `limit` or above."""

    def of(blocks):
        return {code for first, last in blocks for code in range(first, min(last, limit))}

    letters = {code for code in range(limit) if chr(code).isalnum()}
    # A variant of an ideograph is the same word. `\w` knows no marks, without which Hindi's words fall apart.
    marks = {code for code in range(limit) if unicodedata.category(chr(code))[0] == "M"} - of(_VARIATION_SELECTORS)
    unspaced = of(_IDEOGRAPHS) | {code for code in of(_UNSPACED_LETTERS) if unicodedata.category(chr(code))[0] == "L"}
    letters, marks, unspaced = map(_class_of, (letters - unspaced, marks, unspaced))
    words = f"[{unspaced}][{marks}]*|[{letters}][{letters}{marks}]*"
    return re.compile(words), re.compile(f"(?<=[{marks}])[{_JOINERS}]+|[{_JOINERS}]+(?=[{marks}])")


def _class_of(codes):
    """Characters as ranges for a class of a regular expression."""
    ranges = []
    for code in sorted(codes):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def _best(scores, top_k):
    """(place, score) of the largest scores above 0, equal ones by place."""
    places = np.flatnonzero(scores > 0)
    if len(places) > top_k:
        places = places[scores[places] >= np.partition(scores[places], -top_k)[-top_k]]
    places = places[np.argsort(-scores[places], kind="stable")][:top_k]
    return zip(places.tolist(), scores[places].tolist(), strict=True)
