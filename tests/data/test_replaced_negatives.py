"""Training queries as a file, and negatives that take the place of others between epochs."""

import json
import warnings

import numpy as np
import pytest

from simretro.data import (
    Document,
    QueryPassages,
    TrainingQuery,
    queries_of_columns,
    read_training_queries,
    write_training_queries,
)
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(size=1000)


def queries(negatives, number=20, length=6):
    """Query `i` is "w<i>"; its negatives are "w<n>" again and again."""
    return [
        TrainingQuery(
            f"w{i}",
            (Document(f"w{100 + i} " * (1 + i % length), id=f"p{i}"),),
            tuple(f"w{n} " * (1 + n % length) for n in negatives),
            f"q{i}",
        )
        for i in range(number)
    ]


def quiet(source, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"queries_per_batch": 4, "negatives_per_query": 2, "length_multiple": 2, **options}
        return QueryPassages(source, TOKENIZER, **options)


def batches(data, epoch):
    return [data.batch(epoch, index) for index in range(data.num_batches)]


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_written_queries_are_read_again_and_are_of_flagembeddings_shape(tmp_path):
    path = tmp_path / "train.jsonl"
    written = [
        TrainingQuery(
            "wing", (Document("of air", "flow", "7"), "heat"), ("cold",), "q1", None, None, (2.5, None), (0,)
        ),
        TrainingQuery("schön", ("größer",)),
    ]
    write_training_queries(path, written)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == [
        {"query_id": "q1", "query": "wing", "pos": ["flow of air", "heat"], "neg": ["cold"],
         "pos_scores": [2.5, None], "neg_scores": [0.0]},
        {"query": "schön", "pos": ["größer"], "neg": []},
    ]  # fmt: skip
    assert "größer" in path.read_text("utf-8")
    read = read_training_queries(path)
    assert [query.id for query in read] == ["q1", None]
    assert [[document.text for document in query.positives] for query in read] == [["flow of air", "heat"], ["größer"]]
    assert read[0].positive_scores == (2.5, None) and read[0].negative_scores == (0.0,)


