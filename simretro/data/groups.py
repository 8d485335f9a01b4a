"""Reader of SimBERT's training files: a group of texts that mean the same on each line."""

import codecs
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_EXAMPLE = '{"text": "...", "synonyms": ["...", "..."]}'


class Group(NamedTuple):
    """Texts that mean the same.

    Args:
        texts: tuple of at least two str.
        path: file they come from, None for texts given in memory.
        line: int, line in that file, counted from 1; without a file the group's number, counted from 0.
    """

    texts: tuple[str, ...]
    path: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        """Where the group comes from, for messages."""
        return f"group {self.line}" if self.path is None else f"{self.path}, line {self.line}"


def iter_groups(path: str | Path) -> Iterator[Group]:
    """Reads groups one by one: JSON lines in UTF-8 with the keys `text` (str) and `synonyms` (list of str).

    Lines end at "\\n" only, a byte order mark and blank lines are skipped, other keys are ignored.

    Args:
        path: file to read.
    Yields: Group, `text` first, then the `synonyms`.
    Raises:
        ValueError: for the first line that is no such record, naming file and line; for a file without records.
        OSError: if the file cannot be read.
    """
    found = False
    with open(path, "rb") as file:
        for line, raw in enumerate(file, start=1):  # a binary file is split at b"\n" and nowhere else
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if raw.strip():
                found = True
                yield _parse(raw, str(path), line)
    if not found:
        raise ValueError(f"{path}: the file holds no records; it must have one JSON object a line, as {_EXAMPLE}.")


def read_groups(path: str | Path) -> list[Group]:
    """All groups of a file; see `iter_groups`."""
    return list(iter_groups(path))


def as_groups(groups: str | Path | Iterable) -> Iterator[Group]:
    """Groups of a file, or texts given in memory checked like those of a file.

    Args:
        groups: path, or iterable of `Group` or of sequences of str.
    Yields: Group.
    Raises: ValueError for a group that is a str, holds something else than non-empty str, or fewer than two of them.
    """
    if isinstance(groups, str | Path):
        yield from iter_groups(groups)
        return
    found = False
    for number, group in enumerate(groups):
        found = True
        if not isinstance(group, Group):
            group = Group(_sequence(group, number))
        if group.line is None:
            group = group._replace(line=number)
        if len(group.texts) < 2:
            raise ValueError(
                f"{group.place}: a group must have at least two texts; received {_short(group.texts)}. Add a text that "
                "means the same, or leave the group out."
            )
        for text in group.texts:
            _check_text(text, group.place, "a text")
        yield group
    if not found:
        raise ValueError("`groups` must hold at least one group; received none.")


def _sequence(group, number):
    # A str is a sequence of its characters: each would silently become a text.
    if isinstance(group, str | bytes | dict) or not isinstance(group, Iterable):
        raise ValueError(
            f"group {number}: must be a `Group` or a list of str; received {type(group).__name__} {_short(group)}. "
            "Give the path of a file as a str, and records as lists of their texts."
        )
    return tuple(group)


def _parse(raw, path, line):
    place = f"{path}, line {line}"
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place}: is not UTF-8 (byte {error.start}: {error.reason}); received {_short(raw)}. Save it as UTF-8."
        ) from None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers that are too long, brackets that are too deep
        reason = f"{error.msg} (column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(
            f"{place}: must be one whole JSON object, as {_EXAMPLE}, but {reason}; received "
            f"{_short(text)}. Write a line break within a text as \\n: raw ones, as in the sample file published with "
            "SimBERT, cut a record into lines that are no JSON."
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: must be a JSON object, as {_EXAMPLE}; received {_short(text)}.")
    for key in ("text", "synonyms"):
        if key not in record:
            raise ValueError(f"{place}: has no `{key}`; received {_short(text)}. A record must be as {_EXAMPLE}.")
    synonyms = record["synonyms"]
    if not isinstance(synonyms, list):
        raise ValueError(f"{place}: `synonyms` must be a list of str; received {_short(synonyms)}. Put it in brackets.")
    if not synonyms:
        raise ValueError(
            f"{place}: `synonyms` must hold at least one text; received []. Add a text that means the same, or leave "
            "the record out."
        )
    _check_text(record["text"], place, "`text`")
    for synonym in synonyms:
        _check_text(synonym, place, "each of `synonyms`")
    return Group((record["text"], *synonyms), path, line)


def _check_text(text, place, what):
    if not isinstance(text, str):
        raise ValueError(f"{place}: {what} must be a str; received {type(text).__name__} {_short(text)}.")
    if not text.strip():
        raise ValueError(f"{place}: {what} must not be empty; received {text!r}. Leave it out of the record.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: {what} must be valid Unicode; received {_short(text)} with half a surrogate pair at character "
            f"{error.start}. Write the whole character."
        ) from None


def _short(value):
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."
