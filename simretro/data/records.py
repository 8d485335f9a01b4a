"""Lines of text files and the JSON objects in them; every error names file and line."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def open_binary(path: str | Path) -> IO[bytes]:
    """Opens a file for reading; one whose name ends in `.gz` is unpacked on the way."""
    return gzip.open(path, "rb") if str(path).lower().endswith(".gz") else open(path, "rb")


def iter_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file in UTF-8 that are not blank, without line ends and byte order mark.

    Lines end at "\\n" only; a "\\r" before it goes, too.

    Args:
        path: file to read, packed if its name ends in `.gz`.
    Yields: (number of the line, counted from 1; text).
    Raises:
        ValueError: for bytes that are not UTF-8, for a damaged `.gz`.
        OSError: if the file cannot be read.
    """
    line = 0
    with open_binary(path) as file:
        try:
            for line, raw in enumerate(file, start=1):  # a binary file is split at b"\n" and nowhere else
                text = decode(raw, f"{path}, line {line}").rstrip("\r\n")
                if text.strip():
                    yield line, text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged(path, line, error) from None


def read_text(path: str | Path) -> str:
    """The whole text of a file in UTF-8, its lines ending in "\\n"; raises as `iter_lines`."""
    with open_binary(path) as file:
        try:
            raw = file.read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged(path, 0, error) from None
    return decode(raw, str(path)).replace("\r\n", "\n")


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


def damaged(path: str | Path, line: int, error: Exception) -> ValueError:
    """The error for a packed file that cannot be unpacked behind `line`."""
    return ValueError(f"{path}: cannot be unpacked behind line {line} ({error}). Pack or download it again.")


def parse_object(text: str, place: str, example: str) -> dict:
    """The JSON object in a line.

    Args:
        text: str.
        place: file and line, for messages.
        example: str, a record as it should be.
    Raises: ValueError naming the place if the line is no whole JSON object.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers that are too long, brackets that are too deep
        reason = f"{error.msg} (column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(
            f"{place}: must be one whole JSON object, as {example}, but {reason}; received {short(text)}. Write a line "
            "break within a text as \\n: raw ones cut a record into lines that are no JSON."
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: must be a JSON object, as {example}; received {short(text)}.")
    return record


def check_text(text, place: str, what: str) -> str:
    """Returns `text` if it is a str of valid Unicode, else raises ValueError naming place and `what`."""
    if not isinstance(text, str):
        raise ValueError(f"{place}: {what} must be a str; received {type(text).__name__} {short(text)}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: {what} must be valid Unicode; received {short(text)} with half a surrogate pair at character "
            f"{error.start}. Write the whole character."
        ) from None
    return text


def short(value) -> str:
    """A value as shown in messages."""
    shown = repr(value[:200] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."