@pytest.mark.parametrize(
    "source, message",
    [
        ([], "at least one"),
        (["wing"], "query 0: must be a `TrainingQuery`"),
        ([TrainingQuery("q", "abc")], "must be a list"),
    ],
)
def test_bad_queries_are_refused_and_leave_the_old_file(source, message, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        write_training_queries(path, source)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


WING = TrainingQuery("wing", (Document("of air", "flow", "7"), "heat"), ("cold", Document("ice", id="8")), "q1")


def lines_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_tevatrons_layout_keeps_ids_and_titles(tmp_path):
    path = tmp_path / "train.jsonl"
    write_training_queries(path, [WING, TrainingQuery("schön", ("größer",))], layout="tevatron")
    assert lines_of(path) == [
        {"query_id": "q1", "query": "wing",
         "positive_passages": [{"docid": "7", "title": "flow", "text": "of air"}, {"title": "", "text": "heat"}],
         "negative_passages": [{"title": "", "text": "cold"}, {"docid": "8", "title": "", "text": "ice"}]},
        {"query": "schön", "positive_passages": [{"title": "", "text": "größer"}], "negative_passages": []},
    ]  # fmt: skip
    read = read_training_queries(path)
    assert [(document.id, document.full_text) for document in read[0].positives] == [
        ("7", "flow of air"),
        (None, "heat"),
    ]
    assert [document.id for document in read[0].negatives] == [None, "8"] and read[0].id == "q1"


def test_columns_have_a_line_for_each_positive(tmp_path):
    path, layout = tmp_path / "train.jsonl", "sentence-transformers"
    other = TrainingQuery("schön", ("größer",), ("klein", "hoch", "tief"))
    write_training_queries(path, [WING, other], layout, num_negatives=2)
    assert [list(row.items()) for row in lines_of(path)] == [
        [("anchor", "wing"), ("positive", "flow of air"), ("negative_1", "cold"), ("negative_2", "ice")],
        [("anchor", "wing"), ("positive", "heat"), ("negative_1", "cold"), ("negative_2", "ice")],
        [("anchor", "schön"), ("positive", "größer"), ("negative_1", "klein"), ("negative_2", "hoch")],
    ]
    read = list(queries_of_columns(path))
    assert [query.query for query in read] == ["wing", "wing", "schön"]
    assert [document.text for document in read[2].negatives] == ["klein", "hoch"]
    write_training_queries(path, [WING], layout)
    assert len(lines_of(path)[0]) == 4
    for queries_of_two in ([WING, other], [other, WING]):  # without a number, nothing is left out unseen
        with pytest.raises(ValueError, match="each line must have.*`num_negatives=2`"):
            write_training_queries(path, queries_of_two, layout)
    with pytest.raises(ValueError, match="query 'q1': has 2 negatives, but each line must have 3"):
        write_training_queries(path, [other, WING], layout, num_negatives=3)
    assert len(lines_of(path)) == 2, "the file is as it was"


@pytest.mark.parametrize("layout", ["tevatron", "sentence-transformers"])
def test_scores_are_not_lost_silently(layout, tmp_path):
    path = tmp_path / "train.jsonl"
    with pytest.raises(ValueError, match=f"query 'q1': has scores of a teacher.*'{layout}'"):
        write_training_queries(path, [WING._replace(negative_scores=(None, 0.5))], layout)
    write_training_queries(path, [WING._replace(negative_scores=(None, None))], layout)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layout": "csv"}, "`layout` must be one of.*'csv'"),
        ({"num_negatives": 2}, "`num_negatives` is for `layout='sentence-transformers'`"),
        ({"layout": "sentence-transformers", "num_negatives": -1}, "`num_negatives`.*-1"),
    ],
)
def test_bad_options_of_the_writer(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_training_queries(tmp_path / "train.jsonl", [WING], **options)


def test_batches_are_those_of_the_new_source(tmp_path):
    data, other = quiet(queries(range(200, 205))), quiet(queries(range(300, 308)))
    before, facts = batches(data, 1), data.facts()
    write_training_queries(tmp_path / "new.jsonl", queries(range(300, 308)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.replace(tmp_path / "new.jsonl")
    assert_same(batches(data, 1), batches(other, 1))  # the plan of epoch 1 was there already
    assert data.facts() == facts != other.facts(), "what a checkpoint compares"
    used = {
        int(i) - TOKENIZER.vocab["w0"] for batch in batches(data, 2) for i in batch["passage_token_ids"][:, 1:, 1].flat
    }
    assert used <= set(range(300, 308))
    data.replace(queries(range(200, 205)))
    assert_same(batches(data, 1), before)


def test_the_place_within_the_epochs_stays():
    data = quiet(queries(range(200, 205)))
    data.resume(3, 2)
    data.replace(queries(range(300, 305)))
    assert data.state == (3, 2)


@pytest.mark.parametrize("source", [queries([200])[1:], queries([200])[::-1], queries([200], length=5)])
def test_other_queries_or_positives_are_refused(source):
    data = quiet(queries([200]), negatives_per_query=1)
    with pytest.raises(ValueError, match="`source` must have the queries and positives"):
        data.replace(source)


def test_lengths_that_keras_takes_for_fixed_stay():
    """All passages have one token: there is one length, which neither shorter nor longer negatives may change."""
    data = quiet(queries([200], length=1), negatives_per_query=1)
    shapes = {batch["passage_token_ids"].shape[2] for batch in batches(data, 0)}
    assert shapes == {4}
    data.replace(queries([300], length=1))
    assert {batch["passage_token_ids"].shape[2] for batch in batches(data, 0)} == shapes
    long = [query._replace(negatives=("w300 " * 9,)) for query in queries([], length=1)]
    with pytest.raises(ValueError, match="passages of 12 tokens, but all batches had 4.*smaller `passage_maxlen`"):
        data.replace(long)
