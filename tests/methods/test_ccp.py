"""CCP: both tasks against references, its state from step to step, into a folder and back, resumed."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))  # `mirrored_ccp` is a program and a module of the tests
import keras
import mirrored_ccp as toy
import numpy as np
import pytest
from keras import ops

from simretro.data import ContextWindows
from simretro.data.documents import Document
from simretro.methods import CCP, RetroMAE
from simretro.models import SentenceEncoder, build_transformer_model, export_weights, write_folder
from simretro.tokenizers import Tokenizer
from simretro.training import TrainingCheckpoint
from tests.reference import numpy_bert as nb
from tests.reference.harness import to_numpy
from tests.test_losses_context import loop, pairs

pytestmark = pytest.mark.backends
BACKEND = keras.backend.backend()
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs the tape")
ROWS = ("document_ids", "sentence_positions", "language_ids", "sides", "sentence_keys")
LETTERS = [chr(97 + i) for i in range(22)]
TEXTS = ["a b c", "", "b", "k l m n o p q"]


def make_tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "x"]
    return Tokenizer({token: i for i, token in enumerate(tokens)})


def encoder_of(**options):
    config = nb.tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return build_transformer_model(config, **{"application": "encoder", "with_mlm": "linear", **options})


def ccp_of(**options):
    """A model for a few steps, for which a graph does not pay."""
    ccp = toy.make_ccp(**options)
    ccp.run_eagerly = BACKEND == "tensorflow"
    return ccp


def state_of(ccp):
    """Bank, phase and running statistics: what changes besides the weights."""
    found = {variable.path: to_numpy(variable).copy() for variable in ccp.non_trainable_variables}
    return {name: array for name, array in found.items() if "seed" not in name}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def run(ccp, batch):
    ccp.reset_metrics()
    return ccp.train_on_batch(batch, return_dict=True)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def head_of(ccp, batch, training_side, running):
    """The head's vectors by hand: one side by its own statistics, the other by `running`."""
    token_ids = batch["encoder_token_ids"]
    states = to_numpy(ccp.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)})["sequence"])
    hidden = states[:, 0] @ to_numpy(ccp.head.hidden.kernel)
    chosen = (batch["sides"] == training_side)[:, None]
    own = hidden[chosen[:, 0]]
    mean, variance = (np.where(chosen, a, b) for a, b in zip((own.mean(0), own.var(0)), running, strict=True))
    norm = ccp.head.norm.layer
    hidden = (hidden - mean) / np.sqrt(variance + 1e-5) * to_numpy(norm.gamma) + to_numpy(norm.beta)
    kernel, bias = to_numpy(ccp.head.projection.kernel), to_numpy(ccp.head.projection.bias)
    return np.maximum(hidden, 0) @ kernel + bias


# The context task
def test_losses_and_bank_of_some_steps_equal_numpy():
    """Alternating sides, a bank by language that is written across its end, several positives; nothing is learnt."""
    ccp = ccp_of(learning_rate=0.0, warmup_updates=0)
    running, banks = (np.zeros(32), np.ones(32)), {0: [], 1: []}
    for step in range(7):
        language = 0 if step in (1, 4) else 1
        batch = toy.context_batch(step, language=language)
        z = head_of(ccp, batch, step % 2, running)
        positives, visible = pairs({name: batch[name] for name in ROWS})
        kept = banks[language][-10:]
        vectors = np.array([row[0] for row in kept]).reshape(-1, 8)
        documents, keys = (np.array([row[i] for row in kept], "int32") for i in (1, 2))
        bank_visible = (batch["document_ids"][:, None] != documents) & ~np.isin(keys, batch["sentence_keys"])
        want = loop(z, z, positives, visible, 0.1, vectors, bank_visible)
        logs = run(ccp, batch)
        assert logs["context_loss"] == pytest.approx(want[0], rel=1e-4)
        assert logs["loss"] == pytest.approx(want[0], rel=1e-4)
        assert logs["context_accuracy"] == pytest.approx(want[1], abs=1e-6)
        chance = np.log(visible.sum(1) + bank_visible.sum(1))
        assert logs["context_chance"] == pytest.approx((chance * positives.sum(1)).sum() / positives.sum(), rel=1e-5)
        targets = np.flatnonzero(batch["sides"] == 1)
        banks[language] += [(unit(z)[i], batch["document_ids"][i], batch["sentence_keys"][i]) for i in targets]
        hidden = to_numpy(ccp.head.norm.layer.moving_mean)
        assert hidden.shape == (32,)
        running = hidden, to_numpy(ccp.head.norm.layer.moving_variance)
    assert to_numpy(ccp.bank.bank_filled).tolist() == [8, 10]
    np.testing.assert_allclose(
        np.sort(to_numpy(ccp.bank.bank_vectors)[10:20], axis=0),
        np.sort(np.array([row[0] for row in banks[1][-10:]]), axis=0),
        atol=1e-4,
    )


