import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import training_toy
from safetensors.numpy import load_file
from training_toy import BATCHES, WIDTH, Batches, Stop, StopAt, build, differences, everything, fit, run_both

import simretro
from simretro.training import OPTIMIZER_NAMES, PeriodicEvaluation, TrainingCheckpoint, averaged_weights, build_optimizer

VALIDATION = Batches(seed=1)[0]


def quick(**options):
    """The toy without the tracing of a compiled step, for tests of a few steps."""
    return build(run_eagerly=True, **options)


class Scores(keras.callbacks.Callback):
    """Puts a scripted validation metric into the logs; must come before the checkpoint."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = scores

    def on_epoch_end(self, epoch, logs=None):
        logs["val_score"] = self.scores[epoch]


@pytest.fixture(scope="module")
def uninterrupted():
    model = build()
    history = fit(model, Batches())
    return {**everything(model), "loss": np.array(history.history["loss"])}


def resumed(folder, stop, **options):
    """Final variables and losses of a run that dies and is started again."""
    _, result = run_both(folder, stop=stop, **options)
    return result


@pytest.mark.parametrize(
    "stop, every_steps",
    [
        (StopAt(epoch=0), None),
        (StopAt(step=7), 3),  # in the second epoch, one step after a checkpoint
        (StopAt(step=11), 11),  # at a checkpoint, one step before the end of the last epoch
    ],
)
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, uninterrupted, stop, every_steps):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Your input ran out of data")
        result = resumed(tmp_path, stop, every_steps=every_steps)
    assert differences(uninterrupted, result) == []


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_resumed_run_with_averages_validation_and_several_steps_an_execution(optimizer, tmp_path):
    def make():
        return build(use_ema=True, optimizer=optimizer, steps_per_execution=2)

    plain, result = run_both(tmp_path, make, StopAt(step=6), every_steps=2, validation_data=VALIDATION)
    assert differences(plain, result) == []


@pytest.mark.parametrize("options", [{}, {"validation_data": VALIDATION}])
def test_run_stopped_by_another_callback_goes_on_within_the_epoch(options, tmp_path, uninterrupted):
    """Keras validates what was stopped, too, with the metrics that hold the means of the training."""

    model, data = build(), Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data)
    fit(model, data, checkpoint, [Ends(6)], **options)
    assert checkpoint.latest.name == "step-00000006" and len(checkpoint.history) == 2
    model, data = build(), Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data)
    fit(model, data, checkpoint, **options)
    losses = np.array([entry["loss"] for entry in checkpoint.history])
    assert differences(uninterrupted, {**everything(model), "loss": losses}) == []


class Ends(keras.callbacks.Callback):
    """Stops the training after a number of steps, as Keras' own callbacks do."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = int(self.model.optimizer.iterations) == self.step


def test_logs_of_an_epoch_that_was_stopped_within_are_kept_until_it_goes_on(tmp_path):
    data, monitor = Batches(), {"monitor": "val_score", "mode": "max"}
    checkpoint = TrainingCheckpoint(tmp_path, data, **monitor)
    model = quick()
    history = model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[Scores(0.2, 0.9), checkpoint, Ends(6)])
    stopped = {"epoch": 1, "step": 6, "step_in_epoch": 2, "loss": history.history["loss"][1], "val_score": 0.9}
    assert checkpoint.history[1] == stopped
    assert checkpoint.best == {"monitor": "val_score", "value": 0.9, "epoch": 1, "step": 6}
    again, model = TrainingCheckpoint(tmp_path, data, **monitor), quick()
    assert again.restore(model) == 1 and again.history == checkpoint.history and again.best == checkpoint.best
    callbacks = [Scores(0.2, 0.5, 0.4), again, Ends(7)]  # stopped once more, a step later
    model.fit(data, epochs=3, initial_epoch=1, shuffle=False, verbose=0, callbacks=callbacks)
    assert [entry.get("step_in_epoch") for entry in again.history] == [None, 3] and again.best["value"] == 0.9
    last, model = TrainingCheckpoint(tmp_path, data), quick()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, data, last, epochs=2)
    assert [entry["step"] for entry in last.history] == [4, 8] and "step_in_epoch" not in last.history[1]


def test_finished_run_trains_no_further(tmp_path):
    model, data = quick(use_ema=True), Batches()
    fit(model, data, TrainingCheckpoint(tmp_path, data))
    again, checkpoint = quick(use_ema=True), TrainingCheckpoint(tmp_path, data)
    fit(again, data, checkpoint)
    assert checkpoint.step == training_toy.EPOCHS * BATCHES
    assert differences(everything(model), everything(again)) == []


