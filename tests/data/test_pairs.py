"""The promises of `SimilarPairs`: who is in a batch together, what the arrays hold, and that it can be repeated."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.data import Group, SimilarPairs, conflicts
from simretro.data.plan import batch_sizes
from tests.data.toy import ToyTokenizer, texts_of

TOKENIZER = ToyTokenizer(size=1000)


def group_of(number, sizes):
    """A group of texts of so many tokens that no other group has."""
    return [" ".join([f"w{number}", f"w{i}"] + ["w0"] * (size - 2)) for i, size in enumerate(sizes)]


def many_groups(n, seed=0, largest=30, members=5):
    rng = np.random.default_rng(seed)
    return [group_of(g, rng.integers(2, largest, rng.integers(2, members))) for g in range(n)]


def ids_of(groups):
    """The groups as sets of tuples of ids."""
    return [{tuple(ids) for ids in TOKENIZER.encode_ragged(group)} for group in groups]


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimilarPairs(*args, **kwargs)


def check_batch(batch, groups, multiple=8, maxlen=64):
    """Asserts what is promised of a batch; returns its pairs."""
    token_ids, segment_ids = batch["token_ids"], batch["segment_ids"]
    positions, targets = batch["target_positions"], batch["target_ids"]
    assert all(array.dtype == np.int32 and array.shape[1] % multiple == 0 for array in batch.values())
    assert len({len(array) for array in batch.values()}) == 1 and len(token_ids) % 2 == 0
    rows = texts_of(batch, TOKENIZER)
    for row, (a, b) in enumerate(rows):
        assert a and b and len(a) <= maxlen - 2 and len(b) <= maxlen - 2
        expected = [2, *a, 3, *b, 3]
        padding = token_ids.shape[1] - len(expected)
        assert token_ids[row].tolist() == expected + [0] * padding
        assert segment_ids[row].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * padding
        real = targets[row] >= 0
        assert targets[row][real].tolist() == [*b, 3]
        np.testing.assert_array_equal(token_ids[row][positions[row][real] + 1], targets[row][real])
        assert np.all(np.diff(positions[row][real]) == 1) and np.all(positions[row][~real] == 0)
        assert np.all(targets[row][~real] == -1)
    pairs = rows[::2]
    assert rows[1::2] == [(b, a) for a, b in pairs]
    assert all(a != b and any({a, b} <= group for group in groups) for a, b in pairs)
    return pairs


def related(pair, other, groups):
    """Whether a text of each pair stands in one and the same group."""
    return any(not group.isdisjoint(pair) and not group.isdisjoint(other) for group in groups)


def check_no_false_negatives(pairs, groups):
    for i, pair in enumerate(pairs):
        for other in pairs[:i]:
            assert not related(pair, other, groups)


def test_a_batch_by_hand():
    data = SimilarPairs([["w1 w2", "w3"], ["w4", "w5 w6 w7"]], TOKENIZER, length_multiple=1)
    batch = data[0]
    of = TOKENIZER.vocab
    w = [of[f"w{i}"] for i in range(8)]
    by_source = {tuple(row[:3]): i for i, row in enumerate(batch["token_ids"].tolist())}
    row = by_source[2, w[3], 3]
    assert batch["token_ids"][row].tolist() == [2, w[3], 3, w[1], w[2], 3, 0]
    assert batch["segment_ids"][row].tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert batch["target_positions"][row].tolist() == [2, 3, 4, 0]
    assert batch["target_ids"][row].tolist() == [w[1], w[2], 3, -1]
    assert batch["token_ids"][row ^ 1].tolist() == [2, w[1], w[2], 3, w[3], 3, 0]  # the partner is beside it
    assert set(batch) == {"token_ids", "segment_ids", "target_positions", "target_ids"}


@given(
    sizes=st.lists(st.lists(st.integers(2, 12), min_size=2, max_size=5), min_size=2, max_size=25),
    pairs_per_batch=st.integers(2, 8),
    drop_remainder=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=60)
def test_every_group_once_an_epoch(sizes, pairs_per_batch, drop_remainder, seed):
    groups = [group_of(number, lengths) for number, lengths in enumerate(sizes)]
    if drop_remainder and len(groups) < pairs_per_batch:
        return
    data = SimilarPairs(groups, TOKENIZER, pairs_per_batch, seed=seed, drop_remainder=drop_remainder)
    ids = ids_of(groups)
    for epoch in range(3):
        batches = [check_batch(data.batch(epoch, i), ids) for i in range(len(data))]
        numbers = [next(g for g, group in enumerate(ids) if pair[0] in group) for pairs in batches for pair in pairs]
        assert len(set(numbers)) == len(numbers)
        full, rest = divmod(len(groups), pairs_per_batch)
        if drop_remainder:
            assert [len(pairs) for pairs in batches] == [pairs_per_batch] * full
        else:
            assert sorted(numbers) == list(range(len(groups)))
            assert len(data) == full + (rest > (1 if full else 0))
            assert all(2 <= len(pairs) <= pairs_per_batch + (rest == 1) for pairs in batches)
            assert all(len(pairs) == pairs_per_batch for pairs in batches[:-1])


# Texts from a small pool, so that they stand in several groups; upper case is another text with the same ids.
TEXTS = st.integers(0, 25).map(lambda i: f"w{i}") | st.integers(0, 25).map(lambda i: f"W{i}")
SHARING = st.lists(st.lists(TEXTS, min_size=2, max_size=4), min_size=2, max_size=20)


@given(SHARING, st.integers(2, 6), st.integers(1, 3), st.booleans())
@settings(max_examples=100)
def test_no_false_negatives_where_groups_share_texts(groups, pairs_per_batch, pairs_per_group, drop_remainder):
    ids = [group for group in ids_of(groups) if len(group) > 1]
    usable = sum(min(pairs_per_group, len(group) // 2) for group in ids)
    if usable < (pairs_per_batch if drop_remainder else 2):
        return
    settings = {"pairs_per_group": pairs_per_group, "drop_remainder": drop_remainder, "seed": 1}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = SimilarPairs(groups, TOKENIZER, pairs_per_batch, **settings)
            epochs = [[check_batch(data.batch(epoch, i), ids) for i in range(len(data))] for epoch in range(2)]
    except ValueError as error:  # no way to fill all batches with such groups
        assert drop_remainder and "too many groups have texts in common" in str(error)
        return
    for epoch, batches in enumerate(epochs):
        for pairs in batches:
            check_no_false_negatives(pairs, ids)
        if drop_remainder:
            assert len({len(pairs) for pairs in batches}) == 1
        else:
            check_left_out(data, epoch, batches, ids)


def check_left_out(data, epoch, batches, groups):
    """A pair is missing only if it would have been a false negative in each batch."""
    assert sum(map(len, batches)) <= data.num_pairs
    plan = data._plan(epoch)
    own = np.searchsorted(data.table.group_starts, plan.first, side="right") - 1
    counts = np.bincount(own, minlength=data.table.num_groups)
    for group in np.flatnonzero(counts == 0):
        start, end = data.table.group_starts[group : group + 2]
        members = [
            tuple(data.table.token_ids[slice(*data.table.text_starts[t : t + 2])].tolist()) for t in range(start, end)
        ]
        for pairs in batches:
            assert any(related(members, pair, groups) for pair in pairs)


def test_four_groups_and_batches_of_eight_pairs():
    groups = [group_of(g, [3, 4, 5, 6]) for g in range(4)]
    with pytest.warns(UserWarning, match="batches have about 4 pairs instead of 8"):
        data = SimilarPairs(groups, TOKENIZER, pairs_per_batch=8, pairs_per_group=2)
    assert data.num_pairs == 8 and len(data) == 2
    for epoch in range(20):
        batches = [check_batch(data.batch(epoch, i), ids_of(groups)) for i in range(2)]
        assert [len(pairs) for pairs in batches] == [4, 4]
        for pairs in batches:
            check_no_false_negatives(pairs, ids_of(groups))
    # The reference's endless reader fills batches with one group over and over.
    random = SimilarPairs(groups, TOKENIZER, pairs_per_batch=8, pairs_per_group=2, batching="random")
    ids = ids_of(groups)
    pairs = check_batch(random[0], ids)
    assert len(pairs) == 8 and any(related(pairs[i], pairs[j], ids) for i in range(8) for j in range(i))


@given(st.integers(2, 5), st.integers(2, 9), st.integers(2, 12), st.integers(0, 5))
@settings(max_examples=40)
def test_several_pairs_of_a_group_are_disjoint_and_apart(pairs_per_group, pairs_per_batch, num_groups, seed):
    rng = np.random.default_rng(seed)
    groups = [group_of(g, [3] * rng.integers(2, 12)) for g in range(num_groups)]
    data = quiet(groups, TOKENIZER, pairs_per_batch, pairs_per_group=pairs_per_group, seed=seed)
    ids = ids_of(groups)
    batches = [check_batch(data.batch(1, i), ids) for i in range(len(data))]
    drawn = [text for pairs in batches for pair in pairs for text in pair]
    assert len(drawn) == len(set(drawn))
    if data.num_pairs >= 2 * data._planner.min_batches:  # else there would be batches without negatives
        assert len(drawn) == 2 * data.num_pairs
    assert data.num_pairs == sum(min(pairs_per_group, len(group) // 2) for group in groups)
    for pairs in batches:
        check_no_false_negatives(pairs, ids)
        assert len(pairs) <= pairs_per_batch + 1


def test_pairs_of_a_group_are_drawn_uniformly():
    groups = [group_of(0, [3, 3, 3, 3]), group_of(1, [3, 3])]
    data = SimilarPairs(groups, TOKENIZER)
    counts = {}
    for epoch in range(1200):
        plan = data._plan(epoch)
        where = int(np.flatnonzero(plan.first < 4)[0])
        pair = int(plan.first[where]), int(plan.second[where])
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 12  # each text is anchor and partner of each other one
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 31.3  # chi-square, 11 degrees of freedom, p = 0.001


def test_texts_equal_as_ids_count_once():
    groups = [["w1 w2", "W1 w2", "w3"], ["w4", " w4 ", "W4"], ["w5", "w6", "nothing"], ["nothing", "w9"]]
    with pytest.warns(UserWarning) as caught:
        data = SimilarPairs(
            [Group(tuple(texts), "file.jsonl", line) for line, texts in enumerate(groups, 1)], TOKENIZER
        )
    messages = sorted(str(warning.message) for warning in caught)
    assert messages[0].startswith("2 groups were left out, the first at file.jsonl, line 2")
    assert messages[1].startswith("2 texts were left out")
    assert all(warning.filename == __file__ for warning in caught)
    assert data.num_pairs == 2 and data.table.num_texts == 4


def test_groups_that_cannot_be_used():
    with pytest.raises(ValueError, match=r"no group has two texts.*2 were read, the first at group 0"):
        SimilarPairs([["w1", "W1"], ["nothing", "w2"]], TOKENIZER)
    with pytest.raises(ValueError, match="at least two groups"):
        SimilarPairs([["w1", "w2"]], TOKENIZER)
    with pytest.raises(ValueError, match="`pairs_per_batch` must be at most the number of pairs, 2, .* received 3"):
        SimilarPairs([["w1", "w2"], ["w3", "w4"]], TOKENIZER, 3, drop_remainder=True)


@pytest.mark.filterwarnings("ignore:batches have about")
def test_text_that_all_groups_have():
    groups = [["w0", f"w{i}"] for i in range(1, 9)]  # no two pairs may meet
    with pytest.warns(UserWarning, match="of 8 pairs are left out of epoch 0"):
        data = SimilarPairs(groups, TOKENIZER, pairs_per_batch=4)
    assert len(data) == 4 and all(len(batch["token_ids"]) == 2 for batch in data)
    with pytest.raises(ValueError, match="no batches of 2 pairs.*too many groups have texts in common"):
        quiet(groups, TOKENIZER, pairs_per_batch=4, drop_remainder=True)


def test_text_of_many_groups_makes_batches_smaller_and_leaves_nothing_out():
    groups = [["w0", f"w{i}"] for i in range(1, 5)] + [[f"w{i}", f"w{i + 1}"] for i in range(20, 64, 2)]
    with pytest.warns(UserWarning, match="batches have about 6 pairs instead of 16: up to 4 pairs"):
        data = SimilarPairs(groups, TOKENIZER, pairs_per_batch=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(30):
            batches = [check_batch(data.batch(epoch, i), ids_of(groups)) for i in range(len(data))]
            assert sorted(map(len, batches)) == [6, 6, 7, 7]
            for pairs in batches:
                check_no_false_negatives(pairs, ids_of(groups))


def test_text_of_far_too_many_groups_is_only_kept_from_itself(monkeypatch):
    monkeypatch.setattr(conflicts, "HUB_GROUPS", 5)
    groups = [["w0", f"w{i}", f"w{i + 1}"] for i in range(1, 41, 2)]
    data = quiet(groups, TOKENIZER, pairs_per_batch=4)
    together = left_out = 0
    for epoch in range(20):
        batches = [check_batch(data.batch(epoch, i), ids_of(groups)) for i in range(len(data))]
        left_out += 20 - sum(map(len, batches))
        for pairs in batches:
            texts = [text for pair in pairs for text in pair]
            assert len(texts) == len(set(texts))
            together += len(pairs) > 1  # although all groups have a text in common
    assert len(data) == 10 and together > 100 and left_out < 100


def test_full_batches_where_pairs_are_dropped():
    """A pair that no batch can take is replaced, for a batch that is split over devices must be full."""
    groups = [["w0", f"w{i}"] for i in range(1, 7)] + [[f"w{i}", f"w{i + 1}"] for i in range(20, 40, 2)]
    data = quiet(groups, TOKENIZER, pairs_per_batch=4, drop_remainder=True)
    for epoch in range(20):
        batches = [check_batch(data.batch(epoch, i), ids_of(groups)) for i in range(len(data))]
        assert len({len(pairs) for pairs in batches}) == 1
        for pairs in batches:
            check_no_false_negatives(pairs, ids_of(groups))


@given(st.integers(1, 200), st.integers(2, 20), st.integers(1, 30), st.booleans())
def test_batch_sizes(num_pairs, pairs_per_batch, min_batches, drop_remainder):
    sizes = batch_sizes(num_pairs, pairs_per_batch, min_batches, drop_remainder)
    if drop_remainder:
        assert len(set(sizes)) <= 1 and 0 <= num_pairs - sum(sizes) < max(pairs_per_batch, len(sizes))
    else:
        assert sum(sizes) == num_pairs
        assert num_pairs == 1 or min(sizes) >= 2
    assert max(sizes, default=0) <= pairs_per_batch + 1
    if 2 * min_batches <= num_pairs and sizes:
        assert len(sizes) >= min(min_batches, num_pairs // 2)


def test_batches_are_sorted_by_length_and_shuffled():
    data = SimilarPairs(many_groups(600), TOKENIZER, pairs_per_batch=8)
    lengths = [(batch["token_ids"] != 0).sum(1) for batch in data]
    filled = sum(map(np.sum, lengths)) / sum(batch["token_ids"].size for batch in list(data)[2:])
    assert filled > 0.85
    unsorted = SimilarPairs(many_groups(600), TOKENIZER, pairs_per_batch=8, window_batches=1)
    assert np.mean([b["token_ids"].shape[1] for b in unsorted]) > 1.2 * np.mean([b["token_ids"].shape[1] for b in data])
    widths = [batch["token_ids"].shape[1] for batch in list(data)[2:]]
    steps = np.diff(widths)
    assert np.any(steps > 0) and np.any(steps < 0) and abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.4


def test_batches_are_a_function_of_seed_epoch_and_index():
    groups = many_groups(50, members=8)
    first = SimilarPairs(groups, TOKENIZER, 8, seed=5, mlm_rate=0.2)
    second = SimilarPairs(groups, TOKENIZER, 8, seed=5, mlm_rate=0.2)
    backwards = {(e, i): second.batch(e, i) for e in (2, 0, 1) for i in reversed(range(len(second)))}
    for (epoch, index), batch in backwards.items():
        for name, array in first.batch(epoch, index).items():
            np.testing.assert_array_equal(array, batch[name])
    other = SimilarPairs(groups, TOKENIZER, 8, seed=6, mlm_rate=0.2)
    sources = [[texts_of(data.batch(epoch, 3), TOKENIZER) for epoch in (0, 1)] for data in (first, other)]
    assert sources[0][0] != sources[0][1] and sources[0][0] != sources[1][0]


@given(st.integers(0, 3), st.integers(0, 9))
@settings(max_examples=20)
def test_resumed_pass_is_the_tail_of_the_whole_one(epoch, step):
    data = SimilarPairs(many_groups(70), TOKENIZER, 8, mlm_rate=0.2)
    assert len(data) == 9
    whole = [data.batch(epoch, i) for i in range(9)] or None
    other = SimilarPairs(many_groups(70), TOKENIZER, 8, mlm_rate=0.2)
    other.resume(epoch, step)
    assert other.state == ((epoch, step) if step < 9 else (epoch + 1, 0))
    tail = list(other)
    if step == 9:
        whole, step = [data.batch(epoch + 1, i) for i in range(9)], 0
    assert len(tail) == 9 - step
    for batch, expected in zip(tail, whole[step:], strict=True):
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])


def test_position_out_of_range():
    data = SimilarPairs(many_groups(20), TOKENIZER, 8)
    for epoch, step in ((-1, 0), (0, -1), (0, 4)):
        with pytest.raises(ValueError, match=rf"`step` in \[0, 3\].*received epoch {epoch}, step {step}"):
            data.resume(epoch, step)
    with pytest.raises(IndexError, match=r"\[0, 3\); received 3"):
        data[3]


def test_long_texts_are_cut_with_one_warning():
    long = " ".join(["w1"] * 100)
    groups = [[long, "w2 w3"], [f"w4 {long}", "w5"], ["w6", "w7"]]
    with pytest.warns(UserWarning) as caught:
        data = SimilarPairs(groups, TOKENIZER, maxlen=32)
    assert [str(w.message)[:31] for w in caught] == ["2 texts had more than 30 tokens"]
    batch = data[0]
    assert batch["token_ids"].shape[1] == 40
    for a, b in texts_of(batch, TOKENIZER):
        assert len(a) + 2 <= 32 and len(b) + 1 <= 31
    ends = (batch["segment_ids"].cumsum(1) == batch["segment_ids"].sum(1, keepdims=True)).argmax(1)
    assert np.all(batch["token_ids"][np.arange(6), ends] == 3)


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"pairs_per_batch": 1}, "`pairs_per_batch` must be an int of at least 2.*negatives.*received 1"),
        ({"pairs_per_batch": 8.0}, "`pairs_per_batch`.*received 8.0"),
        ({"maxlen": 2}, "`maxlen`.*at least 3.*received 2"),
        ({"seed": -1}, "`seed`.*received -1"),
        ({"seed": None}, "`seed`.*received None"),
        ({"pairs_per_group": 0}, "`pairs_per_group`"),
        ({"length_multiple": 0}, "`length_multiple`"),
        ({"window_batches": True}, "`window_batches`.*received True"),
        ({"batching": "sorted"}, '`batching` must be "grouped" or "random"; received \'sorted\''),
        ({"mlm_rate": 1.0}, r"`mlm_rate` must be in \[0, 1\); received 1.0"),
        ({"corruption_rate": -0.1}, "`corruption_rate`.*received -0.1"),
        ({"corruption_rate": 0.1, "corrupted_rows": 0.0}, "`corrupted_rows`.*received 0.0"),
        ({"mlm_rate": 0.1, "corruption_rate": 0.1}, "exclude each other"),
    ],
)
def test_bad_setting_is_named(setting, message):
    with pytest.raises(ValueError, match=message):
        SimilarPairs(many_groups(5), TOKENIZER, **setting)


def test_missing_tokens_are_named():
    tokenizer = ToyTokenizer()
    tokenizer.mask_token_id = None
    SimilarPairs(many_groups(5), tokenizer)
    with pytest.raises(ValueError, match=r"`mask_token_id`.*startswith"):
        SimilarPairs(many_groups(5), tokenizer, mlm_rate=0.1)
    tokenizer.sep_token_id = None
    with pytest.raises(ValueError, match="`sep_token_id`"):
        SimilarPairs(many_groups(5), tokenizer)


def test_reads_a_file(tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_text('{"text": "w1", "synonyms": ["w2"]}\n{"text": "w3", "synonyms": ["w4"]}\n{"text": ""', "utf-8")
    with pytest.raises(ValueError, match=r"groups.jsonl, line 3"):
        SimilarPairs(path, TOKENIZER)
    path.write_text('{"text": "w1", "synonyms": ["w2"]}\n{"text": "w3", "synonyms": ["w4"]}\n', "utf-8")
    assert len(SimilarPairs(str(path), TOKENIZER)[0]["token_ids"]) == 4


def test_pad_id_need_not_be_zero():
    tokenizer = ToyTokenizer()
    tokenizer.pad_token_id, tokenizer.unk_token_id = 1, 0
    batch = SimilarPairs([["w1", "w2 w3"], ["w4", "w5"]], tokenizer)[0]
    assert set(batch["token_ids"][:, -1]) == {1} and not np.any(batch["segment_ids"][:, -1])


@pytest.mark.filterwarnings("ignore:.*are left out of epoch")
def test_batches_of_one_pair_are_told():
    """Three of the four groups share a text, so one of two batches gets a single pair: no negatives."""
    groups = [["w1", "w2", "w0"], ["w3", "w4", "w0"], ["w5", "w6", "w0"], ["w7", "w8"]]
    with pytest.warns(UserWarning, match="of 2 batches of epoch 0 have one pair"):
        data = SimilarPairs(groups, TOKENIZER, 2)
    assert 1 in np.diff(data._plan(0).starts)


def test_facts_tell_data_sets_apart():
    def facts(groups=(("w1", "w2"), ("w3", "w4"), ("w5", "w6")), tokenizer=TOKENIZER, **settings):
        return SimilarPairs(groups, tokenizer, 2, **settings).facts()

    same = facts()
    assert json.loads(json.dumps(same)) == same == facts(fixed=True)
    assert same["groups"] == 3 and same["texts"] == same["tokens"] == 6
    for others in (
        {"seed": 1}, {"mlm_rate": 0.2}, {"tokenizer": ToyTokenizer(["x"])},
        {"groups": [["w1", "w2"], ["w3", "w4 w5"], ["w5", "w6"]]},
    ):  # fmt: skip
        assert facts(**others) != same
