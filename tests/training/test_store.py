import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import simretro
from simretro.training import latest_checkpoint, store

DEAD = 4_194_303  # the id of no process: one below the limit of Linux


def write(folder, step, keep=1, value=None, **state):
    array = np.full((3, 2), step if value is None else value, "float32")
    groups = iter([("model", {"kernel": array}), ("optimizer", {"iteration": np.array(step)})])
    return store.write_checkpoint(folder, step, groups, {"step": step, **state}, keep)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_round_trip(tmp_path):
    path = write(tmp_path / "new" / "run", 12, epoch=1)
    assert latest_checkpoint(tmp_path / "new" / "run") == path
    assert store.read_state(path) == {"format_version": 1, "step": 12, "epoch": 1}
    arrays = {**store.read_arrays(path, "model"), **store.read_arrays(path, "optimizer")}
    assert arrays["kernel"].dtype == "float32" and (arrays["kernel"] == 12).all()
    assert arrays["iteration"].shape == () and arrays["iteration"].dtype == "int64" and arrays["iteration"] == 12


def test_nothing_there_yet(tmp_path):
    assert latest_checkpoint(tmp_path / "missing") is None
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("keep, kept", [(1, [30]), (2, [20, 30]), (9, [5, 10, 20, 30])])
def test_only_the_latest_are_kept(tmp_path, keep, kept):
    for step in (5, 10, 20, 30):
        write(tmp_path, step, keep)
    assert names(tmp_path) == ["latest.json", *(f"step-{step:08d}" for step in kept)]


def test_checkpoints_of_an_abandoned_future_go(tmp_path):
    write(tmp_path, 10, keep=5)
    write(tmp_path, 20, keep=5)
    (tmp_path / "latest.json").write_text('{"checkpoint": "step-00000010"}')
    write(tmp_path, 15, keep=5)
    assert names(tmp_path) == ["latest.json", "step-00000010", "step-00000015"]


def test_what_a_killed_run_left_is_removed_and_other_files_stay(tmp_path):
    (tmp_path / f".step-00000009.tmp-{DEAD}-ab").mkdir()
    (tmp_path / f".step-00000008.old-{DEAD}-ab").mkdir()
    (tmp_path / f".latest.json.tmp-{DEAD}-ab").write_text("{")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, 10)
    assert names(tmp_path) == ["latest.json", "notes.txt", "step-00000010"]


def test_what_another_run_is_writing_stays(tmp_path):
    """Two runs that share a folder by mistake must not break each other's saves."""
    (tmp_path / f".step-00000009.tmp-{os.getppid()}-ab").mkdir()
    (tmp_path / f".step-00000008.old-{os.getppid()}-ab").mkdir()
    write(tmp_path, 10)
    assert len(names(tmp_path)) == 4


def test_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    good = write(tmp_path, 10)
    write_arrays = store.write_arrays

    def fails_at_the_second_file(path, group, arrays):
        if group == "optimizer":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_arrays(path, group, arrays)

    monkeypatch.setattr(store, "write_arrays", fails_at_the_second_file)
    with pytest.raises(OSError, match=r"step-00000020.*No space left.*previous one is unharmed"):
        write(tmp_path, 20)
    assert latest_checkpoint(tmp_path) == good and names(tmp_path) == ["latest.json", good.name]
    assert (store.read_arrays(good, "model")["kernel"] == 10).all()


@pytest.mark.parametrize("text", ["", "[]", '{"checkpoint": 3}', '{"other": "x"}'])
def test_damaged_pointer(tmp_path, text):
    write(tmp_path, 10)
    (tmp_path / "latest.json").write_text(text)
    with pytest.raises(ValueError, match=r"latest\.json: not a pointer"):
        latest_checkpoint(tmp_path)


def test_pointer_to_nowhere(tmp_path):
    write(tmp_path, 10)
    (tmp_path / "latest.json").write_text('{"checkpoint": "step-00000011"}')
    with pytest.raises(ValueError, match=r"latest\.json: names 'step-00000011'"):
        latest_checkpoint(tmp_path)


def test_damaged_arrays_and_state(tmp_path):
    write(tmp_path, 10, keep=2)
    path = write(tmp_path, 20, keep=2)
    os.truncate(path / "model.safetensors", 50)
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read.*there are: step-00000010"):
        store.read_arrays(path, "model")
    with pytest.raises(ValueError, match=r"metrics\.safetensors: cannot be read"):
        store.read_arrays(path, "metrics")
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "format_version": 99}))
    with pytest.raises(ValueError, match="format 99 is newer"):
        store.read_state(path)
    (path / "state.json").write_text('{"step": ')
    with pytest.raises(ValueError, match=r"state\.json: not the state"):
        store.read_state(path)


