import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from simretro.checkpoints import CheckpointError, read_checkpoint, write_huggingface

REPOSITORY = Path(__file__).parents[2]
# The variables of a backbone with one block in transformers' words: (ours, transposed)
BACKBONE = {
    "embeddings.word_embeddings.weight": ("embeddings/token/embeddings", False),
    "embeddings.position_embeddings.weight": ("embeddings/position/embeddings", False),
    "embeddings.token_type_embeddings.weight": ("embeddings/segment/embeddings", False),
    "embeddings.LayerNorm.weight": ("embeddings/norm/gamma", False),
    "embeddings.LayerNorm.bias": ("embeddings/norm/beta", False),
    "embeddings_project.weight": ("embeddings/projection/kernel", True),
    "embeddings_project.bias": ("embeddings/projection/bias", False),
    "encoder.layer.0.attention.self.query.weight": ("block_0/query/kernel", True),
    "encoder.layer.0.attention.self.query.bias": ("block_0/query/bias", False),
    "encoder.layer.0.attention.self.key.weight": ("block_0/key/kernel", True),
    "encoder.layer.0.attention.self.key.bias": ("block_0/key/bias", False),
    "encoder.layer.0.attention.self.value.weight": ("block_0/value/kernel", True),
    "encoder.layer.0.attention.self.value.bias": ("block_0/value/bias", False),
    "encoder.layer.0.attention.output.dense.weight": ("block_0/attention_output/kernel", True),
    "encoder.layer.0.attention.output.dense.bias": ("block_0/attention_output/bias", False),
    "encoder.layer.0.attention.output.LayerNorm.weight": ("block_0/attention_norm/gamma", False),
    "encoder.layer.0.attention.output.LayerNorm.bias": ("block_0/attention_norm/beta", False),
    "encoder.layer.0.intermediate.dense.weight": ("block_0/intermediate/kernel", True),
    "encoder.layer.0.intermediate.dense.bias": ("block_0/intermediate/bias", False),
    "encoder.layer.0.output.dense.weight": ("block_0/output/kernel", True),
    "encoder.layer.0.output.dense.bias": ("block_0/output/bias", False),
    "encoder.layer.0.output.LayerNorm.weight": ("block_0/output_norm/gamma", False),
    "encoder.layer.0.output.LayerNorm.bias": ("block_0/output_norm/beta", False),
}
POOLER = {"pooler.dense.weight": ("pooler/kernel", True), "pooler.dense.bias": ("pooler/bias", False)}
BERT_HEAD = {
    "cls.predictions.transform.dense.weight": ("mlm_head/dense/kernel", True),
    "cls.predictions.transform.dense.bias": ("mlm_head/dense/bias", False),
    "cls.predictions.transform.LayerNorm.weight": ("mlm_head/norm/gamma", False),
    "cls.predictions.transform.LayerNorm.bias": ("mlm_head/norm/beta", False),
    "cls.predictions.bias": ("mlm_head/bias", False),
}
ROBERTA_HEAD = {
    "lm_head.dense.weight": ("mlm_head/dense/kernel", True),
    "lm_head.dense.bias": ("mlm_head/dense/bias", False),
    "lm_head.layer_norm.weight": ("mlm_head/norm/gamma", False),
    "lm_head.layer_norm.bias": ("mlm_head/norm/beta", False),
    "lm_head.bias": ("mlm_head/bias", False),
}
HEAD = {"bert": BERT_HEAD, "roformer": BERT_HEAD, "roberta": ROBERTA_HEAD, "xlm-roberta": ROBERTA_HEAD}
PREFIX = {"bert": "bert.", "roformer": "roformer.", "roberta": "roberta.", "xlm-roberta": "roberta."}


def theirs(weights, model_type="bert", prefix=None):
    """Our arrays under transformers' names; the prefix stands before the backbone alone."""
    prefix = PREFIX[model_type] if prefix is None else prefix
    table = {prefix + name: entry for name, entry in {**BACKBONE, **POOLER}.items()} | HEAD[model_type]
    arrays = {
        name: weights[ours].T if turned else weights[ours] for name, (ours, turned) in table.items() if ours in weights
    }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def save(folder, arrays, config, tokens=None):
    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if tokens is not None:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in range(tokens)), encoding="utf-8")
    return folder


