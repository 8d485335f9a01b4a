"""Which pairs an epoch has, and which of them are in a batch together: numbers only, no tokens."""

from typing import NamedTuple

import numpy as np

from simretro.data.conflicts import Conflicts, is_hub, separate
from simretro.data.settings import PairSettings
from simretro.data.table import GroupTable, ranges
from simretro.tokenizers.rows import round_up

# First numbers behind the seed, so that no two kinds of draws share a stream of random numbers.
PLAN_STREAM, BATCH_STREAM, STATIC_STREAM = 1, 2, 3
# Groups that share texts make batches smaller by this factor at most.
_MOST_SMALLER = 2
_SURE_SHORT_FACTOR = 4
_SURE_SHORT_TRIES = 100
# Where all batches must be full: draws of an epoch, and pairs tried for a place that no other pair can take.
_ATTEMPTS = 20
_REFILL_TRIES = 1000


class EpochPlan(NamedTuple):
    """The pairs of an epoch in order of their batches.

    Args:
        first, second: int64 (N,), the texts of each pair.
        starts: int64 (batches + 1,), where a batch begins.
    """

    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray


def batch_sizes(num_pairs: int, pairs_per_batch: int, min_batches: int, drop_remainder: bool) -> list[int]:
    """Pairs in each batch of an epoch.

    The remainder makes the last batch, but a remainder of one pair, which would have no negatives, is added to the
    last batch. Where more batches are needed than that, all are of like size, with two pairs at least.

    Args:
        num_pairs: int, pairs of the epoch.
        pairs_per_batch: int.
        min_batches: int, batches that are needed to keep all rivals apart.
        drop_remainder: bool; True: all batches have one size, what is left over is dropped.
    Returns: list of int.
    """
    full, rest = divmod(num_pairs, pairs_per_batch)
    sizes = [pairs_per_batch] * full
    if rest == 1 and full and not drop_remainder:
        sizes[-1] += 1
    elif rest and not drop_remainder:
        sizes.append(rest)
    if not sizes or len(sizes) >= min_batches:
        return sizes
    number = max(len(sizes), min(min_batches, num_pairs // 2))
    size, larger = divmod(num_pairs, number)
    return [size] * number if drop_remainder else [size + 1] * larger + [size] * (number - larger)


class Planner:
    """Draws the pairs of an epoch and sorts them into batches; what does not change is worked out once.

    Args:
        table: GroupTable.
        settings: PairSettings.
    Raises: ValueError if there are fewer than two pairs, or no full batch where the remainder is dropped.
    """

    def __init__(self, table: GroupTable, settings: PairSettings):
        self.table, self.seed, self.drop_remainder = table, settings.seed, settings.drop_remainder
        self.window_pairs = settings.window_batches * settings.pairs_per_batch
        self.group_sizes = np.diff(table.group_starts)
        self.pairs_of_group = np.minimum(settings.pairs_per_group, self.group_sizes // 2)
        self.num_pairs = int(self.pairs_of_group.sum())
        self.lengths = np.diff(table.text_starts).astype("int32")
        self.grouped = settings.batching == "grouped"
        self.needs_separation = self.grouped and (len(table.shared.texts) > 0 or int(self.pairs_of_group.max()) > 1)
        self.min_batches = self._needed_batches(settings.pairs_per_batch) if self.needs_separation else 1
        self.sizes = batch_sizes(self.num_pairs, settings.pairs_per_batch, self.min_batches, self.drop_remainder)
        self._check(settings.pairs_per_batch)
        self._set_bounds(settings.length_multiple)
        self.notes: list[str] = []  # what has to be told, for warnings
        self._note_small_batches(settings.pairs_per_batch)
        self._left_out_noted = self._lonely_noted = False

    @property
    def num_batches(self) -> int:
        """Batches of every epoch."""
        return len(self.sizes)

    def plan(self, epoch: int) -> EpochPlan:
        """The pairs and batches of an epoch, a function of the seed and `epoch` alone."""
        for attempt in range(_ATTEMPTS):
            plan = self._attempt(epoch, attempt)
            if plan is not None:
                return plan
        raise ValueError(
            f"no batches of {self.sizes[0]} pairs without two texts of one group could be made for epoch {epoch}: too "
            "many groups have texts in common. Lower `pairs_per_batch`, merge groups that mean the same, or do without "
            "`drop_remainder`."
        )

    def _attempt(self, epoch, attempt):
        rng = np.random.default_rng([self.seed, PLAN_STREAM, epoch, attempt])
        groups, first, second = self._draw(rng)
        lengths = self.lengths[first] + self.lengths[second]
        batch_of, sizes = self._arrange(rng, groups, lengths)
        if self.needs_separation:
            conflicts = Conflicts(self.table, groups, first, second)
            fixed = 1 if self.varies else None
            batch_of = separate(conflicts, batch_of, sizes, lengths, rng, fixed, exact=self.drop_remainder)
            chosen, batch_of = self._complete(conflicts, batch_of, rng, epoch)
            if chosen is None:
                return None
        else:
            chosen = np.flatnonzero(batch_of >= 0)
            batch_of = batch_of[chosen]
        chosen = chosen[np.argsort(batch_of, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(batch_of, minlength=self.num_batches))])
        return EpochPlan(first[chosen], second[chosen], starts)

    def _check(self, pairs_per_batch):
        if self.num_pairs < 2:
            raise ValueError(
                "there must be at least two groups: the other pairs of a batch are a pair's negatives; received one."
            )
        if not self.sizes:
            raise ValueError(
                f"`pairs_per_batch` must be at most the number of pairs, {self.num_pairs}, since `drop_remainder` is "
                f"set; received {pairs_per_batch}."
            )

    def _needed_batches(self, pairs_per_batch):
        """The largest number of pairs of an epoch, on average, that have a text of one and the same group."""
        table, shared = self.table, self.table.shared
        most_pairs = int(self.pairs_of_group.max())
        load = self.pairs_of_group.astype("float64")
        if len(shared.texts):
            chance = 2 * self.pairs_of_group / self.group_sizes  # that a text of the group is drawn
            owners = np.searchsorted(table.group_starts, shared.texts, side="right") - 1
            total = np.add.reduceat(chance[shared.groups], shared.starts[:-1])
            load += np.bincount(owners, weights=total[shared.numbers] - chance[owners], minlength=table.num_groups)
        # Rather than into ever more batches with ever fewer negatives, what is then too much is left out.
        most = _MOST_SMALLER * -(-self.num_pairs // pairs_per_batch)
        return max(most_pairs, min(int(np.ceil(load.max() - 1e-6)), most))

    def _set_bounds(self, multiple):
        """The largest shapes, and whether the length of the rows may vary.

        Keras takes as fixed what the first two batches have in common, for the whole of a `fit`. So batch 0 is made
        as long as a batch can get, and batch 1 is made of groups whose longest pair is shorter than that, in every
        epoch. Where there are not enough of these, all batches get the one length.
        """
        starts = self.table.group_starts
        longest = np.maximum.reduceat(self.lengths, starts[:-1])
        at_longest = np.flatnonzero(self.lengths == np.repeat(longest, self.group_sizes))
        owners = np.searchsorted(starts, at_longest, side="right") - 1
        rest = self.lengths.copy()
        rest[at_longest[np.flatnonzero(np.diff(owners, prepend=-1))]] = 0  # one longest text of each group
        longest_pair = longest + np.maximum.reduceat(rest, starts[:-1])
        self.max_text_length = int(longest.max())
        self.max_length = round_up(longest_pair.max() + 3, multiple)
        self.max_targets = round_up(longest.max() + 1, multiple)
        self.sure_short = np.zeros(0, "int64")
        if self.num_batches > 1 and self.num_batches > self.min_batches:
            short = np.flatnonzero(longest_pair + 3 <= self.max_length - multiple)
            self.sure_short = self._unrelated(short, _SURE_SHORT_FACTOR * self.sizes[1])
        self.varies = len(self.sure_short) >= self.sizes[1] if self.num_batches > 1 else False

    def _unrelated(self, groups, wanted):
        """Some of `groups` of which no two have texts in one group: all that share no text, or `wanted` ones."""
        table, shared = self.table, self.table.shared
        if not self.grouped or not len(shared.texts):
            return groups
        related = np.unique(shared.groups)
        alone = np.setdiff1d(groups, related, assume_unique=True)
        if len(alone) >= wanted:
            return alone
        chosen, occupied, hubs = list(alone), set(), is_hub(table)
        rng = np.random.default_rng([self.seed, STATIC_STREAM])
        candidates = rng.permutation(np.intersect1d(groups, related, assume_unique=True))
        for group in candidates[: _SURE_SHORT_TRIES * wanted]:
            numbers = shared.numbers_of(np.arange(*table.group_starts[group : group + 2]))
            own = {int(group)}
            for number in numbers[numbers >= 0]:
                if hubs[number]:
                    own.add(-int(number) - 1)
                else:
                    own.update(shared.groups[slice(*shared.starts[number : number + 2])].tolist())
            if occupied.isdisjoint(own):
                occupied |= own
                chosen.append(group)
                if len(chosen) >= wanted:
                    break
        return np.sort(np.array(chosen, "int64"))

    def _draw(self, rng):
        """(groups, first texts, second texts) of the epoch's pairs, int64 (N,) each."""
        if not self.grouped:
            # As an endless shuffled reader does: a group may come twice and another one not at all.
            groups = rng.choice(np.repeat(np.arange(self.table.num_groups), self.pairs_of_group), self.num_pairs)
            if self.varies:
                groups[: self.sizes[1]] = rng.choice(self.sure_short, self.sizes[1])
            return groups, *self._two_of(groups, rng)
        groups = np.repeat(np.arange(self.table.num_groups), self.pairs_of_group)
        if len(groups) == self.table.num_groups:
            return groups, *self._two_of(groups, rng)
        # Several disjoint pairs of a group: its texts in random order, two by two.
        owners = np.repeat(np.arange(self.table.num_groups), self.group_sizes)
        order = np.lexsort((rng.random(self.table.num_texts), owners))
        number = ranges(np.zeros_like(self.pairs_of_group), self.pairs_of_group)  # 0, 1, ... in each group
        places = self.table.group_starts[groups] + 2 * number
        return groups, order[places], order[places + 1]

    def _two_of(self, groups, rng):
        sizes, starts = self.group_sizes[groups], self.table.group_starts[groups]
        first = (rng.random(len(groups)) * sizes).astype("int64")
        second = (rng.random(len(groups)) * (sizes - 1)).astype("int64")
        second += second >= first
        return starts + first, starts + second

    def _arrange(self, rng, groups, lengths):
        """(int64 (N,) the batch of each pair, -1 = dropped as remainder; int64 (batches,) their sizes)."""
        batch_of = np.full(len(groups), -1)
        slots = np.arange(self.num_batches)
        sizes = np.array(self.sizes)
        rest = np.ones(len(groups), bool)
        if self.varies:
            short = self._short_pairs(rng, lengths)
            batch_of[short] = 1
            rest[short] = False
            slots = np.delete(slots, 1)
        order = rng.permutation(np.flatnonzero(rest))[: sizes[slots].sum()]
        windows = np.arange(len(order)) // self.window_pairs
        order = order[np.lexsort((lengths[order], windows))]
        ends = np.cumsum(sizes[slots])
        cuts = self._cuts_in_order(rng, lengths[order[ends - 1]])  # the cut that goes into each slot
        slot_of = np.empty_like(slots)
        slot_of[cuts] = slots
        batch_of[order] = slot_of[np.searchsorted(ends, np.arange(len(order)), side="right")]
        sizes[slots] = sizes[slots][cuts]
        return batch_of, sizes

    def _cuts_in_order(self, rng, longest):
        """The longest batch first, to fail at once if memory is short; the last one, which may be of another size,
        in its place; the others at random."""
        last = len(longest) - 1
        if not last:
            return np.zeros(1, "int64")
        first = np.argmax(longest[:-1])
        others = rng.permutation(np.delete(np.arange(last), first))
        return np.concatenate([[first], others, [last]])

    def _short_pairs(self, rng, lengths):
        """Pairs for batch 1: the shortest of some, all of different groups that are surely short."""
        size = self.sizes[1]
        if not self.grouped:
            return np.arange(size)  # see `_draw`
        number = min(_SURE_SHORT_FACTOR * size, len(self.sure_short))
        first_pairs = np.cumsum(self.pairs_of_group) - self.pairs_of_group
        some = first_pairs[rng.choice(self.sure_short, number, replace=False)]
        return some[np.argsort(lengths[some], kind="stable")[:size]]

    def _complete(self, conflicts, batch_of, rng, epoch):
        """(pairs, their batches) without those left out; where all batches must be full, pairs are used again.

        (None, None) if there is none to use.
        """
        chosen = np.flatnonzero(batch_of >= 0)
        batches = batch_of[chosen]
        if not self.drop_remainder:
            self._note_left_out(len(batch_of) - len(chosen), epoch)
            self._note_lonely(int(np.sum(np.bincount(batches) == 1)), epoch)
            return chosen, batches
        counts = np.bincount(batches, minlength=self.num_batches)
        missing = np.repeat(np.arange(self.num_batches), self.sizes[0] - counts)
        self._note_left_out(len(missing), epoch)
        for batch in missing:
            members = chosen[batches == batch]
            taken = np.unique(conflicts.occupied(members)[1])
            for pair in rng.permutation(len(batch_of))[:_REFILL_TRIES]:
                if pair not in members and not np.isin(conflicts.occupied(np.array([pair]))[1], taken).any():
                    chosen, batches = np.append(chosen, pair), np.append(batches, batch)
                    break
            else:
                return None, None
        return chosen, batches

    def _note_small_batches(self, pairs_per_batch):
        if self.num_batches > -(-self.num_pairs // pairs_per_batch):
            self.notes.append(
                f"batches have about {self.num_pairs // self.num_batches} pairs instead of {pairs_per_batch}: up to "
                f"{self.min_batches} pairs of an epoch have texts of one group and need a batch each. Merge "
                "groups that mean the same, or lower `pairs_per_group`."
            )

    def _note_left_out(self, number, epoch):
        if number and not self._left_out_noted:
            self._left_out_noted = True
            self.notes.append(
                f"{number} of {self.num_pairs} pairs are left out of epoch {epoch}, and so in others: their texts are "
                "in so many groups that they would be false negatives in each batch. Merge groups that mean the same, "
                "or lower `pairs_per_batch`."
            )

    def _note_lonely(self, number, epoch):
        if number and not self._lonely_noted:
            self._lonely_noted = True
            self.notes.append(
                f"{number} of {self.num_batches} batches of epoch {epoch} have one pair, and so in others: without "
                "negatives its similarity loss is 0 and its accuracy 1. Too many groups have texts in common: merge "
                "groups that mean the same, or give more of them."
            )
