import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from simretro.evaluation import (
    TextPair,
    bitext,
    bitext_accuracy,
    bootstrap_interval,
    evaluate_bitext,
    evaluate_tatoeba,
    read_tatoeba,
)
from simretro.retrieval import normalize_rows


def at(*degrees):
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)


def write(folder, pair, texts, other_texts, end="\n"):
    for side, lines in zip(pair.split("-"), (texts, other_texts), strict=True):
        (folder / f"tatoeba.{pair}.{side}").write_bytes((end.join(lines) + end).encode())


def test_hand_computed_in_both_directions():
    # German 0, 40, 90 degrees; English 10, 20, 30. 0 -> 10 right, 40 -> 30 wrong, 90 -> 30 right;
    # 10 -> 0 right, 20 -> 0 (20 away, as is 40: the first) wrong, 30 -> 40 wrong.
    result = bitext_accuracy(at(0, 40, 90), at(10, 20, 30))
    assert result.forward_hits.tolist() == [True, False, True] and result.backward_hits.tolist() == [True, False, False]
    assert (result.forward, result.backward, result.mean) == (2 / 3, 1 / 3, 0.5)
    assert bitext_accuracy(at(0, 40, 90), at(10, 20, 30), ties="optimistic").backward_hits.tolist() == [
        True,
        True,
        False,
    ]
    low, high = bootstrap_interval(np.mean, result.forward_hits)
    assert low <= 2 / 3 <= high


TEXTS = ["a", "b", "c", "b"]


@pytest.mark.parametrize("ties, expected", [("index", 0.75), ("text", 1), ("optimistic", 1), ("pessimistic", 0.5)])
@pytest.mark.parametrize("retrieval", ["cosine", "csls", "margin"])
@pytest.mark.parametrize("wrap", [np.array, csr_matrix])
def test_ties_and_duplicates(ties, expected, retrieval, wrap):
    vectors = wrap(np.eye(3)[[0, 1, 2, 1]])
    result = bitext_accuracy(
        vectors, vectors, retrieval=retrieval, neighbors=1, ties=ties, texts=TEXTS, other_texts=TEXTS
    )
    assert result.forward == result.backward == expected


def test_nearly_equal_vectors_of_one_text_are_a_tie():
    # The same sentence encoded in two batches differs in the last bits.
    vectors = at(0, 50, 50, 100)
    other = vectors.copy()
    other[1, 0] += 1e-8
    assert bitext_accuracy(vectors, other, ties="optimistic").mean == 1
    assert bitext_accuracy(vectors, other).forward_hits.tolist() == [True, True, False, True]


def test_a_collapsed_model():
    vectors = np.ones((5, 3))
    for ties, expected in (("index", 0.2), ("optimistic", 1), ("pessimistic", 0)):
        assert bitext_accuracy(vectors, vectors, ties=ties).mean == expected
    assert bitext_accuracy(np.zeros((5, 3)), np.zeros((5, 3)), retrieval="margin").mean == 0.2


def test_hub_is_overcome_by_csls_and_margin():
    left, right = at(10, 28), at(0, 58)
    assert bitext_accuracy(left, right).forward == 0.5
    for retrieval in ("csls", "margin"):
        assert bitext_accuracy(left, right, retrieval=retrieval, neighbors=2).forward == 1


def reference(left, right, retrieval, k):
    """Predictions of the whole matrix, row by row."""
    # As float32 unit vectors, like everywhere: rounding may decide between vectors that are nearly parallel.
    unit = [normalize_rows(side).astype("float64") for side in (left, right)]
    cosines = unit[0] @ unit[1].T
    scores = np.empty_like(cosines)
    for i in range(len(cosines)):
        for j in range(len(cosines)):
            r = np.mean(sorted(cosines[i])[::-1][:k]), np.mean(sorted(cosines[:, j])[::-1][:k])
            scores[i, j] = {"cosine": cosines[i, j], "csls": 2 * cosines[i, j] - r[0] - r[1],
                            "margin": cosines[i, j] / ((r[0] + r[1]) / 2)}[retrieval]  # fmt: skip
    right_answers = np.arange(len(scores))
    return (scores.argmax(axis=1) == right_answers).mean(), (scores.argmax(axis=0) == right_answers).mean()