@pytest.mark.parametrize("enqueue, sides", [("target", [1, 1]), ("both", [0, 1]), ("eval", [1, 0])])
def test_what_enters_the_bank(enqueue, sides):
    """Of two steps; the contexts have the running statistics in the first, the centres in the second."""
    ccp, expected = ccp_of(learning_rate=0.0, enqueue=enqueue, bank_size=20), []
    for step in range(2):
        batch = toy.context_batch(step)
        run(ccp, batch)
        chosen = batch["sides"] >= 0 if enqueue == "both" else batch["sides"] == sides[step]
        expected += batch["sentence_keys"][chosen].tolist()
    assert to_numpy(ccp.bank.bank_sentence_keys)[: len(expected)].tolist() == expected
    assert to_numpy(ccp.bank.bank_filled).tolist() == [len(expected), 0]


@pytest.mark.parametrize("exclude_positives", [False, True])
def test_the_chance_is_the_loss_of_vectors_that_tell_nothing(exclude_positives):
    ccp = ccp_of(learning_rate=0.0, exclude_positives=exclude_positives, bank_size=10)
    ccp.head.projection.kernel.assign(0 * ccp.head.projection.kernel)
    ccp.head.projection.bias.assign(0 * ccp.head.projection.bias + 1)
    for step in range(2):  # the bank is empty in the first
        batch = toy.context_batch(step)
        assert pairs({name: batch[name] for name in ROWS})[0].sum(1).max() > 1  # several positives
        logs = run(ccp, batch)
        assert logs["context_chance"] == pytest.approx(logs["context_loss"], rel=1e-5)


def test_no_bank_and_the_mean_of_the_states():
    ccp = ccp_of(bank_size=0, pooling="mean")
    assert ccp.bank is None
    batch = toy.context_batch(0)
    logs = run(ccp, batch)
    positives, visible = pairs({name: batch[name] for name in ROWS})
    assert logs["context_chance"] == pytest.approx(
        (np.log(visible.sum(1)) * positives.sum(1)).sum() / positives.sum(), rel=1e-5
    )
    token_ids = batch["encoder_token_ids"]
    states = to_numpy(ccp.encoder({"token_ids": token_ids, "segment_ids": 0 * token_ids})["sequence"])
    real = (token_ids != 0)[:, :, None]
    want = to_numpy(ccp.head(((states * real).sum(1) / real.sum(1)).astype("float32"), training=False))
    np.testing.assert_allclose(to_numpy(ccp(batch, training=False)["context"]), want, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_norm": None},
        {"batch_norm": "plain"},
        {"similarity": "dot"},
        {"bank_kind": "shared"},
        {"bank_kind": "tagged"},
        {"exclude_positives": True, "negatives": "cross"},
        {"mask_same_document": False, "window_sentences": 1},
    ],
)
@pytest.mark.slow
def test_the_ablations_train(options):
    ccp = ccp_of(learning_rate=0.01, **options)
    losses = [run(ccp, toy.context_batch(step, language=step % 2))["context_loss"] for step in range(3)]
    assert np.isfinite(losses).all()
    lengths = np.linalg.norm(to_numpy(ccp.bank.bank_vectors)[:4], axis=1)
    assert np.allclose(lengths, 1, atol=1e-4) == ("similarity" not in options)


