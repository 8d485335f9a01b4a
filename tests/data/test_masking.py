"""Random masks: rates and shares by their distribution, and what must never be masked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.data import SimilarPairs
from simretro.data.masking import choose_masked, corrupt, listed
from tests.data.toy import ToyTokenizer, texts_of


def within(count, n, p, deviations=5):
    """Whether `count` of `n` is what probability `p` gives, within so many standard deviations."""
    return abs(count - n * p) <= deviations * np.sqrt(n * p * (1 - p)) + 1e-9


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.5, 0.9])
def test_each_token_is_masked_at_the_rate(rate):
    units = np.where(np.arange(13) < np.array([13, 5, 1])[:, None], np.arange(13), -1)
    masked = choose_masked(np.tile(units, (4000, 1)), rate, rng()).reshape(4000, 3, 13)
    counts = masked.sum(0)
    for row, length in zip(counts, (13, 5, 1), strict=True):
        assert all(within(count, 4000, rate) for count in row[:length])
        assert not row[length:].any()
    # The number in a row varies by the fraction only.
    numbers = masked[:, 0].sum(1)
    assert set(numbers) <= {int(13 * rate), int(13 * rate) + 1}


def test_words_are_masked_whole_at_the_rate_of_tokens():
    units = np.array([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, -1])
    masked = choose_masked(np.tile(units, (20000, 1)), 0.3, rng())
    for unit in range(5):
        of_unit = masked[:, units == unit]
        assert np.all(of_unit.all(1) == of_unit.any(1))
    assert not masked[:, -1].any()
    # The expected number is exact, whatever the words' sizes; each word has its chance.
    assert abs(masked.sum(1).mean() - 0.3 * 11) < 5 * masked.sum(1).std() / np.sqrt(20000)
    shares = masked[:, :-1].mean(0)
    assert shares.min() > 0.2 and shares.max() < 0.4


def test_rate_of_each_row():
    masked = choose_masked(np.tile(np.arange(10), (3, 1)), np.array([0.0, 0.5, 1.0]), rng())
    assert masked.sum(1).tolist() == [0, 5, 10]


@given(st.lists(st.lists(st.integers(-1, 4), min_size=3, max_size=3), min_size=1, max_size=5), st.floats(0, 1))
def test_whole_units_and_nothing_else(units, rate):
    units = np.array(units)
    masked = choose_masked(units, rate, rng(1))
    assert not masked[units < 0].any()
    for row, hits in zip(units, masked, strict=True):
        assert set(row[hits]).isdisjoint(row[~hits])
        largest = max((np.sum(row == unit) for unit in row[row >= 0]), default=0)
        assert hits.sum() < rate * np.sum(row >= 0) + largest + 1e-9


def test_eighty_ten_ten():
    token_ids = np.full((500, 100), 7)
    masked = rng().random(token_ids.shape) < 0.5
    corrupted = corrupt(token_ids, masked, 4, np.arange(100, 200), rng(1))
    assert np.all(corrupted[~masked] == 7) and np.all(token_ids == 7)
    values, n = corrupted[masked], int(masked.sum())
    assert within(np.sum(values == 4), n, 0.8) and within(np.sum(values == 7), n, 0.1)
    random = values[values >= 100]
    assert within(len(random), n, 0.1)
    counts = np.bincount(random - 100, minlength=100)
    assert np.sum((counts - len(random) / 100) ** 2 / (len(random) / 100)) < 99 + 5 * np.sqrt(2 * 99)  # chi-square


def test_listed_positions_and_ids():
    masked = np.array([[0, 1, 0, 1], [0, 0, 0, 0]], bool)
    positions, ids = listed(masked, np.array([[5, 6, 7, 8], [1, 2, 3, 4]]), 3, first_position=1)
    assert positions.tolist() == [[2, 4, 0], [0, 0, 0]] and ids.tolist() == [[6, 8, -1], [-1, -1, -1]]


def groups(n=120, length=12):
    return [[" ".join(f"w{i}" for i in rng(17 * g + t).integers(0, 200, length)) for t in range(2)] for g in range(n)]


def undo(batch):
    """The batch's token ids before the corruption."""
    token_ids = batch["token_ids"].copy()
    rows, slots = np.nonzero(batch["masked_ids"] >= 0)
    token_ids[rows, batch["masked_positions"][rows, slots]] = batch["masked_ids"][rows, slots]
    return token_ids