@st.composite
def bitexts(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    count, dimension = draw(st.integers(1, 20)), draw(st.integers(4, 8))
    left = np.abs(rng.standard_normal((count, dimension)))  # no negative cosine: the ratio needs it
    return left, np.abs(left + draw(st.floats(0, 2)) * rng.standard_normal(left.shape))


@settings(max_examples=60)
@given(bitexts(), st.sampled_from(["cosine", "csls", "margin"]), st.integers(1, 12), st.integers(1, 200))
def test_equals_the_definition_in_blocks_sparse_and_dense(sides, retrieval, k, block):
    expected = reference(*sides, retrieval, k)
    for wrap, size in ((np.array, 1 << 22), (np.array, block), (csr_matrix, block)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bitext, "_SCORES_PER_BLOCK", size)
            patch.setattr(bitext, "_TIE", 1e-12)
            result = bitext_accuracy(*map(wrap, sides), retrieval=retrieval, neighbors=k)
        np.testing.assert_allclose((result.forward, result.backward), expected)


@settings(max_examples=40)
@given(bitexts(), st.sampled_from(["cosine", "csls", "margin"]), st.randoms(use_true_random=False), st.floats(0.1, 9))
def test_order_length_and_exchange_of_the_sides_do_not_matter(sides, retrieval, random, length):
    left, right = sides
    one = bitext_accuracy(left, right, retrieval=retrieval, ties="optimistic")
    order = random.sample(range(len(left)), len(left))
    two = bitext_accuracy(length * left[order], right[order] / length, retrieval=retrieval, ties="optimistic")
    np.testing.assert_allclose((two.forward, two.backward), (one.forward, one.backward))
    three = bitext_accuracy(right, left, retrieval=retrieval, ties="optimistic")
    assert (three.forward, three.backward, three.mean) == (one.backward, one.forward, one.mean)


VECTORS = {"eins": 0, "zwei": 40, "drei": 90, "one": 10, "two": 20, "three": 30, "un": 12, "deux": 45}


def encode(texts):
    return at(*[VECTORS[text] for text in texts])


def test_evaluate_tatoeba(tmp_path):
    write(tmp_path, "deu-eng", ["eins", "zwei", "drei"], ["one", "two", "three"])
    write(tmp_path, "fra-eng", ["un", "deux"], ["one", "two"])
    write(tmp_path, "deu-fra", ["eins", "zwei"], ["un", "deux"])
    (tmp_path / "README.txt").write_text("not a pair")
    result = evaluate_tatoeba(tmp_path, encode)
    assert list(result.pairs) == ["deu", "deu-fra", "fra"]
    assert (result.pairs["deu"].forward, result.pairs["deu"].backward) == (2 / 3, 1 / 3)
    # Languages count alike, however many sentences they have.
    assert result.forward == pytest.approx((2 / 3 + 1 + 1) / 3) and result.backward == pytest.approx(
        (1 / 3 + 1 + 0.5) / 3
    )
    assert result.mean == pytest.approx((result.forward + result.backward) / 2)
    some = evaluate_tatoeba(tmp_path, encode, ["fra", "deu-fra"], retrieval="csls", ties="text")
    assert list(some.pairs) == ["fra", "deu-fra"]


def test_vectors_made_before_and_calibration(tmp_path):
    write(tmp_path, "deu-eng", ["eins", "zwei", "drei"], ["one", "two", "three"])
    vectors = {"deu": (at(0, 40, 90), at(10, 50, 100))}
    assert evaluate_tatoeba(tmp_path, vectors).mean == 1
    seen = []

    def calibrate(side, language):
        seen.append(language)
        return side if language == "eng" else side[::-1]

    assert evaluate_tatoeba(tmp_path, vectors, calibrate=calibrate).mean < 1
    assert seen == ["deu", "eng"]
    with pytest.raises(ValueError, match="no vectors for the pair 'deu'"):
        evaluate_tatoeba(tmp_path, {"fra": vectors["deu"]})


def test_pairs_without_english_in_memory():
    pairs = {"de-fr": ("de", "fr", ["eins", "zwei"], ["un", "deux"])}
    assert evaluate_bitext(pairs, encode).mean == 1
    with pytest.raises(ValueError, match="2 de, 1 fr"):
        evaluate_bitext({"de-fr": TextPair("de", "fr", ["eins", "zwei"], ["un"])}, encode)
    with pytest.raises(ValueError, match="`pairs`"):
        evaluate_bitext({}, encode)
    with pytest.raises(ValueError, match="1 rows for the 2 de texts of de-fr"):
        evaluate_bitext(pairs, lambda texts: np.ones((1, 2)))


def test_lines_are_split_at_line_feeds_only(tmp_path):
    write(tmp_path, "jpn-eng", ["\ufeff一\u2028二", "三\x85"], ["a", "b"], end="\r\n")
    (tmp_path / "tatoeba.jpn-eng.eng").write_bytes(b"a\nb")  # no line feed at the end
    assert read_tatoeba(tmp_path) == {"jpn": TextPair("jpn", "eng", ["一\u2028二", "三\x85"], ["a", "b"])}


def test_alphabetical_english_is_told(tmp_path):
    english = [f"{number:03} sheep" for number in range(25)]
    write(tmp_path, "deu-eng", english[::-1], english)
    with pytest.warns(UserWarning, match=r"tatoeba\.deu-eng\.eng is in alphabetical order.*XTREME") as caught:
        read_tatoeba(tmp_path)
    assert caught[0].filename == __file__


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="xxx-eng"):
        read_tatoeba(tmp_path)
    write(tmp_path, "deu-eng", ["a", "b", "c"], ["a", "b"])
    with pytest.raises(ValueError, match=r"tatoeba\.deu-eng\.deu has 3 lines, but .*eng has 2"):
        read_tatoeba(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tatoeba\.fra-eng\.fra"):
        read_tatoeba(tmp_path, ["fra"])
    (tmp_path / "tatoeba.deu-eng.deu").write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match="line 2: is not UTF-8"):
        read_tatoeba(tmp_path)
    (tmp_path / "tatoeba.deu-eng.deu").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no line"):
        read_tatoeba(tmp_path)


