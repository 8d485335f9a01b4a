"""ONNX models against Keras, in ONNX Runtime; and the engines that encode with them."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from simretro.checkpoints import CheckpointError, onnx_model, write_onnx
from simretro.exports import export
from simretro.methods import BiEncoder
from simretro.models import SentenceEncoder, build_transformer_model, export_weights, sentence_encoder
from simretro.models import engines as engines_module
from tests.exports.conftest import KINDS, SIZES, TEXTS, bert_tokenizer, make_encoder, one_by_one

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

POOLINGS = [("bert", "cls", False), ("bert", "mean", False), ("bert", "pooler", True), ("bert", "pooler", "linear")]
POOLINGS += [("roformer", "cls", False)]


def session_of(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def inputs_of(session, encoder, texts=TEXTS, padding=0):
    token_ids, _ = encoder.tokenizer.encode_batch(texts)
    pad = encoder.tokenizer.pad_token_id
    token_ids = np.pad(token_ids, ((0, 0), (0, padding)), constant_values=pad).astype("int64")
    inputs = {"input_ids": token_ids, "attention_mask": (token_ids != pad).astype("int64")}
    inputs["token_type_ids"] = np.zeros_like(token_ids)
    return {entry.name: inputs[entry.name] for entry in session.get_inputs()}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_keras(kind, tmp_path):
    encoder = make_encoder(kind, tmp_path, pooling="mean", normalize=False, projection=6)
    export(encoder, tmp_path / "out", "onnx")
    onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"), full_check=True)
    session = session_of(tmp_path / "out" / "model.onnx")
    names = ["input_ids", "attention_mask", *["token_type_ids"] * (encoder.encoder.config["type_vocab_size"] > 1)]
    assert [entry.name for entry in session.get_inputs()] == names
    assert {entry.type for entry in session.get_inputs()} == {"tensor(int64)"}
    for padding in (0, 5):
        inputs = inputs_of(session, encoder, padding=padding)
        hidden, vectors = session.run(["last_hidden_state", "sentence_embedding"], inputs)
        np.testing.assert_allclose(vectors, one_by_one(encoder), atol=1e-4)
    token_ids = inputs["input_ids"].astype("int32")
    expected = encoder.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)})["sequence"]
    tokens = inputs["attention_mask"] == 1
    np.testing.assert_allclose(hidden[tokens], ops.convert_to_numpy(expected)[tokens], atol=1e-4)


def test_segments_reach_the_model(tmp_path):
    encoder = make_encoder()
    export(encoder, tmp_path / "out", "onnx")
    session = session_of(tmp_path / "out" / "model.onnx")
    inputs = inputs_of(session, encoder)
    inputs["token_type_ids"][:, 1:] = 1
    [hidden] = session.run(["last_hidden_state"], inputs)
    ids = {"token_ids": inputs["input_ids"], "segment_ids": inputs["token_type_ids"]}
    expected = encoder.encoder({name: array.astype("int32") for name, array in ids.items()})["sequence"]
    tokens = inputs["attention_mask"] == 1
    np.testing.assert_allclose(hidden[tokens], ops.convert_to_numpy(expected)[tokens], atol=1e-4)


@pytest.mark.parametrize("kind, pooling, with_pool", POOLINGS)
def test_engine_gives_the_vectors_of_keras(kind, pooling, with_pool):
    """For "cls" and "pooler" the engine leaves out most of the last block."""
    encoder = make_encoder(kind, pooling=pooling, with_pool=with_pool)
    expected = one_by_one(encoder)
    for batch_size in (1, 32):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size, engine="onnx"), expected, atol=1e-4)
    raw = encoder.encode(TEXTS, normalize=False, engine="onnx")
    np.testing.assert_allclose(raw, one_by_one(encoder, normalize=False), atol=1e-4)
    assert raw.dtype == np.float32 and encoder.encode([], engine="onnx").shape == (0, 16)


def test_many_batches_are_computed_side_by_side(monkeypatch):
    """In threads of their own, and still in the order of the texts."""
    monkeypatch.setattr(engines_module, "processors", lambda: 2)
    encoder = make_encoder(pooling="mean")
    texts = [" ".join("abcdefghijklmnopqrst"[i : i + 1 + i % 12]) for i in range(18)] * 3
    sessions, start = [], engines_module.ENGINES["onnx"].start

    def start_and_note(module, path, threads):
        sessions.append(threads)
        return start(module, path, threads)

    kind = engines_module.ENGINES["onnx"]._replace(start=start_and_note)
    monkeypatch.setitem(engines_module.ENGINES, "onnx", kind)
    vectors = encoder.encode(texts, batch_size=1, engine="onnx")  # 64 tokens a batch
    np.testing.assert_allclose(vectors[:18], one_by_one(encoder, texts[:18]), atol=1e-4)
    np.testing.assert_allclose(vectors, np.tile(vectors[:18], (3, 1)), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(texts[5:6], engine="onnx"), vectors[5:6], atol=1e-5)
    assert sessions == [1, 2]  # one thread for each batch; one query gets both


def test_engine_of_the_constructor_and_the_projection():
    encoder = make_encoder(projection=6, engine="onnx")
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, one_by_one(encoder), atol=1e-4)
    np.testing.assert_allclose(encoder.encode(TEXTS[:1], engine="keras"), vectors[:1], atol=1e-4)


def test_engine_is_made_once_and_again_for_other_weights(monkeypatch):
    made = []
    write = engines_module.write_onnx
    monkeypatch.setattr(
        engines_module, "write_onnx", lambda *args, **options: (made.append(1), write(*args, **options))
    )
    encoder = make_encoder(projection=6)
    before = encoder.encode(TEXTS, engine="onnx")
    again = SentenceEncoder(encoder.encoder, encoder.tokenizer, projection=encoder.projection)  # as `BiEncoder` does
    np.testing.assert_array_equal(again.encode(TEXTS, engine="onnx"), before)
    assert len(made) == 1
    for changed in (encoder.encoder.blocks[0].query.bias, encoder.projection.kernel):
        changed.assign(1.5 * ops.convert_to_numpy(changed) + 0.1)
        after = encoder.encode(TEXTS, engine="onnx")
        assert np.abs(after - before).max() > 1e-3
        np.testing.assert_allclose(after, one_by_one(encoder), atol=1e-4)
        before = after
    assert len(made) == 3


def test_a_frozen_encoder_looks_at_its_weights_once(monkeypatch):
    encoder = make_encoder()
    encoder.encode(TEXTS, engine="onnx")
    bias = encoder.encoder.blocks[0].query.bias
    bias.assign(1.5 * ops.convert_to_numpy(bias) + 0.1)
    looked = []
    look = engines_module.quick_checksum
    monkeypatch.setattr(engines_module, "quick_checksum", lambda model: (looked.append(1), look(model))[1])
    frozen = SentenceEncoder(encoder.encoder, encoder.tokenizer, frozen=True)
    for _ in range(2):  # the first call finds that the engine of before is of other weights
        np.testing.assert_allclose(frozen.encode(TEXTS, engine="onnx"), one_by_one(encoder), atol=1e-4)
    frozen.encode(TEXTS)
    assert looked == [1]


def test_activations(tmp_path):
    for name in ("silu", "tanh"):
        config = {**SIZES, "num_hidden_layers": 1, "vocab_size": 59, "max_position_embeddings": 32, "hidden_act": name}
        encoder = SentenceEncoder(build_transformer_model(config), bert_tokenizer())
        np.testing.assert_allclose(encoder.encode(TEXTS, engine="onnx"), one_by_one(encoder), atol=1e-4)
    encoder = SentenceEncoder(build_transformer_model({**config, "hidden_act": "elu"}), bert_tokenizer())
    with pytest.raises(CheckpointError, match="`hidden_act` must be one of .*received 'elu'"):
        export(encoder, tmp_path / "out", "onnx")


def test_large_models_keep_their_weights_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_model, "_LARGEST_FILE", 1000)
    encoder = make_encoder(pooling="mean")
    export(encoder, tmp_path / "out", "onnx")
    beside, model = (tmp_path / "out" / name for name in ("model.onnx_data", "model.onnx"))
    assert beside.stat().st_size > 2 * model.stat().st_size
    session = session_of(tmp_path / "out" / "model.onnx")
    [vectors] = session.run(["sentence_embedding"], inputs_of(session, encoder))
    np.testing.assert_allclose(vectors, one_by_one(encoder), atol=1e-4)
    np.testing.assert_allclose(encoder.encode(TEXTS, engine="onnx"), vectors, atol=1e-4)


def test_8_bit_kernels_are_close(tmp_path):
    """A runtime that only takes the kernels back shows what rounding them costs."""
    encoder = make_encoder(pooling="mean")
    config, weights = encoder.encoder.config, export_weights(encoder.encoder)
    write_onnx(tmp_path / "int8.onnx", config, weights, "mean", int8=True)
    write_onnx(tmp_path / "float.onnx", config, weights, "mean")
    session = session_of(tmp_path / "int8.onnx")
    [vectors] = session.run(["sentence_embedding"], inputs_of(session, encoder))
    cosines = (vectors * one_by_one(encoder)).sum(axis=1)
    assert 0.99 < cosines.min() and cosines.max() < 1 - 1e-7
    kinds = [constant.data_type for constant in onnx.load(tmp_path / "int8.onnx").graph.initializer]
    assert kinds.count(onnx.TensorProto.UINT8) == 2 * 4 * SIZES["num_hidden_layers"]  # kernel and zero points


def test_engine_of_a_method(monkeypatch):
    """For a call, or from then on; by all that encode."""
    used = []
    find = sentence_encoder.engine_of
    monkeypatch.setattr(
        sentence_encoder, "engine_of", lambda engine, *args: (used.append(engine), find(engine, *args))[1]
    )
    plain = make_encoder()
    retriever = BiEncoder(plain.encoder, plain.tokenizer, query_prefix="ab ")
    encoders = (retriever.encode, retriever.encode_queries, retriever.encode_passages)
    expected = [encode(TEXTS) for encode in encoders]
    assert not used
    for vectors, encode in zip(expected, encoders, strict=True):
        np.testing.assert_allclose(encode(TEXTS, engine="onnx"), vectors, atol=1e-4)
    assert used == ["onnx"] * 3
    retriever.engine = "onnx"
    for vectors, encode in zip(expected, encoders, strict=True):
        np.testing.assert_allclose(encode(TEXTS), vectors, atol=1e-4)
        np.testing.assert_array_equal(encode(TEXTS, engine="keras"), vectors)
    assert used == ["onnx"] * 6
    with pytest.raises(ValueError, match="`engine` must be one of .*received 'torch'"):
        retriever.engine = "torch"


def test_unknown_engines_are_named():
    for engine in ("torch", "", 3):
        with pytest.raises(ValueError, match=r"`engine` must be one of \('keras', 'onnx', .*received"):
            make_encoder().encode(TEXTS, engine=engine)
    with pytest.raises(ValueError, match="`engine` must be one of .*received 'torch'"):
        make_encoder(engine="torch")


def test_a_language_model_is_refused(tmp_path):
    config = {**SIZES, "vocab_size": 59, "max_position_embeddings": 32}
    encoder = SentenceEncoder(build_transformer_model(config, application="lm"), bert_tokenizer())
    with pytest.raises(ValueError, match="`engine='onnx'` is for encoders"):
        encoder.encode(TEXTS, engine="onnx")
    with pytest.raises(ValueError, match="`to='onnx'` is for encoders"):
        export(encoder, tmp_path / "out", "onnx")


@pytest.mark.parametrize("engine, package", [("onnx", "onnxruntime"), ("openvino-int8", "openvino"), ("onnx", "onnx")])
def test_a_missing_package_names_the_extra(engine, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"`engine='{engine}'` needs .*{package}.*simretro\[engines\]"):
        make_encoder().encode(TEXTS, engine=engine)


@pytest.mark.slow
def test_nothing_of_it_is_imported_before_it_is_used():
    code = (
        "import sys, simretro.models, simretro.exports; print({'onnx', 'onnxruntime', 'openvino'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr[-1000:]


def test_engines_leave_with_the_encoder():
    import gc
    import weakref

    encoder = make_encoder()
    encoder.encode(TEXTS, engine="onnx")
    alive = weakref.ref(encoder.encoder)
    del encoder
    keras.backend.clear_session()
    gc.collect()
    assert alive() is None
