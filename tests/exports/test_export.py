"""Every format is written whole, read back where simretro reads it, and refused where it cannot hold the model."""

import json
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import simretro
from simretro.checkpoints import CheckpointError, read_checkpoint
from simretro.exports import FORMATS, export
from simretro.methods import BiEncoder
from simretro.models import SentenceEncoder, build_transformer_model, export_weights
from tests.exports.conftest import SIZES, TEXTS, bert_tokenizer, make_encoder, one_by_one

ALONE = """
import json, sys
sys.modules["simretro"] = sys.modules["keras"] = None  # an import of either is an error
import tensorflow as tf
function = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
rows = [json.loads(line) for line in sys.stdin]
for row in rows:
    print(json.dumps(function(token_ids=tf.constant(row, tf.int32))["sentence_embedding"].numpy().tolist()))
"""


def make_bi_encoder(**options):
    encoder = build_transformer_model({**SIZES, "vocab_size": 59, "max_position_embeddings": 32})
    prefixes = {"query_prefix": "q: ", "passage_prefix": "p: "}
    return BiEncoder(encoder, bert_tokenizer(), **{"pooling": "mean", "maxlen": 20, **prefixes, **options})


@pytest.mark.parametrize("to", ["huggingface", "sentence-transformers", "tf1", "keras-hub"])
def test_the_weights_come_back(to, tmp_path):
    encoder = make_encoder(with_pool=True)
    assert simretro.export(encoder, tmp_path / "out", to) == tmp_path / "out"
    checkpoint = read_checkpoint(tmp_path / "out")
    weights = export_weights(encoder.encoder)
    assert sorted(checkpoint.weights) == sorted(weights)
    for name, array in weights.items():
        np.testing.assert_array_equal(checkpoint.weights[name], array, err_msg=name)
    assert checkpoint.config["hidden_act"] in ("gelu_tanh", "gelu_pytorch_tanh")


@pytest.mark.parametrize("projection", [None, 6])
def test_sentence_transformers_folder_is_the_same_encoder(projection, tmp_path):
    encoder = make_encoder(pooling="mean", projection=projection, maxlen=9, normalize=projection is None)
    export(encoder, tmp_path / "out", "sentence-transformers")
    again = SentenceEncoder.from_pretrained(tmp_path / "out")
    assert again.settings() == encoder.settings() and again.dimension == encoder.dimension
    np.testing.assert_allclose(one_by_one(again), one_by_one(encoder), atol=1e-6)


def test_bi_encoder_hands_on_prefixes_and_facts(tmp_path):
    model = make_bi_encoder(projection_size=8, temperature=0.02)
    export(model, tmp_path / "out", "sentence-transformers", facts={"steps": 7})
    said = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text("utf-8"))
    assert said["prompts"] == {"query": "q: ", "document": "p: "} and said["similarity_fn_name"] == "cosine"
    modules = json.loads((tmp_path / "out" / "modules.json").read_text("utf-8"))
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    for part in ('"steps": 7', '"temperature": 0.02', "BiEncoder", '`"q: "`', "20 tokens", "8 numbers", "`mean`"):
        assert part in card, part
    vectors = one_by_one(SentenceEncoder.from_pretrained(tmp_path / "out"), ["q: a b"])
    np.testing.assert_allclose(vectors, model.encode_queries(["a b"]), atol=1e-5)


def test_two_towers_are_exported_one_by_one(tmp_path):
    second = build_transformer_model({**SIZES, "vocab_size": 59, "max_position_embeddings": 32})
    model = make_bi_encoder(passage_encoder=second)
    with pytest.raises(ValueError, match="`query_sentence_encoder` and `passage_sentence_encoder`"):
        export(model, tmp_path / "out")
    export(model.passage_sentence_encoder, tmp_path / "out", prompts={"document": "p: "})
    weights = read_checkpoint(tmp_path / "out").weights
    np.testing.assert_array_equal(weights["block_0/query/kernel"], ops.convert_to_numpy(second.blocks[0].query.kernel))
    assert '| prefix, document | `"p: "` |' in (tmp_path / "out" / "README.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_saved_model_needs_neither_simretro_nor_keras(tmp_path):
    encoder = make_encoder(with_pool="linear", pooling="pooler", projection=6)
    export(encoder, tmp_path / "out", "saved-model")
    token_ids, _ = encoder.tokenizer.encode_batch(TEXTS)
    rows = [token_ids.tolist(), np.pad(token_ids[:1], ((0, 0), (0, 9))).tolist()]  # other batch, length and padding
    expected = one_by_one(encoder)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "out")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    batch, alone = (np.array(json.loads(line)) for line in done.stdout.splitlines())
    np.testing.assert_allclose(batch, expected, atol=1e-5)
    np.testing.assert_allclose(alone, expected[:1], atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "`[CLS]` (2), the tokens, `[SEP]` (3), then padding, `[PAD]` (0)" in card
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.backends
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="there it works")
def test_saved_model_names_the_backend(tmp_path):
    with pytest.raises(NotImplementedError, match=keras.backend.backend()):
        export(make_encoder(), tmp_path / "out", "saved-model")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["huggingface", "tf1", "keras-hub"])
