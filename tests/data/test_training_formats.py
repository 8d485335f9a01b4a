"""Training data of other tools: their shapes, and the traps in them."""

import csv
import gzip
import io
import json

import pytest

from simretro.data import (
    Document,
    iter_training_queries,
    queries_of_collection,
    queries_of_columns,
    read_id_triples,
    read_passages,
    read_queries,
    read_training_queries,
)


def write(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


def plain(query):
    return query.query, [p.text for p in query.positives], [p.text for p in query.negatives]


# Tevatron 2: ids of a corpus


def test_document_ids_are_looked_up(tmp_path):
    corpus = write(
        tmp_path / "corpus.jsonl",
        {"docid": "7", "document_text": "seven", "document_image": None},
        {"docid": 8, "text": "eight", "title": "T"},
    )
    record = {"query_id": 1, "query_text": "q", "positive_document_ids": ["7"], "negative_document_ids": [8]}
    path = write(tmp_path / "train.jsonl", {**record, "query_image": None, "answer": None, "source": "x"})
    (query,) = iter_training_queries(path, read_passages(corpus))
    assert plain(query) == ("q", ["seven"], ["eight"]) and query.id == "1"
    assert [(p.id, p.title) for p in (*query.positives, *query.negatives)] == [("7", None), ("8", "T")]
    assert plain(read_training_queries(path, {"7": "a", "8": "b"})[0]) == ("q", ["a"], ["b"])
    with pytest.raises(
        ValueError, match=r"train\.jsonl, line 1: `positive_document_ids` holds ids: give the `documents`"
    ):
        read_training_queries(path)


def test_ids_without_a_document_are_counted(tmp_path):
    """Over the whole file, each once, and before anything is trained on."""
    records = [
        {"query_text": "a", "positive_document_ids": ["1"]},
        {"query_text": "b", "positive_document_ids": ["2", "3"], "negative_document_ids": ["1"]},
        {"query_text": "c", "positive_document_ids": ["1"], "negative_document_ids": ["3", "4"]},
    ]
    path = write(tmp_path / "train.jsonl", *records)
    with pytest.raises(ValueError, match=r"train\.jsonl: 3 ids .* the first in line 2, .*`documents`: '2', '3', '4'\."):
        read_training_queries(path, {"1": "one"})


@pytest.mark.parametrize(
    "record, message",
    [
        ({"query_text": "a", "positive_document_ids": "12"}, "`positive_document_ids` must be a list of ids.*str '12'"),
        ({"query_text": "a", "positive_document_ids": [1.5]}, "`positive_document_ids` must be a str or an int.*1.5"),
        ({"query_text": "a", "positive_document_ids": []}, "`positive_document_ids` must hold at least one passage"),
        ({"query_text": " ", "positive_document_ids": ["1"]}, "`query_text` must not be empty"),
        ({"query": "a", "negative_document_ids": ["1"]}, "has no passages that answer it"),
    ],
)
def test_bad_records_with_ids(record, message, tmp_path):
    with pytest.raises(ValueError, match=rf"line 1: .*{message}"):
        read_training_queries(write(tmp_path / "train.jsonl", record), {"1": "one"})


# sentence-transformers: columns

ROW = {"question": "q", "answer": "p", "negative_1": "n1", "negative_2": "n2"}


def test_columns_count_by_their_order(tmp_path):
    want = ("q", ["p"], ["n1", "n2"])
    path = write(tmp_path / "rows.jsonl", ROW, {**ROW, "negative_2": None})
    first, second = queries_of_columns(path)
    assert plain(first) == want and first.place == f"{path}, line 1"
    assert plain(second) == ("q", ["p"], ["n1"])
    table = csv.DictReader(io.StringIO("anchor,positive\nq,p\n"))
    assert [plain(q) for q in queries_of_columns(table)] == [("q", ["p"], [])]
    assert [plain(q) for q in queries_of_columns([list(ROW.values()), tuple(ROW.values())])] == [want, want]
    # The first row says which column is which.
    shuffled = dict(reversed(ROW.items()))
    assert [plain(q) for q in queries_of_columns([ROW, shuffled])] == [want, want]


def test_triples_of_texts(tmp_path):
    """MS MARCO's: quotes are text."""
    path = tmp_path / "triples.train.small.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.write('what is "a\tan "a" is\tnone\nq\tp\tn\n')
    assert [plain(q) for q in queries_of_columns(path)] == [
        ('what is "a', ['an "a" is'], ["none"]),
        ("q", ["p"], ["n"]),
    ]


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"positive": "p", "anchor": "q"}], "row 0: .*by their order.*`positive` has number 1; received .*'anchor'"),
        ([{"query": "q", "negative": "n", "positive": "p"}], "`negative` has number 2"),
        ([{"sentence1": "a", "sentence2": "b", "label": 0}], "row 0: has the column `label`.*without the label"),
        ([{"query": "q"}], "at least two columns"),
        ([("q",)], "at least two columns"),
        ([("q", "p"), ("q", "p", "n")], "row 1: must have the columns of the first row, 2"),
        ([{"q": "a", "p": "b"}, {"q": "a", "x": "b"}], "row 1: must have the columns of the first row"),
        ([("q", " ")], "row 0: the second column, the positive, must not be empty"),
        ([("q", ["p1", "p2"])], "row 0: the second column, the positive, must be a str; received list"),
        (["qp"], "row 0: must be a dict or a list of str; received str 'qp'"),
        ([], "`source`: there are no rows"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        list(queries_of_columns(rows))


# MS MARCO: ids


def test_files_of_ids_make_training_queries(tmp_path):
    collection = write(tmp_path / "collection.tsv", '7\tsays "hello', "8\teight\twith a tab", "9\t")
    queries = write(tmp_path / "queries.train.tsv", "1\tone", "2\ttwo")
    triples = write(tmp_path / "qidpidtriples.train.tsv", "1\t7\t8", "1\t7\t9", "2 8 7", "1\t7\t8")
    documents = read_passages(collection)
    assert documents["8"] == Document("eight\twith a tab", id="8") and documents["9"].text == ""
    qrels, negatives = read_id_triples(triples)
    assert qrels == {"1": {"7": 1}, "2": {"8": 1}} and negatives == {"1": ["8", "9"], "2": ["7"]}
    found = queries_of_collection(documents, read_queries(queries), qrels, negatives)
    assert [plain(q) for q in found] == [
        ("one", ['says "hello'], ["eight\twith a tab", ""]),
        ("two", ["eight\twith a tab"], ['says "hello']),
    ]
    assert [p.id for p in found[0].negatives] == ["8", "9"]


def test_scores_of_a_collection():
    """A teacher's run: as far as it goes."""
    documents, qrels = {"a": "w1", "b": "w2", "c": "w3"}, {"1": {"a": 1}, "2": {"b": 1}}
    scores = {"1": {"a": 3.5, "b": -1}}
    first, second = queries_of_collection(
        documents, {"1": "x", "2": "y"}, qrels, {"1": ["b", "c"], "2": ["a"]}, scores=scores
    )
    assert (first.positive_scores, first.negative_scores) == ((3.5,), (-1, None))
    assert (second.positive_scores, second.negative_scores) == ((None,), (None,))


@pytest.mark.parametrize("name, line", [("a.tsv", "7\tone"), ("a.jsonl", '{"_id": 7, "text": "one"}')])
def test_an_id_that_comes_twice(name, line, tmp_path):
    for read in (read_passages, read_queries):
        with pytest.raises(ValueError, match=rf"{name}, line 2: the id '7' stands in line 1, too"):
            read(write(tmp_path / name, line, line))


@pytest.mark.parametrize(
    "read, name, line, message",
    [
        (read_passages, "a.tsv", "7 one", "line 1: must be `id<TAB>text`; received '7 one'"),
        (read_passages, "a.jsonl", {"text": "one"}, "line 1: must have an id.*received None"),
        (read_passages, "a.jsonl", {"docid": "1", "contents": "x"}, "line 1: has no `text`.*received .*contents"),
        (read_passages, "a.jsonl", {"docid": "1", "text": None}, "line 1: `text` must be a str; received NoneType"),
        (read_queries, "a.tsv", "7\t ", "line 1: a query must not be empty"),
        (read_id_triples, "a.tsv", "1\t2", "line 1: must be `query<TAB>positive<TAB>negative`; received '1"),
        (read_id_triples, "a.tsv", "1\t2\t", "line 1: must be `query<TAB>positive<TAB>negative`"),
    ],
)
def test_bad_lines(read, name, line, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / name, line))


@pytest.mark.parametrize("read", [read_passages, read_queries, read_id_triples, lambda p: list(queries_of_columns(p))])
def test_empty_files(read, tmp_path):
    with pytest.raises(ValueError, match=r"empty\.tsv: "):
        read(write(tmp_path / "empty.tsv", ""))
