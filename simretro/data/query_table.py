"""Training queries as flat arrays of numbers, and which passages are one and the same."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice

import numpy as np

from simretro.data.table import MemoryColumn, ranges
from simretro.data.training_queries import TrainingQuery

_QUERIES_AT_A_TIME = 4096
_SHOWN = 5  # places in a message


@dataclass(frozen=True)
class TextTable:
    """Token ids of texts, each text once.

    Args:
        token_ids: int32 (tokens,).
        starts: int64 (texts + 1,), where a text begins in `token_ids`.
        keys: int32 (texts,); equal where two texts are the same: by id, or since they have the same token ids.
        num_keys: int.
    """

    token_ids: np.ndarray
    starts: np.ndarray
    keys: np.ndarray
    num_keys: int

    def lengths(self, texts: np.ndarray) -> np.ndarray:
        """Tokens of texts, int64; 0 for -1, no text."""
        return np.where(texts < 0, 0, self.starts[texts + 1] - self.starts[texts])

    def rows(self, texts: np.ndarray, width: int, specials: tuple[int, int, int]) -> np.ndarray:
        """Padded rows `[CLS] text [SEP]`.

        Args:
            texts: int64 (R,); -1 = no text: `[CLS] [SEP]`.
            width: int, of the rows.
            specials: ids of cls, sep and pad.
        Returns: int32 (R, width).
        """
        cls, sep, pad = specials
        lengths = self.lengths(texts)
        rows = np.full((len(texts), width), pad, "int32")
        rows[:, 0] = cls
        rows.reshape(-1)[ranges(1 + np.arange(len(texts)) * width, lengths)] = self.token_ids[
            ranges(self.starts[texts], lengths)
        ]
        rows[np.arange(len(texts)), lengths + 1] = sep
        return rows


@dataclass(frozen=True)
class QueryTable:
    """Training queries. A query has at least one positive, and no passage twice.

    Args:
        queries, passages: TextTable.
        query_texts: int64 (N,), the text of each query in `queries`.
        positives, negatives: int64, texts in `passages`, query by query.
        positive_starts, negative_starts: int64 (N + 1,), where those of a query begin.
        known_keys: int32, the keys of all passages that are positives of a query's text or of an equal one, by key of
            the query, ascending.
        known_starts: int64 (`queries.num_keys` + 1,), where those of a key begin.
        positive_scores, negative_scores: float32, a teacher's score of each of `positives` and `negatives`; None where
            they were not asked for.
        notes: what has to be told about the passages, for warnings.
        cuts: what has to be told about texts that were cut.
    """

    queries: TextTable
    passages: TextTable
    query_texts: np.ndarray
    positives: np.ndarray
    positive_starts: np.ndarray
    negatives: np.ndarray
    negative_starts: np.ndarray
    known_keys: np.ndarray
    known_starts: np.ndarray
    positive_scores: np.ndarray | None = None
    negative_scores: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)

    @property
    def num_queries(self) -> int:
        """Number of training queries."""
        return len(self.query_texts)


class TextCollector:
    """Tokenises each distinct text once, and finds out which of them are the same.

    Args:
        tokenizer: has `encode_ragged(texts)`.
        prefix: str, put before each text.
        limit: int >= 1, tokens that a text may have; what is longer loses its end.
    """

    def __init__(self, tokenizer, prefix: str, limit: int):
        self.tokenizer, self.prefix, self.limit = tokenizer, prefix, limit
        self.num_cut = self.num_lost = self.num_ambiguous = 0
        self._tokens, self._lengths = MemoryColumn("int32"), []
        self._parents = []  # of a union-find: texts with one root are the same
        self._text_numbers, self._first_of_ids, self._first_of_id = {}, {}, {}

    def add(self, texts: list[str], ids: list[str | None]) -> list[int]:
        """Numbers of texts; -1 for one that is blank or has no tokens.

        Args:
            texts: list of str.
            ids: list of str or None; texts with the same id are the same, whatever they say.
        """
        digests = [_digest(text.encode()) for text in texts]
        new = {d: text for d, text in zip(digests, texts, strict=True) if d not in self._text_numbers}
        self._read(new)
        numbers = [self._text_numbers[digest] for digest in digests]
        for number, key in zip(numbers, ids, strict=True):
            if key is not None and number >= 0:
                self.num_ambiguous += self._join(self._first_of_id.setdefault(key, number), number)
        return numbers

    def finish(self) -> TextTable:
        """The table of all texts."""
        roots = np.array([self._root(number) for number in range(len(self._parents))], "int64")
        found, keys = np.unique(roots, return_inverse=True)
        starts = np.concatenate([[0], np.cumsum(self._lengths)]).astype("int64")
        return TextTable(self._tokens.finish(), starts, keys.astype("int32"), len(found))

    def _read(self, new):
        rows = self.tokenizer.encode_ragged([self.prefix + text for text in new.values()]) if new else []
        kept = []
        for (digest, text), row in zip(new.items(), rows, strict=True):
            if not row or not text.strip():
                self._text_numbers[digest] = -1
                continue
            if len(row) > self.limit:
                self.num_cut, self.num_lost = self.num_cut + 1, self.num_lost + len(row) - self.limit
                row = row[: self.limit]
            number = self._text_numbers[digest] = len(self._parents)
            self._parents.append(number)
            self._lengths.append(len(row))
            kept.append(np.array(row, "int32"))
            self._join(self._first_of_ids.setdefault(_digest(kept[-1].tobytes()), number), number)
        if kept:
            self._tokens.append(np.concatenate(kept))

    def _root(self, number):
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def _join(self, first, second):
        """Makes two texts the same; whether they were not yet."""
        first, second = self._root(first), self._root(second)
        self._parents[second] = first
        return first != second


def build_query_table(
    source: Iterable[TrainingQuery],
    tokenizer,
    limits: tuple[int, int],
    prefixes: tuple[str, str],
    with_scores: bool = False,
) -> QueryTable:
    """Tokenises training queries.

    A passage that answers a query, by id or by content, is none of its negatives, also if another record with an equal
    query says so.

    Args:
        source: see `as_training_queries`.
        tokenizer: has `encode_ragged(texts)`.
        limits: most tokens of a query and of a passage.
        prefixes: of a query and of a passage.
        with_scores: bool; True: with the scores of a teacher, which each pair of a query and a passage must have.
    Raises: ValueError for a query whose positives are all empty; for pairs without a score, saying how many there are
        and where.
    """
    queries, passages = (TextCollector(tokenizer, *pair) for pair in zip(prefixes, limits, strict=True))
    builder = _Builder(queries, passages, with_scores)
    iterator = iter(source)
    while chunk := list(islice(iterator, _QUERIES_AT_A_TIME)):
        builder.add(chunk)
    return builder.finish()


class _Builder:
    def __init__(self, queries, passages, with_scores):
        self.queries, self.passages, self.with_scores = queries, passages, with_scores
        self.query_texts = []
        # Passages, their scores, and how many each query has.
        dtypes = ("int64", "float32", "int64")
        names = ("positives", "positive_scores"), ("negatives", "negative_scores")
        self.found = {pair: tuple(map(MemoryColumn, dtypes)) for pair in names}
        self.num_empty = self.num_scored = self.num_missing = self.num_pairs = 0
        self.missing_places = []

    def add(self, chunk):
        texts = self.queries.add([query.query for query in chunk], [query.id for query in chunk])
        lost = next((query for query, text in zip(chunk, texts, strict=True) if text < 0), None)
        if lost is not None:
            raise ValueError(f"{lost.place}: the tokenizer gives the query no ids; received {lost.query!r}.")
        self.query_texts += texts
        self.num_scored += sum({query.positive_scores, query.negative_scores} != {None} for query in chunk)
        for (name, score_name), columns in self.found.items():
            numbers, scores, counts = [], [], []
            documents = list(chain.from_iterable(getattr(query, name) for query in chunk))
            found = iter(self.passages.add([document.full_text for document in documents], [d.id for d in documents]))
            for query in chunk:
                passages = getattr(query, name)
                teacher = getattr(query, score_name) or [None] * len(passages)
                pairs = zip(islice(found, len(passages)), teacher, strict=True)
                own = [(number, score) for number, score in pairs if number >= 0]
                self.num_empty += len(passages) - len(own)
                if name == "positives" and not own:
                    raise ValueError(f"{query.place}: all positives are empty. Leave the record out.")
                numbers += [number for number, _ in own]
                scores += self._checked([score for _, score in own], query.place)
                counts.append(len(own))
            for column, values in zip(columns, (numbers, scores, counts), strict=True):
                column.append(np.array(values, column.dtype))

    def _checked(self, scores, place):
        """Scores for the table: none if they were not asked for."""
        if not self.with_scores:
            return []
        missing = scores.count(None)
        self.num_pairs, self.num_missing = self.num_pairs + len(scores), self.num_missing + missing
        if missing and len(self.missing_places) < _SHOWN and place not in self.missing_places:
            self.missing_places.append(place)
        return [np.nan if score is None else score for score in scores]

    def finish(self):
        if self.num_missing:
            raise ValueError(
                f"`with_scores` needs a teacher's score of each passage of a query; {self.num_missing} of "
                f"{self.num_pairs} have none, for instance at {'; '.join(self.missing_places)}. Leave these passages "
                "out, or score them."
            )
        queries, passages = self.queries.finish(), self.passages.finish()
        query_texts = np.array(self.query_texts, "int64")
        size = passages.num_keys
        (positives, scores, owners), (negatives, negative_scores, negative_owners) = (
            (numbers.finish(), scores.finish(), np.repeat(np.arange(len(query_texts)), counts.finish()))
            for numbers, scores, counts in self.found.values()
        )
        # One number for each pair of a query's key and a passage's key.
        pairs = queries.keys[query_texts].astype("int64") * size
        known = np.unique(pairs[owners] + passages.keys[positives])
        is_known = np.isin(pairs[negative_owners] + passages.keys[negatives], known)
        first = _firsts(owners * size + passages.keys[positives])
        allowed = np.flatnonzero(~is_known)
        negative_first = allowed[_firsts((negative_owners * size + passages.keys[negatives])[allowed])]
        num_repeated = len(positives) + len(allowed) - len(first) - len(negative_first)
        return QueryTable(
            queries,
            passages,
            query_texts,
            positives[first],
            _starts(owners[first], len(query_texts)),
            negatives[negative_first],
            _starts(negative_owners[negative_first], len(query_texts)),
            (known % size).astype("int32"),
            _starts(known // size, queries.num_keys),
            scores[first] if self.with_scores else None,
            negative_scores[negative_first] if self.with_scores else None,
            self._notes(int(is_known.sum()), num_repeated),
            [*_cut(self.queries, "query_maxlen", "queries"), *_cut(self.passages, "passage_maxlen", "passages")],
        )

    def _notes(self, num_known, num_repeated):
        notes = []
        if num_known:
            notes.append(
                f"{num_known} negatives are left out: they are positives of their queries, by id or by equal text."
            )
        if num_repeated:
            notes.append(f"{num_repeated} passages are left out that their queries have already, by id or equal text.")
        if self.num_scored and not self.with_scores:
            notes.append(
                f"The teacher's scores of {self.num_scored} queries are not used, since `with_scores` is False."
            )
        if self.num_empty:
            notes.append(f"{self.num_empty} passages are left out that are empty, or that the tokenizer gives no ids.")
        if self.passages.num_ambiguous:
            notes.append(
                f"{self.passages.num_ambiguous} passages have the id of another one with another text: they count as "
                "one passage, so that none of them is a negative where another is a positive. Give each its own id."
            )
        return notes


def _digest(content):
    return blake2b(content, digest_size=16).digest()


def _firsts(codes):
    """Places of the first of each number, ascending."""
    return np.sort(np.unique(codes, return_index=True)[1])


def _starts(owners, number):
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=number))]).astype("int64")


def _cut(collector, name, what):
    if collector.num_cut:
        yield f"`{name}`={collector.limit + 2}: {collector.num_cut} {what} lost {collector.num_lost} tokens."
