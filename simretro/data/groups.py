"""Reader of SimBERT's training files: a group of texts that mean the same on each line."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from simretro.data.records import check_text, parse_object
from simretro.lines import iter_lines, short

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

    Lines end at "\\n" only, a byte order mark and blank lines are skipped, other keys are ignored; a file whose name
    ends in `.gz` is unpacked on the way.

    Args:
        path: file to read.
    Yields: Group, `text` first, then the `synonyms`.
    Raises:
        ValueError: for the first line that is no such record, naming file and line; for a file without records.
        OSError: if the file cannot be read.
    """
    found = False
    for line, text in iter_lines(path):
        found = True
        yield _parse(text, str(path), line)
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
                f"{group.place}: a group must have at least two texts; received {short(group.texts)}. Add a text that "
                "means the same, or leave the group out."
            )
        for text in group.texts:
            _check(text, group.place, "a text")
        yield group
    if not found:
        raise ValueError("`groups` must hold at least one group; received none.")


def _sequence(group, number):
    # A str is a sequence of its characters: each would silently become a text.
    if isinstance(group, str | bytes | dict) or not isinstance(group, Iterable):
        raise ValueError(
            f"group {number}: must be a `Group` or a list of str; received {type(group).__name__} {short(group)}. "
            "Give the path of a file as a str, and records as lists of their texts."
        )
    return tuple(group)


def _parse(text, path, line):
    place = f"{path}, line {line}"
    record = parse_object(text, place, _EXAMPLE)
    for key in ("text", "synonyms"):
        if key not in record:
            raise ValueError(f"{place}: has no `{key}`; received {short(text)}. A record must be as {_EXAMPLE}.")
    synonyms = record["synonyms"]
    if not isinstance(synonyms, list):
        raise ValueError(f"{place}: `synonyms` must be a list of str; received {short(synonyms)}. Put it in brackets.")
    if not synonyms:
        raise ValueError(
            f"{place}: `synonyms` must hold at least one text; received []. Add a text that means the same, or leave "
            "the record out."
        )
    _check(record["text"], place, "`text`")
    for synonym in synonyms:
        _check(synonym, place, "each of `synonyms`")
    return Group((record["text"], *synonyms), path, line)


def _check(text, place, what):
    if not check_text(text, place, what).strip():
        raise ValueError(f"{place}: {what} must not be empty; received {text!r}. Leave it out of the record.")
