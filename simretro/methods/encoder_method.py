"""What methods share that train a `Transformer` with vocabulary losses: the losses, their metrics, checks of data."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from simretro.arguments import check_int, plain
from simretro.data.epochs import EpochDataset
from simretro.losses import fused_cross_entropy
from simretro.models import SentenceEncoder, load_pretrained, write_folder
from simretro.models.config import check_maxlen, check_vocabulary, max_tokens
from simretro.models.engines import KERAS, check_engine
from simretro.training.state import build_optimizer_variables
from simretro.training.train_step import AdditiveLossModel

_TOKEN_ARRAYS = {f"{kind}token_ids" for kind in ("", "encoder_", "decoder_", "query_", "passage_")}
_TOKEN_ARRAYS |= {"target_ids", "masked_ids", "decoder_ids"}


class EncoderMethod(AdditiveLossModel):
    """A method that trains `encoder` and leaves it behind.

    A subclass says which losses it has, and defines `call`, `normalizers`, `additive_loss`, `sentence_encoder` and the
    names below; what it trains beside the encoder it hands over in `_kept_parts` and takes back in `_load_parts`.

    Class attributes:
        facts_name: str, under which a folder keeps the settings.
        encoder_options: dict, what `build_transformer_model` must be told for this method.
        settings_names: names of the constructor's arguments that a folder keeps.
        folder_format: str, what `save_pretrained` writes unless it is told otherwise.
        texts_per_row: int, for messages.

    Args:
        encoder: `Transformer`.
        tokenizer: of `simretro.tokenizers`, or None.
        maxlen: int, longest sentence in tokens, special ones included, for encoding; None = what the positions allow.
        chunk_size: int, positions whose vocabulary logits exist at a time.
        losses: names of the losses, each of which has a metric.
        accuracies: names of those that have an accuracy, too.
    """

    facts_name = ""
    encoder_options: ClassVar[dict] = {}
    settings_names: ClassVar[tuple[str, ...]] = ()
    folder_format = "simretro"
    texts_per_row = 1

    def __init__(self, encoder, tokenizer, maxlen, chunk_size, losses, accuracies, name):
        super().__init__(name=name)
        if tokenizer is not None:
            check_vocabulary(encoder.config, tokenizer)
        check_maxlen(encoder.config, maxlen)
        check_int("chunk_size", chunk_size, 1)
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.maxlen = maxlen
        self.chunk_size = chunk_size
        self._engine = KERAS
        self._loss_means = {name: keras.metrics.Mean(f"{name}_loss") for name in losses}
        self._accuracy_means = {name: keras.metrics.Mean(f"{name}_accuracy") for name in accuracies}

    # Training

    def compile(self, optimizer="rmsprop", *args, auto_scale_loss: bool = True, **kwargs):
        """As `AdditiveLossModel.compile`.

        Keras scales the loss for "mixed_float16" by the policy of the method, which may be another than the
        encoder's; here the encoder's counts, too. Without scaling, small gradients are zero in float16.
        """
        if auto_scale_loss and any(encoder.policy.name == "mixed_float16" for encoder in self._encoders()):
            optimizer = keras.optimizers.get(optimizer)
            if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        super().compile(optimizer, *args, auto_scale_loss=auto_scale_loss, **kwargs)

    def fit(self, x=None, *args, validation_data=None, **kwargs):
        """As `AdditiveLossModel.fit`. Data that do not fit the model are refused before the first step."""
        self._check_data("x", x)
        self._check_data("validation_data", validation_data)
        return super().fit(x, *args, validation_data=validation_data, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """As `keras.Model.evaluate`. Data that do not fit the model are refused."""
        self._check_data("x", x)
        return super().evaluate(x, *args, **kwargs)

    def _check_data(self, name, data):
        if isinstance(data, EpochDataset):
            if self.tokenizer is not None and not data.is_of(self.tokenizer):
                raise ValueError(
                    f"`{name}` was made with another tokenizer than this model's: its ids mean other tokens. Make it "
                    f"with `{self.name}.tokenizer`."
                )
            data = data.batch(0, 0)  # the longest of all
        if not isinstance(data, dict) or not all(isinstance(array, np.ndarray) for array in data.values()):
            return
        self._check_lengths(name, data)
        self._check_ids(name, data)
        self._check_batch(name, data)

    def _check_ids(self, name, batch):
        """On a GPU, TensorFlow reads zeros for an id that is too large, without a word."""
        for key in _TOKEN_ARRAYS & batch.keys():
            size = self._encoder_of(key).config["vocab_size"]
            largest = batch[key].max(initial=0)
            if largest >= size:
                raise ValueError(
                    f"`{key}` of `{name}` must be below {size}, the vocabulary's size; received {largest}. Was it made "
                    "with the tokenizer of this model?"
                )

    def _encoders(self):
        """All encoders that are trained; for subclasses that have a second one."""
        return [self.encoder]

    def _encoder_of(self, key):
        """The encoder that reads an array of token ids; for subclasses that have a second one."""
        return self.encoder

    def _check_lengths(self, name, batch):
        if "token_ids" not in batch:
            return  # named when it is read
        limit, longest = max_tokens(self.encoder.config), batch["token_ids"].shape[1]
        if limit is not None and longest > limit:
            raise ValueError(
                f"The batches of `{name}` have up to {longest} tokens a row, but the encoder has {limit} positions. "
                f"Give the data a smaller `maxlen`: a row holds {self.texts_per_row} of its texts, and is padded to a "
                "multiple of `length_multiple`."
            )

    def _check_batch(self, name, batch):
        """Raises ValueError for a batch that the losses do not fit; for subclasses."""

    def _vocabulary_loss(self, name, transformed, labels, normalizers, training):
        """Cross-entropy of hidden states (..., E) in the space of the token table; labels (...), negative = ignored."""
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
        count = count_labels(labels)
        safe = ops.maximum(count, 1.0)
        self._track(name, loss * normalizers[name] / safe, count, num_correct / safe)
        return loss

    def _track(self, name, loss, weight, accuracy=None):
        self._loss_means[name].update_state(ops.stop_gradient(loss), sample_weight=weight)
        if accuracy is not None:
            self._accuracy_means[name].update_state(accuracy, sample_weight=weight)

    # Use

    @property
    def engine(self) -> str:
        """What computes vectors unless `encode` is told otherwise, see `SentenceEncoder`; training is Keras' alone."""
        return self._engine

    @engine.setter
    def engine(self, engine: str):
        check_engine(engine)
        self._engine = engine

    def _pretrained_encoder(self, pooling, normalize=True) -> SentenceEncoder:
        tokenizer = self._tokenizer_for_texts()
        return SentenceEncoder(self.encoder, tokenizer, pooling, normalize, self.maxlen, engine=self.engine)

    def _tokenizer_for_texts(self):
        if self.tokenizer is None:
            raise ValueError(
                f"This {type(self).__name__} has no tokenizer. Set `{self.name}.tokenizer`, or pass it when "
                "constructing."
            )
        return self.tokenizer

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """What the method leaves behind."""
        raise NotImplementedError

    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
        engine: str | None = None,
    ) -> np.ndarray:
        """Sentence vectors, float32 (N, H); see `SentenceEncoder.encode`."""
        return self.sentence_encoder.encode(texts, batch_size, normalize, show_progress, engine)

    # Files

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        revision: str | None = None,
        new_parts: tuple[str, ...] = (),
        dropout_rate: float | None = None,
        recompute: bool = False,
        dtype: str | None = None,
        **settings,
    ):
        """Loads what `save_pretrained` wrote, all parts included, or any encoder to start from.

        Args:
            name_or_path: see `simretro.checkpoints.read_checkpoint`. A part of the method's own that is not there, a
                decoder for instance, gets new weights.
            revision: of a model on the hub.
            new_parts: names among "pooler" and "mlm_head" that the checkpoint may lack; they get new weights, to be
                trained.
            dropout_rate: replaces the dropout rates of the config.
            recompute: bool; True trains with less memory and a third more work, see `TransformerBlock`.
            dtype: Keras dtype policy.
            settings: arguments of the constructor in place of those saved.
        Raises: ValueError if a saved part is of another kind than `settings` ask for.
        """
        options = {"dropout_rate": dropout_rate, "recompute": recompute, "dtype": dtype}
        load = partial(load_pretrained, name_or_path, revision=revision, new_parts=new_parts, **options)
        encoder, tokenizer, facts, parts = load(**cls.encoder_options)
        source, saved = str(name_or_path), cls._saved_settings(facts)
        settings = {**cls._still_valid(saved, settings), **settings}
        encoder_options = cls._encoder_options(facts, settings)
        if encoder_options != cls.encoder_options:
            encoder = load(**encoder_options)[0]
        arguments = cls._loaded_arguments(parts, facts, settings, options, source)
        method = cls(encoder, tokenizer, **{**arguments, **settings})
        method._load_parts(parts, saved, source)
        return method

    @classmethod
    def _saved_settings(cls, facts: dict) -> dict:
        """Settings that a folder's facts hold."""
        return facts.get(cls.facts_name, {})

    @classmethod
    def _still_valid(cls, saved: dict, settings: dict) -> dict:
        """The saved settings without those that are about what `settings` replace."""
        return saved

    @classmethod
    def _encoder_options(cls, facts: dict, settings: dict) -> dict:
        """What `build_transformer_model` must be told for a method of these settings."""
        return cls.encoder_options

    @classmethod
    def _loaded_arguments(cls, parts: dict, facts: dict, settings: dict, options: dict, source: str) -> dict:
        """Arguments of the constructor that are models: built with `options`, and loaded from `parts`."""
        return {}

    def save_pretrained(self, folder: str | Path, facts: dict | None = None, format: str | None = None) -> None:
        """Writes a folder that `from_pretrained` reads, only when everything is written in place of an older one.

        Args:
            folder: path.
            facts: JSON values worth knowing of the training; kept by the formats "simretro" and
                "sentence-transformers".
            format: "simretro", "sentence-transformers" (that, transformers and Keras Hub load it, too), or, with the
                encoder alone, "huggingface" (transformers loads it) or "tf1" (bert4keras loads it). None =
                `folder_format` of the class.
        Raises: ValueError for an unknown format, or one that cannot hold the model.
        """
        format = format or self.folder_format
        self._check_format(format)
        write_folder(
            folder, self.encoder, self.tokenizer, {**(facts or {}), **self._facts()}, format, self._kept_parts()
        )

    def _check_format(self, format: str) -> None:
        """Raises ValueError for a format that cannot hold the model; for subclasses."""

    def _facts(self) -> dict:
        """JSON values that the method reads when it is loaded, and how `encode` makes its vectors."""
        facts = {self.facts_name: self._settings()}
        if self.tokenizer is not None:
            facts["sentence_encoder"] = self._main_sentence_encoder().settings()
        return facts

    def _main_sentence_encoder(self) -> SentenceEncoder:
        """What a folder is, when it is opened as a `SentenceEncoder`."""
        return self.sentence_encoder

    def _kept_parts(self) -> dict[str, dict[str, np.ndarray]]:
        """{name: {name: array}} of what is trained beside the encoder and must be kept to go on."""
        return {}

    def _load_parts(self, parts: dict[str, dict[str, np.ndarray]], saved: dict, source: str) -> None:
        """Takes back what `_kept_parts` gave; `saved` are the settings it was saved with."""

    def _refuse_other_kind(self, part, names, saved, source):
        """Raises ValueError if one of the settings `names`, on which a saved part depends, is another now."""
        different = [name for name in names if name in saved and saved[name] != getattr(self, name)]
        if different:
            raise ValueError(
                f"{source} holds a {part} of another kind: "
                + ", ".join(f"`{name}` is {saved[name]!r} there" for name in different)
                + ". Leave that as it is there; or take the encoder alone, `build_transformer_model(checkpoint=...)`."
            )

    def _settings(self):
        return {name: plain(getattr(self, name)) for name in self.settings_names}

    def get_config(self):
        """The tokenizer is no part of a `.keras` file: use `save_pretrained` to keep it."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"name": self.name, "encoder": encoder, "chunk_size": self.chunk_size, **self._settings()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects=custom_objects)
        return cls(**{**config, "encoder": encoder})

    def __reduce__(self):
        """For `pickle` and `copy.deepcopy`, which go through a `.keras` file: the tokenizer goes beside it."""
        if self.compiled and self.optimizer is not None:
            build_optimizer_variables(self)  # Keras does not read back an optimizer that has none yet
        return _with_tokenizer, (*super().__reduce__(), self.tokenizer)


def _with_tokenizer(make, arguments, tokenizer):
    method = make(*arguments)
    method.tokenizer = tokenizer
    return method


def array_of(x, key, advice):
    """`x[key]`; raises ValueError with the advice where the batch lacks it."""
    if key not in x:
        raise ValueError(f"The batch lacks `{key}`: {advice}. It has {', '.join(f'`{name}`' for name in x)}.")
    return x[key]


def said_pooling(facts: dict, choices) -> dict:
    """`{"pooling": ...}` if a folder's facts say how vectors are pooled and it is one of `choices`, else `{}`."""
    pooling = facts.get("sentence_encoder", {}).get("pooling")
    return {"pooling": pooling} if pooling in choices else {}


def count_labels(labels):
    """How many labels are not ignored, float32 scalar."""
    return ops.sum(ops.cast(labels >= 0, "float32"))
