"""BiEncoder: queries and passages as vectors, close where a passage answers a query."""

from collections.abc import Iterable, Sequence

import keras
import numpy as np
from keras import ops

from simretro.arguments import check_int, warn
from simretro.data.query_passages import QueryPassages
from simretro.losses import count_distilled, distillation_loss, group_scores
from simretro.methods.encoder_method import EncoderMethod, array_of
from simretro.methods.query_batch import QueryBatch, checked_sizes
from simretro.models import SentenceEncoder, build_transformer_model, export_weights
from simretro.models.config import check_maxlen, check_vocabulary, max_tokens
from simretro.models.pooling import check_pooling, new_projection, text_vectors
from simretro.models.weights import export_part, load_part, load_weights

_ARRAYS = ("query_token_ids", "passage_token_ids", "passage_keys", "positive_keys")


@keras.saving.register_keras_serializable(package="simretro")
class BiEncoder(EncoderMethod):
    """An encoder trained so that a query's vector is closest to those of the passages that answer it.

    Of all passages of a batch the model must tell which one is the query's own (`contrastive_loss`): the others,
    that is the query's hard negatives and all passages of other queries, are its negatives, unless they are known to
    answer the query, too. Under a `tf.distribute` strategy these are the passages of all replicas. With
    `compile(gradient_cache_rows=...)` a batch may be far larger than memory. The batches of
    `simretro.data.QueryPassages` have what `call` reads.

    Metrics: `contrastive_loss`, and `contrastive_accuracy`, the share of the queries whose own passage is closest; with
    a teacher `distillation_loss`; for each of `matryoshka_sizes` the same of these beginnings, `contrastive_64_loss`
    for instance.

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
        matryoshka_sizes: ints, lengths of the beginnings of the vectors that must do for search, too, when they are cut
            there (and normalised again, for "cosine"). The loss is the mean of theirs and the whole vectors'.
        matryoshka_weights: floats >= 0, what each of `matryoshka_sizes` weighs in that mean, in which the whole vectors
            weigh 1; None = 1 each.
        distillation: "kl" or "margin_mse", see `distillation_loss`: the scores of a query's own passages are to be
            those of a teacher, the batches' `teacher_scores`; None = no teacher.
        distillation_weight: float in (0, 1], share of the distillation in the loss; the rest is the contrastive loss's.
        teacher_temperature: float > 0, what the teacher's scores are divided by, as the model's by `temperature`.
    Raises: ValueError if an encoder does not fit or a value is out of range.
    Reference: Karpukhin et al., 2020, https://arxiv.org/abs/2004.04906; matryoshka_sizes: Kusupati et al., 2022,
        https://arxiv.org/abs/2205.13147; distillation: see `simretro.losses.distillation_loss`.
    """

    facts_name = "bi_encoder"
    settings_names = (
        *("pooling", "temperature", "similarity", "symmetric", "projection_size", "query_prefix", "passage_prefix"),
        *("maxlen", "query_maxlen", "passage_maxlen", "matryoshka_sizes", "matryoshka_weights"),
        *("distillation", "distillation_weight", "teacher_temperature"),
    )
    in_batch_negatives = True

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
        matryoshka_sizes: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        distillation: str | None = None,
        distillation_weight: float = 0.5,
        teacher_temperature: float = 1.0,
        name: str = "bi_encoder",
    ):
        for argument, value in {"temperature": temperature, "teacher_temperature": teacher_temperature}.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"`{argument}` must be positive; received {value}.")
        if similarity not in ("cosine", "dot"):
            raise ValueError(f"`similarity` must be 'cosine' or 'dot'; received {similarity!r}.")
        if distillation not in ("kl", "margin_mse", None):
            raise ValueError(f"`distillation` must be 'kl', 'margin_mse' or None; received {distillation!r}.")
        if not 0 < distillation_weight <= 1:
            raise ValueError(f"`distillation_weight` must be in (0, 1]; received {distillation_weight}.")
        matryoshka_sizes, matryoshka_weights = checked_sizes(
            projection_size or encoder.config["hidden_size"], matryoshka_sizes, matryoshka_weights
        )
        contrastive, distilled = (
            [_named(kind, size) for size in (None, *(matryoshka_sizes or ()))]
            for kind in ("contrastive", "distillation")
        )
        losses = contrastive if distillation is None else contrastive + distilled
        chunk_size = 1  # there are no vocabulary logits
        super().__init__(encoder, tokenizer, maxlen, chunk_size, losses, contrastive, name)
        self.matryoshka_sizes = matryoshka_sizes
        self.matryoshka_weights = matryoshka_weights
        self.distillation = distillation
        self.distillation_weight = distillation_weight
        self.teacher_temperature = teacher_temperature
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

    def _encoders(self):
        return [encoder for encoder in (self.encoder, self.passage_encoder) if encoder is not None]

    def _encoder_of(self, key):
        return self._tower(key.partition("_")[0])[0]

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
        counts = {"rows": ops.cast(ops.shape(_of(x, "query_token_ids"))[0], "float32")}
        if self.distillation is not None:
            counts["distilled"] = count_distilled(_teacher_scores(x), self.distillation)
        return counts

    def additive_loss(self, x, y_pred, normalizers, training):
        keys = _of(x, "positive_keys"), _of(x, "passage_keys")
        batch = QueryBatch(y_pred["queries"], y_pred["passages"], *keys, self.symmetric)
        sizes = [(None, 1.0), *zip(self.matryoshka_sizes or (), self.matryoshka_weights or (), strict=True)]
        total, weights = ops.zeros((), "float32"), sum(weight for _, weight in sizes)
        for size, weight in sizes:
            loss, accuracy = batch.contrastive_loss(size, self.temperature, self.similarity)
            self._track(_named("contrastive", size), loss, batch.num_rows, accuracy)
            loss = loss * batch.num_rows / normalizers["rows"]
            if self.distillation is not None:
                distilled = self._distillation_loss(x, batch, size, normalizers["distilled"])
                loss = self.distillation_weight * distilled + (1 - self.distillation_weight) * loss
            total += loss * (weight / weights)
        return total

    def _distillation_loss(self, x, batch, size, normalizer):
        scores, teacher = group_scores(*batch.beginnings(size), self.temperature, self.similarity), _teacher_scores(x)
        loss = distillation_loss(scores, teacher, self.distillation, self.teacher_temperature, normalizer)
        count = count_distilled(teacher, self.distillation)
        self._track(_named("distillation", size), loss * normalizer / ops.maximum(count, 1.0), count)
        return loss

    def _check_batch(self, name, batch):
        if "teacher_scores" in batch and self.distillation is None:
            raise ValueError(
                f"`{name}` has a teacher's scores (`with_scores`), but `distillation` is None: nothing would learn "
                "from them."
            )

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
        normalize = self.similarity == "cosine"
        return SentenceEncoder(encoder, tokenizer, self.pooling, normalize, maxlen, projection, self.engine)

    def encode_queries(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
        engine: str | None = None,
    ) -> np.ndarray:
        """Vectors of queries, float32 (N, D), for `similarity`; see `SentenceEncoder.encode`."""
        texts = _with_prefix(self.query_prefix, texts)
        return self.query_sentence_encoder.encode(texts, batch_size, normalize, show_progress, engine)

    def encode_passages(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
        engine: str | None = None,
    ) -> np.ndarray:
        """Vectors of passages, float32 (N, D), for `similarity`; see `SentenceEncoder.encode`."""
        texts = _with_prefix(self.passage_prefix, texts)
        return self.passage_sentence_encoder.encode(texts, batch_size, normalize, show_progress, engine)

    # Files

    @classmethod
    def _saved_settings(cls, facts):
        """An encoder that says how its vectors are made is used so, and not as the constructor would have it."""
        said, settings = facts.get("sentence_encoder", {}), super()._saved_settings(facts)
        found = {key: said[key] for key in ("pooling", "maxlen") if key in said}
        if said.get("similarity") in ("cosine", "dot"):
            found["similarity"] = said["similarity"]
        prompts, default = said.get("prompts", {}), said.get("default_prompt", "")
        found["query_prefix"] = prompts.get("query", default)
        found["passage_prefix"] = prompts.get("document", prompts.get("passage", default))
        return found | settings

    @classmethod
    def _still_valid(cls, saved, settings):
        """Weights of other lengths are not those of new ones."""
        return {k: v for k, v in saved.items() if k != "matryoshka_weights" or "matryoshka_sizes" not in settings}

    @classmethod
    def _encoder_options(cls, facts, settings):
        if settings.get("pooling") != "pooler":
            return cls.encoder_options
        return {**cls.encoder_options, "with_pool": facts.get("sentence_encoder", {}).get("with_pool") or True}

    @classmethod
    def _loaded_arguments(cls, parts, facts, settings, options, source):
        said = facts.get("sentence_encoder", {})
        if "other_modules" in said:
            warn(f"{source}: what {said['other_modules']} did to its vectors is not supported, and left out.")
        arguments = {}
        if "projection" in parts and "projection_size" not in settings:  # a folder of another library's
            arguments["projection_size"] = parts["projection"]["kernel"].shape[1]
        if "passage_encoder" not in parts or "passage_encoder" in settings:
            return arguments
        encoder = build_transformer_model(facts["passage_encoder"], **options, **cls._encoder_options(facts, settings))
        load_weights(encoder, parts["passage_encoder"], source)
        return arguments | {"passage_encoder": encoder}

    def _load_parts(self, parts, saved, source):
        for name, projection in self._projections().items():
            if name in parts:
                load_part(projection, parts[name], source)

    def _check_format(self, format):
        if format != "simretro" and (self.passage_encoder is not None or self.projection is not None):
            what = "a second encoder" if self.passage_encoder is not None else "a projection"
            raise ValueError(f"`format` must be 'simretro' for a model with {what}; received {format!r}.")

    def _facts(self):
        facts = super()._facts()
        if self.passage_encoder is not None:
            facts["passage_encoder"] = dict(self.passage_encoder.config)
        if "sentence_encoder" in facts:
            prompts = {"query": self.query_prefix, "document": self.passage_prefix}
            facts["sentence_encoder"] |= {"prompts": prompts, "similarity": self.similarity}
        return facts

    def _main_sentence_encoder(self):
        return self._sentence_encoder("query", self.maxlen)

    def _kept_parts(self):
        parts = {name: export_part(projection) for name, projection in self._projections().items()}
        if self.passage_encoder is not None:
            parts["passage_encoder"] = export_weights(self.passage_encoder)
        return parts

    def _projections(self):
        found = {name: getattr(self, name) for name in ("projection", "passage_projection")}
        return {name: projection for name, projection in found.items() if projection is not None}

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


def _named(kind, size):
    return kind if size is None else f"{kind}_{size}"


def _teacher_scores(x):
    return array_of(x, "teacher_scores", "`distillation` needs data with `with_scores=True`")


def _of(x, key):
    names = ", ".join(f"`{name}`" for name in _ARRAYS)
    return array_of(x, key, f"batches must be those of `simretro.data.QueryPassages`, with {names}")


def _with_prefix(prefix, texts):
    # One str, and what is no str, are left for the encoder to refuse.
    if not prefix or isinstance(texts, str):
        return texts
    prefixed = (prefix + text if isinstance(text, str) else text for text in texts)
    return list(prefixed) if hasattr(texts, "__len__") else prefixed