@pytest.fixture
def bert(make_config, make_weights):
    """(arrays under transformers' names, our weights, config) of one block with both heads."""
    config = make_config(num_hidden_layers=1)
    weights = make_weights(config)
    return theirs(weights), weights, config


def one_block(any_config):
    return {**any_config, "num_hidden_layers": 1}


@pytest.mark.parametrize("with_prefix", [True, False])
def test_every_model_type(with_prefix, any_config, make_weights, heads, tmp_path, assert_same):
    config = one_block(any_config)
    weights = make_weights(config, **heads)
    arrays = theirs(weights, config["model_type"], None if with_prefix else "")
    checkpoint = read_checkpoint(save(tmp_path / "a", arrays, config))
    assert_same(checkpoint.weights, weights)
    assert checkpoint.config == config
    assert checkpoint.source == str(tmp_path / "a" / "model.safetensors")
    assert checkpoint.tokenizer_folder is None and checkpoint.extras == {}


def test_config_file_names_the_folder(bert, tmp_path, assert_same):
    arrays, weights, config = bert
    folder = save(tmp_path / "a", arrays, config, tokens=11)
    checkpoint = read_checkpoint(str(folder / "config.json"))
    assert_same(checkpoint.weights, weights)
    assert checkpoint.tokenizer_folder == folder
    with pytest.raises(CheckpointError, match="give the folder"):
        read_checkpoint(folder / "model.safetensors")


def test_old_names_of_the_norms(bert, tmp_path, assert_same):
    arrays, weights, config = bert
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays.items()
    }
    assert sum("gamma" in name for name in old) == 4
    assert_same(read_checkpoint(save(tmp_path / "a", old, config)).weights, weights)


def test_what_is_known_to_be_harmless(bert, tmp_path, assert_same):
    arrays, weights, config = bert
    arrays["bert.embeddings.position_ids"] = np.arange(9)[None]
    arrays["bert.embeddings.token_type_ids"] = np.zeros((1, 9), "int64")
    arrays["cls.seq_relationship.weight"] = np.ones((2, 8), "float32")
    arrays["cls.seq_relationship.bias"] = np.ones(2, "float32")
    arrays["cls.predictions.decoder.weight"] = weights["embeddings/token/embeddings"].copy()
    arrays["cls.predictions.decoder.bias"] = weights["mlm_head/bias"].copy()
    assert_same(read_checkpoint(save(tmp_path / "a", arrays, config)).weights, weights)


@pytest.mark.parametrize("part, original", [("weight", "word_embeddings"), ("bias", "predictions.bias")])
def test_output_table_of_its_own_is_refused(part, original, bert, tmp_path):
    arrays, weights, config = bert
    name = f"cls.predictions.decoder.{part}"
    arrays[name] = weights["embeddings/token/embeddings" if part == "weight" else "mlm_head/bias"] + 1
    with pytest.raises(CheckpointError, match=rf"{name} differs from \S*{original}\S*, .*tied"):
        read_checkpoint(save(tmp_path / "a", arrays, config))


def test_tied_variable_kept_under_the_name_of_its_copy(make_config, make_weights, tmp_path, assert_same):
    config = make_config(num_hidden_layers=1, model_type="roberta", pad_token_id=1, position_offset=2)
    weights = make_weights(config)
    arrays = theirs(weights, "roberta")
    arrays["lm_head.decoder.weight"] = arrays.pop("roberta.embeddings.word_embeddings.weight")
    arrays["lm_head.decoder.bias"] = arrays.pop("lm_head.bias")
    assert_same(read_checkpoint(save(tmp_path / "a", arrays, config)).weights, weights)


