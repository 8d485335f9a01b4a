"""What the tests of the examples that train have in common: a tiny config, how a run fails, what it leaves behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
CONFIG = {
    "vocab_size": 1,  # replaced by that of the vocabulary learnt
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.1,  # its random numbers must go on, too
    "attention_probs_dropout_prob": 0.1,
}


def write_config(path, **sizes):
    path.write_text(json.dumps({**CONFIG, **sizes}), "utf-8")
    return path


def message_of(capsys, run, *arguments):
    """The last line that a run prints as it ends with status 2; there must be no traceback above it."""
    with pytest.raises(SystemExit) as left:
        run(*arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[-1]


def trained(output, files=("model.safetensors", "parts.safetensors")):
    """All arrays of the model's folder, and the optimizer's of the last checkpoint."""
    paths = [output / "model" / name for name in files]
    paths += (output / "checkpoints").glob("step-*/optimizer.safetensors")
    assert len(paths) == len(files) + 1
    return {f"{path.name} {name}": array for path in paths for name, array in load_file(path).items()}


def assert_same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@contextlib.contextmanager
def training_process(folder):
    """Within the block another process has the checkpoints of a folder, as one that trains."""
    program = "import sys; from simretro.training import store; store.lock_folder(sys.argv[1]); print(1); input()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        yield process
        process.kill()


def kill(example, arguments, pattern):
    """Starts an example in a process of its own, and kills it when what it has printed matches the pattern (bytes)."""
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        printed = b""
        while not re.search(pattern, printed, re.DOTALL):
            piece = os.read(process.stdout.fileno(), 1 << 16)
            assert piece, f"it ended by itself: {printed.decode()}"
            printed += piece
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
