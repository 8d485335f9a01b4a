"""BiEncoder: its loss against NumPy, one and two towers, prefixes, folders, half precision."""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `mirrored_bi_encoder` is a program and a module of the tests
import keras
import mirrored_bi_encoder as toy
import numpy as np
import pytest
from keras import ops

import simretro
from simretro.data import QueryPassages, TrainingQuery
from simretro.methods import BiEncoder, RetroMAE
from simretro.models import SentenceEncoder, build_transformer_model, export_weights, write_folder
from simretro.training import TrainingCheckpoint, build_optimizer
from tests.reference.harness import to_numpy
from tests.test_losses_contrastive import numpy_loss
from tests.test_losses_distillation import numpy_distillation

pytestmark = pytest.mark.backends
BACKEND = keras.backend.backend()
EAGER = BACKEND == "tensorflow"  # there faster than a graph that is used once or twice
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs the tape")
TEXTS = ["a b c", "", "b", "k l m n o p q", "abc " * 12]
TWO = {"passage_encoder": {"seed": 1}, "projection_size": 6}


def make_encoder(seed=0, **options):
    config = {"num_hidden_layers": 1, **options.pop("config", {})}
    return toy.make_encoder(seed, config=config, **options)


def make(tokenizer=True, **options):
    """A compiled model; `passage_encoder` is a dict, the options of `make_encoder`."""
    if options.get("passage_encoder"):
        options["passage_encoder"] = make_encoder(**options["passage_encoder"])
    encoder = make_encoder(with_pool=options.get("pooling") == "pooler")
    model = BiEncoder(encoder, toy.make_tokenizer() if tokenizer else None, **options)
    model.compile("sgd")
    return model


