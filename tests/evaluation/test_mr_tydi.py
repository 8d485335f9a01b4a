import gzip
import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.evaluation import evaluate_mr_tydi, passages, search_passages, write_run
from simretro.evaluation.mr_tydi import _measure, iter_collection, read_topics

QRELS = "1 Q0 a#0 1\n1 Q0 a#1 1\n2\tQ0\tb#0\t1\n3 Q0 c#0 1\n4 Q0 d#0 1\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels.test.txt").write_text(QRELS)
    (tmp_path / "topic.test.tsv").write_text("1\tWho?\n2\tWhat is\tit?\n3\tWhere?\n4\tWhen?\n9\tUnjudged?\n")
    (tmp_path / "collection").mkdir()
    return tmp_path


def test_hand_made_run(folder):
    # The ranks are wrong on purpose: the scores count. Query 3 is answered in vain, query 4 not at all.
    path = folder / "run.txt"
    path.write_text(
        "1 Q0 x 1 3.0 t\n1 Q0 a#1 2 5.0 t\n1 Q0 y 3 4.0 t\n"
        "2 Q0 x 1 9 t\n2 Q0 y 2 8 t\n2 Q0 b#0 3 7 t\n3 Q0 x 1 1 t\n77 Q0 x 1 1 t\n"
    )
    with pytest.warns(UserWarning, match="no result for 1 of 4") as caught:
        result = evaluate_mr_tydi(folder, run=path)
    assert caught[0].filename == __file__
    assert result.reciprocal_ranks == pytest.approx({"1": 1, "2": 1 / 3, "3": 0, "4": 0})
    assert result.recalls == {"1": 0.5, "2": 1, "3": 0, "4": 0}
    assert (result.mrr, result.recall) == pytest.approx((1 / 3, 0.375))


def test_depth_and_ties(folder):
    (folder / "qrels.test.txt").write_text("1 0 m 1\n2 0 deep 1\n3 0 near 1\n")
    run = {
        "1": {"a": 0.5, "m": 0.5, "z": 0.5},  # equal: the larger id first, so m is second
        "2": {f"x{number}": 1000 - number for number in range(100)} | {"deep": 0.0},  # the 101st
        "3": {"near": 0.1, "off": 0.1 + 1e-10},  # equal as float32
    }
    result = evaluate_mr_tydi(folder, run=run)
    assert result.reciprocal_ranks == {"1": 0.5, "2": 0, "3": 0.5} and result.recalls == {"1": 1, "2": 0, "3": 1}


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(1, 5), st.integers(1, 130))
def test_equals_trec_eval(seed, num_queries, depth):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(seed)
    documents = [f"{number}#0" for number in rng.permutation(300)]
    qrels = {
        str(q): {str(d): 1 for d in rng.choice(documents, rng.integers(1, 9), replace=False)}
        for q in range(num_queries)
    }
    run = {
        str(q): {str(d): float(rng.integers(0, 40)) for d in rng.choice(documents, min(depth, 100), replace=False)}
        for q in range(num_queries) if q == 0 or rng.random() < 0.8
    }  # fmt: skip
    evaluated = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "recall.100"}).evaluate(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = _measure(run, qrels)
    for query in qrels:
        expected = evaluated.get(query, {"recip_rank": 0, "recall_100": 0})
        assert result.reciprocal_ranks[query] == pytest.approx(expected["recip_rank"], abs=1e-6)
        assert result.recalls[query] == pytest.approx(expected["recall_100"], abs=1e-6)


DOCUMENTS = [
    {"id": "a#0", "contents": "Who\n\nfirst part\n\nsecond part"}, {"id": "x#0", "contents": "no title"},
    {"id": "b#0", "contents": "What\n\nis it"}, {"id": "c#0", "contents": "Where\n\n"},
    {"id": "d#0", "contents": "When\n\nnow"},
]  # fmt: skip
PLACES = {"Who": 0, "What": 1, "Where": 2, "When": 3, "no": 4}


def encode(texts):
    return np.eye(5)[[PLACES[text.split()[0].rstrip("?")] for text in texts]]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 100])
def test_searches_the_collection(folder, packed, block_size):
    content = "".join(json.dumps(document) + "\n" for document in DOCUMENTS).encode()
    path = folder / "collection" / ("docs.jsonl.gz" if packed else "docs.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert list(iter_collection(folder))[:2] == [("a#0", "Who", "first part\n\nsecond part"), ("x#0", "", "no title")]
    seen = []

    def encode_passages(texts):
        seen.extend(texts)
        assert len(texts) <= block_size
        return encode(texts)

    result = evaluate_mr_tydi(folder, encode, encode_passages=encode_passages, block_size=block_size)
    assert seen[:2] == ["Who first part\n\nsecond part", "no title"] and list(result.run) == ["1", "2", "3", "4"]
    assert result.reciprocal_ranks == {"1": 1, "2": 1, "3": 1, "4": 1} and result.recall == (0.5 + 3) / 4
    write_run(folder / "run.txt", result.run)
    again = evaluate_mr_tydi(folder, run=folder / "run.txt")
    assert (again.mrr, again.recall) == (result.mrr, result.recall)


@settings(max_examples=40)
@given(
    st.integers(0, 1 << 20),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 50),
    st.sampled_from(["dot", "cosine"]),
)
def test_search_in_blocks_equals_all_at_once(seed, count, top_k, block_size, similarity):
    rng = np.random.default_rng(seed)
    vectors, queries = rng.integers(-2, 3, (count, 3)).astype("float64"), np.array([[1.0, 2, -1], [0, -2, 1]])
    found = search_passages(
        lambda texts: queries[[int(text) for text in texts]], ["0", "1"],
        ((f"p{i}", str(i)) for i in range(count)), top_k,
        encode_passages=lambda texts: vectors[[int(text) for text in texts]],
        similarity=similarity, block_size=block_size,
    )  # fmt: skip
    if similarity == "cosine":
        vectors, queries = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) for x in (vectors, queries))
    scores = queries @ vectors.T
    for row, expected in zip(found, scores, strict=True):
        assert len(row) == min(top_k, count)
        np.testing.assert_allclose([score for _, score in row], np.sort(expected)[::-1][:top_k], atol=1e-6)
        if similarity == "dot":  # whole numbers: equal scores are equal, and the earlier passage is ahead
            assert [name for name, _ in row] == [f"p{i}" for i in np.argsort(-expected, kind="stable")[:top_k]]


