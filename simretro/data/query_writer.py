"""Writer of training queries."""

import json
from collections.abc import Iterable
from pathlib import Path

from simretro.data.training_queries import TrainingQuery, as_training_queries
from simretro.files import atomic_file


def write_training_queries(path: str | Path, queries: Iterable[TrainingQuery]) -> None:
    """Writes training queries as JSON lines in FlagEmbedding's layout, which `iter_training_queries` reads, too.

    A line is `{"query": ..., "pos": [...], "neg": [...]}`, with `query_id` where the query has an id, and `pos_scores`
    and `neg_scores` where it has scores of a teacher. A passage is its title and its text, joined by a blank; its id is
    not written, since FlagEmbedding takes str only.

    Args:
        path: the file, replaced as a whole when all is written.
        queries: iterable of `TrainingQuery`.
    Raises: ValueError for a query that is none, naming its place; if there is none.
    """
    with atomic_file(path, "w") as file:
        for query in as_training_queries(queries):
            record = {} if query.id is None else {"query_id": query.id}
            record |= {"query": query.query, "pos": _texts(query.positives), "neg": _texts(query.negatives)}
            scores = {"pos_scores": query.positive_scores, "neg_scores": query.negative_scores}
            record |= {name: found for name, found in scores.items() if found is not None}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _texts(documents):
    return [document.full_text for document in documents]
