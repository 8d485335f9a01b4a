"""Files and folders that are there whole or not at all: written aside, flushed to the disk, then renamed.

What a killed run leaves behind lies beside the target: `.<name>.tmp-*` is unfinished and can be deleted;
`.<name>.old-*` is the previous folder of a run that was killed between two renames, see `recover_folder`.
"""

import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_open_folders: set[Path] = set()  # what `atomic_folder` has handed out and not yet renamed


@contextmanager
def atomic_file(path: str | Path, mode: str = "wb", encoding: str = "utf-8") -> Iterator[IO]:
    """Opens a file that takes the place of `path` when the block ends, and only if it ends without an error.

    Args:
        path: the file to write; its folder must exist. A symbolic link is followed.
        mode: "wb", or "w" for text, which is written with `\\n` as line end on every system.
        encoding: str, of a text file.
    Yields: the open file.
    Raises:
        ValueError: for another mode.
        OSError: what writing raises, a full disk for instance; `path` is then as it was.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f'`mode` must be "wb" or "w"; received {mode!r}.')
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"`path` must be a file; received the folder {target}.")
    unfinished = _sibling(target, "tmp")
    text = {"encoding": encoding, "newline": "\n"} if mode == "w" else {}
    try:
        with open(unfinished, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Opens an empty folder that takes the place of `path` when the block ends, and only if it ends without an error.

    Blocks may be nested: opening the folder that an outer block has handed out hands it out again, and the outer
    block decides. So what writes a whole folder on its own can also add its files to somebody else's.

    The previous content of `path` is removed, unless it holds files that the new folder lacks: then it is kept
    beside it as `<name>.replaced-*`, with a warning, for those files may be somebody's notes.

    Args:
        path: the folder to write; missing parents are made. A symbolic link is followed.
    Yields: the path of the folder to fill.
    Raises:
        NotADirectoryError: if `path` is a file.
        ValueError: if `path` is the working directory or holds it.
        OSError: what writing raises, a full disk for instance; `path` is then as it was.
    """
    target = Path(os.path.realpath(path))
    if target in _open_folders:
        yield target
        return
    _check_replaceable(target)
    recover_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for unfinished in _siblings(target, "tmp"):
        if unfinished.is_dir() and not _writer_lives(unfinished):
            shutil.rmtree(unfinished, ignore_errors=True)
    staging = _sibling(target, "tmp")
    try:
        staging.mkdir()
        _open_folders.add(staging)
        yield staging
        if target.exists():
            shutil.copymode(target, staging)
        _sync_tree(staging)
        _swap(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        _open_folders.discard(staging)


def recover_folder(path: str | Path) -> bool:
    """Puts back the previous folder of a run that was killed between moving it aside and renaming the new one.

    Args:
        path: the folder that is missing.
    Returns: bool; True if `path` was missing and has been put back, which is told by a warning.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        return False
    # A writer that is alive is between its two renames: what it has moved aside is its own to care for.
    asides = [aside for aside in _siblings(target, "old") if not _writer_lives(aside)]
    asides.sort(key=lambda aside: aside.stat().st_mtime_ns)
    if not asides:
        return False
    os.rename(asides[-1], target)
    warnings.warn(
        f"{target} was missing and has been put back from {asides[-1].name}: a run was killed while replacing it.",
        stacklevel=2,
    )
    return True


def _check_replaceable(target):
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"`path` must be a folder; received the file {target}.")
    if os.path.ismount(target):
        raise ValueError(
            f"`path` must not be a mount point, which cannot be replaced; received {target}. Name a folder in it."
        )
    working = Path.cwd()
    if target == working or target in working.parents:
        raise ValueError(
            f"`path` must not be or hold the working directory, for the whole folder is replaced; received {target}. "
            "Name a folder of its own."
        )


def _swap(staging, target):
    aside = _sibling(target, "old")
    try:
        if target.exists():
            os.rename(target, aside)
        os.rename(staging, target)
    except BaseException:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        raise
    _sync_folder(target.parent)
    for old in _siblings(target, "old"):  # `aside`, and what killed runs have left
        _remove_old(old, target)


def _remove_old(old, target):
    try:
        foreign = sorted(_relative_files(old) - _relative_files(target))
        if foreign:
            kept = target.with_name(f"{target.name}.replaced-{uuid.uuid4().hex[:8]}")
            os.rename(old, kept)
            message = f"{target} has been replaced; the folder before it is kept as {kept}, because only that one holds"
            warnings.warn(f"{message} {', '.join(foreign)}.", stacklevel=5)
            return
        # Renamed first: a half removed folder must not look like one that can be put back.
        rubbish = _sibling(target, "tmp")
        os.rename(old, rubbish)
        old = rubbish
        shutil.rmtree(old)
    except OSError as error:  # the new folder is in its place, so this is no failure of the writing
        warnings.warn(f"{target} has been written, but {old} could not be removed: {error}.", stacklevel=5)


def _relative_files(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}


def _sibling(target, kind):
    return target.with_name(f".{target.name}.{kind}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _siblings(target, kind):
    prefix = f".{target.name}.{kind}-"
    if not target.parent.is_dir():
        return []
    return [entry for entry in target.parent.iterdir() if entry.name.startswith(prefix)]


def _writer_lives(sibling):
    """Whether the process that named a sibling is still there."""
    pid = sibling.name.rsplit("-", 2)[-2]
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _sync_tree(folder):
    for entry in folder.rglob("*"):
        if entry.is_file() and not entry.is_symlink():
            # Windows flushes only what is open for writing
            with open(entry, "r+b" if os.name == "nt" else "rb") as file:
                os.fsync(file.fileno())
        elif entry.is_dir():
            _sync_folder(entry)
    _sync_folder(folder)


def _sync_folder(folder):
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
