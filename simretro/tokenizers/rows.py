"""Rows of ids as arrays: where to cut them and how to lay them out, without a loop over the tokens."""

import numpy as np


def round_up(number: int, multiple: int) -> int:
    """The next multiple of `multiple` that is not below `number`."""
    return -(-int(number) // multiple) * multiple


def longest_first(first: np.ndarray, second: np.ndarray, budget: int) -> list[np.ndarray]:
    """Lengths of A and of B, both (N,), that sum to `budget` at most.

    The longer text is cut down to the shorter one, then both in turn. An odd token goes to the text that was longer,
    to the second where they were equal: so the Rust library does it.
    """
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    long_kept = np.minimum(longer, np.maximum(shorter, budget - shorter))
    both = shorter + long_kept > budget
    shorter = np.where(both, budget // 2, shorter)
    long_kept = np.where(both, budget - budget // 2, long_kept)
    swap = first > second
    return [np.where(swap, long_kept, shorter), np.where(swap, shorter, long_kept)]


def cut_rows(flat_ids: np.ndarray, lengths: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Keeps the first `kept[i]` of the `lengths[i]` ids of row i; the rows lie one behind the other in `flat_ids`."""
    return flat_ids[_places(lengths) < np.repeat(kept, lengths)]


def lay_out(
    flat_ids: list[np.ndarray],
    lengths: list[np.ndarray],
    specials: tuple[int, int, int],
    separators: int,
    multiple: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Puts texts and special tokens into padded rows.

    Args:
        flat_ids: the ids of all A, one row behind the other, and those of all B if there are any.
        lengths: the number of ids of each A, (N,), and of each B.
        specials: ids of cls, sep and pad.
        separators: how many sep stand between A and B.
        multiple: of which the padded length is one.
    Returns: (token_ids, segment_ids), int32 (N, L).
    """
    cls, sep, pad = specials
    first_end = lengths[0] + 2
    row_end = first_end if len(lengths) == 1 else first_end + separators + lengths[1]
    width = round_up(row_end.max(initial=0), multiple)
    rows = np.arange(len(first_end))
    token_ids = np.full((len(rows), width), pad, np.int32)
    token_ids[:, :1] = cls
    column = np.ones_like(rows)  # the next free one of each row
    for part, (ids, length) in enumerate(zip(flat_ids, lengths, strict=True)):
        for _ in range(separators - 1 if part else 0):
            token_ids[rows, column] = sep
            column = column + 1
        token_ids[np.repeat(rows, length), np.repeat(column, length) + _places(length)] = ids
        column = column + length
        token_ids[rows, column] = sep
        column = column + 1
    columns = np.arange(width)
    behind_first = (columns >= first_end[:, None]) & (columns < row_end[:, None])  # (N, L)
    return token_ids, behind_first.astype(np.int32)


def _places(lengths: np.ndarray) -> np.ndarray:
    """0, 1, ..., length - 1 for each length, one behind the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
