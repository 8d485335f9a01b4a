"""Batches of queries and passages, as retrievers are trained on."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from simretro.arguments import check_int, warn
from simretro.data.document_rows import RowPlanner
from simretro.data.epochs import EpochDataset
from simretro.data.query_table import QueryTable, build_query_table
from simretro.data.settings import Settings
from simretro.data.table import ranges
from simretro.data.training_queries import TrainingQuery, as_training_queries
from simretro.tokenizers import TruncationWarning
from simretro.tokenizers.rows import round_up

_KEYS_MULTIPLE = 8


@dataclass(frozen=True)
class QuerySettings(Settings):
    """The settings of `QueryPassages`, which explains them; `check` refuses what is out of range."""

    queries_per_batch: int
    query_maxlen: int
    passage_maxlen: int
    negatives_per_query: int
    seed: int
    each_positive: bool
    query_prefix: str
    passage_prefix: str
    length_multiple: int
    window_batches: int
    drop_remainder: bool
    with_scores: bool

    @property
    def rows_per_batch(self) -> int:
        """As `RowPlanner` calls it."""
        return self.queries_per_batch

    @property
    def group_size(self) -> int:
        """Passages of a query in a batch."""
        return 1 + self.negatives_per_query

    def check(self, tokenizer) -> None:
        """Raises ValueError for a setting that is out of range, or that the tokenizer has no token for."""
        for name, least, why in (
            ("negatives_per_query", 0, "0 leaves those of the other queries"),
            ("queries_per_batch", 1 if self.negatives_per_query else 2, "the others' passages are a query's negatives"),
            ("query_maxlen", 3, "it counts [CLS] and [SEP]"),
            ("passage_maxlen", 3, "it counts [CLS] and [SEP]"),
            ("seed", 0, "it seeds NumPy's generators"),
            ("length_multiple", 1, "1 pads to the longest row"),
            ("window_batches", 1, "1 does not sort by length"),
        ):
            check_int(name, getattr(self, name), least, why)
        if self.with_scores and not self.negatives_per_query:
            raise ValueError(
                "`negatives_per_query` must be at least 1, since `with_scores` is set: a teacher's score of the "
                "positive alone says nothing; received 0."
            )
        for name in ("query_prefix", "passage_prefix"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"`{name}` must be a str; received {getattr(self, name)!r}.")
        for name in ("cls_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"`tokenizer` must have a `{name}`; received None. Add the token to its vocabulary.")


class QueryPassages(EpochDataset):
    """Batches of queries, each with a passage that answers it and some that do not, for `BiEncoder.fit`.

    Every epoch each query comes once, with one of its positives and `negatives_per_query` of its negatives, drawn at
    random. The other queries' passages are its negatives, too, as far as they do not answer it: `positive_keys` says
    which do, exactly. Two passages are the same, and have one key, if they have the same id, or the same token ids
    (after the cut to `passage_maxlen`). What answers a query is never its negative, be it drawn or not, and be it
    known from this record or from another one with an equal query.

    A batch is a function of (seed, epoch, index) alone, on every backend and machine. It is a dict of int32 arrays with
    B rows, one a query; G is 1 + `negatives_per_query`:

    - `query_token_ids` (B, L): `[CLS] query [SEP]`, padded with the pad id;
    - `passage_token_ids` (B, G, M): `[CLS] passage [SEP]`, the positive first. A query that has too few negatives has
      empty places behind them, `[CLS] [SEP]`;
    - `passage_keys` (B, G): equal for equal passages; -1 at an empty place;
    - `positive_keys` (B, K): the keys of all passages that answer the query, padded with -1; where they are more than
      a batch has passages, those that are in the batch;
    - with `with_scores`, `teacher_scores`, float32 (B, G): a teacher's scores of the passages, NaN at an empty place.

    L and M are multiples of `length_multiple`, K is the same in all batches. Batches hold passages of like length and
    come in random order. Batch 0 of an epoch is the longest, padded to what a batch can have at most: what does not fit
    into memory fails at once, and Keras, which fixes every dimension that batches 0 and 1 share, sees which dimensions
    vary.

    All token ids are kept in memory, those of equal texts once. See `EpochDataset` for `fit`, `resume` and `fixed`.

    Args:
        source: path of a file, see `iter_training_queries`; or iterable of `TrainingQuery`, see
            `queries_of_collection`.
        tokenizer: a tokenizer of `simretro.tokenizers`.
        queries_per_batch: int. The last batch may have fewer.
        query_maxlen: int, most tokens of a query with its specials; longer ones lose their end, which a warning tells.
        passage_maxlen: int, the same of a passage.
        negatives_per_query: int; 0: the negatives of the data are not used.
        seed: int >= 0.
        each_positive: bool; True: a query comes once with each of its positives in an epoch.
        query_prefix: str, put before each query, as instructed models want it. A model that is trained so must be used
            so: `BiEncoder` has prefixes of the same names.
        passage_prefix: str, put before each passage.
        length_multiple: int; L and M are multiples of it.
        window_batches: int; examples are sorted by length among so many batches at a time.
        drop_remainder: bool; True: all batches have the same size and random examples that are left over are dropped.
        fixed: bool; True: every pass is epoch 0, for validation data.
        with_scores: bool; True: with a teacher's scores, for `BiEncoder(distillation=...)`; see `TrainingQuery`.
    Raises: ValueError for a bad record, naming its place, for scores that are missing, saying how many and where, or
        for an argument out of range.
    """

    def __init__(
        self,
        source: str | Path | Iterable[TrainingQuery],
        tokenizer,
        queries_per_batch: int = 32,
        query_maxlen: int = 32,
        passage_maxlen: int = 128,
        negatives_per_query: int = 0,
        seed: int = 0,
        *,
        each_positive: bool = False,
        query_prefix: str = "",
        passage_prefix: str = "",
        length_multiple: int = 16,
        window_batches: int = 64,
        drop_remainder: bool = False,
        fixed: bool = False,
        with_scores: bool = False,
    ):
        settings = QuerySettings(
            queries_per_batch=queries_per_batch,
            query_maxlen=query_maxlen,
            passage_maxlen=passage_maxlen,
            negatives_per_query=negatives_per_query,
            seed=seed,
            each_positive=each_positive,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            length_multiple=length_multiple,
            window_batches=window_batches,
            drop_remainder=drop_remainder,
            with_scores=with_scores,
        )
        settings.check(tokenizer)
        self.settings, self._tokenizer = settings, tokenizer
        self._specials = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        limits, prefixes = (query_maxlen - 2, passage_maxlen - 2), (query_prefix, passage_prefix)
        self.table = build_query_table(as_training_queries(source), tokenizer, limits, prefixes, with_scores)
        self._examples = _Examples(self.table, settings)
        if drop_remainder and self.num_examples < queries_per_batch:
            raise ValueError(
                f"`queries_per_batch` must be at most the number of examples, {self.num_examples}, since "
                f"`drop_remainder` is set; received {queries_per_batch}."
            )
        self._planner = RowPlanner(self._examples, settings)
        most = int(np.diff(self.table.known_starts).max())
        self._num_keys = round_up(min(most, int(self._planner.sizes.max()) * settings.group_size), _KEYS_MULTIPLE)
        self._first_facts = None  # before the first `replace`
        super().__init__(len(self._planner.sizes), fixed)
        for note in [*self.table.notes, *self._examples.notes]:
            warn(note)
        for note in self.table.cuts:
            warn(note, TruncationWarning)

    @property
    def num_queries(self) -> int:
        """Queries of the source."""
        return self.table.num_queries

    @property
    def num_examples(self) -> int:
        """Examples of an epoch, what `drop_remainder` drops included."""
        return self._examples.num_windows

    def facts(self) -> dict:
        """What decides the batches, as JSON values: a checkpoint keeps it, to notice other data.

        Of the texts their numbers: reading them all again for a checksum would take too long for large files.
        """
        if self._first_facts is not None:
            return self._first_facts
        table = self.table
        facts = {"queries": table.num_queries, "positives": len(table.positives), "negatives": len(table.negatives)}
        facts |= {"tokens": len(table.queries.token_ids) + len(table.passages.token_ids)}
        if self.settings.with_scores:
            scores = table.positive_scores, table.negative_scores
            facts["teacher_scores"] = float(sum(part.sum(dtype="float64") for part in scores))
        return {**facts, **asdict(self.settings), "tokenizer": self._tokenizer.fingerprint()}

    @property
    def replaced(self) -> bool:
        """Whether `replace` has been called."""
        return self._first_facts is not None

    def replace(self, source: str | Path | Iterable[TrainingQuery]) -> None:
        """Takes other negatives for the same queries, for all batches from now on: call it between epochs.

        See `simretro.training.HardNegativeMining`. `facts` stay those of the data that the training began with.

        Args:
            source: as of the constructor, with the same queries and positives in the same order.
        Raises: ValueError if they are others; or if a passage is longer than all before where these had one length,
            which Keras has taken for fixed.
        """
        new = QueryPassages(source, self._tokenizer, **asdict(self.settings), fixed=self.fixed)
        before, now = _questions(self.table), _questions(new.table)
        if not all(map(np.array_equal, before, now)) or new._num_keys != self._num_keys:
            raise ValueError("`source` must have the queries and positives of the data that are being trained on.")
        if not self._planner.varies:
            if new._planner.max_length > self._planner.max_length:
                raise ValueError(
                    f"`source` has passages of {new._planner.max_length} tokens, but all batches had "
                    f"{self._planner.max_length}, which cannot change within `fit`. Begin with negatives that are as "
                    "long, or give a smaller `passage_maxlen`."
                )
            new._planner.varies, new._planner.max_length = False, self._planner.max_length
        new._examples.queries_vary &= self._examples.queries_vary
        self._first_facts = self.facts()
        with self._lock:
            self.table, self._examples, self._planner = new.table, new._examples, new._planner
            self._plans.clear()

    def _make_plan(self, epoch):
        return self._planner.plan(epoch)

    def _make_batch(self, plan, epoch, index) -> dict[str, np.ndarray]:
        table, examples = self.table, self._examples
        chosen = plan.starts[slice(*plan.batch_starts[index : index + 2])]
        queries, places = chosen[:, 0], chosen[:, 1:]
        passages = by_place(places, table.positives, table.negatives, -1)
        texts = table.query_texts[queries]
        whole = index == 0
        query_width = self._width(table.queries, texts, examples.max_query, whole or not examples.queries_vary)
        width = self._width(table.passages, passages, self._planner.max_length, whole or not self._planner.varies)
        keys = np.where(passages < 0, -1, table.passages.keys[passages])
        rows = table.passages.rows(passages.ravel(), width, self._specials)
        batch = {
            "query_token_ids": table.queries.rows(texts, query_width, self._specials),
            "passage_token_ids": rows.reshape(*passages.shape, width),
            "passage_keys": keys.astype("int32"),
            "positive_keys": self._known_keys(texts, keys),
        }
        if self.settings.with_scores:
            batch["teacher_scores"] = by_place(places, table.positive_scores, table.negative_scores, np.float32(np.nan))
        return batch

    def _width(self, table, texts, widest, is_widest):
        return widest if is_widest else round_up(table.lengths(texts).max() + 2, self.settings.length_multiple)

    def _known_keys(self, texts, batch_keys):
        """int32 (B, K), see the class."""
        starts = self.table.known_starts
        owners = self.table.queries.keys[texts]
        counts = starts[owners + 1] - starts[owners]
        keys = self.table.known_keys[ranges(starts[owners], counts)]
        rows = np.repeat(np.arange(len(texts)), counts)
        kept = (counts[rows] <= self._num_keys) | np.isin(keys, batch_keys)
        rows, keys = rows[kept], keys[kept]
        counts = np.bincount(rows, minlength=len(texts))
        listed = np.full((len(texts), self._num_keys), -1, "int32")
        listed[rows, ranges(np.zeros_like(counts), counts)] = keys
        return listed


def _questions(table):
    """What the negatives have no part in: tokens and numbers of queries and positives, in order."""
    for texts, numbers in ((table.queries, table.query_texts), (table.passages, table.positives)):
        lengths = texts.lengths(numbers)
        yield from (lengths, texts.token_ids[ranges(texts.starts[numbers], lengths)])
    yield table.positive_starts


def by_place(places: np.ndarray, positives: np.ndarray, negatives: np.ndarray, none) -> np.ndarray:
    """Values of a query's passages.

    Args:
        places: int64 (N, G); first the place of its positive in `positives`, then those in `negatives`, -1 = none.
        positives, negatives: values of all passages, of one dtype.
        none: value where there is no passage.
    Returns: (N, G) of that dtype.
    """
    values = np.full(places.shape, none, positives.dtype)
    values[:, 0] = positives[places[:, 0]]
    there = places[:, 1:] >= 0
    values[:, 1:][there] = negatives[places[:, 1:][there]]
    return values


class _Examples:
    """What an epoch draws: for each example a query, one of its positives and some of its negatives.

    For `RowPlanner`: an example is a row of `draw`, its length that of its longest passage.
    """

    def __init__(self, table: QueryTable, settings: QuerySettings):
        self.table, self.group_size, self.each_positive = table, settings.group_size, settings.each_positive
        num_positives, num_negatives = np.diff(table.positive_starts), np.diff(table.negative_starts)
        self.queries = np.arange(table.num_queries)
        if self.each_positive:
            self.queries = np.repeat(self.queries, num_positives)
        self.num_windows = len(self.queries)
        self.notes = list(self._notes(num_negatives, settings.negatives_per_query))
        self._set_bounds(num_negatives, settings)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(query, places of its passages, see `by_place`: int64 (N, 1 + G); longest passage in tokens, int64 (N,))."""
        table, queries = self.table, self.queries
        starts = table.positive_starts
        if self.each_positive:
            positives = np.arange(len(table.positives))
        else:
            positives = starts[:-1] + (rng.random(len(queries)) * np.diff(starts)).astype("int64")
        drawn = np.full((len(queries), 1 + self.group_size), -1)
        drawn[:, 0], drawn[:, 1] = queries, positives
        if self.group_size > 1:
            starts = table.negative_starts
            counts = starts[queries + 1] - starts[queries]
            places, owners = ranges(starts[queries], counts), np.repeat(np.arange(len(queries)), counts)
            order = np.lexsort((rng.random(len(places)), owners))
            rank = ranges(np.zeros_like(counts), counts)
            taken = rank < self.group_size - 1
            drawn[owners[taken], 2 + rank[taken]] = places[order][taken]
        texts = by_place(drawn[:, 1:], table.positives, table.negatives, -1)
        return drawn, table.passages.lengths(texts).max(axis=1)

    def _notes(self, num_negatives, wanted):
        fewer = int(np.sum(num_negatives < wanted))
        if fewer:
            yield (
                f"{fewer} of {len(num_negatives)} queries have fewer than `negatives_per_query`={wanted} negatives: "
                "their places stay empty, at the cost of a passage each."
            )
        if not wanted and num_negatives.any():
            yield f"{num_negatives.sum()} negatives are not used, since `negatives_per_query` is 0."

    def _set_bounds(self, num_negatives, settings):
        """The largest lengths, and which examples surely have shorter ones, see `RowPlanner`."""
        table, multiple = self.table, settings.length_multiple
        lengths = table.passages.lengths(table.positives)
        longest = lengths if self.each_positive else np.maximum.reduceat(lengths, table.positive_starts[:-1])
        if settings.negatives_per_query:
            of_query = np.zeros(table.num_queries, "int64")
            owners = np.repeat(np.arange(table.num_queries), num_negatives)
            np.maximum.at(of_query, owners, table.passages.lengths(table.negatives))
            longest = np.maximum(longest, of_query[self.queries])
        query_lengths = table.queries.lengths(table.query_texts[self.queries])
        self.longest = int(longest.max())
        self.max_query = round_up(query_lengths.max() + 2, multiple)
        is_short = longest + 2 <= round_up(self.longest + 2, multiple) - multiple
        has_short_query = query_lengths + 2 <= self.max_query - multiple
        size = settings.queries_per_batch  # of batch 1 at most
        self.queries_vary = int(np.sum(is_short & has_short_query)) >= size
        self.surely_short = np.flatnonzero(is_short & has_short_query if self.queries_vary else is_short)
