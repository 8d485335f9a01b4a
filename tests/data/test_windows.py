"""Windows of long and short documents: every token in one of them, of like length, with borders that move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.data.document_table import DocumentTable
from simretro.data.windows import Windows
from tests.data.test_masking import rng, within


def table_of(sizes, sentence=10, word=1):
    """Documents of so many tokens, a sentence and a word each so many."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    return DocumentTable(
        token_ids=np.arange(starts[-1], dtype="int32"),
        document_starts=starts,
        sentence_starts=np.flatnonzero(places % sentence == 0),
        word_starts=places % word == 0,
        largest_word=word,
    )


SIZES = st.lists(st.integers(1, 30) | st.integers(1, 2000), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 70), st.integers(1, 200), st.integers(1, 5), st.sampled_from([1, 8, 16]), st.booleans())
@settings(max_examples=150)
def test_every_token_is_in_one_window(sizes, capacity, sentence, word, multiple, concatenate):
    table = table_of(sizes, sentence, word)
    windows = Windows(table, capacity, length_multiple=multiple, concatenate=concatenate)
    for seed in range(3):
        starts, lengths = windows.draw(rng(seed))
        assert len(starts) == windows.num_windows and lengths.min() >= 1 and lengths.max() <= capacity
        assert starts[0] == 0 and np.array_equal(starts[1:], (starts + lengths)[:-1])
        assert starts[-1] + lengths[-1] == sum(sizes)
        assert np.all(lengths[windows.surely_short] <= windows.short_length) and lengths.max() <= windows.longest
        if not concatenate:
            assert np.isin(table.document_starts[:-1], starts).all()  # no window has tokens of two documents
            for start, size in zip(table.document_starts, sizes, strict=False):
                assert size > capacity or lengths[np.searchsorted(starts, start)] == size


@pytest.mark.parametrize("capacity", [62, 126, 510])
def test_windows_of_long_documents_are_nearly_full(capacity):
    windows = Windows(table_of([capacity * 20, capacity * 7 + 5, capacity * 100], 25), capacity, length_multiple=16)
    for seed in range(5):
        lengths = windows.draw(rng(seed))[1]
        assert lengths.mean() > 0.85 * capacity and np.mean(lengths < 0.5 * capacity) < 0.1
    joined = Windows(table_of([9] * 3000, 9), capacity, concatenate=True)
    assert joined.draw(rng())[1].mean() > 0.85 * capacity


def test_windows_begin_with_sentences_or_words():
    starts, _ = Windows(table_of([5000, 700], 20, 3), 62).draw(rng())
    assert np.mean(np.isin(starts, table_of([5000, 700], 20).sentence_starts)) > 0.95
    table = table_of([5001, 702], 9999, 3)  # no sentence in reach
    for seed in range(3):
        starts, _ = Windows(table, 62).draw(rng(seed))
        assert np.mean(table.word_starts[starts]) > 0.95
        crops, _ = Windows(table, 62, short_rate=0.5).draw(rng(seed))
        assert np.mean(table.word_starts[crops]) > 0.95


@pytest.mark.parametrize("sizes, capacity", [([200], 62), ([65], 62), ([1000], 62), ([30], 20)])
def test_borders_move_from_epoch_to_epoch(sizes, capacity):
    windows = Windows(table_of(sizes, 1), capacity)
    drawn = [windows.draw(rng(seed)) for seed in range(400)]
    assert len({tuple(starts) for starts, _ in drawn}) > min(sizes[0] - capacity, 300) // 4
    begins = np.unique(np.concatenate([starts for starts, _ in drawn]))
    if sizes[0] > 3 * capacity:  # wherever in the document, a window has begun there
        assert len(begins) > 0.9 * (sizes[0] - capacity)
    gaps = np.diff([0, *begins, sizes[0]])
    assert gaps.max() <= capacity  # no border is there in all epochs but the document's own


def test_short_windows():
    windows = Windows(table_of([100, 40, 700]), 50, short_rate=0.4)
    base = Windows(table_of([100, 40, 700]), 50)
    lengths, seen = [], np.zeros(840, bool)
    for seed in range(300):
        starts, short = windows.draw(rng(seed))
        whole_starts, whole = base.draw(rng(seed))
        assert np.all(starts >= whole_starts) and np.all(starts + short <= whole_starts + whole) and np.all(short >= 1)
        lengths.append(short[whole == 50])
        for start, length in zip(starts, short, strict=True):
            seen[start : start + length] = True
    lengths = np.concatenate(lengths)
    # A target drawn from 2 to 50 is below 50 with probability 48 / 49.
    assert within(np.sum(lengths < 50), len(lengths), 0.4 * 48 / 49)
    assert abs(lengths[lengths < 50].mean() - 25.5) < 1.5 and lengths.min() == 2
    assert seen.all()
