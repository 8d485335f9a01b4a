"""Layers alone: truths written by hand, and every call style after a round trip through a file."""

import keras
import numpy as np
import pytest
from keras import ops

from simretro.layers import MLMHead, PaddingMask, TransformerBlock, TransformerEmbeddings, UniLMMask
from tests.reference.harness import value_and_gradients

pytestmark = pytest.mark.backends

SEGMENT_IDS = np.array([[0, 0, 0, 1, 1, 0]], "int32")  # [CLS] a [SEP] b [SEP] [PAD]
PADDING_MASK = np.array([[1, 1, 1, 1, 1, 0]], "bool")
FREE = "111000 111000 111000 111100 111110 111110"  # a row per query
CAUSAL = "100000 110000 111000 111100 111110 111110"


def reloaded(inputs, output, tmp_path):
    keras.Model(inputs, output).save(tmp_path / "layer.keras")
    return keras.saving.load_model(tmp_path / "layer.keras")


@pytest.mark.parametrize("causal_source, rows", [(False, FREE), (True, CAUSAL)])
def test_who_sees_whom(causal_source, rows, tmp_path):
    inputs = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="bool")
    seen = reloaded(inputs, UniLMMask(causal_source)(*inputs), tmp_path)([SEGMENT_IDS, PADDING_MASK])
    expected = [[[[mark == "1" for mark in row] for row in rows.split()]]]
    np.testing.assert_array_equal(ops.convert_to_numpy(seen), expected)


def test_unilm_mask_names_argument_and_shape():
    with pytest.raises(ValueError, match=r"`segment_ids`.*\(6,\)"):
        UniLMMask()(SEGMENT_IDS[0], PADDING_MASK)


def test_padding_mask_keeps_the_first_position(tmp_path):
    token_ids = keras.Input((None,), dtype="int32")
    model = reloaded(token_ids, PaddingMask(7)(token_ids), tmp_path)
    mask = ops.convert_to_numpy(model(np.array([[7, 7, 7], [1, 0, 7]], "int32")))
    np.testing.assert_array_equal(mask, [[True, False, False], [True, True, False]])


def test_mlm_head_scores_by_the_table(tmp_path):
    """Identity transform without activation: logits are the products with the rows of the table, plus bias."""
    head = MLMHead(3, 2, hidden_act="linear", layer_norm_eps=0.0)
    table = np.array([[1, 0], [0, 1], [2, 2]], "float32")
    head.build((None, 2), table.shape)
    head.dense.kernel.assign(np.eye(2))
    head.bias.assign([0.0, 0.5, 0.0])
    logits = head(np.array([[3.0, 1.0]], "float32"), table)  # normalised: [1, -1]
    np.testing.assert_allclose(ops.convert_to_numpy(logits), [[1.0, -0.5, 0.0]], atol=1e-6)
    half = MLMHead.from_config({**head.get_config(), "dtype": "mixed_bfloat16"})
    assert keras.backend.standardize_dtype(half(np.ones((1, 2), "float32"), table).dtype) == "float32"


def test_embeddings_add_up_and_clamp_segments():
    layer = TransformerEmbeddings(5, 4, max_position_embeddings=6, position_offset=2, type_vocab_size=1, dropout_rate=0)
    token_ids = np.array([[1, 3]], "int32")
    layer(token_ids)
    tables = [ops.convert_to_numpy(x.embeddings) for x in (layer.token, layer.position, layer.segment)]
    total = tables[0][token_ids] + tables[1][[2, 3]] + tables[2][0]
    expected = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-12)
    for segment_ids in (None, np.array([[0, 1]], "int32")):  # one row in the segment table: all take it
        np.testing.assert_allclose(ops.convert_to_numpy(layer(token_ids, segment_ids)), expected, atol=1e-5)
    shifted = layer(token_ids, positions=np.array([[1, 0]], "int32"))
    assert np.abs(ops.convert_to_numpy(shifted) - expected).max() > 1e-3


def make_block(**options):
    keras.utils.set_random_seed(1)
    options = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, **options}
    block = TransformerBlock(2, 16, **options)
    block.build((None, None, 8))
    for variable in block.trainable_variables:
        variable.assign(ops.convert_to_numpy(variable) * 10)
    return block