def test_mlm_in_a_batch():
    tokenizer, settings = ToyTokenizer(), {"pairs_per_batch": 8, "seed": 3}
    plain = SimilarPairs(groups(), tokenizer, **settings)
    masked = SimilarPairs(groups(), tokenizer, **settings, mlm_rate=0.3)
    hits = tokens = masks = 0
    for epoch in range(4):
        for index in range(len(plain)):
            a, b = plain.batch(epoch, index), masked.batch(epoch, index)
            assert set(b) == {*a, "masked_positions", "masked_ids"}
            np.testing.assert_array_equal(undo(b), a["token_ids"])  # positions and ids fit, the target is intact
            for name in ("segment_ids", "target_positions", "target_ids"):
                np.testing.assert_array_equal(a[name], b[name])
            assert b["masked_positions"].shape == b["masked_ids"].shape and b["masked_ids"].shape[1] % 8 == 0
            assert np.all(b["masked_positions"][b["masked_ids"] < 0] == 0)
            real = b["masked_ids"] >= 0
            assert np.all(b["masked_ids"][real] >= 5)  # no special is masked
            changed = np.take_along_axis(b["token_ids"], b["masked_positions"], axis=1)[real]
            assert np.all((changed == 4) | (changed >= 5))  # nor is one drawn at random
            hits, masks = hits + real.sum(), masks + np.sum(changed == 4)
            tokens += sum(len(source) for source, _ in texts_of(a, tokenizer))
    assert within(hits, tokens, 0.3, 3) and within(masks, hits, 0.8)


def test_unknown_tokens_are_not_masked():
    data = SimilarPairs([["w1 ? ?", "? w2"], ["? w3", "w4 ? ? ?"]], ToyTokenizer(), mlm_rate=0.9)
    for epoch in range(20):
        assert set(data.batch(epoch, 0)["masked_ids"].ravel()) <= {-1, 6, 7, 8, 9}


def test_corruption_of_half_the_rows_without_labels():
    tokenizer, settings = ToyTokenizer(), {"pairs_per_batch": 8, "seed": 3}
    plain = SimilarPairs(groups(), tokenizer, **settings)
    noisy = SimilarPairs(groups(), tokenizer, **settings, corruption_rate=0.25)
    rows = corrupted = masks = 0
    for epoch in range(4):
        for index in range(len(plain)):
            a, b = plain.batch(epoch, index), noisy.batch(epoch, index)
            assert set(a) == set(b)
            differ = a["token_ids"] != b["token_ids"]
            assert not np.any(differ & (a["segment_ids"] == 1))
            for name in ("segment_ids", "target_positions", "target_ids"):
                np.testing.assert_array_equal(a[name], b[name])
            rows, corrupted = rows + len(differ), corrupted + differ.any(1).sum()
            masks += np.sum(b["token_ids"] == 4)
    # 3 tokens of 12 are chosen, and each stays as it is with probability 0.1 (random ones equal it now and then).
    assert within(corrupted, rows, 0.5)
    assert within(masks, rows * 12, 0.5 * 0.25 * 0.8, 10)
    everywhere = SimilarPairs(groups(), tokenizer, **settings, corruption_rate=0.25, corrupted_rows=1.0)
    assert all(np.all((batch["token_ids"] == 4).any(1) | True) for batch in everywhere)
    assert sum(np.sum(batch["token_ids"] == 4) for batch in everywhere) > 1.5 * masks / 4


WORDS = ["un", "+believ", "+able", "a", "b", "cat", "+s"]


@pytest.mark.parametrize("segment", [None, str.split])
def test_whole_words(segment):
    tokenizer = ToyTokenizer(WORDS)
    texts = ["un+believ+able a b", "cat+s a un+believ+able", "a cat+s b", "b b cat+s ?"]
    data = SimilarPairs([texts[:2], texts[2:]], tokenizer, mlm_rate=0.4, whole_word=True, segment=segment)
    word = {
        tokenizer.vocab[t]: w for w, pieces in enumerate((WORDS[:3], WORDS[3:4], WORDS[4:5], WORDS[5:])) for t in pieces
    }
    seen = set()
    for epoch in range(50):
        batch = data.batch(epoch, 0)
        for ids, positions, labels in zip(undo(batch), batch["masked_positions"], batch["masked_ids"], strict=True):
            chosen = set(positions[labels >= 0])
            assert 1 not in labels
            for p in chosen:  # whoever belongs to the word is masked, too
                for q in (p - 1, p + 1):
                    if word.get(ids[q]) == word.get(ids[p]) and word.get(ids[p]) in (0, 3):
                        assert q in chosen
            seen |= {word[label] for label in labels[labels >= 0]}
    assert seen == {0, 1, 2, 3}


def test_segment_that_does_not_fit_the_tokenizer_is_told():
    with pytest.warns(UserWarning, match="4 texts are masked token by token"):
        SimilarPairs(
            [["cat+s a", "a b"], ["b a", "b cat+s"]],
            ToyTokenizer(WORDS),
            mlm_rate=0.4,
            segment=lambda text: text[::-1].split(),
        )