def make_data(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return toy.make_data(model, **{"queries_per_batch": 5, "negatives_per_query": 2, **options})


def arrays_of(model):
    return [to_numpy(variable) for variable in model.trainable_variables]


def texts_of(model, token_ids):
    return [model.tokenizer.decode(row) for row in token_ids.reshape(-1, token_ids.shape[-1])]


def evaluated(model, batch):
    model.run_eagerly = EAGER
    return model.evaluate(batch, batch_size=len(batch["passage_keys"]), return_dict=True, verbose=0)


MODES = {
    "cls": {},
    "mean": {"pooling": "mean", "temperature": 0.2},
    "pooler": {"pooling": "pooler"},
    "dot": {"similarity": "dot", "temperature": 4.0},
    "symmetric": {"symmetric": True},
    "projected": {"projection_size": 5},
    "towers": {**TWO, "passage_encoder": {"seed": 1, "config": {"hidden_size": 24}}, "symmetric": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_loss_is_that_of_the_vectors_it_encodes(mode):
    """What `encode_queries` and `encode_passages` give, in the formula, without the negatives that are none."""
    model = make(**MODES[mode])
    batch = make_data(model).batch(0, 0)
    keys, known = batch["passage_keys"], batch["positive_keys"]
    raw = {"normalize": False}
    queries = model.encode_queries(texts_of(model, batch["query_token_ids"]), **raw)
    passages = model.encode_passages(texts_of(model, batch["passage_token_ids"]), **raw)
    left_out = np.array([[key < 0 or key in row for key in keys.ravel()] for row in known])
    want, accuracy = numpy_loss(queries, passages, model.temperature, None, left_out, model.similarity)
    if model.symmetric:
        answered = np.array([[key in row for row in known] for key in keys[:, 0]])
        own = passages.reshape(*keys.shape, -1)[:, 0]
        back, _ = numpy_loss(own, queries, model.temperature, np.arange(5), answered, model.similarity)
        want = (want + back) / 2
    logs = evaluated(model, batch)
    assert set(logs) == {"loss", "contrastive_loss", "contrastive_accuracy"}
    assert logs["loss"] == pytest.approx(want, rel=1e-4) and logs["contrastive_loss"] == pytest.approx(want, rel=1e-4)
    assert logs["contrastive_accuracy"] == pytest.approx(accuracy)


def test_false_negatives_and_empty_places_have_no_say():
    """A copy of the positive in another row, and text in a place that is empty, change nothing."""
    model = make()
    queries = [TrainingQuery("a", ("b c",)), TrainingQuery("d", ("b c", "e f")), TrainingQuery("g", ("h",), ("k",))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = QueryPassages(queries, model.tokenizer, 3, 8, 16, 1, each_positive=False)
    batch = next(b for b in (data.batch(e, 0) for e in range(50)) if len(set(b["passage_keys"][:, 0].tolist())) == 2)
    loss = evaluated(model, batch)["loss"]
    filled = {**batch, "passage_token_ids": batch["passage_token_ids"].copy()}
    empty = batch["passage_keys"] < 0
    assert empty.sum() == 2
    filled["passage_token_ids"][empty, 1:4] = [7, 8, 3]
    assert evaluated(model, filled)["loss"] == pytest.approx(loss, rel=1e-5)
    unmasked = {**batch, "positive_keys": np.where(np.arange(8) < 1, batch["passage_keys"][:, :1], -1).astype("int32")}
    counted = evaluated(model, {**unmasked, "passage_keys": np.arange(6, dtype="int32").reshape(3, 2)})["loss"]
    assert counted > loss + 0.1


@pytest.mark.slow
def test_training_lowers_the_loss():
    model = make(symmetric=True)
    model.compile(build_optimizer("adamw", 1e-2))
    logs = model.fit(make_data(model), epochs=40, verbose=0).history
    assert logs["loss"][-1] < 0.5 * logs["loss"][0] and logs["contrastive_accuracy"][-1] > 0.7


def test_heads_that_no_vector_goes_through_are_not_trained():
    encoder = make_encoder(with_mlm="linear", with_pool=True)
    model = BiEncoder(encoder, toy.make_tokenizer())
    left_out = {*map(id, encoder.mlm_head.variables), *map(id, encoder.pooler.variables)}
    assert left_out.isdisjoint(map(id, model.trainable_variables))
    assert len(model.trainable_variables) == len(encoder.trainable_variables) - len(left_out)
    pooled = BiEncoder(encoder, toy.make_tokenizer(), pooling="pooler")
    assert {*map(id, encoder.pooler.variables)} < {*map(id, pooled.trainable_variables)}
    model.compile("sgd", run_eagerly=EAGER)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(make_data(model), verbose=0)
    assert not [w for w in caught if "Gradients do not exist" in str(w.message)]


@pytest.mark.parametrize("mode", ["pooler", "towers"])
def test_training_moves_every_weight(mode):
    model = make(**MODES[mode])
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=EAGER)
    before = arrays_of(model)
    model.fit(make_data(model), verbose=0)
    paths = [variable.path for variable in model.trainable_variables]
    moved = [np.abs(a - b).max() > 0 for a, b in zip(arrays_of(model), before, strict=True)]
    # A bias of the keys adds the same to all scores of an attention: it has no gradient.
    assert all(ok or path.endswith("key/bias") for ok, path in zip(moved, paths, strict=True))
    assert len(paths) == {"pooler": 23, "towers": 44}[mode]


@tensorflow_only
def test_micro_batches_have_the_negatives_of_a_part():
    options = {"queries_per_batch": 4, "drop_remainder": True}
    whole = make()
    batch = make_data(whole, **options).batch(0, 1)
    parts = [{name: array[half] for name, array in batch.items()} for half in (slice(0, 2), slice(2, 4))]
    want = np.mean([evaluated(whole, part)["loss"] for part in parts])
    model = make()
    model.compile(keras.optimizers.SGD(0.0), micro_batches=2)
    logs = model.fit(batch, batch_size=4, verbose=0).history
    assert logs["loss"][0] == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
def test_a_checkpoint_keeps_both_towers(tmp_path):
    """Two encoders have variables of the same names."""
    model, again = (
        make(**MODES["towers"]),
        make(**{**MODES["towers"], "passage_encoder": {"config": {"hidden_size": 24}}}),
    )
    for one in (model, again):
        one.compile(keras.optimizers.SGD(0.05, momentum=0.9), run_eagerly=EAGER)
    data = make_data(model)
    model.fit(data, callbacks=[TrainingCheckpoint(tmp_path, data)], verbose=0)
    assert TrainingCheckpoint(tmp_path, make_data(again)).restore(again) == 1
    for got, want in zip(
        again.variables + again.optimizer.variables, model.variables + model.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(to_numpy(got), to_numpy(want))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_gives_the_loss_of_float32(dtype):
    """Lengths 3 and 12, a temperature of 0.02 (R3)."""
    if dtype == "mixed_float16" and BACKEND == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    queries = [TrainingQuery("a", ("b",), ("c " * 10,)), TrainingQuery("d " * 10, ("e " * 10,))]
    losses = {}
    for policy in (None, dtype):
        keras.utils.set_random_seed(0)
        config = {**toy.CONFIG, "num_hidden_layers": 1}
        model = BiEncoder(build_transformer_model(config, dtype=policy), toy.make_tokenizer(), temperature=0.02)
        model.compile(build_optimizer("adamw", 1e-3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = QueryPassages(queries, model.tokenizer, 2, 16, 16, 1)
        losses[policy] = evaluated(model, data.batch(0, 0))["loss"]
    assert np.isfinite(losses[None]) and losses[dtype] == pytest.approx(losses[None], rel=0.03)
    before = arrays_of(model)
    model.fit(data, verbose=0)
    moved = [np.abs(a - b).max() for a, b in zip(arrays_of(model), before, strict=True)]
    assert np.isfinite(moved).all() and np.median(moved) > 0
    assert np.isfinite(model.encode(TEXTS[:4])).all()


# Beginnings of the vectors, a teacher


def scored_data(model, **options):
    return make_data(model, with_scores=True, **options)


def loss_at(model, batch, size=None):
    """(contrastive loss, distillation loss) of the first `size` numbers of what the model encodes, by NumPy."""
    raw = {"normalize": False}
    queries = model.encode_queries(texts_of(model, batch["query_token_ids"]), **raw)[:, :size]
    passages = model.encode_passages(texts_of(model, batch["passage_token_ids"]), **raw)[:, :size]
    keys = batch["passage_keys"]
    left_out = np.array([[key < 0 or key in row for key in keys.ravel()] for row in batch["positive_keys"]])
    contrastive, _ = numpy_loss(queries, passages, model.temperature, None, left_out, model.similarity)
    if model.similarity == "cosine":
        queries, passages = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, passages))
    groups = passages.reshape(*keys.shape, -1)
    scores = np.einsum("qd,qgd->qg", queries.astype("float64"), groups) / model.temperature
    kind, teacher = model.distillation or "kl", batch["teacher_scores"]
    return contrastive, numpy_distillation(scores, teacher, kind, model.teacher_temperature)[0]


@pytest.mark.parametrize("kind, similarity", [("kl", "cosine"), ("margin_mse", "dot")])
def test_a_teacher_has_its_share_of_the_loss(kind, similarity):
    """Empty places, which have no score, are no passages of the teacher's."""
    model = make(distillation=kind, distillation_weight=0.25, teacher_temperature=2.0, similarity=similarity)
    batch = scored_data(model, negatives_per_query=3).batch(0, 0)
    assert np.isnan(batch["teacher_scores"]).sum() == 5
    contrastive, distilled = loss_at(model, batch)
    logs = evaluated(model, batch)
    assert set(logs) == {"loss", "contrastive_loss", "contrastive_accuracy", "distillation_loss"}
    assert logs["distillation_loss"] == pytest.approx(distilled, rel=1e-4)
    assert logs["contrastive_loss"] == pytest.approx(contrastive, rel=1e-4)
    assert logs["loss"] == pytest.approx(0.75 * contrastive + 0.25 * distilled, rel=1e-4)


def test_beginnings_of_the_vectors_have_losses_of_their_own():
    options = {"distillation": "kl", "distillation_weight": 0.5, "temperature": 0.5}
    model = make(matryoshka_sizes=(8, 4), matryoshka_weights=(0.5, 2), **options)
    batch = scored_data(model).batch(0, 0)
    losses = {size: loss_at(model, batch, size) for size in (None, 8, 4)}
    logs = evaluated(model, batch)
    assert len(logs) == 1 + 3 * 3
    for size, (contrastive, distilled) in losses.items():
        end = "" if size is None else f"_{size}"
        assert logs[f"contrastive{end}_loss"] == pytest.approx(contrastive, rel=1e-4)
        assert logs[f"distillation{end}_loss"] == pytest.approx(distilled, rel=1e-4)
    want = np.average([np.mean(losses[size]) for size in (None, 8, 4)], weights=[1, 0.5, 2])
    assert logs["loss"] == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
def test_a_teacher_and_short_vectors_are_learnt_from():
    model = make(distillation="kl", distillation_weight=1.0, temperature=0.2, matryoshka_sizes=[4])
    model.compile(build_optimizer("adamw", 1e-2))
    logs = model.fit(scored_data(model), epochs=40, verbose=0).history
    for name in ("distillation_loss", "distillation_4_loss"):
        assert logs[name][-1] < 0.5 * logs[name][0]


@tensorflow_only
def test_parts_of_a_batch_share_the_scores():
    """`micro_batches`: the mean is over the scores of all parts, however many each has."""
    options = {"distillation": "margin_mse", "distillation_weight": 1.0, "similarity": "dot"}
    whole = make(**options)
    batch = scored_data(whole, queries_per_batch=4, negatives_per_query=3, drop_remainder=True).batch(0, 1)
    batch["teacher_scores"][0, 1:] = np.nan  # two scores in the first half, four in the second
    parts = make(**options)
    parts.compile(keras.optimizers.SGD(0.0), micro_batches=2, run_eagerly=True)
    logs = parts.fit(batch, batch_size=4, verbose=0).history
    want = loss_at(whole, batch)[1]
    assert logs["loss"][0] == pytest.approx(want, rel=1e-4) == logs["distillation_loss"][0]


def test_data_and_teacher_must_fit():
    plain, taught = make(), make(distillation="kl")
    with pytest.raises(ValueError, match="`x` has a teacher's scores .*but `distillation` is None"):
        plain.fit(scored_data(plain), verbose=0)
    with pytest.raises(ValueError, match="lacks `teacher_scores`: .*`with_scores=True`"):
        evaluated(taught, make_data(taught).batch(0, 0))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"distillation": "mse"}, "`distillation` must be 'kl', 'margin_mse' or None; received 'mse'"),
        ({"distillation_weight": 0}, r"`distillation_weight` must be in \(0, 1\]; received 0"),
        ({"distillation_weight": 1.5}, "`distillation_weight`.*received 1.5"),
        ({"teacher_temperature": 0}, "`teacher_temperature` must be positive; received 0"),
        ({"matryoshka_sizes": [8, 16]}, r"`matryoshka_sizes` must be different sizes below 16.*\[8, 16\]"),
        ({"matryoshka_sizes": [8], "projection_size": 8}, "`matryoshka_sizes` must be different sizes below 8"),
        ({"matryoshka_sizes": [8, 8]}, "`matryoshka_sizes` must be different"),
        ({"matryoshka_sizes": []}, "`matryoshka_sizes` must be different"),
        ({"matryoshka_sizes": [0]}, "`matryoshka_sizes` must be an int of at least 1; received 0"),
        ({"matryoshka_sizes": [8], "matryoshka_weights": [1, 2]}, "`matryoshka_weights` must be 1 numbers"),
        ({"matryoshka_sizes": [8], "matryoshka_weights": [-1]}, r"`matryoshka_weights`.*at least 0.*\[-1.0\]"),
        ({"matryoshka_weights": [1]}, "`matryoshka_weights` need `matryoshka_sizes`"),
    ],
)
def test_bad_settings_of_teacher_and_beginnings(options, message):
    with pytest.raises(ValueError, match=message):
        BiEncoder(make_encoder(), **options)


