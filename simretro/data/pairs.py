"""Batches of pairs of similar texts, as SimBERT is trained on."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from simretro.arguments import warn
from simretro.data.batches import BatchMaker
from simretro.data.epochs import EpochDataset
from simretro.data.groups import as_groups
from simretro.data.plan import BATCH_STREAM, Planner
from simretro.data.settings import PairSettings
from simretro.data.table import build_table


class SimilarPairs(EpochDataset):
    """Batches of pairs of texts that mean the same, for `SimBERT.fit`.

    Every epoch each group yields one pair of two of its texts, drawn at random. In a batch no two pairs have texts of
    one group, nor equal texts (compared as token ids), also where a text stands in several groups: all others in the
    batch are true negatives. (A text that stands in more than 1000 groups is only kept from itself.) Batches hold
    pairs of like length and come in random order. A batch is a function of (seed, epoch, index) alone, on every
    backend and machine.

    An item is a dict of int32 arrays with R = 2 * pairs rows, row 2i `[CLS] a [SEP] b [SEP]`, row 2i + 1
    `[CLS] b [SEP] a [SEP]`; L, T and M are multiples of `length_multiple`:

    - `token_ids` (R, L), padded with the pad id; `segment_ids` (R, L), 1 for `b [SEP]`, else 0;
    - `target_positions` (R, T), the positions p whose state predicts token p + 1, the closing [SEP] included, padded
      with 0; `target_ids` (R, T), these tokens, padded with -1;
    - with `mlm_rate`: `masked_positions` (R, M) padded with 0, `masked_ids` (R, M) padded with -1, for the masked
      tokens of the source; `token_ids` then holds the corrupted source. Targets stay intact.

    Batch 0 of an epoch is the longest, padded to what a batch can have at most: what does not fit into memory fails
    at once, and Keras, which fixes every dimension that batches 0 and 1 share, sees which dimensions vary.

    See `EpochDataset` for `fit`, `resume` and `fixed`.

    Args:
        groups: path of a file (see `iter_groups`), or iterable of `Group` or of sequences of str.
        tokenizer: a tokenizer of `simretro.tokenizers`.
        pairs_per_batch: int >= 2. The last batch may have fewer pairs, and one more where a single pair, which has no
            negatives, would be left. Where rivals cannot be kept apart in so few batches, they get smaller.
        maxlen: int, most tokens of a text with its specials: `[CLS] a [SEP]`. Longer texts are cut, see
            `encode_within`, which a warning tells.
        seed: int >= 0.
        pairs_per_group: int; a group of n texts yields up to so many disjoint pairs an epoch, n // 2 at most, each in
            another batch.
        batching: "grouped", or "random": groups are drawn with replacement and nothing is kept apart, as in the
            reference implementation's shuffled endless reader. It is there to measure what grouping is worth.
        drop_remainder: bool; True: all batches have the same size and random pairs that are left over are dropped.
            Needed for `micro_batches`, which must divide each batch.
        mlm_rate: float in [0, 1), share of the source tokens that are masked and predicted (BERT's 80/10/10).
        corruption_rate: float in [0, 1), share of the source tokens that are masked so but not predicted, in
            `corrupted_rows` of the rows (RoFormer-Sim: 0.15 in 0.5 of them).
        corrupted_rows: float in (0, 1], see `corruption_rate`.
        whole_word: bool; mask all tokens of a word together, by the tokenizer's `word_ids`.
        segment: callable text -> words, `jieba.lcut` for instance: the words to mask as a whole, for languages
            without spaces. Implies `whole_word`.
        length_multiple: int; L, T, M are multiples of it.
        window_batches: int; texts are sorted by length among so many batches at a time.
        fixed: bool; True: every pass is epoch 0, for validation data.
    Raises: ValueError for bad groups, naming their place, for an argument out of range, or if fewer than two groups
        have two different texts.
    """

    def __init__(
        self,
        groups: str | Path | Iterable,
        tokenizer,
        pairs_per_batch: int = 64,
        maxlen: int = 64,
        seed: int = 0,
        *,
        pairs_per_group: int = 1,
        batching: str = "grouped",
        drop_remainder: bool = False,
        mlm_rate: float = 0.0,
        corruption_rate: float = 0.0,
        corrupted_rows: float = 0.5,
        whole_word: bool = False,
        segment: Callable[[str], Iterable[str]] | None = None,
        length_multiple: int = 8,
        window_batches: int = 64,
        fixed: bool = False,
    ):
        settings = PairSettings(
            pairs_per_batch=pairs_per_batch,
            maxlen=maxlen,
            seed=seed,
            pairs_per_group=pairs_per_group,
            batching=batching,
            drop_remainder=drop_remainder,
            mlm_rate=mlm_rate,
            corruption_rate=corruption_rate,
            corrupted_rows=corrupted_rows,
            length_multiple=length_multiple,
            window_batches=window_batches,
        )
        settings.check(tokenizer)
        whole_word = settings.masks and (whole_word or segment is not None)
        self.table = self._make_table(groups, tokenizer, maxlen - 2, segment if settings.masks else None, whole_word)
        self.seed, self._tokenizer, self._settings = seed, tokenizer, settings
        self._whole_word = whole_word
        self._planner = Planner(self.table, settings)
        self._maker = BatchMaker(self.table, tokenizer, settings)
        self._max_masked = self._maker.max_masked(self._planner.max_text_length) if mlm_rate else 0
        super().__init__(self._planner.num_batches, fixed)
        if self._planner.needs_separation:
            # Groups that cannot be kept apart should be told of here and not in the middle of `fit`.
            self._plan(0)
        for note in [*self.table.notes, *self._planner.notes]:
            warn(note)
        self._num_told = len(self._planner.notes)

    @property
    def num_pairs(self) -> int:
        """Pairs of an epoch, what `drop_remainder` drops included."""
        return self._planner.num_pairs

    def _make_plan(self, epoch):
        return self._planner.plan(epoch)

    def _make_batch(self, plan, epoch, index) -> dict[str, np.ndarray]:
        planner = self._planner
        for note in planner.notes[self._num_told :]:
            self._num_told += 1
            warn(note)
        chosen = slice(plan.starts[index], plan.starts[index + 1])
        at_least = (0 if planner.varies else planner.max_length, 0, 0)
        if index == 0:
            # More than any other batch has; with one batch an epoch: the same in each.
            more = self._maker.multiple if planner.num_batches > 1 else 0
            at_least = (planner.max_length, planner.max_targets + more, self._max_masked + more)
        rng = np.random.default_rng([self.seed, BATCH_STREAM, epoch, index])
        return self._maker.make(plan.first[chosen], plan.second[chosen], rng, at_least)

    def facts(self) -> dict:
        """What decides the batches, as JSON values: a checkpoint keeps it, to notice other data.

        Of the texts their numbers: reading them all again for a checksum would take too long for large files.
        """
        table = self.table
        facts = {"groups": table.num_groups, "texts": table.num_texts, "tokens": len(table.token_ids)}
        settings = {**asdict(self._settings), "whole_word": self._whole_word}
        return {**facts, **settings, "tokenizer": self._tokenizer.fingerprint()}

    def _make_table(self, groups, tokenizer, limit, segment, whole_word):
        return build_table(as_groups(groups), tokenizer, limit, segment, whole_word)
