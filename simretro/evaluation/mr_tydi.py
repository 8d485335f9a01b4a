"""Mr. TyDi: monolingual retrieval, a folder for each of eleven languages.

topic.{split}.tsv             qid<TAB>question
qrels.{split}.txt             TREC: qid Q0 docid grade
collection/docs.jsonl(.gz)    {"id": ..., "contents": title + "\\n\\n" + text}
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simretro.arguments import warn
from simretro.evaluation.passages import passage_text, search_passages
from simretro.evaluation.ranking import Run, ranked
from simretro.evaluation.trec import read_qrels, read_run
from simretro.lines import iter_lines

DEPTH = 100


class MrTyDiResult(NamedTuple):
    """Result of `evaluate_mr_tydi`, of one language; papers give the unweighted mean over the languages.

    Attributes:
        mrr: float, MRR@100.
        recall: float, Recall@100.
        reciprocal_ranks, recalls: dict query id -> float, for intervals and tests.
        run: dict query id -> {document id: score}, what was measured; `write_run` writes it for trec_eval.
    """

    mrr: float
    recall: float
    reciprocal_ranks: dict[str, float]
    recalls: dict[str, float]
    run: Run


def evaluate_mr_tydi(
    folder: str | os.PathLike, encode: Callable | None = None, *, run: str | os.PathLike | Run | None = None,
    split: str = "test", encode_passages: Callable | None = None, similarity: str = "dot", block_size: int = 16_384,
) -> MrTyDiResult:  # fmt: skip
    """MRR@100 and Recall@100 of one language, by searching its collection or from a run.

    The numbers are those of `trec_eval -c -m recip_rank -m recall.100` on a run of depth 100: each query of the qrels
    counts, with 0 where the run has no answer; the scores give the order, not the column of ranks, and equal scores are
    ordered by id, the larger one first. What lies below the first 100 of a longer run is not looked at.

    Args:
        folder: path of the language, e.g. "mrtydi-v1.1-arabic".
        encode: called with a list of texts, returns numbers (N, d): the questions are encoded and the collection
            searched, titles before the texts. None if there is a `run`.
        run: path of a run in TREC's format, or dict query id -> {document id: score}.
        split: "train", "dev" or "test".
        encode_passages, similarity, block_size: see `search_passages`.
    Returns: a `MrTyDiResult`.
    Raises: FileNotFoundError for a missing file; ValueError with file and line for a damaged one, if both or none of
        `encode` and `run` are given, or if no query of the run is judged.
    """
    if (encode is None) == (run is None):
        raise ValueError("Either `encode` or `run` must be given: what is to be evaluated, and not both.")
    folder = Path(folder)
    qrels = read_qrels(_existing(folder / f"qrels.{split}.txt"))
    if encode is not None:
        questions = {
            query: text for query, text in read_topics(folder / f"topic.{split}.tsv").items() if query in qrels
        }
        found = search_passages(
            encode, list(questions.values()), _passages(folder), DEPTH, encode_passages=encode_passages,
            similarity=similarity, block_size=block_size,
        )  # fmt: skip
        run = {query: dict(pairs) for query, pairs in zip(questions, found, strict=True)}
    elif not isinstance(run, Mapping):
        run = read_run(run)
    return _measure(run, qrels)


def read_topics(path: str | os.PathLike) -> dict[str, str]:
    """Reads lines `qid<TAB>question`; returns dict query id -> question, in the order of the file.

    Raises: FileNotFoundError; ValueError with file and line for another shape, an id twice or bytes that are not UTF-8.
    """
    topics = {}
    for number, line in iter_lines(_existing(Path(path))):
        query, tab, question = line.partition("\t")
        if not tab or not query or not question.strip():
            raise ValueError(f"{path}, line {number}: expected qid<TAB>question; received {line[:100]!r}.")
        if query in topics:
            raise ValueError(f"{path}, line {number}: the id {query!r} stands in an earlier line too.")
        topics[query] = question
    return topics


def iter_collection(folder: str | os.PathLike) -> Iterator[tuple[str, str, str]]:
    """Yields (id, title, text) of each passage of `collection/docs.jsonl` or `docs.jsonl.gz`.

    Raises: FileNotFoundError; ValueError with file and line for what is no such object, bytes that are not UTF-8, and a
        packed file that is damaged.
    """
    plain = Path(folder) / "collection" / "docs.jsonl"
    path = plain if plain.is_file() else plain.with_name("docs.jsonl.gz")
    for number, line in iter_lines(_existing(path)):
        try:
            record = json.loads(line)
            name, contents = record["id"], record["contents"]
            if not isinstance(name, str) or not isinstance(contents, str):
                raise TypeError("both must be strings")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f'{path}, line {number}: expected {{"id": ..., "contents": ...}} ({error!r}).') from error
        # Only the first blank line: a text may have several paragraphs.
        title, gap, text = contents.partition("\n\n")
        yield (name, title, text) if gap else (name, "", contents)


def _passages(folder):
    for name, title, text in iter_collection(folder):
        yield name, passage_text(title, text)


def _measure(run, qrels):
    answered = [query for query in qrels if run.get(query)]
    if not answered:
        raise ValueError(
            f"`run` must answer at least one judged query; its queries are {list(run)[:3]} (of {len(run)}), the judged "
            f"ones {list(qrels)[:3]} (of {len(qrels)}). Are the ids written alike?"
        )
    if len(answered) < len(qrels):
        warn(f"`run` has no result for {len(qrels) - len(answered)} of {len(qrels)} judged queries: they count as 0.")
    reciprocal_ranks, recalls = {}, {}
    for query, grades in qrels.items():
        relevant = {document for document, grade in grades.items() if grade > 0}
        first = ranked(run.get(query, {}), query)[:DEPTH]
        ranks = [rank for rank, document in enumerate(first, 1) if document in relevant]
        reciprocal_ranks[query] = 1 / ranks[0] if ranks else 0.0
        recalls[query] = len(ranks) / len(relevant) if relevant else 0.0
    means = (float(np.mean(list(values.values()))) for values in (reciprocal_ranks, recalls))
    return MrTyDiResult(*means, reciprocal_ranks, recalls, run)


def _existing(path):
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: it is no folder of a Mr. TyDi language, or has no such split.")
    return path
