"""SimBERT: one UniLM that retrieves and generates similar sentences."""

from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np
from keras import ops

from simretro.data import SimilarPairs
from simretro.generation import SynonymGenerator
from simretro.losses import fused_cross_entropy, in_batch_similarity_loss
from simretro.models import SentenceEncoder, load_pretrained, write_folder
from simretro.models.config import check_maxlen, check_vocabulary, max_tokens
from simretro.retrieval import build_index, load_index
from simretro.training.distribution import gather_rows
from simretro.training.train_step import AdditiveLossModel


@keras.saving.register_keras_serializable(package="simretro")
class SimBERT(AdditiveLossModel):
    """A UniLM trained on pairs of similar sentences to generate one from the other and to tell its partner in a batch.

    The batches of `simretro.data.SimilarPairs` have what `call` reads. Losses, each with a metric and an accuracy:
    `seq2seq` (cross-entropy of the target tokens, mean over all of them), `similarity` (see
    `in_batch_similarity_loss`) and, if `mlm_weight` is not 0, `mlm` (masked source tokens). Vocabulary logits are
    computed at the positions that a loss reads, and so is the last block.

    Args:
        encoder: `Transformer` with `application="unilm"`, `with_pool="linear"`, `with_mlm="linear"`.
        tokenizer: of `simretro.tokenizers`; needed for everything but training.
        temperature: float, of the similarity loss; SimBERT's scale 30 is 1/30, RoFormer-Sim's 20 is 1/20.
        seq2seq_weight: float.
        similarity_weight: float.
        mlm_weight: float; not 0 needs data with `mlm_rate`.
        maxlen: int, longest sentence in tokens, special ones included, for encoding; None = what the positions allow.
        chunk_size: int, positions whose logits exist at a time.
    After `build_index` or `load_index`, `index` is what `most_similar` searches; training drops it.
    Raises: ValueError if the encoder lacks a part or a value is out of range.
    Reference: Su, 2020, https://kexue.fm/archives/7427; the masked source: Dong et al., 2019,
        https://arxiv.org/abs/1905.03197.
    """

    def __init__(
        self,
        encoder,
        tokenizer=None,
        temperature: float = 1 / 30,
        seq2seq_weight: float = 1.0,
        similarity_weight: float = 1.0,
        mlm_weight: float = 0.0,
        maxlen: int | None = None,
        chunk_size: int = 1024,
        name: str = "simbert",
    ):
        super().__init__(name=name)
        if (encoder.application, encoder.with_pool, encoder.with_mlm) != ("unilm", "linear", "linear"):
            raise ValueError(
                "`encoder` must be built with `application='unilm'`, `with_pool='linear'` and `with_mlm='linear'`; "
                f"received {encoder.application!r}, {encoder.with_pool!r} and {encoder.with_mlm!r}."
            )
        if tokenizer is not None:
            check_vocabulary(encoder.config, tokenizer)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"`temperature` must be positive; received {temperature}.")
        if min(seq2seq_weight, similarity_weight, mlm_weight) < 0:
            raise ValueError(
                "`seq2seq_weight`, `similarity_weight` and `mlm_weight` must not be negative; "
                f"received {seq2seq_weight}, {similarity_weight} and {mlm_weight}."
            )
        check_maxlen(encoder.config, maxlen)
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.seq2seq_weight = seq2seq_weight
        self.similarity_weight = similarity_weight
        self.mlm_weight = mlm_weight
        self.maxlen = maxlen
        self.chunk_size = chunk_size
        self.index = None
        self.built = True  # the encoder is functional: all variables are there
        names = ("seq2seq", "similarity", "mlm") if mlm_weight else ("seq2seq", "similarity")
        self._loss_means = {name: keras.metrics.Mean(f"{name}_loss") for name in names}
        self._accuracy_means = {name: keras.metrics.Mean(f"{name}_accuracy") for name in names}

    # Training

    def fit(self, x=None, *args, validation_data=None, **kwargs):
        """As `AdditiveLossModel.fit`. Rows longer than the position table are refused before the first step.

        The index is dropped: its vectors are those of the weights before.
        """
        self._check_batches("x", x)
        self._check_batches("validation_data", validation_data)
        self.index = None
        return super().fit(x, *args, validation_data=validation_data, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """As `keras.Model.evaluate`. Rows longer than the position table are refused."""
        self._check_batches("x", x)
        return super().evaluate(x, *args, **kwargs)

    def _check_batches(self, name, data):
        if not isinstance(data, SimilarPairs):
            return
        batch = data.batch(0, 0)
        if "masked_ids" in batch and not self.mlm_weight:
            raise ValueError(
                f"`{name}` masks source tokens (`mlm_rate`), but `mlm_weight` is 0: nothing would predict them."
            )
        limit = max_tokens(self.encoder.config)
        longest = batch["token_ids"].shape[1]  # batch 0 is the longest of all
        if limit is not None and longest > limit:
            raise ValueError(
                f"The batches of `{name}` have up to {longest} tokens a row, but the encoder has {limit} positions. "
                "Give the data a smaller `maxlen`: a row holds two sentences."
            )

    def call(self, x, training=None):
        """What the losses read.

        Args:
            x: dict of int32 arrays, see `SimilarPairs`: `token_ids`, `segment_ids` (R, L), `target_positions` (R, T)
                and, with MLM, `masked_positions` (R, M).
            training: bool.
        Returns: dict of `sentence_vectors` float (R, H), `targets` (R, T, E) and, with MLM, `masked` (R, M, E): hidden
            states in the space of the token table.
        """
        target_positions = x["target_positions"]
        read = [ops.zeros_like(target_positions[:, :1]), target_positions]
        if self.mlm_weight:
            read.append(self._masked(x, "masked_positions"))
        hidden = self.encoder.hidden_at(
            x["token_ids"], x["segment_ids"], ops.concatenate(read, axis=1), training=training
        )
        outputs = {"sentence_vectors": self.encoder.pooler(hidden[:, 0])}
        end = 1 + ops.shape(target_positions)[1]
        outputs["targets"] = self.encoder.mlm_head.transform(hidden[:, 1:end])
        if self.mlm_weight:
            outputs["masked"] = self.encoder.mlm_head.transform(hidden[:, end:])
        return outputs

    def normalizers(self, x):
        counts = {
            "rows": ops.cast(ops.shape(x["token_ids"])[0], "float32"),
            "seq2seq": _count(x["target_ids"]),
        }
        if self.mlm_weight:
            counts["mlm"] = _count(self._masked(x, "masked_ids"))
        return counts

    def additive_loss(self, x, y_pred, normalizers, training):
        seq2seq = self._vocabulary_loss("seq2seq", y_pred["targets"], x["target_ids"], normalizers, training)
        loss = self.seq2seq_weight * seq2seq + self.similarity_weight * self._similarity_loss(y_pred, normalizers)
        if self.mlm_weight:
            masked_ids = self._masked(x, "masked_ids")
            loss += self.mlm_weight * self._vocabulary_loss("mlm", y_pred["masked"], masked_ids, normalizers, training)
        return loss

    def _similarity_loss(self, y_pred, normalizers):
        vectors = y_pred["sentence_vectors"]
        all_vectors, row_offset = gather_rows(ops.cast(vectors, "float32"))
        if keras.backend.backend() == "tensorflow":
            _refuse_odd_rows(all_vectors)
        loss, accuracy = in_batch_similarity_loss(vectors, self.temperature, all_vectors, row_offset)
        rows = ops.cast(ops.shape(vectors)[0], "float32")
        self._track("similarity", loss, accuracy, rows)
        return loss * rows / normalizers["rows"]

    def _vocabulary_loss(self, name, transformed, labels, normalizers, training):
        labels = ops.reshape(labels, (-1,))
        loss, num_correct = fused_cross_entropy(
            ops.reshape(transformed, (-1, transformed.shape[-1])),
            self.encoder.token_table,
            self.encoder.mlm_head.bias,
            labels,
            normalizers[name],
            self.chunk_size,
            training,
        )
        count = _count(labels)
        safe = ops.maximum(count, 1.0)
        self._track(name, loss * normalizers[name] / safe, num_correct / safe, count)
        return loss

    def _track(self, name, loss, accuracy, weight):
        self._loss_means[name].update_state(ops.stop_gradient(loss), sample_weight=weight)
        self._accuracy_means[name].update_state(accuracy, sample_weight=weight)

    def _masked(self, x, key):
        if key not in x:
            raise ValueError(
                f"`mlm_weight` is {self.mlm_weight}, but the batches lack `{key}`: give the data `mlm_rate`."
            )
        return x[key]

    # Use

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder part: linear pooler on [CLS]."""
        if self.tokenizer is None:
            raise ValueError("This SimBERT has no tokenizer. Set `simbert.tokenizer`, or pass it when constructing.")
        return SentenceEncoder(self.encoder, self.tokenizer, "pooler", maxlen=self.maxlen)

    def encode(
        self, texts: Iterable[str], batch_size: int = 32, normalize: bool = True, show_progress: bool | None = None
    ) -> np.ndarray:
        """Sentence vectors, float32 (N, H); see `SentenceEncoder.encode`."""
        return self.sentence_encoder.encode(texts, batch_size, normalize, show_progress)

    def gen_synonyms(
        self, text_or_texts: str | Iterable[str], n: int = 100, k: int = 20, with_scores: bool = False, **options
    ) -> list:
        """Sentences that mean the same, by descending cosine; see `SynonymGenerator` for the options."""
        return SynonymGenerator(self.sentence_encoder)(text_or_texts, n, k, with_scores, **options)

    def build_index(self, texts: Iterable[str], kind: str | None = None, batch_size: int = 32):
        """Encodes texts and keeps an index of them for `most_similar`.

        Args:
            texts: iterable of str.
            kind: "exact", "annoy" or None, see `simretro.retrieval.build_index`.
            batch_size: int, see `encode`.
        Returns: the index, also kept as `self.index`.
        """
        if isinstance(texts, str):
            raise TypeError(
                "`texts` must be a list of str; received one str. Read a file into a list of its lines first."
            )
        texts = list(texts)
        self.index = build_index(self.encode(texts, batch_size), texts, kind, self.fingerprint())
        return self.index

    def load_index(self, folder: str | Path):
        """Opens an index that `index.save(folder)` wrote; one of another model is refused with a ValueError."""
        self.index = load_index(folder, self.fingerprint())
        return self.index

    def most_similar(self, text_or_texts: str | Iterable[str], topn: int = 20) -> list:
        """The texts of the index closest to a text.

        Args:
            text_or_texts: one text or several.
            topn: int; more than the index holds gives all of them.
        Returns: list of (text, cosine), best first; for several texts a list of such lists.
        Raises: ValueError if there is no index, or `topn` is below 1.
        """
        if self.index is None:
            raise ValueError("There is no index. Call `build_index(texts)` or `load_index(folder)` first.")
        texts = [text_or_texts] if isinstance(text_or_texts, str) else list(text_or_texts)
        results = self.index.most_similar(self.encode(texts, show_progress=False), topn)
        return results[0] if isinstance(text_or_texts, str) else results

    def fingerprint(self) -> str:
        """Hash of all that a sentence vector depends on; an index remembers it."""
        return self.sentence_encoder.fingerprint()

    # Files

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        revision: str | None = None,
        new_parts: tuple[str, ...] = (),
        dropout_rate: float | None = None,
        dtype: str | None = None,
        **settings,
    ) -> "SimBERT":
        """Loads a folder of any known format, or a model of the Hugging Face hub.

        Args:
            name_or_path: see `simretro.checkpoints.read_checkpoint`.
            revision: of a model on the hub.
            new_parts: names among "pooler" and "mlm_head" that the checkpoint may lack; they get new weights, to be
                trained.
            dropout_rate: replaces the dropout rates of the config.
            dtype: Keras dtype policy.
            settings: `temperature`, `mlm_weight`, `maxlen`, ... in place of those saved.
        """
        encoder, tokenizer, facts = load_pretrained(
            name_or_path,
            application="unilm",
            with_pool="linear",
            with_mlm="linear",
            revision=revision,
            new_parts=new_parts,
            dropout_rate=dropout_rate,
            dtype=dtype,
        )
        return cls(encoder, tokenizer, **{**facts.get("simbert", {}), **settings})

    def save_pretrained(self, folder: str | Path, facts: dict | None = None, format: str = "simretro") -> None:
        """Writes a folder that `from_pretrained` reads, only when everything is written in place of an older one.

        Args:
            folder: path.
            facts: JSON values worth knowing of the training; kept by the format "simretro".
            format: "simretro", "huggingface" (transformers loads it) or "tf1" (bert4keras loads it).
        Raises: ValueError for an unknown format.
        """
        facts = {**(facts or {}), "simbert": self._settings()}
        if self.tokenizer is not None:
            facts["sentence_encoder"] = self.sentence_encoder.settings()
        write_folder(folder, self.encoder, self.tokenizer, facts, format)

    def _settings(self):
        names = ("temperature", "seq2seq_weight", "similarity_weight", "mlm_weight", "maxlen")
        return {name: getattr(self, name) for name in names}

    def get_config(self):
        """The tokenizer is no part of a `.keras` file: use `save_pretrained` to keep it."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"name": self.name, "encoder": encoder, "chunk_size": self.chunk_size, **self._settings()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects=custom_objects)
        return cls(**{**config, "encoder": encoder})


def _refuse_odd_rows(vectors):
    """Where the shape is known the loss itself refuses; in `fit` it is known in the step only."""
    import tensorflow as tf

    message = (
        "A batch must have an even number of rows, two for each pair: use an even `batch_size`, or `SimilarPairs`."
    )
    tf.debugging.assert_equal(tf.shape(vectors)[0] % 2, 0, message)


def _count(labels):
    """How many labels are not ignored, float32 scalar."""
    return ops.sum(ops.cast(labels >= 0, "float32"))
