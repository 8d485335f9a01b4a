"""Hard negatives: what is never one, where they come from, and how near to the positives they may come."""

import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.evaluation import RetrievalCollection, bm25_run
from simretro.retrieval import mine_hard_negatives


def line(number):
    """Document `i` stands at place `i` of every search: on a line, the nearer the smaller its number."""
    return {f"d{i}": f"text {i}" for i in range(number)}


def encode(texts):
    """Angles: "text 0" is nearest to a query."""
    angles = [0.0 if not text.startswith("text ") else 0.01 + 0.02 * int(text[5:]) for text in texts]
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def ids(mined):
    return [[document.id for document in query.negatives] for query in mined]


def mine(collection, number=3, model=encode, **options):
    options = {"rank_range": (0, 100), "sampling": "top", **options}
    return mine_hard_negatives(model, collection, number, **options)


def test_the_nearest_that_do_not_answer():
    collection = RetrievalCollection(line(20), {"q": "query", "p": "other"}, {"p": {"d1": 1}, "q": {"d0": 1, "d2": 2}})
    mined = mine(collection)
    assert ids(mined) == [["d0", "d2", "d3"], ["d1", "d3", "d4"]]
    assert [query.id for query in mined] == ["p", "q"]
    assert [[document.text for document in query.positives] for query in mined] == [["text 1"], ["text 0", "text 2"]]


def test_rank_range_counts_what_may_be_a_negative():
    collection = RetrievalCollection(line(20), {"q": "query"}, {"q": {"d0": 1, "d3": 1}})
    assert ids(mine(collection, rank_range=(2, 4), number=2)) == [["d4", "d5"]]


def test_never_a_positive_by_id_or_text():
    """Two ids have the text of the positive, and a query with an equal text knows another answer."""
    documents = {"a": "Paris", "b": "paris ", "c": "Hilton", "d": "London", "e": "", "f": "London", "g": "france"}
    queries = {"q1": "France", "q2": " france", "q3": "hotels"}
    qrels = {"q1": {"a": 1}, "q2": {"c": 1}, "q3": {"b": 1}}
    collection = RetrievalCollection(documents, queries, qrels)
    with pytest.warns(UserWarning, match=r"3 of 3 queries have fewer than `num_negatives`=10 negatives, the fewest 1"):
        mined = mine(collection, 10)
    assert ids(mined)[:2] == [["d"], ["d"]]  # London once; not the query itself, nor what is empty
    assert sorted(ids(mined)[2]) == ["c", "d", "g"]


def test_graded_documents_are_no_negatives_though_no_positives_either():
    collection = RetrievalCollection(line(6), {"q": "query"}, {"q": {"d0": 2, "d1": 1, "d2": 0, "d3": -1}})
    mined = mine(collection, 2, relevant_grade=2)
    assert [document.id for document in mined[0].positives] == ["d0"] and ids(mined) == [["d2", "d3"]]


def test_margins_by_hand():
    """Cosines: positive .8, candidates .79, .75, .7, .4."""
    cosines = {"positive": 0.8, "a": 0.79, "b": 0.75, "c": 0.7, "d": 0.4}
    vectors = np.array([[c, (1 - c * c) ** 0.5] for c in cosines.values()])
    collection = RetrievalCollection({k: k for k in cosines}, {"q": "query"}, {"q": {"positive": 1}})

    def found(**margins):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ids(mine(collection, 9, (np.array([[3.0, 0]]), 7 * vectors), **margins))[0]

    assert found() == ["a", "b", "c", "d"]
    assert found(absolute_margin=0.04) == ["b", "c", "d"]
    assert found(relative_margin=0.1) == ["c", "d"]
    assert found(absolute_margin=0.3, relative_margin=0.1) == ["d"]


def test_the_range_counts_before_a_margin_takes_out():
    collection = RetrievalCollection(line(20), {"q": "query"}, {"q": {"d3": 1}})
    assert ids(mine(collection, rank_range=(2, 6), absolute_margin=1e-9)) == [["d4", "d5", "d6"]]


