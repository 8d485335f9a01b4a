import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from simretro.evaluation import (
    LabelledPair,
    evaluate_pairs,
    pair_cosines,
    pair_metrics,
    read_labelled_pairs,
    tfidf_vectors,
)
from simretro.evaluation.pairs import _mean_ranks

# Few distinct values, so that ties are the rule.
COSINES = st.lists(st.sampled_from([-0.5, 0.0, 0.1, 0.25, 0.25000001, 0.5, 0.9]), min_size=2, max_size=40)


@st.composite
def labelled(draw):
    cosines = draw(COSINES)
    labels = draw(st.lists(st.integers(0, 1), min_size=len(cosines), max_size=len(cosines)))
    assume(0 < sum(labels) < len(labels))
    return np.array(cosines), np.array(labels)


def test_hand_computed():
    # The six (1, 0) pairs of pairs: .9>.5, .9>.1, .9>.3, .5=.5, .5>.1, .5>.3: 5.5 of 6.
    metrics = pair_metrics([0.9, 0.5, 0.5, 0.1, 0.3], [1, 1, 0, 0, 0])
    assert metrics.auc == pytest.approx(5.5 / 6)
    # Threshold .9 and threshold .5 are both right for 4 of 5: the higher one is taken.
    assert (metrics.accuracy, metrics.threshold) == (0.8, 0.9)
    # Ranks 5, 3.5, 3.5, 1, 2 against 4.5, 4.5, 2, 2, 2, mean 3: sum of products 6.25, of squares 9.5 and 7.5.
    assert metrics.spearman == pytest.approx(6.25 / (9.5 * 7.5) ** 0.5)


def test_given_threshold_is_inclusive():
    assert pair_metrics([0.9, 0.9, 0.5], [1, 0, 0], threshold=0.9)[2:] == (2 / 3, 0.9)
    assert pair_metrics([0.9, 0.9, 0.5], [1, 0, 0], threshold=0.91).accuracy == 2 / 3
    assert pair_metrics([0.9, 0.8, 0.5], [1, 0, 0], threshold=0.5).accuracy == 1 / 3


def test_all_cosines_equal():
    metrics = pair_metrics([0.5] * 4, [1, 0, 0, 0])
    assert metrics.auc == 0.5 and np.isnan(metrics.spearman)
    assert metrics.accuracy == 0.75 and metrics.threshold > 0.5  # accept none
    assert pair_metrics([0.5] * 4, [1, 1, 1, 0])[2:] == (0.75, 0.5)  # accept all


@settings(max_examples=100)
@given(labelled())
def test_equals_the_libraries_with_ties(pairs):
    cosines, labels = pairs
    metrics = pair_metrics(cosines, labels)
    np.testing.assert_allclose(_mean_ranks(cosines), rankdata(cosines))
    assert metrics.auc == pytest.approx(roc_auc_score(labels, cosines))
    if len(set(cosines)) > 1:
        assert metrics.spearman == pytest.approx(spearmanr(cosines, labels).statistic)
    accuracies = [((cosines >= t) == labels).mean() for t in [*cosines, 2.0]]
    assert metrics.accuracy == pytest.approx(max(accuracies))
    assert ((cosines >= metrics.threshold) == labels).mean() == pytest.approx(metrics.accuracy)


@settings(max_examples=50)
@given(labelled(), st.randoms(use_true_random=False))
def test_order_of_pairs_and_scale_of_cosines_do_not_matter(pairs, random):
    cosines, labels = pairs
    metrics = pair_metrics(cosines, labels)
    order = random.sample(range(len(labels)), len(labels))
    for other in (pair_metrics(cosines[order], labels[order]), pair_metrics(np.exp(3 * cosines) - 7, labels)):
        np.testing.assert_allclose(other[:3], metrics[:3])
    # Turned round, right becomes wrong.
    assert pair_metrics(-cosines, labels).auc == pytest.approx(1 - metrics.auc)


@pytest.mark.parametrize("cosines, labels, message", [
    ([0.1, 0.2], [1], r"\(2,\) and \(1,\)"), ([0.1, 0.2], [1, 1], r"both must occur.*\[1\]"),
    ([0.1, 0.2], [0, 2], r"`labels`.*\[0, 2\]"), ([0.1, float("nan")], [0, 1], "number 1 is not"), ([], [], "`labels`"),
])  # fmt: skip
def test_metrics_refuse(cosines, labels, message):
    with pytest.raises(ValueError, match=message):
        pair_metrics(cosines, labels)


