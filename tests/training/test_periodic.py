import keras
import numpy as np
import pytest
from training_toy import BATCHES, EPOCHS, Batches, Stop, StopAt, build, differences, everything

from simretro.training import PeriodicEvaluation, TrainingCheckpoint
from simretro.training.state import as_array, updates_done

PROBE = np.random.default_rng(9).standard_normal((5, 4)).astype("float32")


@pytest.fixture(scope="module")
def model():
    """The toy, untrained."""
    return build()


def train(model, *callbacks, checkpoint=None, **options):
    """Trains the toy; the checkpoint stands behind the other callbacks."""
    data = Batches() if checkpoint is None else checkpoint.data
    epoch = 0 if checkpoint is None else checkpoint.restore(model)
    begin = [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: data.resume(epoch, 0))]
    callbacks = [*callbacks, *(begin if checkpoint is None else [checkpoint])]
    options = {"epochs": EPOCHS, "verbose": 0, **options}
    return model.fit(data, initial_epoch=epoch, shuffle=False, callbacks=callbacks, **options)


def mean_output(model):
    """An evaluation that depends on all weights and is exact."""
    return lambda: {"mean": float(np.mean(model(PROBE, training=False)))}


def test_numbers_are_in_the_logs_of_the_epoch(tmp_path, capsys):
    model, seen = build(), []
    probe = PeriodicEvaluation(mean_output(model), name="probe")
    later = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["probe_mean"]))
    table = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = train(model, probe, later, table, epochs=2, verbose=2).history
    assert history["probe_mean"] == seen == [entry["probe_mean"] for entry in probe.history]
    assert [entry["step"] for entry in probe.history] == [BATCHES, 2 * BATCHES] and seen[0] != seen[1]
    assert seen[1] == mean_output(model)()["mean"]
    assert "probe_mean: " in capsys.readouterr().out
    assert "probe_mean" in (tmp_path / "log.csv").read_text().splitlines()[0].split(",")


def test_best_model_by_these_numbers(tmp_path):
    model, values = build(run_eagerly=True), iter([0.2, 0.9, 0.1])
    probe = PeriodicEvaluation(lambda: {"nDCG@10": next(values)}, name="med")
    checkpoint = TrainingCheckpoint(tmp_path, Batches(), monitor="med_nDCG@10")
    train(model, probe, checkpoint=checkpoint)
    assert checkpoint.best["value"] == 0.9 and checkpoint.best["epoch"] == 1
    assert [entry["med_nDCG@10"] for entry in checkpoint.history] == [0.2, 0.9, 0.1]


@pytest.mark.parametrize("every_steps, steps", [
    (None, [4, 8]), (3, [3, 4, 6, 8]), (4, [4, 8]), (100, [4, 8]),
])  # fmt: skip
def test_steps(every_steps, steps):
    model, found = build(run_eagerly=True), []
    probe = PeriodicEvaluation(lambda: {"updates": found.append(1) or updates_done(model.optimizer)}, every_steps)
    history = train(model, probe, epochs=2).history
    assert [(entry["step"], entry["updates"]) for entry in probe.history] == [(step, step) for step in steps]
    assert len(found) == len(steps)  # never twice at the same step
    assert history["updates"] == [4, 8]


def test_steps_of_an_optimizer_that_gathers_several_batches():
    """Counted are updates, not batches."""
    model = build(run_eagerly=True)
    model.compile(keras.optimizers.SGD(1e-2, gradient_accumulation_steps=2), "mse", run_eagerly=True)
    probe = PeriodicEvaluation(mean_output(model), every_steps=1)
    train(model, probe, epochs=2)
    assert [entry["step"] for entry in probe.history] == [1, 2, 3, 4]


def test_several_steps_in_one_call():
    model = build(steps_per_execution=3)
    probe = PeriodicEvaluation(mean_output(model), every_steps=2)
    train(model, probe)
    steps = [entry["step"] for entry in probe.history]
    assert steps == [3, 4, 7, 8, 11, 12]


@pytest.mark.parametrize("use_ema", [False, True])
def test_training_goes_on_as_if_nothing_had_been_evaluated(use_ema):
    plain, model = build(use_ema, run_eagerly=True), build(use_ema, run_eagerly=True)
    keras.utils.set_random_seed(1)
    losses = train(plain, epochs=2).history["loss"]
    keras.utils.set_random_seed(1)
    probe = PeriodicEvaluation(mean_output(model), every_steps=3)
    assert train(model, probe, epochs=2).history["loss"] == losses
    assert differences(everything(plain), everything(model)) == [] and len(probe.history) == 4


