"""Files and folders that are there whole or not at all: written aside, flushed to the disk, then renamed.

What a killed run leaves behind lies beside the target: `.<name>.tmp-*` is unfinished and can be deleted;
`.<name>.old-*` is the previous folder of a run that was killed between two renames, see `recover_folder`. Behind that
stand the machine, its start and the space of process ids as digests, the time, the process id, and what makes the name
unique: a volume may be shared, and the same number is another process on another machine.
"""

import errno
import functools
import glob
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

_Result = TypeVar("_Result")
_open_folders: set[Path] = set()  # what `atomic_folder` has handed out and not yet renamed
_named_here: set[str] = set()  # names of siblings that this process has made
# A file at the top of a folder, and what it makes of the folder.
_SIGNS = {
    "config.json": "a model",
    "bert_config.json": "a model",
    "index.json": "an index",
    "calibrator.json": "a calibrator",
    "corpus.json": "an encoded corpus",
    "progress.json": "an encoded corpus",  # not finished
    "latest.json": "the checkpoints of a training run",
}
_READ_ATTEMPTS = 3
_LONGEST_NAME = 160  # bytes
_END_BYTES = 1 << 16
# Name of a sibling; those of earlier versions have the process id alone.
_SIBLING = re.compile(
    r"\.(?P<kind>tmp|old)-(?:(?P<host>\w+)-(?P<boot>\w+)-(?P<space>\w+)-(?P<made>\d+)-)?(?P<pid>\d+)-[^-]+$"
)
# On Windows `os.kill` ends a process, or sends Ctrl-C to a group of them, where others only ask.
_ASKS_PROCESSES = os.name != "nt"
# A writer that cannot be asked whether it lives is taken for dead when it has changed nothing for so many seconds. Who
# writes changes something within a day; and between moving a folder aside and renaming the new one there is no work.
_SECONDS_TO_WRITE = 86_400
_SECONDS_TO_SWAP = 300


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
def atomic_folder(path: str | Path, kind: str | None = None) -> Iterator[Path]:
    """Opens an empty folder that takes the place of `path` when the block ends, and only if it ends without an error.

    Blocks may be nested: opening the folder that an outer block has handed out hands it out again, and the outer
    block decides. So what writes a whole folder on its own can also add its files to somebody else's.

    The previous content of `path` is removed, unless it holds files that the new folder lacks: then it is kept
    beside it as `<name>.replaced-*`, with a warning, for those files may be somebody's notes.

    Args:
        path: the folder to write; missing parents are made. A symbolic link is followed.
        kind: "a model", "an index" or "a calibrator", what is written; a folder that holds something else of these, an
            encoded corpus or the checkpoints of a training run is then not replaced. None = any folder is.
    Yields: the path of the folder to fill.
    Raises:
        NotADirectoryError: if `path` is a file.
        ValueError: if `path` is the working directory or holds it, or holds something of another `kind`.
        OSError: what writing raises, a full disk for instance; `path` is then as it was.
    """
    target = Path(os.path.realpath(path))
    if target in _open_folders:
        yield target
        return
    _check_replaceable(target, kind)
    recover_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(target.parent, [glob.escape(_short(target.name))])
    staging = _sibling(target, "tmp")
    try:
        staging.mkdir()
        _open_folders.add(staging)
        yield staging
        if target.exists():
            shutil.copymode(target, staging)
        _sync_tree(staging)
        _swap(staging, target)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        _explain_full_disk(error, target)
        raise
    finally:
        _open_folders.discard(staging)