FEW_SCORES = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, np.nan])  # many are equal


@settings(max_examples=200)
@given(
    st.lists(st.lists(FEW_SCORES, min_size=2, max_size=2), min_size=1, max_size=60),
    st.integers(1, 12),
    st.integers(1, 25),
)
def test_blocks_are_ordered_as_by_a_plain_sort(scores, top_k, block_size):
    """NaN, which products of large numbers can be, stands last."""
    scores = np.array(scores, "float32").T  # (2, N)
    found, places = np.zeros((2, 0), "float32"), np.zeros((2, 0), "int64")
    for start in range(0, scores.shape[1], block_size):
        block = scores[:, start : start + block_size]
        found, places = passages._best(found, places, block, start, top_k)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(found, np.take_along_axis(scores, order, axis=1))


@pytest.mark.parametrize("order", [1, -1])
def test_all_of_a_block_may_be_better_than_what_was_found(order):
    values = np.arange(50)[::order]
    pairs = ((f"p{i}", str(value)) for i, value in enumerate(values))
    found = search_passages(
        lambda texts: np.ones((len(texts), 1)), ["a", "b"], pairs, 7,
        encode_passages=lambda texts: np.array([[float(text)] for text in texts]), block_size=20,
    )  # fmt: skip
    best = np.argsort(-values, kind="stable")[:7]
    assert found == [[(f"p{i}", values[i]) for i in best]] * 2


def test_search_refuses():
    assert passages.passage_text("", "text") == "text"
    for settings_, message in (
        ({"similarity": "l2"}, "'l2'"),
        ({"top_k": 0}, "`top_k`"),
        ({"block_size": 0}, "`block_size`"),
    ):
        with pytest.raises(ValueError, match=message):
            search_passages(np.eye, ["a"], [("p", "a")], **settings_)
    for encoder, message in (
        (lambda texts: np.ones((7, 2)), r"`encode_passages`.*\(7, 2\)"),
        (lambda texts: np.ones((1, 3)), "dimension 2.*3"),
        (lambda texts: np.full((1, 2), np.nan), "row 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            search_passages(lambda texts: np.ones((1, 2)), ["a"], [("p", "a")], encode_passages=encoder)


def test_bad_input(folder):
    with pytest.raises(ValueError, match="Either `encode` or `run`"):
        evaluate_mr_tydi(folder)
    with pytest.raises(ValueError, match="Either `encode` or `run`"):
        evaluate_mr_tydi(folder, encode, run={})
    with pytest.raises(ValueError, match=r"queries are \['q1'\].*judged ones \['1', '2', '3'\]"):
        evaluate_mr_tydi(folder, run={"q1": {"a#0": 1.0}})
    with pytest.raises(FileNotFoundError, match=r"qrels\.dev\.txt"):
        evaluate_mr_tydi(folder, encode, split="dev")
    with pytest.raises(FileNotFoundError, match=r"docs\.jsonl"):
        evaluate_mr_tydi(folder, encode)


@pytest.mark.parametrize("content, message", [
    (b"1 no tab\n", "line 1"), (b"1\ta\n1\tb\n", "line 2: the id '1'"), (b"1\t \n", "line 1"),
    (b"1\ta\n\xff", "line 2: is not UTF-8"),
])  # fmt: skip
def test_bad_topics(content, message, tmp_path):
    (tmp_path / "topic.test.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_topics(tmp_path / "topic.test.tsv")


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"id": 3, "contents": "a"}', '{"id": "3", "contents": null}'])
def test_bad_collection(folder, line):
    (folder / "collection" / "docs.jsonl").write_text('{"id": "a", "contents": "b"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"docs\.jsonl, line 2"):
        list(iter_collection(folder))


@pytest.mark.parametrize("damage, message", [
    (lambda packed: packed[:-200], "cannot be unpacked behind line"),
    (lambda packed: packed[:60] + bytes(40) + packed[100:], "cannot be unpacked behind line"),
    (lambda packed: packed[:-6] + bytes(6), "cannot be unpacked behind line 3000"),  # the checksum
    (lambda packed: b"no archive", "cannot be unpacked behind line 0"),
    (lambda packed: packed + gzip.compress(b'{"id": "\xff"}\n'), r"line 3001: is not UTF-8"),
])  # fmt: skip
def test_damaged_collection(folder, damage, message):
    lines = (json.dumps({"id": str(number), "contents": f"text {number**7}"}) for number in range(3000))
    path = folder / "collection" / "docs.jsonl.gz"
    path.write_bytes(damage(gzip.compress("".join(f"{line}\n" for line in lines).encode())))
    with pytest.raises(ValueError, match=rf"docs\.jsonl\.gz.*{message}"):
        evaluate_mr_tydi(folder, encode, encode_passages=lambda texts: np.ones((len(texts), 5)))


def test_one_str_is_no_list_of_queries():
    with pytest.raises(TypeError, match=r"`queries` must be a list of str.*Write `\['ab'\]`"):
        search_passages(lambda texts: np.eye(2)[: len(texts)], "ab", [("p", "a")])
