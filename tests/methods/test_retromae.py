"""RetroMAE, its two decoders and the bag of words: against NumPy, on one device, into a folder and back."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `mirrored_retromae` is a program and a module of the tests
import keras
import mirrored_retromae as toy
import numpy as np
import pytest
from keras import ops

from simretro.methods import RetroMAE, encoder_method
from simretro.models import SentenceEncoder, build_transformer_model, export_weights, write_folder
from simretro.training import TrainingCheckpoint, build_optimizer
from tests.reference import numpy_bert as nb
from tests.reference import numpy_retromae as nr
from tests.reference.harness import build, to_numpy

pytestmark = pytest.mark.backends
BACKEND = keras.backend.backend()
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs the tape")
ENCODER = {"application": "encoder", "with_mlm": "linear"}
LENGTHS = [12, 3, 7, 9]
TEXTS = ["a b c", "", "b", "k l m n o p q", "abc"]
MODES = {
    "mlm": {"decoding": None},
    "bow": {"decoding": None, "bow_weight": 0.3},
    "basic": {"decoding": "basic"},
    "enhanced": {},
    "embedded": {"query_norm": True},
    "pooled": {"mask_pool_size": 3},
    "dupmae": {"bow_weight": 0.3},
    "dupmae_reference": {"bow_weight": 0.3, "bow_target": "reference"},
    "dupmae_basic": {"decoding": "basic", "bow_weight": 0.3},
    "bow_of_tokens": {"decoding": None, "bow_weight": 0.3, "bow_source": "tokens"},
    "bow_beside_decoder": {"bow_weight": 0.3, "bow_source": "vector", "bow_target": "reference"},
    "mean": {"pooling": "mean"},
    "mean_basic": {"decoding": "basic", "pooling": "mean"},
    "mean_dupmae": {"bow_weight": 0.3, "pooling": "mean"},
    "mean_bow": {"decoding": None, "bow_weight": 0.3, "pooling": "mean"},
}


def tokens_of(config, lengths=LENGTHS, width=16, seed=4):
    """Token ids of rows `[CLS] ... [SEP]` of these lengths, padded with the configuration's own pad id."""
    pad = config["pad_token_id"]
    first, last = (2, 3) if pad == 0 else (0, 2)
    token_ids = np.random.default_rng(seed).integers(5, config["vocab_size"], (len(lengths), width))
    columns, lengths = np.arange(width)[None], np.array(lengths)[:, None]
    token_ids[:, 0] = first
    token_ids[columns == lengths - 1] = last
    return np.where(columns < lengths, token_ids, pad).astype("int32")


def masked(config, token_ids, rate, seed):
    """(corrupted ids, positions, ids) with this share of the ordinary tokens masked, at least one in each row."""
    rng = np.random.default_rng(seed)
    real = nr.ordinary(config, token_ids)
    chosen = real & (rng.random(token_ids.shape) < rate)
    chosen[np.arange(len(chosen)), real.argmax(1)] = True
    positions, ids = np.zeros((len(token_ids), 16), "int32"), np.full((len(token_ids), 16), -1, "int32")
    for row, columns in enumerate(map(np.flatnonzero, chosen)):
        positions[row, : len(columns)], ids[row, : len(columns)] = columns, token_ids[row, columns]
    return np.where(chosen, 4, token_ids).astype("int32"), positions, ids