def test_averaged_weights_are_evaluated():
    model, seen = build(use_ema=True, run_eagerly=True), []
    kernel = model.layers[0].kernel
    train(model, PeriodicEvaluation(lambda: seen.append(as_array(kernel).copy()) or {}, every_steps=3), epochs=1)
    # Keras itself puts the averages into the model when `fit` ends.
    np.testing.assert_array_equal(seen[-1], as_array(kernel))
    assert not np.array_equal(seen[0], seen[-1])


def test_resumed_run_evaluates_at_the_same_steps(tmp_path):
    model = build(run_eagerly=True)
    whole = PeriodicEvaluation(mean_output(model), every_steps=3)
    history = train(model, whole).history
    found, steps = {}, []
    for stopping in (StopAt(step=7), StopAt()):
        model = build(run_eagerly=True)
        probe = PeriodicEvaluation(mean_output(model), every_steps=3)
        checkpoint = TrainingCheckpoint(tmp_path, Batches(), every_steps=3, evaluations=[probe])
        try:
            train(model, probe, stopping, checkpoint=checkpoint)
        except Stop:
            assert checkpoint.step == 6
        steps.append([entry["step"] for entry in probe.history])
        found |= {entry["step"]: entry["mean"] for entry in probe.history}
    assert steps == [[3, 4, 6], [8, 9, 12]]
    assert found == {entry["step"]: entry["mean"] for entry in whole.history}
    assert [entry["mean"] for entry in checkpoint.history] == history["mean"]
    assert checkpoint.evaluations == {"evaluation": whole.history}
    later = TrainingCheckpoint(tmp_path, Batches())  # without the callback what it has found is there
    train(build(run_eagerly=True), checkpoint=later)
    assert later.evaluations == checkpoint.evaluations


@pytest.mark.parametrize("verbose, told", [(1, True), ("auto", True), (2, True), (0, False)])
def test_numbers_within_an_epoch_are_printed_on_lines_of_their_own(verbose, told, capsys):
    model = build(run_eagerly=True)
    probes = [PeriodicEvaluation(lambda: {"x": 0.123456, "y": 2}, 1, name) for name in ("a", "b")]
    train(model, *probes, PeriodicEvaluation(dict, 1, "nothing"), epochs=1, verbose=verbose)
    lines = capsys.readouterr().out.split("\n")
    expected = [f"step {step}: {name}_x 0.1235, {name}_y 2" for step in (1, 2, 3, 4) for name in "ab"]
    assert [line for line in lines if line.startswith("step ")] == (expected if told else [])
    assert told or lines == [""]
    assert verbose != 2 or "" not in lines[:-1], "there is no bar whose line must be ended"


def test_a_second_fit_starts_anew():
    model = build(run_eagerly=True)
    probe = PeriodicEvaluation(mean_output(model))
    train(model, probe, epochs=1)
    train(model, probe, epochs=1)
    assert [entry["step"] for entry in probe.history] == [2 * BATCHES]


@pytest.mark.parametrize("found, message", [
    (0.5, "dict of numbers; it returned float"), ({"a": "high"}, "'a': 'high'"), ({1: 0.5}, "by name; it returned 1"),
    ({"a": None}, "'a': None"),
])  # fmt: skip
def test_refuses_what_is_no_number(model, found, message):
    probe = PeriodicEvaluation(lambda: found)
    probe.set_model(model)
    with pytest.raises(TypeError, match=message):
        probe.on_epoch_end(0, {})


def test_refuses_names_that_are_taken(model):
    probe = PeriodicEvaluation(lambda: {"loss": 1, "other": 2})
    probe.set_model(model)
    with pytest.raises(ValueError, match=r"already have \['loss'\].*`name`"):
        probe.on_epoch_end(0, {"loss": 0.5})


@pytest.mark.parametrize("every_steps", [0, -1, True])
def test_refuses_every_steps(every_steps):
    with pytest.raises(ValueError, match="`every_steps`"):
        PeriodicEvaluation(dict, every_steps)


def test_refuses_what_cannot_be_called():
    with pytest.raises(TypeError, match="`evaluate` must be callable.*dict"):
        PeriodicEvaluation({"a": 1})
