"""Retrieval collections: documents, queries and judgements, and the BEIR folders that hold them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simretro.arguments import warn
from simretro.evaluation.ranking import Qrels
from simretro.evaluation.trec import check_grades, read_qrels
from simretro.files import atomic_folder
from simretro.lines import iter_lines, short
from simretro.titles import with_title

_SHOWN = 5  # ids in a message


@dataclass(frozen=True)
class RetrievalCollection:
    """Documents to search, queries, and which documents answer which query. All ids are strings.

    Args:
        documents: {document id: text}; the text may be empty.
        queries: {query id: text}.
        qrels: {query id: {document id: grade}}; a grade of 1 or more says that the document is relevant.
    Raises: ValueError if there is no document, no query or no judgement, if an id or a text is no str, a grade no int,
        or if `qrels` name a query or a document that does not exist.
    """

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Qrels

    def __post_init__(self):
        for name in ("documents", "queries", "qrels"):
            values = getattr(self, name)
            if not isinstance(values, Mapping) or not values:
                shown = f"an empty {type(values).__name__}" if isinstance(values, Mapping) else type(values).__name__
                raise ValueError(f"`{name}` must be a dict with at least one entry; received {shown}.")
        for name in ("documents", "queries"):
            for key, text in getattr(self, name).items():
                if not isinstance(key, str) or not isinstance(text, str):
                    raise ValueError(f"`{name}` must map str to str; received {key!r}: {short(text)}.")
        check_grades(self.qrels)
        problems = _unknown(self.documents, self.queries, self.qrels)
        if problems:
            raise ValueError(f"`qrels` must name ids of `queries` and `documents` only: {problems}.")

    def __repr__(self) -> str:
        judged = sum(len(grades) for grades in self.qrels.values())
        return (
            f"RetrievalCollection({len(self.documents)} documents, {len(self.queries)} queries, {judged} judged pairs)"
        )


def read_beir(folder: str | os.PathLike, split: str = "test", unknown_ids: str = "error") -> RetrievalCollection:
    """Reads a folder in BEIR's layout.

    `corpus.jsonl` has `_id`, `text` and perhaps `title` on each line, `queries.jsonl` has `_id` and `text`,
    `qrels/<split>.tsv` has lines `query-id<TAB>corpus-id<TAB>score` with or without a header. Ids that are numbers in
    the JSON become strings. Of the queries, those that the split judges are kept.

    A document is its title, a space and its text. Where the text begins with the title already, up to case and white
    space, the title is not put before it once more: the text that `encode_corpus` encodes, too.

    Args:
        folder: path of the folder.
        split: name of the file in `qrels/`.
        unknown_ids: "error", or "drop" = judgements of unknown queries and documents are left out, with a warning that
            counts them.
    Returns: the `RetrievalCollection`.
    Raises:
        FileNotFoundError: for a missing file; for an unknown split it names those that there are.
        ValueError: naming file and line, for a line that is no such record, a repeated id, or contradicting judgements;
            for unknown ids, with their number.
    """
    if unknown_ids not in ("error", "drop"):
        raise ValueError(f'`unknown_ids` must be "error" or "drop"; received {unknown_ids!r}.')
    folder = Path(folder)
    judgements = folder / "qrels" / f"{split}.tsv"
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl"):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: {folder} is no folder in BEIR's layout, or no whole one.")
    if not judgements.is_file():
        splits = sorted(path.stem for path in judgements.parent.glob("*.tsv"))
        raise FileNotFoundError(f"{judgements} is missing; `split` must be one of {splits}.")
    documents = _read_texts(folder / "corpus.jsonl", _document_text)
    queries = _read_texts(folder / "queries.jsonl", _query_text)
    qrels = read_qrels(judgements)
    problems = _unknown(documents, queries, qrels)
    if problems and unknown_ids == "error":
        raise ValueError(
            f"{judgements}: {problems}. Complete the folder, or leave these judgements out with "
            '`unknown_ids="drop"`; documents that cannot be found are then not counted as missed.'
        )
    if problems:
        warn(f"{judgements}: {problems}; these judgements are left out.")
        known = {q: {d: grade for d, grade in grades.items() if d in documents} for q, grades in qrels.items()}
        qrels = {q: grades for q, grades in known.items() if q in queries and grades}
        if not qrels:
            raise ValueError(f"{judgements}: no judgement is left. The ids must be those of corpus and queries.")
    return RetrievalCollection(documents, {q: text for q, text in queries.items() if q in qrels}, qrels)


def write_beir(folder: str | os.PathLike, splits: Mapping[str, RetrievalCollection]) -> None:
    """Writes a folder in BEIR's layout, which `read_beir` reads.

    A document's title is part of its text in a `RetrievalCollection`, so `title` is written empty.

    Args:
        folder: path, replaced only when all is written; it must not exist, or be empty.
        splits: {name of a file in `qrels/`: its collection}. They share the documents and the queries' ids.
    Raises:
        FileExistsError: if there is something in the folder.
        ValueError: for no split, a name that is none of a file, an id with white space at an end or with a tab or an
            end of line in it, or an id that has another text in another split.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty. Remove it, or give another folder.")
    if not splits:
        raise ValueError("`splits` must name at least one split, as {'test': collection}; received none.")
    texts = {"corpus": {}, "queries": {}}
    for split, collection in splits.items():
        if Path(split).name != split or not split.strip():
            raise ValueError(f"`splits` must have names of files without a folder; received {split!r}.")
        for name, own in (("corpus", collection.documents), ("queries", collection.queries)):
            _add_texts(texts[name], own, f"`splits[{split!r}]`")
    with atomic_folder(folder) as staging:
        for name, own in texts.items():
            records = ({"_id": key, "title": "", "text": text} for key, text in own.items())
            if name == "queries":
                records = ({"_id": key, "text": text} for key, text in own.items())
            with open(staging / f"{name}.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (staging / "qrels").mkdir()
        for split, collection in splits.items():
            with open(staging / "qrels" / f"{split}.tsv", "w", encoding="utf-8") as file:
                file.write("query-id\tcorpus-id\tscore\n")
                for query, grades in collection.qrels.items():
                    file.writelines(f"{query}\t{document}\t{grade}\n" for document, grade in grades.items())


def _add_texts(known, texts, place):
    for key, text in texts.items():
        if key.strip() != key or not key or len(key.splitlines()) > 1 or "\t" in key:
            raise ValueError(f"{place}: the id {key!r} cannot be a column between tabs. Give it another.")
        if known.setdefault(key, text) != text:
            raise ValueError(f"{place}: the id {key!r} has another text than in an earlier split: {short(text)}.")


def _read_texts(path, text_of: Callable):
    texts, lines = {}, {}
    for line, record in _records(path):
        where = f"{path}, line {line}"
        key = _id(record, where)
        if key in texts:
            raise ValueError(f"{where}: the id {key!r} stands in line {lines[key]} too. Each id must occur once.")
        texts[key], lines[key] = text_of(record, where), line
    if not texts:
        raise ValueError(f"{path} holds no record.")
    return texts


def _records(path) -> Iterator[tuple[int, dict]]:
    """Yields (line, object) of a file of JSON lines."""
    for line, text in iter_lines(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {line}: not a JSON object ({error}); received {short(text)}.") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {line}: must be a JSON object; received {short(record)}.")
        yield line, record


def _id(record, where):
    key = record.get("_id")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)  # the judgements, text themselves, know it as a string
    if not isinstance(key, str) or not key.strip():
        raise ValueError(f"{where}: `_id` must be a str that is not empty; received {short(key)}.")
    return key


def _document_text(record, where):
    title = record.get("title")
    return with_title("" if title is None else _text(title, "title", where), _text(record.get("text"), "text", where))


def _query_text(record, where):
    text = _text(record.get("text"), "text", where).strip()
    if not text:
        raise ValueError(f"{where}: `text` of a query must not be empty.")
    return text


def _text(text, key, where):
    if not isinstance(text, str):
        raise ValueError(f"{where}: `{key}` must be a str; received {short(text)}.")
    return text


def _unknown(documents, queries, qrels):
    """What `qrels` name and nobody knows, in words; "" if all is well."""
    lost_queries = [query for query in qrels if query not in queries]
    lost = [document for grades in qrels.values() for document in grades if document not in documents]
    parts = []
    if lost_queries:
        parts.append(f"{len(lost_queries)} of {len(qrels)} queries are unknown ({_list(lost_queries)})")
    if lost:
        judged = sum(len(grades) for grades in qrels.values())
        parts.append(f"{len(lost)} of {judged} judged documents are unknown ({_list(list(dict.fromkeys(lost)))})")
    return "; ".join(parts)


def _list(ids):
    return ", ".join(map(repr, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
