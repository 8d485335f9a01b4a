"""Batches of masked documents, as encoders are pre-trained on."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from simretro.arguments import warn
from simretro.data.document_rows import DocumentSettings, RowMaker, RowPlanner
from simretro.data.document_table import TableMaker, open_table
from simretro.data.documents import Document
from simretro.data.epochs import EpochDataset
from simretro.data.windows import Windows


class MaskedDocuments(EpochDataset):
    """Batches of parts of documents, with masks for an encoder and, if asked for, for a decoder.

    An example is a document that fits into a row, or a window of a longer one: it is covered by consecutive windows,
    each token by one of them, whose borders are drawn anew in each epoch. So nothing is cut off, and no token stays
    at one place. Windows begin and end with sentences where they can: with the `sentences` that a document gives, else
    at marks like `.` with white space behind them, at the East Asian full stops and at blank lines; where there is
    none in reach, with words. See `Windows`.

    Masks are drawn anew in each epoch, for whole words: those of `segment`, else the tokenizer's `word_ids`. Words come
    in random order as long as all their tokens fit into `mask_rate` of the row's; the one that crosses this bound is
    taken with the probability that makes the expected number exact. Special tokens, [UNK] among them, are never masked.
    A word of more than 24 tokens counts as several.

    A batch is a function of (seed, epoch, index) alone, on every backend and machine. It is a dict of int32 arrays with
    B rows; L, M and D are multiples of `length_multiple`:

    - `token_ids` (B, L): `[CLS] text [SEP]`, padded with the pad id, nothing masked;
    - `encoder_token_ids` (B, L): the same, of the masked tokens 80 % replaced by [MASK], 10 % by a random token;
    - `masked_positions` (B, M) padded with 0, `masked_ids` (B, M), the tokens that were there, padded with -1;
    - with `decoder_mask_rate`: `decoder_token_ids` (B, L), of a second mask, drawn apart from the first, all tokens
      replaced by [MASK]; `decoder_positions` (B, D) padded with 0, `decoder_ids` (B, D) padded with -1;
    - with `with_word_ids`: `word_ids` (B, L), the number of the word in its row, -1 for [CLS], [SEP] and padding.

    Batches hold windows of like length and come in random order. Batch 0 of an epoch is the longest, padded to what a
    batch can have at most: what does not fit into memory fails at once, and Keras, which fixes every dimension that
    batches 0 and 1 share, sees which dimensions vary.

    Files are read and tokenised once, part by part; token ids go into files that are mapped and read where a batch
    needs them, so that a corpus may be larger than the memory. In memory stay about 50 bytes for each document and,
    while an epoch is planned, 80 for each example.

    See `EpochDataset` for `fit`, `resume` and `fixed`.

    Args:
        source: path of a file or folder, see `iter_documents`; or iterable of str or `Document`, kept in memory.
        tokenizer: a tokenizer of `simretro.tokenizers`.
        rows_per_batch: int. The last batch may have fewer rows.
        maxlen: int, most tokens of a row with its specials.
        mask_rate: float in [0, 1), share of the tokens that are masked for the encoder.
        seed: int >= 0.
        decoder_mask_rate: float in (0, 1], share of the tokens that are masked for the decoder; None: no such arrays.
        with_word_ids: bool, see above.
        whole_word: bool; False masks token by token, and each token has a word id of its own.
        segment: callable text -> words, `jieba.lcut` for instance: the words to mask as a whole, for languages without
            spaces. It is given sentence by sentence. Implies `whole_word`.
        short_rate: float in [0, 1], share of the examples that are cut to a random length, at a random place.
        concatenate: bool; True joins consecutive documents, so that rows are full though the documents are short.
        text_files: "lines" or "whole": whether each line of a `.txt` is a document or the whole file.
        length_multiple: int; L, M, D are multiples of it.
        window_batches: int; windows are sorted by length among so many batches at a time.
        drop_remainder: bool; True: all batches have the same size and random examples that are left over are dropped.
        fixed: bool; True: every pass is epoch 0, for validation data.
        cache_dir: folder for the token ids, 5 bytes a token. With it, the next run with the same files (by name, size
            and time) and tokenizer starts at once, whatever `maxlen`; a damaged cache is noticed and made again, and
            nothing else is ever deleted. A `segment` is known in the cache by its name: use another folder after
            changing what it does. None: a folder among the system's temporary files, which goes with this object.
    Raises:
        ValueError: for a bad record, naming file and line, for an argument out of range, or if there is no text at all.
        OSError: if a file cannot be read or there is no room for the token ids.
    """

    def __init__(
        self,
        source: str | Path | Iterable[str | Document],
        tokenizer,
        rows_per_batch: int = 32,
        maxlen: int = 128,
        mask_rate: float = 0.3,
        seed: int = 0,
        *,
        decoder_mask_rate: float | None = None,
        with_word_ids: bool = False,
        whole_word: bool = True,
        segment: Callable[[str], Iterable[str]] | None = None,
        short_rate: float = 0.0,
        concatenate: bool = False,
        text_files: str = "lines",
        length_multiple: int = 16,
        window_batches: int = 64,
        drop_remainder: bool = False,
        fixed: bool = False,
        cache_dir: str | Path | None = None,
    ):
        settings = DocumentSettings(
            rows_per_batch=rows_per_batch,
            maxlen=maxlen,
            mask_rate=mask_rate,
            seed=seed,
            decoder_mask_rate=decoder_mask_rate,
            with_word_ids=with_word_ids,
            short_rate=short_rate,
            length_multiple=length_multiple,
            window_batches=window_batches,
            drop_remainder=drop_remainder,
        )
        settings.check(tokenizer)
        self._tokenizer = tokenizer
        self._facts = {**asdict(settings), "whole_word": whole_word or segment is not None, "concatenate": concatenate}
        maker = TableMaker(tokenizer, segment, self._facts["whole_word"])
        self.table = open_table(source, maker, text_files, cache_dir, owner=self)
        windows = Windows(self.table, maxlen - 2, short_rate, length_multiple, concatenate)
        self._planner = RowPlanner(windows, settings)
        self._maker = RowMaker(self.table, self._planner, tokenizer, settings)
        super().__init__(len(self._planner.sizes), fixed)
        for note in self.table.notes:
            warn(note)

    @property
    def num_documents(self) -> int:
        """Documents that have a token."""
        return self.table.num_documents

    @property
    def num_examples(self) -> int:
        """Examples of an epoch, what `drop_remainder` drops included."""
        return self._planner.windows.num_windows

    def facts(self) -> dict:
        """What decides the batches, as JSON values: a checkpoint keeps it, to notice other data.

        Of the texts their numbers: reading them all again for a checksum would take too long for large files.
        """
        texts = {"documents": self.table.num_documents, "tokens": len(self.table.token_ids)}
        return {**texts, **self._facts, "tokenizer": self._tokenizer.fingerprint()}

    def _make_plan(self, epoch):
        return self._planner.plan(epoch)

    def _make_batch(self, plan, epoch, index) -> dict[str, np.ndarray]:
        return self._maker.make(plan, epoch, index)
