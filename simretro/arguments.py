"""What a function says of its arguments: which one is wrong, and warnings at the line of the user who gave them."""

import sys
import warnings
from collections.abc import Mapping

import numpy as np

_PACKAGE = __name__.partition(".")[0]


def check_int(name: str, value, least: int | None = None, why: str = "") -> int:
    """An argument that must be a whole number, as `int`.

    Args:
        name: of the argument, for the error.
        value: what was given; NumPy's integers are fine, a bool is none, and so is a float without a fraction.
        least: int or None, the smallest value that makes sense.
        why: str, the reason for `least`, for the error.
    Raises: ValueError naming the argument and what was received.
    """
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"`{name}` must be an int{bound}{why and f', since {why}'}; received {value!r}.")
    return int(value)


def plain(value):
    """NumPy's numbers as Python's, which JSON and lists know; in dicts, lists and tuples too. All else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(entry) for entry in value)
    return value


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called into this package, however deep within it the cause is found."""
    frame, stacklevel = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, stacklevel = frame.f_back, stacklevel + 1
    warnings.warn(message, category, stacklevel=stacklevel)