# Vectors


@pytest.mark.parametrize("mode", ["cls", "mean", "projected"])
def test_vectors_do_not_depend_on_the_batch(mode):
    """Order kept, nothing from padding, `[]` and "" (R8); cosine: length 1."""
    model = make(**MODES[mode])
    want = np.concatenate([model.encode([text]) for text in TEXTS])
    for batch_size in (1, 2, 32):
        np.testing.assert_allclose(model.encode(TEXTS, batch_size), want, atol=1e-5)
    size = model.projection_size or 16
    assert model.encode([]).shape == (0, size) and want.shape == (5, size)
    np.testing.assert_allclose(np.linalg.norm(want, axis=1), 1, atol=1e-5)
    assert model.sentence_encoder.dimension == size
    raw = model.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), want, atol=1e-5)


def test_dot_products_are_of_vectors_as_they_are():
    model = make(similarity="dot", temperature=1.0)
    assert np.abs(np.linalg.norm(model.encode(TEXTS), axis=1) - 1).max() > 0.1


def test_prefixes_and_lengths_of_queries_and_passages():
    model = make(query_prefix="k: ", passage_prefix="l: ", query_maxlen=6, passage_maxlen=12, maxlen=20)
    assert [e.maxlen for e in (model.sentence_encoder, model.query_sentence_encoder)] == [20, 6]
    assert model.passage_sentence_encoder.maxlen == 12
    for texts in (["a b", "c"], iter(["a b", "c"])):
        np.testing.assert_allclose(model.encode_queries(texts), model.encode(["k: a b", "k: c"]), atol=1e-6)
    np.testing.assert_allclose(model.encode_passages(["a b"]), model.encode(["l: a b"]), atol=1e-6)
    assert np.abs(model.encode_passages(["a b"]) - model.encode(["a b"])).max() > 1e-3
    for encode in (model.encode_queries, model.encode_passages):
        with pytest.raises(TypeError, match="one str"):
            encode("a b")
        with pytest.raises(TypeError, match="str"):
            encode(["a", 3])


