"""Reader of what retrievers are trained on: queries, passages that answer them, and passages that do not."""

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import NamedTuple

from simretro.data.documents import Document
from simretro.data.records import check_text, parse_object
from simretro.lines import iter_lines, short

_EXAMPLE = '{"query": "...", "positives": ["..."], "negatives": ["...", {"id": "7", "title": "...", "text": "..."}]}'
# {positives: (negatives, scores of either)}: our own names, Tevatron's, Tevatron 2's, FlagEmbedding's.
_NAMES = {
    "positives": ("negatives", "positive_scores", "negative_scores"),
    "positive_passages": ("negative_passages", None, None),
    "positive_document_ids": ("negative_document_ids", None, None),
    "pos": ("neg", "pos_scores", "neg_scores"),
}
_QUERIES = ("query", "query_text")
_QUERY_IDS = ("id", "_id", "query_id", "qid")
_PASSAGE_IDS = ("id", "_id", "docid")
_SHOWN = 5  # ids in a message


class TrainingQuery(NamedTuple):
    """A query and what is known of it.

    Args:
        query: str, not empty.
        positives: tuple of at least one str or `Document`: passages that answer the query.
        negatives: tuple of str or `Document`: passages that do not, though they might seem to.
        id: str or None.
        path: file it comes from, None if it was given in memory.
        line: int, line in that file, counted from 1; without a file the query's number, counted from 0.
        positive_scores: a teacher's scores of `positives`, one for each: float, or None where there is none; None =
            none at all.
        negative_scores: the same of `negatives`.
    """

    query: str
    positives: tuple[str | Document, ...]
    negatives: tuple[str | Document, ...] = ()
    id: str | None = None
    path: str | None = None
    line: int | None = None
    positive_scores: tuple[float | None, ...] | None = None
    negative_scores: tuple[float | None, ...] | None = None

    @property
    def place(self) -> str:
        """Where the query comes from, for messages."""
        if self.path is not None:
            return f"{self.path}, line {self.line}"
        return f"query {self.line if self.id is None else repr(self.id)}"


def iter_training_queries(
    path: str | Path, documents: Mapping[str, str | Document] | None = None
) -> Iterator[TrainingQuery]:
    """Reads training queries one by one: JSON lines in UTF-8, packed if the name ends in `.gz`.

    A record has a `query` (str; or `query_text`), perhaps its `id`, `_id`, `query_id` or `qid`, a list of passages that
    answer it and perhaps a list of passages that do not. These lists are called `positives` and `negatives`, or
    `positive_passages` and `negative_passages` (Tevatron), or `pos` and `neg` (FlagEmbedding). A passage is a str or an
    object with `text` and perhaps `title` and `id`, `_id` or `docid`. Or the lists are called `positive_document_ids`
    and `negative_document_ids` (Tevatron 2), and hold ids of `documents`.

    A teacher's scores are in lists as long as those of the passages, `positive_scores` and `negative_scores`, or
    `pos_scores` and `neg_scores` (FlagEmbedding); null = none. Other keys are ignored.

    Args:
        path: file to read.
        documents: {id: text or `Document`}, see `read_passages`; for records with document ids.
    Yields: TrainingQuery; its passages are `Document`s.
    Raises:
        ValueError: for the first line that is no such record, naming file and line; for ids that `documents` lack,
            saying which and how many the whole file has; for a file without records.
        OSError: if the file cannot be read.
    """
    found, lost = False, _LostIds()
    for line, text in iter_lines(path):
        found = True
        query = _parse(text, str(path), line, documents, lost)
        if not lost.ids:
            yield query
    if lost.ids:
        raise ValueError(
            f"{path}: {len(lost.ids)} ids of documents, the first in line {lost.line}, are not in `documents`: "
            f"{_listed(lost.ids)}."
        )
    if not found:
        raise ValueError(f"{path}: the file holds no records; it must have one JSON object a line, as {_EXAMPLE}.")


def read_training_queries(
    path: str | Path, documents: Mapping[str, str | Document] | None = None
) -> list[TrainingQuery]:
    """All training queries of a file; see `iter_training_queries`."""
    return list(iter_training_queries(path, documents))


