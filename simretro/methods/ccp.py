"""CCP, contrastive context prediction: sentences that stand near one another in a document are close in space."""

from collections.abc import Sequence
from typing import ClassVar

import keras
from keras import ops

from simretro.arguments import check_int, warn
from simretro.data.epochs import EpochDataset
from simretro.layers import MemoryBank, ProjectionHead
from simretro.losses import context_loss, context_pairs
from simretro.methods.encoder_method import EncoderMethod, array_of, count_labels, said_pooling
from simretro.models import SentenceEncoder
from simretro.models.pooling import vectors_and_states
from simretro.models.weights import export_part, load_part
from simretro.training.distribution import gather_rows

_CHOICES = {
    "pooling": ("cls", "mean"),
    "encode_pooling": ("cls", "mean", None),
    "similarity": ("cosine", "dot"),
    "negatives": ("all", "cross"),
    "batch_norm": ("alternating", "plain", None),
    "bank_kind": ("per_language", "tagged", "shared"),
    "enqueue": ("target", "both", "eval"),
}
_HEAD_SETTINGS = ("projection_size", "batch_norm")
_BANK_SETTINGS = ("bank_size", "bank_kind", "languages", "projection_size", "similarity")
_ROWS = ("sides", "document_ids", "sentence_positions", "language_ids")