def test_towers_encode_apart():
    model = make(**TWO)
    queries, passages = model.encode_queries(TEXTS), model.encode_passages(TEXTS)
    assert queries.shape == passages.shape == (5, 6) and np.abs(queries - passages).max() > 0.1
    for encode in (lambda: model.sentence_encoder, lambda: model.encode(TEXTS)):
        with pytest.raises(ValueError, match="`encode_queries`.*`passage_sentence_encoder`"):
            encode()


def test_training_moves_projected_vectors_of_an_encoder_at_hand():
    model = make(projection_size=5)
    encoder = model.sentence_encoder
    before, fingerprint = encoder.encode(TEXTS), encoder.fingerprint()
    model.projection.kernel.assign(2 * to_numpy(model.projection.kernel)[:, ::-1])
    np.testing.assert_allclose(encoder.encode(TEXTS), before[:, ::-1], atol=1e-5)
    assert encoder.fingerprint() != fingerprint


# Folders

SAVED = {
    "cls": {"query_prefix": "k: ", "passage_maxlen": 12, "maxlen": 20, "temperature": 0.02, "symmetric": True},
    "pooler": {"pooling": "pooler", "similarity": "dot"},
    "projected": {"pooling": "mean", "projection_size": 5, "matryoshka_sizes": [2, 4], "distillation": "kl"},
    "towers": {**MODES["towers"], "pooling": "mean"},
}