def test_relative_margin_of_a_negative_score():
    """The closer one must go: -0.49 is above -0.50 - 0.05 * 0.50."""
    documents = {"positive": "a", "closer": "b", "just beyond": "c", "far": "d"}
    vectors = np.array([[-0.50], [-0.49], [-0.52], [-0.6]])
    collection = RetrievalCollection(documents, {"q": "query"}, {"q": {"positive": 1}})
    mined = mine(collection, 1, (np.ones((1, 1)), vectors), similarity="dot", relative_margin=0.05)
    assert ids(mined) == [["far"]]


def test_of_several_positives_the_lowest_decides():
    collection = RetrievalCollection(line(30), {"q": "query"}, {"q": {"d1": 1, "d10": 1}})
    mined = mine(collection, 3, absolute_margin=1e-6)
    assert ids(mined) == [["d11", "d12", "d13"]]


def test_a_teacher_takes_out_what_it_holds_for_an_answer_and_leaves_its_scores():
    collection = RetrievalCollection(line(12), {"q": "query", "p": "other"}, {"q": {"d0": 1, "d5": 1}, "p": {"d7": 1}})
    asked = Counter()

    def teacher(pairs):
        asked.update(pairs)
        of_text = {"text 0": 9.0, "text 5": 4.0, "text 7": 1.0, "text 1": 4.0, "text 2": 3.9, "text 3": 5.0}
        return [of_text.get(text, -1.0) for _, text in pairs]

    mined = mine(collection, 3, teacher=teacher)
    assert ids(mined) == [["d2", "d4", "d6"], ["d4", "d6", "d8"]]
    assert mined[0].positive_scores == (9.0, 4.0) and mined[0].negative_scores == (3.9, -1.0, -1.0)
    assert max(asked.values()) == 1, "no pair is asked for twice"
    assert ("query", "text 8") not in asked, "no more than needed"
    mined = mine(collection, 3, teacher=teacher, absolute_margin=1.0)
    assert ids(mined)[0] == ["d4", "d6", "d7"]


def test_a_teacher_of_a_query_whose_positive_is_blank():
    """There is no positive to be below of: what the search finds is a negative."""
    collection = RetrievalCollection({**line(5), "blank": " "}, {"q": "query"}, {"q": {"blank": 1}})
    [mined] = mine(collection, 2, teacher=lambda pairs: [float(text[5:]) for _, text in pairs])
    assert ids([mined]) == [["d0", "d1"]] and list(mined.negative_scores) == [0.0, 1.0]


def test_a_run_gives_candidates():
    documents = {"a": "slip flow wing", "b": "slip flow", "c": "flow of heat", "d": "nothing", "e": "slip"}
    collection = RetrievalCollection(documents, {"q": "slip flow"}, {"q": {"a": 1}})
    run = bm25_run(collection)
    with pytest.warns(UserWarning, match="the fewest 2"):
        mined = mine(collection, 4, run)
    assert ids(mined) == [[document for document in run["q"] if document not in ("a", "b")]]  # "b" is the query
    with pytest.raises(ValueError, match="`absolute_margin` and `relative_margin` need the positives' scores"):
        mine(collection, 4, run, relative_margin=0.05)
    with pytest.raises(ValueError, match="1 documents for the query 'q' that are not in `collection`, 'x'"):
        mine(collection, 1, {"q": {"x": 1.0}})
    assert ids(mine(collection, 1, run, teacher=lambda pairs: [len(text) for _, text in pairs])) == [["e"]]


