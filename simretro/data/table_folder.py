"""Folders with the columns of a table: kept for the next run or thrown away, and by what damage is noticed."""

import hashlib
import json
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from simretro.arguments import warn
from simretro.files import atomic_folder, crc32_of

_FACTS = "facts.json"
_LONGEST_STEM = 40  # characters of the source's name in that of a folder
_Table = TypeVar("_Table")


def cached_table(
    cache_dir: str | Path, source: str | Path, key: list, write: Callable[[Path], None], read: Callable[..., _Table]
) -> _Table:
    """The table of a folder in `cache_dir`, which is written where it is missing or damaged.

    Args:
        cache_dir: where the folders of all sources are.
        source: path, whose name the folder's name begins with.
        key: JSON values, all that the table depends on.
        write: called with an empty folder; writes the columns and, by `write_facts`, the facts.
        read: called with a folder, and with `check=False` if it has just been written.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / f"{Path(source).stem[:_LONGEST_STEM]}-{digest}"
    if folder.is_dir():
        try:
            return read(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn(f"{folder} is damaged and is made again: {error}")
    with atomic_folder(folder) as unfinished:
        write(unfinished)
    return read(folder, check=False)


def temporary_table(prefix: str, owner: object, write: Callable[[Path], _Table]) -> _Table:
    """What `write` makes of an empty folder among the system's temporary files, which goes with `owner`."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    remove = weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    try:
        return write(folder)
    except BaseException:
        remove()
        raise


def name_of(function: Callable | None) -> list | None:
    """What a function is known by in a key; not every callable has both names."""
    return None if function is None else [getattr(function, name, None) for name in ("__module__", "__qualname__")]


def write_facts(folder: Path, facts: dict) -> None:
    """Writes facts of a table whose files are all in the folder.

    Args:
        folder: of the files.
        facts: JSON values.
    """
    checksums = {file.name: crc32_of(file) for file in sorted(folder.iterdir())}
    text = json.dumps({**facts, "files": checksums})
    (folder / _FACTS).write_text(json.dumps({"facts": text, "crc32": zlib.crc32(text.encode())}), "utf-8")


def read_facts(folder: Path, check: bool = True) -> dict:
    """Reads what `write_facts` wrote, with `files`, {name: CRC-32}.

    Args:
        folder: of the files.
        check: bool; False: the files have just been written and are not read. Else they are, all of them: a byte that
            is wrong would go unnoticed through a whole training.
    Raises: OSError, ValueError, KeyError or TypeError where something is damaged or missing.
    """
    whole = json.loads((folder / _FACTS).read_text("utf-8"))
    if zlib.crc32(whole["facts"].encode()) != whole["crc32"]:
        raise ValueError(f"{_FACTS} has another checksum than when it was written.")
    facts = json.loads(whole["facts"])
    for name, checksum in facts["files"].items() if check else ():
        if crc32_of(folder / name) != checksum:
            raise ValueError(f"{name} has another checksum than when it was written.")
    return facts