def batch_of(config, mode="enhanced", lengths=LENGTHS, seed=4):
    """A batch by hand, with what `MaskedDocuments` gives for the mode and nothing else."""
    token_ids = tokens_of(config, lengths, seed=seed)
    corrupted, positions, ids = masked(config, token_ids, 0.3, seed)
    batch = {"token_ids": token_ids, "encoder_token_ids": corrupted}
    batch |= {"masked_positions": positions, "masked_ids": ids}
    if MODES[mode].get("decoding") == "basic":
        names = ("decoder_token_ids", "decoder_positions", "decoder_ids")
        batch |= dict(zip(names, masked(config, token_ids, 0.6, seed + 1), strict=True))
    if "mask_pool_size" in MODES[mode]:
        columns = np.broadcast_to(np.arange(16), token_ids.shape)
        batch["word_ids"] = np.where(nr.ordinary(config, token_ids), columns // 2, -1).astype("int32")
    return batch


def retromae_of(mode="enhanced", family="bert", dtype=None, large=True, layers=2, **options):
    """(config, weights, model) without dropout; `large` weights of which each matters, else new ones."""
    config = nb.tiny_config(family, num_hidden_layers=layers, **toy.NO_DROPOUT)
    weights = nb.random_weights(config, 3) | nr.decoder_weights(config)
    keras.utils.set_random_seed(0)
    encoder = build(config, weights, dtype=dtype, **ENCODER) if large else None
    encoder = encoder or build_transformer_model(config, dtype=dtype, **ENCODER)
    mae = RetroMAE(encoder, **{"seed": 0, **MODES[mode], **options})
    if large and mae.decoder is not None:
        load_decoder(mae, weights)
    mae.compile("sgd")
    return config, weights, mae


def evaluated(mae, batch):
    # Step by step is faster than a graph that is used once; but a gradient of one's own needs the graph.
    mae.run_eagerly = not mae.bow_weight
    return mae.evaluate(batch, batch_size=len(batch["token_ids"]), return_dict=True, verbose=0)


def load_decoder(mae, weights):
    """Gives the decoder's block the weights `decoder/...`, by the last two parts of the variables' paths."""
    own = {f"decoder/{'/'.join(v.path.split('/')[-2:])}": v for v in mae.decoder.trainable_variables}
    assert set(own) == {name for name in weights if name.startswith("decoder/")}
    for name, variable in own.items():
        variable.assign(weights[name])


def vectors_of(config, rows=4, seed=5):
    return np.random.default_rng(seed).normal(0, 1, (rows, config["hidden_size"])).astype("float32")


def masks_of(config, token_ids):
    return nr.ordinary(config, token_ids), token_ids != config["pad_token_id"]


def decode(mae, token_ids, vectors, seen):
    """Hidden states (B, L, H) of the enhanced decoder; `seen` bool (B, L, L)."""
    inputs = [ops.convert_to_tensor(x) for x in (token_ids, vectors, seen[:, None])]
    return to_numpy(mae.decode(*inputs, training=False))


def draw(mae, config, token_ids):
    return to_numpy(mae.decoder_mask(*map(ops.convert_to_tensor, masks_of(config, token_ids))))[:, 0]


# The decoders
@pytest.mark.parametrize("query_norm", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "no_segments", "roformer", "other_act"])
def test_enhanced_decoder_equals_numpy(family, query_norm):
    config, weights, mae = retromae_of(family=family, query_norm=query_norm)
    token_ids, vectors = tokens_of(config), vectors_of(config)
    real = token_ids != config["pad_token_id"]
    for seen in (draw(mae, config, token_ids), np.random.default_rng(6).random((4, 16, 16)) < 0.5):
        want = nr.decode_enhanced(config, weights, token_ids, vectors, seen, query_norm)
        got = decode(mae, token_ids, vectors, seen)
        np.testing.assert_allclose(got[real], want[real], atol=1e-5, rtol=1e-5)
        logits = to_numpy(mae.encoder.mlm_head(ops.convert_to_tensor(got), mae.encoder.token_table))
        np.testing.assert_allclose(
            logits[real], nr.mlm_logits(config, weights, want)[real], atol=5e-5, rtol=1e-5, err_msg="the encoder's head"
        )
    other = nr.decode_enhanced(config, weights, token_ids, vectors, seen, not query_norm)
    assert np.abs(other - want)[real].max() > 0.1, "the two query streams must be told apart"


@pytest.mark.parametrize("query_norm", [False, True])
@pytest.mark.parametrize("family", ["bert", "roformer"])
def test_a_token_moves_the_rows_that_see_it_and_never_its_own(family, query_norm):
    """The sentence vector is held; every token of every drawn mask."""
    config, _, mae = retromae_of(family=family, query_norm=query_norm)
    token_ids, vectors = tokens_of(config), vectors_of(config)
    real = token_ids != config["pad_token_id"]
    for _ in range(3):
        seen = draw(mae, config, token_ids)
        before = decode(mae, token_ids, vectors, seen)
        for j in range(1, 12):
            changed = np.where((np.arange(16) == j) & real, (token_ids + 17) % 40 + 5, token_ids).astype("int32")
            moved = np.abs(decode(mae, changed, vectors, seen) - before).max(-1)
            assert moved[:, j].max() < 1e-6, f"token {j} reads itself"
            sees = seen[:, :, j] & real[:, j, None]
            assert moved[real & sees].min() > 1e-4 and moved[real & ~sees].max() < 1e-6


