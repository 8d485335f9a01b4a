"""Pairs that must not meet in a batch, and the moves that keep them apart."""

import numpy as np

from simretro.data.table import GroupTable, ranges

# Groups that the drawn texts stand in are listed in parts of about this size: one text may stand in thousands.
_ENTRIES_AT_A_TIME = 1 << 22
_SWAP_PARTNERS = 64
# A text that stands in more groups than this says nothing of what else stands in them.
HUB_GROUPS = 1000


class Conflicts:
    """Which of an epoch's pairs are rivals: a text of each stands in one and the same group.

    Such a pair would be a false negative of the other. Equal texts of different groups are a case of it. Texts that
    stand in more than `HUB_GROUPS` groups make rivals only of pairs that have both drawn them.

    Args:
        table: GroupTable.
        groups, first, second: int64 (N,), each pair's group and its two texts.
    """

    def __init__(self, table: GroupTable, groups: np.ndarray, first: np.ndarray, second: np.ndarray):
        self.table, self.groups = table, groups
        self.numbers = np.stack([table.shared.numbers_of(first), table.shared.numbers_of(second)])  # (2, N)
        pairs = np.tile(np.arange(len(groups)), 2)[self.numbers.reshape(-1) >= 0]
        drawn = self.numbers.reshape(-1)[self.numbers.reshape(-1) >= 0]
        self._is_hub = is_hub(table)
        self._by_number = _Buckets(drawn, pairs, len(self._is_hub))
        self._by_group = _Buckets(groups, np.arange(len(groups)), table.num_groups)

    def occupied(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(pair, group) of all groups that the texts of `pairs` stand in, with repetitions.

        For a text of too many groups: number of groups + number of the text.
        """
        shared = self.table.shared
        entries = [pairs], [self.groups[pairs]]
        for numbers in self.numbers:
            having = pairs[numbers[pairs] >= 0]
            of_hub = self._is_hub[numbers[having]]
            entries[0].append(having[of_hub])
            entries[1].append(self.table.num_groups + numbers[having[of_hub]])
            having = having[~of_hub]
            starts = shared.starts[numbers[having]]
            counts = shared.starts[numbers[having] + 1] - starts
            entries[0].append(np.repeat(having, counts))
            entries[1].append(shared.groups[ranges(starts, counts)])
        return np.concatenate(entries[0]), np.concatenate(entries[1])

    def rivals(self, pair: int) -> np.ndarray:
        """All pairs that must not be in a batch with `pair`, with repetitions, and `pair` itself."""
        occupied = np.unique(self.occupied(np.array([pair]))[1])
        groups, hubs = np.split(occupied, [np.searchsorted(occupied, self.table.num_groups)])
        # Other pairs of these groups, and pairs of any group that have drawn one of their texts.
        starts = np.searchsorted(self.table.shared.texts, self.table.group_starts[groups])
        ends = np.searchsorted(self.table.shared.texts, self.table.group_starts[groups + 1])
        numbers = np.unique(self.table.shared.numbers[ranges(starts, ends - starts)])
        numbers = np.concatenate([numbers[~self._is_hub[numbers]], hubs - self.table.num_groups])
        return np.concatenate([self._by_group.members(groups), self._by_number.members(numbers)])

    def colliding(self, batch_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Pairs to take out of their batches so that no rivals are left in one; -1 = in no batch.

        Of the rivals within a batch, a random one stays.
        """
        placed = np.flatnonzero(batch_of >= 0)
        placed = placed[np.argsort(batch_of[placed], kind="stable")]
        part_of = np.cumsum(self._num_occupied()[placed]) // _ENTRIES_AT_A_TIME
        # A batch belongs to one part as a whole.
        part_of = part_of[np.searchsorted(batch_of[placed], batch_of[placed])]
        priority = rng.permutation(len(batch_of))
        out = []
        for part in np.unique(part_of):
            pairs, groups = self.occupied(placed[part_of == part])
            keys = batch_of[pairs] * (self.table.num_groups + len(self._is_hub)) + groups
            order = np.lexsort((priority[pairs], keys))
            keys, pairs = keys[order], pairs[order]
            begins = np.flatnonzero(np.diff(keys, prepend=-1))
            staying = np.repeat(pairs[begins], np.diff(np.append(begins, len(keys))))
            out.append(pairs[pairs != staying])
        return np.unique(np.concatenate(out)) if out else np.zeros(0, "int64")

    def _num_occupied(self):
        """int64 (N,), entries that `occupied` has for each pair."""
        counts = np.ones(len(self.groups), "int64")
        sizes = np.where(self._is_hub, 1, np.diff(self.table.shared.starts))
        for numbers in self.numbers:
            counts[numbers >= 0] += sizes[numbers[numbers >= 0]]
        return counts


def is_hub(table: GroupTable) -> np.ndarray:
    """bool, for each number of the shared texts: whether it stands in more than `HUB_GROUPS` groups."""
    return np.diff(table.shared.starts) > HUB_GROUPS


class _Buckets:
    """Values by key, keys counted from 0."""

    def __init__(self, keys, values, num_keys):
        order = np.argsort(keys, kind="stable")
        self.values = values[order]
        self.starts = np.searchsorted(keys[order], np.arange(num_keys + 1))

    def members(self, keys):
        starts = self.starts[keys]
        return self.values[ranges(starts, self.starts[keys + 1] - starts)]


def separate(
    conflicts: Conflicts,
    batch_of: np.ndarray,
    capacities: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
    fixed_batch: int | None,
    exact: bool,
) -> np.ndarray:
    """Moves pairs until no batch holds rivals; each goes to a batch of like length.

    Where all batches that may take a pair are full, one of them gives another pair away, or, if `exact` is False,
    takes one more. A pair that has rivals in all batches is left out.

    Args:
        conflicts: Conflicts of the pairs.
        batch_of: int64 (N,), the batch of each pair; -1 = none yet, which fills what becomes free.
        capacities: int (batches,), pairs that each should have.
        lengths: int (N,), of the pairs.
        rng: source of randomness.
        fixed_batch: index of a batch that holds no rivals and is not to be touched, or None.
        exact: bool; True: no batch takes more than its capacity.
    Returns: int64 (N,), the batch of each pair; -1 = left out.
    """
    batch_of = batch_of.copy()
    spare = np.flatnonzero(batch_of < 0)
    colliding = conflicts.colliding(batch_of, rng)
    if not len(colliding):
        return batch_of
    return _Mover(conflicts, batch_of, capacities, lengths, fixed_batch).move(
        rng.permutation(colliding), rng.permutation(spare), exact
    )


class _Mover:
    def __init__(self, conflicts, batch_of, capacities, lengths, fixed_batch):
        self.conflicts, self.batch_of, self.capacities, self.lengths = conflicts, batch_of, capacities, lengths
        self.fixed_batch = fixed_batch
        placed = batch_of >= 0
        self.counts = np.bincount(batch_of[placed], minlength=len(capacities))
        totals = np.bincount(batch_of[placed], weights=lengths[placed], minlength=len(capacities))
        self.typical = totals / np.maximum(self.counts, 1)

    def move(self, colliding, spare, exact):
        self.counts -= np.bincount(self.batch_of[colliding], minlength=len(self.counts))
        self.batch_of[colliding] = -1
        waiting = []
        while len(colliding) != len(waiting):  # a pair that was moved may have made way for one that had no place
            waiting, colliding = colliding, [pair for pair in colliding if not self._place(pair, exact)]
        for pair in spare:
            if not np.any(self._has_room()):
                break
            self._put_nearest(pair, self._has_room() & self._may_take(pair))
        return self.batch_of

    def _place(self, pair, exact):
        fitting = self._may_take(pair)
        if self._put_nearest(pair, fitting & self._has_room()) or self._swap(pair, fitting):
            return True
        return not exact and self._put_nearest(pair, fitting)

    def _has_room(self):
        """bool (batches,)."""
        return self.counts < self.capacities

    def _may_take(self, pair):
        """bool (batches,), True where the pair has no rival."""
        fitting = np.ones(len(self.counts), bool)
        batches = self.batch_of[self.conflicts.rivals(pair)]
        fitting[batches[batches >= 0]] = False
        if self.fixed_batch is not None:
            fitting[self.fixed_batch] = False
        return fitting

    def _swap(self, pair, fitting):
        """Puts the pair into one of the full batches, of which another one goes where there is room."""
        if not np.any(self._has_room()):
            return False
        full = np.flatnonzero(fitting)
        for batch in full[np.argsort(self._distance(pair, full), kind="stable")][:_SWAP_PARTNERS]:
            for other in np.flatnonzero(self.batch_of == batch):
                if self._put_nearest(other, self._may_take(other) & self._has_room()):
                    self.counts[batch] -= 1
                    self.batch_of[pair] = batch
                    self.counts[batch] += 1
                    return True
        return False

    def _put_nearest(self, pair, fitting):
        """Puts the pair into that of the batches whose lengths are nearest; False if there is none."""
        batches = np.flatnonzero(fitting)
        if not len(batches):
            return False
        batch = batches[np.argmin(self._distance(pair, batches))]
        self.batch_of[pair] = batch
        self.counts[batch] += 1
        return True

    def _distance(self, pair, batches):
        return np.abs(self.typical[batches] - self.lengths[pair])