def test_one_error_names_missing_unexpected_and_misshapen(bert, tmp_path):
    arrays, _, config = bert
    del arrays["bert.encoder.layer.0.output.LayerNorm.bias"], arrays["cls.predictions.transform.dense.weight"]
    arrays["bert.encoder.layer.0.intermediate.dense.weight"] = np.ones((8, 12), "float32")
    arrays["classifier.weight"] = np.ones((2, 8), "float32")
    arrays["bert.pooler.dense.bias"] = np.ones(8, "int8")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(save(tmp_path / "a", arrays, config))
    message = str(error.value)
    assert str(tmp_path / "a" / "model.safetensors") in message
    missing = "encoder.layer.0.output.LayerNorm.bias, cls.predictions.transform.dense.weight"
    assert f"missing (2): {missing}" in message
    assert "unexpected (1): classifier.weight" in message
    assert "encoder.layer.0.intermediate.dense.weight is (8, 12), the config asks for (12, 8)" in message
    assert "pooler.dense.bias is I8" in message


def test_variable_with_and_without_prefix(bert, tmp_path):
    arrays, _, config = bert
    arrays["pooler.dense.bias"] = np.ones(8, "float32")
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.bias twice"):
        read_checkpoint(save(tmp_path / "a", arrays, config))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_stays(dtype, bert, tmp_path, assert_same):
    arrays, weights, config = bert
    half = {name: array.astype(dtype) for name, array in arrays.items()}
    half["cls.predictions.decoder.weight"] = half["bert.embeddings.word_embeddings.weight"].copy()
    checkpoint = read_checkpoint(save(tmp_path / "a", half, config))
    wanted = {name: array.astype(dtype) for name, array in weights.items()}
    assert_same(checkpoint.weights, wanted)
    write_huggingface(tmp_path / "b", checkpoint.config, checkpoint.weights)
    assert_same(read_checkpoint(tmp_path / "b").weights, wanted)


def test_double_precision_becomes_float32(bert, tmp_path, assert_same):
    arrays, weights, config = bert
    double = {name: array.astype("float64") for name, array in arrays.items()}
    assert_same(read_checkpoint(save(tmp_path / "a", double, config)).weights, weights)


def save_shards(folder, arrays, config):
    names = sorted(arrays)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    folder.mkdir()
    for file in set(places.values()):
        save_file({name: arrays[name] for name in names if places[name] == file}, folder / file)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return folder, index, places


def test_shards(bert, tmp_path, assert_same):
    arrays, weights, config = bert
    folder, index, places = save_shards(tmp_path / "a", arrays, config)
    checkpoint = read_checkpoint(folder)
    assert_same(checkpoint.weights, weights)
    assert checkpoint.source == str(folder)

    index.write_text(
        json.dumps({"weight_map": {**places, "more": "model-00001-of-00002.safetensors"}}), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match=r"index\.json names tensors that its files lack: more"):
        read_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"files of its own folder; received \.\./b\.safetensors"):
        read_checkpoint(folder)
    index.write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="`weight_map`"):
        read_checkpoint(folder)


def test_absent_shard_is_named(bert, tmp_path):
    arrays, _, config = bert
    folder, _, _ = save_shards(tmp_path / "a", arrays, config)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors does not exist"):
        read_checkpoint(folder)


def test_tensor_of_two_shards(bert, tmp_path):
    arrays, _, config = bert
    folder, _, places = save_shards(tmp_path / "a", arrays, config)
    first = folder / "model-00001-of-00002.safetensors"
    save_file({**load_file(first), "cls.predictions.bias": arrays["cls.predictions.bias"]}, first)
    second = folder / "model-00002-of-00002.safetensors"
    save_file({**load_file(second), "cls.predictions.bias": arrays["cls.predictions.bias"]}, second)
    with pytest.raises(CheckpointError, match=r"cls\.predictions\.bias is in .*00001\S* and in .*00002"):
        read_checkpoint(folder)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_truncated_file_is_named(share, bert, tmp_path):
    arrays, _, config = bert
    path = save(tmp_path / "a", arrays, config) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_checkpoint(path.parent)


def test_broken_header_is_named(bert, tmp_path):
    arrays, _, config = bert
    path = save(tmp_path / "a", arrays, config) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:40] = b"x" * 32
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_checkpoint(path.parent)


