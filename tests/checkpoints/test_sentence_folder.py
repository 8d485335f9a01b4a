import json

import pytest

from simretro.checkpoints import CheckpointError, read_checkpoint, write_huggingface

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def write_json(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(make_config, make_weights, tmp_path):
    """A sentence-transformers folder with mean pooling and normalisation."""
    config = make_config()
    folder = tmp_path / "model"
    write_huggingface(folder, config, make_weights(config, mlm_head=False))
    write_json(folder / "modules.json", [TRANSFORMER, POOLING, NORMALIZE])
    write_json(
        folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 7, "do_lower_case": False})
    return folder


def test_pipeline(folder):
    extras = read_checkpoint(folder).extras
    assert extras == {"pooling": "mean", "normalize": True, "maxlen": 7, "do_lower_case": False}


@pytest.mark.parametrize(
    "content, pooling",
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max+mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["cls", "mean"]}, "cls+mean"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_pooling(content, pooling, folder):
    write_json(folder / "1_Pooling" / "config.json", content)
    assert read_checkpoint(folder).extras["pooling"] == pooling


def test_no_normalisation_and_no_limits(folder):
    write_json(folder / "modules.json", [TRANSFORMER, POOLING])
    (folder / "sentence_bert_config.json").unlink()
    assert read_checkpoint(folder).extras == {"pooling": "mean", "normalize": False}


def test_stages_that_are_not_read_are_told(folder):
    dense = {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    dropout = {"idx": 3, "path": "3_Dropout", "type": "sentence_transformers.models.Dropout"}
    write_json(folder / "modules.json", [TRANSFORMER, POOLING, dense, dropout, NORMALIZE])
    assert read_checkpoint(folder).extras["other_modules"] == ["Dense"]


def test_encoder_in_a_folder_of_its_own(folder):
    encoder = folder / "0_Transformer"
    encoder.mkdir()
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        (folder / name).rename(encoder / name)
    (encoder / "tokenizer.json").write_text("{}", encoding="utf-8")
    write_json(folder / "modules.json", [{**TRANSFORMER, "path": "0_Transformer"}, POOLING])
    checkpoint = read_checkpoint(folder)
    assert checkpoint.extras["maxlen"] == 7
    assert checkpoint.source == str(encoder / "model.safetensors")
    assert checkpoint.tokenizer_folder == encoder


@pytest.mark.parametrize(
    "modules, message",
    [
        ([POOLING], "names no Transformer"),
        ([{**TRANSFORMER, "path": "../elsewhere"}], r"inside its own; received '\.\./elsewhere'"),
        ([{**TRANSFORMER, "path": "/etc"}], "inside its own; received '/etc'"),
        ([{"path": ""}], "must hold objects with a `type`"),
        ({"a": 1}, "must hold a JSON list"),
    ],
)
def test_wrong_modules(modules, message, folder):
    write_json(folder / "modules.json", modules)
    with pytest.raises(CheckpointError, match=rf"modules\.json.*{message}"):
        read_checkpoint(folder)


def test_absent_pooling_config(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"1_Pooling.config\.json does not exist"):
        read_checkpoint(folder)


@pytest.mark.parametrize("limit, maxlen", [(7, 7), (int(1e30), None), (None, None)])
def test_the_limit_of_new_folders_is_the_tokenizers(limit, maxlen, folder):
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / "tokenizer_config.json", {"model_max_length": limit})
    assert read_checkpoint(folder).extras.get("maxlen") == maxlen


def test_prompts_and_similarity(folder):
    path = folder / "config_sentence_transformers.json"
    prompts = {"query": "q: ", "document": "", "other": "o: "}
    write_json(path, {"prompts": prompts, "default_prompt_name": "other", "similarity_fn_name": "dot"})
    extras = read_checkpoint(folder).extras
    assert extras["prompts"] == {"query": "q: ", "other": "o: "}
    assert extras["default_prompt"] == "o: " and extras["similarity"] == "dot"
    write_json(path, {"prompts": {"query": 3}})
    with pytest.raises(CheckpointError, match="config_sentence_transformers.json: `prompts` must be an object"):
        read_checkpoint(folder)
