import json
import sys

import numpy as np
import pytest

from simretro.checkpoints import CheckpointError, read_checkpoint, slice_vocabulary, write_tf1
from simretro.files import atomic_folder

tf = pytest.importorskip("tensorflow")

# The variables of a BERT with one block in Google's words; kernels as they are, [in, out]
NAMES = {
    "bert/embeddings/word_embeddings": "embeddings/token/embeddings",
    "bert/embeddings/position_embeddings": "embeddings/position/embeddings",
    "bert/embeddings/token_type_embeddings": "embeddings/segment/embeddings",
    "bert/embeddings/LayerNorm/gamma": "embeddings/norm/gamma",
    "bert/embeddings/LayerNorm/beta": "embeddings/norm/beta",
    "bert/encoder/embedding_hidden_mapping_in/kernel": "embeddings/projection/kernel",
    "bert/encoder/embedding_hidden_mapping_in/bias": "embeddings/projection/bias",
    "bert/encoder/layer_0/attention/self/query/kernel": "block_0/query/kernel",
    "bert/encoder/layer_0/attention/self/query/bias": "block_0/query/bias",
    "bert/encoder/layer_0/attention/self/key/kernel": "block_0/key/kernel",
    "bert/encoder/layer_0/attention/self/key/bias": "block_0/key/bias",
    "bert/encoder/layer_0/attention/self/value/kernel": "block_0/value/kernel",
    "bert/encoder/layer_0/attention/self/value/bias": "block_0/value/bias",
    "bert/encoder/layer_0/attention/output/dense/kernel": "block_0/attention_output/kernel",
    "bert/encoder/layer_0/attention/output/dense/bias": "block_0/attention_output/bias",
    "bert/encoder/layer_0/attention/output/LayerNorm/gamma": "block_0/attention_norm/gamma",
    "bert/encoder/layer_0/attention/output/LayerNorm/beta": "block_0/attention_norm/beta",
    "bert/encoder/layer_0/intermediate/dense/kernel": "block_0/intermediate/kernel",
    "bert/encoder/layer_0/intermediate/dense/bias": "block_0/intermediate/bias",
    "bert/encoder/layer_0/output/dense/kernel": "block_0/output/kernel",
    "bert/encoder/layer_0/output/dense/bias": "block_0/output/bias",
    "bert/encoder/layer_0/output/LayerNorm/gamma": "block_0/output_norm/gamma",
    "bert/encoder/layer_0/output/LayerNorm/beta": "block_0/output_norm/beta",
    "bert/pooler/dense/kernel": "pooler/kernel",
    "bert/pooler/dense/bias": "pooler/bias",
    "cls/predictions/transform/dense/kernel": "mlm_head/dense/kernel",
    "cls/predictions/transform/dense/bias": "mlm_head/dense/bias",
    "cls/predictions/transform/LayerNorm/gamma": "mlm_head/norm/gamma",
    "cls/predictions/transform/LayerNorm/beta": "mlm_head/norm/beta",
    "cls/predictions/output_bias": "mlm_head/bias",
}


def save(folder, arrays, config=None, tokens=None, prefix="bert_model.ckpt"):
    """Writes a checkpoint of raw names, and the files beside it."""
    folder.mkdir(exist_ok=True)
    tf.raw_ops.SaveV2(
        prefix=str(folder / prefix),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.constant(array) for array in arrays.values()],
    )
    if config is not None:
        (folder / "bert_config.json").write_text(json.dumps(config), encoding="utf-8")
    if tokens is not None:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return folder


def google(config):
    """The config as Google wrote it: without the keys that later libraries added."""
    added = ("model_type", "layer_norm_eps", "embedding_size", "position_embedding_type", "position_offset")
    return {
        k: v for k, v in config.items() if k not in (*added, "pad_token_id", "mlm_layer_norm_eps", "mlm_hidden_act")
    }


