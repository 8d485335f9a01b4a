import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.checkpoints import Checkpoint, CheckpointError, slice_vocabulary, variable_shapes
from simretro.checkpoints.variables import Found, compare


def test_names_and_shapes(any_config, make_weights, heads):
    wanted = {name: array.shape for name, array in make_weights(any_config, **heads).items()}
    assert variable_shapes(any_config, **heads) == wanted


def test_number_of_parameters_of_a_known_model(make_config):
    # BERT base with MLM head, without pooler, and the 13584 tokens that bert4keras keeps of Google's Chinese vocabulary
    config = make_config(vocab_size=13584, hidden_size=768, embedding_size=768, num_hidden_layers=12)
    config |= {"num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512}
    assert sum(np.prod(shape) for shape in variable_shapes(config, pooler=False).values()) == 96_488_976


def test_one_error_names_everything_that_does_not_fit():
    found = {
        "there": Found((2, 3), "float32"),
        "too much": Found((1,), "float32"),
        "turned": Found((3, 2), "float16"),
        "quantized": Found((4,), "int8"),
    }
    wanted = {"there": (2, 3), "turned": (2, 3), "quantized": (4,), "absent a": (5,), "absent b": (5,)}
    with pytest.raises(CheckpointError) as error:
        compare(wanted, found, "the/file", ["a further problem"])
    message = str(error.value)
    assert message.startswith("the/file does not fit")
    assert "a further problem" in message
    assert "missing (2): absent a, absent b" in message
    assert "unexpected (1): too much" in message
    assert "turned is (3, 2), the config asks for (2, 3)" in message
    assert "quantized is int8" in message
    assert "there is" not in message
    compare({"there": (2, 3)}, {"there": Found((2, 3), "bfloat16")}, "the/file")


def checkpoint_of(make_config, make_weights, **changes):
    config = make_config(**changes)
    return Checkpoint(config, make_weights(config), "the/file", "a folder")


def test_slicing_keeps_rows_in_the_new_order(make_config, make_weights):
    whole = checkpoint_of(make_config, make_weights)
    small = slice_vocabulary(whole, [0, 7, 3, 10])
    for name, array in whole.weights.items():
        if name in ("embeddings/token/embeddings", "mlm_head/bias"):
            array = np.stack([array[0], array[7], array[3], array[10]])
        np.testing.assert_array_equal(small.weights[name], array, err_msg=name)
    assert small.config == {**whole.config, "vocab_size": 4}
    assert small.tokenizer_folder is None
    assert whole.config["vocab_size"] == 11 and len(whole.weights["mlm_head/bias"]) == 11


def test_slicing_moves_the_padding_token(make_config, make_weights):
    whole = checkpoint_of(make_config, make_weights, model_type="roberta", pad_token_id=1, position_offset=2)
    small = slice_vocabulary(whole, np.array([5, 1, 2]))
    assert (small.config["pad_token_id"], small.config["position_offset"]) == (1, 2)
    assert slice_vocabulary(whole, [1, 5]).config["pad_token_id"] == 0


@given(st.permutations(range(1, 11)), st.integers(1, 9))
def test_slicing_twice_is_refused_with_both_sizes(order, count):
    config = {"vocab_size": 11, "pad_token_id": 0}
    weights = {"embeddings/token/embeddings": np.arange(22.0).reshape(11, 2)}
    keep_tokens = [0, *order[:count]]
    small = slice_vocabulary(Checkpoint(config, weights, "the/file"), keep_tokens)
    np.testing.assert_array_equal(small.weights["embeddings/token/embeddings"][:, 0], 2.0 * np.array(keep_tokens))
    with pytest.raises(CheckpointError) as error:
        slice_vocabulary(small, keep_tokens)
    assert f"has {count + 1} ids" in str(error.value)
    assert f"the/file has {count + 1} rows" in str(error.value)


@pytest.mark.parametrize(
    "keep_tokens, words",
    [
        ([0, 11], ["has 2 ids", "largest is 11", "11 rows", "larger vocabulary"]),
        (range(11), ["has 11 ids", "11 rows", "already"]),
        ([], ["`keep_tokens`", "empty"]),
        ([0, -1], ["`keep_tokens`", "at least 0"]),
        ([0.0, 1.0], ["`keep_tokens`", "token ids"]),
        ([0, 2, 2], ["twice"]),
        ([1, 2], ["padding token", "id 0"]),
    ],
)
def test_unfit_keep_tokens(keep_tokens, words, make_config, make_weights):
    with pytest.raises(CheckpointError) as error:
        slice_vocabulary(checkpoint_of(make_config, make_weights), keep_tokens)
    assert all(word in str(error.value) for word in words)
