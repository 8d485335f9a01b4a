"""Exports as the real libraries load them: transformers, sentence-transformers, Keras Hub, OpenVINO."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from simretro.exports import export
from simretro.methods import BiEncoder
from simretro.models import build_transformer_model
from tests.exports.conftest import SIZES, TEXTS, bert_tokenizer, make_encoder, one_by_one

POOLINGS = [("cls", False), ("mean", False), ("pooler", True), ("pooler", "linear")]
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:`maxlen`")]


def run_card(folder, **names):
    """Runs the code of the model card, and returns what it calls `vectors`."""
    code = (folder / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    scope = {"folder": str(folder), "texts": TEXTS, **names}
    exec(code, scope)
    return np.asarray(scope["vectors"])


@pytest.mark.parametrize("kind", ["bert", "exact bert", "roberta", "xlm-roberta", "roformer"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_transformers(kind, pooling, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    encoder = make_encoder(kind, tmp_path, pooling=pooling, maxlen=9)
    export(encoder, tmp_path / "out", "huggingface")
    np.testing.assert_allclose(run_card(tmp_path / "out"), one_by_one(encoder), atol=1e-5)


@pytest.mark.parametrize("with_pool", [True, "linear"])
def test_poolers(with_pool, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    encoder = make_encoder(with_pool=with_pool, pooling="pooler", normalize=False)
    for to, tolerance in (("huggingface", 1e-5), ("onnx", 1e-4)):
        export(encoder, tmp_path / to, to)
        np.testing.assert_allclose(run_card(tmp_path / to), one_by_one(encoder), atol=tolerance)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "roformer"])
@pytest.mark.parametrize(
    "pooling, with_pool", [("cls", False), ("mean", False), ("pooler", True), ("pooler", "linear")]
)
@pytest.mark.parametrize("projection", [None, 6])
def test_sentence_transformers(kind, pooling, with_pool, projection, tmp_path):
    pytest.importorskip("sentence_transformers")
    encoder = make_encoder(kind, tmp_path, with_pool, projection, pooling=pooling, maxlen=9)
    export(encoder, tmp_path / "out", "sentence-transformers")
    np.testing.assert_allclose(run_card(tmp_path / "out"), one_by_one(encoder), atol=1e-5)


def test_sentence_transformers_puts_the_prefixes_before_the_texts(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = build_transformer_model({**SIZES, "vocab_size": 59, "max_position_embeddings": 32})
    prefixes = {"query_prefix": "q: ", "passage_prefix": "p: "}
    model = BiEncoder(encoder, bert_tokenizer(), "mean", maxlen=9, projection_size=6, similarity="dot", **prefixes)
    export(model, tmp_path / "out", "sentence-transformers")
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert loaded.max_seq_length == 9 and loaded.similarity_fn_name == "dot"
    np.testing.assert_allclose(loaded.encode_query(TEXTS), model.encode_queries(TEXTS), atol=1e-5)
    np.testing.assert_allclose(loaded.encode_document(TEXTS), model.encode_passages(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_keras_hub(kind, pooling, tmp_path):
    pytest.importorskip("keras_hub")
    encoder = make_encoder(kind, tmp_path, pooling=pooling, maxlen=9)
    if kind == "xlm-roberta":
        pytest.importorskip("sentencepiece")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing is computed differently
        export(encoder, tmp_path / "out", "keras-hub")
    # Letters that NFKC makes equal; of BERT's, Keras Hub's tokenizer folds more than others do.
    texts = TEXTS if kind == "bert" else [*TEXTS, "ｂ b ﬁ"]
    vectors = run_card(tmp_path / "out", texts=texts)
    np.testing.assert_allclose(vectors, one_by_one(encoder, texts), atol=1e-5)


@pytest.mark.parametrize("with_pool", [True, "linear"])
def test_keras_hub_pooler(with_pool, tmp_path):
    pytest.importorskip("keras_hub")
    encoder = make_encoder(with_pool=with_pool, pooling="pooler")
    for variable in encoder.encoder.pooler.variables:  # the way back through the tanh loses what is far from 0
        variable.assign(ops.convert_to_numpy(variable) / 4)
    export(encoder, tmp_path / "out", "keras-hub")
    np.testing.assert_allclose(run_card(tmp_path / "out"), one_by_one(encoder), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "roformer"])
def test_onnx_with_the_tokenizer_of_transformers(kind, tmp_path):
    pytest.importorskip("transformers"), pytest.importorskip("onnxruntime")
    encoder = make_encoder(kind, tmp_path, pooling="mean", projection=6, maxlen=9)
    export(encoder, tmp_path / "out", "onnx")
    np.testing.assert_allclose(run_card(tmp_path / "out"), one_by_one(encoder), atol=1e-4)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_saved_model_with_the_tokenizer_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    encoder = make_encoder(pooling="mean", projection=6, maxlen=9)
    export(encoder, tmp_path / "out", "saved-model")
    np.testing.assert_allclose(run_card(tmp_path / "out"), one_by_one(encoder), atol=1e-5)


@pytest.mark.parametrize("kind, pooling, with_pool", [("bert", "mean", False), ("roformer", "pooler", "linear")])
def test_openvino(kind, pooling, with_pool):
    pytest.importorskip("openvino")
    encoder = make_encoder(kind, pooling=pooling, with_pool=with_pool)
    expected = one_by_one(encoder)
    np.testing.assert_allclose(encoder.encode(TEXTS, engine="openvino"), expected, atol=1e-4)
    rounded = encoder.encode(TEXTS, engine="openvino-int8")
    assert 0.99 < (rounded * expected).sum(axis=1).min() and np.abs(rounded - expected).max() > 1e-6
    alone = [encoder.encode([text], engine="openvino-int8")[0] for text in TEXTS]
    np.testing.assert_allclose(rounded, alone, atol=1e-4)  # how a text is rounded does not depend on its neighbours