@pytest.fixture
def raw(make_config, make_weights):
    """(arrays under Google's names, our weights, config) of one block."""
    config = make_config(num_hidden_layers=1)
    weights = make_weights(config)
    return {theirs: weights[ours] for theirs, ours in NAMES.items() if ours in weights}, weights, config


def test_google_checkpoint_with_its_training_leftovers(raw, tmp_path, assert_same):
    arrays, weights, config = raw
    leftovers = {
        "global_step": np.int64(7),
        "cls/seq_relationship/output_weights": np.ones((2, 8), "float32"),
        "cls/seq_relationship/output_bias": np.ones(2, "float32"),
        "bert/pooler/dense/kernel/adam_m": np.ones((8, 8), "float32"),
        "bert/pooler/dense/kernel/adam_v": np.ones((8, 8), "float32"),
    }
    folder = save(tmp_path / "google", {**arrays, **leftovers}, google(config), tokens=range(11))
    checkpoint = read_checkpoint(folder)
    assert_same(checkpoint.weights, weights)
    assert checkpoint.config == config
    assert checkpoint.source == str(folder / "bert_model.ckpt")
    assert checkpoint.tokenizer_folder == folder
    assert checkpoint.extras == {}


@pytest.mark.parametrize("name", ["", "bert_config.json", "bert_model.ckpt", "bert_model.ckpt.index"])
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_every_way_to_name_a_checkpoint(name, kind, raw, tmp_path, assert_same):
    arrays, weights, config = raw
    folder = save(tmp_path / "a", arrays, google(config))
    checkpoint = read_checkpoint(kind(folder / name))
    assert_same(checkpoint.weights, weights)
    assert checkpoint.tokenizer_folder is None


def test_config_of_another_place(raw, tmp_path, assert_same):
    arrays, weights, config = raw
    save(tmp_path / "a", arrays)
    with pytest.raises(CheckpointError, match=r"bert_config\.json"):
        read_checkpoint(tmp_path / "a")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(google(config)), encoding="utf-8")
    for given in (other, str(other), google(config)):
        assert_same(read_checkpoint(tmp_path / "a" / "bert_model.ckpt", config=given).weights, weights)


def test_several_checkpoints_in_a_folder(raw, tmp_path):
    arrays, weights, config = raw
    folder = save(tmp_path / "a", arrays, google(config), prefix="model.ckpt-10")
    assert read_checkpoint(folder).source.endswith("model.ckpt-10")
    save(folder, {**arrays, "bert/pooler/dense/bias": np.zeros(8, "float32")}, prefix="model.ckpt-20")
    with pytest.raises(CheckpointError, match=r"model\.ckpt-10, model\.ckpt-20"):
        read_checkpoint(folder)
    assert not read_checkpoint(folder / "model.ckpt-20").weights["pooler/bias"].any()
    np.testing.assert_array_equal(
        read_checkpoint(folder / "model.ckpt-10").weights["pooler/bias"], weights["pooler/bias"]
    )


def test_one_error_names_missing_unexpected_and_misshapen(raw, tmp_path):
    arrays, _, config = raw
    del arrays["bert/encoder/layer_0/output/LayerNorm/beta"], arrays["bert/embeddings/LayerNorm/gamma"]
    arrays["bert/encoder/layer_0/intermediate/dense/kernel"] = np.ones((12, 8), "float32")
    arrays["bert/encoder/layer_1/output/dense/bias"] = np.ones(8, "float32")
    arrays["bert/pooler/dense/bias"] = np.ones(8, "int32")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(save(tmp_path / "a", arrays, google(config)))
    message = str(error.value)
    assert str(tmp_path / "a" / "bert_model.ckpt") in message
    assert "missing (2): bert/embeddings/LayerNorm/gamma, bert/encoder/layer_0/output/LayerNorm/beta" in message
    assert "unexpected (1): bert/encoder/layer_1/output/dense/bias" in message
    assert "bert/encoder/layer_0/intermediate/dense/kernel is (12, 8), the config asks for (8, 12)" in message
    assert "bert/pooler/dense/bias is int32" in message


