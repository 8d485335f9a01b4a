"""Which sentences of a language stand near each other, and which of them a batch gets: numbers only, no tokens."""

import numpy as np

from simretro.data.document_table import DocumentTable


class ContextPairs:
    """The sentences of documents as centres of windows, each with the sentences around it.

    A sentence is known by its number in the table. Those of documents that have only one are nobody's context and no
    centre.

    Args:
        table: DocumentTable.
        window_sentences: int >= 1, how far from its centre a context may be.
        capacity: int >= 1, most tokens of a sentence; the following ones are left out.
    """

    def __init__(self, table: DocumentTable, window_sentences: int, capacity: int):
        self.table, self.window_sentences, self.capacity = table, window_sentences, capacity
        self.first = np.searchsorted(table.sentence_starts, table.document_starts)  # of each document, and the end
        counts = np.diff(self.first)
        self.documents = np.flatnonzero(counts >= 2)  # that have a pair
        self.before = np.concatenate([[0], np.cumsum(counts[self.documents])])  # centres before each of them
        lengths = np.diff(table.sentence_starts, append=table.document_starts[-1])[np.repeat(counts >= 2, counts)]
        self.longest = int(min(lengths.max(initial=0), capacity))
        self.num_cut = int(np.sum(lengths > capacity))

    @property
    def num_centres(self) -> int:
        """Sentences that have a context."""
        return int(self.before[-1])

    @property
    def num_single(self) -> int:
        """Documents of one sentence."""
        return self.table.num_documents - len(self.documents)

    def centres(self, numbers: np.ndarray) -> np.ndarray:
        """The sentences that are centres `numbers`, counted from 0 to `num_centres`."""
        places = np.searchsorted(self.before, numbers, side="right") - 1
        return self.first[self.documents[places]] + numbers - self.before[places]

    def contexts(self, centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """For each centre one of the sentences around it, drawn uniformly."""
        documents = self.documents_of(centres)
        lowest = np.maximum(centres - self.window_sentences, self.first[documents])
        highest = np.minimum(centres + self.window_sentences, self.first[documents + 1] - 1)
        drawn = lowest + (rng.random(centres.shape) * (highest - lowest)).astype("int64")
        return drawn + (drawn >= centres)

    def documents_of(self, sentences: np.ndarray) -> np.ndarray:
        """Number of the document that each sentence is of."""
        return np.searchsorted(self.first, sentences, side="right") - 1

    def positions(self, sentences: np.ndarray) -> np.ndarray:
        """Number of each sentence in its document."""
        return sentences - self.first[self.documents_of(sentences)]

    def tokens(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64, where each sentence begins in the table's tokens; int64, how many of them are taken."""
        starts, last = self.table.sentence_starts, len(self.table.sentence_starts) - 1
        ends = np.where(sentences == last, self.table.document_starts[-1], starts[np.minimum(sentences + 1, last)])
        begins = starts[sentences].astype("int64")
        return begins, np.minimum(ends - begins, self.capacity)

    def draw(
        self, num_batches: int, pairs_per_batch: int, window_batches: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of an epoch.

        Args:
            num_batches: int.
            pairs_per_batch: int; fewer if there are not so many centres.
            window_batches: int; pairs are sorted by length among so many batches at a time.
            rng: source of randomness.
        Returns: int64 (num_batches, pairs) centres, int64 (num_batches, pairs) their contexts.
        """
        centres = self.centres(draw_batches(num_batches, self.num_centres, pairs_per_batch, rng))
        contexts = self.contexts(centres, rng)
        lengths = np.maximum(self.tokens(centres)[1], self.tokens(contexts)[1])
        order = sort_batches(lengths, self.num_centres, window_batches, rng)
        return centres.ravel()[order], contexts.ravel()[order]


def draw_batches(num_batches: int, num_items: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws items without replacement, in as many passes as there are batches for; no batch has one twice.

    What a pass leaves over, less than a batch, is left out of it.

    Args:
        num_batches: int.
        num_items: int >= 1.
        batch_size: int >= 1.
        rng: source of randomness.
    Returns: int64 (num_batches, at most batch_size) of numbers from 0 to `num_items`.
    """
    size = min(batch_size, num_items)
    batches_per_pass = num_items // size
    passes = [
        rng.choice(num_items, (min(batches_per_pass, num_batches - start), size), replace=False)
        for start in range(0, num_batches, batches_per_pass)
    ]
    return np.concatenate([np.zeros((0, size), "int64"), *passes])


def sort_batches(lengths: np.ndarray, num_items: int, window_batches: int, rng: np.random.Generator) -> np.ndarray:
    """Exchanges the items of the batches of a pass, so that they have like lengths.

    Args:
        lengths: int (batches, batch_size), of the items that `draw_batches` has drawn.
        num_items: int, as there.
        window_batches: int; so many batches of a pass at a time are sorted.
        rng: source of randomness, for the order of the batches.
    Returns: int64 (batches, batch_size), places in the flat `lengths`.
    """
    num_batches, size = lengths.shape
    passes, within = np.divmod(np.arange(num_batches), num_items // size)
    windows = passes * num_batches + within // window_batches
    order = np.lexsort((lengths.ravel(), np.repeat(windows, size))).reshape(num_batches, size)
    return rng.permutation(order)
