"""Groups as flat arrays of token ids: what a data set keeps of its texts, in memory or mapped from files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np

from simretro.data.groups import Group
from simretro.data.text import encode_within

_GROUPS_AT_A_TIME = 4096
# Hashes are sorted in parts of about this size, so that the sort needs no second copy of a large table.
_HASHES_AT_A_TIME = 1 << 22


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`[s, s + 1, ..., s + c - 1]` of each (start, count), one after the other; int64."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True)
class SharedTexts:
    """Texts that stand in several groups; equal ones have one number.

    Args:
        texts: int64 (S,), their indices in the table, ascending.
        numbers: int64 (S,), the number of each.
        starts: int64 (numbers + 1,), where a number's groups begin in `groups`.
        groups: int64 (S,), the groups of each number.
    """

    texts: np.ndarray
    numbers: np.ndarray
    starts: np.ndarray
    groups: np.ndarray

    def numbers_of(self, texts: np.ndarray) -> np.ndarray:
        """Number of each text, -1 where it stands in one group only; shape of `texts`."""
        if not len(self.texts):
            return np.full(np.shape(texts), -1)
        places = np.minimum(np.searchsorted(self.texts, texts), len(self.texts) - 1)
        return np.where(self.texts[places] == texts, self.numbers[places], -1)


@dataclass(frozen=True)
class GroupTable:
    """Token ids of all texts, in order of their groups.

    Within a group no two texts have the same ids, each text has at least one token and each group two texts.

    Args:
        token_ids: int32 (tokens,).
        text_starts: int64 (texts + 1,), where a text begins in `token_ids`.
        group_starts: int64 (groups + 1,), where a group begins in the texts.
        units: uint16 (tokens,), the number of a token's word in its text; None where each token is its own.
        largest_unit: int, most tokens of a word.
        shared: the texts that stand in several groups.
        notes: what has to be told about the texts, for warnings.
    """

    token_ids: np.ndarray
    text_starts: np.ndarray
    group_starts: np.ndarray
    units: np.ndarray | None
    largest_unit: int
    shared: SharedTexts
    notes: list[str] = field(default_factory=list)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.group_starts) - 1

    @property
    def num_texts(self) -> int:
        """Number of texts, equal ones of different groups counted apart."""
        return len(self.text_starts) - 1


class MemoryColumn:
    """Collects the parts of an array in memory."""

    def __init__(self, dtype: str):
        self.dtype, self.parts = dtype, []

    def append(self, part: np.ndarray) -> None:
        """Adds to the end."""
        self.parts.append(part.astype(self.dtype, copy=False))

    def finish(self) -> np.ndarray:
        """The whole array."""
        return np.concatenate(self.parts) if self.parts else np.zeros(0, self.dtype)


class FileColumn:
    """Collects the parts of an array in a file."""

    def __init__(self, path: Path, dtype: str):
        self.dtype, self.path = dtype, path
        self.file = open(path, "wb")

    def append(self, part: np.ndarray) -> None:
        """Adds to the end."""
        part.astype(self.dtype, copy=False).tofile(self.file)

    def close(self) -> None:
        """Ends the writing."""
        self.file.close()

    def finish(self) -> np.ndarray:
        """The whole array, mapped from the file."""
        self.close()
        return map_column(self.path, self.dtype)


def map_column(path: Path, dtype: str) -> np.ndarray:
    """An array of a file that `FileColumn` wrote, read when it is used."""
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def build_table(
    groups: Iterable[Group],
    tokenizer,
    limit: int,
    segment: Callable[[str], Iterable[str]] | None = None,
    whole_word: bool = False,
    column: Callable[[str, str], MemoryColumn | FileColumn] | None = None,
) -> GroupTable:
    """Tokenises groups.

    Texts longer than `limit` tokens are cut, texts of a group that are equal as token ids are kept once, and groups
    that are left with one text are left out; `notes` says how many.

    Args:
        groups: iterable of Group, gone through once.
        tokenizer: has `encode_ragged`; also `word_ids` and `sep_token_id` if `whole_word` is set without `segment`.
        limit: int, most tokens of a text, without specials.
        segment: callable text -> words; its words are the units of masking.
        whole_word: bool; the units of masking are words, else tokens.
        column: callable (name, dtype) -> where a column is collected; default: in memory.
    Returns: GroupTable.
    Raises: ValueError if no group is left.
    """
    return _Builder(tokenizer, limit, segment, whole_word, column or _memory_column).build(groups)


def _memory_column(name, dtype):
    return MemoryColumn(dtype)


class _Builder:
    def __init__(self, tokenizer, limit, segment, whole_word, column):
        self.tokenizer, self.limit, self.segment, self.whole_word = tokenizer, limit, segment, whole_word
        self.token_ids = column("token_ids", "int32")
        self.lengths = column("text_starts", "int64")
        self.sizes = column("group_starts", "int64")
        self.units = column("units", "uint16") if whole_word else None
        self.hashes = column("hashes", "uint64")
        self.num_cut = self.num_equal = self.num_left_out = self.num_unsegmented = 0
        self.first_left_out = None
        self.num_texts = self.num_tokens = 0
        self.largest_unit = 1

    def build(self, groups):
        self.lengths.append(np.zeros(1, "int64"))
        self.sizes.append(np.zeros(1, "int64"))
        for chunk in _chunks(groups):
            self._add(chunk)
        hashes, group_starts = self.hashes.finish(), self.sizes.finish()
        if len(group_starts) == 1:
            raise ValueError(
                f"no group has two texts that differ as token ids: {self.num_left_out} were read, the first at "
                f"{self.first_left_out}. Look at what the tokenizer makes of them."
            )
        return GroupTable(
            token_ids=self.token_ids.finish(),
            text_starts=self.lengths.finish(),
            group_starts=group_starts,
            units=self.units.finish() if self.whole_word else None,
            largest_unit=self.largest_unit,
            shared=find_shared(hashes, group_starts),
            notes=self._notes(),
        )

    def _add(self, chunk):
        texts = list(chain.from_iterable(group.texts for group in chunk))
        ids, texts, num_cut = encode_within(texts, self.tokenizer, self.limit)
        self.num_cut += num_cut
        counts = np.fromiter(map(len, ids), "int64", len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), "int32", int(counts.sum()))
        owners = np.repeat(np.arange(len(chunk)), [len(group.texts) for group in chunk])
        hashes = _hash_texts(tokens, counts)
        kept = (counts > 0) & _first_of_their_kind(hashes, owners)
        usable = np.bincount(owners[kept], minlength=len(chunk)) >= 2
        self.num_equal += int(np.sum(~kept & usable[owners]))
        self._note_left_out(chunk, usable)
        kept &= usable[owners]
        tokens, kept_counts = tokens[np.repeat(kept, counts)], counts[kept]
        self.token_ids.append(tokens)
        self.hashes.append(hashes[kept])
        self.lengths.append(self.num_tokens + np.cumsum(kept_counts))
        self.sizes.append(self.num_texts + np.cumsum(np.bincount(owners[kept], minlength=len(chunk))[usable]))
        self.num_tokens += len(tokens)
        self.num_texts += len(kept_counts)
        if self.whole_word:
            chosen = np.flatnonzero(kept)
            units = self._units([texts[i] for i in chosen], [ids[i] for i in chosen])
            self.units.append(units)
            begins = np.union1d(np.flatnonzero(np.diff(units)) + 1, np.cumsum([0, *kept_counts]))
            self.largest_unit = max(self.largest_unit, int(np.diff(begins).max(initial=0)))

    def _note_left_out(self, chunk, usable):
        left_out = np.flatnonzero(~usable)
        if len(left_out) and self.first_left_out is None:
            self.first_left_out = chunk[left_out[0]].place
        self.num_left_out += len(left_out)

    def _units(self, texts, ids):
        if not ids:
            return np.zeros(0, "int64")
        if self.segment is None:
            return self._word_units(ids)
        words = [list(self.segment(text)) for text in texts]
        pieces = iter(self.tokenizer.encode_ragged(list(chain.from_iterable(words))))
        units = []
        for count, tokens in zip(map(len, words), ids, strict=True):
            own = list(islice(pieces, count))
            # Words that are not tokenised as they are within the text (or were cut) say nothing of its tokens.
            if list(chain.from_iterable(own))[: len(tokens)] == list(tokens):
                units.append(np.repeat(np.arange(count), list(map(len, own)))[: len(tokens)])
            else:
                self.num_unsegmented += 1
                units.append(np.arange(len(tokens)))
        return np.concatenate(units)

    def _word_units(self, ids):
        sep = self.tokenizer.sep_token_id
        words = self.tokenizer.word_ids(chain.from_iterable([sep, *tokens] for tokens in ids))  # one call for all texts
        # The tokenizer counts on from text to text and gives specials no word: they are never masked.
        numbers = np.array([-1 if word is None else word for word in words], "int64")
        starts = np.cumsum([0, *(len(tokens) + 1 for tokens in ids[:-1])])
        first = np.minimum.reduceat(np.where(numbers < 0, len(numbers), numbers), starts)
        within = np.maximum(numbers - np.repeat(first, [len(tokens) + 1 for tokens in ids]), 0)
        return np.delete(within, starts)

    def _notes(self):
        notes = []
        if self.num_cut:
            notes.append(
                f"{self.num_cut} texts had more than {self.limit} tokens and were cut, at the end of a clause where "
                "there was one. Give a larger `maxlen` to keep more of them."
            )
        if self.num_left_out:
            notes.append(
                f"{self.num_left_out} groups were left out, the first at {self.first_left_out}: the tokenizer gives "
                "all their texts the same ids, or none."
            )
        if self.num_equal:
            notes.append(
                f"{self.num_equal} texts were left out: the tokenizer gives them no ids, or those of another text of "
                "their group."
            )
        if self.num_unsegmented:
            notes.append(
                f"{self.num_unsegmented} texts are masked token by token: the words of `segment` are not tokenised as "
                "they are within the text."
            )
        return notes


def _chunks(groups: Iterable[Group]) -> Iterator[list[Group]]:
    groups = iter(groups)
    while chunk := list(islice(groups, _GROUPS_AT_A_TIME)):
        yield chunk


def _hash_texts(tokens, counts):
    """uint64 hash of the ids of each text, equal on every machine; two different texts in 2^50 collide at most.

    A collision would only keep two texts apart that need not be.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])
    with np.errstate(over="ignore"):
        # A mixed id (splitmix64) times an odd random number for its place, summed up modulo 2^64.
        mixed = (tokens.astype("uint64") + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        places = ranges(np.zeros_like(counts), counts)
        odd = np.random.default_rng(0).integers(0, 1 << 63, int(counts.max(initial=0)), "uint64") * 2 + 1
        sums = np.concatenate([np.zeros(1, "uint64"), np.cumsum(mixed * odd[places], dtype="uint64")])
        return sums[starts[1:]] - sums[starts[:-1]]


def _first_of_their_kind(hashes, owners):
    """bool, True for the first text of each hash in its group."""
    order = np.lexsort((hashes, owners))  # stable: equal ones stay in their order
    repeated = (np.diff(hashes[order]) == 0) & (np.diff(owners[order]) == 0)
    first = np.ones(len(hashes), bool)
    first[order[1:][repeated]] = False
    return first


def find_shared(hashes: np.ndarray, group_starts: np.ndarray) -> SharedTexts:
    """Finds the texts that stand in several groups.

    Args:
        hashes: uint64 (texts,); within a group no two are equal.
        group_starts: int64 (groups + 1,).
    Returns: SharedTexts.
    """
    num_parts = 1 + len(hashes) // _HASHES_AT_A_TIME
    texts, sizes = [], []
    for part in range(num_parts):
        chosen = _of_part(hashes, part, num_parts)
        chosen = chosen[np.argsort(hashes[chosen], kind="stable")]
        kinds = np.flatnonzero(np.diff(hashes[chosen], prepend=~hashes[chosen[:1]]))
        counts = np.diff(np.append(kinds, len(chosen)))
        texts.append(chosen[np.repeat(counts > 1, counts)])
        sizes.append(counts[counts > 1])
    texts, sizes = np.concatenate(texts), np.concatenate(sizes)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.searchsorted(group_starts, texts, side="right") - 1
    order = np.argsort(texts)  # a text stands here once
    return SharedTexts(texts[order], numbers[order], np.concatenate([[0], np.cumsum(sizes)]), groups)


def _of_part(hashes, part, num_parts):
    """Indices of the hashes that leave the remainder `part`; equal ones are in the same part."""
    found = []
    for start in range(0, len(hashes), _HASHES_AT_A_TIME):
        remainders = hashes[start : start + _HASHES_AT_A_TIME] % np.uint64(num_parts)
        found.append(start + np.flatnonzero(remainders == part))
    return np.concatenate(found)