def test_what_a_checkpoint_holds(tmp_path):
    data = Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data, every_steps=3, keep=9)
    fit(quick(), data, checkpoint, epochs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest.json", "step-00000003", "step-00000004", "step-00000006", "step-00000008",
    ]  # fmt: skip
    state = json.loads((tmp_path / "step-00000006" / "state.json").read_text())
    assert [state[key] for key in ("epoch", "step_in_epoch", "step", "num_batches")] == [1, 2, 6, BATCHES]
    assert [entry["epoch"] for entry in state["history"]] == [0]
    names = set(load_file(tmp_path / "step-00000006" / "model.safetensors"))
    assert {"hidden/kernel", "norm/moving_mean", "seed_generator/seed_generator_state"} <= names
    optimizer = load_file(tmp_path / "step-00000006" / "optimizer.safetensors")
    assert optimizer["iteration"] == 6 and "hidden_kernel_momentum" in optimizer


def test_killed_while_saving_and_resumed_by_new_processes(tmp_path, uninterrupted):
    for kill in (["--kill"], []):
        done = run_toy("train", tmp_path / "run", str(tmp_path / "result.npz"), *kill)
        assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    plain = {name: array for name, array in uninterrupted.items() if name != "loss"}
    assert differences(plain, dict(np.load(tmp_path / "result.npz"))) == []


def run_toy(job, folder, *options, backend="tensorflow"):
    environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1]), "KERAS_BACKEND": backend}
    program = [sys.executable, training_toy.__file__, job, str(folder), *options]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)


def compare_elsewhere(folder, *options, backend):
    done = run_toy("compare", folder, *options, backend=backend)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.distributed
def test_resume_under_mirrored_strategy(tmp_path):
    """The running statistics of batch normalisation differ between the replicas; they are kept apart."""
    _, entries, _, copies, *differing = compare_elsewhere(tmp_path, "--replicas", "2", backend="tensorflow")
    assert int(entries) > 20 and int(copies) == 2 and differing == ["differences", "[]"]


@pytest.mark.distributed
def test_process_that_diverges_under_mirrored_strategy_ends(tmp_path):
    """Without `collect_at_exit` it hangs: the iterator of the failed `fit` waits for Python, which waits for it."""
    done = run_toy("diverge", tmp_path, "--replicas", "2")
    assert done.returncode == 1 and "`loss` became inf in epoch 1, batch 4 (update 4)" in done.stderr


@pytest.mark.slow
@pytest.mark.parity  # where JAX is installed
def test_resume_on_jax(tmp_path):
    pytest.importorskip("jax")
    _, entries, _, copies, *differing = compare_elsewhere(tmp_path, backend="jax")
    assert int(entries) > 20 and int(copies) == 0 and differing == ["differences", "[]"]


def test_best_is_chosen_by_the_validation_metric(tmp_path):
    weights = []
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: weights.append(everything(model)))
    model, data = quick(), Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data, monitor="val_score", mode="max")
    model.fit(data, epochs=4, shuffle=False, verbose=0, callbacks=[Scores(0.2, 0.9, 0.9, 0.5), keep, checkpoint])
    assert checkpoint.best == {"monitor": "val_score", "value": 0.9, "epoch": 1, "step": 2 * BATCHES}
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == checkpoint.best
    checkpoint.load_best(model)
    np.testing.assert_array_equal(everything(model)["model:hidden/kernel"], weights[1]["model:hidden/kernel"])


def test_best_is_remembered_by_the_resumed_run(tmp_path):
    saved = []
    for callbacks in ([StopAt(epoch=1)], []):
        model, data = quick(), Batches()
        checkpoint = TrainingCheckpoint(tmp_path, data, monitor="val_loss", save_best=saved.append)
        checkpoint.restore(model)
        epoch = len(checkpoint.history)
        scores = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: logs.update(val_loss=[1.0, 3.0, 2.0][e]))
        try:
            model.fit(data, epochs=3, initial_epoch=epoch, shuffle=False, verbose=0,
                      callbacks=[scores, checkpoint, *callbacks])  # fmt: skip
        except Stop:
            assert epoch == 0
    assert len(saved) == 1 and checkpoint.best["value"] == 1.0
    assert [entry["val_loss"] for entry in checkpoint.history] == [1.0, 3.0, 2.0]


