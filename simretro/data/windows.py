"""Which tokens of the documents make the examples of an epoch: numbers only, no tokens."""

import numpy as np

from simretro.data.document_table import DocumentTable
from simretro.data.table import ranges
from simretro.tokenizers.rows import round_up

# Longer documents are divided, and shorter ones joined to about this many windows, if they are to be joined.
_SPAN_WINDOWS = 32
# Of the room that a document's windows have, the share that it fills: the rest lets their borders move.
_FILLED_TENTHS = 9
_SHORTEST_SHARE = 4  # a first window has at least this part of the room, if the others can take the rest


class Windows:
    """Draws the examples of each epoch: windows of consecutive tokens, at most `capacity` of them.

    A document that fits is one window. A longer one is covered by consecutive windows, each token by exactly one, whose
    number is the same in each epoch and whose borders are drawn anew: the first window's length from as wide a range
    as the others allow, the following ones' around what fills them evenly. A border moves to the beginning of the
    nearest sentence, if there is one that leaves no window too long nor less than half full, else to that of a word.

    Documents of more than 32 windows are divided into parts of about that many, at the beginnings of sentences; the
    parts stay the same and count as documents. With `concatenate` consecutive documents are joined to such parts, and
    windows begin in one document and end in another.

    Args:
        table: DocumentTable.
        capacity: int >= 1, most tokens of a window.
        short_rate: float in [0, 1], share of the windows of which only a part is taken, of a length drawn uniformly
            from 2 to `capacity`, at a place drawn uniformly (then moved back to the beginning of a word).
        length_multiple: int; rows, which have two tokens more than their windows, are padded to multiples of it.
        concatenate: bool.
    """

    def __init__(
        self,
        table: DocumentTable,
        capacity: int,
        short_rate: float = 0.0,
        length_multiple: int = 1,
        concatenate: bool = False,
    ):
        self.table, self.capacity, self.short_rate = table, capacity, short_rate
        self.starts = self._span_starts(concatenate)
        self.ends = np.append(self.starts[1:], table.document_starts[-1])
        sizes = self.ends - self.starts
        room = _FILLED_TENTHS * 8 * capacity
        needed = np.minimum(sizes, -(-(8 * sizes + capacity) * 10 // room))  # an eighth of a window to spare
        self.counts = np.where(sizes <= capacity, 1, needed)
        self.first = np.cumsum(self.counts) - self.counts  # of each span, the number of its first window
        self.longest = int(min(sizes.max(), capacity))
        # A length that is padded to less than the longest one, and the windows that have no more in any epoch.
        self.short_length = round_up(self.longest + 2, length_multiple) - length_multiple - 2
        surely_short = sizes - (self.counts - 1) * capacity <= self.short_length
        self.surely_short = self.first[surely_short & (self.short_length > 0)]

    @property
    def num_windows(self) -> int:
        """Windows of every epoch."""
        return int(self.counts.sum())

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The windows of an epoch, in order of the documents.

        Args:
            rng: source of randomness.
        Returns: int64 (windows,) first tokens in the table, int64 (windows,) numbers of tokens.
        """
        starts = np.empty(self.num_windows, "int64")
        starts[self.first] = self.starts
        active = np.flatnonzero(self.counts > 1)
        left, number = self.counts[active], 1
        while len(active):
            before = starts[self.first[active] + number - 1]
            starts[self.first[active] + number] = self._border(before, self.ends[active], left, number == 1, rng)
            left, number = left - 1, number + 1
            active, left = active[left > 1], left[left > 1]
        lengths = np.diff(starts, append=self.ends[-1])
        return self._shortened(starts, lengths, rng) if self.short_rate else (starts, lengths)

    def _span_starts(self, concatenate):
        starts, end = self.table.document_starts[:-1], self.table.document_starts[-1]
        most = _SPAN_WINDOWS * self.capacity
        if concatenate:
            starts = starts[np.diff(starts // most, prepend=-1) > 0]
        sizes = np.diff(starts, append=end)
        parts = np.maximum(1, sizes // most)
        numbers = ranges(np.zeros_like(parts), parts)
        places = np.repeat(starts, parts) + numbers * np.repeat(sizes, parts) // np.repeat(parts, parts)
        sentences = self._sentences_before(places)
        return np.where(places - sentences <= self.capacity, sentences, places)

    def _border(self, start, end, left, is_first, rng):
        """Where the second of the `left` windows that cover [start, end) begins; arrays of one shape."""
        capacity = self.capacity
        lowest = np.maximum(end - (left - 1) * capacity, start + 1)
        highest = np.minimum(start + capacity, end - (left - 1))
        if is_first:
            short = start + self.short_length  # see `surely_short`
            highest = np.where(lowest <= short, np.minimum(highest, short), highest)
            low = start + capacity // _SHORTEST_SHARE
        else:
            low = start + -(-2 * (end - start) // left) - capacity  # the middle of low and highest fills all evenly
        low = np.clip(low, lowest, highest)
        border = low + (rng.random(len(start)) * (highest - low + 1)).astype("int64")
        low = np.clip(start + capacity // 2, lowest, low)
        before, behind = self._sentences_before(border), self._sentences_behind(border)
        before_fits, behind_fits = before >= low, behind <= highest
        takes_before = before_fits & (~behind_fits | (border - before <= behind - border))
        at_word = self._word_before(border, lowest)
        return np.where(takes_before, before, np.where(behind_fits, behind, at_word))

    def _sentences_before(self, places):
        """The last beginning of a sentence that is not behind each place."""
        return self.table.sentence_starts[np.searchsorted(self.table.sentence_starts, places, side="right") - 1]

    def _sentences_behind(self, places):
        """The next beginning of a sentence, or the end of all tokens."""
        starts = self.table.sentence_starts
        found = np.searchsorted(starts, places, side="right")
        following = starts[np.minimum(found, len(starts) - 1)]
        return np.where(found < len(starts), following, self.ends[-1])

    def _word_before(self, places, lowest):
        """The beginning of the word that each place is in; `lowest` if that is before it."""
        if self.table.word_starts is None:
            return places
        for _ in range(self.table.largest_word):
            inside = (places > lowest) & ~self.table.word_starts[np.minimum(places, self.ends[-1] - 1)]
            if not inside.any():
                break
            places = places - inside
        return places

    def _shortened(self, starts, lengths, rng):
        is_short = rng.random(len(starts)) < self.short_rate
        wanted = rng.integers(min(2, self.capacity), self.capacity + 1, len(starts))
        wanted = np.where(is_short, np.minimum(wanted, lengths), lengths)
        moved = starts + (rng.random(len(starts)) * (lengths - wanted + 1)).astype("int64")
        return self._word_before(moved, starts), wanted
