"""Two devices train a retriever as one does on the whole batch: negatives come from all replicas."""

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
    command = [sys.executable, Path(__file__).with_name("mirrored_bi_encoder.py"), folder, str(replicas)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: result(folder, name, replicas) for name in ("shared", "apart")}


def result(folder, name, replicas):
    logs = json.loads((folder / f"{name}-{replicas}.json").read_text())
    return logs, dict(np.load(folder / f"{name}-{replicas}.npz"))


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Weights (so gradients) and all logs agree: with hard and false negatives, and where a device gets no query."""
    one, two = train(tmp_path, 1), train(tmp_path, 2)
    for run in ("shared", "apart"):
        (logs, weights), (other_logs, other_weights) = one[run], two[run]
        assert set(logs) == {"loss", "contrastive_loss", "contrastive_accuracy"}
        for name in logs:
            np.testing.assert_allclose(other_logs[name], logs[name], rtol=2e-4, atol=2e-5, err_msg=f"{run} {name}")
        assert weights.keys() == other_weights.keys()
        for name in weights:
            np.testing.assert_allclose(other_weights[name], weights[name], atol=2e-5, err_msg=f"{run} {name}")
        assert logs["loss"][-1] < logs["loss"][0]
