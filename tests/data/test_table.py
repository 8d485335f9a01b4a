"""Groups as flat arrays: what is kept, which texts are shared, and that working in parts changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.data import SimilarPairs, conflicts, table
from simretro.data.groups import as_groups
from simretro.data.table import build_table, find_shared, ranges
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(size=50)


def texts_of_groups(built):
    """The table as lists of groups of tuples of ids."""
    texts = [
        tuple(built.token_ids[a:b].tolist()) for a, b in zip(built.text_starts, built.text_starts[1:], strict=False)
    ]
    return [texts[a:b] for a, b in zip(built.group_starts, built.group_starts[1:], strict=False)]


def test_ranges():
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(np.array([], "int64"), np.array([], "int64")).tolist() == []


def test_table_by_hand():
    built = build_table(as_groups([["w1 w2", "w3", "W3"], ["w4", "nothing"], ["w3", "w5 w5 w5"]]), TOKENIZER, 10)
    v = TOKENIZER.vocab
    assert texts_of_groups(built) == [[(v["w1"], v["w2"]), (v["w3"],)], [(v["w3"],), (v["w5"],) * 3]]
    assert built.num_groups == 2 and built.num_texts == 4 and built.token_ids.dtype == np.int32
    assert built.shared.numbers_of(np.arange(4)).tolist() == [-1, 0, 0, -1]
    assert built.shared.groups.tolist() == [0, 1]
    assert [note[:25] for note in built.notes] == ["1 groups were left out, t", "1 texts were left out: th"]


GROUPS = st.lists(
    st.lists(st.lists(st.sampled_from(["w1", "w2", "W2", "w3"]), max_size=3).map(" ".join), min_size=2, max_size=5),
    min_size=1,
    max_size=12,
)


def by_hand(groups):
    """The table's groups, text by text."""
    kept = []
    for group in groups:
        ids = [tuple(tokens) for tokens in TOKENIZER.encode_ragged(group) if tokens]
        distinct = list(dict.fromkeys(ids))
        if len(distinct) > 1:
            kept.append(distinct)
    return kept


@given(GROUPS, st.integers(1, 4))
def test_table_is_what_texts_one_by_one_give(groups, groups_at_a_time):
    kept = by_hand(groups)
    at_a_time = table._GROUPS_AT_A_TIME
    table._GROUPS_AT_A_TIME = groups_at_a_time
    try:
        if not kept:
            with pytest.raises(ValueError, match="no group has two texts"):
                build_table([table.Group(tuple(group), None, i) for i, group in enumerate(groups)], TOKENIZER, 10)
            return
        built = build_table([table.Group(tuple(group), None, i) for i, group in enumerate(groups)], TOKENIZER, 10)
    finally:
        table._GROUPS_AT_A_TIME = at_a_time
    assert texts_of_groups(built) == kept
    flat = [text for group in kept for text in group]
    numbers = built.shared.numbers_of(np.arange(len(flat)))
    for i, text in enumerate(flat):
        owners = [g for g, group in enumerate(kept) if text in group]
        if len(owners) == 1:
            assert numbers[i] == -1
        else:
            of_number = built.shared.groups[slice(*built.shared.starts[numbers[i] : numbers[i] + 2])]
            assert sorted(of_number.tolist()) == owners


@given(st.lists(st.integers(0, 30), min_size=2, max_size=60), st.integers(3, 20))
def test_shared_texts_are_found_part_by_part(hashes, at_a_time):
    hashes, starts = np.array(hashes, "uint64"), np.arange(len(hashes) + 1)
    whole, before = find_shared(hashes, starts), table._HASHES_AT_A_TIME
    table._HASHES_AT_A_TIME = at_a_time
    try:
        parts = find_shared(hashes, starts)
    finally:
        table._HASHES_AT_A_TIME = before
    np.testing.assert_array_equal(parts.texts, whole.texts)
    for shared in (whole, parts):
        for text, number in zip(shared.texts, shared.numbers, strict=True):
            equal = np.flatnonzero(hashes == hashes[text])
            assert len(equal) > 1
            assert sorted(shared.groups[shared.starts[number] : shared.starts[number + 1]]) == equal.tolist()
        assert len(shared.texts) == sum(np.sum(hashes == h) > 1 for h in hashes)


def test_different_texts_have_different_hashes():
    """Permutations, repetitions and ids that differ in one bit only."""
    texts = [[a, b, c] for a in range(0, 4096, 64) for b in (1, 2, 1 << 16) for c in (1, 2, 1 << 16)] + [
        [1],
        [1, 1],
        [1] * 4,
    ]
    counts = np.array([len(text) for text in texts])
    hashes = table._hash_texts(np.array(sum(texts, []), "int32"), counts)
    assert len(np.unique(hashes)) == len(texts)
    np.testing.assert_array_equal(
        table._hash_texts(np.array(sum(texts[::-1], []), "int32"), counts[::-1]), hashes[::-1]
    )


@pytest.mark.filterwarnings("ignore")
def test_rivals_are_found_part_by_part(monkeypatch):
    rng = np.random.default_rng(0)
    groups = [[f"w{i}" for i in rng.integers(0, 50, 3)] for _ in range(60)]
    whole = [SimilarPairs(groups, TOKENIZER, 5, pairs_per_group=2)._plan(epoch) for epoch in range(3)]
    monkeypatch.setattr(conflicts, "_ENTRIES_AT_A_TIME", 7)
    parts = [SimilarPairs(groups, TOKENIZER, 5, pairs_per_group=2)._plan(epoch) for epoch in range(3)]
    for a, b in zip(whole, parts, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