@tensorflow_only
@pytest.mark.parametrize("query_norm", [False, True])
def test_jacobian_of_rows_by_tokens_is_the_mask(query_norm):
    """Each token of the row is another one, so that the gradient by its row of the table is the gradient by it."""
    import tensorflow as tf

    config, _, mae = retromae_of(query_norm=query_norm)
    token_ids = np.array([[2, *range(10, 21), 3]], "int32")
    vectors = vectors_of(config, rows=1)
    for _ in range(3):
        seen = draw(mae, config, token_ids)
        with tf.GradientTape(persistent=True) as tape:
            hidden = mae.decode(token_ids, vectors, ops.convert_to_tensor(seen[:, None]), training=False)
            logits = mae.encoder.mlm_head.transform(hidden)  # before the tied table: that is no input
            rows = [tf.reduce_sum(logits[0, i] * np.cos(np.arange(32.0), dtype="float32")) for i in range(13)]
        table = mae.encoder.token_table.value
        influence = np.stack([np.abs(tf.convert_to_tensor(tape.gradient(row, table))).max(-1) for row in rows])
        influence = influence[:, token_ids[0]]  # (row, token)
        assert (influence[:, 1:][seen[0, :, 1:]] > 1e-5).all()
        np.testing.assert_array_equal(influence[:, 1:][~seen[0, :, 1:]], 0)
        np.testing.assert_array_equal(np.diagonal(influence), 0)
        np.testing.assert_array_equal(influence[:, 0], 0, err_msg="the sentence vector stands in place of [CLS]")


def test_the_sentence_vector_reaches_every_row():
    config, _, mae = retromae_of()
    token_ids, vectors = tokens_of(config), vectors_of(config)
    seen = draw(mae, config, token_ids)
    moved = np.abs(
        decode(mae, token_ids, vectors + 1 * np.eye(32, dtype="float32")[3], seen)
        - decode(mae, token_ids, vectors, seen)
    )
    assert moved.max(-1)[token_ids != 0].min() > 1e-3


def test_sub_layers_are_the_encoders_own_and_the_block_is_new():
    """Embeddings and head are shared; the block is no copy of one of the encoder's."""
    _, _, mae = retromae_of(large=False)
    own = {id(v) for v in mae.decoder.trainable_variables}
    assert (
        len(mae.trainable_variables)
        == len(mae.encoder.trainable_variables) + len(own)
        == len({id(v) for v in mae.trainable_variables})
    )
    kernel = to_numpy(mae.decoder.query.kernel)
    assert 0.01 < kernel.std() < 0.03
    assert all(np.abs(kernel - to_numpy(block.query.kernel)).max() > 0.01 for block in mae.encoder.blocks)


# The losses
def seen_of(config, batch):
    return to_numpy(toy.drawn_by_place(*masks_of(config, batch["token_ids"])))[:, 0]


def expected_logs(config, weights, batch, mode):
    options = {
        "decoding": "enhanced",
        "bow_weight": 0.0,
        "bow_target": "normalized",
        "query_norm": False,
        "pooling": "cls",
        "bow_source": None,
        **MODES[mode],
    }
    seen = seen_of(config, batch)
    options["bow_source"] = options["bow_source"] or ("tokens" if options["decoding"] else "vector")
    names = ("decoding", "query_norm", "bow_source", "bow_target", "pooling")
    parts = nr.losses(config, weights, batch, seen=seen, **{name: options[name] for name in names})
    logs = {"loss": options["bow_weight"] * parts["bow"][0]}
    for part in ("encoder", "decoder") if options["decoding"] else ("encoder",):
        logs[f"{part}_loss"], logs[f"{part}_accuracy"] = parts[part]
        logs["loss"] += parts[part][0]
    if options["bow_weight"]:
        logs["bow_loss"] = parts["bow"][0]
    return logs


@pytest.mark.parametrize("mode", MODES)
def test_loss_is_the_sum_of_its_parts(mode):
    """Encoder: mean over masked tokens; decoder: over all ordinary (basic: masked) ones; bag of words: over rows."""
    config, weights, mae = retromae_of(mode)
    if MODES[mode].get("decoding", "enhanced") == "enhanced":
        toy.without_chance(mae)
    batch = batch_of(config, mode)
    want = expected_logs(config, weights, batch, mode)
    got = evaluated(mae, batch)
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("mode", ["basic", "dupmae"])
def test_loss_in_training_is_the_same(mode):
    config, weights, mae = retromae_of(mode)
    if mode == "dupmae":
        toy.without_chance(mae)
    batch = batch_of(config, mode)
    mae.compile(keras.optimizers.SGD(0.0))
    logs = mae.fit(batch, batch_size=4, verbose=0).history
    for name, value in expected_logs(config, weights, batch, mode).items():
        assert logs[name][0] == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("mode", ["basic", "dupmae"])
