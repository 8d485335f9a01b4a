"""What the retrievers of the examples are trained on and measured with: BEIR folders, files of training queries, or,
without either, the documentation of the installed packages (`python_docs`).
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import python_docs
from command_line import stop
from simretro.data import TrainingQuery, queries_of_columns, read_training_queries
from simretro.evaluation import RetrievalCollection, read_beir

FILE_ENDINGS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


@dataclass(frozen=True)
class RetrievalData:
    """Collections to train on, to choose the best epoch by, and to report on.

    Attributes:
        train: its documents may be negatives.
        dev: None: no epoch is chosen.
        test: None: the report is on `dev`.
        negatives: {query id: document ids}, those that the data come with.
        scores: {query id: {document id: score}}, a teacher's that the data come with.
    """

    train: RetrievalCollection
    dev: RetrievalCollection | None = None
    test: RetrievalCollection | None = None
    negatives: Mapping[str, list[str]] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def check_path(path: Path | None) -> None:
    """Ends the program where `--data` names nothing that can be read."""
    if path is None:
        return
    if not path.exists():
        stop(f"--data: {path} does not exist")
    if path.is_dir() and not (path / "corpus.jsonl").is_file():
        stop(f"--data: {path} is no folder in BEIR's layout: corpus.jsonl is missing")
    if path.is_file() and not path.name.lower().endswith(FILE_ENDINGS):
        stop(f"--data: {path.name} must end in {', '.join(FILE_ENDINGS)}, or be a folder in BEIR's layout")


def load_data(path: Path | None, held_out: float = 0.1, seed: int = 0) -> RetrievalData:
    """The data of a path.

    Args:
        path: a folder in BEIR's layout with the splits train and, if there are any, dev and test; a `.jsonl` of
            training queries, see `iter_training_queries`; a `.tsv` of query, positive and negatives, see
            `queries_of_columns`; None = the documentation of the installed packages.
        held_out: float, share of the queries of a file that become `dev`, where there is no split.
        seed: int, of that choice.
    Raises: ValueError for a bad record, naming file and line.
    """
    if path is None:
        return RetrievalData(*map(python_docs.load_collection, ("train", "dev", "test")))
    if path.is_dir():
        splits = [read_split(path, split) for split in ("train", "dev", "test")]
        if splits[0] is None:
            stop(f"--data: {path} has no qrels/train.tsv to train on")
        return RetrievalData(*splits)
    is_tsv = path.name.lower().endswith((".tsv", ".tsv.gz"))
    return of_queries(queries_of_columns(path) if is_tsv else read_training_queries(path), held_out, seed)


def read_split(folder: Path, split: str) -> RetrievalCollection | None:
    """None where the folder has no such split."""
    return read_beir(folder, split) if (folder / "qrels" / f"{split}.tsv").is_file() else None


def of_queries(source: Iterable[TrainingQuery], held_out: float, seed: int) -> RetrievalData:
    """A collection of all passages of training queries; equal texts are one passage, equal queries one query."""
    documents, queries, qrels, negatives, scores = _Ids("d"), _Ids("q"), {}, {}, {}
    for query in source:
        key = queries.of(query.query)
        lists = ((query.positives, query.positive_scores), (query.negatives, query.negative_scores))
        found = [[documents.of(passage.full_text) for passage in passages] for passages, _ in lists]
        qrels.setdefault(key, {}).update(dict.fromkeys(found[0], 1))
        negatives.setdefault(key, []).extend(found[1])
        for ids, (_, of_passages) in zip(found, lists, strict=True):
            known = zip(ids, of_passages or (), strict=False)
            scores.setdefault(key, {}).update({i: score for i, score in known if score is not None})
    whole = RetrievalCollection(documents.texts, queries.texts, qrels)
    negatives = {key: list(dict.fromkeys(found)) for key, found in negatives.items() if found}
    scores = {key: found for key, found in scores.items() if found}
    keys = list(qrels)
    held = set(random.Random(seed).sample(keys, round(held_out * len(keys))))
    if not held:
        return RetrievalData(whole, negatives=negatives, scores=scores)
    train, dev = (
        replace(whole, qrels={q: qrels[q] for q in keys if (q in held) == is_held}) for is_held in (False, True)
    )
    kept = {query: found for query, found in negatives.items() if query not in held}
    return RetrievalData(_judged(train), _judged(dev), None, kept, scores)


def reduced(collection: RetrievalCollection, limit: int, seed: int = 0) -> RetrievalCollection:
    """The judged documents and random others, so that at most about `limit` documents have to be encoded."""
    if len(collection.documents) <= limit:
        return collection
    judged = {document for grades in collection.qrels.values() for document in grades}
    others = [document for document in collection.documents if document not in judged]
    kept = judged | set(random.Random(seed).sample(others, min(len(others), max(0, limit - len(judged)))))
    return replace(collection, documents={k: text for k, text in collection.documents.items() if k in kept})


def _judged(collection):
    return replace(collection, queries={query: collection.queries[query] for query in collection.qrels})


class _Ids:
    """An id for each different text."""

    def __init__(self, prefix):
        self.prefix, self.texts, self._ids = prefix, {}, {}

    def of(self, text):
        key = self._ids.setdefault(text, f"{self.prefix}{len(self._ids)}")
        self.texts[key] = text
        return key