# The two tasks
def test_masked_tokens_are_the_loss_of_retromae_without_a_decoder():
    """The same numbers on the same weights; and what the context task knows stays as it is."""
    ccp = ccp_of(learning_rate=0.0)
    run(ccp, toy.context_batch(0))
    state, batch = state_of(ccp), toy.mlm_batch(1)
    plain = RetroMAE(ccp.encoder, decoding=None)
    plain.compile("sgd")
    want = plain.evaluate(batch, batch_size=8, return_dict=True, verbose=0)
    logs = run(ccp, batch)
    assert logs["mlm_loss"] == pytest.approx(want["encoder_loss"], rel=1e-5)
    assert logs["mlm_accuracy"] == pytest.approx(want["encoder_accuracy"], abs=1e-6)
    assert logs["loss"] == pytest.approx(logs["mlm_loss"], rel=1e-6) and logs["context_loss"] == 0
    assert same(state_of(ccp), state)
    logs = run(ccp, toy.context_batch(2))
    assert logs["mlm_loss"] == 0 and logs["loss"] == pytest.approx(logs["context_loss"], rel=1e-6)


def test_an_idle_task_does_not_weigh_in_the_metrics_of_an_epoch():
    ccp = ccp_of(bank_size=0)
    batches = [toy.context_batch(0), toy.mlm_batch(1), toy.context_batch(2), toy.mlm_batch(3)]
    single = [ccp.evaluate(batch, batch_size=8, return_dict=True, verbose=0) for batch in batches]
    logs = ccp.evaluate(Several(batches), return_dict=True, verbose=0)
    positives = [pairs({name: batch[name] for name in ROWS})[0].sum() for batch in batches]
    want = np.average([one["context_loss"] for one in single], weights=positives)
    assert logs["context_loss"] == pytest.approx(want, rel=1e-5)
    assert logs["mlm_loss"] == pytest.approx((single[1]["mlm_loss"] + single[3]["mlm_loss"]) / 2, rel=1e-5)


class Several(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.slow
def test_both_tasks_are_learnt():
    ccp = toy.make_ccp()
    ccp.compile(keras.optimizers.Adam(1e-2))
    batches = [toy.context_batch(0), toy.mlm_batch(1)]
    losses = np.array([[run(ccp, batch)["loss"] for batch in batches] for _ in range(12)])
    assert (losses[-2:].mean(0) < losses[0] * 0.8).all()


def test_arrays_of_one_task_are_enough():
    ccp = ccp_of()
    masked = {name: values for name, values in toy.mlm_batch(0).items() if name not in ROWS}
    assert run(ccp, masked)["mlm_loss"] > 0
    context = {name: values for name, values in toy.context_batch(0).items() if not name.startswith("masked")}
    del context["encoder_token_ids"], context["sentence_keys"]
    assert run(ccp, context)["context_loss"] > 0


def test_evaluation_changes_no_state_and_needs_no_side():
    ccp = ccp_of()
    run(ccp, toy.context_batch(0))
    state, batch = state_of(ccp), toy.context_batch(5)
    logs = ccp.evaluate(batch, batch_size=8, return_dict=True, verbose=0)
    assert same(state_of(ccp), state)
    z = to_numpy(ccp.predict(batch, batch_size=8, verbose=0)["context"])
    assert same(state_of(ccp), state)
    positives, visible = pairs({name: batch[name] for name in ROWS})
    kept = to_numpy(ccp.bank.bank_vectors)[:4]
    seen = batch["document_ids"][:, None] != to_numpy(ccp.bank.bank_document_ids)[:4]
    assert logs["context_loss"] == pytest.approx(loop(z, z, positives, visible, 0.1, kept, seen)[0], rel=1e-4)


@tensorflow_only
@pytest.mark.slow
def test_parts_of_a_batch_are_batches_of_their_own_but_one_update():
    """`micro_batches`: phase and bank go on from part to part; the loss is the mean over all pairs of all parts."""
    first, second = toy.context_batch(0, documents=[0, 1, 2, 3]), toy.context_batch(1, documents=[3, 4, 5, 0])
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    whole, parts = ccp_of(learning_rate=0.0), ccp_of(learning_rate=0.0, micro_batches=2)
    logs = run(parts, both)
    losses = [run(whole, batch)["context_loss"] for batch in (first, second)]
    weights = [pairs({name: batch[name] for name in ROWS})[0].sum() for batch in (first, second)]
    assert logs["loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-5)
    assert logs["context_loss"] == pytest.approx(logs["loss"], rel=1e-5)
    states = state_of(parts), state_of(whole)
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"steps_per_execution": 2}])
@pytest.mark.slow
def test_fit_alternates_however_it_is_compiled(options):
    if BACKEND == "torch" and options:
        pytest.skip("Keras has neither on torch")
    ccp, data = toy.make_ccp(), toy.Batches(3)
    ccp.compile(keras.optimizers.Adam(3e-3), **options)
    logs = ccp.fit(data, epochs=3, verbose=0).history
    assert all(np.isfinite(values).all() for values in logs.values())
    assert int(ccp.head.norm.updates) == 6 and int(ccp.head.norm.phase) == 0  # 2 of 3 batches have contexts
    assert to_numpy(ccp.bank.bank_filled).tolist() == [10, 10]
    assert to_numpy(ccp.bank.bank_pointer).tolist() == [3 * 4 % 10, 3 * 4 % 10]


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.slow
def test_half_precision_trains(dtype):
    if dtype == "mixed_float16" and BACKEND == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    ccp = CCP(encoder_of(dtype=dtype), bank_size=8, projection_size=8, languages=["a", "b"])
    ccp.compile("adam", run_eagerly=BACKEND == "tensorflow")
    for batch in (toy.context_batch(0), toy.mlm_batch(1), toy.context_batch(2)):
        assert np.isfinite(run(ccp, batch)["loss"])
    assert all(np.isfinite(array).all() for array in state_of(ccp).values())
    assert ccp.head.compute_dtype == "float32" and ccp.bank.bank_vectors.dtype == "float32"