def test_best_model_and_validation_use_the_averaged_weights(tmp_path):
    model, data = quick(use_ema=True), Batches()
    seen = []

    def save(folder):
        seen.append(everything(model)["model:hidden/kernel"])
        model.save_weights(folder / "model.weights.h5")

    checkpoint = TrainingCheckpoint(tmp_path, data, monitor="val_loss", save_best=save)
    with pytest.raises(Stop):
        fit(model, data, checkpoint, [StopAt(epoch=0)], validation_data=VALIDATION)
    optimizer = load_file(checkpoint.latest / "optimizer.safetensors")
    np.testing.assert_array_equal(seen[0], optimizer["hidden_kernel_average"])
    raw = model.evaluate(*VALIDATION, verbose=0)
    with averaged_weights(model):
        averaged = model.evaluate(*VALIDATION, verbose=0)
    np.testing.assert_allclose(checkpoint.best["value"], averaged, rtol=1e-6)
    assert abs(raw - averaged) > 1e-3
    assert (tmp_path / "best" / "model.weights.h5").exists()


def test_run_interrupted_within_its_validation_goes_on_with_the_same_objects(tmp_path):
    """As in a notebook: the averages were in the model's place then, and what is restored must not be exchanged."""
    validations = iter(range(9))

    def interrupt(logs):
        if next(validations) == 1:
            raise KeyboardInterrupt

    plain = quick(use_ema=True)
    data = Batches()
    fit(plain, data, TrainingCheckpoint(tmp_path / "plain", data, "val_loss"), validation_data=VALIDATION)
    model, data = quick(use_ema=True), Batches()
    checkpoint = TrainingCheckpoint(tmp_path / "run", data, "val_loss")
    once = keras.callbacks.LambdaCallback()
    once.on_test_end = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[once, checkpoint], validation_data=VALIDATION)
    fit(model, data, checkpoint, validation_data=VALIDATION)
    assert differences(everything(plain), everything(model)) == []


def test_averages_are_exchanged_without_rounding():
    model = quick(use_ema=True)
    fit(model, Batches(), epochs=1)
    # `fit` ends with the averages in the model, so one step is needed to tell them apart.
    model.train_on_batch(*VALIDATION)
    before = everything(model)
    with averaged_weights(model):
        inside = everything(model)
    assert differences(before, everything(model)) == []
    np.testing.assert_array_equal(inside["model:hidden/kernel"], before["optimizer:hidden_kernel_average"])
    assert not np.array_equal(inside["model:hidden/kernel"], before["model:hidden/kernel"])


def test_averages_of_an_untrained_model_are_its_weights():
    model = quick(use_ema=True)
    model.optimizer.build(model.trainable_variables)
    before = everything(model)
    with averaged_weights(model):
        assert differences(before, everything(model)) == []


class Poisoned(Batches):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x, y * (np.nan if (self.epoch, self.first + index) == (1, 1) else 1)


@pytest.mark.parametrize("every_steps, last", [(None, 4), (1, 5)])
def test_no_checkpoint_after_a_broken_loss(tmp_path, every_steps, last):
    data = Poisoned()
    checkpoint = TrainingCheckpoint(tmp_path, data, every_steps=every_steps, monitor="val_loss")
    with pytest.raises(FloatingPointError, match=rf"`loss` became nan.*is kept: .*step-0000000{last}"):
        fit(quick(), data, checkpoint, epochs=2, validation_data=VALIDATION)
    assert checkpoint.latest.name == f"step-0000000{last}"
    assert checkpoint.best["epoch"] == 0
    model = quick()
    assert checkpoint.restore(model) == 1
    assert all(np.isfinite(array).all() for array in everything(model).values())


