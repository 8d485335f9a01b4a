import importlib

import numpy as np
import pytest

from simretro.checkpoints import read_checkpoint
from simretro.methods import BiEncoder
from simretro.models import SentenceEncoder, build_transformer_model
from simretro.tokenizers import Tokenizer

CONFIG = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 12, "max_position_embeddings": 16}
VOCAB = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(26))])}


@pytest.fixture
def example():
    return importlib.import_module("export_model")


def save(folder, **options):
    encoder = build_transformer_model(CONFIG)
    model = BiEncoder(encoder, Tokenizer(VOCAB), "mean", query_prefix="q ", temperature=0.07, **options)
    model.save_pretrained(folder, {"steps": 12})
    return model


def test_exports_with_facts_and_prefixes(example, tmp_path, capsys):
    model = save(tmp_path / "model", projection_size=4)
    arguments = ["--model", str(tmp_path / "model"), "--to", "sentence-transformers", "--output", str(tmp_path / "out")]
    assert example.main(arguments) == tmp_path / "out"
    assert "model.safetensors" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert '"temperature": 0.07' in card and '"steps": 12' in card and '`"q "`' in card
    again = SentenceEncoder.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(again.encode(["q a b"]), model.encode_queries(["a b"]), atol=1e-6)
    with pytest.raises(SystemExit):
        example.main(arguments)
    assert "out is there" in capsys.readouterr().err
    assert example.main([*arguments, "--overwrite"]) == tmp_path / "out"


def test_two_towers_in_two_calls(example, tmp_path, capsys):
    model = save(tmp_path / "model", passage_encoder=build_transformer_model(CONFIG))
    arguments = ["--model", str(tmp_path / "model"), "--to", "huggingface"]
    with pytest.raises(SystemExit):
        example.main([*arguments, "--output", str(tmp_path / "out")])
    assert "--tower must be given" in capsys.readouterr().err
    for tower, encoder in (("query", model.encoder), ("passage", model.passage_encoder)):
        example.main([*arguments, "--output", str(tmp_path / tower), "--tower", tower])
        kernel = read_checkpoint(tmp_path / tower).weights["block_0/query/kernel"]
        np.testing.assert_array_equal(kernel, np.asarray(encoder.blocks[0].query.kernel))
    assert '`"q "`' in (tmp_path / "query" / "README.md").read_text("utf-8")
    assert '`"q "`' not in (tmp_path / "passage" / "README.md").read_text("utf-8").split("## Training")[0]


def test_an_encoder_that_is_no_bi_encoder(example, tmp_path, capsys):
    SentenceEncoder(build_transformer_model(CONFIG), Tokenizer(VOCAB)).save_pretrained(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--to", "tf1", "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        example.main([*arguments, "--tower", "query"])
    assert "has one encoder" in capsys.readouterr().err
    example.main(arguments)
    assert (tmp_path / "out" / "bert_config.json").is_file()
    with pytest.raises(SystemExit):
        example.main(["--model", str(tmp_path / "none"), "--to", "tf1", "--output", str(tmp_path / "new")])
    assert capsys.readouterr().err.count("\n") == 1
