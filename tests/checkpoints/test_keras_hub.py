import json

import h5py
import numpy as np
import pytest

from simretro.checkpoints import CheckpointError, read_checkpoint

# Where Keras puts the variables of a preset with one block: (ours, shape in the file)
ATTENTION = "layers/transformer_encoder/_self_attention_layer/"
BLOCK = {
    "layers/layer_normalization/vars/0": ("embeddings/norm/gamma", (8,)),
    "layers/layer_normalization/vars/1": ("embeddings/norm/beta", (8,)),
    ATTENTION + "query_dense/vars/0": ("block_0/query/kernel", (8, 2, 4)),
    ATTENTION + "query_dense/vars/1": ("block_0/query/bias", (2, 4)),
    ATTENTION + "key_dense/vars/0": ("block_0/key/kernel", (8, 2, 4)),
    ATTENTION + "key_dense/vars/1": ("block_0/key/bias", (2, 4)),
    ATTENTION + "value_dense/vars/0": ("block_0/value/kernel", (8, 2, 4)),
    ATTENTION + "value_dense/vars/1": ("block_0/value/bias", (2, 4)),
    ATTENTION + "output_dense/vars/0": ("block_0/attention_output/kernel", (2, 4, 8)),
    ATTENTION + "output_dense/vars/1": ("block_0/attention_output/bias", (8,)),
    "layers/transformer_encoder/_self_attention_layer_norm/vars/0": ("block_0/attention_norm/gamma", (8,)),
    "layers/transformer_encoder/_self_attention_layer_norm/vars/1": ("block_0/attention_norm/beta", (8,)),
    "layers/transformer_encoder/_feedforward_intermediate_dense/vars/0": ("block_0/intermediate/kernel", (8, 12)),
    "layers/transformer_encoder/_feedforward_intermediate_dense/vars/1": ("block_0/intermediate/bias", (12,)),
    "layers/transformer_encoder/_feedforward_output_dense/vars/0": ("block_0/output/kernel", (12, 8)),
    "layers/transformer_encoder/_feedforward_output_dense/vars/1": ("block_0/output/bias", (8,)),
    "layers/transformer_encoder/_feedforward_layer_norm/vars/0": ("block_0/output_norm/gamma", (8,)),
    "layers/transformer_encoder/_feedforward_layer_norm/vars/1": ("block_0/output_norm/beta", (8,)),
}
BERT = {
    **BLOCK,
    "layers/reversible_embedding/vars/0": ("embeddings/token/embeddings", (11, 8)),
    "layers/position_embedding/vars/0": ("embeddings/position/embeddings", (9, 8)),
    "layers/embedding/vars/0": ("embeddings/segment/embeddings", (2, 8)),
    "layers/dense/vars/0": ("pooler/kernel", (8, 8)),
    "layers/dense/vars/1": ("pooler/bias", (8,)),
}
ROBERTA = {
    **BLOCK,
    "layers/token_and_position_embedding/token_embedding/vars/0": ("embeddings/token/embeddings", (11, 8)),
    "layers/token_and_position_embedding/position_embedding/vars/0": ("embeddings/position/embeddings", (9, 8)),
}
HEAD = {
    "layers/masked_lm_head/_intermediate_dense/vars/0": ("mlm_head/dense/kernel", (8, 8)),
    "layers/masked_lm_head/_intermediate_dense/vars/1": ("mlm_head/dense/bias", (8,)),
    "layers/masked_lm_head/_intermediate_layer_norm/vars/0": ("mlm_head/norm/gamma", (8,)),
    "layers/masked_lm_head/_intermediate_layer_norm/vars/1": ("mlm_head/norm/beta", (8,)),
    "layers/masked_lm_head/vars/0": ("mlm_head/bias", (11,)),
}
CLASSES = {"bert": "BertBackbone", "roberta": "RobertaBackbone", "xlm-roberta": "XLMRobertaBackbone"}
SIZES = {"vocabulary_size": 11, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
SIZES |= {"max_sequence_length": 9, "dropout": 0.3}
FILE = "model.weights.h5"


def write_h5(path, table, weights, rename=str):
    with h5py.File(path, "w") as file:
        for name, (ours, shape) in table.items():
            file[rename(name)] = weights[ours].reshape(shape)


def save(folder, model_type, weights, rename=str):
    """A preset as `save_to_preset` leaves it, of the parts that `weights` has."""
    folder.mkdir(exist_ok=True)
    config = {**SIZES, "num_segments": 2} if model_type == "bert" else SIZES
    name = CLASSES[model_type]
    content = {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    write_h5(folder / FILE, BERT if model_type == "bert" else ROBERTA, weights, rename)
    if "mlm_head/bias" in weights:
        write_h5(folder / "task.weights.h5", HEAD, weights)
        with h5py.File(folder / "task.weights.h5", "a") as file:
            file["optimizer/vars/0"] = np.int64(0)
    return folder


@pytest.fixture
def wanted_config(make_config):
    def wanted(model_type):
        config = make_config(num_hidden_layers=1, model_type=model_type, mlm_layer_norm_eps=1e-5)
        config |= {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
        if model_type == "bert":
            return {**config, "hidden_act": "gelu_tanh"}
        return {**config, "type_vocab_size": 0, "layer_norm_eps": 1e-5, "pad_token_id": 1}

    return wanted


@pytest.mark.parametrize("mlm_head", [True, False])
@pytest.mark.parametrize("model_type", CLASSES)
def test_every_backbone(model_type, mlm_head, wanted_config, make_weights, tmp_path, assert_same):
    config = wanted_config(model_type)
    weights = make_weights(config, pooler=model_type == "bert", mlm_head=mlm_head)
    checkpoint = read_checkpoint(save(tmp_path / "a", model_type, weights))
    assert_same(checkpoint.weights, weights)
    assert checkpoint.config == config
    assert checkpoint.source == str(tmp_path / "a" if mlm_head else tmp_path / "a" / FILE)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace("/query_dense", "/_query_dense").replace("/output_dense", "/_output_dense"),
        lambda name: name.replace("layers/", "_layer_checkpoint_dependencies/", 1).replace("/key_", "/_key_"),
    ],
)
def test_names_of_older_keras(rename, wanted_config, make_weights, tmp_path, assert_same):
    weights = make_weights(wanted_config("bert"), mlm_head=False)
    folder = save(tmp_path / "a", "bert", weights, rename)
    assert_same(read_checkpoint(folder).weights, weights)


def test_one_error_names_missing_unexpected_and_misshapen(wanted_config, make_weights, tmp_path):
    folder = save(tmp_path / "a", "bert", make_weights(wanted_config("bert"), mlm_head=False))
    with h5py.File(folder / FILE, "a") as file:
        del file["layers/layer_normalization/vars/1"], file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = np.ones((8, 2, 4), "float32")
        file["layers/dense_1/vars/0"] = np.ones(3, "float32")
        del file["layers/embedding/vars/0"]
        file["layers/embedding/vars/0"] = np.ones((2, 8), "int8")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    message = str(error.value)
    assert str(folder / FILE) in message
    assert "missing (1): layers/layer_normalization/vars/1" in message
    assert "unexpected (1): layers/dense_1/vars/0" in message
    assert "layers/dense/vars/0 is (8, 2, 4), the config asks for (8, 8)" in message
    assert "layers/embedding/vars/0 is int8" in message


def test_tokenizer_and_what_the_preset_says(wanted_config, make_weights, tmp_path):
    folder = save(tmp_path / "a", "bert", make_weights(wanted_config("bert"), mlm_head=False))
    (folder / "task.json").write_text('{"config": {"pooling_mode": "mean", "normalize": true}}', encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"config": {"lowercase": true}}', encoding="utf-8")
    assets = folder / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    (assets / "vocabulary.txt").write_text("a\n" * 11, encoding="utf-8")
    checkpoint = read_checkpoint(folder)
    assert checkpoint.extras == {"pooling": "mean", "normalize": True, "do_lower_case": True}
    assert checkpoint.tokenizer_folder == assets
    (assets / "vocabulary.txt").write_text("a\n" * 12, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocabulary\.txt has 12 tokens, `vocab_size` is 11"):
        read_checkpoint(folder)


def test_other_backbones_are_named(tmp_path):
    content = {"class_name": "GemmaBackbone", "config": {}, "registered_name": "keras_hub>GemmaBackbone"}
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: `class_name`.*GemmaBackbone"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_truncated_file_is_named(share, wanted_config, make_weights, tmp_path):
    folder = save(tmp_path / "a", "bert", make_weights(wanted_config("bert"), mlm_head=False))
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"model\.weights\.h5 is damaged"):
        read_checkpoint(folder)


def test_absent_and_sharded_weights(wanted_config, make_weights, tmp_path):
    folder = save(tmp_path / "a", "bert", make_weights(wanted_config("bert"), mlm_head=False))
    (folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=r"model\.weights\.h5 does not exist"):
        read_checkpoint(folder)
    (folder / "model.weights.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="sharded.*max_shard_size"):
        read_checkpoint(folder)


def test_data_of_other_files_is_not_followed(wanted_config, make_weights, tmp_path):
    folder = save(tmp_path / "a", "bert", make_weights(wanted_config("bert"), mlm_head=False))
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(32))
    with h5py.File(folder / FILE, "a") as file:
        del file["layers/dense/vars/1"]
        file.create_dataset("layers/dense/vars/1", (8,), "float32", external=[(str(secret), 0, 32)])
    with pytest.raises(CheckpointError, match=r"layers/dense/vars/1 refers to data in another file"):
        read_checkpoint(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, dtype", [("Bert", "float32"), ("Bert", "bfloat16"), ("Roberta", "float32"), ("XLMRoberta", "float32")]
)
def test_presets_that_keras_hub_writes(kind, dtype, tmp_path):
    from keras import ops

    models = pytest.importorskip("keras_hub").models
    backbone = getattr(models, f"{kind}Backbone")(**{**SIZES, "num_layers": 12}, dtype=dtype)
    masked_lm = getattr(models, f"{kind}MaskedLM")(backbone, preprocessor=None)
    random = np.random.default_rng(0)
    for variable in masked_lm.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    masked_lm.save_to_preset(str(tmp_path / "a"))
    weights = read_checkpoint(tmp_path / "a").weights
    assert {array.dtype.name for array in weights.values()} == {dtype}

    def same(name, variable, shape=None):
        theirs = ops.convert_to_numpy(variable).astype("float32")
        np.testing.assert_array_equal(weights[name].astype("float32"), theirs.reshape(shape or theirs.shape), name)

    embeddings = backbone if kind == "Bert" else backbone.embeddings
    same("embeddings/token/embeddings", embeddings.token_embedding.embeddings)
    same("embeddings/position/embeddings", embeddings.position_embedding.position_embeddings)
    same("embeddings/norm/beta", backbone.embeddings_layer_norm.beta)
    for i in (0, 1, 11):
        attention = backbone.transformer_layers[i]._self_attention_layer
        same(f"block_{i}/key/kernel", attention.key_dense.kernel, (8, 8))
        same(f"block_{i}/value/bias", attention.value_dense.bias, (8,))
        same(f"block_{i}/attention_output/kernel", attention.output_dense.kernel, (8, 8))
        same(f"block_{i}/output/kernel", backbone.transformer_layers[i]._feedforward_output_dense.kernel)
        same(f"block_{i}/output_norm/gamma", backbone.transformer_layers[i]._feedforward_layer_norm.gamma)
    if kind == "Bert":
        same("pooler/kernel", backbone.pooled_dense.kernel)
        same("embeddings/segment/embeddings", backbone.segment_embedding.embeddings)
    same("mlm_head/dense/kernel", masked_lm.masked_lm_head._intermediate_dense.kernel)
    same("mlm_head/norm/beta", masked_lm.masked_lm_head._intermediate_layer_norm.beta)
    same("mlm_head/bias", masked_lm.masked_lm_head._bias)
    assert sum(array.size for array in weights.values()) == masked_lm.count_params()