def test_chunks_change_nothing(mode):
    losses = []
    for chunk_size in (5, 1024):
        config, _, mae = retromae_of(mode, chunk_size=chunk_size)
        if mode != "basic":
            toy.without_chance(mae)
        losses.append(evaluated(mae, batch_of(config, mode)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@tensorflow_only
def test_vocabulary_logits_only_where_a_loss_reads_them(monkeypatch):
    """The MLM's at its positions; of the decoder's, and of all gradients, never more than a chunk at a time."""
    import tensorflow as tf

    config, _, mae = retromae_of("enhanced", chunk_size=8)
    batch, rows = batch_of(config), []
    rows_of_loss = encoder_method.fused_cross_entropy
    monkeypatch.setattr(
        encoder_method,
        "fused_cross_entropy",
        lambda hidden, *args: (rows.append(hidden.shape[0]), rows_of_loss(hidden, *args))[1],
    )

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = mae.additive_loss(x, mae(x, training=True), mae.normalizers(x), training=True)
        return tape.gradient(loss, [variable.value for variable in mae.trainable_variables])

    graph = step.get_concrete_function({name: tf.constant(array) for name, array in batch.items()}).graph
    assert rows == [batch["masked_ids"].size, batch["token_ids"].size]
    graphs = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    shapes = {tuple(t.shape) for g in graphs for op in g.get_operations() for t in op.outputs if t.shape.rank}
    sizes = [np.prod(shape[:-1]) for shape in shapes if None not in shape and shape[-1] == config["vocab_size"]]
    assert 8 in sizes and max(sizes) <= max(8, config["hidden_size"])  # transposed, the table has H rows


@pytest.mark.parametrize("mode", ["enhanced", "pooled"])
def test_masks_are_drawn_anew_by_the_seed(mode):
    config = nb.tiny_config()
    batch, runs = batch_of(config, mode), []
    for seed in (1, 1, 2):
        _, _, mae = retromae_of(mode, seed=seed)
        runs.append([evaluated(mae, batch) for _ in range(2)])
    first, second = runs[0]
    assert first["encoder_loss"] == pytest.approx(second["encoder_loss"], rel=1e-6)
    assert abs(first["decoder_loss"] - second["decoder_loss"]) > 1e-3
    assert runs[1][0]["decoder_loss"] == pytest.approx(first["decoder_loss"], rel=1e-6)
    assert abs(runs[2][0]["decoder_loss"] - first["decoder_loss"]) > 1e-3


@pytest.mark.parametrize("mode", ["mlm", "bow"])
def test_without_a_decoder_there_are_the_encoders_variables_alone(mode):
    _, _, mae = retromae_of(mode)
    assert mae.decoder is None
    assert {v.path for v in mae.trainable_variables} == {v.path for v in mae.encoder.trainable_variables}


@tensorflow_only
@pytest.mark.parametrize("mode", MODES)
def test_every_objective_teaches_the_sentence_vector(mode, monkeypatch):
    """But plain MLM, and a bag of words of the other tokens alone, leave the state of [CLS] without a gradient."""
    import tensorflow as tf

    config, _, mae = retromae_of(mode)
    batch, states = batch_of(config, mode), []
    x = {name: tf.convert_to_tensor(array) for name, array in batch.items()}
    with tf.GradientTape() as tape:

        def kept(compute, *args, **options):
            states.append(compute(*args, **options))
            tape.watch(states[-1])
            return states[-1]

        for name in ("hidden", "hidden_at"):
            monkeypatch.setattr(mae.encoder, name, partial(kept, getattr(mae.encoder, name)))
        loss = mae.additive_loss(x, mae(x, training=True), mae.normalizers(x), training=True)
    [hidden] = states
    at_cls = np.abs(to_numpy(tf.convert_to_tensor(tape.gradient(loss, hidden)))[:, 0]).max()
    assert (at_cls > 1e-6) == (mode not in ("mlm", "bow_of_tokens"))


@tensorflow_only
@pytest.mark.slow
def test_micro_batches_give_the_gradient_of_the_whole_batch():
    weights = []
    for micro_batches in (1, 2):
        config, _, mae = retromae_of("dupmae", layers=1)
        toy.without_chance(mae).compile(keras.optimizers.SGD(0.01), micro_batches=micro_batches)
        batch = batch_of(config, lengths=[12, 3, 7, 9, 4, 16, 5, 8])
        mae.fit(batch, batch_size=8, epochs=2, verbose=0)
        weights.append(toy.weights_of(mae))
    for name in weights[0]:
        np.testing.assert_allclose(weights[1][name], weights[0][name], atol=5e-6, err_msg=name)


# Training
def corpus(number=30):
    return [" ".join(toy.LETTERS[(3 * i + j) % 20] for j in range(6 + i % 9)) for i in range(number)]


@pytest.mark.parametrize("mode", ["basic", "dupmae"])
@pytest.mark.slow
def test_training_lowers_every_loss(mode, tmp_path):
    mae = toy.make_retromae(**MODES[mode])
    options = {"rows_per_batch": 10, "maxlen": 16}
    options |= {"decoder_mask_rate": 0.5} if mode == "basic" else {}
    data = toy.make_data(toy.write_documents(tmp_path, corpus()), mae, **options)
    mae.compile(build_optimizer("adamw", 3e-3, warmup_steps=3, total_steps=200))
    logs = mae.fit(data, epochs=25, verbose=0).history
    for name, values in logs.items():
        assert np.isfinite(values).all(), name
        if name.endswith("loss"):
            assert np.mean(values[-3:]) < 0.85 * values[0], name
    vectors = mae.encode(TEXTS)
    assert vectors.shape == (5, 32) and np.isfinite(vectors).all()


@tensorflow_only
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_loops_train_to_the_same_weights(monkeypatch, recompute):
    """What wide tensors go through, and narrow ones do not, with batches of two shapes."""
    trained = []
    for least in (1, 10**9):
        monkeypatch.setattr("simretro.ops._LEAST_COMPILED", least)
        keras.utils.set_random_seed(0)
        config = nb.tiny_config(hidden_dropout_prob=0.2)
        mae = RetroMAE(build_transformer_model(config, recompute=recompute, **ENCODER), seed=0)
        mae.compile(keras.optimizers.SGD(0.1))
        for rows in (len(LENGTHS), 2, len(LENGTHS)):
            mae.train_on_batch(batch_of(config, lengths=LENGTHS[:rows], seed=4))
        trained.append([to_numpy(variable) for variable in mae.trainable_variables])
    for compiled, plain in zip(*trained, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)


@tensorflow_only
def test_recomputing_trains_to_the_same_weights():
    """In the graph, where what looks alike is merged, with dropout: variables' gradients, the decoder's too."""
    trained = []
    for recompute in (False, True):
        keras.utils.set_random_seed(0)
        config = nb.tiny_config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
        mae = RetroMAE(build_transformer_model(config, recompute=recompute, **ENCODER), seed=0)
        mae.compile(keras.optimizers.SGD(0.1))
        for seed in (4, 5):
            mae.train_on_batch(batch_of(config, seed=seed))
        trained.append([to_numpy(variable) for variable in mae.trainable_variables])
    for kept, recomputed in zip(*trained, strict=True):
        np.testing.assert_allclose(recomputed, kept, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "family, mode",
    [*((family, "dupmae") for family in ("roformer", "roberta", "no_segments", "factorised")), ("factorised", "basic")],
)
@pytest.mark.slow
def test_every_backbone_trains_a_step(family, mode):
    """No tokenizer is needed to train; dropout is on."""
    config = nb.tiny_config(family, num_hidden_layers=1)
    keras.utils.set_random_seed(0)
    mae = RetroMAE(build_transformer_model(config, **ENCODER), seed=0, **MODES[mode])
    mae.compile(keras.optimizers.SGD(1.0))
    before = toy.weights_of(mae)
    logs = mae.fit(batch_of(config, mode), batch_size=4, verbose=0).history
    assert np.isfinite(logs["loss"][0]) and logs["decoder_loss"][0] == pytest.approx(np.log(50), rel=0.1)
    for name, array in toy.weights_of(mae).items():
        assert np.isfinite(array).all(), name
        # A bias of the keys adds the same to all scores of a row: it has no gradient.
        assert (array != before[name]).any() or name.endswith("key/bias"), name


@tensorflow_only
@pytest.mark.slow
def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path):
    """Bit by bit, with drawn masks and dropout."""
    path, results = toy.write_documents(tmp_path), []
    for ends in ([3], [1, 3]):  # epochs at whose end a process ends
        for start, epochs in enumerate(ends):
            keras.utils.set_random_seed(7 + start)  # what a new process begins with is not what decides
            encoder = build_transformer_model(nb.tiny_config(num_hidden_layers=1), **ENCODER)
            mae = RetroMAE(encoder, toy.make_tokenizer(), seed=3 + start)
            mae.compile(keras.optimizers.SGD(0.1, momentum=0.9))
            data = toy.make_data(path, mae)
            checkpoint = TrainingCheckpoint(tmp_path / f"checkpoints-{len(ends)}", data)
            first = checkpoint.restore(mae)
            logs = mae.fit(data, initial_epoch=first, epochs=epochs, callbacks=[checkpoint], verbose=0).history
        results.append((logs, toy.weights_of(mae)))
    (logs, weights), (resumed_logs, resumed_weights) = results
    assert resumed_logs["loss"] == logs["loss"][1:]
    for name, array in weights.items():
        np.testing.assert_array_equal(resumed_weights[name], array, err_msg=name)


# Half precision
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mode", ["basic", "dupmae", "embedded"])
def test_half_precision_gives_the_losses_of_float32(mode, dtype):
    """Lengths 3 and 12 in one batch: most rows of the first text see padding only."""
    if dtype == "mixed_float16" and BACKEND == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    logs = {}
    for policy in (None, dtype):
        config, _, mae = retromae_of(mode, dtype=policy, large=False)
        if mode != "basic":
            toy.without_chance(mae)
        batch = batch_of(config, mode, lengths=[3, 12])
        logs[policy] = evaluated(mae, batch)
    for name, value in logs[None].items():
        if name.endswith("loss"):
            assert np.isfinite(logs[dtype][name]) and logs[dtype][name] == pytest.approx(value, abs=1e-2), name


@pytest.mark.slow
def test_half_precision_trains():
    dtype = "mixed_bfloat16" if BACKEND == "jax" else "mixed_float16"  # JAX's attention on the CPU takes no float16
    config, _, mae = retromae_of("dupmae", dtype=dtype, large=False, layers=1)
    mae.compile(build_optimizer("adamw", 1e-2))
    logs = mae.fit(batch_of(config, lengths=[3, 12]), batch_size=2, epochs=6, verbose=0).history
    assert np.isfinite(logs["loss"]).all() and logs["loss"][-1] < logs["loss"][0]
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in toy.weights_of(mae).values())


