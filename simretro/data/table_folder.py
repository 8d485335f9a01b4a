"""What is written beside the columns of a table in files: its facts, and checksums by which damage is noticed."""

import json
import zlib
from pathlib import Path

from simretro.files import crc32_of

_FACTS = "facts.json"


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
