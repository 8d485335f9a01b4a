import copy
import pickle
import warnings

import keras
import mirrored_simbert as toy
import numpy as np
import pytest

from simretro.methods import SimBERT, gen_synonyms, most_similar
from simretro.models import build_transformer_model, export_weights, load_weights
from simretro.training import TrainingCheckpoint, build_optimizer

pytestmark = pytest.mark.backends
tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs the tape")


def trained(simbert, epochs=1, **options):
    data = toy.make_data(simbert, **options)
    return simbert.fit(data, epochs=epochs, verbose=0).history, export_weights(simbert.encoder)


@tensorflow_only
def test_micro_batches_give_the_gradient_of_the_whole_batch():
    """True of what is a mean over tokens; in-batch negatives are those of a part."""
    weights = []
    for micro_batches in (1, 2):
        simbert = toy.make_simbert(mlm_weight=0.5, micro_batches=micro_batches)
        simbert.similarity_weight = 0.0
        logs, result = trained(simbert, mlm_rate=0.3, drop_remainder=True)
        weights.append(result)
        assert logs["loss"][0] == pytest.approx(logs["seq2seq_loss"][0] + 0.5 * logs["mlm_loss"][0], rel=0.02)
    for name in weights[0]:
        np.testing.assert_allclose(weights[1][name], weights[0][name], atol=2e-6, err_msg=name)


@tensorflow_only
def test_micro_batches_that_do_not_fit_are_refused():
    simbert = toy.make_simbert(micro_batches=3)
    with pytest.raises(Exception, match="`micro_batches` must divide the number of examples"):
        trained(simbert)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_micro_batches_must_be_a_positive_int(value):
    with pytest.raises(ValueError, match=f"`micro_batches`.*{value}"):
        toy.make_simbert().compile("sgd", micro_batches=value)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow has them")
def test_micro_batches_name_the_backend_that_lacks_them():
    with pytest.raises(NotImplementedError, match=keras.backend.backend()):
        toy.make_simbert().compile("sgd", micro_batches=2)


@pytest.mark.slow
def test_training_lowers_both_losses():
    simbert = toy.make_simbert()
    data = toy.make_data(simbert)
    simbert.compile(build_optimizer("adamw", 3e-3, warmup_steps=3, total_steps=300))
    logs = simbert.fit(data, epochs=40, verbose=0).history
    assert logs["seq2seq_loss"][-1] < 0.7 * logs["seq2seq_loss"][0]
    assert logs["similarity_loss"][-1] < 0.5 * logs["similarity_loss"][0]
    assert logs["similarity_accuracy"][-1] > 0.8


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    simbert = toy.make_simbert()
    data = toy.make_data(simbert)
    checkpoint = TrainingCheckpoint(tmp_path, data)
    simbert.fit(data, epochs=1, verbose=0, callbacks=[checkpoint])
    good = checkpoint.latest
    simbert.encoder.pooler.bias.assign(np.full(16, np.nan))
    with pytest.raises(FloatingPointError, match=f"loss.*last good checkpoint is kept: {good}"):
        simbert.fit(data, initial_epoch=1, epochs=2, verbose=0, callbacks=[checkpoint])
    assert checkpoint.latest == good
    again = toy.make_simbert()
    assert TrainingCheckpoint(tmp_path, toy.make_data(again)).restore(again) == 1
    assert all(np.isfinite(array).all() for array in export_weights(again.encoder).values())


def test_batches_beyond_the_position_table_are_refused():
    simbert = toy.make_simbert()
    groups = [[f"{letter} " * 17, f"b {letter} " * 9] for letter in "acdef"]
    with pytest.raises(ValueError, match="40 tokens.*32 positions"):
        simbert.fit(toy.SimilarPairs(groups, simbert.tokenizer, 4, maxlen=20), verbose=0)
    with pytest.raises(ValueError, match="`validation_data`.*40 tokens"):
        long_rows = toy.SimilarPairs(groups, simbert.tokenizer, 4, maxlen=20, fixed=True)
        simbert.fit(toy.make_data(simbert), validation_data=long_rows, verbose=0)


