"""Batches of sentences that stand near each other in documents of several languages, mixed with masked text."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simretro.arguments import warn
from simretro.data.context_pairs import ContextPairs, draw_batches, sort_batches
from simretro.data.context_settings import SHORTEST_ROW, WindowSettings
from simretro.data.document_rows import DocumentSettings, RowMaker, most_masked
from simretro.data.document_table import TableMaker, open_table
from simretro.data.documents import Document
from simretro.data.epochs import EpochDataset
from simretro.data.plan import BATCH_STREAM, PLAN_STREAM
from simretro.data.sentences import SentenceSplitter
from simretro.data.windows import Windows
from simretro.lines import short
from simretro.tokenizers import TruncationWarning
from simretro.tokenizers.rows import round_up

_NUM_IDS = 2**31  # they are int32
_TOKENS_READ = 4096  # of each language, to tell one data set from another


class ContextPlan(NamedTuple):
    """The batches of an epoch.

    Args:
        languages: int64 (batches,), number of each batch's language.
        masked: bool (batches,), True for a batch of masked windows, False for one of pairs.
        slots: int64 (batches,), which of its language's batches of its kind it is.
        pairs: for each language centres and contexts, int64 (batches, pairs) each.
        windows: for each language starts and lengths, int64 (batches, rows) each.
    """

    languages: np.ndarray
    masked: np.ndarray
    slots: np.ndarray
    pairs: list[tuple[np.ndarray, np.ndarray]]
    windows: list[tuple[np.ndarray, np.ndarray]]


class ContextWindows(EpochDataset):
    """Batches for contrastive context prediction: pairs of near sentences, and masked text between them.

    A pair is a sentence, the centre, and its context: another one of the same document, at most `window_sentences`
    away, all of these alike probable; at the ends of a document there are fewer. Titles count as sentences. All
    sentences of documents with two or more are centres in turn: in an epoch none comes twice before all others of its
    language have come (but those that do not fill a batch), in random order that is drawn anew for each epoch.

    A batch is of one language and of one task. Languages are drawn for each batch with probabilities proportional to
    `n ** language_exponent`, n the number of their sentences. Tasks are drawn for `batches_per_draw` batches at a time:
    masked language modelling with probability `mlm_share`, on windows of documents as in `MaskedDocuments`, else pairs.

    A batch is a function of (seed, epoch, index) alone, on every backend and machine. It is a dict of int32 arrays, the
    same ones whatever the task, with R rows, two for each pair; L and M are multiples of `length_multiple`:

    - `token_ids` (R, L): `[CLS] text [SEP]`, padded with the pad id; row 2i is a centre, row 2i + 1 its context;
    - `encoder_token_ids` (R, L): the same, for masked language modelling corrupted: of the masked tokens 80 % replaced
      by [MASK], 10 % by a random token;
    - `masked_positions` (R, M) padded with 0, `masked_ids` (R, M) padded with -1: the tokens that were there; without
      masks M is 0, or all is padding;
    - `language_ids` (R,): place of the batch's language in `languages`;
    - `document_ids` (R,): number of the document, over all languages and the same in all epochs. Other documents have
      others, also those of other data, from 0 to 2 ** 31 - 1;
    - `sentence_positions` (R,): number of the sentence in its document, from 0;
    - `sentence_keys` (R,): equal for sentences with equal tokens; different ones are equal in one case of 2 ** 31;
    - `sides` (R,): 0 for a centre, 1 for a context. In a batch of masked windows this and the three before it are -1.

    Pairs of a batch are of like length. Batch 0 of an epoch is padded to what a batch can have at most, and in batch 1
    longer rows are cut so that they are shorter: Keras fixes every dimension that batches 0 and 1 share.

    Files are read and tokenised once; token ids go into files that are mapped and read where a batch needs them. In
    memory stay about 80 bytes for each document and, while an epoch is planned, 80 for each pair or window of it.

    See `EpochDataset` for `fit`, `resume` and `fixed`.

    Args:
        sources: dict, for each language (a code as `en` or `zh-CN`) the path of a file or folder, see `iter_documents`,
            or an iterable of str or `Document`, kept in memory. Where a document gives its `sentences`, these are
            taken; others are cut by `split`. A document with the text of an earlier one of its language is left out.
        tokenizer: a tokenizer of `simretro.tokenizers`.
        pairs_per_batch: int. A language with fewer centres has smaller batches, which a warning tells.
        maxlen: int, most tokens of a sentence with its specials; longer ones lose their end, which a warning tells.
        window_sentences: int, the radius of the window around a centre.
        mlm_share: float in [0, 1], probability of masked language modelling.
        seed: int >= 0.
        mask_rate: float in (0, 1), share of the tokens that are masked.
        mlm_maxlen: int, most tokens of a row of masked text; None: `maxlen`.
        language_exponent: float in [0, 1], see above; 1 / temperature, where that is the name.
        batches_per_epoch: int, a multiple of `batches_per_draw`; None: as many as it takes to have all centres once if
            languages were drawn by their sizes.
        batches_per_draw: int; as many batches as one update of the weights accumulates.
        whole_word: bool; False masks token by token.
        segment: dict, for some languages a callable text -> words, as for `MaskedDocuments`.
        split: callable (text, language) -> list of str; None: `sentences_of`, which needs `simretro[ccp]`. Like
            `segment`, it is known in the cache by its name alone.
        text_files: "lines" or "whole": whether each line of a `.txt` is a document or the whole file.
        length_multiple: int; L and M are multiples of it.
        window_batches: int; pairs are sorted by length among so many batches of a language at a time.
        fixed: bool; True: every pass is epoch 0, for validation data.
        cache_dir: folder for the token ids, see `MaskedDocuments`; None: a temporary one. Two lambdas or partials as
            `split` or `segment` can have one name: use a folder for each, and another after changing what one does.
    Raises:
        ValueError: for a bad record, naming file and line, for an argument out of range, or for a language without
            pairs.
        OSError: if a file cannot be read or there is no room for the token ids.
    Reference: Wu et al., 2022 (CCP), https://arxiv.org/abs/2206.03281
    """

    def __init__(
        self,
        sources: Mapping[str, str | Path | Iterable[str | Document]],
        tokenizer,
        pairs_per_batch: int = 32,
        maxlen: int = 64,
        window_sentences: int = 2,
        mlm_share: float = 0.5,
        seed: int = 0,
        *,
        mask_rate: float = 0.15,
        mlm_maxlen: int | None = None,
        language_exponent: float = 0.3,
        batches_per_epoch: int | None = None,
        batches_per_draw: int = 1,
        whole_word: bool = True,
        segment: Mapping[str, Callable[[str], Iterable[str]]] | None = None,
        split: Callable[[str, str], list[str]] | None = None,
        text_files: str = "lines",
        length_multiple: int = 16,
        window_batches: int = 16,
        fixed: bool = False,
        cache_dir: str | Path | None = None,
    ):
        self.settings = WindowSettings(
            pairs_per_batch=pairs_per_batch,
            maxlen=maxlen,
            window_sentences=window_sentences,
            mlm_share=mlm_share,
            seed=seed,
            mask_rate=mask_rate,
            mlm_maxlen=maxlen if mlm_maxlen is None else mlm_maxlen,
            language_exponent=language_exponent,
            batches_per_epoch=batches_per_epoch,
            batches_per_draw=batches_per_draw,
            length_multiple=length_multiple,
            window_batches=window_batches,
        )
        self.settings.check(tokenizer)
        self._tokenizer, self._whole_word = tokenizer, whole_word
        segment = segment or {}
        _check_sources(sources, segment)
        self.languages = tuple(sources)
        self.tables = []
        for language, source in sources.items():
            words = segment.get(language) if mlm_share else None
            whole = mlm_share > 0 and (whole_word or words is not None)
            maker = TableMaker(tokenizer, words, whole, SentenceSplitter(language, split), unique=True)
            try:
                self.tables.append(open_table(source, maker, text_files, cache_dir, owner=self))
            except ValueError as error:
                raise ValueError(f"`sources`, {language!r}: {error}") from error
        self._first_document = _first_document(self.tables)
        self._pairs = [ContextPairs(table, window_sentences, maxlen - 2) for table in self.tables]
        if mlm_share < 1:
            self._check_pairs()
        self._set_shapes()
        super().__init__(self._count_batches(), fixed)
        self._warn()

    @property
    def window_sentences(self) -> int:
        """How far from its centre a context may be."""
        return self.settings.window_sentences

    @property
    def pairs_per_batch(self) -> int:
        """Pairs of a batch of a language that has so many."""
        return self.settings.pairs_per_batch

    @property
    def mlm_share(self) -> float:
        """Probability that a batch is of masked text."""
        return self.settings.mlm_share

    @property
    def num_pairs(self) -> dict[str, int]:
        """For each language the number of its centres."""
        return {language: pairs.num_centres for language, pairs in zip(self.languages, self._pairs, strict=True)}

    @property
    def language_shares(self) -> dict[str, float]:
        """For each language the probability that a batch is of it."""
        return dict(zip(self.languages, self._shares().tolist(), strict=True))

    def facts(self) -> dict:
        """What decides the batches, as JSON values: a checkpoint keeps it, to notice other data.

        Of the texts their numbers: reading them all again for a checksum would take too long for large files.
        """
        texts = [[language, *_sizes(table)] for language, table in zip(self.languages, self.tables, strict=True)]
        facts = {"texts": texts, **asdict(self.settings), "whole_word": self._whole_word}
        return {**facts, "tokenizer": self._tokenizer.fingerprint()}

    # Preparation

    def _check_pairs(self):
        for language, pairs in zip(self.languages, self._pairs, strict=True):
            if not pairs.num_centres:
                raise ValueError(
                    f"`sources`, {language!r}: no document has two sentences, so there are no pairs; received "
                    f"{pairs.table.num_documents} documents of one sentence. Give longer ones, or a `split` that cuts "
                    "them."
                )

    def _set_shapes(self):
        """How wide rows can be, and what makes and masks them."""
        options, multiple = self.settings, self.settings.length_multiple
        rows = DocumentSettings(
            rows_per_batch=2 * options.pairs_per_batch,
            maxlen=options.mlm_maxlen,
            mask_rate=options.mask_rate,
            seed=options.seed,
            decoder_mask_rate=None,
            with_word_ids=False,
            short_rate=0.0,
            length_multiple=multiple,
            window_batches=options.window_batches,
            drop_remainder=False,
        )
        self._makers = [RowMaker(table, None, self._tokenizer, rows) for table in self.tables]
        self._windows, longest, self._max_masked = [], [], 0
        if options.mlm_share < 1:
            longest += [pairs.longest for pairs in self._pairs]
        if options.mlm_share:
            self._windows = [Windows(table, options.mlm_maxlen - 2, 0.0, multiple) for table in self.tables]
            longest += [windows.longest for windows in self._windows]
            # More than a batch can need, for batch 0.
            self._max_masked = multiple + max(
                most_masked(windows.longest, options.mask_rate, table.largest_word, multiple)
                for windows, table in zip(self._windows, self.tables, strict=True)
            )
        self._max_length = round_up(max(longest) + 2, multiple)
        self._varies = self._max_length - multiple >= SHORTEST_ROW

    def _count_batches(self):
        options = self.settings
        if options.batches_per_epoch is not None:
            return int(options.batches_per_epoch)
        if options.mlm_share < 1:
            needed = sum(pairs.num_centres for pairs in self._pairs) / options.pairs_per_batch / (1 - options.mlm_share)
        else:
            needed = sum(windows.num_windows for windows in self._windows) / (2 * options.pairs_per_batch)
        return round_up(max(1, int(needed)), options.batches_per_draw)

    def _warn(self):
        for language, table in zip(self.languages, self.tables, strict=True):
            for note in table.notes:
                warn(f"{language!r}: {note}")
        if self.settings.mlm_share < 1:
            self._warn_of_pairs()

    def _warn_of_pairs(self):
        options, pairs = self.settings, dict(zip(self.languages, self._pairs, strict=True))
        single = {language: own.num_single for language, own in pairs.items() if own.num_single}
        if single:
            warn(f"{sum(single.values())} documents have one sentence only, so they are in no pair: {single}.")
        few = {language: n for language, n in self.num_pairs.items() if n < options.pairs_per_batch}
        if few:
            warn(f"some languages have fewer pairs than `pairs_per_batch`, so their batches have as many: {few}.")
        alone = [language for language, own in pairs.items() if len(own.documents) == 1]
        if alone:
            warn(f"all pairs of {alone} are of one document: no negatives are of another one.")
        cut = {language: own.num_cut for language, own in pairs.items() if own.num_cut}
        if cut:
            warn(
                f"{sum(cut.values())} of {sum(self.num_pairs.values())} sentences have more than {options.maxlen} "
                f"tokens and lose their end: {cut}. Give a larger `maxlen` to keep more of them.",
                TruncationWarning,
            )

    # Epochs

    def _shares(self):
        sizes = np.array([len(table.sentence_starts) for table in self.tables], "float64")
        weights = sizes**self.settings.language_exponent
        return weights / weights.sum()

    def _make_plan(self, epoch):
        options, num_batches = self.settings, self._batches_per_epoch
        rng = np.random.default_rng([options.seed, PLAN_STREAM, epoch])
        languages = rng.choice(len(self.languages), num_batches, p=self._shares())
        draws = rng.random(num_batches // options.batches_per_draw) < options.mlm_share
        masked = np.repeat(draws, options.batches_per_draw)
        slots, pairs, windows = np.zeros(num_batches, "int64"), [], []
        for language in range(len(self.languages)):
            for kind, found in enumerate((pairs, windows)):
                chosen = np.flatnonzero((languages == language) & (masked == kind))
                slots[chosen] = np.arange(len(chosen))
                rng = np.random.default_rng([options.seed, PLAN_STREAM, epoch, 1 + 2 * language + kind])
                found.append(self._draw(language, kind, len(chosen), rng))
        return ContextPlan(languages, masked, slots, pairs, windows)

    def _draw(self, language, kind, num_batches, rng):
        """Two int64 (num_batches, rows), centres and contexts or starts and lengths of windows; None for no batches."""
        if not num_batches:
            return None
        options = self.settings
        if not kind:
            return self._pairs[language].draw(num_batches, options.pairs_per_batch, options.window_batches, rng)
        starts, lengths = self._windows[language].draw(rng)
        rows = 2 * options.pairs_per_batch
        num_items = max(len(starts), rows)  # the same window twice in a batch is masked in two ways
        drawn = draw_batches(num_batches, num_items, rows, rng) % len(starts)
        order = sort_batches(lengths[drawn], num_items, options.window_batches, rng)
        chosen = drawn.ravel()[order]
        return starts[chosen], lengths[chosen]

    def _make_batch(self, plan, epoch, index) -> dict[str, np.ndarray]:
        language, slot = int(plan.languages[index]), int(plan.slots[index])
        if plan.masked[index]:
            starts, lengths = (numbers[slot] for numbers in plan.windows[language])
            facts = dict.fromkeys(("document_ids", "sentence_positions", "sentence_keys", "sides"), -1)
        else:
            centres, contexts = (numbers[slot] for numbers in plan.pairs[language])
            sentences = np.stack([centres, contexts], axis=1).ravel()
            starts, lengths = self._pairs[language].tokens(sentences)
            facts = self._facts_of(language, sentences, starts, lengths)
        if index == 1 and self._varies:
            lengths = np.minimum(lengths, self._max_length - self.settings.length_multiple - 2)
        length = round_up(lengths.max() + 2, self.settings.length_multiple)
        if index == 0 or not self._varies:
            length = self._max_length
        maker = self._makers[language]
        if plan.masked[index]:
            rng = np.random.default_rng([self.settings.seed, BATCH_STREAM, epoch, index])
            batch = maker.masked(starts, lengths, length, rng)
        else:
            token_ids = maker.rows(starts, lengths, length)
            nothing = np.zeros((len(lengths), 0), "int32")
            batch = {"token_ids": token_ids, "encoder_token_ids": token_ids.copy()}
            batch |= {"masked_positions": nothing, "masked_ids": nothing}
        if index == 0:
            for name, filler in (("masked_positions", 0), ("masked_ids", -1)):
                missing = self._max_masked - batch[name].shape[1]
                batch[name] = np.pad(batch[name], ((0, 0), (0, missing)), constant_values=filler)
        facts["language_ids"] = language
        return batch | {name: np.full(len(lengths), value, "int32") for name, value in facts.items()}

    def _facts_of(self, language, sentences, starts, lengths):
        pairs, tokens = self._pairs[language], self.tables[language].token_ids
        first = self._first_document + sum(table.num_documents for table in self.tables[:language])
        texts = (tokens[start : start + length].astype("<i4") for start, length in zip(starts, lengths, strict=True))
        return {
            "document_ids": (first + pairs.documents_of(sentences)) % _NUM_IDS,
            "sentence_positions": pairs.positions(sentences),
            "sentence_keys": np.array([zlib.crc32(text.tobytes()) & 0x7FFFFFFF for text in texts]),
            "sides": np.arange(len(sentences)) % 2,
        }


def _first_document(tables):
    """The number of the first document: so that a bank that has seen other data does not take documents for its own."""
    digest = 0
    for table in tables:
        read = table.token_ids[:_TOKENS_READ].astype("<i4").tobytes()
        digest = zlib.crc32(np.array(_sizes(table), "<i8").tobytes() + read, digest)
    return digest % _NUM_IDS


def _sizes(table):
    return [table.num_documents, len(table.sentence_starts), len(table.token_ids)]


def _check_sources(sources, segment):
    if not isinstance(sources, Mapping) or not sources:
        raise ValueError(
            "`sources` must be a dict that gives each language a path or documents, as {'en': 'en.jsonl'}; received "
            f"{short(sources)}."
        )
    for language in sources:
        if not isinstance(language, str) or not language.strip():
            raise ValueError(f"`sources` must have codes of languages as its keys, as 'en'; received {language!r}.")
    unknown = sorted(set(segment) - set(sources))
    if unknown:
        raise ValueError(f"`segment` must be for languages of `sources`, {list(sources)}; received one for {unknown}.")