@pytest.mark.parametrize("mode", SAVED)
def test_a_folder_keeps_it_all(mode, tmp_path):
    model = make(**SAVED[mode])
    model.save_pretrained(tmp_path / "retriever", facts={"steps": 3})
    loaded = BiEncoder.from_pretrained(tmp_path / "retriever")
    settings = loaded._settings()
    assert settings == model._settings()
    assert {k: settings[k] for k in SAVED[mode] if k != "passage_encoder"} == {
        k: v for k, v in SAVED[mode].items() if k != "passage_encoder"
    }
    for got, want in zip(arrays_of(loaded), arrays_of(model), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(loaded.encode_queries(TEXTS[:4]), model.encode_queries(TEXTS[:4]))
    np.testing.assert_array_equal(loaded.encode_passages(TEXTS[:3]), model.encode_passages(TEXTS[:3]))
    if mode == "towers":
        with pytest.raises(ValueError, match="two encoders.*`BiEncoder.from_pretrained`"):
            SentenceEncoder.from_pretrained(tmp_path / "retriever")
        return
    encoder = SentenceEncoder.from_pretrained(tmp_path / "retriever")
    np.testing.assert_array_equal(encoder.encode(TEXTS[:4]), model.encode(TEXTS[:4]))
    encoder.save_pretrained(tmp_path / "encoder")
    again = SentenceEncoder.from_pretrained(tmp_path / "encoder")
    assert again.fingerprint() == encoder.fingerprint() == model.sentence_encoder.fingerprint()


def test_settings_may_be_replaced_when_loading(tmp_path):
    make(projection_size=5).save_pretrained(tmp_path / "retriever")
    loaded = BiEncoder.from_pretrained(tmp_path / "retriever", temperature=0.3, projection_size=None)
    assert loaded.temperature == 0.3 and loaded.projection is None
    with pytest.raises(ValueError, match=r"projection.*model \(16, 4\), file \(16, 5\)"):
        BiEncoder.from_pretrained(tmp_path / "retriever", projection_size=4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_sentence_transformers_folder(pooling, tmp_path):
    """It is read as it says: also by a new BiEncoder, whose default would be another pooling."""
    model = make(pooling=pooling, maxlen=20)
    model.save_pretrained(tmp_path / "st", format="sentence-transformers")
    np.testing.assert_allclose(
        SentenceEncoder.from_pretrained(tmp_path / "st").encode(TEXTS[:4]), model.encode(TEXTS[:4])
    )
    for name in ("simretro.json", "facts.json"):
        (tmp_path / "st" / name).unlink(missing_ok=True)
    loaded = BiEncoder.from_pretrained(tmp_path / "st", similarity="dot")
    assert (loaded.pooling, loaded.maxlen, loaded.similarity) == (pooling, 20, "dot")


def test_recomputing_is_asked_for_when_loading(tmp_path):
    make(**TWO).save_pretrained(tmp_path / "retriever")
    loaded = BiEncoder.from_pretrained(tmp_path / "retriever", recompute=True, dropout_rate=0.25)
    for encoder in (loaded.encoder, loaded.passage_encoder):
        assert encoder.recompute and encoder.config["hidden_dropout_prob"] == 0.25


def test_pre_trained_encoders_start_a_retriever(tmp_path):
    encoder = make_encoder(with_mlm="linear")
    mae = RetroMAE(encoder, toy.make_tokenizer(), maxlen=24)
    mae.save_pretrained(tmp_path / "mae")
    started = BiEncoder.from_pretrained(tmp_path / "mae", dropout_rate=0.25)
    assert (started.pooling, started.maxlen) == ("cls", 24) and started.encoder.mlm_head is None
    assert started.encoder.config["hidden_dropout_prob"] == 0.25
    for name, array in export_weights(started.encoder).items():
        np.testing.assert_array_equal(array, export_weights(encoder)[name])
    write_folder(tmp_path / "bert", make_encoder(with_pool=True), toy.make_tokenizer())
    assert BiEncoder.from_pretrained(tmp_path / "bert", pooling="pooler").encoder.with_pool is True


@pytest.mark.parametrize("format", ["sentence-transformers", "huggingface", "tf1"])
@pytest.mark.parametrize("options, what", [({"projection_size": 4}, "a projection"), (TWO, "a second encoder")])
def test_formats_that_cannot_hold_the_model(options, what, format, tmp_path):
    with pytest.raises(ValueError, match=f"`format` must be 'simretro' for a model with {what}; received '{format}'"):
        make(**options).save_pretrained(tmp_path / "retriever", format=format)
    assert not (tmp_path / "retriever").exists()


@pytest.mark.slow
def test_keras_file_keeps_weights_and_settings(tmp_path):
    model = make(**SAVED["towers"])
    model.compile("adam", run_eagerly=EAGER)
    model.fit(make_data(model), verbose=0)
    model.save(tmp_path / "retriever.keras")
    loaded = keras.saving.load_model(tmp_path / "retriever.keras")
    assert loaded._settings() == model._settings()
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) > 0
    for got, want in zip(arrays_of(loaded), arrays_of(model), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="tokenizer"):
        loaded.encode_queries(["a"])


# Bad input


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", 0),
        ("temperature", float("nan")),
        ("similarity", "euclid"),
        ("pooling", "max"),
        ("pooling", "pooler"),
        ("projection_size", 0),
        ("maxlen", 41),
        ("query_maxlen", 41),
        ("passage_maxlen", 41),
    ],
)
def test_bad_value_is_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}.*{'with_pool' if value == 'pooler' else value}"):
        BiEncoder(make_encoder(), **{name: value})


