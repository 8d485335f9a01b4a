"""What can be set of a data set, and of the batches of pairs in particular; what these settings must be."""

from dataclasses import dataclass, fields

from simretro.arguments import check_int, plain


@dataclass(frozen=True)
class Settings:
    """Settings of a data set, which a checkpoint keeps: NumPy's numbers become Python's."""

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))


@dataclass(frozen=True)
class PairSettings(Settings):
    """The settings of `SimilarPairs`, which explains them; `check` refuses what is out of range."""

    pairs_per_batch: int
    maxlen: int
    seed: int
    pairs_per_group: int
    batching: str
    drop_remainder: bool
    mlm_rate: float
    corruption_rate: float
    corrupted_rows: float
    length_multiple: int
    window_batches: int

    @property
    def masks(self) -> bool:
        """Whether source tokens are masked."""
        return self.mlm_rate > 0 or self.corruption_rate > 0

    def check(self, tokenizer) -> None:
        """Raises ValueError for a setting that is out of range, or that the tokenizer has no token for."""
        self._check_counts()
        self._check_rates()
        if self.batching not in ("grouped", "random"):
            raise ValueError(f'`batching` must be "grouped" or "random"; received {self.batching!r}.')
        for name in ("cls_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"`tokenizer` must have a `{name}`; received None. Add the token to its vocabulary.")
        if self.masks and tokenizer.mask_token_id is None:
            raise ValueError(
                "`tokenizer` must have a `mask_token_id` for `mlm_rate` and `corruption_rate`; received None. A "
                "simplified vocabulary lacks [MASK] unless it was kept: `load_vocab(..., startswith=[..., '[MASK]'])`."
            )

    def _check_counts(self):
        for name, least, why in (
            ("pairs_per_batch", 2, "one pair has no negatives"),
            ("maxlen", 3, "it counts [CLS] and [SEP]"),
            ("seed", 0, "it seeds NumPy's generators"),
            ("pairs_per_group", 1, "each group yields a pair"),
            ("length_multiple", 1, "1 pads to the longest row"),
            ("window_batches", 1, "1 does not sort by length"),
        ):
            check_int(name, getattr(self, name), least, why)

    def _check_rates(self):
        for name in ("mlm_rate", "corruption_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be in [0, 1); received {getattr(self, name)!r}.")
        if not 0 < self.corrupted_rows <= 1:
            raise ValueError(f"`corrupted_rows` must be in (0, 1]; received {self.corrupted_rows!r}.")
        if self.mlm_rate and self.corruption_rate:
            raise ValueError(
                "`mlm_rate` and `corruption_rate` exclude each other, since both mask the source; received "
                f"{self.mlm_rate!r} and {self.corruption_rate!r}. Set one of them to 0."
            )
