"""The enhanced decoder's mask: who must and who must not be seen, and by what chance the others are."""

import keras
import numpy as np
import pytest
from keras import ops

from simretro.layers import DecoderMask, TransformerBlock

pytestmark = pytest.mark.backends

PADDING_MASK = np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]], "bool")  # [CLS] a b c d [SEP] [PAD] ...
TARGET_MASK = np.array([[0, 1, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]], "bool")
WORD_IDS = np.array([[-1, 0, 0, 1, 2, -1, -1, -1], [-1, 0, -1, -1, -1, -1, -1, -1]], "int32")
DRAWS = [None, 3]  # pool sizes


def rows_of(lengths, length):
    """(target_mask, padding_mask) of rows `[CLS] ... [SEP]` of these lengths."""
    lengths, columns = np.array(lengths)[:, None], np.arange(length)[None]
    return (columns > 0) & (columns < lengths - 1), columns < lengths


def words_of(target_mask, sizes):
    """Word ids: words of `sizes` tokens, again and again, over each row's ordinary tokens."""
    numbers = np.repeat(np.arange(target_mask.size), np.resize(sizes, target_mask.size))
    place = np.maximum(np.cumsum(target_mask, axis=1) - 1, 0)
    return np.where(target_mask, numbers[place], -1).astype("int32")


def draw(layer, *inputs):
    """What a call gives, as bool (B, L, L)."""
    seen = layer(*map(ops.convert_to_tensor, inputs))
    assert keras.backend.standardize_dtype(seen.dtype) == "bool" and len(seen.shape) == 4 and seen.shape[1] == 1
    return ops.convert_to_numpy(seen)[:, 0]


def check_certainties(seen, target_mask, padding_mask):
    """What does not depend on the draw."""
    length = target_mask.shape[1]
    assert seen.shape == (len(target_mask), length, length)
    assert not seen[:, np.arange(length), np.arange(length)].any(), "a token sees itself"
    assert not seen.transpose(0, 2, 1)[~padding_mask].any(), "padding is seen"
    others = ~np.eye(length, dtype=bool)[None]
    special = padding_mask & ~target_mask
    assert (seen | ~(others & special[:, None])).all(), "a special token is hidden from another row"


def standard_scores(hits, trials, rate):
    return (hits - trials * rate) / np.sqrt(trials * rate * (1 - rate))


# What is certain
@pytest.mark.parametrize("pool_size", DRAWS)
@pytest.mark.parametrize("mask_rate", [0.0, 0.5, 0.9])
def test_who_is_always_and_who_never_seen(mask_rate, pool_size):
    layer = DecoderMask(mask_rate, pool_size, seed=0)
    for _ in range(10):
        seen = draw(layer, TARGET_MASK, PADDING_MASK, WORD_IDS)
        check_certainties(seen, TARGET_MASK, PADDING_MASK)
        assert seen[:, 1:, 0].all() and not seen[:, 0, 0].any(), "the sentence vector is for all rows but its own"


@pytest.mark.parametrize("pool_size", DRAWS)
def test_without_masking_each_sees_all_others(pool_size):
    seen = draw(DecoderMask(0.0, pool_size), TARGET_MASK, PADDING_MASK, WORD_IDS)
    np.testing.assert_array_equal(seen, PADDING_MASK[:, None] & ~np.eye(8, dtype=bool))


def test_padding_rows_are_harmless():
    """Rows that may see nothing at all go through a block in every precision; a longer row changes no token's state."""
    block = TransformerBlock(2, 16, dropout_rate=0.0, attention_dropout_rate=0.0)
    x = np.random.default_rng(0).standard_normal((2, 8, 8)).astype("float32")
    seen = draw(DecoderMask(0.0), TARGET_MASK[:, :6], PADDING_MASK[:, :6])
    longer = draw(DecoderMask(0.0), TARGET_MASK, PADDING_MASK)
    np.testing.assert_array_equal(longer[:, :6, :6], seen)
    states = ops.convert_to_numpy(block(x, attention_mask=longer[:, None]))
    np.testing.assert_allclose(
        states[:, :6], ops.convert_to_numpy(block(x[:, :6], attention_mask=seen[:, None])), atol=1e-5
    )
    nothing = draw(DecoderMask(0.5), np.zeros((2, 8), bool), np.zeros((2, 8), bool))
    assert not nothing.any()
    for dtype in ("float32", "mixed_bfloat16", "mixed_float16"):
        half = TransformerBlock.from_config({**block.get_config(), "dtype": dtype})
        for mask in (nothing, longer):
            out = half(x, attention_mask=mask[:, None], training=True)
            assert np.isfinite(ops.convert_to_numpy(ops.cast(out, "float32"))).all(), dtype


