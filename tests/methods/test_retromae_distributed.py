"""Two devices pre-train as one does on the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def train(folder, replicas):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, Path(__file__).with_name("mirrored_retromae.py"), folder, str(replicas)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: result(folder, name, replicas) for name in ("whole", "resumed")}


def result(folder, name, replicas):
    logs = json.loads((folder / f"{name}-{replicas}.json").read_text())
    return logs, dict(np.load(folder / f"{name}-{replicas}.npz"))


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Weights (so gradients) and all logs agree, with an uneven short batch, and after a resume."""
    one, two = train(tmp_path, 1), train(tmp_path, 2)
    (logs, weights), (other_logs, other_weights) = one["whole"], two["whole"]
    parts = ("encoder", "decoder")
    assert set(logs) == {"loss", "bow_loss", *(f"{part}_{what}" for part in parts for what in ("loss", "accuracy"))}
    for name in logs:
        np.testing.assert_allclose(other_logs[name], logs[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert weights.keys() == other_weights.keys() and any("decoder" in name for name in weights)
    for name in weights:
        np.testing.assert_allclose(other_weights[name], weights[name], atol=2e-5, err_msg=name)
    assert logs["loss"][-1] < logs["loss"][0]
    for run in (one, two):
        whole_logs, whole_weights = run["whole"]
        resumed_logs, resumed_weights = run["resumed"]
        np.testing.assert_array_equal(resumed_logs["loss"], whole_logs["loss"][1:])
        for name in whole_weights:
            np.testing.assert_array_equal(resumed_weights[name], whole_weights[name], err_msg=name)
