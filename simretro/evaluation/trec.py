"""Judgements and runs as files: TREC's formats, and BEIR's judgements.

A line of

    qrels   query 0 document grade                  TREC, columns separated by white space
            query-id<TAB>corpus-id<TAB>score        BEIR, usually below a header of these names
    run     query Q0 document rank score tag        TREC
"""

import math
import os

import numpy as np

from simretro.evaluation.ranking import Qrels, Run, ranked
from simretro.files import atomic_file
from simretro.lines import iter_lines

_BEIR_HEADER = ["query-id", "corpus-id", "score"]
_QRELS = "`query 0 document grade` (TREC) or `query-id<TAB>corpus-id<TAB>score` (BEIR)"
_RUN = "`query Q0 document rank score tag`"


def read_qrels(path: str | os.PathLike) -> dict[str, dict[str, int]]:
    """Reads judgements in TREC's or BEIR's format; the number of columns tells which.

    A first line that does not end in a whole number must be BEIR's header; without a header no line is lost. A
    judgement that is repeated counts once.

    Args:
        path: the file, packed if its name ends in `.gz`.
    Returns: {query id: {document id: grade}} in the order of the file.
    Raises: ValueError with file and line for another shape, a grade that is no whole number, or a second judgement of
        the same pair with another grade; ValueError for a file without judgements.
    """
    qrels = {}
    for line, text in iter_lines(path):
        where = f"{os.fspath(path)}, line {line}"
        columns = text.split("\t") if text.count("\t") == 2 else text.split()
        if line == 1 and [column.strip().lower() for column in columns] == _BEIR_HEADER:
            continue
        if len(columns) not in (3, 4):
            raise ValueError(f"{where}: expected {_QRELS}; received {len(columns)} columns, {text[:100]!r}.")
        query, document, grade = columns[0], columns[-2], _grade(columns[-1], where, line)
        if not query.strip() or not document.strip():
            raise ValueError(f"{where}: an id is empty; received {text[:100]!r}.")
        known = qrels.setdefault(query, {}).setdefault(document, grade)
        if known != grade:
            raise ValueError(f"{where}: query {query!r}, document {document!r} was judged {known} in an earlier line.")
    if not qrels:
        raise ValueError(f"{os.fspath(path)} holds no judgement; expected lines {_QRELS}.")
    return qrels


def write_qrels(path: str | os.PathLike, qrels: Qrels) -> None:
    """Writes judgements in TREC's format, which `read_qrels` reads.

    Args:
        path: the file, replaced as a whole.
        qrels: {query id: {document id: grade}}.
    Raises: ValueError for an id that is empty or has white space in it, a grade that is no int, or no judgement.
    """
    if not any(qrels.values()):
        raise ValueError("`qrels` must hold at least one judgement; received none.")
    for query, grades in qrels.items():
        _check_word(query, "a query id of `qrels`")
        for document in grades:
            _check_word(document, "a document id of `qrels`")
    check_grades(qrels)
    with atomic_file(path, "w") as file:
        for query, grades in qrels.items():
            file.writelines(f"{query} 0 {document} {grade}\n" for document, grade in grades.items())


def read_run(path: str | os.PathLike) -> dict[str, dict[str, float]]:
    """Reads a run in TREC's format. The scores give the order, as for trec_eval; the column of ranks is not read.

    Args:
        path: the file, packed if its name ends in `.gz`.
    Returns: {query id: {document id: score}} in the order of the file.
    Raises: ValueError with file and line for another number of columns, a score that is no finite number or a document
        that a query has twice; ValueError for an empty file.
    """
    run = {}
    for line, text in iter_lines(path):
        where = f"{os.fspath(path)}, line {line}"
        columns = text.split()
        if len(columns) != 6:
            raise ValueError(f"{where}: expected {_RUN}; received {len(columns)} columns, {text[:100]!r}.")
        query, _, document, _, score, _ = columns
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{where}: the score must be a finite number; received {score!r}.")
        if document in run.setdefault(query, {}):
            raise ValueError(f"{where}: query {query!r} has the document {document!r} twice.")
        run[query][document] = value
    if not run:
        raise ValueError(f"{os.fspath(path)} holds no result; expected lines {_RUN}.")
    return run


def write_run(path: str | os.PathLike, run: Run, tag: str = "simretro") -> None:
    """Writes a run in TREC's format, each query's documents in the order of `ranked`, ranks from 1.

    Scores are written in full: `read_run` returns the same numbers. A query without results leaves no line, as the
    format has no way to say it; it counts as unanswered either way.

    Args:
        path: the file, replaced as a whole.
        run: {query id: {document id: score}}.
        tag: str, name of the run.
    Raises: ValueError for an id or a tag that is empty or has white space in it, or a score that is not finite.
    """
    _check_word(tag, "`tag`")
    for query, scores in run.items():
        _check_word(query, "a query id of `run`")
        for document in scores:
            _check_word(document, "a document id of `run`")
    with atomic_file(path, "w") as file:
        for query, scores in run.items():
            for rank, document in enumerate(ranked(scores, query), 1):
                file.write(f"{query} Q0 {document} {rank} {float(scores[document])!r} {tag}\n")


def check_grades(qrels: Qrels) -> None:
    """Raises ValueError for a grade that is no int, naming query and document."""
    for query, grades in qrels.items():
        for document, grade in grades.items():
            if isinstance(grade, bool) or not isinstance(grade, int | np.integer):
                raise ValueError(f"`qrels` must have int grades; received {grade!r} for {query!r}, {document!r}.")


def _grade(text, where, line):
    try:
        return int(text)
    except ValueError:
        header = f" A header must be {'<TAB>'.join(_BEIR_HEADER)}." if line == 1 else ""
        raise ValueError(f"{where}: the grade must be a whole number; received {text!r}.{header}") from None


def _check_word(word, name):
    if not isinstance(word, str) or word.split() != [word]:
        raise ValueError(f"{name} must be a str without white space, which separates the columns; received {word!r}.")