def recover_folder(path: str | Path) -> bool:
    """Puts back the previous folder of a run that was killed between moving it aside and renaming the new one.

    What a process of another machine or container has moved aside is put back after five minutes: nobody here can tell
    whether that process lives, but no living one takes so long. After a restart of this machine there is no wait.

    Args:
        path: the folder that is missing.
    Returns: bool; True if `path` was missing and has been put back, which is told by a warning. So is a wait.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        return False
    # A writer that is alive is between its two renames: what it has moved aside is its own to care for.
    found = _siblings(target, "old")
    asides = [aside for aside in found if not _writer_lives(aside, _SECONDS_TO_SWAP)]
    asides.sort(key=lambda aside: aside.stat().st_mtime_ns)
    if not asides:
        waiting = [aside.name for aside in found if _is_known_to_live(aside) is None]
        if waiting:
            warnings.warn(
                f"{target} is missing. {waiting[0]} beside it has been moved aside from there by another machine or "
                f"container; if that was killed, it is put back {_SECONDS_TO_SWAP // 60} minutes later.",
                stacklevel=2,
            )
        return False
    try:
        os.rename(asides[-1], target)
    except OSError:
        if os.path.lexists(target):  # another process has put it back in the meantime
            return False
        raise
    warnings.warn(
        f"{target} was missing and has been put back from {asides[-1].name}: a run was killed while replacing it.",
        stacklevel=2,
    )
    return True


def read_whole(folder: str | Path, read: Callable[[], _Result]) -> _Result:
    """What `read()` makes of several files of a folder, all of one save.

    A save that takes the folder's place meanwhile would mix the old files with the new ones: then it is read again.

    Args:
        folder: path of the folder; it may be missing.
        read: callable without arguments; called once, and again after a change.
    Raises: OSError if the folder has been replaced during each of some attempts; else what `read` raises.
    """
    folder = Path(folder)
    for _ in range(_READ_ATTEMPTS):
        with _watched(folder) as is_same:
            try:
                result = read()
            except Exception:
                if is_same():
                    raise
            else:
                if is_same():
                    return result
    raise OSError(f"{folder} is being replaced over and over, so that it cannot be read. Wait for the writer to end.")


@contextmanager
def _watched(folder):
    """Yields a function that tells whether the path still leads to the same folder."""
    if os.name == "nt" or not folder.is_dir():
        yield lambda: os.name == "nt" or not folder.is_dir()
        return
    handle = os.open(folder, os.O_RDONLY)  # held open, so that its number is not given to a new folder
    try:
        yield lambda: folder.is_dir() and os.path.samestat(os.fstat(handle), os.stat(folder))
    finally:
        os.close(handle)


def remove_unfinished(folder: str | Path, names: Iterable[str], kinds: Iterable[str] = ("tmp",)) -> None:
    """Removes what killed runs have left of files and folders; what a living writer is at stays.

    What another machine or container writes, of which nobody here can tell, stays until it has not changed for a day.

    Args:
        folder: where they lie.
        names: of what they were to become; may hold the wildcards of `Path.glob`.
        kinds: "tmp" and "old", see the module.
    """
    for pattern in (f".{name}.{kind}-*" for name in names for kind in kinds):
        for left in Path(folder).glob(pattern):
            if _writer_lives(left):
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def crc32_of(path: str | Path) -> int:
    """CRC-32 of a file's content."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def file_facts(path: str | Path) -> list:
    """What tells a file from another one and from itself after a change, without reading it all, as JSON values.

    Name, size, time of change, and a checksum of both ends: unpacked and copied files may share the first three.
    """
    path = Path(path)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        checksum = zlib.crc32(file.read(_END_BYTES))
        file.seek(max(0, status.st_size - _END_BYTES))
        checksum = zlib.crc32(file.read(_END_BYTES), checksum)
    return [path.name, status.st_size, status.st_mtime_ns, checksum]


def _explain_full_disk(error, target):
    # Some libraries raise errors of their own that only quote the system's.
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
        message = f"no room to write {target} ({error}). What was there is unharmed. Make room or name another disk."
        raise OSError(errno.ENOSPC, message) from error


def _check_replaceable(target, kind):
    for name, held in _SIGNS.items() if kind else ():
        if held != kind and (target / name).is_file():
            raise ValueError(
                f"`path` must not hold anything but {kind}, for the whole folder is replaced; {target} holds {held} "
                f"({name}). Name a folder of its own."
            )
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


class _Place(NamedTuple):
    """What a process id belongs to: it names the same process only where all three are the same."""

    host: str
    boot: str  # where the host is the same but not this, it has been restarted, and no process lives on
    space: str  # containers on one host have process ids of their own


@functools.cache
def _here():
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    host = f"{socket.gethostname()} {_content('/etc/machine-id')}"
    boot = _content("/proc/sys/kernel/random/boot_id")
    return _Place(*(hashlib.sha256(fact.encode()).hexdigest()[:6] for fact in (host, boot, space)))


def _content(path):
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""


def _short(name):
    """A name that leaves room for what siblings have behind it: file systems allow 255 bytes."""
    if len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def _sibling(target, kind):
    parts = (kind, *_here(), int(time.time()), os.getpid(), uuid.uuid4().hex[:8])
    sibling = target.with_name(f".{_short(target.name)}.{'-'.join(map(str, parts))}")
    _named_here.add(sibling.name)
    return sibling


def _siblings(target, kind):
    prefix = f".{_short(target.name)}.{kind}-"
    if not target.parent.is_dir():
        return []
    return [entry for entry in target.parent.iterdir() if entry.name.startswith(prefix)]


def _writer_lives(sibling, patience=_SECONDS_TO_WRITE):
    """Whether the process that named a sibling is still there, as far as that can be known.

    Args:
        sibling: path.
        patience: seconds without a change after which a writer that cannot be asked is taken for dead.
    """
    is_known = _is_known_to_live(sibling)
    if is_known is not None:
        return is_known
    try:
        return time.time() - _last_change(sibling) < patience
    except OSError:  # it is gone, so somebody is at work
        return True


def _is_known_to_live(sibling):
    """Whether the process that named a sibling is still there; None where it cannot be asked."""
    name = _SIBLING.search(sibling.name)
    if name is None:
        return False
    has_place = name["host"] is not None
    place, here = _Place(name["host"], name["boot"], name["space"]), _here()
    if has_place and place.host == here.host and place.boot != here.boot:
        return False
    if not _ASKS_PROCESSES or (has_place and place != here):
        return None
    pid = int(name["pid"])
    if pid == os.getpid():
        # In a container that is started again the killed run had the same number.
        return sibling.name in _named_here
    try:
        os.kill(pid, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _last_change(sibling):
    """Seconds since the epoch."""
    name = _SIBLING.search(sibling.name)
    if name["kind"] == "old" and name["made"]:
        return int(name["made"])  # moving a folder aside leaves it the time of its last save
    # Writing into a file changes the time of the file, not that of the folder it is in.
    return max(path.lstat().st_mtime for path in (sibling, *sibling.rglob("*")))


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