def test_a_projection_is_not_left_out_in_silence(to, tmp_path):
    with pytest.raises(ValueError, match=rf"`to='{to}'`.*projection.*'sentence-transformers', 'onnx', 'saved-model'"):
        export(make_encoder(projection=6), tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_an_old_folder_stays_unless_told(tmp_path):
    encoder, folder = make_encoder(), tmp_path / "out"
    folder.mkdir()
    export(encoder, folder, "huggingface")  # an empty one is nobody's
    before = (folder / "config.json").read_bytes()
    with pytest.raises(FileExistsError, match=r"`folder` must be new; .*out is there.*`overwrite=True`"):
        export(encoder, folder, "tf1")
    assert (folder / "config.json").read_bytes() == before
    with pytest.warns(UserWarning, match="kept as"):
        export(encoder, folder, "tf1", overwrite=True)
    assert (folder / "bert_config.json").is_file() and not (folder / "config.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file is there"):
        export(encoder, tmp_path / "file")


def test_a_failure_leaves_nothing(tmp_path):
    encoder, folder = make_encoder("roformer"), tmp_path / "out"
    with pytest.raises(CheckpointError, match="Keras Hub has no encoder 'roformer' with rotary"):
        export(encoder, folder, "keras-hub")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="NaN"):
        export(encoder, folder, facts={"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="`to` must be one of .*'saved-model'.*received 'torch'"):
        export(make_encoder(), tmp_path / "out", "torch")
    with pytest.raises(TypeError, match="`model` must be a `SentenceEncoder`.*received Transformer"):
        export(make_encoder().encoder, tmp_path / "out")
    with pytest.raises(ValueError, match="no tokenizer"):
        export(BiEncoder(make_encoder().encoder), tmp_path / "out")


@pytest.mark.parametrize("to", [pytest.param(to, marks=[pytest.mark.slow] * (to == "saved-model")) for to in FORMATS])
def test_the_code_of_the_model_card_is_python(to, tmp_path):
    if to == "saved-model" and keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is TensorFlow's")
    export(make_encoder(with_pool="linear", pooling="pooler"), tmp_path / "out", to)
    code = (tmp_path / "out" / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")


def test_keras_hub_says_what_it_will_compute_differently(tmp_path):
    with pytest.warns(UserWarning, match="`hidden_act` is 'gelu', there 'gelu_tanh'"):
        export(make_encoder("exact bert"), tmp_path / "out", "keras-hub")


def test_keras_hub_has_no_tokenizer_without_a_mask(tmp_path):
    encoder = make_encoder()
    vocab = {("[mask]" if token == "[MASK]" else token): i for token, i in encoder.tokenizer.vocab.items()}
    encoder.tokenizer = simretro.Tokenizer(vocab)
    with pytest.raises(ValueError, match=r"special tokens .*'\[MASK\]'.*this vocabulary has .*'mask': None"):
        export(encoder, tmp_path / "out", "keras-hub")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("with_pool", [True, "linear"])
@pytest.mark.parametrize("projection", [None, 6])
def test_own_sentence_transformers_folder_of_a_pooler_is_read_back(with_pool, projection, tmp_path):
    encoder = make_encoder(with_pool=with_pool, projection=projection, pooling="pooler", maxlen=9)
    export(encoder, tmp_path / "out", "sentence-transformers")
    again = SentenceEncoder.from_pretrained(tmp_path / "out")
    assert (again.pooling, again.encoder.with_pool) == ("pooler", with_pool)
    np.testing.assert_allclose(again.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        retriever = BiEncoder.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(retriever.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