# Vectors, folders
def named_retromae(mode="dupmae", **options):
    """A RetroMAE with a tokenizer and weights of which each matters."""
    return retromae_of(mode, tokenizer=toy.make_tokenizer(), **options)


def test_vectors_are_the_last_state_of_the_first_token():
    """No pooler, no normalisation; also where a text stands alone or beside longer ones."""
    config, weights, mae = named_retromae()
    rows = [mae.tokenizer.encode(text)[0] for text in TEXTS]
    want = [nb.forward(config, weights, [row])["sequence"][0, 0] for row in rows]
    for batch_size in (1, 32):
        np.testing.assert_allclose(mae.encode(TEXTS, batch_size=batch_size), want, atol=1e-5, rtol=1e-5)
    assert mae.encode([]).shape == (0, 32)
    encoder = mae.sentence_encoder
    assert (encoder.pooling, encoder.normalize) == ("cls", False)
    np.testing.assert_allclose(np.linalg.norm(mae.encode(TEXTS, normalize=True), axis=1), 1, atol=1e-5)


def test_pooling_mean_is_what_is_trained_encoded_and_kept(tmp_path):
    config, weights, mae = named_retromae("mean")
    states = [nb.forward(config, weights, [mae.tokenizer.encode(text)[0]])["sequence"][0] for text in TEXTS]
    np.testing.assert_allclose(mae.encode(TEXTS), [rows.mean(0) for rows in states], atol=1e-5, rtol=1e-5)
    mae.save_pretrained(tmp_path / "mae")
    for load in (RetroMAE.from_pretrained, SentenceEncoder.from_pretrained):
        loaded = load(tmp_path / "mae")
        assert loaded.pooling == "mean"
        np.testing.assert_array_equal(loaded.encode(TEXTS), mae.encode(TEXTS))
    assert RetroMAE.from_pretrained(tmp_path / "mae", pooling="cls").pooling == "cls"