def test_no_checkpoint_with_a_broken_weight_behind_a_finite_loss(tmp_path):
    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 2 * BATCHES:
                self.model.get_layer("out").bias.assign([np.inf])

    data = Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data)
    with pytest.raises(FloatingPointError, match=r"variable 'out/bias' is not finite.*step-00000004"):
        fit(quick(), data, checkpoint, [Breaks()])
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["latest.json", "step-00000004"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, data = tmp_path_factory.mktemp("trained"), Batches()
    fit(quick(), data, TrainingCheckpoint(folder, data), epochs=1)
    return folder


def test_checkpoint_of_another_model_is_named_in_full_and_changes_nothing(trained):
    layers = [
        keras.Input((WIDTH,)), keras.layers.Dense(7, name="hidden"), keras.layers.Dense(1, name="head"),
    ]  # fmt: skip
    other = keras.Sequential(layers)
    other.compile(keras.optimizers.SGD(0.1), "mse")
    before = everything(other)
    with pytest.raises(ValueError) as error:
        TrainingCheckpoint(trained).restore(other)
    text = str(error.value)
    for part in (
        "step-00000004/model.safetensors", "missing in the file: head/kernel, head/bias", "not in the model:",
        "norm/gamma", "out/kernel", "of another shape: hidden/bias (model (7,), file (6,))", "hidden/kernel",
        "step-00000004/optimizer.safetensors", "hidden_kernel_momentum",
    ):  # fmt: skip
        assert part in text
    assert differences(before, {name: everything(other)[name] for name in before}) == []


def test_restore_needs_a_compiled_model_with_variables(trained):
    with pytest.raises(ValueError, match="compiled before `restore`"):
        TrainingCheckpoint(trained).restore(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="call it once on a batch"):
        TrainingCheckpoint(trained).restore(unbuilt)


def test_checkpoints_of_another_run_are_not_removed_by_accident(trained):
    with pytest.raises(ValueError, match=r"`folder` already holds.*step-00000004.*restore"):
        quick().fit(Batches(), verbose=0, shuffle=False, callbacks=[TrainingCheckpoint(trained)])
    assert (trained / "step-00000004").exists()


def test_forgotten_initial_epoch_is_an_error(trained):
    model, data = quick(), Batches()
    checkpoint = TrainingCheckpoint(trained, data)
    checkpoint.restore(model)
    with pytest.raises(ValueError, match="`initial_epoch`.*1; received 0"):
        model.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[checkpoint])


def test_other_steps_per_epoch_are_an_error(tmp_path):
    data = Batches()
    with pytest.raises(ValueError, match="once an epoch: 4 batches; received 3"):
        fit(quick(), data, TrainingCheckpoint(tmp_path, data), steps_per_epoch=3)


def test_within_an_epoch_the_data_must_be_the_same(tmp_path):
    data = Batches()
    with pytest.raises(Stop):
        fit(quick(), data, TrainingCheckpoint(tmp_path, data, every_steps=1), [StopAt(step=3)])
    with pytest.raises(ValueError, match="after 3 of 4 batches.*`data` has 5"):
        TrainingCheckpoint(tmp_path, Batches(num_batches=5)).restore(quick())
    checkpoint, model = TrainingCheckpoint(tmp_path), quick()
    with pytest.warns(UserWarning, match="epoch 1. Without `data` that epoch starts again"):
        assert checkpoint.restore(model) == 0
    assert int(model.optimizer.iterations) == 3


def test_metrics_that_keras_makes_late_are_named(tmp_path):
    data = Batches()
    with pytest.raises(Stop):
        fit(quick(metrics=["mae"]), data, TrainingCheckpoint(tmp_path, data, every_steps=1), [StopAt(step=3)])
    with pytest.warns(UserWarning, match="only the rest of it.*mean_absolute_error"):
        fit(quick(metrics=["mae"]), data, TrainingCheckpoint(tmp_path, data), epochs=1)


def test_missing_monitor_is_told_once(tmp_path):
    data = Batches()
    with pytest.warns(UserWarning, match="'val_recall' is not in the logs of epoch 1.*there are: loss") as told:
        fit(quick(), data, TrainingCheckpoint(tmp_path, data, monitor="val_recall"))
    assert sum("val_recall" in str(warning.message) for warning in told) == 1
    assert not (tmp_path / "best").exists()


