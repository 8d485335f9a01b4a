import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simretro
from simretro.training import OPTIMIZER_NAMES


def printed_by(program):
    """What a program of the tests prints as JSON."""
    path = Path(__file__).with_name(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1]), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.distributed
def test_a_step_that_overflows_on_any_device_is_left_out():
    """Keras asks the first replica alone whether its gradients are finite."""
    found = printed_by("mirrored_overflow.py")
    for clip, gradient in (("none", 2.0), ("clipvalue", 0.1), ("clipnorm", 0.1), ("global_clipnorm", 0.1)):
        assert found[clip]["finite"] == [pytest.approx(1 - 0.5 * gradient, abs=1e-6), 1024.0], clip
        assert found[clip]["overflow"] == [1.0, 512.0], clip  # nothing has moved, and the scale is halved


@pytest.mark.distributed
def test_optimizers_move_weights_alike_on_two_devices():
    found = printed_by("mirrored_optimizers.py")
    assert set(found) == set(OPTIMIZER_NAMES)
    for name, one in found.items():
        assert min(one["moved"]) > 1e-3 and max(one["apart"]) < 1e-6, name
