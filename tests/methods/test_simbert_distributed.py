"""Two devices train as one does on the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.methods.two_devices import ROOT, train


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Weights (so gradients) and all logs agree, with a torn pair in the short last batch, and after a resume."""
    one, two = train("mirrored_simbert.py", tmp_path, 1), train("mirrored_simbert.py", tmp_path, 2)
    (logs, weights), (other_logs, other_weights) = one["whole"], two["whole"]
    assert set(logs) == {
        "loss",
        *(f"{part}_{what}" for part in ("seq2seq", "similarity", "mlm") for what in ("loss", "accuracy")),
    }
    for name in logs:
        np.testing.assert_allclose(other_logs[name], logs[name], rtol=2e-4, atol=2e-5, err_msg=name)
    for name in weights:
        np.testing.assert_allclose(other_weights[name], weights[name], atol=2e-5, err_msg=name)
    moved = max(np.abs(weights[name]).max() for name in weights)
    assert moved > 1e-2
    for run in (one, two):
        whole_logs, whole_weights = run["whole"]
        resumed_logs, resumed_weights = run["resumed"]
        np.testing.assert_array_equal(resumed_logs["loss"], whole_logs["loss"][1:])
        for name in whole_weights:
            np.testing.assert_array_equal(resumed_weights[name], whole_weights[name], err_msg=name)


REFUSALS = """
import keras, sys, tensorflow as tf
sys.path.insert(0, sys.argv[1])
import mirrored_simbert as toy
from simretro.training.state import updates_done
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    for options, word in [({"jit_compile": True}, "jit_compile"), ({"steps_per_execution": 2}, "steps_per_execution")]:
        simbert = toy.make_simbert()
        simbert.compile("sgd", **options)
        try:
            simbert.fit(toy.make_data(simbert), verbose=0)
        except ValueError as error:
            assert f"`{word}`" in str(error), error
            assert updates_done(simbert.optimizer) == 0
        else:
            raise SystemExit(f"{word} was not refused")
print("refused")
"""


@pytest.mark.distributed
def test_what_keras_cannot_do_is_refused_before_the_first_step():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-c", REFUSALS, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "refused" in done.stdout, done.stderr[-3000:]
