"""Lines of text files, packed ones too; every error names file and line."""

import codecs
import gzip
import os
import warnings
import zlib
from collections.abc import Iterator
from typing import IO


def open_binary(path: str | os.PathLike) -> IO[bytes]:
    """Opens a file for reading; one whose name ends in `.gz` is unpacked on the way."""
    return gzip.open(path, "rb") if os.fspath(path).lower().endswith(".gz") else open(path, "rb")


def iter_lines(path: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """The lines of a file in UTF-8 that are not blank, without line ends and byte order mark.

    Lines end at "\\n" only; a "\\r" before it goes, too.

    Args:
        path: file to read, packed if its name ends in `.gz`.
    Yields: (number of the line, counted from 1; text).
    Raises:
        ValueError: for bytes that are not UTF-8, for a damaged `.gz`.
        OSError: if the file cannot be read.
    """
    for line, text in iter_whole_lines(path):
        text = text.rstrip("\r\n")
        if text.strip():
            yield line, text


def iter_whole_lines(path: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """As `iter_lines`, with the blank lines, and with the line ends."""
    path, line, raw = os.fspath(path), 0, b""
    with open_binary(path) as file:
        try:
            for line, raw in enumerate(file, start=1):  # a binary file is split at b"\n" and nowhere else
                yield line, decode(raw, f"{path}, line {line}")
            if line == 1 and b"\r" in raw.rstrip():
                warnings.warn(
                    f'{path}: has one line, since lines end at "\\n"; there are {raw.count(13)} "\\r" in it. If these '
                    "are its line ends, convert it.",
                    stacklevel=2,
                )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path, line, error) from None


def read_text(path: str | os.PathLike) -> str:
    """The whole text of a file in UTF-8, its lines ending in "\\n"; raises as `iter_lines`."""
    path = os.fspath(path)
    with open_binary(path) as file:
        try:
            raw = file.read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path, 0, error) from None
    return decode(raw, path).replace("\r\n", "\n")


def decode(raw: bytes, place: str) -> str:
    """Text of bytes in UTF-8, a byte order mark left out; raises ValueError naming the place if they are not."""
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start)
        where = f"byte {error.start}, line {line + 1}" if line else f"byte {error.start}"
        raise ValueError(
            f"{place}: is not UTF-8 ({where}: {error.reason}); received {short(raw[max(error.start - 40, 0) :])}. "
            "Save it as UTF-8."
        ) from None


def short(value) -> str:
    """A value as shown in messages."""
    shown = repr(value[:200] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."


def _damaged(path, line, error):
    return ValueError(f"{path}: cannot be unpacked behind line {line} ({error}). Pack or download it again.")