@pytest.mark.parametrize("tokens, rows, fits", [(11, 11, True), (10, 11, False), (12, 11, False), (9, 16, True)])
def test_vocabulary_of_another_size(tokens, rows, fits, make_config, make_weights, tmp_path):
    # Only a table that is padded to a multiple of 8 may have more rows than there are tokens
    config = make_config(num_hidden_layers=1, vocab_size=rows)
    folder = save(tmp_path / "a", theirs(make_weights(config)), config, tokens)
    if fits:
        assert read_checkpoint(folder).config["vocab_size"] == rows
        return
    with pytest.raises(CheckpointError, match=rf"vocab\.txt has {tokens} tokens, `vocab_size` is {rows}"):
        read_checkpoint(folder)


UNIGRAM = {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}
WORDPIECE = {"type": "WordPiece", "vocab": {"a": 0, "b": 1}}


@pytest.mark.parametrize("model", [UNIGRAM, WORDPIECE])
@pytest.mark.parametrize("added, fits", [([], True), ([{"id": 10}], True), ([{"id": 11}, {"id": 2}], False)])
def test_tokenizer_json_of_more_tokens_than_rows(model, added, fits, bert, tmp_path):
    arrays, _, config = bert
    folder = save(tmp_path / "a", arrays, config)
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}), encoding="utf-8")
    if fits:
        assert read_checkpoint(folder).tokenizer_folder == folder
        return
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has 12 tokens, `vocab_size` is 11"):
        read_checkpoint(folder)


def test_added_tokens_count(make_config, make_weights, tmp_path):
    config = make_config(num_hidden_layers=1, vocab_size=13)
    folder = save(tmp_path / "a", theirs(make_weights(config)), config, tokens=11)
    (folder / "added_tokens.json").write_text('{"<a>": 11, "<b>": 12}', encoding="utf-8")
    assert read_checkpoint(folder).config["vocab_size"] == 13


def test_simplified_vocabulary_beside_the_whole_table(make_config, make_weights, tmp_path):
    config = make_config(num_hidden_layers=1, vocab_size=208)  # 208 is a multiple of 8, but nobody pads by 197
    folder = save(tmp_path / "a", theirs(make_weights(config)), config, tokens=11)
    with pytest.raises(CheckpointError, match=r"has 11 tokens, `vocab_size` is 208"):
        read_checkpoint(folder)


def test_config_without_model_type(make_config, make_weights, tmp_path, assert_same):
    config = make_config(num_hidden_layers=1, model_type="roberta", pad_token_id=1, position_offset=2)
    weights = make_weights(config)
    old = {key: value for key, value in config.items() if key not in ("model_type", "position_offset")}
    folder = save(tmp_path / "a", theirs(weights, "roberta"), {**old, "architectures": ["RobertaForMaskedLM"]})
    checkpoint = read_checkpoint(folder)
    assert_same(checkpoint.weights, weights)
    assert checkpoint.config == config
    save(folder, theirs(weights, "roberta"), {**old, "architectures": ["T5Model"]})
    with pytest.raises(CheckpointError, match=r"`model_type`.*T5Model"):
        read_checkpoint(folder)


def test_folder_without_weights(bert, tmp_path):
    arrays, _, config = bert
    folder = save(tmp_path / "a", arrays, config)
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint; looked for model\.safetensors, .*pytorch_model"):
        read_checkpoint(folder)


def test_torch_file_without_torch(bert, tmp_path, monkeypatch):
    arrays, _, config = bert
    folder = save(tmp_path / "a", arrays, config)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pytorch_model\.bin needs torch: `pip install torch`.*model\.safetensors"):
        read_checkpoint(folder)