def test_a_retrievers_folder_is_pre_trained_with_its_own_pooling(tmp_path):
    """Sentence-transformers' folders say how their vectors are made; the decoder is to read the same ones."""
    _, _, mae = named_retromae("mlm")
    for pooling, expected in (("mean", "mean"), ("pooler", "cls")):
        encoder = build_transformer_model(nb.tiny_config(), with_mlm="linear", with_pool=True)
        retriever = SentenceEncoder(encoder, mae.tokenizer, pooling)
        retriever.save_pretrained(tmp_path / pooling)
        assert RetroMAE.from_pretrained(tmp_path / pooling).pooling == expected


SETTINGS = {"decoder_mask_rate": 0.6, "query_norm": True, "mask_pool_size": 5, "maxlen": 20}


@pytest.mark.parametrize("mode", ["dupmae_reference", "basic", "bow"])
def test_a_folder_keeps_decoder_head_and_settings(mode, tmp_path):
    settings = {"maxlen": 20} if mode != "dupmae_reference" else SETTINGS
    _, _, mae = named_retromae(mode, **settings)
    mae.save_pretrained(tmp_path / "mae", facts={"steps": 3})
    loaded = RetroMAE.from_pretrained(tmp_path / "mae")
    for name in ("decoding", "bow_weight", "bow_target", *SETTINGS):
        assert getattr(loaded, name) == getattr(mae, name), name
    weights = toy.weights_of(mae)
    again = toy.weights_of(loaded)
    assert again.keys() == weights.keys() and any("mlm_head" in name for name in weights)
    assert any("decoder" in name for name in weights) == (mode != "bow")
    for name, array in weights.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    assert loaded.tokenizer.fingerprint() == mae.tokenizer.fingerprint()
    np.testing.assert_array_equal(loaded.encode(TEXTS), mae.encode(TEXTS))
    encoder = SentenceEncoder.from_pretrained(tmp_path / "mae")
    assert encoder.maxlen == 20
    np.testing.assert_array_equal(encoder.encode(TEXTS), mae.encode(TEXTS))