def queries_of_collection(
    documents: Mapping[str, str | Document],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    negatives: Mapping[str, Iterable[str]] | None = None,
    relevant_grade: int = 1,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> list[TrainingQuery]:
    """Training queries of a collection whose documents were judged, such as those of BEIR and MS MARCO.

    Args:
        documents: {document id: text or `Document`}.
        queries: {query id: text}; those that are not judged are left out.
        qrels: {query id: {document id: grade}}.
        negatives: {query id: document ids}, mined ones for instance; None = no negatives.
        relevant_grade: int; documents of this grade or a higher one are a query's positives.
        scores: {query id: {document id: score}}, a teacher's, for instance a run; pairs may be missing.
    Returns: list of `TrainingQuery`, in the order of `qrels`.
    Raises: ValueError for ids that are unknown, saying which and how many, and for queries without a positive.
    """
    # An iterator of ids is gone through once only.
    negatives = {query: list(found) for query, found in (negatives or {}).items()}
    for name, judged in (("qrels", qrels), ("negatives", negatives)):
        _refuse(name, "queries", [query for query in judged if query not in queries])
        _refuse(name, "documents", [d for found in judged.values() for d in found if d not in documents])
    lost = [query for query, grades in qrels.items() if not any(g >= relevant_grade for g in grades.values())]
    if lost:
        raise ValueError(
            f"`qrels` must name a document of grade {relevant_grade} or higher for each query; {len(lost)} of "
            f"{len(qrels)} queries have none: {_listed(lost)}. Leave them out of `qrels`."
        )

    def training_query(number, query, grades):
        positives = [document for document, grade in grades.items() if grade >= relevant_grade]
        ids = positives, negatives.get(query, [])
        teacher = None if scores is None else scores.get(query, {})
        return TrainingQuery(
            queries[query],
            *(tuple(_document(documents[i], i) for i in found) for found in ids),
            query,
            None,
            number,
            *(None if teacher is None else tuple(teacher.get(i) for i in found) for found in ids),
        )

    return [training_query(number, *judged) for number, judged in enumerate(qrels.items())]


def as_training_queries(source: str | Path | Iterable[TrainingQuery]) -> Iterator[TrainingQuery]:
    """Training queries of a file, or of memory and checked like those of a file.

    Args:
        source: path, see `iter_training_queries`, or iterable of `TrainingQuery`.
    Yields: TrainingQuery; its passages are `Document`s.
    Raises: ValueError for something else, naming its place, and at the end if there were none.
    """
    if isinstance(source, str | Path):
        yield from iter_training_queries(source)
        return
    found = False
    for number, query in enumerate(source):
        found = True
        if not isinstance(query, TrainingQuery):
            raise ValueError(f"query {number}: must be a `TrainingQuery`; received {type(query).__name__}.")
        query = query._replace(line=number) if query.line is None else query
        lists = {name: _passages(getattr(query, name), query.place, name) for name in ("positives", "negatives")}
        _check(query.query, lists["positives"], query.place, "positives")
        for name, scores in (("positives", "positive_scores"), ("negatives", "negative_scores")):
            lists[scores] = _scores(getattr(query, scores), lists[name], query.place, scores)
        yield query._replace(**lists)
    if not found:
        raise ValueError("`source` must hold at least one `TrainingQuery`; received none.")


class _LostIds:
    """Ids that the documents lack, each once, and the line of the first."""

    def __init__(self):
        self.ids, self.line = {}, None

    def add(self, ids, line):
        self.line = line if self.line is None else self.line
        self.ids |= dict.fromkeys(ids)


def _parse(text, path, line, documents, lost):
    place = f"{path}, line {line}"
    record = parse_object(text, place, _EXAMPLE)
    asked = next((name for name in _QUERIES if name in record), None)
    if asked is None:
        raise ValueError(f"{place}: has no `query`; received {short(text)}. A record must be as {_EXAMPLE}.")
    names = [name for name, (negative, *_) in _NAMES.items() if record.keys() & {name, negative}]
    if len(names) != 1 or names[0] not in record:
        has = "has no passages that answer it" if len(names) < 2 else "names its passages in several ways"
        raise ValueError(
            f"{place}: {has}; received {short(text)}. It must have one of {', '.join(f'`{name}`' for name in _NAMES)}."
        )
    positive = names[0]
    negative, *score_names = _NAMES[positive]
    lists = [(positive, record[positive]), (negative, () if record.get(negative) is None else record[negative])]
    if positive == "positive_document_ids":
        passages = [_known_documents(ids, place, name, documents, lost, line) for name, ids in lists]
    else:
        passages = [_passages(values, place, name) for name, values in lists]
    if not lost.ids:
        _check(record[asked], passages[0], place, positive, asked)
    scores = [_scores(record.get(name), found, place, name) for name, found in zip(score_names, passages, strict=True)]
    return TrainingQuery(record[asked], *passages, _id(record, _QUERY_IDS, place), path, line, *scores)


def _known_documents(ids, place, name, documents, lost, line):
    if documents is None:
        raise ValueError(f"{place}: `{name}` holds ids: give the `documents` that they are of, see `read_passages`.")
    if not isinstance(ids, list | tuple):
        raise ValueError(f"{place}: `{name}` must be a list of ids; received {type(ids).__name__} {short(ids)}.")
    ids = [_id({name: i}, (name,), place) for i in ids]
    unknown = [i for i in ids if i not in documents]
    if unknown:
        lost.add(unknown, line)
    return tuple(_document(documents[i], i) for i in ids if i in documents)


def _document(text, key):
    return text._replace(id=key) if isinstance(text, Document) else Document(text, id=key)


def _check(query, positives, place, name, asked="query"):
    if not check_text(query, place, f"`{asked}`").strip():
        raise ValueError(f"{place}: `{asked}` must not be empty; received {query!r}. Leave the record out.")
    if not positives:
        raise ValueError(f"{place}: `{name}` must hold at least one passage; received none. Leave the record out.")


def _passages(passages, place, name):
    # A str is a sequence of its characters: each would silently become a passage.
    if isinstance(passages, str | bytes | Mapping | Document) or not isinstance(passages, Iterable):
        raise ValueError(
            f"{place}: `{name}` must be a list of passages; received {type(passages).__name__} {short(passages)}. Put "
            "it in brackets."
        )
    return tuple(_passage(passage, place, name) for passage in passages)


def _passage(passage, place, name):
    if isinstance(passage, str):
        passage = Document(passage)
    elif isinstance(passage, Mapping):
        passage = Document(passage.get("text"), passage.get("title"), _id(passage, _PASSAGE_IDS, place))
    if not isinstance(passage, Document):
        raise ValueError(
            f"{place}: each of `{name}` must be a str or an object with `text`; received {type(passage).__name__} "
            f"{short(passage)}."
        )
    check_text(passage.text, place, f"each text of `{name}`")
    if passage.title is not None:
        check_text(passage.title, place, f"each title of `{name}`")
    return passage


def _scores(scores, passages, place, name):
    if scores is None:
        return None
    if isinstance(scores, str | bytes | Mapping) or not isinstance(scores, Iterable):
        raise ValueError(f"{place}: `{name}` must be a list of numbers; received {short(scores)}.")
    scores = tuple(scores)
    if len(scores) != len(passages):
        raise ValueError(
            f"{place}: `{name}` must have a score for each passage; received {len(scores)} for {len(passages)} "
            "passages. Write null where there is none."
        )
    for score in scores:
        if score is not None and (isinstance(score, bool) or not isinstance(score, Real) or not math.isfinite(score)):
            raise ValueError(f"{place}: each of `{name}` must be a finite number or null; received {short(score)}.")
    return tuple(score if score is None else float(score) for score in scores)


def _id(record, names, place):
    name = next((name for name in names if record.get(name) is not None), None)
    value = None if name is None else record[name]
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise ValueError(f"{place}: `{name}` must be a str or an int; received {short(value)}.")
    return None if value is None else str(value)


def _refuse(name, where, ids):
    if ids:
        raise ValueError(f"`{name}` must name ids of `{where}` only; {len(ids)} are not there: {_listed(ids)}.")


def _listed(ids):
    ids = list(dict.fromkeys(ids))
    return ", ".join(map(repr, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