def test_encoders_that_do_not_fit_are_refused():
    encoder = make_encoder()
    with pytest.raises(ValueError, match="`encoder` must be built with `application='encoder'`; received 'unilm'"):
        BiEncoder(make_encoder(application="unilm"))
    with pytest.raises(ValueError, match="`passage_encoder` must be built with .*'lm'"):
        BiEncoder(encoder, passage_encoder=make_encoder(application="lm"))
    with pytest.raises(ValueError, match="`passage_encoder` must not be `encoder`"):
        BiEncoder(encoder, passage_encoder=encoder)
    wider = make_encoder(config={"hidden_size": 24})
    with pytest.raises(ValueError, match="16 and 24 numbers.*`projection_size`"):
        BiEncoder(encoder, passage_encoder=wider)
    with pytest.raises(ValueError, match="`tokenizer` has 50 tokens"):
        other = make_encoder(config={"vocab_size": 20})
        BiEncoder(encoder, toy.make_tokenizer(), passage_encoder=other)


def test_data_that_do_not_fit_are_refused():
    model = make(query_prefix="k: ")
    with pytest.raises(ValueError, match="`x` has the `query_prefix` '', but this model.*'k: '"):
        model.fit(make_data(model), verbose=0)
    model = make()
    with pytest.raises(ValueError, match="`validation_data` has the `passage_prefix` 'l: '"):
        model.fit(make_data(model), validation_data=make_data(model, passage_prefix="l: "), verbose=0)
    swapped = toy.make_tokenizer()
    tokens = list(swapped.vocab)
    swapped = toy.Tokenizer({token: i for i, token in enumerate([*tokens[:5], *tokens[:4:-1]])})
    other = QueryPassages([TrainingQuery("a", ("b",)), TrainingQuery("c", ("d",))], swapped)
    with pytest.raises(ValueError, match="`x` was made with another tokenizer"):
        model.fit(other, verbose=0)
    long = [TrainingQuery("a", ("b " * 60,)), TrainingQuery("c", ("d",))]
    data = QueryPassages(long, model.tokenizer, passage_maxlen=64)
    with pytest.raises(ValueError, match="64 tokens a passage.*40 positions.*`passage_maxlen`"):
        model.fit(data, verbose=0)
    batch = make_data(make()).batch(0, 0)
    del batch["positive_keys"]
    with pytest.raises(ValueError, match="lacks `positive_keys`.*`QueryPassages`|lacks `positive_keys`"):
        evaluated(model, batch)


