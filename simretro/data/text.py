"""Helpers for texts and sequences that come with bert4keras' names, and the cut of long texts."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simretro.tokenizers.rows import round_up

# Where a text may be cut, the best places first. A full stop needs white space behind it and a comma no digit, or
# numbers, versions and addresses would count as clauses.
_CLAUSE_ENDS = [
    re.compile(pattern)
    for pattern in (r"\n", r"(?:[。！？!?…]|\.(?=\s))[。！？!?….”’」』）)\"']*", r"[；;]", r"[，,](?!\d)", r"\s")
]
_STRIPPED = " \t\n；;，,"


def text_segmentate(text: str, maxlen: int, seps: str = "\n", strips: str | None = None) -> list[str]:
    """Splits a text into segments of at most `maxlen` characters, at the coarsest separators that do.

    A segment without a separator stays longer.

    Args:
        text: str.
        maxlen: int, characters.
        seps: separators, each a character, the coarsest first.
        strips: characters taken off both ends of a segment, after white space.
    Returns: list of str.
    """
    text = text.strip().strip(strips)
    if not seps or len(text) <= maxlen:
        return [text]
    clauses = text.split(seps[0])
    segments, current = [], ""
    for number, clause in enumerate(clauses, start=1):
        # A clause counts with its separator, the last one too: so bert4keras counts.
        if current and clause and len(current) + len(clause) + 1 > maxlen:
            segments += text_segmentate(current, maxlen, seps[1:], strips)
            current = ""
        current += clause if number == len(clauses) else clause + seps[0]
    if current:
        segments += text_segmentate(current, maxlen, seps[1:], strips)
    return segments


def truncate_sequences(maxlen: int, indices: int | Sequence[int], *sequences: list) -> list[list]:
    """Shortens lists in place until they have `maxlen` items together, always the longest one by one item.

    Args:
        maxlen: int.
        indices: position of the item to remove (-1: last), one for all lists or one for each.
        *sequences: lists.
    Returns: list of the lists.
    """
    indices = [indices] * len(sequences) if isinstance(indices, int) else list(indices)
    if len(indices) != len(sequences):
        raise ValueError(f"`indices` must be an int or one a list; received {len(indices)} for {len(sequences)} lists.")
    for _ in range(sum(map(len, sequences)) - maxlen):
        longest = max(range(len(sequences)), key=lambda i: len(sequences[i]))
        del sequences[longest][indices[longest]]
    return list(sequences)


def sequence_padding(
    inputs: Sequence,
    length: int | Sequence[int] | None = None,
    value: float = 0,
    seq_dims: int = 1,
    mode: str = "post",
    multiple_of: int = 1,
    dtype: str | None = None,
) -> np.ndarray:
    """Pads sequences to one length.

    Args:
        inputs: sequences or arrays whose first `seq_dims` axes differ.
        length: int, or one for each of these axes; longer sequences are cut. Default: the longest.
        value: what to pad with.
        seq_dims: int, axes to pad.
        mode: "post" or "pre": pad and cut at the end or at the beginning.
        multiple_of: the default length is rounded up to a multiple of it.
        dtype: of the result; default int32 for integers, else as the inputs.
    Returns: (len(inputs), length, ...) array; (0, length or 0) for no inputs.
    Raises: ValueError for another `mode`.
    """
    if mode not in ("post", "pre"):
        raise ValueError(f'`mode` must be "post" or "pre"; received {mode!r}.')
    arrays = [np.asarray(sequence) for sequence in inputs]
    if length is None:
        longest = np.max([array.shape[:seq_dims] for array in arrays], axis=0) if arrays else [0] * seq_dims
        length = [round_up(size, multiple_of) for size in longest]
    elif isinstance(length, int | np.integer):
        length = [int(length)] * seq_dims
    if dtype is None:
        filled = [array for array in arrays if array.size]  # an empty list is a float array
        common = np.result_type(*filled) if filled else np.dtype("int32")
        dtype = "int32" if common.kind in "iu" else common
    rest = arrays[0].shape[seq_dims:] if arrays else ()
    padded = np.full((len(arrays), *length, *rest), value, dtype)
    for row, array in zip(padded, arrays, strict=True):
        target, source = [], []
        for have, full in zip(array.shape[:seq_dims], length, strict=True):
            size = min(have, full)
            target.append(slice(size) if mode == "post" else slice(full - size, full))
            source.append(slice(size) if mode == "post" else slice(have - size, have))
        row[tuple(target)] = array[tuple(source)]
    return padded


def encode_within(texts: Sequence[str], tokenizer, limit: int) -> tuple[list, list[str], int]:
    """Token ids of texts without specials; what is longer than `limit` tokens is cut.

    It is cut at the end of a clause: of the longest part that fits and ends with a line, else a sentence, else a
    semicolon, a comma, a word, where the first of these that keeps half of `limit` is taken, and if none does, the
    longest part. Only a text without any such end is cut in the middle.

    Args:
        texts: list of str.
        tokenizer: has `encode_ragged(texts)`.
        limit: int >= 1, tokens.
    Returns: (ids of each text, what is left of each text, number of texts cut). A text cut in the middle is handed
        back whole.
    """
    ids, kept = list(tokenizer.encode_ragged(texts)), list(texts)
    too_long = [i for i, tokens in enumerate(ids) if len(tokens) > limit]
    if not too_long:
        return ids, kept, 0
    ends = [_clause_ends(texts[i]) for i in too_long]
    pieces = [texts[i][a:b] for i, found in zip(too_long, ends, strict=True) for a, b in pairwise([0, *found])]
    sizes = iter(map(len, tokenizer.encode_ragged(pieces)))
    waiting = {}
    for i, found in zip(too_long, ends, strict=True):
        total, fitting = 0, []
        for end, level in found.items():
            total += next(sizes)
            if 0 < total <= limit:
                fitting.append((end, level, total))
        waiting[i] = _best_first(fitting, limit)
    # A prefix may have more tokens than its pieces together: what does not fit is tried again, shorter.
    while waiting:
        heads = {i: texts[i][: candidates.pop(0)].rstrip(_STRIPPED) for i, candidates in waiting.items() if candidates}
        for i in waiting.keys() - heads.keys():
            ids[i] = ids[i][:limit]
        waiting = {i: waiting[i] for i in heads}
        for i, tokens in zip(heads, tokenizer.encode_ragged(list(heads.values())) if heads else (), strict=True):
            if 0 < len(tokens) <= limit:
                ids[i], kept[i] = tokens, heads[i]
                del waiting[i]
    return ids, kept, len(too_long)


def _clause_ends(text):
    """{position behind the end of a clause: level, the coarsest is 0}, in order of position."""
    levels = {}
    for level, pattern in enumerate(_CLAUSE_ENDS):
        for match in pattern.finditer(text):
            levels.setdefault(match.end(), level)
    return dict(sorted(levels.items()))


def _best_first(fitting, limit):
    """Positions to cut at, from the best on; `fitting` has (position, level, tokens up to it) in order of position."""
    if not fitting:
        return []
    longest = {level: (end, total) for end, level, total in fitting}  # the last one of a level stays
    enough = [longest[level][0] for level in sorted(longest) if longest[level][1] * 2 >= limit]
    chosen = enough[0] if enough else fitting[-1][0]
    return [end for end, _, _ in reversed(fitting) if end <= chosen]