def test_settings_may_be_replaced_when_loading(tmp_path):
    _, _, mae = named_retromae()
    mae.save_pretrained(tmp_path / "mae")
    loaded = RetroMAE.from_pretrained(tmp_path / "mae", decoder_mask_rate=0.7, bow_weight=0.0)
    assert (loaded.decoder_mask_rate, loaded.bow_weight) == (0.7, 0.0)
    np.testing.assert_array_equal(to_numpy(loaded.decoder.query.kernel), to_numpy(mae.decoder.query.kernel))
    plain = RetroMAE.from_pretrained(tmp_path / "mae", decoding=None)
    assert plain.decoder is None


def test_an_encoders_folder_starts_with_a_new_decoder(tmp_path):
    config, _, mae = named_retromae()
    write_folder(tmp_path / "bert", mae.encoder, mae.tokenizer)
    started = RetroMAE.from_pretrained(tmp_path / "bert")
    for name, array in export_weights(mae.encoder).items():
        np.testing.assert_array_equal(export_weights(started.encoder)[name], array)
    assert 0.01 < to_numpy(started.decoder.query.kernel).std() < 0.03
    write_folder(tmp_path / "headless", build_transformer_model(config, application="encoder"), mae.tokenizer)
    with pytest.raises(ValueError, match="mlm_head"):
        RetroMAE.from_pretrained(tmp_path / "headless")
    assert RetroMAE.from_pretrained(tmp_path / "headless", new_parts=("mlm_head",)).encoder.mlm_head is not None


@pytest.mark.parametrize("format", ["huggingface", "tf1"])
def test_foreign_folders_give_the_same_vectors(format, tmp_path):
    _, _, mae = named_retromae()
    mae.save_pretrained(tmp_path / format, format=format)
    encoder = SentenceEncoder.from_pretrained(tmp_path / format, pooling="cls", normalize=False)
    np.testing.assert_allclose(encoder.encode(TEXTS), mae.encode(TEXTS), atol=1e-6)


def test_unknown_format_is_named(tmp_path):
    with pytest.raises(ValueError, match="`format`.*'pickle'"):
        named_retromae()[2].save_pretrained(tmp_path / "mae", format="pickle")