def test_texts_need_a_tokenizer():
    model = make(tokenizer=False)
    for encode in (model.encode, model.encode_queries, model.encode_passages):
        with pytest.raises(ValueError, match="no tokenizer.*`bi_encoder.tokenizer`"):
            encode(["a"])


def test_loss_of_vectors_on_the_device_is_float32():
    model = make(projection_size=4)
    vectors = model({k: ops.convert_to_tensor(v) for k, v in make_data(model).batch(0, 0).items()}, training=False)
    assert {name: tuple(v.shape) for name, v in vectors.items()} == {"queries": (5, 4), "passages": (5, 3, 4)}
    assert all("float32" in str(v.dtype) for v in vectors.values())


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has it")
def test_backends_without_a_gradient_cache_say_so():
    with pytest.raises(NotImplementedError, match=f"`gradient_cache_rows=4` needs the TensorFlow backend.*{BACKEND}"):
        make().compile("sgd", gradient_cache_rows=4)


def test_prefixes_and_similarity_come_back_from_a_folder_of_sentence_transformers(tmp_path):
    model = make(query_prefix="a ", passage_prefix="b ", similarity="dot")
    model.save_pretrained(tmp_path / "own", format="sentence-transformers")
    said = json.loads((tmp_path / "own/config_sentence_transformers.json").read_text("utf-8"))
    assert said["prompts"] == {"query": "a ", "document": "b "} and said["similarity_fn_name"] == "dot"
    simretro.export(model, tmp_path / "exported", "sentence-transformers")
    for folder in ("own", "exported"):
        again = BiEncoder.from_pretrained(tmp_path / folder)
        assert (again.query_prefix, again.passage_prefix, again.similarity) == ("a ", "b ", "dot")
        np.testing.assert_allclose(again.encode_queries(TEXTS), model.encode_queries(TEXTS), atol=1e-5)


def test_lengths_to_cut_at_may_be_replaced(tmp_path):
    make(matryoshka_sizes=[4, 8]).save_pretrained(tmp_path / "model")
    assert BiEncoder.from_pretrained(tmp_path / "model", matryoshka_sizes=[8]).matryoshka_weights == [1.0]
    assert BiEncoder.from_pretrained(tmp_path / "model", matryoshka_sizes=None).matryoshka_sizes is None
    assert list(BiEncoder.from_pretrained(tmp_path / "model").matryoshka_sizes) == [4, 8]