@pytest.mark.parametrize("sides, settings, message", [
    ((np.eye(3), np.eye(4)), {}, "3 and 4"), ((np.eye(3), np.ones((3, 2))), {}, "3 and 2"),
    ((np.zeros((0, 2)), np.zeros((0, 2))), {}, "at least one"), ((np.eye(2), np.eye(2)), {"retrieval": "dot"}, "'dot'"),
    ((np.eye(2), np.eye(2)), {"ties": "best"}, "'best'"), ((np.eye(2), np.eye(2)), {"ties": "text"}, "`texts`"),
    ((np.eye(2), np.eye(2)), {"retrieval": "csls", "neighbors": 0}, "`neighbors`.*0"),
    ((np.eye(2), np.full((2, 2), np.nan)), {}, "`other_vectors`.*row 0"),
])  # fmt: skip
def test_accuracy_refuses(sides, settings, message):
    with pytest.raises(ValueError, match=message):
        bitext_accuracy(*sides, **settings)


def plain(vectors):
    return vectors.tolist()


@pytest.mark.parametrize("wrap", [plain, csr_matrix])
def test_all_kinds_of_vectors(wrap, tmp_path):
    write(tmp_path, "deu-eng", ["eins", "zwei", "drei"], ["one", "two", "three"])
    expected = evaluate_tatoeba(tmp_path, encode)
    assert evaluate_tatoeba(tmp_path, lambda texts: wrap(encode(texts))).forward == expected.forward == 2 / 3
    sides = wrap(at(0, 40, 90)), wrap(at(10, 20, 30))
    assert evaluate_tatoeba(tmp_path, {"deu": sides}).backward == expected.backward == 1 / 3
    seen = []

    def calibrate(side, language):
        seen.append(side.shape)
        return side

    evaluate_tatoeba(tmp_path, {"deu": sides}, calibrate=calibrate)
    assert seen == [(3, 2)] * 2
    with pytest.raises(ValueError, match="received 0 rows for the 3 deu texts of deu"):
        evaluate_tatoeba(tmp_path, lambda texts: None)


def test_one_str_is_no_list(tmp_path):
    write(tmp_path, "d-eng", ["eins"], ["one"])
    with pytest.raises(TypeError, match=r"`languages` must be a list of str.*Write `\['d'\]`"):
        read_tatoeba(tmp_path, "d")
    with pytest.raises(TypeError, match=r"Write `\['deu'\]`"):
        evaluate_tatoeba(tmp_path, encode, languages="deu")
    for texts, name in ((("ab", ["a", "b"]), "texts"), ((["a", "b"], "ab"), "other_texts")):
        with pytest.raises(TypeError, match=rf"`pairs\['x'\]\.{name}` must be a list of str"):
            evaluate_bitext({"x": ("de", "fr", *texts)}, lambda texts: np.eye(2))
        with pytest.raises(TypeError, match=f"`{name}` must be a list of str"):
            bitext_accuracy(np.eye(2), np.eye(2), ties="text", texts=texts[0], other_texts=texts[1])