# What is drawn
@pytest.mark.parametrize("mask_rate", [0.3, 0.5, 0.7])
def test_share_of_the_visible(mask_rate):
    """By row, by column and over all: binomial, within five standard deviations of 1 - mask_rate."""
    target_mask, padding_mask = rows_of([66, 66, 50, 66], 70)
    seen = draw(DecoderMask(mask_rate, seed=1), target_mask, padding_mask)
    check_certainties(seen, target_mask, padding_mask)
    free = padding_mask[:, :, None] & target_mask[:, None] & ~np.eye(70, dtype=bool)
    hits = seen & free
    for axis in (None, 2, 1):
        trials = free.sum(axis)
        used = trials > 0
        assert used.any()
        scores = standard_scores(hits.sum(axis)[used], trials[used], 1 - mask_rate)
        assert np.abs(scores).max() < 5, f"axis {axis}"


def test_rows_differ_and_are_independent():
    """Two rows agree in a column by chance alone, be they of one text or of two."""
    rate = 0.4
    target_mask, padding_mask = rows_of([130] * 3, 130)
    seen = draw(DecoderMask(rate, seed=2), target_mask, padding_mask)
    first, second, third = (seen[0, i, 4:129] for i in (1, 2, 3))
    for one, other in (
        (first, second),
        (second, third),
        (first, seen[1, 1, 4:129]),
        (seen[1, 2, 4:129], seen[2, 3, 4:129]),
    ):
        agreeing = (one == other).sum()
        assert abs(standard_scores(agreeing, len(one), rate**2 + (1 - rate) ** 2)) < 4
    assert len({row.tobytes() for text in seen for row in text[:, 1:129]}) > 380  # of 390


def test_seed_and_calls():
    inputs = rows_of([40, 30], 40)
    layers = [DecoderMask(seed=seed) for seed in (5, 5, 6, None, None)]
    first = [draw(layer, *inputs) for layer in layers]
    again = [draw(layer, *inputs) for layer in layers]
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(again[0], again[1])
    assert (first[0] != first[2]).any() and (first[3] != first[4]).any()
    for one, other in zip(first, again, strict=True):
        assert (one != other).mean() > 0.3, "each call draws anew"


def test_default_rate_is_a_half():
    target_mask, padding_mask = rows_of([66] * 4, 66)
    assert DecoderMask().mask_rate == 0.5
    seen = draw(DecoderMask(seed=0), target_mask, padding_mask)
    assert 0.47 < seen[:, 1:65, 1:65].mean() < 0.52


# Masks of whole words from a pool
def patterns(seen):
    """Different rows of one text (L, columns) once the diagonal, which hides one column of each row, is left out."""
    kinds = []
    for i, row in enumerate(seen):
        for k, kind in kinds:
            differ = np.flatnonzero(row != kind)
            if set(differ) <= {i, k}:
                break
        else:
            kinds.append((i, row))
    return len(kinds)


@pytest.mark.parametrize("pool_size", [1, 2, 5])
def test_pool_has_so_many_masks_at_most(pool_size):
    target_mask, padding_mask = rows_of([64, 64, 40], 64)
    word_ids = words_of(target_mask, [2, 1, 3])
    layer = DecoderMask(0.5, pool_size, seed=3)
    for _ in range(3):
        seen = draw(layer, target_mask, padding_mask, word_ids)
        check_certainties(seen, target_mask, padding_mask)
        counts = [patterns(text[real]) for text, real in zip(seen, padding_mask, strict=True)]
        # 40 rows draw from 5 masks: that one of them is never drawn has probability 7e-4
        assert max(counts) <= pool_size and max(counts) == pool_size
        assert (seen[0] != seen[1]).mean() > 0.2, "each text has its own masks"