def test_data_without_masks_is_named():
    simbert = toy.make_simbert(mlm_weight=1.0)
    with pytest.raises(ValueError, match="`masked_ids`|`masked_positions`"):
        trained(simbert)


@pytest.mark.slow
def test_keras_file_keeps_weights_and_settings(tmp_path):
    simbert = SimBERT(toy.make_simbert().encoder, temperature=0.05, mlm_weight=0.5)
    simbert.tokenizer = toy.make_tokenizer()
    simbert.compile("adam")
    trained(simbert, mlm_rate=0.3)
    simbert.save(tmp_path / "simbert.keras")
    loaded = keras.saving.load_model(tmp_path / "simbert.keras")
    assert (loaded.temperature, loaded.mlm_weight) == (0.05, 0.5)
    assert int(loaded.optimizer.iterations) == int(simbert.optimizer.iterations) > 0
    for name, array in export_weights(simbert.encoder).items():
        np.testing.assert_array_equal(export_weights(loaded.encoder)[name], array)
    with pytest.raises(ValueError, match="tokenizer"):
        loaded.encode(["ab"])


@pytest.mark.parametrize("kind", ["exact", "annoy"])
def test_index_finds_itself_and_refuses_another_model(kind, tmp_path):
    simbert = toy.make_simbert()
    texts = [text for group in toy.GROUPS for text in group]
    index = simbert.build_index(texts, kind=kind)
    assert len(index) == len(texts)
    for text, found in zip(texts[:4], most_similar(texts[:4], topn=3, model=simbert), strict=True):
        assert found[0][1] == pytest.approx(1.0, abs=1e-5) and text in [name for name, score in found if score > 0.9999]
    assert len(simbert.most_similar("ab", topn=1000)) == len(texts)
    with pytest.raises(ValueError, match="topn"):
        simbert.most_similar("ab", topn=0)
    index.save(tmp_path / "index")
    expected = simbert.most_similar("ab", 3)
    simbert.index = None
    with pytest.raises(ValueError, match="build_index"):
        simbert.most_similar("ab")
    simbert.load_index(tmp_path / "index")
    assert simbert.most_similar("ab", 3) == expected
    trained(simbert)
    with pytest.raises(ValueError, match="build_index"):
        simbert.most_similar("ab")  # the old vectors are not those of the new weights
    with pytest.raises(ValueError, match=simbert.fingerprint()):
        simbert.load_index(tmp_path / "index")


def test_an_index_of_other_weights_is_not_searched(tmp_path):
    """Also where the weights were not trained but replaced: by Keras, by the best checkpoint, by hand."""
    simbert = toy.make_simbert()
    other = toy.make_simbert()
    trained(other)
    other.save_weights(tmp_path / "other.weights.h5")
    before = export_weights(simbert.encoder)
    for replace in (
        lambda: simbert.load_weights(tmp_path / "other.weights.h5"),
        lambda: load_weights(simbert.encoder, export_weights(other.encoder), "here"),
        lambda: simbert.encoder.blocks[0].output_norm.gamma.assign(np.full(16, 1.25, "float32")),
    ):
        load_weights(simbert.encoder, before, "here")
        simbert.build_index(["ab", "b c"])
        assert simbert.most_similar("ab", 1)[0][0] == "ab"
        replace()
        with pytest.raises(ValueError, match="out of date.*`build_index"):
            simbert.most_similar("ab")


def test_data_of_another_tokenizer_are_refused():
    simbert = toy.make_simbert()
    toy.make_data(simbert)
    tokens = list(simbert.tokenizer.vocab)
    swapped = toy.Tokenizer({token: i for i, token in enumerate([*tokens[:5], *tokens[:4:-1]])})
    data = toy.SimilarPairs(toy.GROUPS, swapped, 4, maxlen=10)
    with pytest.raises(ValueError, match="`x` was made with another tokenizer"):
        simbert.fit(data, verbose=0)
    with pytest.raises(ValueError, match="`validation_data` was made with another tokenizer"):
        simbert.fit(toy.make_data(simbert), validation_data=data, verbose=0)
    same = toy.SimilarPairs(toy.GROUPS, toy.make_tokenizer(), 4, maxlen=10)
    simbert.evaluate(same, verbose=0)