def test_half_a_head_is_no_head(raw, tmp_path):
    arrays, _, config = raw
    del arrays["cls/predictions/output_bias"]
    with pytest.raises(CheckpointError, match=r"missing \(1\): cls/predictions/output_bias"):
        read_checkpoint(save(tmp_path / "a", arrays, google(config)))


@pytest.mark.parametrize("tokens", [10, 12, 8])
def test_vocabulary_of_another_size(tokens, raw, tmp_path):
    arrays, _, config = raw
    with pytest.raises(CheckpointError, match=rf"vocab\.txt has {tokens} tokens, `vocab_size` is 11"):
        read_checkpoint(save(tmp_path / "a", arrays, google(config), tokens=range(tokens)))


def test_line_separators_inside_a_token_do_not_count(raw, tmp_path):
    arrays, _, config = raw
    tokens = [*range(9), "\u2028", "a\rb"]
    assert read_checkpoint(save(tmp_path / "a", arrays, google(config), tokens)).config["vocab_size"] == 11


def test_table_of_another_size(raw, tmp_path):
    arrays, _, config = raw
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(save(tmp_path / "a", arrays, google({**config, "vocab_size": 13}), tokens=range(11)))
    assert "has 11 tokens, `vocab_size` is 13" in str(error.value)
    assert "bert/embeddings/word_embeddings is (11, 8), the config asks for (13, 8)" in str(error.value)
    assert "cls/predictions/output_bias is (11,), the config asks for (13,)" in str(error.value)


def test_roformer_has_no_position_table(make_config, make_weights, tmp_path, assert_same):
    config = make_config(num_hidden_layers=1, model_type="roformer", position_embedding_type="rotary")
    weights = make_weights(config)
    arrays = {theirs: weights[ours] for theirs, ours in NAMES.items() if ours in weights}
    folder = save(tmp_path / "a", arrays, google(config))
    with pytest.warns(UserWarning, match=r"no `model_type`.*roformer") as warned:
        checkpoint = read_checkpoint(folder)
    assert warned[0].filename == __file__
    assert_same(checkpoint.weights, weights)
    # bert4keras takes Keras' epsilon in RoFormer's blocks, and BERT's in the MLM head
    assert checkpoint.config == {**config, "layer_norm_eps": 1e-7, "mlm_layer_norm_eps": 1e-12}
    save(folder, arrays, {**google(config), "model_type": "roformer", "layer_norm_eps": 1e-6})
    assert read_checkpoint(folder).config["layer_norm_eps"] == 1e-6
    save(folder, arrays, {**google(config), "model_type": "bert"})
    with pytest.raises(CheckpointError, match=r"missing \(1\): bert/embeddings/position_embeddings"):
        read_checkpoint(folder)


def test_factorised_embeddings(make_config, make_weights, tmp_path, assert_same):
    config = make_config(num_hidden_layers=1, embedding_size=6)
    weights = make_weights(config)
    arrays = {theirs: weights[ours] for theirs, ours in NAMES.items()}
    folder = save(tmp_path / "a", arrays, {**google(config), "embedding_size": 6})
    assert_same(read_checkpoint(folder).weights, weights)
    assert arrays["cls/predictions/transform/dense/kernel"].shape == (8, 6)


def test_lower_and_higher_precision(raw, tmp_path, assert_same):
    arrays, weights, config = raw
    arrays = {name: array.astype("float16") for name, array in arrays.items()}
    arrays["bert/pooler/dense/bias"] = weights["pooler/bias"].astype("float64")
    wanted = {name: array.astype("float16") for name, array in weights.items()}
    wanted["pooler/bias"] = weights["pooler/bias"]
    assert_same(read_checkpoint(save(tmp_path / "a", arrays, google(config))).weights, wanted)


