"""Runs a program of the tests that trains on so many logical devices, and reads what it has written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def train(program, folder, replicas):
    """{name of a run: (logs, weights)} of the program beside this file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, Path(__file__).with_name(program), folder, str(replicas)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name.split("-")[0]: result(path) for path in folder.glob(f"*-{replicas}.npz")}


def result(path):
    return json.loads(path.with_suffix(".json").read_text()), dict(np.load(path))
