import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.retrieval import ExactIndex, exact_search, normalize_rows
from simretro.retrieval import exact as exact_module


def reference(vectors, queries, topn):
    """Everything at once, in float64, sorted in full."""
    scores = normalize_rows(queries).astype("float64") @ normalize_rows(vectors).astype("float64").T
    scores = np.clip(scores.astype("float32"), -1, 1)
    ids = np.lexsort((np.broadcast_to(np.arange(len(vectors)), scores.shape), -scores))[:, :topn]
    return np.take_along_axis(scores, ids, axis=1), ids


def make_index(vectors):
    index = ExactIndex()
    index.add(vectors, [f"text {i}" for i in range(len(vectors))])
    return index


def test_hand_computed():
    index = make_index([[1, 0], [0, 2], [3, 3], [-1, 0]])
    scores, ids = index.search([[2, 0], [0, -5]], topn=3)
    assert ids.tolist() == [[0, 2, 1], [0, 3, 2]]  # (0, -1): rows 0 and 3 tie at 0, the smaller id comes first
    np.testing.assert_allclose(scores, [[1, 0.5**0.5, 0], [0, 0, -(0.5**0.5)]], atol=1e-7)
    assert scores.dtype == "float32" and ids.dtype == "int64"
    assert [[text for text, _ in row] for row in index.most_similar([[0, 1]], 2)] == [["text 1", "text 2"]]
    assert index.most_similar([[1, 0]], 1) == [[("text 0", 1.0)]]


@st.composite
def searches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, dimension = draw(st.integers(1, 120)), draw(st.integers(1, 24))
    vectors = rng.standard_normal((count, dimension)) * 10.0 ** draw(st.integers(-20, 15))
    if draw(st.booleans()):  # few distinct rows: many ties, inside and across blocks
        vectors = vectors[rng.integers(0, draw(st.integers(1, 5)), count) % count]
    if draw(st.booleans()):
        vectors[rng.integers(0, count, count // 4)] = 0
    queries = np.concatenate([vectors[:2], rng.standard_normal((draw(st.integers(0, 5)), dimension))])
    if draw(st.booleans()):
        vectors = vectors[np.argsort(vectors @ queries[-1])]  # ascending: every block beats the ones before
    return vectors.astype("float32"), queries.astype("float32"), draw(st.integers(1, 140))


@settings(max_examples=150)
@given(searches(), st.sampled_from([3, 17, 4096]))
def test_equals_sorting_everything(search, num_rows):
    vectors, queries, topn = search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_module, "_MIN_ROWS", num_rows)
        patch.setattr(exact_module, "_MAX_ROWS", num_rows)
        scores, ids = make_index(vectors).search(queries, topn)
    expected_scores, expected_ids = reference(vectors, queries, topn)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-7)


def test_thinning_out_the_survivors_loses_none(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.standard_normal((40, 6)), 50, axis=0)[rng.permutation(2000)]
    queries = rng.standard_normal((9, 6))
    vectors = vectors[np.argsort(vectors @ queries[0])]
    monkeypatch.setattr(exact_module, "_MIN_ROWS", 64)
    monkeypatch.setattr(exact_module, "_MAX_ROWS", 64)

    class Impatient(exact_module._Survivors):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.allowed = 0

    monkeypatch.setattr(exact_module, "_Survivors", Impatient)
    scores, ids = make_index(vectors).search(queries, 70)
    np.testing.assert_array_equal(ids, reference(vectors, queries, 70)[1])


def test_the_batch_changes_nothing():
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((5000, 48)), rng.standard_normal((300, 48))
    vectors[2500:] = vectors[:2500]  # each text twice, in different blocks
    index = make_index(vectors)
    scores, ids = index.search(queries, 8)
    for row in range(0, 300, 29):
        alone_scores, alone_ids = index.search(queries[row : row + 1], 8)
        np.testing.assert_array_equal(scores[row], alone_scores[0])
        np.testing.assert_array_equal(ids[row], alone_ids[0])
    assert (ids[:, ::2] + 2500 == ids[:, 1::2]).all()  # of two equal texts the earlier comes first


def test_zero_vectors_are_finite_and_score_zero():
    index = make_index([[0, 0], [1, 1], [0, 0]])
    scores, ids = index.search([[0, 0], [-1, -1]], 3)
    assert ids.tolist() == [[0, 1, 2], [0, 2, 1]]
    np.testing.assert_allclose(scores, [[0, 0, 0], [0, 0, -1]], atol=1e-7)


def test_topn_above_the_size_gives_what_there_is():
    index = make_index(np.eye(3))
    scores, ids = index.search(np.eye(3)[:2], 10)
    assert scores.shape == ids.shape == (2, 3)
    assert len(index.most_similar(np.eye(3)[:1], 10)[0]) == 3


def test_nothing_to_search_or_to_search_for():
    index = make_index(np.eye(3))
    assert index.search(np.zeros((0, 3)), 2)[1].shape == (0, 2)
    assert index.most_similar(np.zeros((0, 3))) == []
    assert ExactIndex().search(np.ones((2, 5)), 4)[0].shape == (2, 0)
    assert ExactIndex().most_similar(np.ones((2, 5))) == [[], []]


@pytest.mark.parametrize("topn", [0, -1, 2.5, True, None])
def test_topn_must_be_a_positive_integer(topn):
    with pytest.raises(ValueError, match=r"`topn`.*at least 1"):
        make_index(np.eye(3)).search(np.eye(3), topn)


def test_no_matrix_of_all_queries_and_all_vectors():
    rng = np.random.default_rng(0)
    vectors, queries = normalize_rows(rng.standard_normal((20_000, 8))), normalize_rows(rng.standard_normal((2000, 8)))
    tracemalloc.start()
    try:
        exact_search(vectors, queries, 10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30e6  # 160e6 bytes at once otherwise
