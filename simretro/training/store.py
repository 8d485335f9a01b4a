"""Training checkpoints on disk: a folder a step, and a pointer to the last complete one. No Keras in here.

    folder/latest.json                      {"checkpoint": "step-00000123"}
    folder/step-00000123/state.json         epoch, step, history, best
    folder/step-00000123/model.safetensors  and one such file for each further group of arrays
    folder/.lock                            while a process trains: its host and id

Whatever moment the process is killed at, `latest.json` names a folder that is complete: the folder is written aside
and renamed, then the pointer is replaced, and only then are older folders removed.
"""

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from simretro.files import atomic_file, atomic_folder, recover_folder, remove_unfinished

FORMAT_VERSION = 1
POINTER = "latest.json"
STATE = "state.json"
LOCK = ".lock"
_locks: dict[Path, int] = {}  # file descriptors of those of this process, open as long as they are held


def lock_folder(folder: str | Path) -> None:
    """Keeps other processes from training into a folder until `unlock_folder` or the end of this process, however.

    Two of them would remove each other's checkpoints. This process may take it again, after an interruption for
    instance. Where there are no such locks (Windows, some network drives), nothing is kept.

    Args:
        folder: where all checkpoints of the run are; made if missing.
    Raises: ValueError if another process has it, naming both.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        return
    path = Path(os.path.realpath(folder)) / LOCK
    while True:
        # Never opened twice: a process that closes one of its files of this name loses the lock.
        file = _locks.pop(path, None)
        if file is None:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(
                f"{folder} is being written by another training run ({_owner(file)}), and each of the two would "
                "remove the other's checkpoints. Wait for that one to end, or stop it and go on from its last "
                "checkpoint; or give this one another `folder`."
            ) from None
        except OSError:  # this file system has no locks
            os.close(file)
            return
        if _is_at(file, path):
            _locks[path] = file
            _note_owner(file)
            return
        os.close(file)  # whoever had it has removed it meanwhile


def unlock_folder(folder: str | Path) -> None:
    """Gives a folder free that this process has locked; else nothing happens."""
    path = Path(os.path.realpath(folder)) / LOCK
    file = _locks.pop(path, None)
    if file is not None:
        if _is_at(file, path):
            path.unlink()  # before it is closed: who has it open finds that it is gone
        os.close(file)


def _is_at(file, path):
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _note_owner(file):
    """Only for the message to another process: a lock on a full disk is a lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _owner(file):
    told = os.pread(file, 200, 0)
    os.close(file)
    return told.decode("utf-8", "replace") or "of a process that does not tell its name"


def write_checkpoint(
    folder: str | Path, step: int, groups: Iterable[tuple[str, dict[str, np.ndarray]]], state: dict, keep: int = 1
) -> Path:
    """Writes one checkpoint, makes it the latest, and removes all but the `keep` latest.

    Args:
        folder: where all checkpoints of the run are.
        step: int, training steps done.
        groups: pairs (name of the file without ending, arrays); an iterator, so that one group is in memory at a time.
        state: what goes to `state.json`.
        keep: int >= 1.
    Returns: path of the new checkpoint.
    Raises: OSError if it cannot be written; the previous one is then as it was.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder, ("step-*", "best", POINTER))  # of a killed run, as large as a checkpoint
    path = folder / f"step-{step:08d}"
    try:
        with atomic_folder(path) as temporary:
            for name, arrays in groups:
                write_arrays(temporary, name, arrays)
            text = json.dumps({"format_version": FORMAT_VERSION, **state}, indent=1)
            (temporary / STATE).write_text(text, "utf-8")
        with atomic_file(folder / POINTER, "w") as file:
            file.write(json.dumps({"checkpoint": path.name}))
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{path}: the checkpoint could not be written ({error}). The previous one is unharmed. "
            "Make room or give another `folder`, then go on from the previous one with `restore`."
        ) from error
    _remove_all_but(folder, step, keep)
    return path


def write_arrays(path: Path, group: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes one group of arrays into the folder `path`."""
    save_file(arrays, path / f"{group}.safetensors", metadata={"format": "np"})


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Path of the last complete checkpoint in `folder`; None where there is none yet.

    Raises: ValueError if the pointer is damaged or names a folder that is not there.
    """
    pointer = Path(folder) / POINTER
    if not pointer.exists():
        return None
    try:
        name = Path(json.loads(pointer.read_text("utf-8"))["checkpoint"]).name
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{pointer}: not a pointer to a checkpoint ({error}). Write "
            '{"checkpoint": "step-..."} with the name of a folder beside it, or remove the file to start anew.'
        ) from error
    path = pointer.parent / name
    recover_folder(path)  # a kill between the two renames of a replaced folder leaves it aside
    if not (path / STATE).exists():
        raise ValueError(f"{pointer}: names {name!r}, which is no checkpoint. Point it to a folder beside it.")
    return path


def read_state(path: Path) -> dict:
    """`state.json` of a checkpoint.

    Raises: ValueError if it is damaged or of a newer format.
    """
    file = path / STATE
    try:
        state = json.loads(file.read_text("utf-8"))
        version = state["format_version"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: not the state of a checkpoint ({error}). {_other_checkpoint(path)}") from error
    if version > FORMAT_VERSION:
        raise ValueError(f"{file}: format {version} is newer than this version of simretro reads ({FORMAT_VERSION}).")
    return state


def read_arrays(path: Path, group: str) -> dict[str, np.ndarray]:
    """Arrays of one group of a checkpoint.

    Raises: ValueError if the file is missing or damaged.
    """
    file = path / f"{group}.safetensors"
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read ({error}). {_other_checkpoint(path)}") from error


def _other_checkpoint(path):
    if not path.name.startswith("step-"):  # the best model, to which no pointer leads
        return "Train on to get another one."
    others = sorted(other.name for other in path.parent.glob("step-*") if other != path)
    pointer = path.parent / POINTER
    if others:
        return f"To go on from another one, name it in {pointer}; there are: {', '.join(others)}."
    return f"There is no other one; remove {pointer} to start anew."


def _remove_all_but(folder, step, keep):
    """Removes older checkpoints, and later ones: those are of a run that was left when an earlier step was restored."""
    steps = {}
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdigit():
            steps[int(number)] = path
    kept = sorted(number for number in steps if number <= step)[-keep:]
    for number in sorted(set(steps) - set(kept)):
        shutil.rmtree(steps[number])
    remove_unfinished(folder, ["step-*"], ["old"])