# Real batches
@pytest.mark.slow
def test_context_windows_train():
    """Pairs and masked text of two languages as the data set makes them; every context is a positive."""
    tokenizer, rng = make_tokenizer(), np.random.default_rng(0)

    def document():
        sentences = tuple(" ".join(rng.choice(LETTERS, 5)) for _ in range(6))
        return Document(" ".join(sentences), sentences=sentences)

    sources = {language: [document() for _ in range(8)] for language in ("en", "fr")}
    data = ContextWindows(sources, tokenizer, pairs_per_batch=6, maxlen=16, batches_per_epoch=8)
    ccp = CCP(encoder_of(), tokenizer, bank_size=32, languages=data.languages, projection_size=8)
    ccp.compile(keras.optimizers.Adam(1e-3))
    logs = ccp.fit(data, epochs=1, verbose=0).history
    assert np.isfinite(logs["loss"]).all() and min(logs["mlm_loss"][0], logs["context_loss"][0]) > 0
    batches = [batch for batch in (data.batch(0, i) for i in range(8)) if batch["sides"].max() > 0]
    assert int(ccp.head.norm.updates) == len(batches) > 0
    for batch in batches:
        positives, _ = pairs({name: batch[name] for name in ROWS})
        assert positives[0::2].any(1).all() and positives[1::2].any(1).all()
    assert to_numpy(ccp.bank.bank_filled).sum() == 6 * len(batches)


# Resumed, saved
@tensorflow_only
@pytest.mark.parametrize("stop", [None, 5])
@pytest.mark.slow
def test_a_resumed_run_equals_one_that_was_not_interrupted(stop, tmp_path):
    """Bit by bit, at the end of an epoch or within one: weights, bank, pointer, phase, running statistics."""
    config, results = {**toy.CONFIG, "hidden_dropout_prob": 0.1}, []
    for interrupted in (False, True):
        for start in range(1 + interrupted):
            keras.utils.set_random_seed(7 + start)
            ccp, data = toy.make_ccp(config=config), toy.Batches()
            ccp.compile(keras.optimizers.SGD(0.05, momentum=0.9))
            checkpoint = TrainingCheckpoint(tmp_path / f"checkpoints-{interrupted}", data, every_steps=2)
            first, last = checkpoint.restore(ccp), interrupted and not start
            callbacks = [checkpoint, Interrupt(stop)] if last and stop else [checkpoint]
            epochs = 1 if last and not stop else 2
            try:
                ccp.fit(data, initial_epoch=first, epochs=epochs, callbacks=callbacks, verbose=0)
            except KeyboardInterrupt:
                assert first == 0
        results.append(toy.variables_of(ccp))
    whole, resumed = results
    assert any("bank" in name for name in whole) and any("phase" in name for name in whole)
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