def test_what_would_be_ignored_is_refused():
    simbert = toy.make_simbert()
    data = toy.make_data(simbert)
    for name, value in (("loss", "mse"), ("metrics", ["mae"]), ("loss_weights", [2.0]), ("weighted_metrics", ["mae"])):
        with pytest.raises(ValueError, match=f"`{name}` must be left out"):
            simbert.compile("sgd", **{name: value})
    with pytest.raises(ValueError, match="`loss` must be left out.*'mse'"):
        simbert.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`class_weight` must be left out"):
        simbert.fit(data, class_weight={0: 2.0}, verbose=0)
    rows = data[0]
    weights = np.ones(len(rows["token_ids"]))
    with pytest.raises(ValueError, match="`sample_weight` must be left out"):
        simbert.fit(rows, sample_weight=weights, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="must hold no `sample_weight`"):
        simbert.train_on_batch(rows, sample_weight=weights)


def test_fit_needs_a_compiled_model():
    simbert = toy.make_simbert()
    with pytest.raises(ValueError, match="compiled before `fit`"):
        SimBERT(simbert.encoder, simbert.tokenizer).fit(toy.make_data(simbert), verbose=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda simbert: pickle.loads(pickle.dumps(simbert))])
def test_a_copy_has_tokenizer_weights_and_settings(copied):
    simbert = toy.make_simbert()
    simbert.temperature = 0.07
    again = copied(simbert)
    assert again.fingerprint() == simbert.fingerprint() and again.temperature == 0.07
    np.testing.assert_allclose(again.encode(["ab"]), simbert.encode(["ab"]), atol=1e-6)
    trained(again)
    assert again.fingerprint() != simbert.fingerprint()
    uncompiled = SimBERT(simbert.encoder, simbert.tokenizer)
    assert copied(uncompiled).fingerprint() == uncompiled.fingerprint()


@tensorflow_only
def test_a_copy_has_the_frozen_parts_and_the_optimizer():
    simbert = toy.make_simbert()
    simbert.encoder.embeddings.trainable = False
    trained(simbert)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # "Skipping variable loading for optimizer"
        again = copy.deepcopy(simbert)
    assert len(again.trainable_variables) == len(simbert.trainable_variables) < len(simbert.weights)
    for ours, theirs in zip(again.optimizer.variables, simbert.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@tensorflow_only
def test_an_odd_batch_of_ones_own_is_refused():
    simbert = toy.make_simbert()
    rows = toy.make_data(simbert)[0]
    simbert.evaluate(rows, batch_size=4, verbose=0)
    with pytest.raises(Exception, match="even number of rows"):
        simbert.evaluate(rows, batch_size=3, verbose=0)


@tensorflow_only
def test_an_odd_batch_under_xla_gives_no_loss():
    """XLA leaves out the check that says so."""
    import tensorflow as tf

    simbert = toy.make_simbert()

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None, 4))])
    def loss(vectors):
        rows = {"rows": tf.cast(tf.shape(vectors)[0], "float32")}
        return simbert._similarity_loss({"sentence_vectors": vectors}, rows)

    vectors = tf.random.normal((4, 4), seed=0)
    assert np.isfinite(float(loss(vectors))) and np.isnan(float(loss(vectors[:3])))


@tensorflow_only
def test_arguments_of_fit_that_would_be_ignored_or_tear_pairs_apart_are_refused():
    simbert = toy.make_simbert()
    rows = toy.make_data(simbert)[0]
    with pytest.raises(ValueError, match="`y` must be left out"):
        simbert.fit(rows, np.ones(len(rows["token_ids"])))
    with pytest.raises(ValueError, match="`shuffle` must be False for arrays: 2 rows"):
        simbert.fit(rows, shuffle=True)
    with pytest.raises(ValueError, match="no targets beside the dict"):
        simbert.train_on_batch(rows, np.ones(len(rows["token_ids"])))
    with pytest.raises(NotImplementedError, match="`micro_batches=2` does not work with XLA"):
        simbert.compile("sgd", micro_batches=2, jit_compile=True)