def test_round_trip_is_exact(any_config, make_weights, heads, tmp_path, assert_same):
    weights = make_weights(any_config, **heads)
    if any_config["position_offset"]:
        with pytest.raises(CheckpointError, match=r"`position_offset` of 2"):
            write_tf1(tmp_path / "a", any_config, weights)
        assert not list(tmp_path.iterdir())
        return
    write_tf1(tmp_path / "a", any_config, weights)
    first = read_checkpoint(tmp_path / "a")
    write_tf1(tmp_path / "b", first.config, first.weights)
    second = read_checkpoint(tmp_path / "b")
    for checkpoint in (first, second):
        assert_same(checkpoint.weights, weights)
        assert checkpoint.config == any_config
    names = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert names == ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]


def test_written_names_are_those_of_bert4keras(raw, tmp_path):
    arrays, weights, config = raw
    write_tf1(tmp_path / "a", config, weights)
    reader = tf.train.load_checkpoint(str(tmp_path / "a" / "bert_model.ckpt"))
    assert sorted(reader.get_variable_to_shape_map()) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(reader.get_tensor(name), array)


def test_simplified_vocabulary_is_reloaded_as_it_is(raw, tmp_path, assert_same):
    arrays, weights, config = raw
    whole = read_checkpoint(save(tmp_path / "whole", arrays, google(config), tokens=range(11)))
    keep_tokens = [0, 2, 3, 5, 8]
    small = slice_vocabulary(whole, keep_tokens)
    with atomic_folder(tmp_path / "small") as staging:  # as a caller adds its vocabulary to the same folder
        (staging / "vocab.txt").write_text("0\n2\n3\n5\n8\n", encoding="utf-8")
        write_tf1(staging, small.config, small.weights)
    again = read_checkpoint(tmp_path / "small")
    assert_same(again.weights, small.weights)
    assert again.config["vocab_size"] == 5 and again.tokenizer_folder == tmp_path / "small"
    np.testing.assert_array_equal(again.weights["mlm_head/bias"], weights["mlm_head/bias"][keep_tokens])
    with pytest.raises(CheckpointError, match=r"5 ids.*5 rows"):
        slice_vocabulary(again, keep_tokens)


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_truncated_file_is_named(suffix, share, raw, tmp_path):
    arrays, _, config = raw
    folder = save(tmp_path / "a", arrays, google(config))
    path = folder / f"bert_model.ckpt.{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt"):
        read_checkpoint(folder)


def test_flipped_byte_is_found(raw, tmp_path):
    arrays, _, config = raw
    folder = save(tmp_path / "a", arrays, google(config))
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt: \S+ cannot be read, the file is damaged"):
        read_checkpoint(folder)


def test_no_index(raw, tmp_path):
    arrays, _, config = raw
    folder = save(tmp_path / "a", arrays, google(config))
    (folder / "bert_model.ckpt.index").unlink()
    with pytest.raises(CheckpointError, match=r"holds no checkpoint; looked for .*bert_model\.ckpt\.index"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt does not exist"):
        read_checkpoint(folder / "bert_model.ckpt")


def test_incomplete_weights_are_not_written(raw, tmp_path):
    _, weights, config = raw
    del weights["pooler/bias"]
    weights["pooler/extra"] = np.ones(3, "float32")
    with pytest.raises(CheckpointError, match=r"missing \(1\): pooler/bias\s+unexpected \(1\): pooler/extra"):
        write_tf1(tmp_path / "a", config, weights)
    assert not list(tmp_path.iterdir())


def test_without_tensorflow(raw, tmp_path, monkeypatch):
    arrays, weights, config = raw
    folder = save(tmp_path / "a", arrays, google(config))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for action in (lambda: read_checkpoint(folder), lambda: write_tf1(folder, config, weights)):
        with pytest.raises(ImportError, match=r"pip install tensorflow"):
            action()