def test_models_are_asked_in_their_own_way():
    class Model:
        similarity, passage_prefix = "dot", "p: "

        def encode_queries(self, texts, batch_size, show_progress):
            return np.ones((len(texts), 1))

        def encode_passages(self, texts, batch_size, show_progress):
            return np.array([[float(text)] for text in texts])

        @property
        def passage_sentence_encoder(self):
            return self

        def fingerprint(self):
            return "x"

    collection = RetrievalCollection({k: k for k in "2 50 8 9".split()}, {"q": "q"}, {"q": {"9": 1}})
    assert ids(mine(collection, 2, Model())) == [["50", "8"]]  # by cosine all were alike


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from(["top", "random"]))
def test_what_always_holds(seed, number, sampling):
    rng = np.random.default_rng(seed)
    words = [f"t{i}" for i in rng.integers(0, 25, 40)]  # many equal texts
    documents = {f"d{i}": word for i, word in enumerate(words)}
    queries = {f"q{i}": f"query {i % 4}" for i in range(7)}
    qrels = {q: {f"d{d}": 1 for d in rng.integers(0, 40, 3)} for q in queries}
    vectors = rng.standard_normal((7, 5)), rng.standard_normal((25, 5))
    by_text = vectors[1][[int(word[1:]) for word in words]]
    options = {"rank_range": (1, 9), "sampling": sampling, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collection = RetrievalCollection(documents, queries, qrels)
        mined = mine_hard_negatives((vectors[0], by_text), collection, number, **options)
        again = mine_hard_negatives((vectors[0], by_text), collection, number, **options)
    assert mined == again
    answers = {}
    for query in queries:
        answers.setdefault(queries[query], set()).update(documents[d] for d in qrels[query])
    for query in mined:
        texts = [document.text for document in query.negatives]
        assert len(texts) == len(set(texts)) == min(number, 8)
        assert not set(texts) & answers[query.query]
        assert all(documents[document.id] == document.text for document in query.negatives)


def test_random_sampling_draws_all_alike_and_each_query_by_itself():
    queries = {f"q{i}": f"query {i}" for i in range(2000)}
    collection = RetrievalCollection(line(30), queries, {query: {"d29": 1} for query in queries})
    drawn = ids(mine(collection, 2, sampling="random", rank_range=(5, 15)))
    counts = Counter(document for found in drawn for document in found)
    assert counts.keys() == {f"d{i}" for i in range(5, 15)}
    assert all(abs(count - 400) < 5 * (400 * 0.8) ** 0.5 for count in counts.values())
    fewer = RetrievalCollection(line(30), queries, {query: {"d29": 1} for query in list(queries)[:5]})
    assert ids(mine(fewer, 2, sampling="random", rank_range=(5, 15))) == drawn[:5]
    assert ids(mine(collection, 2, sampling="random", rank_range=(5, 15), seed=1)) != drawn


@pytest.mark.parametrize(
    "options, message",
    [
        ({"number": 0}, "`num_negatives`.*0"),
        ({"rank_range": (5, 5)}, r"`rank_range` must be two ints, 0 <= low < high; received \(5, 5\)"),
        ({"rank_range": 7}, "`rank_range`.*7"),
        ({"absolute_margin": -0.1}, "`absolute_margin`.*-0.1"),
        ({"relative_margin": float("nan")}, "`relative_margin`.*nan"),
        ({"sampling": "best"}, "`sampling`.*'best'"),
        ({"seed": -1}, "`seed`"),
        ({"similarity": "l2"}, "`similarity`.*'l2'"),
        ({"model": 3}, "`model` must have `encode`.*int"),
        ({"model": lambda texts: encode(texts)[1:]}, "`model` must return a row per text"),
        ({"model": (np.ones((1, 2)), np.ones((4, 2)))}, r"a vector for each of 1 queries and 20.*\(4, 2\)"),
        ({"teacher": lambda pairs: [np.nan] * len(pairs)}, "`teacher` must return a finite number for each pair"),
        ({"teacher": lambda pairs: [1.0]}, r"`teacher`.*shape \(1,\) for 2 pairs"),
    ],
)
def test_refuses(options, message):
    collection = RetrievalCollection(line(20), {"q": "query"}, {"q": {"d0": 1, "d1": 1}})
    with pytest.raises(ValueError, match=message):
        mine(collection, **options)


def test_queries_without_a_positive_are_named_before_anything_is_encoded():
    collection = RetrievalCollection(line(5), {"q": "query", "p": "x"}, {"q": {"d0": 1}, "p": {"d1": 0}})
    with pytest.raises(ValueError, match="1 of 2 queries have none: 'p'"):
        mine(collection, model=lambda texts: pytest.fail("encoded"))