def test_masked_data_without_a_loss_for_it_are_refused():
    with pytest.raises(ValueError, match="`mlm_rate`.*`mlm_weight` is 0"):
        trained(toy.make_simbert(), mlm_rate=0.3)


def test_a_tokenizer_that_pads_with_another_id_is_refused():
    encoder = toy.make_simbert().encoder
    vocab = toy.make_tokenizer().vocab
    swapped = {**vocab, "[PAD]": vocab["[UNK]"], "[UNK]": vocab["[PAD]"]}
    with pytest.raises(ValueError, match="pads with id 1.*`pad_token_id` 0"):
        SimBERT(encoder, toy.Tokenizer(swapped))


def test_plain_functions_are_the_methods():
    simbert = toy.make_simbert()
    options = {"seed": 3, "maxlen": 8, "with_scores": True}
    assert gen_synonyms("abc", 8, 3, model=simbert, **options) == simbert.gen_synonyms("abc", 8, 3, **options)


def test_warnings_name_the_line_of_the_caller():
    simbert = toy.make_simbert()
    for call, message in (
        (lambda: simbert.gen_synonyms("ab", 2, 1, maxlen=60), "1 of 1 outputs are capped"),
        (lambda: simbert.encode(["ab " * 40]), "1 of 1 texts lost"),
    ):
        with pytest.warns(UserWarning, match=message) as told:
            call()
        assert {warning.filename for warning in told if message in str(warning.message)} == {__file__}


def test_bad_arguments_are_named():
    encoder = build_transformer_model(toy.CONFIG, application="encoder", with_pool="linear", with_mlm="linear")
    with pytest.raises(ValueError, match="`application='unilm'`"):
        SimBERT(encoder)
    simbert = toy.make_simbert()
    for with_pool, with_mlm in ((True, "linear"), ("linear", True)):
        encoder = build_transformer_model(toy.CONFIG, None, "unilm", with_pool, with_mlm)
        with pytest.raises(ValueError, match="`with_pool='linear'`"):
            SimBERT(encoder)
    for name, value in (("temperature", -1), ("mlm_weight", -2), ("maxlen", 33)):
        with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
            SimBERT(simbert.encoder, **{name: value})
    for name, value in (("k", 0), ("k", 2.0), ("n", "4"), ("n", True), ("top_k", 5.0), ("maxlen", "8"), ("maxlen", 2)):
        with pytest.raises(ValueError, match=f"`{name}` must be an int of at least .*received {value!r}"):
            simbert.gen_synonyms("ab", **{name: value})
    simbert.build_index(["ab"])
    with pytest.raises(ValueError, match="`topn` must be an int of at least 1; received '3'"):
        simbert.most_similar("ab", "3")
    with pytest.raises(ValueError, match="`format`.*'pickle'"):
        simbert.save_pretrained("somewhere", format="pickle")
    for temperature in (float("nan"), float("inf"), -0.1):
        with pytest.raises(ValueError, match="`temperature`"):
            simbert.gen_synonyms("ab", temperature=temperature, maxlen=8)
    with pytest.raises(TypeError, match="encode\\(\\[text\\]\\)"):
        simbert.encode("ab")
    with pytest.raises(TypeError, match="one str"):
        simbert.build_index("ab")


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_trains_with_float32_losses(dtype):
    if dtype == "mixed_float16" and keras.backend.backend() == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    encoder = build_transformer_model(
        toy.CONFIG, application="unilm", with_pool="linear", with_mlm="linear", dtype=dtype
    )
    simbert = SimBERT(encoder, toy.make_tokenizer())
    simbert.compile(build_optimizer("adamw", 1e-3, clipnorm=1.0))
    logs, weights = trained(simbert, epochs=2)
    assert logs["loss"][1] < logs["loss"][0]
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in weights.values())
    assert np.isfinite(simbert.encode(["ab", "abc"])).all()
    assert all(isinstance(text, str) for text in simbert.gen_synonyms("ab", 4, 2, maxlen=8, seed=0))
