"""BiEncoder: queries and passages as vectors, close where a passage answers a query."""

from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np
from keras import ops

from simretro.arguments import check_int, warn
from simretro.data.query_passages import QueryPassages
from simretro.losses import contrastive_loss, known_positives
from simretro.methods.encoder_method import EncoderMethod, array_of
from simretro.models import SentenceEncoder, build_transformer_model, export_weights, load_pretrained, write_folder
from simretro.models.config import check_maxlen, check_vocabulary, max_tokens
from simretro.models.pooling import check_pooling, new_projection, text_vectors
from simretro.models.weights import export_part, load_part, load_weights
from simretro.training.distribution import gather_rows

_SETTINGS = ("pooling", "temperature", "similarity", "symmetric", "projection_size", "query_prefix", "passage_prefix")
_SETTINGS += ("maxlen", "query_maxlen", "passage_maxlen")
_ARRAYS = ("query_token_ids", "passage_token_ids", "passage_keys", "positive_keys")


@keras.saving.register_keras_serializable(package="simretro")
class BiEncoder(EncoderMethod):
    """An encoder trained so that a query's vector is closest to those of the passages that answer it.

    Of all passages of a batch the model must tell which one is the query's own (`contrastive_loss`): the others,
    that is the query's hard negatives and all passages of other queries, are its negatives, unless they are known to
    answer the query, too. Under a `tf.distribute` strategy these are the passages of all replicas. The batches of
    `simretro.data.QueryPassages` have what `call` reads. Metrics: `contrastive_loss`, and `contrastive_accuracy`, the
    share of the queries whose own passage is closest.

    Args:
        encoder: `Transformer` with `application="encoder"`, for queries, and for passages if they have none of their
            own.
        tokenizer: of `simretro.tokenizers`; needed for everything but training.
        pooling: "cls", "mean" or "pooler", see `SentenceEncoder`.
        temperature: float > 0. Cosines want a small one (0.01 to 0.05), dot products 1.
        similarity: "cosine" or "dot". Vectors must be compared in search as in training: `encode` normalises them for
            "cosine".
        symmetric: bool; True: also, which of the batch's queries is the passage's own? The loss is the mean of both.
        passage_encoder: `Transformer`, for passages alone; None = one encoder for both.
        projection_size: int, length of the vectors, by a linear layer behind the pooling (one for each encoder); None =
            the encoder's own length.
        query_prefix: str, put before each query by `encode_queries`; it must be that of the training data.
        passage_prefix: str, the same for passages.
        maxlen: int, longest text in tokens, special ones included, for encoding; None = what the positions allow.
        query_maxlen: int, the same for `encode_queries`; None = `maxlen`.
        passage_maxlen: int, the same for `encode_passages`; None = `maxlen`.
    Raises: ValueError if an encoder does not fit or a value is out of range.
    Reference: Karpukhin et al., 2020, https://arxiv.org/abs/2004.04906.
    """

    def __init__(
        self,
        encoder,
        tokenizer=None,
        pooling: str = "cls",
        temperature: float = 0.05,
        similarity: str = "cosine",
        symmetric: bool = False,
        passage_encoder=None,
        projection_size: int | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        maxlen: int | None = None,
        query_maxlen: int | None = None,
        passage_maxlen: int | None = None,
        name: str = "bi_encoder",
    ):
        if not 0 < temperature < float("inf"):
            raise ValueError(f"`temperature` must be positive; received {temperature}.")
        if similarity not in ("cosine", "dot"):
            raise ValueError(f"`similarity` must be 'cosine' or 'dot'; received {similarity!r}.")
        chunk_size = 1  # there are no vocabulary logits
        super().__init__(encoder, tokenizer, maxlen, chunk_size, ("contrastive",), ("contrastive",), name)
        self.pooling = pooling
        self.temperature = temperature
        self.similarity = similarity
        self.symmetric = symmetric
        self.passage_encoder = passage_encoder
        self.projection_size = projection_size
        self.query_prefix = query_prefix
        self.passage_prefix = passage_prefix
        self.query_maxlen = query_maxlen
        self.passage_maxlen = passage_maxlen
        self.projection = self.passage_projection = None
        self._check_encoders()
        if projection_size is not None:
            check_int("projection_size", projection_size, 1)
            self.projection = new_projection(encoder, projection_size)
        if projection_size is not None and passage_encoder is not None:
            self.passage_projection = new_projection(passage_encoder, projection_size, "passage_projection")
        self.built = True  # all variables are there

    def _check_encoders(self):
        for name in ("encoder", "passage_encoder"):
            encoder = getattr(self, name)
            if encoder is None:
                continue
            if encoder.application != "encoder":
                raise ValueError(
                    f"`{name}` must be built with `application='encoder'`; received {encoder.application!r}."
                )
            check_pooling(encoder, self.pooling)
        check_maxlen(self.encoder.config, self.query_maxlen, "query_maxlen")
        check_maxlen(self._tower("passage")[0].config, self.passage_maxlen, "passage_maxlen")
        if self.passage_encoder is None:
            return
        if self.passage_encoder is self.encoder:
            raise ValueError("`passage_encoder` must not be `encoder`: leave it out to have one encoder for both.")
        if self.tokenizer is not None:
            check_vocabulary(self.passage_encoder.config, self.tokenizer)
        sizes = [encoder.config["hidden_size"] for encoder in (self.encoder, self.passage_encoder)]
        if self.projection_size is None and sizes[0] != sizes[1]:
            raise ValueError(
                f"`encoder` and `passage_encoder` give vectors of {sizes[0]} and {sizes[1]} numbers, which cannot be "
                "compared: give a `projection_size`."
            )

    def _tower(self, kind):
        """(encoder, projection) of "query" or "passage"."""
        if kind == "passage" and self.passage_encoder is not None:
            return self.passage_encoder, self.passage_projection
        return self.encoder, self.projection

    # Training

    @property
    def trainable_variables(self):
        """Without the heads of the encoders that the vectors do not go through: the loss has no gradient for them."""
        return self._without_unused(super().trainable_variables)

    @property
    def trainable_weights(self):
        """As `trainable_variables`; some backends of Keras read the one and some the other."""
        return self._without_unused(super().trainable_weights)

    def _without_unused(self, variables):
        unused = set()
        for encoder in filter(None, (self.encoder, self.passage_encoder)):
            heads = (encoder.mlm_head, encoder.pooler if self.pooling != "pooler" else None)
            unused |= {id(variable) for head in heads if head is not None for variable in head.variables}
        return [variable for variable in variables if id(variable) not in unused]

    def call(self, x, training=None):
        """What the loss reads.

        Args:
            x: dict of int32 arrays, see `QueryPassages`: `query_token_ids` (B, L), `passage_token_ids` (B, G, M).
            training: bool.
        Returns: dict of float32 vectors, `queries` (B, D) and `passages` (B, G, D).
        """
        token_ids = _of(x, "passage_token_ids")
        rows = ops.reshape(token_ids, (-1, ops.shape(token_ids)[2]))
        passages = self._vectors("passage", rows, training)
        shape = (-1, ops.shape(token_ids)[1], passages.shape[-1])
        return {
            "queries": self._vectors("query", _of(x, "query_token_ids"), training),
            "passages": ops.reshape(passages, shape),
        }

    def _vectors(self, kind, token_ids, training):
        encoder, projection = self._tower(kind)
        vectors = ops.cast(text_vectors(encoder, token_ids, self.pooling, training), "float32")
        return vectors if projection is None else projection(vectors)

    def normalizers(self, x):
        return {"rows": ops.cast(ops.shape(_of(x, "query_token_ids"))[0], "float32")}

    def additive_loss(self, x, y_pred, normalizers, training):
        loss, accuracy = self._contrastive_loss(x, y_pred["queries"], y_pred["passages"])
        rows = ops.cast(ops.shape(y_pred["queries"])[0], "float32")
        self._track("contrastive", loss, rows, accuracy)
        return loss * rows / normalizers["rows"]

    def _contrastive_loss(self, x, queries, passages):
        positive_keys, passage_keys = _of(x, "positive_keys"), _of(x, "passage_keys")
        all_passages, first = gather_rows(passages)  # (N, G, D): with each query go its passages
        all_keys, _ = gather_rows(passage_keys)
        group_size, width = passages.shape[1:]
        rows = ops.arange(ops.shape(queries)[0], dtype="int32") + first
        loss, accuracy = contrastive_loss(
            queries,
            ops.reshape(all_passages, (-1, width)),
            self.temperature,
            rows * group_size,
            known_positives(positive_keys, ops.reshape(all_keys, (-1,))),
            self.similarity,
        )
        if self.symmetric:
            all_queries, _ = gather_rows(queries)
            all_positive_keys, _ = gather_rows(positive_keys)
            answered = ops.transpose(known_positives(all_positive_keys, passage_keys[:, 0]))  # (B, N)
            back, _ = contrastive_loss(passages[:, 0], all_queries, self.temperature, rows, answered, self.similarity)
            loss = (loss + back) / 2
        return loss, accuracy

    def _check_data(self, name, data):
        super()._check_data(name, data)
        if not isinstance(data, QueryPassages):
            return
        for prefix in ("query_prefix", "passage_prefix"):
            given, own = getattr(data.settings, prefix), getattr(self, prefix)
            if given != own:
                raise ValueError(
                    f"`{name}` has the `{prefix}` {given!r}, but this model, which would put its own before what it "
                    f"encodes, has {own!r}. Give both the same."
                )

    def _check_lengths(self, name, batch):
        for kind in ("query", "passage"):
            encoder, _ = self._tower(kind)
            limit, longest = max_tokens(encoder.config), _of(batch, f"{kind}_token_ids").shape[-1]
            if limit is not None and longest > limit:
                raise ValueError(
                    f"The batches of `{name}` have up to {longest} tokens a {kind}, but the encoder has {limit} "
                    f"positions. Give the data a smaller `{kind}_maxlen`."
                )

    # Use

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder of queries and passages, without prefixes."""
        if self.passage_encoder is not None:
            raise ValueError(
                "This model has an encoder for queries and one for passages: use `encode_queries` and "
                "`encode_passages`, or `query_sentence_encoder` and `passage_sentence_encoder`."
            )
        return self._sentence_encoder("query", self.maxlen)

    @property
    def query_sentence_encoder(self) -> SentenceEncoder:
        """The encoder of queries; it does not put the prefix before them."""
        return self._sentence_encoder("query", self.query_maxlen or self.maxlen)

    @property
    def passage_sentence_encoder(self) -> SentenceEncoder:
        """The encoder of passages; it does not put the prefix before them."""
        return self._sentence_encoder("passage", self.passage_maxlen or self.maxlen)

    def _sentence_encoder(self, kind, maxlen):
        tokenizer = self._tokenizer_for_texts()
        encoder, projection = self._tower(kind)
        return SentenceEncoder(encoder, tokenizer, self.pooling, self.similarity == "cosine", maxlen, projection)

    def encode_queries(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
    ) -> np.ndarray:
        """Vectors of queries, float32 (N, D), for `similarity`; see `SentenceEncoder.encode`."""
        texts = _with_prefix(self.query_prefix, texts)
        return self.query_sentence_encoder.encode(texts, batch_size, normalize, show_progress)

    def encode_passages(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
    ) -> np.ndarray:
        """Vectors of passages, float32 (N, D), for `similarity`; see `SentenceEncoder.encode`."""
        texts = _with_prefix(self.passage_prefix, texts)
        return self.passage_sentence_encoder.encode(texts, batch_size, normalize, show_progress)

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
    ) -> "BiEncoder":
        """Loads what `save_pretrained` wrote, or any encoder to start from.

        An encoder that says how its vectors are made is pooled so, and not as the constructor would have it.

        Args:
            name_or_path: see `simretro.checkpoints.read_checkpoint`.
            revision: of a model on the hub.
            new_parts: ("pooler",) if the checkpoint may lack it: it gets new weights.
            dropout_rate: replaces the dropout rates of the config.
            dtype: Keras dtype policy.
            settings: arguments of the constructor in place of those saved.
        """
        options = {"dropout_rate": dropout_rate, "dtype": dtype}

        def load(**more):
            return load_pretrained(name_or_path, revision=revision, new_parts=new_parts, **options, **more)

        encoder, tokenizer, facts, parts = load()
        said = facts.get("sentence_encoder", {})
        if "other_modules" in said:
            warn(f"{name_or_path}: what {said['other_modules']} did to its vectors is not supported, and left out.")
        saved = {key: said[key] for key in ("pooling", "maxlen") if key in said} | facts.get("bi_encoder", {})
        settings = {**saved, **settings}
        if settings.get("pooling") == "pooler":
            options["with_pool"] = said.get("with_pool") or True
            encoder = load()[0]
        if "passage_encoder" in parts and "passage_encoder" not in settings:
            settings["passage_encoder"] = build_transformer_model(facts["passage_encoder"], **options)
            load_weights(settings["passage_encoder"], parts["passage_encoder"], str(name_or_path))
        model = cls(encoder, tokenizer, **settings)
        for name, projection in model._projections().items():
            if name in parts:
                load_part(projection, parts[name], str(name_or_path))
        return model

    def save_pretrained(self, folder: str | Path, facts: dict | None = None, format: str = "simretro") -> None:
        """Writes a folder that `from_pretrained` reads, only when everything is written in place of an older one.

        Args:
            folder: path.
            facts: JSON values worth knowing of the training; kept by the formats "simretro" and
                "sentence-transformers".
            format: "simretro" holds all there is. "sentence-transformers" (that, transformers and Keras Hub load it)
                holds one encoder with the pooling "cls" or "mean" and no projection; "huggingface" and "tf1" the
                encoder alone.
        Raises: ValueError for an unknown format, or for one that cannot hold the model.
        """
        if format != "simretro" and (self.passage_encoder is not None or self.projection is not None):
            what = "a second encoder" if self.passage_encoder is not None else "a projection"
            raise ValueError(f"`format` must be 'simretro' for a model with {what}; received {format!r}.")
        facts = {**(facts or {}), "bi_encoder": self._settings()}
        if self.tokenizer is not None:
            facts["sentence_encoder"] = self._sentence_encoder("query", self.maxlen).settings()
        parts = {name: export_part(projection) for name, projection in self._projections().items()}
        if self.passage_encoder is not None:
            facts["passage_encoder"] = dict(self.passage_encoder.config)
            parts["passage_encoder"] = export_weights(self.passage_encoder)
        write_folder(folder, self.encoder, self.tokenizer, facts, format, parts)

    def _projections(self):
        found = {name: getattr(self, name) for name in ("projection", "passage_projection")}
        return {name: projection for name, projection in found.items() if projection is not None}

    def _settings(self):
        return {name: getattr(self, name) for name in _SETTINGS}

    def get_config(self):
        """The tokenizer is no part of a `.keras` file: use `save_pretrained` to keep it."""
        encoders = {"encoder": self.encoder, "passage_encoder": self.passage_encoder}
        encoders = {name: keras.saving.serialize_keras_object(encoder) for name, encoder in encoders.items()}
        return {"name": self.name, **encoders, **self._settings()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        encoders = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in ("encoder", "passage_encoder")
        }
        return cls(**{**config, **encoders})


def _of(x, key):
    names = ", ".join(f"`{name}`" for name in _ARRAYS)
    return array_of(x, key, f"batches must be those of `simretro.data.QueryPassages`, with {names}")


def _with_prefix(prefix, texts):
    # One str, and what is no str, are left for the encoder to refuse.
    if not prefix or isinstance(texts, str):
        return texts
    prefixed = (prefix + text if isinstance(text, str) else text for text in texts)
    return list(prefixed) if hasattr(texts, "__len__") else prefixed
