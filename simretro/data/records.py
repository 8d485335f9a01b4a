"""The JSON objects in lines of text files; every error names file and line."""

import json

from simretro.lines import short


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