def test_round_trip_is_exact(any_config, make_weights, heads, tmp_path, assert_same):
    config = any_config
    weights = make_weights(config, **heads)
    if config["model_type"] == "bert" and config["embedding_size"] != config["hidden_size"]:
        with pytest.raises(CheckpointError, match=r"'bert' with `embedding_size` 6 beside `hidden_size` 8"):
            write_huggingface(tmp_path / "a", config, weights)
        assert not list(tmp_path.iterdir())
        return
    write_huggingface(tmp_path / "a", config, weights)
    first = read_checkpoint(tmp_path / "a")
    write_huggingface(tmp_path / "b", first.config, first.weights)
    second = read_checkpoint(tmp_path / "b")
    wanted = dict(weights)
    if not config["type_vocab_size"]:  # transformers always adds a segment vector
        config = {**config, "type_vocab_size": 1}
        wanted["embeddings/segment/embeddings"] = np.zeros((1, 8), "float32")
    for checkpoint in (first, second):
        assert_same(checkpoint.weights, wanted)
        assert checkpoint.config == config
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]
    with safe_open(tmp_path / "b" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("mlm_head, architecture", [(True, "BertForMaskedLM"), (False, "BertModel")])
def test_written_names(mlm_head, architecture, make_config, make_weights, tmp_path):
    config = make_config(num_hidden_layers=1)
    weights = make_weights(config, mlm_head=mlm_head)
    write_huggingface(tmp_path / "a", config, weights)
    written, wanted = load_file(tmp_path / "a" / "model.safetensors"), theirs(weights, prefix=None if mlm_head else "")
    assert sorted(written) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name)
    content = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert content["architectures"] == [architecture] and content["model_type"] == "bert"


def test_roberta_without_position_offset_gets_one(make_config, make_weights, tmp_path):
    # as Keras Hub has it: the first token takes row 0
    config = make_config(model_type="roberta", pad_token_id=1, position_offset=0, type_vocab_size=0)
    weights = make_weights(config)
    write_huggingface(tmp_path / "a", config, weights)
    checkpoint = read_checkpoint(tmp_path / "a")
    assert (checkpoint.config["position_offset"], checkpoint.config["max_position_embeddings"]) == (2, 11)
    table = checkpoint.weights["embeddings/position/embeddings"]
    np.testing.assert_array_equal(table[2:], weights["embeddings/position/embeddings"])
    assert not table[:2].any()


def test_roformers_table_of_sines(make_config, make_weights, tmp_path):
    config = make_config(model_type="roformer", position_embedding_type="rotary")
    write_huggingface(tmp_path / "a", config, make_weights(config))
    table = load_file(tmp_path / "a" / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    assert table.shape == (9, 4)
    wanted = [np.sin(3), np.sin(3 / 100), np.cos(3), np.cos(3 / 100)]
    np.testing.assert_allclose(table[3], wanted, rtol=1e-6)


@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_new", "gelu_pytorch_tanh"])
def test_tanh_gelu_gets_the_name_that_transformers_knows(act, make_config, make_weights, tmp_path):
    config = make_config(hidden_act=act, mlm_hidden_act=act)
    write_huggingface(tmp_path / "a", config, make_weights(config))
    assert read_checkpoint(tmp_path / "a").config["hidden_act"] == "gelu_pytorch_tanh"


def test_head_with_another_activation_is_told(make_config, make_weights, tmp_path, recwarn):
    config = make_config(hidden_act="gelu_tanh", mlm_hidden_act="gelu")
    write_huggingface(tmp_path / "a", config, make_weights(config, mlm_head=False))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="'gelu_pytorch_tanh'.*'gelu'") as warned:
        write_huggingface(tmp_path / "a", config, make_weights(config))
    assert warned[0].filename == __file__
    assert read_checkpoint(tmp_path / "a").config["mlm_hidden_act"] == "gelu"


@pytest.mark.parametrize(
    "change, word",
    [({"position_embedding_type": "rotary"}, "rotary"), ({"position_offset": 2}, "`position_offset`")],
)
def test_what_transformers_has_not(change, word, make_config, make_weights, tmp_path):
    config = make_config(**change)
    with pytest.raises(CheckpointError, match=word):
        write_huggingface(tmp_path / "a", config, make_weights(config))


def test_bfloat16_is_read_by_a_process_that_has_not_met_it(bert, tmp_path):
    arrays, _, config = bert
    folder = save(tmp_path / "a", {name: a.astype(ml_dtypes.bfloat16) for name, a in arrays.items()}, config)
    program = "import sys; from simretro.checkpoints import read_checkpoint as read; print(read(sys.argv[1]).weights)"
    run = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0 and "dtype=bfloat16" in run.stdout, run.stderr
