import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from simretro.evaluation import bigram_overlap, group_retrieval, groups, tfidf_vectors


def at_angles(*degrees):
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def test_bigram_overlap():
    assert bigram_overlap("abcd", "xbc") == pytest.approx(1 / 3)  # ab bc cd
    assert bigram_overlap("xbc", "abcd") == 1 / 2  # the share of the query's
    assert bigram_overlap("aaaa", "aa") == 1  # distinct bigrams
    assert bigram_overlap("开灯", "请开灯") == 1 and bigram_overlap("ABC", "abc") == 1
    assert bigram_overlap("灯", "开灯") == 0 and bigram_overlap("灯", "灯") == 1
    assert bigram_overlap("", "开灯") == 1 and bigram_overlap("开灯", "") == 0


def test_hand_computed():
    texts = ["abcd", "wxyz", "abcx", "klmn", "opqr"]
    group_ids = ["g", "g", "g", "h", "h"]
    vectors = at_angles(0, 20, 5, 12, 60)
    result = group_retrieval(vectors, group_ids, texts)
    # abcd at 0: abcx (2 of 3 bigrams) is left out, though nearest; klmn at 12 is ahead of wxyz at 20: rank 2.
    # wxyz at 20: klmn (8 away) is ahead of abcx (15): 2. abcx at 5: abcd left out, klmn (7) ahead of wxyz (15): 2.
    # klmn at 12: opqr is 48 away, the three others nearer: 4. opqr at 60: wxyz is nearer than klmn: 2.
    assert result.ranks.tolist() == [2, 2, 2, 4, 2] and result.query_ids.tolist() == [0, 1, 2, 3, 4]
    assert (result.recall_at_1, result.recall_at_5, result.num_queries, result.num_skipped) == (0, 1, 5, 0)
    assert result.mrr == pytest.approx((4 / 2 + 1 / 4) / 5)
    # With all members counted the first text finds abcx at once, and abcx the first.
    assert group_retrieval(vectors, group_ids, texts, max_overlap=1).ranks.tolist() == [1, 2, 1, 4, 2]


def test_texts_without_a_positive_are_no_queries_but_compete():
    texts = ["abcd", "abcx", "klmn", "opqr", "stuv"]
    result = group_retrieval(at_angles(0, 1, 50, 54, 52), ["g", "g", "h", "h", "alone"], texts)
    assert result.query_ids.tolist() == [2, 3] and result.num_skipped == 3
    assert result.ranks.tolist() == [2, 2]  # stuv, in between, has no group


def test_no_query_at_all():
    result = group_retrieval(np.eye(2), [1, 2], ["ab", "cd"])
    assert result.num_queries == 0 and result.num_skipped == 2
    assert np.isnan([result.recall_at_1, result.recall_at_5, result.mrr]).all()
    assert group_retrieval(np.zeros((0, 3)), [], []).num_skipped == 0


def test_a_collapsed_model_gets_nothing_unless_asked():
    texts, group_ids = ["ab", "cd", "ef", "gh"], [0, 0, 1, 1]
    for vectors in (np.ones((4, 3)), np.zeros((4, 3))):
        assert group_retrieval(vectors, group_ids, texts).ranks.tolist() == [3] * 4
        assert group_retrieval(vectors, group_ids, texts, ties="optimistic").ranks.tolist() == [1] * 4


def test_equal_texts_of_other_groups_do_not_compete():
    # "a", "b", "c", "b" on two sides with equal vectors: side by side, the two "b" are right answers to each other.
    texts = ["a", "b", "c", "b"] * 2
    vectors = np.eye(3)[[0, 1, 2, 1] * 2]
    result = group_retrieval(vectors, [0, 1, 2, 3] * 2, texts, max_overlap=1)
    assert result.recall_at_1 == 1 and result.num_queries == 8
    # Different texts with equal vectors are a tie, and the rule decides: only "a" and "c" are found for sure.
    texts = ["a", "b", "c", "d", "a'", "b'", "c'", "d'"]
    assert group_retrieval(vectors, [0, 1, 2, 3] * 2, texts, max_overlap=1).recall_at_1 == 0.5
    assert group_retrieval(vectors, [0, 1, 2, 3] * 2, texts, max_overlap=1, ties="optimistic").recall_at_1 == 1


