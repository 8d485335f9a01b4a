import ir_measures
import numpy as np
import pytest

from simretro.evaluation import read_qrels, read_run, write_qrels, write_run

JUDGED = {"q1": {"d1": 1, "d2": 0}, "2": {"003": 2}}


@pytest.mark.parametrize("content", [
    "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n2\t003\t2\n",  # BEIR
    "q1\td1\t1\nq1\td2\t0\n2\t003\t2\n",  # without a header no line is lost
    "q1 0 d1 1\nq1 0 d2 0\n2 0 003 2\n",  # TREC
    "q1\t0\td1\t1\r\nq1 0  d2 0\r\n\n2 0 003 2",
    "\ufeffquery-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td1\t1\nq1\td2\t0\n2\t003\t2\n",  # a repeated judgement
])  # fmt: skip
def test_reads_judgements(tmp_path, content):
    path = tmp_path / "test.tsv"
    path.write_bytes(content.encode())
    assert read_qrels(path) == JUDGED


def test_ids_with_spaces_between_tabs(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("q 1\td 1\t-1\n")
    assert read_qrels(path) == {"q 1": {"d 1": -1}}


@pytest.mark.parametrize("content, message", [
    ("q1\td1\n", r"line 1: expected .*2 columns"),
    ("q1 0 d1 1\nq1 Q0 d1 1 0.5 tag\n", r"line 2: expected .*6 columns"),
    ("qid\tdocid\trel\nq1\td1\t1\n", r"line 1: the grade must be a whole number; received 'rel'.*query-id<TAB>"),
    ("q1\td1\t1\nq1\td2\t0.5\n", r"line 2: the grade must be a whole number; received '0.5'"),
    ("q1\td1\t1\n\td2\t1\n", "line 2: an id is empty"),
    ("q1\td1\t1\nq1\td1\t0\n", "line 2: query 'q1', document 'd1' was judged 1"),
    ("query-id\tcorpus-id\tscore\n", "holds no judgement"),
    ("q1\td\xff\t1\n", "line 1: is not UTF-8"),
])  # fmt: skip
def test_names_file_and_line_of_bad_judgements(tmp_path, content, message):
    path = tmp_path / "test.tsv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"test\.tsv.*{message}"):
        read_qrels(path)


def test_judgements_survive_the_file(tmp_path):
    path = tmp_path / "test.qrels"
    write_qrels(path, JUDGED | {"é": {"d": np.int64(-1)}, "unjudged": {}})
    assert path.read_text("utf-8") == "q1 0 d1 1\nq1 0 d2 0\n2 0 003 2\né 0 d -1\n"
    assert read_qrels(path) == JUDGED | {"é": {"d": -1}}
    found = [(line.query_id, line.doc_id, line.relevance) for line in ir_measures.read_trec_qrels(str(path))]
    assert found == [("q1", "d1", 1), ("q1", "d2", 0), ("2", "003", 2), ("é", "d", -1)]


@pytest.mark.parametrize("qrels, message", [
    ({}, "at least one"), ({"q": {}}, "at least one"), ({"q 1": {"d": 1}}, "a query id of `qrels`.*'q 1'"),
    ({"q": {"": 1}}, "a document id"), ({"q": {"d": 1.0}}, "int grades; received 1.0 for 'q', 'd'"),
    ({"q": {"d": True}}, "int grades"),
])  # fmt: skip
def test_bad_judgements_are_not_written(tmp_path, qrels, message):
    path = tmp_path / "test.qrels"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        write_qrels(path, qrels)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_run_survives_the_file(tmp_path):
    rng = np.random.default_rng(0)
    scores = [*rng.normal(size=8).tolist(), float(np.float32(0.1)), 1e-12, 0.1, 0.1]
    run = {"q1": {f"d{i}": score for i, score in enumerate(scores)}, "q2": {"é": 1}, "nothing found": {}}
    del run["nothing found"]
    path = tmp_path / "run.txt"
    write_run(path, run, tag="mine")
    assert read_run(path) == run
    assert [(line.query_id, line.doc_id, line.score) for line in ir_measures.read_trec_run(str(path))] == [
        (query, document, score) for query, found in read_run(path).items() for document, score in found.items()
    ]
    lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    assert [line[3] for line in lines if line[0] == "q1"] == [str(rank) for rank in range(1, 13)]
    assert {line[1] for line in lines} == {"Q0"} and {line[5] for line in lines} == {"mine"}
    tied = [line[2] for line in lines if line[4] in ("0.1", "0.10000000149011612")]
    assert tied == ["d8", "d11", "d10"]  # equal in float32, so by descending id: strings


def test_query_without_results_leaves_no_line(tmp_path):
    write_run(tmp_path / "run.txt", {"q1": {"d": 1.0}, "q2": {}})
    assert read_run(tmp_path / "run.txt") == {"q1": {"d": 1.0}}


@pytest.mark.parametrize("run, tag, message", [
    ({"q 1": {"d": 1.0}}, "t", "a query id.*'q 1'"), ({"q": {"d\t1": 1.0}}, "t", "a document id"),
    ({"q": {"": 1.0}}, "t", "a document id"), ({"q": {"d": 1.0}}, "my run", "`tag`.*'my run'"),
    ({"q": {"d": float("inf")}}, "t", "finite"),
])  # fmt: skip
def test_write_refuses_and_keeps_the_old_file(tmp_path, run, tag, message):
    path = tmp_path / "run.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        write_run(path, run, tag)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content, message", [
    ("q1 Q0 d1 1 0.5 t\nq1 0 d1 1\n", "line 2: expected .*4 columns"),
    ("q1 Q0 d1 1 nan t\n", "line 1: the score.*'nan'"), ("q1 Q0 d1 1 x t\n", "line 1: the score"),
    ("q Q0 d 1 2 t\nq Q0 d 2 1 t\n", "line 2: query 'q' has .*'d' twice"),
    ("", "holds no result"),
])  # fmt: skip
def test_names_file_and_line_of_a_bad_run(tmp_path, content, message):
    path = tmp_path / "run.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"run\.txt.*{message}"):
        read_run(path)