HOLDER = """
import os, sys
from simretro.training import store
store.lock_folder(sys.argv[1])
assert "keras" not in sys.modules
print("locked", flush=True)
sys.stdin.readline()
store.unlock_folder(sys.argv[1])
print("free", flush=True)
sys.stdin.readline()
"""


def holder(folder):
    """Another process, which has the lock of a folder until it reads a line, and ends after the next one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1])}
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    return process


def test_a_folder_is_locked_until_it_is_given_free_or_its_process_ends(tmp_path):
    folder = tmp_path / "new" / "run"
    with holder(folder) as other:
        with pytest.raises(ValueError, match=f"{folder} is being written by another training run.*process {other.pid}"):
            store.lock_folder(folder)
        other.stdin.write(b"\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"free\n" and names(folder) == []
        store.lock_folder(folder)
        store.unlock_folder(folder)
        other.stdin.write(b"\n")
    with holder(folder) as other:
        other.kill()
    assert names(folder) == [".lock"]  # it was not given free
    store.lock_folder(folder)
    store.unlock_folder(folder)
    assert names(folder) == []


def test_a_process_may_lock_a_folder_again(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in ("run", "run", "link"):
        store.lock_folder(tmp_path / name)
    write(tmp_path / "run", 10)
    (tmp_path / "run" / ".lock").unlink()  # by hand; a new one is made
    store.lock_folder(tmp_path / "run")
    store.unlock_folder(tmp_path / "link")
    assert names(tmp_path / "run") == ["latest.json", "step-00000010"]
    store.unlock_folder(tmp_path / "run")


def test_a_child_of_the_process_is_another_one(tmp_path):
    store.lock_folder(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            store.lock_folder(tmp_path)
        except ValueError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(subprocess.CalledProcessError):  # and it has not taken the lock with it
        command = [sys.executable, "-c", HOLDER, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1])}
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    store.unlock_folder(tmp_path)


@pytest.mark.parametrize("lack", ["module", "file system"])
def test_where_there_are_no_locks_nothing_is_kept(lack, tmp_path, monkeypatch):
    if lack == "module":  # Windows
        monkeypatch.setattr(store, "fcntl", None)
    else:

        def no_locks(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(store.fcntl, "lockf", no_locks)
    for _ in range(2):
        store.lock_folder(tmp_path / "run")
        write(tmp_path / "run", 10)
        store.unlock_folder(tmp_path / "run")


KILLED_ANYWHERE = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from simretro.training import store

DEAD = 4_194_303  # the id of no process: one below the limit of Linux


def write(folder, step):
    arrays = {"kernel": np.full((3, 2), step, "float32")}
    store.write_checkpoint(folder, step, [("model", arrays), ("optimizer", arrays)], {"step": step}, keep=1)

def dying(function):
    def call(*args, **kwargs):
        countdown[0] -= 1
        if countdown[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

root, calls, seen = Path(sys.argv[1]), 0, []
while True:
    folder = root / str(calls)
    write(folder, 10)
    child = os.fork()
    if child == 0:
        countdown = [calls]
        for module, names in ((os, "mkdir rename replace fsync unlink rmdir"), (store, "save_file")):
            for name in names.split():
                setattr(module, name, dying(getattr(module, name)))
        write(folder, 10 if sys.argv[2] == "same" else 20)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    path = store.latest_checkpoint(folder)
    step = store.read_state(path)["step"]
    assert path.name == f"step-{step:08d}", path
    assert all((store.read_arrays(path, g)["kernel"] == step).all() for g in ("model", "optimizer")), (calls, step)
    write(folder, 30)
    left = sorted(entry.name for entry in folder.iterdir())
    assert left == ["latest.json", "step-00000030"], (calls, left)
    seen.append(step)
    if os.WIFEXITED(status):
        break
    calls += 1
assert "keras" not in sys.modules
print(calls, sorted(set(seen)), seen == sorted(seen))
"""


@pytest.mark.parametrize("case, steps", [("new", [10, 20]), ("same", [10])])
def test_killed_at_any_moment(tmp_path, case, steps):
    """Every file-system call of a save is the last one of some process, once."""
    environment = {**os.environ, "PYTHONPATH": str(Path(simretro.__file__).parents[1]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path), case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls, seen = done.stdout.split(" ", 1)
    assert int(calls) > 10 and seen.strip() == f"{steps} True"
