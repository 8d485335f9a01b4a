import json

import pytest

from simretro.checkpoints import CheckpointError, normalize_config, read_config

# As Google's Chinese BERT has it
GOOGLE = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "type_vocab_size": 2,
    "vocab_size": 21128,
}
SMALLEST = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_config_of_google_bert():
    wanted = {key: value for key, value in GOOGLE.items() if key not in ("directionality", "pooler_fc_size")}
    wanted |= {"model_type": "bert", "layer_norm_eps": 1e-12, "mlm_layer_norm_eps": 1e-12, "mlm_hidden_act": "gelu"}
    wanted |= {"embedding_size": 768, "position_embedding_type": "absolute", "position_offset": 0, "pad_token_id": 0}
    assert normalize_config(GOOGLE) == wanted


def test_normalised_config_stays_as_it_is(any_config):
    assert normalize_config(any_config) == any_config


def test_what_a_config_leaves_out():
    config = normalize_config({**SMALLEST, "embedding_size": None})
    assert (config["intermediate_size"], config["embedding_size"], config["max_position_embeddings"]) == (16, 4, 512)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta"])
def test_fairseq_models_count_positions_behind_the_padding(model_type):
    config = normalize_config({**SMALLEST, "model_type": model_type, "hidden_act": "relu"})
    assert (config["pad_token_id"], config["position_offset"]) == (1, 2)
    assert normalize_config({**SMALLEST, "model_type": model_type, "pad_token_id": 5})["position_offset"] == 6
    assert config["mlm_hidden_act"] == "gelu"  # fixed in the code of transformers, fairseq and Keras Hub


def test_roformer_is_rotary_whatever_the_file_says():
    config = {**SMALLEST, "model_type": "roformer", "position_embedding_type": "absolute"}
    assert normalize_config(config)["position_embedding_type"] == "rotary"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"vocab_size": None}, ["`vocab_size`", "bert_config.json"]),
        ({"vocab_size": None, "hidden_size": None}, ["`vocab_size`", "`hidden_size`"]),
        ({"model_type": "albert"}, ["`model_type`", "'albert'", "roformer"]),
        ({"hidden_size": "big"}, ["`hidden_size`", "'big'"]),
        ({"vocab_size": 0}, ["`vocab_size`", "at least 1", "0"]),
        ({"vocab_size": True}, ["`vocab_size`", "True"]),
        ({"num_attention_heads": 3}, ["`hidden_size`", "`num_attention_heads`", "4 and 3"]),
        ({"hidden_dropout_prob": 1.0}, ["`hidden_dropout_prob`", "1.0"]),
        ({"layer_norm_eps": 0}, ["`layer_norm_eps`", "0"]),
        ({"hidden_act": 3, "type_vocab_size": -1}, ["`hidden_act`", "`type_vocab_size`", "-1"]),
        ({"position_embedding_type": "relative_key"}, ["`position_embedding_type`", "relative_key"]),
        ({"rotary_value": True}, ["`rotary_value`"]),
        ({"use_bias": False}, ["`use_bias`"]),
        ({"model_type": "roformer", "hidden_size": 6}, ["must be even for rotary positions", "6 and 2"]),
        ({"position_offset": 512}, ["`max_position_embeddings`", "`position_offset`", "512 and 512"]),
        ({"model_type": "roberta", "max_position_embeddings": 2}, ["`position_offset`", "2 and 2"]),
        ({"attention_head_size": 3}, ["`attention_head_size`", "3"]),
    ],
)
def test_error_names_key_and_value(change, words):
    with pytest.raises(CheckpointError) as error:
        normalize_config({**SMALLEST, **change}, source="some/file.json")
    assert all(word in str(error.value) for word in ["some/file.json", *words])


def test_broken_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text('{"vocab_size": 7,\n "hidden_size": 4,,\n}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"bert_config\.json, line 2"):
        read_config(path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"bert_config\.json must hold a JSON dict; received list"):
        read_config(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match=r"bert_config\.json cannot be read"):
        read_config(path)
    with pytest.raises(CheckpointError, match=r"absent\.json does not exist"):
        read_config(tmp_path / "absent.json")
    path.write_text(json.dumps(SMALLEST), encoding="utf-8")
    assert read_config(path)["vocab_size"] == 7