@keras.saving.register_keras_serializable(package="simretro")
class CCP(EncoderMethod):
    """Pre-training across languages without translations: MLM, and which sentence stands next to this one?

    The batches of `simretro.data.ContextWindows` have what `call` reads. A batch is of one task, which the data draw
    by (seed, epoch, index): so every replica and backend has the same one, and a resumed run goes on with it. A batch
    of the other task adds nothing to a loss and changes neither bank nor statistics.

    Of a batch of sentences in one language, each must find those that are at most `window_sentences` from it in its
    document, among all others and the last `bank_size` of its language (`context_loss`). The vectors compared come
    from a `ProjectionHead`, whose batch normalization has another mode for a sentence than for its context
    (`AlternatingBatchNormalization`); head and bank serve training alone. Under a `tf.distribute` strategy, negatives,
    bank and statistics are those of the whole batch, the same on every replica.

    Metrics: `mlm_loss`, `mlm_accuracy`; `context_loss`, `context_accuracy` (a context is closer than all negatives)
    and `context_chance`, the loss of guessing: a loss below it that falls while retrieval gets worse is a leak.

    Args:
        encoder: `Transformer` with `application="encoder"` and `with_mlm="linear"`.
        tokenizer: of `simretro.tokenizers`; needed for everything but training.
        bank_size: int, vectors kept of each language; 0 = no bank.
        temperature: float > 0. The paper gives none.
        window_sentences: int, how far a context may be away. The paper gives none.
        languages: names in the order of the batches' `language_ids`, as `data.languages`; None = one language.
        pooling: "cls" (the paper) or "mean", what is trained.
        encode_pooling: "cls", "mean" or None = `pooling`, what `encode` gives; the paper takes the mean for Tatoeba.
        projection_size: int, length of the vectors that are compared.
        batch_norm: "alternating", "plain" or None, see `ProjectionHead`.
        warmup_updates: int, see `AlternatingBatchNormalization`.
        similarity: "cosine" or "dot", which the paper found to fail.
        negatives: "all" or "cross", see `context_pairs`.
        exclude_positives: bool, see `context_loss`.
        bank_kind: "per_language", "tagged" or "shared", see `MemoryBank`.
        enqueue: what enters the bank: "target" (contexts), "both", or "eval" (the side that had the running
            statistics).
        mask_same_document: bool; False: as in the paper, sentences of the same document beyond the window, and its
            sentences in the bank, are negatives.
        synchronized: bool; False: as in the paper, each replica has negatives, bank and statistics of its own. Pairs
            that a strategy tears apart are lost then.
        maxlen: int, longest text in tokens for encoding; None = what the positions allow.
        chunk_size: int, positions whose vocabulary logits exist at a time.
    Raises: ValueError if the encoder lacks a part or a value is out of range.
    Reference: Wu et al., 2022, "Unsupervised Context Aware Sentence Representation Pretraining for Multi-lingual Dense
        Retrieval".
    """

    facts_name = "ccp"
    encoder_options: ClassVar = {"with_mlm": "linear"}
    settings_names = (
        *("bank_size", "temperature", "window_sentences", "languages", "pooling", "encode_pooling", "projection_size"),
        *("batch_norm", "warmup_updates", "similarity", "negatives", "exclude_positives", "bank_kind", "enqueue"),
        *("mask_same_document", "synchronized", "maxlen"),
    )
    folder_format = "sentence-transformers"
    rows_per_example = 2  # a sentence and its context, which `micro_batches` must not part
    in_batch_negatives = True

    def __init__(
        self,
        encoder,
        tokenizer=None,
        bank_size: int = 32768,
        temperature: float = 0.1,
        window_sentences: int = 2,
        languages: Sequence[str] | None = None,
        pooling: str = "cls",
        encode_pooling: str | None = None,
        projection_size: int = 128,
        batch_norm: str | None = "alternating",
        warmup_updates: int = 10,
        similarity: str = "cosine",
        negatives: str = "all",
        exclude_positives: bool = False,
        bank_kind: str = "per_language",
        enqueue: str = "target",
        mask_same_document: bool = True,
        synchronized: bool = True,
        maxlen: int | None = None,
        chunk_size: int = 1024,
        name: str = "ccp",
    ):
        if (encoder.application, encoder.with_mlm) != ("encoder", "linear"):
            raise ValueError(
                "`encoder` must be built with `application='encoder'` and `with_mlm='linear'`; "
                f"received {encoder.application!r} and {encoder.with_mlm!r}."
            )
        given = locals()
        for argument, choices in _CHOICES.items():
            if given[argument] not in choices:
                raise ValueError(f"`{argument}` must be one of {choices}; received {given[argument]!r}.")
        for argument, least in {
            "bank_size": 0,
            "window_sentences": 1,
            "projection_size": 1,
            "warmup_updates": 0,
        }.items():
            check_int(argument, given[argument], least)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"`temperature` must be positive; received {temperature}.")
        if enqueue == "eval" and batch_norm != "alternating":
            raise ValueError(
                "`enqueue='eval'` needs `batch_norm='alternating'`, or no side has the running statistics; "
                f"received {batch_norm!r}."
            )
        super().__init__(encoder, tokenizer, maxlen, chunk_size, ("mlm", "context"), ("mlm", "context"), name)
        for setting in self.settings_names:
            setattr(self, setting, given[setting])
        self.languages = _checked_languages(languages)
        self._chance = keras.metrics.Mean("context_chance")
        self.head = self._new_head()
        self.bank = self._new_bank() if bank_size else None
        self.built = True  # all variables are there

    def _new_head(self):
        width = self.encoder.config["hidden_size"]
        head = ProjectionHead(
            width,
            self.projection_size,
            self.batch_norm,
            synchronized=self.synchronized and keras.backend.backend() == "tensorflow",
            warmup_updates=self.warmup_updates,
            dtype="float32",
            name="head",
        )
        head.build((None, width))
        return head

    def _new_bank(self):
        bank = MemoryBank(
            self.bank_size,
            self.projection_size,
            len(self.languages or [""]),
            self.bank_kind,
            self.similarity == "cosine",
            self.mask_same_document,
            dtype="float32",
            name="bank",
        )
        bank.build()
        return bank

    # Training

    def call(self, x, training=None):
        """What the losses read.

        Args:
            x: dict of int32 arrays, see `ContextWindows`: `encoder_token_ids`, or `token_ids` where it lacks, (R, L);
                for MLM `masked_positions` (R, M); for CCP `sides` (R,), 0 centre, 1 context, negative = neither.
            training: bool.
        Returns: dict of `masked` (R, M, E), hidden states in the space of the token table, and `context` float32
            (R, `projection_size`), the head's vectors; each if the batch has its arrays.
        """
        return self.batch_outputs(x, self.row_outputs(x, training), training)

    def row_outputs(self, x, training):
        """Without the head, whose batch normalization reads all rows: sentence vectors in place of `context`."""
        token_ids = x["encoder_token_ids"] if "encoder_token_ids" in x else _of(x, "token_ids")
        vectors, masked = vectors_and_states(self.encoder, token_ids, self.pooling, x.get("masked_positions"), training)
        outputs = {}
        if masked is not None:
            outputs["masked"] = self.encoder.mlm_head.transform(masked)
        if "sides" in x:
            outputs["vectors"] = ops.cast(vectors, "float32")
        return outputs

    def batch_outputs(self, x, row_outputs, training):
        outputs = {name: rows for name, rows in row_outputs.items() if name != "vectors"}
        if "vectors" in row_outputs:
            outputs["context"] = self.head(row_outputs["vectors"], x["sides"], training=training)
        return outputs

    def normalizers(self, x):
        counts = {}
        if "masked_ids" in x:
            counts["mlm"] = count_labels(x["masked_ids"])
        if "sides" in x:
            counts["context"] = _count(self._pairs(x)[0])
        return counts

    def additive_loss(self, x, y_pred, normalizers, training):
        loss = ops.zeros((), "float32")
        if "masked" in y_pred:
            loss += self._vocabulary_loss("mlm", y_pred["masked"], _of(x, "masked_ids"), normalizers, training)
        if "context" in y_pred:
            loss += self._context_loss(x, y_pred["context"], normalizers["context"], training)
        return loss

    def _context_loss(self, x, vectors, normalizer, training):
        positives, visible, rows, all_rows = self._pairs(x)
        all_vectors, _ = self._gathered(vectors)
        bank_vectors = bank_visible = None
        num_candidates = ops.sum(ops.cast(visible, "float32"), axis=1)  # (R,)
        if self.bank is not None:
            self._refuse_unknown_languages(rows["language_ids"])
            bank_vectors, bank_visible = self.bank(
                rows["language_ids"], rows["document_ids"], all_rows["sentence_keys"]
            )
            num_candidates += ops.sum(ops.cast(bank_visible, "float32"), axis=1)
        loss, accuracy = context_loss(
            vectors,
            all_vectors,
            positives,
            visible,
            self.temperature,
            bank_vectors,
            bank_visible,
            self.exclude_positives,
            self.similarity,
            normalizer,
        )
        count = _count(positives)
        safe = ops.maximum(count, 1.0)
        self._track("context", loss * normalizer / safe, count, accuracy)
        pairs = ops.sum(ops.cast(positives, "float32"), axis=1)
        if self.exclude_positives:  # then a positive has no other among its candidates
            num_candidates -= ops.maximum(pairs - 1, 0.0)
        self._chance.update_state(
            ops.sum(ops.log(ops.maximum(num_candidates, 1.0)) * pairs) / safe, sample_weight=count
        )
        if training and self.bank is not None:
            # Only now: a vector of this batch must not be its own context's negative.
            names = ("language_ids", "document_ids", "sentence_keys")
            self.bank.enqueue(all_vectors, *(all_rows[name] for name in names), self._accepted(all_rows["sides"]))
        return loss

    def _accepted(self, sides):
        """bool (N,), the rows that enter the bank."""
        if self.enqueue == "both":
            return sides >= 0
        if self.enqueue == "target":
            return sides == 1
        # The head has flipped the phase: what will have the batch's statistics next had the running ones now.
        return sides == ops.cast(ops.convert_to_tensor(self.head.norm.phase), "int32")

    def _pairs(self, x):
        """(positives, visible, rows of this replica, all rows); see `context_pairs`."""
        rows = pair_rows(x)
        table, first = self._gathered(ops.stack([*rows.values()], axis=1))  # (N, 5)
        all_rows = {name: table[:, i] for i, name in enumerate(rows)}
        positives, visible = context_pairs(
            rows, all_rows, first, self.window_sentences, self.mask_same_document, self.negatives
        )
        return positives, visible, rows, all_rows

    def _gathered(self, x):
        return gather_rows(x) if self.synchronized else (x, 0)

    def _refuse_unknown_languages(self, language_ids):
        if keras.backend.backend() != "tensorflow":
            return  # such rows are left out of the bank there
        import tensorflow as tf

        limit = self.bank.num_languages
        message = (
            f"`language_ids` must be below {limit}: the model was made for {self.languages or 'one language'}. Give it "
            "the `languages` of the data."
        )
        tf.debugging.assert_less(language_ids, limit, message)

    def _check_data(self, name, data):
        super()._check_data(name, data)
        if not isinstance(data, EpochDataset):
            return
        languages = tuple(getattr(data, "languages", ()))
        if languages and languages != (self.languages or languages[:1]):
            raise ValueError(
                f"`{name}` has the languages {languages}, but this model was made for {self.languages or 'one'}. Give "
                "it the same `languages`, in the same order."
            )
        self._check_small_languages(name, data)
        window = getattr(data, "window_sentences", self.window_sentences)
        if window != self.window_sentences:
            raise ValueError(
                f"`{name}` draws contexts with `window_sentences={window}`, but this model has "
                f"{self.window_sentences}. Give both the same."
            )

    def _check_small_languages(self, name, data):
        size = getattr(data, "pairs_per_batch", 0)
        small = {language: n for language, n in getattr(data, "num_pairs", {}).items() if n < size}
        torn = {language: n for language, n in small.items() if n % self.micro_batches}
        if torn and getattr(data, "mlm_share", 0) < 1:
            raise ValueError(
                f"`micro_batches={self.micro_batches}` must divide the pairs of every batch, but these languages of "
                f"`{name}` have fewer pairs than a batch: {torn}. Give them more documents, leave them out, or compile "
                "without `micro_batches`."
            )

    # Use

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder without the head, read as `encode_pooling` says; vectors are not normalised."""
        return self._pretrained_encoder(self.encode_pooling or self.pooling, normalize=False)

    # Files

    @classmethod
    def _saved_settings(cls, facts):
        """An encoder that says how its vectors are pooled is trained so."""
        return said_pooling(facts, _CHOICES["pooling"]) | super()._saved_settings(facts)

    def _kept_parts(self):
        strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's models alone have one
        if not self.synchronized and strategy is not None and strategy.num_replicas_in_sync > 1:
            warn(
                "with `synchronized=False` each device has statistics and a bank of its own: the folder keeps those of "
                "the first one. A `TrainingCheckpoint` keeps all."
            )
        parts = {"head": export_part(self.head)}
        if self.bank is not None:
            parts["bank"] = export_part(self.bank)
        return parts

    def _load_parts(self, parts, saved, source):
        """A bank of another size, kind or languages than the one saved starts empty."""
        if "head" in parts:
            self._refuse_other_kind("head", _HEAD_SETTINGS, saved, source)
            load_part(self.head, parts["head"], source)
        now = self._settings()
        if self.bank is not None and "bank" in parts and all(saved.get(key) == now[key] for key in _BANK_SETTINGS):
            load_part(self.bank, parts["bank"], source)

    def _settings(self):
        return super()._settings() | {"languages": self.languages and list(self.languages)}  # as JSON gives it back


def _checked_languages(languages):
    if languages is None:
        return None
    if isinstance(languages, str) or not languages or len({*languages}) != len(languages):
        raise ValueError(f"`languages` must be names, each once; received {languages!r}.")
    return tuple(languages)


def pair_rows(x):
    """What `context_pairs` and the bank read of a batch of `ContextWindows`: dict of int32 (R,), -1 = no key known."""
    rows = {name: ops.cast(_of(x, name), "int32") for name in _ROWS}
    keys = x["sentence_keys"] if "sentence_keys" in x else -ops.ones_like(rows["sides"])
    return rows | {"sentence_keys": ops.cast(keys, "int32")}


def _count(mask):
    return ops.sum(ops.cast(mask, "float32"))


def _of(x, key):
    return array_of(x, key, "batches must be those of `simretro.data.ContextWindows`")
