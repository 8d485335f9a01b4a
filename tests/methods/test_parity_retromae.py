"""A folder that RetroMAE writes, opened by sentence-transformers, transformers and Keras Hub: the same numbers."""

import keras
import numpy as np
import pytest

from simretro import RetroMAE, build_transformer_model, train_wordpiece

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:`maxlen`")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")
keras_hub = pytest.importorskip("keras_hub")

SETTINGS = {
    "enhanced": {},
    "dupmae": {"query_norm": True, "bow_weight": 0.1, "mask_pool_size": 4},
    "basic": {"decoding": "basic"},
    "mlm": {"decoding": None},
}
TEXTS = ["Open the door, please.", "", "zebra 42 naïve 你好", "the slow river carries the light of the lamp " * 9]
MAXLEN = 40  # the last text is longer

every_kind = pytest.mark.parametrize("kind", SETTINGS)


@pytest.fixture
def mae(kind):
    return random_retromae(kind)


def random_retromae(kind, **changes):
    """A RetroMAE whose weights all matter: biases and norms, too, are random."""
    words = " ".join(TEXTS).split()
    tokenizer = train_wordpiece(words + [word[: len(word) // 2] for word in words], 200, min_count=1)
    config = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_token_id,
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 48,
        **changes,
    }
    encoder = build_transformer_model(config, with_mlm="linear")
    mae = RetroMAE(encoder, tokenizer, maxlen=MAXLEN, **SETTINGS[kind])
    rng = np.random.default_rng(0)
    for variable in mae.trainable_variables:
        variable.assign(rng.normal(0.5 if "gamma" in variable.path else 0, 0.3, variable.shape))
    return mae


@pytest.fixture
def folder(mae, tmp_path):
    mae.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def token_ids_of(mae):
    return mae.tokenizer.encode_batch(TEXTS, maxlen=MAXLEN)[0]


def outputs_of(mae):
    """(token ids, padding mask, last hidden states, logits) of our own."""
    token_ids = token_ids_of(mae)
    outputs = mae.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}, training=False)
    real = token_ids != mae.tokenizer.pad_token_id
    assert 0 < real.mean() < 1, "there is padding"
    return token_ids, real, *(keras.ops.convert_to_numpy(outputs[name]) for name in ("sequence", "mlm_logits"))


@every_kind
def test_sentence_transformers_gives_the_same_vectors(mae, folder):
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu")
    assert theirs.max_seq_length == MAXLEN
    expected = mae.encode(TEXTS, show_progress=False)
    assert np.abs(np.linalg.norm(expected, axis=1) - 1).min() > 0.1, "vectors are not normalised, nor may they be"
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)


@every_kind
def test_transformers_gives_the_same_ids_states_and_logits(mae, folder):
    token_ids, real, hidden, logits = outputs_of(mae)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=MAXLEN, return_tensors="pt")
    np.testing.assert_array_equal(batch["input_ids"].numpy(), token_ids)
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
        head = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        predicted = head(**batch).logits
    np.testing.assert_allclose(states.numpy()[real], hidden[real], atol=1e-5)
    np.testing.assert_allclose(predicted.numpy()[real], logits[real], atol=5e-5)


@every_kind
def test_transformers_misses_nothing_and_ignores_nothing(mae, folder):
    _, said = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] and not said["mismatched_keys"]
    # Keras Hub asks for a pooler, which transformers' class with an MLM head has not.
    assert all("pooler" in key for key in said["unexpected_keys"])


@pytest.mark.parametrize("hidden_act, atol", [("gelu_new", 1e-5), ("gelu", 2e-3)])
def test_keras_hub_gives_the_same_states(hidden_act, atol, tmp_path):
    """Its BERT has the approximate gelu whatever the config says; that is all there is between "gelu" and it."""
    mae = random_retromae("enhanced", hidden_act=hidden_act)
    mae.save_pretrained(tmp_path)
    token_ids, real, hidden, _ = outputs_of(mae)
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert isinstance(backbone, keras_hub.models.BertBackbone)
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": real.astype("int32")}
    found = keras.ops.convert_to_numpy(backbone(inputs, training=False)["sequence_output"])
    np.testing.assert_allclose(found[real], hidden[real], atol=atol)
