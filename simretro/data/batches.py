"""From pairs of texts to the arrays of a training batch."""

import numpy as np

from simretro.data.masking import choose_masked, corrupt, listed
from simretro.data.settings import PairSettings
from simretro.data.table import GroupTable, ranges
from simretro.tokenizers.rows import round_up


class BatchMaker:
    """Makes the arrays of a batch.

    Row 2i is `[CLS] a [SEP] b [SEP]`, row 2i + 1 `[CLS] b [SEP] a [SEP]`.

    Args:
        table: GroupTable.
        tokenizer: has `cls_token_id`, `sep_token_id`, `pad_token_id`; with masking also `mask_token_id`,
            `special_ids` and `vocab_size`.
        settings: PairSettings.
    """

    def __init__(self, table: GroupTable, tokenizer, settings: PairSettings):
        self.table, self.settings, self.multiple = table, settings, settings.length_multiple
        self.cls, self.sep, self.pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        if settings.masks:
            self.mask = tokenizer.mask_token_id
            self.maskable = np.ones(tokenizer.vocab_size, bool)
            self.maskable[[*tokenizer.special_ids, self.sep]] = False
            self.random_ids = np.flatnonzero(self.maskable).astype("int32")

    def max_masked(self, max_text_length: int) -> int:
        """The largest width of `masked_positions`."""
        most = min(max_text_length, int(self.settings.mlm_rate * max_text_length + 1e-6) + self.table.largest_unit)
        return round_up(most, self.multiple)

    def make(
        self, first: np.ndarray, second: np.ndarray, rng: np.random.Generator, at_least: tuple[int, int, int]
    ) -> dict[str, np.ndarray]:
        """The arrays of a batch.

        Args:
            first, second: int64 (pairs,), indices of the texts a and b.
            rng: source of the masks.
            at_least: smallest widths of `token_ids`, `target_positions` and `masked_positions`.
        Returns: dict of int32 arrays with 2 * pairs rows, see `SimilarPairs`.
        """
        sources = np.stack([first, second], axis=1).reshape(-1)
        targets = np.stack([second, first], axis=1).reshape(-1)
        starts = self.table.text_starts
        source_lengths, target_lengths = starts[sources + 1] - starts[sources], starts[targets + 1] - starts[targets]
        length = max(round_up((source_lengths + target_lengths).max() + 3, self.multiple), at_least[0])
        token_ids = np.full((len(sources), length), self.pad, "int32")
        token_ids[:, 0] = self.cls
        self._write(token_ids, sources, source_lengths, np.ones_like(sources), self.table.token_ids)
        self._write(token_ids, targets, target_lengths, source_lengths + 2, self.table.token_ids)
        rows, ends = np.arange(len(sources)), source_lengths + target_lengths + 2
        token_ids[rows, source_lengths + 1] = self.sep
        token_ids[rows, ends] = self.sep
        columns = np.arange(length)
        is_target = (columns > source_lengths[:, None] + 1) & (columns <= ends[:, None])
        batch = {"token_ids": token_ids, "segment_ids": is_target.astype("int32")}
        batch |= self._targets(token_ids, source_lengths, target_lengths, at_least[1])
        if self.settings.masks:
            self._mask(batch, sources, source_lengths, rng, at_least[2])
        return batch

    def _write(self, rows, texts, lengths, columns, values):
        """Writes what `values` has for each text into its row of (R, W), from its column on."""
        places = ranges(columns + np.arange(len(rows)) * rows.shape[1], lengths)
        rows.reshape(-1)[places] = values[ranges(self.table.text_starts[texts], lengths)]

    def _targets(self, token_ids, source_lengths, target_lengths, at_least):
        """The [SEP] before the target predicts its first token, and its last token the closing [SEP]."""
        width = max(round_up(target_lengths.max() + 1, self.multiple), at_least)
        steps = np.arange(width)
        is_step = steps <= target_lengths[:, None]
        positions = np.where(is_step, source_lengths[:, None] + 1 + steps, 0)
        ids = np.where(is_step, np.take_along_axis(token_ids, positions + 1, axis=1), -1)
        return {"target_positions": positions.astype("int32"), "target_ids": ids.astype("int32")}

    def _mask(self, batch, sources, lengths, rng, at_least):
        width = int(lengths.max())
        source_ids = batch["token_ids"][:, 1 : width + 1]
        if self.table.units is None:
            units = np.tile(np.arange(width), (len(sources), 1))
        else:
            units = np.zeros((len(sources), width), "int64")
            self._write(units, sources, lengths, np.zeros_like(sources), self.table.units)
        units[(np.arange(width) >= lengths[:, None]) | ~self.maskable[source_ids]] = -1
        rate = self.settings.mlm_rate
        if self.settings.corruption_rate:
            corrupted = rng.random(len(sources)) < self.settings.corrupted_rows
            rate = np.where(corrupted, self.settings.corruption_rate, 0.0)
        masked = choose_masked(units, rate, rng)
        if self.settings.mlm_rate:
            width = max(round_up(max(1, masked.sum(1).max()), self.multiple), at_least)
            batch["masked_positions"], batch["masked_ids"] = listed(masked, source_ids, width, first_position=1)
        source_ids[...] = corrupt(source_ids, masked, self.mask, self.random_ids, rng)  # a view of `token_ids`
