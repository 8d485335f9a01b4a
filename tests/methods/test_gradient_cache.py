"""`gradient_cache_rows`: the gradients of the whole batch, dropout included, and everything else once a step (R5)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the `mirrored_...` are programs and modules of the tests
import keras
import mirrored_bi_encoder as retriever_toy
import mirrored_ccp as ccp_toy
import numpy as np
import pytest

from simretro.methods import BiEncoder, RetroMAE, SimBERT
from simretro.models import build_transformer_model
from simretro.training import TrainingCheckpoint, build_optimizer
from simretro.training.state import read_variables, state_variables
from tests.reference.harness import to_numpy

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs the tape")
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}


def config_of(dropout):
    return {"num_hidden_layers": 1, **(DROPOUT if dropout else {})}


def make_retriever(dropout=True, recompute=False, dtype=None, **options):
    encoder = retriever_toy.make_encoder(config=config_of(dropout), recompute=recompute, dtype=dtype)
    return BiEncoder(encoder, retriever_toy.make_tokenizer(), symmetric=True, **options)


def make_simbert(dropout=True):
    keras.utils.set_random_seed(0)
    config = {**retriever_toy.CONFIG, **config_of(dropout)}
    encoder = build_transformer_model(config, application="unilm", with_pool="linear", with_mlm="linear")
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(3 * variable)
    return SimBERT(encoder, temperature=0.2)


def make_ccp(dropout=True):
    return ccp_toy.make_ccp(config={**ccp_toy.CONFIG, **(DROPOUT if dropout else {})}, warmup_updates=0)


def retriever_batch(number=8, **options):
    return retriever_toy.make_data(make_retriever(), number, queries_per_batch=number, **options).batch(0, 0)


def simbert_batch(rows=8):
    rng = np.random.default_rng(0)
    token_ids = ccp_toy.token_rows(rng, rows, 12)
    segment_ids = ((np.arange(12) > 6) & (token_ids > 0)).astype("int32")
    positions = np.tile(np.arange(6, 10, dtype="int32"), (rows, 1))
    target_ids = rng.integers(5, 50, positions.shape).astype("int32")
    target_ids[1::2, 2:] = -1
    return {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "target_positions": positions,
        "target_ids": target_ids,
    }


CASES = {
    "retriever": (make_retriever, retriever_batch),
    "simbert": (make_simbert, simbert_batch),
    "ccp": (make_ccp, lambda: ccp_toy.context_batch(0, language=1)),
    "ccp, masked": (make_ccp, lambda: ccp_toy.mlm_batch(1)),
}


def compiled(model, optimizer=None, eager=True, **options):
    model.compile(optimizer or keras.optimizers.SGD(1.0), run_eagerly=eager, **options)
    return model


def whole_batch(model, batch, chunk_rows):
    """(loss, gradients) by one tape over everything; rows go through dropout in chunks, for the same masks."""
    import tensorflow as tf

    x = {name: tf.constant(array) for name, array in batch.items()}
    starts = range(0, len(next(iter(batch.values()))), chunk_rows)
    with tf.GradientTape() as tape:
        parts = [model.row_outputs({n: a[i : i + chunk_rows] for n, a in x.items()}, training=True) for i in starts]
        rows = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
        y_pred = model.batch_outputs(x, rows, training=True)
        loss = model.additive_loss(x, y_pred, model.global_normalizers(x), training=True)
    gradients = tape.gradient(loss, model.trainable_variables)
    return float(loss), [np.zeros(v.shape) if g is None else tf.convert_to_tensor(g).numpy()
                         for g, v in zip(gradients, model.trainable_variables, strict=True)]  # fmt: skip


def arrays_of(variables):
    return [to_numpy(variable).copy() for variable in variables]


def others_of(model):
    """All that is not trained by name: seeds, bank, statistics."""
    trained = {id(variable) for variable in model.trainable_variables}
    named = state_variables(model)["model"].items()
    return {name: to_numpy(variable).copy() for name, variable in named if id(variable) not in trained}


def assert_same(got, want, atol=0.0):
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, atol=atol, err_msg=name)


@pytest.mark.parametrize("case, chunk_rows, eager", [
    ("retriever", 3, False), ("simbert", 3, True), ("ccp", 3, True),
    pytest.param("retriever", 100, True, marks=pytest.mark.slow),
    pytest.param("ccp, masked", 5, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_gradients_are_those_of_the_whole_batch_with_dropout(case, chunk_rows, eager):
    """Chunks that do not divide the batch and part pairs; seeds, bank and statistics move on as in one pass."""
    make, batch_of = CASES[case]
    batch = batch_of()
    reference, plain = compiled(make()), compiled(make())
    loss, want = whole_batch(reference, batch, chunk_rows)
    model = compiled(make(), eager=eager, gradient_cache_rows=chunk_rows)
    before = arrays_of(model.trainable_variables)
    logs = model.train_on_batch(batch, return_dict=True)
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    largest = max(np.abs(gradient).max() for gradient in want)
    got = [a - b for a, b in zip(before, arrays_of(model.trainable_variables), strict=True)]
    for variable, gradient, expected in zip(model.trainable_variables, got, want, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5 * max(largest, 1), err_msg=variable.path)
    assert_same(others_of(model), others_of(reference), atol=1e-5)
    assert int(model.optimizer.iterations) == 1
    # The dropout was there: without it, or with another one, the loss would be another.
    assert abs(compiled(make(False)).train_on_batch(batch, return_dict=True)["loss"] - loss) > 1e-3
    if chunk_rows == 3:
        assert abs(plain.train_on_batch(batch, return_dict=True)["loss"] - loss) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [1, 3])
def test_training_is_that_of_the_plain_step(chunk_rows):
    """Without dropout: clipped, averaged weights, last batches that are shorter, metrics, validation."""
    weights, logs = [], []
    for rows in (None, chunk_rows):
        model = make_retriever(dropout=False)
        optimizer = build_optimizer("adamw", 0.01, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9)
        compiled(model, optimizer, False, gradient_cache_rows=rows)
        data = retriever_toy.make_data(model, 11, fixed=True)
        logs.append(model.fit(data, epochs=2, validation_data=data, verbose=0).history)
        weights.append(arrays_of(model.trainable_variables))
    assert set(logs[0]) == set(logs[1])
    for name, values in logs[0].items():
        np.testing.assert_allclose(logs[1][name], values, rtol=1e-3, err_msg=name)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_bank_statistics_and_metrics_change_once_a_step():
    """Over both tasks, as in the plain step."""
    batches = [ccp_toy.context_batch(0), ccp_toy.mlm_batch(1), ccp_toy.context_batch(2)]
    states, logs = [], []
    for rows in (None, 3):
        model = compiled(make_ccp(dropout=False), keras.optimizers.SGD(0.0), gradient_cache_rows=rows)
        for batch in batches:
            found = model.train_on_batch(batch, return_dict=True)  # metrics add up from step to step
        logs.append(found)
        names = state_variables(model)["model"]
        states.append({name: to_numpy(variable) for name, variable in names.items() if "seed" not in name})
    assert_same(states[1], states[0], atol=5e-5)
    assert int(model.head.norm.updates) == 2 and logs[1] == pytest.approx(logs[0], rel=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.slow
def test_half_precision(dtype):
    """Loss scaling: unscaled once. Rounding is not that of the plain step, but as far from float32."""
    batch, moves = retriever_batch(), []
    for policy, rows in ((None, None), (dtype, None), (dtype, 3)):
        optimizer = keras.optimizers.SGD(1.0)
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2**10)
        model = make_retriever(dropout=False, dtype=policy, temperature=0.5)
        compiled(model, optimizer, gradient_cache_rows=rows)
        before = arrays_of(model.trainable_variables)
        loss = model.train_on_batch(batch, return_dict=True)["loss"]
        after = arrays_of(model.trainable_variables)
        moves.append((loss, np.concatenate([(a - b).ravel() for a, b in zip(before, after, strict=True)])))
    exact, plain, cached = (move for _, move in moves)
    assert moves[2][0] == pytest.approx(moves[0][0], rel=1e-3)
    error = np.linalg.norm(plain - exact)
    assert error < 0.3 * np.linalg.norm(exact) and np.linalg.norm(cached - exact) < 1.3 * error
    if dtype == "mixed_float16":
        assert int(optimizer.step_counter) == 1  # one step, which was not left out


@pytest.mark.slow
def test_blocks_that_are_recomputed():
    batch = retriever_batch()
    loss, want = whole_batch(compiled(make_retriever()), batch, 3)
    model = compiled(make_retriever(recompute=True), eager=False, gradient_cache_rows=3)
    before = arrays_of(model.trainable_variables)
    assert model.train_on_batch(batch, return_dict=True)["loss"] == pytest.approx(loss, rel=1e-5)
    after = arrays_of(model.trainable_variables)
    largest = max(np.abs(gradient).max() for gradient in want)
    for a, b, gradient in zip(before, after, want, strict=True):
        np.testing.assert_allclose(a - b, gradient, atol=1e-5 * largest)


@pytest.mark.slow
def test_a_resumed_run_is_bit_identical(tmp_path):
    """With dropout: the checkpoint knows the seeds."""
    results = []
    for epochs in ([2], [1, 2]):
        for start, end in zip([0, *epochs], epochs, strict=False):
            keras.utils.set_random_seed(start)
            model = compiled(make_retriever(), keras.optimizers.Adam(0.01), eager=False, gradient_cache_rows=3)
            data = retriever_toy.make_data(model, 11)
            checkpoint = TrainingCheckpoint(tmp_path / str(len(epochs)), data)
            assert checkpoint.restore(model) == start
            model.fit(data, initial_epoch=start, epochs=end, callbacks=[checkpoint], verbose=0)
        groups = state_variables(model)
        results.append({name: array for group in groups.values() for name, array in read_variables(group).items()})
    assert_same(results[1], results[0])


def test_the_number_of_rows_is_kept_with_the_model():
    model = compiled(make_retriever(), gradient_cache_rows=3)
    assert model.get_compile_config()["gradient_cache_rows"] == 3
    model.compile("sgd")
    assert model.gradient_cache_rows is None


def test_what_does_not_go_together_is_refused():
    model = make_retriever()
    for value in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"`gradient_cache_rows` must be an int of at least 1; received {value}"):
            model.compile("sgd", gradient_cache_rows=value)
    with pytest.raises(
        ValueError, match="`gradient_cache_rows` and `micro_batches` exclude each other; received 4 and 2"
    ):
        model.compile("sgd", gradient_cache_rows=4, micro_batches=2)
    with pytest.raises(NotImplementedError, match="`gradient_cache_rows=4` does not work with XLA"):
        model.compile("sgd", gradient_cache_rows=4, jit_compile=True)
    mae = RetroMAE(retriever_toy.make_encoder(config=config_of(False), with_mlm="linear"))
    with pytest.raises(
        ValueError, match="`gradient_cache_rows` must be None for RetroMAE; received 4.*`micro_batches`"
    ):
        mae.compile("sgd", gradient_cache_rows=4)
