"""Writer of training queries."""

import json
from collections.abc import Iterable
from pathlib import Path

from simretro.arguments import check_int
from simretro.data.training_queries import TrainingQuery, as_training_queries
from simretro.files import atomic_file


def write_training_queries(
    path: str | Path,
    queries: Iterable[TrainingQuery],
    layout: str = "flagembedding",
    num_negatives: int | None = None,
) -> None:
    """Writes training queries as JSON lines, for simretro and for other tools.

    - "flagembedding": `{"query": ..., "pos": [...], "neg": [...]}`, with `query_id` where the query has an id, and
      `pos_scores` and `neg_scores` where it has scores of a teacher. `iter_training_queries` reads it.
    - "tevatron": `{"query": ..., "positive_passages": [{"docid": ..., "title": ..., "text": ...}], ...}` and
      `negative_passages`, with `query_id`; ids and titles are kept apart. `iter_training_queries` reads it.
    - "sentence-transformers": columns `anchor`, `positive`, `negative_1`, ..., a line for each positive; all lines have
      as many negatives. `queries_of_columns` reads it.

    In the first and the last a passage is its title and its text, joined by a blank, without its id.

    Args:
        path: the file, replaced as a whole when all is written.
        queries: iterable of `TrainingQuery`.
        layout: one of those above.
        num_negatives: int, for "sentence-transformers": so many are written of each query, the first ones. None = all,
            which must be as many for each query.
    Raises: ValueError for a query that is none, naming its place; if there is none; for scores of a teacher, which
        "flagembedding" alone can keep; for a query with too few negatives; for another `layout`.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"`layout` must be one of {tuple(_LAYOUTS)}; received {layout!r}.")
    if num_negatives is not None:
        if layout != _COLUMNS:
            raise ValueError(f"`num_negatives` is for `layout={_COLUMNS!r}`: the others keep all; received {layout!r}.")
        check_int("num_negatives", num_negatives, 0)
    wanted = num_negatives
    with atomic_file(path, "w") as file:
        for query in as_training_queries(queries):
            if layout != _WITH_SCORES and _is_scored(query):
                raise ValueError(
                    f"{query.place}: has scores of a teacher, which `layout={layout!r}` cannot keep. Give "
                    f"`layout={_WITH_SCORES!r}`, or set the query's `positive_scores` and `negative_scores` to None."
                )
            if layout == _COLUMNS:
                wanted = len(query.negatives) if wanted is None else wanted
                records = _column_records(query, wanted, exactly=num_negatives is None)
            else:
                records = [_LAYOUTS[layout](query)]
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _flagembedding_record(query):
    record = {} if query.id is None else {"query_id": query.id}
    record |= {"query": query.query, "pos": _texts(query.positives), "neg": _texts(query.negatives)}
    scores = {"pos_scores": query.positive_scores, "neg_scores": query.negative_scores}
    return record | {name: found for name, found in scores.items() if found is not None}


def _tevatron_record(query):
    def passage(document):
        record = {} if document.id is None else {"docid": document.id}
        return record | {"title": document.title or "", "text": document.text}

    record = {} if query.id is None else {"query_id": query.id}
    record |= {"query": query.query, "positive_passages": [passage(document) for document in query.positives]}
    return record | {"negative_passages": [passage(document) for document in query.negatives]}


def _column_records(query, wanted, exactly):
    found = len(query.negatives)
    if found < wanted or (exactly and found != wanted):
        raise ValueError(
            f"{query.place}: has {found} negatives, but each line must have {wanted}. Leave the query out, or give "
            f"`num_negatives={min(found, wanted)}`."
        )
    negatives = _texts(query.negatives[:wanted])
    columns = {f"negative_{number}": text for number, text in enumerate(negatives, 1)}
    return [{"anchor": query.query, "positive": positive, **columns} for positive in _texts(query.positives)]


def _is_scored(query):
    return any(score is not None for score in (*(query.positive_scores or ()), *(query.negative_scores or ())))


def _texts(documents):
    return [document.full_text for document in documents]


_WITH_SCORES, _COLUMNS = "flagembedding", "sentence-transformers"
_LAYOUTS = {_WITH_SCORES: _flagembedding_record, "tevatron": _tevatron_record, _COLUMNS: _column_records}