class Interrupt(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.batch:
            raise KeyboardInterrupt


SETTINGS = {
    **{"bank_size": 6, "temperature": 0.2, "window_sentences": 3, "languages": ["de", "fr"], "pooling": "mean"},
    **{"encode_pooling": "cls", "projection_size": 5, "warmup_updates": 4, "negatives": "cross", "enqueue": "both"},
    **{"exclude_positives": True, "mask_same_document": False, "synchronized": False, "maxlen": 20},
}


def trained(**options):
    ccp = CCP(encoder_of(), make_tokenizer(), **{**SETTINGS, **options})
    ccp.compile(keras.optimizers.SGD(0.05), run_eagerly=BACKEND == "tensorflow")
    for step in range(3):
        run(ccp, toy.context_batch(step, language=step % 2))
    return ccp


def test_a_folder_keeps_head_bank_and_settings(tmp_path):
    ccp = trained()
    ccp.save_pretrained(tmp_path / "ccp", facts={"steps": 3})
    loaded = CCP.from_pretrained(tmp_path / "ccp")
    assert loaded._settings() == ccp._settings() and loaded.languages == ("de", "fr")
    assert {name: loaded._settings()[name] for name in SETTINGS} == SETTINGS
    assert same(state_of(loaded), state_of(ccp))
    for a, b in zip(loaded.trainable_variables, ccp.trainable_variables, strict=True):
        assert a.path == b.path and np.array_equal(to_numpy(a), to_numpy(b))
    loaded.compile(keras.optimizers.SGD(0.05), run_eagerly=BACKEND == "tensorflow")
    batch = toy.context_batch(8)
    assert run(loaded, batch)["loss"] == pytest.approx(run(ccp, batch)["loss"], rel=1e-6)
    np.testing.assert_array_equal(loaded.encode(TEXTS), ccp.encode(TEXTS))


def test_the_encoder_is_left_behind_read_as_told(tmp_path):
    ccp = trained()
    rows = [ccp.tokenizer.encode(text)[0] for text in TEXTS]
    weights = export_weights(ccp.encoder)
    weights |= {"pooler/kernel": np.eye(32), "pooler/bias": np.zeros(32)}  # the reference has one always
    states = [nb.forward(ccp.encoder.config, weights, [row])["sequence"][0] for row in rows]
    for pooling, want in (("cls", [s[0] for s in states]), ("mean", [s.mean(0) for s in states])):
        ccp.encode_pooling = pooling
        np.testing.assert_allclose(ccp.encode(TEXTS), want, atol=1e-5)
        ccp.save_pretrained(tmp_path / pooling)
        np.testing.assert_array_equal(
            SentenceEncoder.from_pretrained(tmp_path / pooling).encode(TEXTS), ccp.encode(TEXTS)
        )
    ccp.encode_pooling = None
    assert ccp.sentence_encoder.pooling == "mean"


def test_a_folder_of_banks_apart_tells_that_it_keeps_one(monkeypatch):
    apart, together = toy.make_ccp(synchronized=False), toy.make_ccp()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        apart._kept_parts()  # there is one device
        monkeypatch.setattr(CCP, "distribute_strategy", SimpleNamespace(num_replicas_in_sync=2), raising=False)
        together._kept_parts()
    with pytest.warns(UserWarning, match="each device has statistics and a bank of its own"):
        apart._kept_parts()


def test_another_bank_starts_empty_and_another_head_is_refused(tmp_path):
    ccp = trained()
    ccp.save_pretrained(tmp_path / "ccp")
    larger = CCP.from_pretrained(tmp_path / "ccp", bank_size=12)
    assert to_numpy(larger.bank.bank_filled).tolist() == [0, 0]
    assert int(larger.head.norm.updates) == 3
    assert CCP.from_pretrained(tmp_path / "ccp", bank_size=0).bank is None
    with pytest.raises(ValueError, match="`projection_size` is 5 there"):
        CCP.from_pretrained(tmp_path / "ccp", projection_size=7)
    write_folder(tmp_path / "bert", ccp.encoder, ccp.tokenizer)
    started = CCP.from_pretrained(tmp_path / "bert", bank_size=4)
    assert (started.bank_size, started.temperature) == (4, 0.1)
    np.testing.assert_array_equal(to_numpy(started.encoder.token_table), to_numpy(ccp.encoder.token_table))


@pytest.mark.slow
def test_keras_file_keeps_all_state(tmp_path):
    ccp = trained()
    ccp.save(tmp_path / "ccp.keras")
    loaded = keras.saving.load_model(tmp_path / "ccp.keras")
    assert loaded._settings() == ccp._settings() and same(state_of(loaded), state_of(ccp))
    batch = toy.context_batch(8)
    assert run(loaded, batch)["loss"] == pytest.approx(run(ccp, batch)["loss"], rel=1e-6)


# Bad input
@pytest.mark.parametrize(
    "name, value",
    [
        *(("bank_size", -1), ("temperature", 0.0), ("window_sentences", 0), ("projection_size", 0)),
        *(("pooling", "max"), ("similarity", "l2"), ("negatives", "none"), ("batch_norm", "group")),
        *(("bank_kind", "lifo"), ("enqueue", "all"), ("warmup_updates", -1), ("languages", "de")),
    ],
)
def test_bad_value_is_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
        CCP(encoder_of(), **{name: value})


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="`enqueue='eval'`.*plain"):
        CCP(encoder_of(), enqueue="eval", batch_norm="plain")
    with pytest.raises(ValueError, match="`languages`.*each once"):
        CCP(encoder_of(), languages=["de", "de"])
    with pytest.raises(ValueError, match="`encoder`.*`with_mlm='linear'`"):
        CCP(encoder_of(with_mlm=False))