def brute_force(vectors, group_ids, texts, max_overlap, ties):
    """Loops over everything; (query, rank) of each counted query."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    ranks = []
    for i in range(len(texts)):
        own = [j for j in range(len(texts)) if group_ids[j] == group_ids[i]]
        positives = [j for j in own if j != i and bigram_overlap(texts[i], texts[j]) <= max_overlap]
        if not positives:
            continue
        best, rank = max(unit[i] @ unit[j] for j in positives), 1
        for j in range(len(texts)):
            if group_ids[j] != group_ids[i] and texts[j] not in [texts[k] for k in own]:
                score = unit[i] @ unit[j]
                rank += score >= best - 1e-6 if ties == "pessimistic" else score > best + 1e-6
        ranks.append((i, rank))
    return ranks


@st.composite
def grouped(draw):
    count = draw(st.integers(1, 25))
    texts = draw(st.lists(st.text("abc", max_size=5), min_size=count, max_size=count))
    group_ids = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    # Whole numbers: equal cosines are equal up to rounding, different ones differ by more than the tie width.
    rows = st.lists(st.integers(-2, 2), min_size=3, max_size=3)
    vectors = draw(st.lists(rows, min_size=count, max_size=count))
    return np.array(vectors, "float64"), group_ids, texts


@settings(max_examples=80)
@given(grouped(), st.sampled_from([0, 0.4, 0.5, 1]), st.sampled_from(["pessimistic", "optimistic"]))
def test_equals_brute_force_dense_sparse_and_in_blocks(case, max_overlap, ties):
    vectors, group_ids, texts = case
    expected = brute_force(vectors, group_ids, texts, max_overlap, ties)
    for matrix, block in ((vectors, 1 << 22), (csr_matrix(vectors), 1 << 22), (vectors, 1), (csr_matrix(vectors), 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "_SCORES_PER_BLOCK", block)
            result = group_retrieval(matrix, group_ids, texts, max_overlap, ties)
        assert list(zip(result.query_ids.tolist(), result.ranks.tolist(), strict=True)) == expected
        assert result.num_queries + result.num_skipped == len(texts)


@settings(max_examples=50)
@given(grouped(), st.randoms(use_true_random=False), st.floats(0.01, 100))
def test_order_of_texts_names_of_groups_and_length_of_vectors_do_not_matter(case, random, length):
    vectors, group_ids, texts = case
    order = random.sample(range(len(texts)), len(texts))
    one = group_retrieval(vectors, group_ids, texts)
    two = group_retrieval(vectors[order] * length, [f"group {group_ids[i]}" for i in order], [texts[i] for i in order])
    np.testing.assert_allclose([two.recall_at_1, two.recall_at_5, two.mrr], [one.recall_at_1, one.recall_at_5, one.mrr])
    ranks = dict(zip(two.query_ids.tolist(), two.ranks.tolist(), strict=True))
    assert {order[place]: rank for place, rank in ranks.items()} == dict(zip(one.query_ids, one.ranks, strict=True))


def test_a_monotone_change_of_the_cosines_changes_no_rank(monkeypatch):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(60)]
    vectors, group_ids = rng.standard_normal((60, 4)), rng.integers(0, 12, 60).tolist()
    before = group_retrieval(vectors, group_ids, texts)
    similarities = groups._similarities
    monkeypatch.setattr(groups, "_similarities", lambda *arguments: 5 * np.exp(2 * similarities(*arguments)) - 9)
    np.testing.assert_array_equal(group_retrieval(vectors, group_ids, texts).ranks, before.ranks)


def test_the_baseline_is_fooled_by_shared_characters():
    texts = ["open the window", "open the door", "shut the window", "let air in"]
    result = group_retrieval(tfidf_vectors(texts, (2, 2)), [0, 1, 2, 0], texts)
    assert result.query_ids.tolist() == [0, 3] and result.ranks[0] == 3


@pytest.mark.parametrize("arguments, message", [
    ((np.eye(3), [1, 2], ["a", "b", "c"]), "2 ids, 3 texts"),
    ((np.eye(2), [1, 2, 3], ["a", "b", "c"]), "2 rows, 3 texts"),
    ((np.eye(2), [1, 2], ["a", "b"], 50), "`max_overlap`.*50"),
    ((np.eye(2), [1, 2], ["a", "b"], 0.5, "random"), "`ties`"),
    ((np.full((2, 2), np.nan), [1, 2], ["a", "b"]), "row 0"), ((np.ones(2), [1, 2], ["a", "b"]), r"shape \(2,\)"),
])  # fmt: skip
def test_group_retrieval_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_retrieval(*arguments)


def test_one_str_is_no_list():
    with pytest.raises(TypeError, match=r"`texts` must be a list of str.*Write `\['abcd'\]`"):
        group_retrieval(np.eye(4), [0, 0, 1, 1], "abcd")
