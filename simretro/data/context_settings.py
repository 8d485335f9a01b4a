"""What can be set of the batches of near sentences, and what these settings must be."""

from dataclasses import dataclass

from simretro.arguments import check_int
from simretro.data.settings import Settings

SHORTEST_ROW = 3  # [CLS], a token, [SEP]


@dataclass(frozen=True)
class WindowSettings(Settings):
    """The settings of `ContextWindows`, which explains them; `check` refuses what is out of range."""

    pairs_per_batch: int
    maxlen: int
    window_sentences: int
    mlm_share: float
    seed: int
    mask_rate: float
    mlm_maxlen: int
    language_exponent: float
    batches_per_epoch: int | None
    batches_per_draw: int
    length_multiple: int
    window_batches: int

    def check(self, tokenizer) -> None:
        """Raises ValueError for a setting that is out of range, or that the tokenizer has no token for."""
        for name, least, why in (
            ("pairs_per_batch", 2, "one pair has no negatives"),
            ("maxlen", SHORTEST_ROW, "it counts [CLS] and [SEP]"),
            ("window_sentences", 1, "a sentence is not its own context"),
            ("seed", 0, "it seeds NumPy's generators"),
            ("mlm_maxlen", SHORTEST_ROW, "it counts [CLS] and [SEP]"),
            ("batches_per_draw", 1, "1 draws a task for each batch"),
            ("length_multiple", 1, "1 pads to the longest row"),
            ("window_batches", 1, "1 does not sort by length"),
        ):
            check_int(name, getattr(self, name), least, why)
        self._check_batches()
        if not 0 <= self.mlm_share <= 1:
            raise ValueError(f"`mlm_share` must be in [0, 1]; received {self.mlm_share!r}.")
        if not 0 < self.mask_rate < 1:
            raise ValueError(f"`mask_rate` must be in (0, 1); received {self.mask_rate!r}.")
        if not 0 <= self.language_exponent <= 1:
            raise ValueError(
                "`language_exponent` must be in [0, 1], where 1 draws languages by their sizes and 0 all alike; "
                f"received {self.language_exponent!r}."
            )
        for name in ("cls_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"`tokenizer` must have a `{name}`; received None. Add the token to its vocabulary.")
        if self.mlm_share and tokenizer.mask_token_id is None:
            raise ValueError(
                f"`tokenizer` must have a `mask_token_id` since `mlm_share` is {self.mlm_share!r}; received None. Add "
                "the token to its vocabulary, or set `mlm_share=0`."
            )

    def _check_batches(self):
        number, draw = self.batches_per_epoch, self.batches_per_draw
        if number is None:
            return
        check_int("batches_per_epoch", number, 1, "an epoch has a batch")
        if number % draw:
            raise ValueError(
                f"`batches_per_epoch` must be a multiple of `batches_per_draw`, {draw}, whose batches have one task; "
                f"received {number}."
            )