@pytest.mark.parametrize("pool_size", [1, 4, 256])
def test_pool_masks_whole_words(pool_size):
    target_mask, padding_mask = rows_of([50, 33], 50)
    word_ids = words_of(target_mask, [1, 3, 2])
    seen = draw(DecoderMask(0.5, pool_size, seed=4), target_mask, padding_mask, word_ids)
    check_certainties(seen, target_mask, padding_mask)
    for text, words in zip(seen, word_ids, strict=True):
        for word in range(words.max() + 1):
            columns = np.flatnonzero(words == word)
            for i, row in enumerate(text):
                assert len(set(row[columns[columns != i]])) <= 1, f"row {i} sees a part of word {word}"


@pytest.mark.parametrize("mask_rate", [0.3, 0.6])
def test_pool_has_the_share_of_the_visible(mask_rate):
    target_mask, padding_mask = rows_of([42] * 64, 42)
    word_ids = words_of(target_mask, [2])
    seen = draw(DecoderMask(mask_rate, 4, seed=5), target_mask, padding_mask, word_ids)
    free = target_mask[:, None] & ~np.eye(42, dtype=bool)
    share = (seen & free).sum() / np.broadcast_to(free, seen.shape).sum()
    assert share == pytest.approx(1 - mask_rate, abs=0.04)  # 64 texts, 4 masks each, 20 words
    columns = (seen & free).sum((0, 1)) / free.sum((0, 1)).clip(1)
    assert np.abs(columns[1:41] - (1 - mask_rate)).max() < 0.2, "words at some places are masked more often"


def test_pool_is_reproducible_and_drawn_anew():
    target_mask, padding_mask = rows_of([40, 30], 40)
    inputs = target_mask, padding_mask, words_of(target_mask, [2, 1])
    one, other = (DecoderMask(0.5, 8, seed=7) for _ in range(2))
    first = draw(one, *inputs)
    np.testing.assert_array_equal(first, draw(other, *inputs))
    assert (first != draw(one, *inputs)).any()


# In a model, and what is refused
@pytest.mark.parametrize("pool_size", DRAWS)
def test_functional_model_after_a_round_trip(pool_size, tmp_path):
    inputs = [keras.Input((None,), dtype=dtype) for dtype in ("bool", "bool", "int32")]
    output = DecoderMask(0.25, pool_size, seed=11)(*inputs)
    assert output.dtype == "bool" and len(output.shape) == 4
    keras.Model(inputs, output).save(tmp_path / "mask.keras")
    loaded = keras.saving.load_model(tmp_path / "mask.keras")
    (layer,) = [layer for layer in loaded.layers if isinstance(layer, DecoderMask)]
    config = layer.get_config()
    assert (config["mask_rate"], config["pool_size"], config["seed"]) == (0.25, pool_size, 11)
    target_mask, padding_mask = rows_of([60, 41], 64)
    word_ids = words_of(target_mask, [2])
    outputs = [draw(lambda *x: loaded(list(x)), target_mask, padding_mask, word_ids) for _ in range(2)]
    for seen in outputs:
        check_certainties(seen, target_mask, padding_mask)
        assert 0.55 < seen[0, 1:59, 1:59].mean() < 0.95
    assert (outputs[0] != outputs[1]).any()


def test_a_compiled_function_draws_anew_in_each_call():
    """A draw that happens while a graph is traced would be the same for ever."""
    inputs = [keras.Input((None,), dtype="bool") for _ in range(2)]
    model = keras.Model(inputs, ops.cast(DecoderMask(seed=0)(*inputs), "float32"))
    target_mask, padding_mask = rows_of([40] * 8, 40)
    seen = model.predict([target_mask, padding_mask], batch_size=4, verbose=0)
    assert (seen[:4] != seen[4:]).any()


@pytest.mark.parametrize("mask_rate", [-0.1, 1.5, float("nan")])
def test_rate_out_of_range(mask_rate):
    with pytest.raises(ValueError, match=f"`mask_rate`.*{mask_rate}"):
        DecoderMask(mask_rate)


@pytest.mark.parametrize("pool_size", [0, -2])
def test_pool_size_out_of_range(pool_size):
    with pytest.raises(ValueError, match=f"`pool_size`.*{pool_size}"):
        DecoderMask(pool_size=pool_size)


def test_pool_needs_words():
    with pytest.raises(ValueError, match="`word_ids`"):
        DecoderMask(pool_size=4)(TARGET_MASK, PADDING_MASK)


def test_shapes_are_named():
    with pytest.raises(ValueError, match=r"`target_mask`.*\(8,\)"):
        DecoderMask()(TARGET_MASK[0], PADDING_MASK)
