"""Cutting of long texts, and the helpers with bert4keras' names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.data import sequence_padding, text_segmentate, truncate_sequences
from simretro.data.text import encode_within


class Characters:
    """A token for each character but blanks; counts its calls."""

    calls = 0

    def encode_ragged(self, texts):
        self.calls += 1
        return [[ord(c) for c in text if not c.isspace()] for text in texts]


def cut(text, limit):
    (ids,), (kept,), num_cut = encode_within([text], Characters(), limit)
    assert len(ids) <= limit
    assert num_cut == (len(Characters().encode_ragged([text])[0]) > limit)
    return "".join(map(chr, ids)), kept


def test_short_text_is_left_alone():
    assert cut("今天 天气很好。", 7) == ("今天天气很好。", "今天 天气很好。")


def test_text_without_separator_is_cut_in_the_middle():
    assert cut("买" * 100, 30)[0] == "买" * 30


@pytest.mark.parametrize(
    "text, limit, kept",
    [
        ("一" * 17 + "，" + "二" * 22, 30, "一" * 17),  # two clauses of 40 characters; the comma goes
        ("一" * 17 + "。" + "二" * 22, 30, "一" * 17 + "。"),  # a full stop stays
        (
            "一" * 8 + "。" + "二" * 9 + "，" + "三" * 30,
            30,
            "一" * 8 + "。" + "二" * 9,
        ),  # a sentence too short: the longest
        ("一" * 16 + "。" + "二" * 9 + "，" + "三" * 30, 30, "一" * 16 + "。"),  # half of it: the sentence
        ("一" * 5 + "，" + "二" * 40, 30, "一" * 5),  # a short clause is still better than half of one
        ("一" * 10 + "\n" + "二" * 8 + "。" + "三" * 30, 20, "一" * 10),  # a line counts before a sentence
        ("Is 3.14 pi? " + "yes " * 20, 9, "Is 3.14 pi?"),
        ("one two three four five", 10, "one two"),  # cut between words
        ("costs 1,000 or 2,000 in all", 9, "costs"),  # not between the digits
    ],
)
def test_text_is_cut_at_the_end_of_a_clause(text, limit, kept):
    assert cut(text, limit) == (kept.replace(" ", ""), kept)


def test_prefix_with_more_tokens_than_its_pieces_is_cut_again():
    class Joined(Characters):
        """A token more for each comma with something on both sides."""

        def encode_ragged(self, texts):
            return [
                ids + [0] * text.strip("，").count("，")
                for ids, text in zip(super().encode_ragged(texts), texts, strict=True)
            ]

    text = "一二，三四，五六，七八，九十"
    (ids,), (kept,), _ = encode_within([text], Joined(), 10)
    assert kept == "一二，三四，五六" and len(ids) == 10


def test_many_long_texts_need_few_calls():
    tokenizer = Characters()
    texts = ["一" * 17 + "，" + "二" * 22, "短", "买" * 100] * 50
    ids, _, num_cut = encode_within(texts, tokenizer, 30)
    assert num_cut == 100 and tokenizer.calls <= 4
    assert [len(tokens) for tokens in ids[:3]] == [17, 1, 30]


@given(st.text(alphabet="一a，。 \n1,.!", max_size=60), st.integers(1, 20))
def test_cut_keeps_a_beginning_within_the_limit(text, limit):
    ids, _ = cut(text, limit)
    whole = "".join(text.split())
    assert whole.startswith(ids)
    assert bool(ids) == bool(whole)
    if len(whole) <= limit:
        assert ids == whole


@pytest.mark.parametrize(
    "text, maxlen, seps, strips, segments",
    [
        ("abc", 5, "\n。，", None, ["abc"]),
        ("一二。三四。五六", 6, "。，", None, ["一二。三四。", "五六"]),
        ("一二，三四，五六。七", 5, "。，", "，", ["一二", "三四", "五六。", "七"]),
        ("一二三四五六七", 3, "。，", None, ["一二三四五六七"]),
        ("  一二。 ", 3, "。", None, ["一二。"]),
        ("一\n二三四五。六七八九", 5, "\n。", None, ["一", "二三四五。", "六七八九"]),
        ("", 5, "。", None, [""]),
    ],
)
def test_text_segmentate(text, maxlen, seps, strips, segments):
    assert text_segmentate(text, maxlen, seps, strips) == segments


def test_truncate_sequences_shortens_the_longest_in_place():
    first, second = [1, 2, 3, 4, 5, 6], [7, 8, 9]
    assert truncate_sequences(7, -2, first, second) == [[1, 2, 3, 6], [7, 8, 9]]
    assert first == [1, 2, 3, 6]
    assert truncate_sequences(2, [0, -1], [1, 2, 3], [4]) == [[3], [4]]
    assert truncate_sequences(9, -1, [1], []) == [[1], []]
    with pytest.raises(ValueError, match="`indices`"):
        truncate_sequences(1, [0], [1], [2])


def test_sequence_padding():
    padded = sequence_padding([[1, 2, 3], [4]])
    assert padded.dtype == np.int32
    np.testing.assert_array_equal(padded, [[1, 2, 3], [4, 0, 0]])
    np.testing.assert_array_equal(sequence_padding([[1, 2, 3], [4]], length=2, value=9, mode="pre"), [[2, 3], [9, 4]])
    assert sequence_padding([[1] * 9], multiple_of=8).shape == (1, 16)
    assert sequence_padding([]).shape == (0, 0) and sequence_padding([], length=4).shape == (0, 4)
    assert sequence_padding([[], [1]]).dtype == np.int32
    assert sequence_padding([[0.5], [1, 2]]).dtype == np.float64
    nested = sequence_padding([np.ones((1, 2, 3)), np.ones((2, 1, 3))], seq_dims=2, length=[2, 4])
    assert nested.shape == (2, 2, 4, 3) and nested.sum() == 12
    with pytest.raises(ValueError, match="`mode`"):
        sequence_padding([[1]], mode="left")