def test_data_of_other_languages_or_windows_are_refused():
    ccp = ccp_of()
    with pytest.raises(ValueError, match=r"`x` has the languages \('aa', 'bb', 'cc'\).*\('aa', 'bb'\)"):
        ccp.fit(toy.Batches(languages=("aa", "bb", "cc")), verbose=0)
    with pytest.raises(ValueError, match="`validation_data`.*`window_sentences=5`.*2"):
        ccp.fit(toy.Batches(), validation_data=toy.Batches(window_sentences=5), verbose=0)
    one = ccp_of(languages=None)
    with pytest.raises(ValueError, match="made for one"):
        one.fit(toy.Batches(), verbose=0)
    one.fit(toy.Batches(2, languages=("aa",)), verbose=0)


@tensorflow_only
def test_a_language_that_the_bank_does_not_know_is_named():
    import tensorflow as tf

    ccp = ccp_of()
    with pytest.raises(tf.errors.InvalidArgumentError, match="`language_ids` must be below 2"):
        ccp.train_on_batch(toy.context_batch(0, language=2))


def test_a_batch_that_lacks_an_array_is_named():
    batch = toy.context_batch(0)
    del batch["document_ids"]
    with pytest.raises(ValueError, match="lacks `document_ids`.*ContextWindows"):
        run(ccp_of(), batch)


def test_documents_of_one_sentence_and_windows_without_context_give_zero():
    ccp = ccp_of()
    batch = toy.context_batch(0, documents=[0, 1, 2, 3])
    batch["sentence_positions"][1::2] += 7
    before = [to_numpy(variable) for variable in ccp.trainable_variables]
    logs = run(ccp, batch)
    assert logs["context_loss"] == 0 and logs["loss"] == 0
    for a, b in zip(ccp.trainable_variables, before, strict=True):
        np.testing.assert_allclose(to_numpy(a), b, atol=1e-7)
    assert ops.all(ops.isfinite(ops.convert_to_tensor(ccp.bank.bank_vectors)))