def test_read_labelled_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeff蚂蚁借呗\t花呗 怎么还\t0\r\na\u2028b\tc\t1\n\n".encode())
    assert read_labelled_pairs(path) == [("蚂蚁借呗", "花呗 怎么还", 0), ("a\u2028b", "c", 1)]
    assert read_labelled_pairs(path)[0].text2 == "花呗 怎么还"


@pytest.mark.parametrize("content, message", [
    (b"a\tb\t1\na\tb\n", r"pairs\.tsv, line 2.*2 column"), (b"a\tb\t1\tx\n", "line 1.*4 column"),
    (b"sentence1\tsentence2\tlabel\n", "line 1.*'label'.*header"), (b"a\tb\t1\n\na\t \t1\n", "line 3.*empty"),
    (b"a\tb\t0.5\n", "line 1.*0 or 1"), (b"a\tb\t1\n\xff\tb\t1\n", "line 2: is not UTF-8"),
    (b"", r"pairs\.tsv holds no"),
    (b"\n\n", r"pairs\.tsv holds no"),
])  # fmt: skip
def test_read_names_file_and_line(content, message, tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_labelled_pairs(tmp_path / "pairs.tsv")


VECTORS = {"a": [2.0, 0.0], "b": [0.0, 3.0], "c": [1.0, 1.0], "zero": [0.0, 0.0]}


@pytest.mark.parametrize("wrap", [np.array, csr_matrix])
def test_pair_cosines_encode_each_text_once(wrap):
    calls = []

    def encode(texts):
        calls.append(texts)
        return wrap([VECTORS[text] for text in texts])

    cosines = pair_cosines(encode, [("a", "b", 0), ("a", "c", 1), ("c", "c", 1), ("zero", "a", 0)])
    np.testing.assert_allclose(cosines, [0, 0.5**0.5, 1, 0], atol=1e-7)
    assert cosines.dtype == "float64" and [sorted(texts) for texts in calls] == [["a", "b", "c", "zero"]]
    assert pair_cosines(encode, []).shape == (0,)


def test_evaluate_pairs():
    pairs = [("a", "c", 1), ("a", "b", 0), ("zero", "b", 0)]
    metrics = evaluate_pairs(lambda texts: np.array([VECTORS[text] for text in texts]), pairs)
    assert metrics.auc == metrics.accuracy == 1 and metrics.threshold == pytest.approx(0.5**0.5)
    assert evaluate_pairs(tfidf_vectors, [("abc", "abd", 1), ("abc", "xyz", 0)]).auc == 1
    with pytest.raises(ValueError, match="`pairs`"):
        evaluate_pairs(tfidf_vectors, [])


@pytest.mark.parametrize("wrap", [np.array, csr_matrix])
def test_encode_must_give_a_finite_row_per_text(wrap):
    with pytest.raises(ValueError, match=r"`encode\(texts\)`.*1 rows, 2 texts"):
        pair_cosines(lambda texts: wrap([[1.0, 2.0]]), [("a", "b", 0)])
    with pytest.raises(ValueError, match=r"`encode\(texts\)`.*row 1 is not"):
        pair_cosines(lambda texts: wrap([[1.0, 2.0], [1.0, np.nan]]), [("a", "b", 0)])


def test_tfidf_vectors():
    vectors = tfidf_vectors(["ab", "ab", "cd", "x"], ngram_range=(2, 2))
    np.testing.assert_allclose((vectors @ vectors.T).toarray(), [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0] * 4])
    # One n-gram common to both, one of its own each: idf ln(3/3)+1 = 1 and ln(3/2)+1.
    rare = np.log(1.5) + 1
    vectors = tfidf_vectors(["ab", "ac"], ngram_range=(1, 1))
    assert (vectors @ vectors.T)[0, 1] == pytest.approx(1 / (1 + rare**2), abs=1e-6)
    assert vectors.dtype == "float32"
    with pytest.raises(ValueError, match="2 characters"):
        tfidf_vectors(["a", ""], ngram_range=(2, 2))


def test_one_str_is_no_list():
    with pytest.raises(TypeError, match=r"`texts` must be a list of str.*Write `\['abc'\]`"):
        tfidf_vectors("abc")
    for pairs in (("ab", "cd"), ("ab", "cd", 1)):
        with pytest.raises(TypeError, match="`pairs` must be a list of pairs; received the str 'ab'"):
            pair_cosines(tfidf_vectors, pairs)
    with pytest.raises(TypeError, match="Put one pair in a list"):
        evaluate_pairs(tfidf_vectors, LabelledPair("ab", "cd", 1))
