"""What other tools keep training data of retrievers in: columns by their order, and MS MARCO's files of ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from simretro.data.documents import Document
from simretro.data.records import check_text, parse_object
from simretro.data.training_queries import TrainingQuery
from simretro.lines import iter_lines, short

_COLUMNS_EXAMPLE = '{"anchor": "...", "positive": "...", "negative_1": "..."}'
_PASSAGE_EXAMPLE = '{"docid": "7", "title": "...", "text": "..."}'
_QUERY_EXAMPLE = '{"_id": "7", "text": "..."}'
_IDS = ("_id", "id", "docid", "query_id", "qid")
_LABELS = ("label", "labels", "score", "scores")


def queries_of_columns(source: str | Path | Iterable[Mapping[str, str] | Sequence[str]]) -> Iterator[TrainingQuery]:
    """Training queries of rows as sentence-transformers reads them: anchor, positive, negatives, by their order.

    The first column is the query, the second a passage that answers it, all others passages that do not; the names of
    the columns say nothing. Where they are called `anchor`, `positive` and `negative...`, they must stand in this
    order, so that nobody takes the one for the other.

    Args:
        source: path of a file of JSON lines, or of one with columns between tabs and without a header, such as
            MS MARCO's triples (`.tsv`), each packed if its name ends in `.gz`. Or rows in memory: dicts, as of
            `datasets.Dataset` or `csv.DictReader`, or lists of str.
    Yields: TrainingQuery, one for each row; a negative that is None is left out.
    Raises: ValueError for a row of other columns than the first, a text that is none, columns in another order, or
        labels, naming the place; if there is no row.
    """
    names = shape = None
    for place, path, line, row in _rows(source):
        columns, own_shape = (tuple(row), {*row}) if isinstance(row, Mapping) else (len(row), len(row))
        if names is None:
            names, shape = columns, own_shape
            _check_columns(columns, place)
        if own_shape != shape:
            raise ValueError(f"{place}: must have the columns of the first row, {short(names)}; received {short(row)}.")
        anchor, positive, *negatives = [row[name] for name in names] if isinstance(row, Mapping) else row
        for what, text in (("the first column, the query,", anchor), ("the second column, the positive,", positive)):
            if not check_text(text, place, what).strip():
                raise ValueError(f"{place}: {what} must not be empty. Leave the row out.")
        found = tuple(check_text(text, place, "each negative") for text in negatives if text is not None)
        yield TrainingQuery(anchor, (Document(positive),), tuple(map(Document, found)), None, path, line)
    if names is None:
        raise ValueError(f"{'`source`' if _is_in_memory(source) else source}: there are no rows.")


def read_passages(path: str | Path) -> dict[str, Document]:
    """Passages of a file, by id: JSON lines, or lines `id<TAB>text` (MS MARCO's `collection.tsv`).

    A JSON record has an `_id`, `id` or `docid`, a `text` or `document_text` (Tevatron), and perhaps a `title`. A name
    that ends in `.gz` is that of a packed file.

    Args:
        path: file to read, `.tsv` or JSON lines.
    Returns: {id: `Document`}, for `queries_of_collection` and `iter_training_queries`.
    Raises: ValueError naming file and line for another record, or an id that comes twice; for an empty file.
    """

    def passage(record, place):
        title = record.get("title")
        title = None if title is None else check_text(title, place, "`title`")
        return Document(_text(record, ("text", "document_text"), place, _PASSAGE_EXAMPLE), title)

    found = _by_id(path, passage, lambda text, place: Document(text), _PASSAGE_EXAMPLE)
    return {key: document._replace(id=key) for key, document in found.items()}


def read_queries(path: str | Path) -> dict[str, str]:
    """Queries of a file, by id: JSON lines, or lines `id<TAB>text` (MS MARCO's `queries.train.tsv`).

    A JSON record has an `_id`, `id`, `query_id` or `qid`, and a `text`, `query` or `query_text`.

    Args:
        path: file to read, `.tsv` or JSON lines.
    Returns: {id: text}, for `queries_of_collection`.
    Raises: ValueError naming file and line for another record, an id that comes twice or an empty text; for an empty
        file.
    """

    def checked(text, place):
        if not text.strip():
            raise ValueError(f"{place}: a query must not be empty. Leave the line out.")
        return text

    def query(record, place):
        return checked(_text(record, ("text", "query", "query_text"), place, _QUERY_EXAMPLE), place)

    return _by_id(path, query, checked, _QUERY_EXAMPLE)


def read_id_triples(path: str | Path) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
    """MS MARCO's triples of ids, lines `query<TAB>positive<TAB>negative` (`qidpidtriples.train.tsv`).

    Args:
        path: file to read, packed if its name ends in `.gz`.
    Returns: (qrels {query id: {document id: 1}}, negatives {query id: document ids, each once}), for
        `queries_of_collection`.
    Raises: ValueError naming file and line for a line without three ids; for an empty file.
    """
    qrels, negatives = {}, {}
    for line, text in iter_lines(path):
        ids = text.split("\t") if "\t" in text else text.split()
        ids = [i.strip() for i in ids]
        if len(ids) != 3 or not all(ids):
            raise ValueError(f"{path}, line {line}: must be `query<TAB>positive<TAB>negative`; received {short(text)}.")
        query, positive, negative = ids
        qrels.setdefault(query, {})[positive] = 1
        negatives.setdefault(query, {})[negative] = None
    if not qrels:
        raise ValueError(f"{path}: the file holds no triples, lines `query<TAB>positive<TAB>negative`.")
    return qrels, {query: list(found) for query, found in negatives.items()}


def _is_in_memory(source):
    return not isinstance(source, str | Path)


def _rows(source):
    """Yields (place, path, line, row)."""
    if _is_in_memory(source):
        for number, row in enumerate(source):
            place = f"row {number}"
            if not isinstance(row, Mapping) and (isinstance(row, str | bytes) or not isinstance(row, Sequence)):
                raise ValueError(
                    f"{place}: must be a dict or a list of str; received {type(row).__name__} {short(row)}."
                )
            yield place, None, number, row
        return
    for line, text in iter_lines(source):
        place = f"{source}, line {line}"
        row = text.split("\t") if _is_tsv(source) else parse_object(text, place, _COLUMNS_EXAMPLE)
        yield place, str(source), line, row


def _check_columns(columns, place):
    names = columns if isinstance(columns, tuple) else ()
    labels = [name for name in names if name.lower() in _LABELS]
    if labels:
        raise ValueError(
            f"{place}: has the column `{labels[0]}`, but rows must be anchor, positive, negatives. Keep the rows whose "
            "passage answers the query, without the label; a teacher's scores are read by `iter_training_queries`."
        )
    if (len(names) if names else columns) < 2:
        raise ValueError(f"{place}: must have at least two columns, anchor and positive; received {short(columns)}.")
    for number, name in enumerate(names):
        known = next((i for i, known in enumerate(("anchor", "positive", "negative")) if name.startswith(known)), None)
        if known is not None and known != min(number, 2):
            raise ValueError(
                f"{place}: the columns are read by their order, anchor, positive, negatives, but `{name}` has number "
                f"{number + 1}; received {short(list(names))}. Put them in this order."
            )


def _is_tsv(path):
    return str(path).lower().endswith((".tsv", ".tsv.gz"))


def _by_id(path, of_record, of_text, example):
    """{id: value} of a file, JSON lines or `id<TAB>text`."""
    found, lines = {}, {}
    for line, text in iter_lines(path):
        place = f"{path}, line {line}"
        if _is_tsv(path):
            # Quotes mean nothing in these files: a reader of CSV would join lines.
            key, tab, body = text.partition("\t")
            key = key.strip()
            if not tab or not key:
                raise ValueError(f"{place}: must be `id<TAB>text`; received {short(text)}.")
            value = of_text(body, place)
        else:
            record = parse_object(text, place, example)
            key, value = _key(record, place, example), of_record(record, place)
        if key in found:
            raise ValueError(f"{place}: the id {key!r} stands in line {lines[key]}, too. Each id must occur once.")
        found[key], lines[key] = value, line
    if not found:
        raise ValueError(f"{path}: the file holds no records.")
    return found


def _key(record, place, example):
    key = next((record[name] for name in _IDS if record.get(name) is not None), None)
    if isinstance(key, bool) or not isinstance(key, str | int) or not str(key).strip():
        raise ValueError(f"{place}: must have an id, a str or an int, as {example}; received {short(key)}.")
    return str(key)


def _text(record, names, place, example):
    name = next((name for name in names if name in record), None)
    if name is None:
        raise ValueError(f"{place}: has no `{names[0]}`, as {example}; received {short(record)}.")
    return check_text(record[name], place, f"`{name}`")
