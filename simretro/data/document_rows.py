"""Which windows of documents are in a batch together, and the arrays of that batch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simretro.arguments import check_int
from simretro.data.document_table import DocumentTable
from simretro.data.masking import choose_masked, corrupt, listed
from simretro.data.plan import BATCH_STREAM, PLAN_STREAM
from simretro.data.settings import Settings
from simretro.data.table import ranges
from simretro.data.windows import Windows
from simretro.tokenizers.rows import round_up

_SURE_SHORT_FACTOR = 4


@dataclass(frozen=True)
class DocumentSettings(Settings):
    """The settings of `MaskedDocuments`, which explains them; `check` refuses what is out of range."""

    rows_per_batch: int
    maxlen: int
    mask_rate: float
    seed: int
    decoder_mask_rate: float | None
    with_word_ids: bool
    short_rate: float
    length_multiple: int
    window_batches: int
    drop_remainder: bool

    def check(self, tokenizer) -> None:
        """Raises ValueError for a setting that is out of range, or that the tokenizer has no token for."""
        for name, least, why in (
            ("rows_per_batch", 1, "a batch has a row"),
            ("maxlen", 3, "it counts [CLS] and [SEP]"),
            ("seed", 0, "it seeds NumPy's generators"),
            ("length_multiple", 1, "1 pads to the longest row"),
            ("window_batches", 1, "1 does not sort by length"),
        ):
            check_int(name, getattr(self, name), least, why)
        if not 0 <= self.mask_rate < 1:
            raise ValueError(f"`mask_rate` must be in [0, 1); received {self.mask_rate!r}.")
        if self.decoder_mask_rate is not None and not 0 < self.decoder_mask_rate <= 1:
            raise ValueError(f"`decoder_mask_rate` must be None or in (0, 1]; received {self.decoder_mask_rate!r}.")
        if not 0 <= self.short_rate <= 1:
            raise ValueError(f"`short_rate` must be in [0, 1]; received {self.short_rate!r}.")
        for name in ("cls_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"`tokenizer` must have a `{name}`; received None. Add the token to its vocabulary.")
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "`tokenizer` must have a `mask_token_id`; received None. A simplified vocabulary lacks [MASK] unless "
                "it was kept: `load_vocab(..., startswith=[..., '[MASK]'])`."
            )


class RowPlan(NamedTuple):
    """The windows of an epoch in order of their batches.

    Args:
        starts, lengths: int64 (N,), the first token of each window in the table, and how many it has.
        batch_starts: int64 (batches + 1,), where a batch begins.
    """

    starts: np.ndarray
    lengths: np.ndarray
    batch_starts: np.ndarray


class RowPlanner:
    """Sorts the windows of an epoch into batches of like length.

    Keras takes as fixed what the first two batches have in common, for the whole of a `fit`. So batch 0 is the longest
    one and padded to the most that a batch can have, and batch 1 is made of windows that are shorter than that in every
    epoch. Where there are not enough of these, all batches get the one length.

    Args:
        windows: Windows.
        settings: DocumentSettings.
    Raises: ValueError if there is no full batch where the remainder is dropped.
    """

    def __init__(self, windows: Windows, settings: DocumentSettings):
        self.windows, self.seed = windows, settings.seed
        rows = settings.rows_per_batch
        full, rest = divmod(windows.num_windows, rows)
        self.sizes = np.array([rows] * full + [rest] * (rest > 0 and not settings.drop_remainder), "int64")
        if not len(self.sizes):
            raise ValueError(
                f"`rows_per_batch` must be at most the number of examples, {windows.num_windows}, since "
                f"`drop_remainder` is set; received {rows}."
            )
        self.window_rows = settings.window_batches * rows
        self.varies = len(self.sizes) > 1 and len(windows.surely_short) >= self.sizes[1]
        self.max_length = round_up(windows.longest + 2, settings.length_multiple)

    def plan(self, epoch: int) -> RowPlan:
        """The batches of an epoch, a function of the seed and `epoch` alone."""
        rng = np.random.default_rng([self.seed, PLAN_STREAM, epoch])
        starts, lengths = self.windows.draw(rng)
        slots, rest = np.arange(len(self.sizes)), np.ones(len(starts), bool)
        short = np.zeros(0, "int64")
        if self.varies:
            short = self._short(rng, lengths)
            rest[short] = False
            slots = np.delete(slots, 1)
        order = rng.permutation(np.flatnonzero(rest))[: self.sizes[slots].sum()]
        order = order[np.lexsort((lengths[order], np.arange(len(order)) // self.window_rows))]
        ends = np.cumsum(self.sizes[slots])
        cuts = np.split(order, ends[:-1])
        arranged = [cuts[cut] for cut in self._cuts_in_order(rng, lengths[order[ends - 1]])]
        if self.varies:
            arranged.insert(1, short)
        order = np.concatenate(arranged)
        batch_starts = np.concatenate([[0], np.cumsum(self.sizes)])
        return RowPlan(starts[order], lengths[order], batch_starts)

    def _short(self, rng, lengths):
        """Windows for batch 1: the shortest of some that are surely short."""
        size = int(self.sizes[1])
        some = self.windows.surely_short
        some = rng.choice(some, min(_SURE_SHORT_FACTOR * size, len(some)), replace=False)
        return some[np.argsort(lengths[some], kind="stable")[:size]]

    def _cuts_in_order(self, rng, longest):
        """The longest batch first, to fail at once if memory is short; the last one, which may be of another size,
        in its place; the others at random."""
        last = len(longest) - 1
        if not last:
            return np.zeros(1, "int64")
        first = np.argmax(longest[:-1])
        return np.concatenate([[first], rng.permutation(np.delete(np.arange(last), first)), [last]])


class RowMaker:
    """Makes the arrays of a batch, see `MaskedDocuments`.

    Args:
        table: DocumentTable.
        planner: RowPlanner; None: for `rows` and `masked` alone, without `is_widest`.
        tokenizer: has `cls_token_id`, `sep_token_id`, `pad_token_id`, `mask_token_id`, `special_ids`, `vocab_size`.
        settings: DocumentSettings.
    """

    def __init__(self, table: DocumentTable, planner: RowPlanner | None, tokenizer, settings: DocumentSettings):
        self.table, self.planner, self.settings = table, planner, settings
        self.multiple = settings.length_multiple
        self.cls, self.sep, self.pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        self.mask = tokenizer.mask_token_id
        self.maskable = np.ones(tokenizer.vocab_size, bool)
        self.maskable[[*tokenizer.special_ids, self.sep]] = False
        self.random_ids = np.flatnonzero(self.maskable).astype("int32")

    def make(self, plan: RowPlan, epoch: int, index: int) -> dict[str, np.ndarray]:
        """The arrays of batch `index` of the epoch that `plan` is of; the masks are a function of seed and numbers."""
        chosen = slice(plan.batch_starts[index], plan.batch_starts[index + 1])
        lengths = plan.lengths[chosen]
        rng = np.random.default_rng([self.settings.seed, BATCH_STREAM, epoch, index])
        length = round_up(lengths.max() + 2, self.multiple)
        if index == 0 or not self.planner.varies:
            length = self.planner.max_length
        return self.masked(plan.starts[chosen], lengths, length, rng, is_widest=index == 0)

    def masked(
        self, starts: np.ndarray, lengths: np.ndarray, length: int, rng: np.random.Generator, is_widest: bool = False
    ) -> dict[str, np.ndarray]:
        """The arrays of a batch of given windows.

        Args:
            starts, lengths: int64 (B,), the first token of each window in the table, and how many it has.
            length: int, columns, at least two more than the longest has tokens.
            rng: source of randomness, for the masks.
            is_widest: bool; True: masked tokens are listed in more columns than any other batch needs.
        """
        token_ids = self.rows(starts, lengths, length)
        words = np.full((len(lengths), length), -1, "int64")
        places = ranges(1 + np.arange(len(lengths)) * length, lengths)
        words.reshape(-1)[places] = self._words(ranges(starts, lengths), lengths)
        batch = {"token_ids": token_ids}
        units = np.where(self.maskable[token_ids], words, -1)
        masked = choose_masked(units, self.settings.mask_rate, rng)
        batch["encoder_token_ids"] = corrupt(token_ids, masked, self.mask, self.random_ids, rng)
        names = "masked_positions", "masked_ids"
        batch |= zip(names, self._listed(masked, token_ids, self.settings.mask_rate, is_widest), strict=True)
        if self.settings.decoder_mask_rate is not None:
            masked = choose_masked(units, self.settings.decoder_mask_rate, rng)
            batch["decoder_token_ids"] = np.where(masked, np.int32(self.mask), token_ids)
            names = "decoder_positions", "decoder_ids"
            listed_ones = self._listed(masked, token_ids, self.settings.decoder_mask_rate, is_widest)
            batch |= zip(names, listed_ones, strict=True)
        if self.settings.with_word_ids:
            batch["word_ids"] = words.astype("int32")
        return batch

    def rows(self, starts: np.ndarray, lengths: np.ndarray, length: int) -> np.ndarray:
        """int32 (B, length), `[CLS] tokens [SEP]` padded; see `masked`."""
        token_ids = np.full((len(lengths), length), self.pad, "int32")
        rows = np.arange(len(lengths))
        token_ids.reshape(-1)[ranges(1 + rows * length, lengths)] = self.table.token_ids[ranges(starts, lengths)]
        token_ids[:, 0] = self.cls
        token_ids[rows, lengths + 1] = self.sep
        return token_ids

    def _words(self, source, lengths):
        """int64, the number of its word in its row for each token of the rows, one row after the other."""
        if self.table.word_starts is None:
            return ranges(np.zeros_like(lengths), lengths)
        starts = self.table.word_starts[source]
        firsts = np.cumsum(lengths) - lengths
        starts[firsts] = True  # a row may begin within a word
        numbers = np.cumsum(starts)
        return numbers - np.repeat(numbers[firsts], lengths)

    def _listed(self, masked, token_ids, rate, is_widest):
        width = round_up(max(1, masked.sum(1).max()), self.multiple)
        if is_widest:
            # With one batch an epoch: the same in each.
            width = most_masked(self.planner.windows.longest, rate, self.table.largest_word, self.multiple)
            width += self.multiple * (len(self.planner.sizes) > 1)
        return listed(masked, token_ids, width, first_position=0)


def most_masked(longest: int, rate: float, largest_word: int, multiple: int) -> int:
    """Most tokens that `choose_masked` can choose of a row, rounded up.

    Args:
        longest: int, tokens of the longest window.
        rate: float, share of them that is masked.
        largest_word: int, tokens.
        multiple: int to round up to.
    """
    most = min(longest, int(rate * longest + 1e-6) + largest_word)
    return round_up(max(1, most), multiple)