@pytest.mark.slow
def test_keras_file_keeps_weights_and_settings(tmp_path):
    config, _, mae = retromae_of("pooled", layers=1)
    mae.compile("adam")
    mae.fit(batch_of(config, "pooled"), batch_size=4, verbose=0)
    mae.save(tmp_path / "mae.keras")
    loaded = keras.saving.load_model(tmp_path / "mae.keras")
    assert (loaded.mask_pool_size, loaded.bow_weight, loaded.decoding) == (3, 0.0, "enhanced")
    assert int(loaded.optimizer.iterations) == 1
    again = toy.weights_of(loaded)
    for name, array in toy.weights_of(mae).items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


# Bad input
def encoder_of(**options):
    return build_transformer_model(nb.tiny_config(), **{**ENCODER, **options})


@pytest.mark.parametrize(
    "name, value",
    [
        ("decoding", "full"),
        ("decoder_mask_rate", -0.1),
        ("decoder_mask_rate", 1.5),
        ("mask_pool_size", 0),
        ("bow_weight", -1.0),
        ("bow_source", "decoder"),
        ("bow_target", "counts"),
        ("pooling", "pooler"),
        ("chunk_size", 0),
    ],
)
def test_bad_value_is_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
        RetroMAE(encoder_of(), **{name: value})


@pytest.mark.parametrize("key", ["token_ids", "encoder_token_ids", "masked_ids"])
def test_ids_outside_the_vocabulary_are_refused(key):
    config, _, mae = retromae_of()
    batch = batch_of(config)
    batch[key][0, 0] = config["vocab_size"]
    with pytest.raises(ValueError, match=rf"`{key}` of `x`.*{config['vocab_size']}"):
        mae.fit(batch, verbose=0)
    with pytest.raises(ValueError, match=f"`{key}`"):
        mae.evaluate(batch, verbose=0)


@pytest.mark.parametrize("options", [{"with_mlm": False}, {"with_mlm": True}, {"application": "unilm"}])
def test_encoders_that_do_not_fit_are_refused(options):
    with pytest.raises(ValueError, match="`encoder`.*`with_mlm='linear'`"):
        RetroMAE(encoder_of(**options))


def test_maxlen_above_the_positions_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`maxlen`.*40.*41"):
        RetroMAE(encoder_of(), maxlen=41)
    assert RetroMAE(encoder_of(), maxlen=40).maxlen == 40
    mae = toy.make_retromae()
    documents = toy.write_documents(tmp_path, [f"{letter} " * 60 for letter in "abcdef"])
    data = toy.make_data(documents, mae, maxlen=64)
    with pytest.raises(ValueError, match="64 tokens.*40 positions"):
        mae.fit(data, verbose=0)
    with pytest.raises(ValueError, match="64 tokens.*40 positions"):
        mae.evaluate(data, verbose=0)


def test_query_norm_needs_tables_as_wide_as_the_blocks():
    """The embedded query stream adds the sentence vector to the rows of the tables."""
    encoder = build_transformer_model(nb.tiny_config("factorised"), **ENCODER)
    with pytest.raises(ValueError, match="`query_norm`.*12.*32|`query_norm`.*32.*12"):
        RetroMAE(encoder, query_norm=True)


@pytest.mark.parametrize(
    "mode, missing", [("basic", "decoder_token_ids"), ("basic", "decoder_ids"), ("pooled", "word_ids")]
)
def test_data_without_what_the_decoder_reads_are_named(mode, missing):
    config, _, mae = retromae_of(mode)
    batch = batch_of(config, mode)
    del batch[missing]
    with pytest.raises(ValueError, match=missing):
        evaluated(mae, batch)


def test_a_tokenizer_of_another_vocabulary_is_refused():
    vocab = toy.make_tokenizer().vocab
    swapped = {**vocab, "[PAD]": vocab["[UNK]"], "[UNK]": vocab["[PAD]"]}
    with pytest.raises(ValueError, match="pads with id 1.*`pad_token_id` 0"):
        RetroMAE(encoder_of(), toy.Tokenizer(swapped))


def test_texts_need_a_tokenizer():
    _, _, mae = retromae_of()
    with pytest.raises(ValueError, match="tokenizer"):
        mae.encode(["a b"])
    with pytest.raises(TypeError, match="encode\\(\\[text\\]\\)"):
        named_retromae()[2].encode("a b")