@pytest.mark.parametrize("rotary", [False, True])
def test_cache_and_context_give_what_one_pass_gives(rotary):
    block = make_block(rotary=rotary)
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("float32")
    causal = np.tril(np.ones((5, 5), bool))[None, None]
    whole = ops.convert_to_numpy(block(x, attention_mask=causal))
    cache = tuple(np.zeros((3, 2, 5, 4), "float32") for _ in range(2))
    cache = tuple(ops.convert_to_tensor(slots) for slots in cache)
    for slot in range(5):
        mask = np.arange(5)[None, None, None] <= slot
        positions = np.array([[slot]], "int32")
        out, cache = block(
            x[:, slot : slot + 1], attention_mask=mask, positions=positions, cache=cache, cache_index=slot
        )
        np.testing.assert_allclose(ops.convert_to_numpy(out)[:, 0], whole[:, slot], atol=1e-5)
    rows = np.array([[4, 1]] * 3, "int32")
    part = block(x[:, [4, 1]], attention_mask=causal[:, :, [4, 1]], positions=rows, context=x)
    np.testing.assert_allclose(ops.convert_to_numpy(part), whole[:, [4, 1]], atol=1e-5)


def test_dropout_path_equals_the_fused_one_at_rate_zero_and_drops_otherwise():
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype("float32")
    mask = np.array([[[[True, True, True, False]]]] * 2)
    plain = ops.convert_to_numpy(make_block()(x, attention_mask=mask))
    tiny = make_block(attention_dropout_rate=1e-9)
    np.testing.assert_allclose(ops.convert_to_numpy(tiny(x, attention_mask=mask, training=True)), plain, atol=1e-5)
    dropping = make_block(attention_dropout_rate=0.5)
    outputs = [ops.convert_to_numpy(dropping(x, attention_mask=mask, training=True)) for _ in range(2)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    np.testing.assert_allclose(ops.convert_to_numpy(dropping(x, attention_mask=mask)), plain, atol=1e-5)


@pytest.mark.parametrize("with_context", [False, True])
@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.3, 0.0), (0.3, 0.4)])
def test_recomputing_changes_neither_value_nor_gradients(rates, with_context):
    """The second pass must drop what the first one has dropped."""
    x, context = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype("float32")
    mask = np.random.default_rng(1).random((3, 1, 5, 5)) < 0.7
    weights = np.random.default_rng(2).standard_normal((3, 5, 8)).astype("float32")
    results = []
    for recompute in (False, True):
        block = make_block(dropout_rate=rates[0], attention_dropout_rate=rates[1], recompute=recompute)

        def weighted(x, *context, block=block):
            options = {"context": context[0]} if context else {}
            return ops.sum(ops.multiply(block(x, attention_mask=mask, training=True, **options), weights))

        results.append(value_and_gradients(weighted, [x, context] if with_context else [x]))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-6)
    for recomputed, kept in zip(results[1][1], results[0][1], strict=True):
        assert np.abs(kept).max() > 0.1
        np.testing.assert_allclose(recomputed, kept, rtol=1e-4, atol=1e-5)


def test_block_names_what_is_wrong():
    with pytest.raises(ValueError, match="`num_heads`.*8.*3"):
        TransformerBlock(3, 16).build((None, None, 8))
    x = np.zeros((1, 2, 8), "float32")
    with pytest.raises(ValueError, match="`cache` and `context`"):
        make_block()(x, cache=(np.zeros((1, 2, 2, 4)),) * 2, cache_index=0, context=x)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_fully_masked_rows_are_finite(dtype):
    block = TransformerBlock.from_config({**make_block(attention_dropout_rate=0.1).get_config(), "dtype": dtype})
    x = np.random.default_rng(0).standard_normal((1, 3, 8)).astype("float32")
    out = block(x, attention_mask=np.zeros((1, 1, 3, 3), bool), training=True)
    assert np.isfinite(ops.convert_to_numpy(ops.cast(out, "float32"))).all()
