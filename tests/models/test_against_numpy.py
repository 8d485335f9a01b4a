"""`build_transformer_model` against the NumPy reference on random weights: every family, application and head."""

import json

import keras
import numpy as np
import pytest

from simretro.models import build_transformer_model
from tests.reference import numpy_bert as nb
from tests.reference.harness import build, load, run, to_numpy

pytestmark = pytest.mark.backends
FAMILIES = list(nb.FAMILIES)
APPLICATIONS = ["encoder", "unilm", "lm"]
SEGMENT_IDS = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]])
LENGTHS = [10, 6, 3]


def batch(config, seed=7):
    """Token ids of three rows, padded with the configuration's own pad id, which no token has."""
    token_ids = np.random.default_rng(seed).integers(2, config["vocab_size"], SEGMENT_IDS.shape)
    return np.where(np.arange(10) < np.array(LENGTHS)[:, None], token_ids, config["pad_token_id"])


def assert_matches(outputs, truth, real, pool="linear", mlm="linear"):
    """Compares all outputs where a token stands (`real`); what is computed at padding is nobody's business."""
    np.testing.assert_allclose(outputs["sequence"][real], truth["sequence"][real], atol=1e-5, rtol=1e-5)
    if pool:
        want = truth["pooled_tanh" if pool is True else "pooled_linear"]
        np.testing.assert_allclose(outputs["pooled"], want, atol=1e-5, rtol=1e-5)
    if mlm:
        name = "mlm_probs" if mlm is True else "mlm_logits"
        np.testing.assert_allclose(outputs[name][real], truth[name][real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("application", APPLICATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_equal_the_reference(family, application):
    config = nb.tiny_config(family)
    weights = nb.random_weights(config, 3)
    token_ids = batch(config)
    model = build(config, weights, application=application, with_pool="linear", with_mlm="linear")
    truth = nb.forward(config, weights, token_ids, SEGMENT_IDS, application)
    assert_matches(run(model, token_ids, SEGMENT_IDS), truth, token_ids != config["pad_token_id"])


@pytest.mark.parametrize("with_mlm", [False, True, "linear"])
@pytest.mark.parametrize("with_pool", [False, True, "linear"])
@pytest.mark.parametrize("family, application", [("bert", "encoder"), ("factorised", "unilm")])
def test_heads(family, application, with_pool, with_mlm):
    config = nb.tiny_config(family)
    weights = nb.random_weights(config, 3)
    token_ids = batch(config)
    model = build(config, weights, application=application, with_pool=with_pool, with_mlm=with_mlm)
    outputs = run(model, token_ids, SEGMENT_IDS)
    names = {"sequence"} | ({"pooled"} if with_pool else set())
    names |= {"mlm_probs"} if with_mlm is True else {"mlm_logits"} if with_mlm else set()
    assert set(outputs) == names
    truth = nb.forward(config, weights, token_ids, SEGMENT_IDS, application)
    assert_matches(outputs, truth, token_ids != 0, with_pool, with_mlm)
    shapes = {variable.path: tuple(variable.shape) for variable in model.weights}
    assert shapes == nb.weight_shapes(config, bool(with_pool), bool(with_mlm))


@pytest.mark.parametrize("family", FAMILIES)
def test_variables_are_those_of_the_configuration(family):
    config = nb.tiny_config(family)
    model = build_transformer_model(config, with_pool="linear", with_mlm="linear")
    assert {v.path: tuple(v.shape) for v in model.weights} == nb.weight_shapes(config)


def test_new_weights_are_those_of_bert():
    """Truncated normal of `initializer_range` for kernels and tables, zero biases, identity norms."""
    keras.utils.set_random_seed(0)
    config = nb.tiny_config(vocab_size=400, hidden_size=64, embedding_size=64, initializer_range=0.05)
    for variable in build_transformer_model(config, with_pool="linear", with_mlm="linear").weights:
        value, leaf = to_numpy(variable), variable.path.split("/")[-1]
        if leaf in ("kernel", "embeddings"):
            # On torch, Keras draws a number at most four times: one of 200,000 is beyond the limit.
            share_beyond = 1e-4 if keras.backend.backend() == "torch" else 0
            assert (np.abs(value) > 0.1 + 1e-6).mean() <= share_beyond, variable.path
            if value.size > 2000:
                assert 0.04 < value.std() < 0.055, variable.path
        else:
            np.testing.assert_array_equal(value, 1 if leaf == "gamma" else 0, err_msg=variable.path)


@pytest.mark.parametrize("as_path", [False, True])
def test_a_config_file_of_google_is_enough(tmp_path, as_path):
    """bert_config.json as released: no model type, no eps, no position kind, and keys that mean nothing here."""
    normalised = nb.tiny_config()
    kept = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
        "attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range"
    )
    config = {key: normalised[key] for key in kept.split()}
    config |= {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}
    given = config
    if as_path:
        given = tmp_path / "bert_config.json"
        given.write_text(json.dumps(config), "utf-8")
        given = str(given)
    model = build_transformer_model(given, application="unilm", with_pool="linear", with_mlm="linear")
    weights = nb.random_weights(normalised, 5)
    load(model, weights)
    truth = nb.forward(normalised, weights, batch(normalised), SEGMENT_IDS, "unilm")
    assert_matches(run(model, batch(normalised), SEGMENT_IDS), truth, batch(normalised) != 0)
    assert {key: model.config[key] for key in normalised} == normalised


# Padding and targets
@pytest.mark.parametrize("family", ["bert", "roberta", "roformer"])
@pytest.mark.parametrize("application", APPLICATIONS)
def test_padding_changes_nothing(family, application):
    config = nb.tiny_config(family)
    model = build(config, nb.random_weights(config, 3), application=application, with_pool="linear", with_mlm="linear")
    ids, segments = [[2, 9, 8, 17, 3, 7, 3]], [[0, 0, 0, 0, 0, 1, 1]]
    short = run(model, ids, segments)
    long = run(model, [ids[0] + [config["pad_token_id"]] * 10], [segments[0] + [0] * 10])
    np.testing.assert_allclose(long["pooled"], short["pooled"], atol=1e-5)
    for name in ("sequence", "mlm_logits"):
        np.testing.assert_allclose(long[name][:, :7], short[name], atol=1e-5)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_row_of_padding_is_finite(application):
    """The filler row of a short last batch must not poison the gradient of the others."""
    config = nb.tiny_config()
    model = build(config, nb.random_weights(config), application=application, with_pool="linear", with_mlm="linear")
    outputs = run(model, [[0] * 6, [2, 9, 8, 7, 5, 3]])
    assert all(np.isfinite(value).all() for value in outputs.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_unilm_source_vector_is_the_same_alone_in_a_pair_and_padded(family):
    config = nb.tiny_config(family)
    pad = config["pad_token_id"]
    model = build(config, nb.random_weights(config, 3), application="unilm", with_pool="linear")
    a, b, c = [2, 9, 8, 17, 3], [7, 30, 11, 3], [41, 3]
    alone = run(model, [a])["pooled"][0]
    pairs = [a + b + [pad] * 6, a + c + [pad] * 8, a + [pad] * 10]
    segments = [[0] * 5 + [1] * 4 + [0] * 6, [0] * 5 + [1] * 2 + [0] * 8, [0] * 15]
    for vector in run(model, pairs, segments)["pooled"]:
        np.testing.assert_allclose(vector, alone, atol=1e-5)
    bidirectional = build(config, nb.random_weights(config, 3), application="encoder", with_pool="linear")
    vectors = run(bidirectional, pairs, segments)["pooled"]
    assert np.abs(vectors[0] - vectors[2]).max() > 1e-2, "an encoder reads the whole row"


@pytest.mark.parametrize("application", ["unilm", "lm"])
@pytest.mark.parametrize("family", ["bert", "factorised", "roberta", "roformer"])
def test_a_token_is_unseen_by_all_before_it(family, application):
    config = nb.tiny_config(family)
    model = build(config, nb.random_weights(config, 3), application=application, with_mlm="linear")
    source, target = [2, 9, 8, 17, 3], [7, 30, 11, 41, 3]
    segments = [[0] * 5 + [1] * 5]
    before = run(model, [source + target], segments)["mlm_logits"][0]
    for t in range(0 if application == "lm" else 5, 10):
        changed = source + target
        changed[t] = 44
        after = run(model, [changed], segments)["mlm_logits"][0]
        np.testing.assert_allclose(after[:t], before[:t], atol=1e-5, err_msg=f"token {t}")
        for reader in range(t, 10):
            assert np.abs(after[reader] - before[reader]).max() > 1e-3, f"position {reader} must read token {t}"


def test_unilm_target_reads_the_whole_source_and_the_source_itself():
    config = nb.tiny_config()
    model = build(config, nb.random_weights(config, 3), application="unilm", with_mlm="linear")
    row, segments = [2, 9, 8, 17, 3, 7, 30, 3], [[0] * 5 + [1] * 3]
    before = run(model, [row], segments)["mlm_logits"][0]
    for t in range(5):
        after = run(model, [row[:t] + [44] + row[t + 1 :]], segments)["mlm_logits"][0]
        assert np.abs(after - before).max(-1).min() > 1e-3


# Saving, precision, dropout
@pytest.mark.parametrize("family", ["factorised", "roberta", "roformer"])
def test_a_saved_model_loads_with_the_same_outputs(family, tmp_path):
    config = nb.tiny_config(family)
    options = {"application": "unilm", "with_pool": "linear", "with_mlm": "linear"}
    model = build(config, nb.random_weights(config, 3), **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    before, after = (run(m, batch(config), SEGMENT_IDS) for m in (model, loaded))
    assert set(before) == set(after)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "factorised", "roformer"])
def test_mixed_bfloat16_stays_finite_and_near(family):
    config = nb.tiny_config(family)
    weights = nb.random_weights(config, 3)
    options = {"application": "unilm", "with_pool": "linear", "with_mlm": "linear"}
    model = build(config, weights, dtype="mixed_bfloat16", **options)
    token_ids = batch(config)
    outputs = model({"token_ids": token_ids.astype("int32"), "segment_ids": SEGMENT_IDS.astype("int32")})
    assert keras.backend.standardize_dtype(outputs["mlm_logits"].dtype) == "float32", "logits decide: float32"
    assert all(v.dtype == "float32" for v in model.weights)
    outputs = run(model, token_ids, SEGMENT_IDS)
    truth = nb.forward(config, weights, token_ids, SEGMENT_IDS, "unilm")
    real = token_ids != 0
    assert all(np.isfinite(value).all() for value in outputs.values())
    near = [(outputs["pooled"], truth["pooled_linear"])]
    near += [(outputs[name][real], truth[name][real]) for name in ("sequence", "mlm_logits")]
    for got, want in near:
        assert np.abs(got - want).mean() < 0.03 * np.abs(want).mean() + 0.02


def test_dropout_is_read_from_the_config_and_can_be_set():
    config = nb.tiny_config()
    weights = nb.random_weights(config, 3)
    inputs = {"token_ids": batch(config).astype("int32"), "segment_ids": SEGMENT_IDS.astype("int32")}

    def spread(**options):
        model = build({**config, **options.pop("config", {})}, weights, **options)
        trained, plain = (model(inputs, training=flag)["sequence"] for flag in (True, False))
        return float(np.abs(to_numpy(trained - plain)).max())

    assert spread() > 1e-2
    assert spread(dropout_rate=0.0) == pytest.approx(0, abs=1e-5)
    no_hidden, no_attention = {"hidden_dropout_prob": 0.0}, {"attention_probs_dropout_prob": 0.0}
    assert spread(config={**no_hidden, **no_attention}) == pytest.approx(0, abs=1e-5)
    assert spread(config=no_hidden) > 1e-3, "attention has a dropout of its own"
    assert spread(config=no_attention) > 1e-3


# Bad arguments
@pytest.mark.parametrize("name", ["with_pooling", "max_length", "hidden_dropout_prob", "model"])
def test_unknown_keyword_is_an_error_that_names_it(name):
    with pytest.raises((TypeError, ValueError), match=name):
        build_transformer_model(nb.tiny_config(), **{name: 1})


BAD_VALUES = [("application", "seq2seq"), ("with_pool", "mean"), ("with_mlm", "logits"), ("dropout_rate", 1.5)]


@pytest.mark.parametrize("argument, value", BAD_VALUES)
def test_bad_value_is_an_error_that_names_argument_and_value(argument, value):
    with pytest.raises(ValueError, match=f"(?s)`{argument}`.*{value}"):
        build_transformer_model(nb.tiny_config(), **{argument: value})
