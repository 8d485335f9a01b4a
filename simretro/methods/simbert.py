"""SimBERT: one UniLM that retrieves and generates similar sentences."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import keras
from keras import ops

from simretro.generation import SynonymGenerator
from simretro.losses import in_batch_similarity_loss
from simretro.methods.encoder_method import EncoderMethod, count_labels
from simretro.models import SentenceEncoder
from simretro.models.weights import quick_checksum
from simretro.retrieval import VectorIndex, build_index, load_index
from simretro.training.distribution import gather_rows


@keras.saving.register_keras_serializable(package="simretro")
class SimBERT(EncoderMethod):
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
    After `build_index` or `load_index`, `index` is what `most_similar` searches, as long as the weights stay the same.
    Raises: ValueError if the encoder lacks a part or a value is out of range.
    Reference: Su, 2020, https://kexue.fm/archives/7427; the masked source: Dong et al., 2019,
        https://arxiv.org/abs/1905.03197.
    """

    facts_name = "simbert"
    encoder_options: ClassVar = {"application": "unilm", "with_pool": "linear", "with_mlm": "linear"}
    settings_names = ("temperature", "seq2seq_weight", "similarity_weight", "mlm_weight", "maxlen")
    texts_per_row = 2
    rows_per_example = 2  # a pair is two rows, which `micro_batches` must not part
    in_batch_negatives = True

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
        if (encoder.application, encoder.with_pool, encoder.with_mlm) != ("unilm", "linear", "linear"):
            raise ValueError(
                "`encoder` must be built with `application='unilm'`, `with_pool='linear'` and `with_mlm='linear'`; "
                f"received {encoder.application!r}, {encoder.with_pool!r} and {encoder.with_mlm!r}."
            )
        if not 0 < temperature < float("inf"):
            raise ValueError(f"`temperature` must be positive; received {temperature}.")
        if min(seq2seq_weight, similarity_weight, mlm_weight) < 0:
            raise ValueError(
                "`seq2seq_weight`, `similarity_weight` and `mlm_weight` must not be negative; "
                f"received {seq2seq_weight}, {similarity_weight} and {mlm_weight}."
            )
        names = ("seq2seq", "similarity", "mlm") if mlm_weight else ("seq2seq", "similarity")
        super().__init__(encoder, tokenizer, maxlen, chunk_size, names, names, name)
        self.temperature = temperature
        self.seq2seq_weight = seq2seq_weight
        self.similarity_weight = similarity_weight
        self.mlm_weight = mlm_weight
        self.index = None  # see the property
        self.built = True  # the encoder is functional: all variables are there

    # Training

    def fit(self, x=None, *args, **kwargs):
        """As `EncoderMethod.fit`. The index is dropped: its vectors are those of the weights before."""
        self.index = None
        return super().fit(x, *args, **kwargs)

    def _check_batch(self, name, batch):
        if "masked_ids" in batch and not self.mlm_weight:
            raise ValueError(
                f"`{name}` masks source tokens (`mlm_rate`), but `mlm_weight` is 0: nothing would predict them."
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
            "seq2seq": count_labels(x["target_ids"]),
        }
        if self.mlm_weight:
            counts["mlm"] = count_labels(self._masked(x, "masked_ids"))
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
        loss, accuracy = in_batch_similarity_loss(vectors, self.temperature, all_vectors, row_offset)
        if keras.backend.backend() == "tensorflow":
            loss = _checked_rows(loss, all_vectors)
        rows = ops.cast(ops.shape(vectors)[0], "float32")
        self._track("similarity", loss, rows, accuracy)
        return loss * rows / normalizers["rows"]

    def _masked(self, x, key):
        if key not in x:
            raise ValueError(
                f"`mlm_weight` is {self.mlm_weight}, but the batches lack `{key}`: give the data `mlm_rate`."
            )
        return x[key]

    # Use

    @property
    def index(self) -> VectorIndex | None:
        """What `most_similar` searches, with the weights that the model had when it was set."""
        return self._index

    @index.setter
    def index(self, index):
        self._index = index
        self._index_weights = None if index is None else quick_checksum(self.encoder)

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder part: linear pooler on [CLS]."""
        return self._pretrained_encoder("pooler")

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
        Raises: ValueError if there is no index, if the weights have changed since it was made, or if `topn` is no int
            of at least 1.
        """
        if self.index is None:
            raise ValueError("There is no index. Call `build_index(texts)` or `load_index(folder)` first.")
        if self._index_weights != quick_checksum(self.encoder):
            raise ValueError(
                "The index is out of date: the weights of the model have changed since it was made, and with them all "
                "vectors. Call `build_index(texts)` again."
            )
        texts = [text_or_texts] if isinstance(text_or_texts, str) else list(text_or_texts)
        results = self.index.most_similar(self.encode(texts, show_progress=False), topn)
        return results[0] if isinstance(text_or_texts, str) else results

    def fingerprint(self) -> str:
        """Hash of all that a sentence vector depends on; an index remembers it."""
        return self.sentence_encoder.fingerprint()


def _checked_rows(loss, vectors):
    """Where the shape is known the loss itself refuses; in `fit` it is known in the step only.

    XLA leaves out the check that says what is wrong: there the loss is no number, which ends the training.
    """
    import tensorflow as tf

    message = (
        "A batch must have an even number of rows, two for each pair: use an even `batch_size`, or `SimilarPairs`."
    )
    odd = tf.shape(vectors)[0] % 2
    tf.debugging.assert_equal(odd, 0, message)
    return tf.where(odd == 0, loss, float("nan"))
