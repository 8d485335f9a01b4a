"""Queries and passages: every format read, nothing a negative that is a positive, all of it repeatable."""

import gzip
import json
import warnings

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.data import (
    Document,
    QueryPassages,
    TrainingQuery,
    iter_training_queries,
    queries_of_collection,
    read_training_queries,
)
from simretro.tokenizers import TruncationWarning
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(["q:", "p:"], size=1000)
W = TOKENIZER.vocab["w0"]


def quiet(source, tokenizer=TOKENIZER, **options):
    """The data set without its warnings, which have tests of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueryPassages(source, tokenizer, **{"queries_per_batch": 8, "passage_maxlen": 64, **options})


def many_queries(number=60, seed=0, longest=60):
    rng = np.random.default_rng(seed)

    def text(most):
        return " ".join(f"w{i}" for i in rng.integers(0, 1000, rng.integers(1, most)))

    return [
        TrainingQuery(
            text(28),
            tuple(text(longest) for _ in range(rng.integers(1, 4))),
            tuple(text(longest) for _ in range(rng.integers(0, 6))),
        )
        for _ in range(number)
    ]


def epoch_of(data, epoch=0):
    return [data.batch(epoch, index) for index in range(len(data))]


def ids_of(row):
    """The text of `[CLS] text [SEP] padding`, as a tuple of ids."""
    row = row.tolist()
    end = row.index(3)
    assert row[0] == 2 and not any(row[end + 1 :])
    return tuple(row[1:end])


def encoded(text):
    return tuple(TOKENIZER.encode_ragged([text])[0])


def text_of(passage):
    return passage if isinstance(passage, str) else " ".join(passage.parts)


# Reading

RECORDS = {
    "ours": {
        "id": 3,
        "query": "w1",
        "positives": ["w2"],
        "negatives": ["w3", {"id": "d", "title": "w4", "text": "w5"}],
    },
    "tevatron": {
        "query_id": "3",
        "query": "w1",
        "positive_passages": [{"docid": "0", "title": "", "text": "w2"}],
        "negative_passages": [{"docid": 1, "title": "", "text": "w3"}, {"docid": "d", "title": "w4", "text": "w5"}],
    },
    "flag": {"query": "w1", "pos": ["w2"], "neg": ["w3", "w4 w5"], "prompt": "?", "pos_scores": [1.0]},
}


@pytest.mark.parametrize("name", RECORDS)
def test_formats(name, tmp_path):
    path = tmp_path / "train.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(RECORDS[name]) + "\n\n")
    (query,) = read_training_queries(path)
    assert (query.query, query.id, query.line) == ("w1", None if name == "flag" else "3", 1)
    assert [text_of(p) for p in query.positives] == ["w2"] and query.place == f"{path}, line 1"
    assert [text_of(p) for p in query.negatives] == ["w3", "w4 w5"]
    assert [p.id for p in query.negatives] == {"ours": [None, "d"], "tevatron": ["1", "d"], "flag": [None] * 2}[name]
    batch = quiet(path, negatives_per_query=2)[0]
    assert ids_of(batch["query_token_ids"][0]) == encoded("w1")
    positive, *negatives = map(ids_of, batch["passage_token_ids"][0])
    assert positive == encoded("w2") and set(negatives) == {encoded("w3"), encoded("w4 w5")}


BAD = [
    ({"query": "a", "pos": "abc"}, r"`pos` must be a list of passages; received str 'abc'.*brackets"),
    ({"query": "a", "pos": ["b"], "neg": "abc"}, r"`neg` must be a list of passages; received str 'abc'"),
    ({"query": "a", "pos": {"text": "b"}}, r"`pos` must be a list of passages; received dict"),
    ({"query": "a", "positives": []}, r"`positives` must hold at least one passage"),
    ({"query": "a", "neg": ["b"]}, r"has no passages that answer it.*`positives`.*`positive_passages`.*`pos`"),
    ({"query": "a", "pos": ["b"], "positives": ["b"]}, r"in several ways"),
    ({"pos": ["b"]}, r"has no `query`"),
    ({"query": " ", "pos": ["b"]}, r"`query` must not be empty"),
    ({"query": 3, "pos": ["b"]}, r"`query` must be a str; received int 3"),
    ({"query": "a", "pos": [["b"]]}, r"each of `pos` must be a str or an object with `text`; received list"),
    ({"query": "a", "pos": [{"title": "b"}]}, r"each text of `pos` must be a str; received NoneType"),
    ({"query": "a", "pos": [{"text": "b", "id": 1.5}]}, r"`id` must be a str or an int; received 1.5"),
    ([], r"must be a JSON object"),
    ({"query": "a", "pos": ["b"], "pos_scores": 3}, r"`pos_scores` must be a list of numbers; received 3"),
    ({"query": "a", "pos": ["b"], "pos_scores": [1, 2]}, r"`pos_scores` must have a score for each.*2 for 1 passages"),
    ({"query": "a", "pos": ["b"], "neg_scores": [1]}, r"`neg_scores` must have a score for each.*1 for 0 passages"),
    ({"query": "a", "pos": ["b"], "pos_scores": ["1"]}, r"each of `pos_scores` must be a finite number.*received '1'"),
    ({"query": "a", "pos": ["b"], "pos_scores": [float("nan")]}, r"`pos_scores` must be a finite number.*nan"),
]


@pytest.mark.parametrize("record, message", BAD)
def test_bad_records_name_file_and_line(record, message, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"query": "a", "pos": ["b"]}) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=rf"train\.jsonl, line 2: .*{message}"):
        list(iter_training_queries(path))


def test_empty_file_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"train\.jsonl: the file holds no records"):
        QueryPassages(tmp_path / "train.jsonl", TOKENIZER)


@pytest.mark.parametrize(
    "source, message",
    [
        ([], "at least one `TrainingQuery`"),
        (["w1"], "query 0: must be a `TrainingQuery`; received str"),
        ([TrainingQuery("w1", "abc")], "query 0: `positives` must be a list of passages; received str 'abc'"),
        ([TrainingQuery("w1", Document("abc"))], "query 0: `positives` must be a list of passages; received Document"),
        ([TrainingQuery("w1", ("w2",)), TrainingQuery("w1", (), id="7")], "query '7': `positives` must hold"),
        ([TrainingQuery("w1", ("nothing", ""))], "query 0: all positives are empty"),
        ([TrainingQuery("nothing", ("w1",))], "query 0: the tokenizer gives the query no ids; received 'nothing'"),
    ],
)
def test_bad_queries_in_memory(source, message):
    with pytest.raises(ValueError, match=message):
        QueryPassages(source, TOKENIZER)


COLLECTION = {
    "documents": {"a": "w1", "b": "w2", "c": "w3"},
    "queries": {"1": "w8", "2": "w9", "3": "w7"},
    "qrels": {"2": {"a": 2, "b": 0}, "1": {"c": 1, "a": 1}},
}


def test_a_collection():
    queries = queries_of_collection(**COLLECTION, negatives={"2": ["b", "c"]})
    assert queries_of_collection(**COLLECTION, negatives={"2": iter(["b", "c"])}) == queries
    assert [(q.id, q.query, [p.id for p in q.positives], [p.text for p in q.negatives]) for q in queries] == [
        ("2", "w9", ["a"], ["w2", "w3"]),
        ("1", "w8", ["c", "a"], []),
    ]
    assert quiet(queries).num_queries == 2
    (only,) = queries_of_collection(**{**COLLECTION, "qrels": {"2": {"a": 2}}}, relevant_grade=2)
    assert only.id == "2"


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"qrels": {"1": {"x": 1, "y": 1}, "2": {"a": 1}}}, "`qrels` must name ids of `documents`.*2 are.*'x', 'y'"),
        ({"qrels": {"9": {"a": 1}}}, "`qrels` must name ids of `queries` only; 1 are not there: '9'"),
        ({"negatives": {"1": ["z"]}}, "`negatives` must name ids of `documents` only; 1 are not there: 'z'"),
        ({"relevant_grade": 2}, "grade 2 or higher for each query; 1 of 2 queries have none: '1'"),
    ],
)
def test_ids_of_a_collection_that_do_not_fit(changed, message):
    with pytest.raises(ValueError, match=message):
        queries_of_collection(**{**COLLECTION, **changed})


# A teacher's scores


def scored(number, num_negatives):
    """The score is in the text."""
    texts = [f"w{10 * number + i}" for i in range(2 + num_negatives)]
    scores = tuple(float(text[1:]) for text in texts)
    return TrainingQuery(f"w{500 + number}", texts[:2], texts[2:], None, None, None, scores[:2], scores[2:])


@pytest.mark.parametrize("each_positive", [False, True])
def test_scores_follow_their_passages(each_positive):
    options = {"negatives_per_query": 2, "each_positive": each_positive, "queries_per_batch": 3}
    source = [scored(i, i % 4) for i in range(12)]
    data, without = quiet(source, with_scores=True, **options), quiet(source, **options)
    for epoch, index in ((0, 0), (0, 1), (2, 1)):
        batch = data.batch(epoch, index)
        scores = batch.pop("teacher_scores")
        assert scores.dtype == np.float32 and scores.shape == batch["passage_keys"].shape
        for row, row_scores in zip(batch["passage_token_ids"], scores.tolist(), strict=True):
            want = [ids[0] - W if ids else np.nan for ids in map(ids_of, row)]
            np.testing.assert_array_equal(row_scores, want)
        # Scores change nothing else.
        other = without.batch(epoch, index)
        assert batch.keys() == other.keys() and all(np.array_equal(batch[name], other[name]) for name in batch)
    assert data.facts()["teacher_scores"] > 0 and "teacher_scores" not in without.facts()


def test_scores_of_passages_that_are_left_out_go_with_them():
    query = TrainingQuery("w1", ("", "w2", "W2"), ("w2", "w3", "w3"), None, None, None, (1, 2, 3), (4, 5, 6))
    batch = quiet([query], negatives_per_query=2, with_scores=True)[0]
    np.testing.assert_array_equal(batch["teacher_scores"], np.array([[2, 5, np.nan]], "float32"))


def test_scores_of_a_file(tmp_path):
    record = {"query": "w1", "pos": ["w2"], "neg": ["w3"], "pos_scores": [2], "neg_scores": [-1.5]}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(record))
    (query,) = read_training_queries(path)
    assert (query.positive_scores, query.negative_scores) == ((2.0,), (-1.5,))
    assert quiet(path, negatives_per_query=1, with_scores=True)[0]["teacher_scores"].tolist() == [[2.0, -1.5]]
    with pytest.warns(UserWarning, match="scores of 1 queries are not used, since `with_scores` is False"):
        QueryPassages(path, TOKENIZER, negatives_per_query=1, queries_per_batch=1)


def test_missing_scores_are_counted_and_named(tmp_path):
    records = [
        {"query": "w1", "pos": ["w2"], "neg": ["w3"], "pos_scores": [2], "neg_scores": [1]},
        {"query": "w4", "pos": ["w5"], "neg": ["w6", "w7", "w8"], "pos_scores": [2], "neg_scores": [None, 1, None]},
        {"query": "w9", "pos": ["w5"]},
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(
        ValueError, match=r"`with_scores`.*; 3 of 7 have none, for instance at .*jsonl, line 3; .*line 2\. "
    ):
        quiet(path, negatives_per_query=1, with_scores=True)
    with pytest.raises(
        ValueError, match="query 0: `negative_scores` must have a score for each passage; received 1 for"
    ):
        quiet([TrainingQuery("w1", ("w2",), ("w3", "w4"), negative_scores=(1,))])
    with pytest.raises(ValueError, match="`negatives_per_query` must be at least 1, since `with_scores`.*received 0"):
        quiet([scored(0, 2)], with_scores=True)


# Who is a negative of whom


def test_two_queries_with_one_answer():
    """France and Hilton, both "Paris", under two ids; the miner found the answer as a negative (R6)."""
    queries = [
        TrainingQuery("w1", (Document("w10 w11", id="1"),), (Document("W10  w11", id="2"), Document("w30", id="3"))),
        TrainingQuery("w2", (Document("w10 w11", id="2"), Document("w40", id="4")), (Document("w41", id="4"),)),
    ]
    with pytest.warns(UserWarning) as told:
        data = QueryPassages(queries, TOKENIZER, negatives_per_query=2)
    notes = [str(warning.message) for warning in told]
    assert any("2 negatives are left out: they are positives" in note for note in notes)
    assert any("1 passages have the id of another one with another text" in note for note in notes)
    assert any("2 of 2 queries have fewer than `negatives_per_query`=2" in note for note in notes)
    assert len(notes) == 3 and {warning.filename for warning in told} == {__file__}
    for epoch in range(10):
        batch = data.batch(epoch, 0)
        first = int(ids_of(batch["query_token_ids"][1]) == encoded("w1"))  # the row of the first query
        keys, known = batch["passage_keys"], batch["positive_keys"]
        assert list(map(ids_of, batch["passage_token_ids"][first])) == [encoded("w10 w11"), encoded("w30"), ()]
        assert keys[first, 2] == -1 and keys[1 - first].tolist()[1:] == [-1, -1]
        assert set(known[first].tolist()) == {keys[first, 0], -1}
        assert len(set(known[1 - first].tolist())) == 3 and keys[first, 0] in known[1 - first]
        is_paris = ids_of(batch["passage_token_ids"][1 - first, 0]) == encoded("w10 w11")
        assert (keys[1 - first, 0] == keys[first, 0]) == is_paris


TEXTS = st.sampled_from(["w1", "w2", "W2", "w3 w4", "w5", "w6"])
PASSAGES = st.tuples(TEXTS, st.sampled_from([None, None, "x", "y", "z"])).map(lambda p: Document(p[0], id=p[1]))
SOURCES = st.lists(
    st.tuples(
        st.sampled_from(["w1", "w2", "W1", "w3"]),
        st.lists(PASSAGES, min_size=1, max_size=3).map(tuple),
        st.lists(PASSAGES, max_size=4).map(tuple),
        st.sampled_from([None, None, "a", "b"]),
    ).map(lambda parts: TrainingQuery(*parts)),
    min_size=1,
    max_size=8,
)


def same(items, ids, contents):
    """{item number: class} where items of one id or content are one, by repeated merging."""
    classes = list(range(len(items)))
    for _ in classes:
        for i, a in enumerate(items):
            for j, b in enumerate(items):
                if contents(a) == contents(b) or (ids(a) is not None and ids(a) == ids(b)):
                    classes[i] = classes[j] = min(classes[i], classes[j])
    return classes


@given(SOURCES, st.integers(0, 3), st.booleans())
@settings(max_examples=80)
def test_keys_say_exactly_what_answers_what(source, negatives_per_query, each_positive):
    data = quiet(source, queries_per_batch=3, negatives_per_query=negatives_per_query, each_positive=each_positive)
    passages = [p for q in source for p in (*q.positives, *q.negatives)]
    classes = same(passages, lambda p: p.id, lambda p: encoded(p.text))
    class_of = {}  # of the passage objects, which are in order
    for passage, number in zip(passages, classes, strict=True):
        class_of.setdefault((passage.id, encoded(passage.text)), number)
    query_classes = same(source, lambda q: q.id, lambda q: encoded(q.query))
    answers = {}  # {ids of a query: classes of all that answer it}, also by an equal query
    for query, number in zip(source, query_classes, strict=True):
        own = answers.setdefault(number, set())
        own |= {class_of[p.id, encoded(p.text)] for p in query.positives}
    classes_by_text = {}
    for (_, text), number in class_of.items():
        classes_by_text.setdefault(text, number)
    seen = 0
    for batch in epoch_of(data):
        keys = batch["passage_keys"]
        texts = [[ids_of(row) for row in rows] for rows in batch["passage_token_ids"]]
        to_class = {}
        for row_keys, row_texts in zip(keys, texts, strict=True):
            for key, text in zip(row_keys.tolist(), row_texts, strict=True):
                assert (key == -1) == (text == ())
                if text:
                    assert to_class.setdefault(key, classes_by_text[text]) == classes_by_text[text]
        assert len(set(to_class.values())) == len(to_class)
        for row, known in enumerate(batch["positive_keys"]):
            number = next(
                n
                for q, n in zip(source, query_classes, strict=True)
                if encoded(q.query) == ids_of(batch["query_token_ids"][row])
            )
            assert {to_class[key] for key in known.tolist() if key in to_class} == answers[number] & set(
                to_class.values()
            )
            assert keys[row, 0] in known
            own = [key for key in keys[row, 1:].tolist() if key >= 0]
            assert not set(own) & set(known.tolist()) and len(set(own)) == len(own)
            seen += 1
    assert seen == data.num_examples


def test_more_answers_than_a_batch_has_passages():
    """Those in the batch are listed, and nothing wider than the batch is made."""
    answers = tuple(f"w{i}" for i in range(200))
    queries = [TrainingQuery(f"w{500 + i}", answers) for i in range(40)]
    data = quiet(queries, queries_per_batch=10)
    for batch in epoch_of(data):
        assert batch["positive_keys"].shape == (10, 16)
        for known in batch["positive_keys"]:
            assert set(known.tolist()) - {-1} == set(batch["passage_keys"].ravel().tolist())


# Epochs


@pytest.mark.parametrize("negatives_per_query", [0, 2])
def test_an_epoch_has_every_query_once(negatives_per_query):
    queries = many_queries()
    data = quiet(queries, negatives_per_query=negatives_per_query)
    by_text = {encoded(query.query): query for query in queries}
    assert len(by_text) == 60
    drawn = {text: set() for text in by_text}
    negatives_seen = set()
    for epoch in range(12):
        texts = []
        for batch in epoch_of(data, epoch):
            assert all(array.dtype == np.int32 for array in batch.values())
            assert batch["passage_token_ids"].shape[1] == 1 + negatives_per_query
            for query, rows in zip(batch["query_token_ids"], batch["passage_token_ids"], strict=True):
                texts.append(ids_of(query))
                known = by_text[texts[-1]]
                positive, *negatives = map(ids_of, rows)
                drawn[texts[-1]].add(positive)
                assert positive in {encoded(text)[:62] for text in known.positives}
                negatives = [text for text in negatives if text]
                assert len(set(negatives)) == min(len(known.negatives), negatives_per_query)
                assert set(negatives) <= {encoded(text)[:62] for text in known.negatives}
                negatives_seen.update(negatives)
        assert sorted(texts) == sorted(by_text)
    missed = [text for text, query in by_text.items() if len(drawn[text]) < len(query.positives)]
    assert len(missed) <= 3  # three positives, twelve draws: each is missed with probability 0.023 at most
    if negatives_per_query:
        assert len(negatives_seen) > 0.9 * sum(len(query.negatives) for query in queries)


def test_each_positive_comes_once():
    queries = many_queries()
    data = quiet(queries, each_positive=True, negatives_per_query=1)
    assert data.num_examples == sum(len(query.positives) for query in queries) > data.num_queries
    pairs = [
        (ids_of(query), ids_of(rows[0]))
        for batch in epoch_of(data)
        for query, rows in zip(batch["query_token_ids"], batch["passage_token_ids"], strict=True)
    ]
    assert sorted(pairs) == sorted((encoded(q.query), encoded(p)[:62]) for q in queries for p in q.positives)


def test_batches_are_a_function_of_seed_epoch_and_index():
    options = {"negatives_per_query": 2}
    data, again, other = (quiet(many_queries(), seed=seed, **options) for seed in (5, 5, 6))
    for epoch in (2, 0):
        for index in reversed(range(len(data))):
            for name, array in data.batch(epoch, index).items():
                np.testing.assert_array_equal(again.batch(epoch, index)[name], array)
    first = data.batch(0, 0)["passage_token_ids"]
    assert not np.array_equal(first, data.batch(1, 0)["passage_token_ids"])
    assert not np.array_equal(first, other.batch(0, 0)["passage_token_ids"])
    again.resume(1, 3)
    tail = list(again)
    assert len(tail) == len(data) - 3
    for index, batch in enumerate(tail, 3):
        np.testing.assert_array_equal(batch["passage_keys"], data.batch(1, index)["passage_keys"])
    fixed = quiet(many_queries(), seed=5, fixed=True, **options)
    np.testing.assert_array_equal(fixed.batch(3, 1)["passage_keys"], data.batch(0, 1)["passage_keys"])


@pytest.mark.parametrize(
    "source, options",
    [
        (many_queries(100), {}),
        (many_queries(100, longest=150), {"negatives_per_query": 3}),
        (many_queries(100), {"length_multiple": 8, "query_maxlen": 12}),
        (many_queries(9), {}),
        (many_queries(5), {}),
        ([TrainingQuery(f"w{i}", ("w1 " * (3 if i else 60),)) for i in range(40)], {}),
        ([TrainingQuery("w1 " * (3 if i else 20), (f"w{i}",)) for i in range(40)], {}),
        ([TrainingQuery("w1 " * (1 + i % 30), ("w2 " * (60 - i % 30),)) for i in range(80)], {}),
    ],
)
def test_first_two_batches_share_no_dimension_that_varies(source, options):
    data = quiet(source, **options)
    epochs = [[{n: a.shape[1:] for n, a in batch.items()} for batch in epoch_of(data, epoch)] for epoch in range(4)]
    for first, *others in epochs:
        assert first == epochs[0][0]
        for name, shape in first.items():
            for axis, width in enumerate(shape):
                assert all(other[name][axis] <= width for other in others)
                if others and others[0][name][axis] == width:
                    assert all(batch[name][axis] == width for epoch in epochs for batch in epoch)
    multiple = options.get("length_multiple", 16)
    assert all(batch[f"{k}_token_ids"][-1] % multiple == 0 for b in epochs for batch in b for k in ("query", "passage"))


def test_batches_are_sorted_by_length_and_shuffled():
    data = quiet(many_queries(600), length_multiple=8)
    filled = np.mean([np.mean(batch["passage_token_ids"] != 0) for batch in epoch_of(data)[2:]])
    unsorted = quiet(many_queries(600), length_multiple=8, window_batches=1)
    assert filled > 0.82 > np.mean([np.mean(batch["passage_token_ids"] != 0) for batch in epoch_of(unsorted)[2:]])
    widths = [batch["passage_token_ids"].shape[-1] for batch in epoch_of(data)[2:-1]]
    assert len(set(widths)) > 4 and abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.4


def test_remainder():
    data = quiet(many_queries(21))
    assert [len(batch["passage_keys"]) for batch in epoch_of(data)] == [8, 8, 5]
    data = quiet(many_queries(21), drop_remainder=True)
    assert [len(batch["passage_keys"]) for batch in epoch_of(data)] == [8, 8] and data.num_examples == 21
    with pytest.raises(ValueError, match="`queries_per_batch` must be at most the number of examples, 21.*received 32"):
        quiet(many_queries(21), queries_per_batch=32, drop_remainder=True)


@pytest.mark.backends
def test_fit_takes_all_shapes():
    data = quiet(many_queries(30), negatives_per_query=1)

    class Sum(keras.Model):
        """Learns nothing; its loss is the mean of what the batches hold."""

        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            return keras.ops.convert_to_tensor(self.scale)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            total = sum(keras.ops.sum(keras.ops.cast(x[name], "float32")) for name in sorted(x))
            return total + 0 * y_pred

    model = Sum()
    model.compile(keras.optimizers.SGD(0.0))
    logs = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    sums = [sum(float(array.sum()) for batch in epoch_of(data, e) for array in batch.values()) for e in range(2)]
    np.testing.assert_allclose(logs["loss"], np.array(sums) / len(data), rtol=0.15)  # batches weigh by their rows


# Texts


def test_prefixes_titles_and_lengths():
    queries = [TrainingQuery("w1 w2 w3", (Document("w5 w6 w7", "w4"),), ("w8",))]
    options = {"query_prefix": "q: ", "passage_prefix": "p: ", "negatives_per_query": 1, "length_multiple": 1}
    with pytest.warns(TruncationWarning) as told:
        data = QueryPassages(queries, TOKENIZER, query_maxlen=5, passage_maxlen=6, **options)
    assert [str(warning.message) for warning in told] == [
        "`query_maxlen`=5: 1 queries lost 1 tokens.",
        "`passage_maxlen`=6: 1 passages lost 1 tokens.",
    ]
    batch = data[0]
    v = TOKENIZER.vocab
    assert batch["query_token_ids"].tolist() == [[2, v["q:"], v["w1"], v["w2"], 3]]
    assert batch["passage_token_ids"].tolist() == [
        [[2, v["p:"], v["w4"], v["w5"], v["w6"], 3], [2, v["p:"], v["w8"], 3, 0, 0]]
    ]


def test_what_is_not_used_is_told():
    with pytest.warns(UserWarning) as told:
        QueryPassages([TrainingQuery("w1", ("w2", "", "W2", "nothing"), ("w3",))], TOKENIZER)
    notes = [str(warning.message) for warning in told]
    assert any("1 passages are left out that their queries have already" in note for note in notes)
    assert any("2 passages are left out that are empty" in note for note in notes)
    assert any("1 negatives are not used, since `negatives_per_query` is 0" in note for note in notes)


def test_pad_id_need_not_be_zero():
    tokenizer = ToyTokenizer()
    tokenizer.pad_token_id, tokenizer.unk_token_id = 1, 0
    batch = quiet([TrainingQuery("w1", ("w2 w3",), ("w4",))], tokenizer, negatives_per_query=2)[0]
    assert set(batch["query_token_ids"][:, -1]) == {1} and set(batch["passage_token_ids"][..., -1].ravel()) == {1}


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"queries_per_batch": 1}, "`queries_per_batch` must be an int of at least 2.*received 1"),
        ({"queries_per_batch": 0, "negatives_per_query": 1}, "`queries_per_batch` must be an int of at least 1"),
        ({"negatives_per_query": -1}, "`negatives_per_query`.*received -1"),
        ({"query_maxlen": 2}, r"`query_maxlen`.*at least 3, since it counts \[CLS\] and \[SEP\]; received 2"),
        ({"passage_maxlen": 8.0}, "`passage_maxlen`.*received 8.0"),
        ({"seed": -1}, "`seed`.*received -1"),
        ({"length_multiple": 0}, "`length_multiple`"),
        ({"window_batches": True}, "`window_batches`.*received True"),
        ({"query_prefix": None}, "`query_prefix` must be a str; received None"),
    ],
)
def test_bad_setting_is_named(setting, message):
    with pytest.raises(ValueError, match=message):
        QueryPassages([TrainingQuery("w1", ("w2",))], TOKENIZER, **setting)


def test_facts_tell_other_data():
    queries = many_queries(20)
    data = quiet(queries)
    assert data.is_of(ToyTokenizer(["q:", "p:"], size=1000)) and not data.is_of(ToyTokenizer())
    assert json.loads(json.dumps(data.facts())) == quiet(queries).facts()
    for changed in ({"seed": 1}, {"negatives_per_query": 1}, {"query_prefix": "q: "}, {"each_positive": True}):
        assert quiet(queries, **changed).facts() != data.facts()
    assert quiet(queries[:-1]).facts() != data.facts()