def test_training_metric_is_no_monitor(tmp_path):
    with pytest.raises(ValueError, match=r"`monitor` must be a validation metric; 'loss'.*val_loss"):
        fit(quick(), Batches(), TrainingCheckpoint(tmp_path, monitor="loss"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"every_steps": 2}, "`every_steps`.*needs `data`"),
        ({"every_steps": 0, "data": Batches()}, "`every_steps` must be an int of at least 1"),
        ({"keep": 0}, "`keep`.*0"),
        ({"data": [1, 2]}, r"`data` must have a method `resume\(epoch, step\)`; received list"),
        ({"monitor": "val_score"}, '`mode` must be "min" or "max".*val_score'),
        ({"mode": "best"}, "`mode`.*best"),
        ({"evaluations": [StopAt()]}, "`evaluations` must be `PeriodicEvaluation`s; received a StopAt"),
        ({"evaluations": [PeriodicEvaluation(dict, name="a")] * 2}, r"different names; received \['a', 'a'\]"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TrainingCheckpoint(tmp_path, **options)


@pytest.mark.parametrize(
    "monitor, better, worse",
    [
        ("val_loss", 1, 2),
        ("val_perplexity", 3, 9),
        ("val_accuracy", 0.9, 0.8),
        ("recall_at_1", 0.5, 0.4),
        ("mrr", 1, 0),
    ],
)
def test_direction_is_told_by_the_name(tmp_path, monitor, better, worse):
    sign = TrainingCheckpoint(tmp_path, monitor=monitor).sign
    assert sign * better > sign * worse


class Described(Batches):
    """Batches that say what decides them."""

    def facts(self):
        return {"seed": self.seed, "texts": 7}


def test_other_data_of_the_same_size_are_noticed(tmp_path):
    with pytest.raises(Stop):
        fit(quick(), (data := Described()), TrainingCheckpoint(tmp_path, data, every_steps=1), [StopAt(step=3)])
    with pytest.raises(ValueError, match="`data` differ: `seed` was 0, is 1. Give the data"):
        TrainingCheckpoint(tmp_path, Described(seed=1)).restore(quick())
    assert TrainingCheckpoint(tmp_path, Described()).restore(quick()) == 0
    assert TrainingCheckpoint(tmp_path, Batches()).restore(quick()) == 0  # they say nothing of themselves


def test_going_on_with_other_data_after_an_epoch_is_told(tmp_path):
    data = Described()
    fit(quick(), data, TrainingCheckpoint(tmp_path, data), epochs=1)
    with pytest.warns(UserWarning, match="goes on with these: `seed` was 0, is 1") as told:
        assert TrainingCheckpoint(tmp_path, Described(seed=1)).restore(quick()) == 1
    assert told[0].filename == __file__


@pytest.mark.parametrize("every_steps", [None, 1])
def test_another_tokenizer_is_refused_wherever_the_run_was_interrupted(every_steps, tmp_path):
    """Also at the end of an epoch, where other data are taken: the weights know the ids of the first one."""

    class Texts(Batches):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

        def facts(self):
            return {"tokenizer": self.tokenizer}

    data, stop = Texts("a"), [StopAt(step=5)]
    with pytest.raises(Stop):
        fit(quick(), data, TrainingCheckpoint(tmp_path, data, every_steps=every_steps), stop)
    model = quick()
    before = everything(model)
    with pytest.raises(ValueError, match=r"step-0000000[45] is of a run on data of another `tokenizer`.*another `fold"):
        TrainingCheckpoint(tmp_path, Texts("b")).restore(model)
    assert differences(before, {name: everything(model)[name] for name in before}) == []
    assert TrainingCheckpoint(tmp_path, Texts("a")).restore(quick()) == 1


def method(config=None, **settings):
    """The toy as a method has it: with settings, and an encoder of a config."""
    model = quick()
    model.settings_names = tuple(settings)
    for name, value in settings.items():
        setattr(model, name, value)
    if config is not None:
        model.encoder = SimpleNamespace(config=config)
    return model


def test_a_model_of_other_settings_is_refused_naming_all_that_differ(tmp_path):
    config = {"hidden_size": 6, "hidden_dropout_prob": 0.1}
    data = Batches()
    model = method(config, decoding="enhanced", sizes=(8, 4), rate=np.float32(0.5), gone=1)
    fit(model, data, TrainingCheckpoint(tmp_path, data), epochs=1)
    same = method(config, decoding="enhanced", sizes=[8, 4], rate=0.5, new=2)  # another version has other settings
    assert TrainingCheckpoint(tmp_path, data).restore(same) == 1
    other = method({**config, "hidden_dropout_prob": 0.0}, decoding=None, sizes=(8, 4), rate=0.25)
    other.get_layer("norm").epsilon = 1.0  # no setting
    before = everything(other)
    with pytest.raises(ValueError) as error:
        TrainingCheckpoint(tmp_path, data).restore(other)
    text = str(error.value)
    for part in (
        "step-00000004 is of a run with other settings",
        "`decoding`: 'enhanced' there, None here, `rate`: 0.5 there, 0.25 here, ",
        "`encoder.config['hidden_dropout_prob']`: 0.1 there, 0.0 here. Give the model the settings of that run",
        "start a new run",
    ):
        assert part in text
    assert "sizes" not in text and "gone" not in text and "hidden_size" not in text
    assert differences(before, {name: everything(other)[name] for name in before}) == []
    assert TrainingCheckpoint(tmp_path, data).restore(quick()) == 1, "a model without settings is asked for none"
    state = json.loads((tmp_path / "step-00000004" / "state.json").read_text())
    for name in ("model", "evaluations"):  # as of an earlier version
        del state[name]
    (tmp_path / "step-00000004" / "state.json").write_text(json.dumps(state))
    checkpoint = TrainingCheckpoint(tmp_path, data)
    assert checkpoint.restore(other) == 1 and checkpoint.evaluations == {}


TRAINING = """
import sys
from simretro.training import store
store.lock_folder(sys.argv[1])
print("training", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_train_into_one_folder(tmp_path):
    data = Batches()
    fit(quick(), data, TrainingCheckpoint(tmp_path, data), epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-00000004"]
    environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1])}
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"training\n"
        model, checkpoint = quick(), TrainingCheckpoint(tmp_path, data)
        assert checkpoint.restore(model) == 1, "reading is free"
        for train in (checkpoint.lock, lambda: fit(model, data, checkpoint)):
            with pytest.raises(ValueError, match=f"{tmp_path} is being written by .*process {other.pid} on"):
                train()
        other.kill()
    fit(model, data, checkpoint, epochs=2)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000008"]


def test_a_checkpoint_that_was_written_since_restore_is_not_overwritten(tmp_path):
    """As of another process that has trained on and ended."""
    data = Batches()
    late, model = TrainingCheckpoint(tmp_path, data), quick()
    assert late.restore(model) == 0
    fit(quick(), data, TrainingCheckpoint(tmp_path, data), epochs=1)
    with pytest.raises(ValueError, match=r"`folder` already holds.*step-00000004.*restore"):
        model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[late])
    fit(model, data, late, epochs=2)  # which restores
    assert late.step == 2 * BATCHES


def test_best_model_that_is_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match="no best model in .*kept by `monitor`, here 'val_score'"):
        TrainingCheckpoint(tmp_path, monitor="val_score", mode="max").load_best(quick())
    with pytest.raises(ValueError, match="best was written by `save_best`"):
        TrainingCheckpoint(tmp_path, monitor="val_score", mode="max", save_best=print).load_best(quick())


def test_best_model_is_put_back_after_a_kill_between_two_renames(tmp_path):
    data, model = Batches(), quick()
    checkpoint = TrainingCheckpoint(tmp_path, data, monitor="val_score", mode="max")
    model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[Scores(0.2), checkpoint])
    (tmp_path / "best").rename(tmp_path / ".best.old-4194303-a")
    with pytest.warns(UserWarning, match="put back"):
        checkpoint.load_best(quick())
    (tmp_path / "best" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match="cannot be read") as error:
        checkpoint.load_best(quick())
    assert "latest.json" not in str(error.value)  # to which `best` is nothing


def rate(model):
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def constant(learning_rate):
    model = quick()
    model.compile(build_optimizer("adamw", learning_rate), "mse")
    return model


def test_learning_rate_of_the_run_goes_on_unless_another_is_asked_for(tmp_path):
    data, lower = Batches(), keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    fit(constant(0.5), data, TrainingCheckpoint(tmp_path, data), [lower], epochs=1)
    same = constant(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingCheckpoint(tmp_path).restore(same)
    assert rate(same) == 0.25
    other = constant(0.125)
    with pytest.warns(UserWarning, match="learning rate of this optimizer, 0.125, in place of 0.5"):
        TrainingCheckpoint(tmp_path).restore(other)
    assert rate(other) == 0.125 and int(other.optimizer.iterations) == 4
    scheduled = quick()
    with pytest.warns(UserWarning, match="learning rate of this optimizer, a schedule, in place of 0.5"):
        TrainingCheckpoint(tmp_path).restore(scheduled)
    assert int(scheduled.optimizer.iterations) == 4


def test_a_schedule_may_be_given_up_for_a_constant_rate(trained):
    model = constant(0.125)
    with pytest.warns(UserWarning, match="0.125, in place of a schedule"):
        TrainingCheckpoint(trained).restore(model)
    assert rate(model) == 0.125 and int(model.optimizer.iterations) == 4


def test_training_an_epoch_twice_is_told(tmp_path):
    model, data = quick(), Batches()
    checkpoint = TrainingCheckpoint(tmp_path, data)
    fit(model, data, checkpoint, epochs=1)
    with pytest.warns(UserWarning, match=r"Epoch 1 is trained once more.*`initial_epoch=1`"):
        model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[checkpoint])
