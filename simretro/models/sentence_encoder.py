"""What every method leaves behind: texts in, vectors out."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from simretro.arguments import check_int, plain, warn
from simretro.arrays import unit_rows
from simretro.checkpoints import Checkpoint, read_checkpoint
from simretro.checkpoints.read import local_folder
from simretro.files import read_whole
from simretro.models.builder import build_transformer_model, with_tokenizer
from simretro.models.compiled import compiled
from simretro.models.config import check_maxlen, check_vocabulary, max_tokens
from simretro.models.engines import KERAS, check_engine, engine_of
from simretro.models.folders import write_folder
from simretro.models.pooling import check_pooling, new_projection, text_vectors
from simretro.models.transformer import Transformer
from simretro.models.weights import export_part, export_weights, load_part, load_weights, named_variables
from simretro.ops import unit_vectors
from simretro.tokenizers import TruncationWarning
from simretro.tokenizers.rows import round_up

# What vectors depend on beside the weights.
_CONFIG_OF_VECTORS = ("hidden_act", "num_attention_heads", "layer_norm_eps", "position_embedding_type")
_CONFIG_OF_VECTORS += ("position_offset", "pad_token_id")
_LENGTH_MULTIPLE = 8
_WINDOW = 16_384  # texts that are tokenised and sorted together
_LONG_INPUT = 2_000  # texts from which a progress bar is shown
_TOKENS_PER_TEXT = 64  # `batch_size` counts texts of this length
_MOST_ENGINE_TOKENS = 512  # of a batch on an engine: what a block computes of them stays in the processor's caches


class SentenceEncoder:
    """Encodes sentences with a Keras encoder.

    Args:
        encoder: `Transformer`; with `pooling="pooler"` it needs `with_pool`.
        tokenizer: of `simretro.tokenizers`.
        pooling: "cls" (first token), "mean" (over the tokens of a text) or "pooler" (dense layer on the first token).
        normalize: bool, whether vectors have length 1 unless `encode` is told otherwise.
        maxlen: int, longest text in tokens, the special ones included; None = as many as the encoder has
            positions for.
        projection: linear layer to shorter vectors, see `new_projection`; None = the encoder's own.
        engine: what computes, unless `encode` is told otherwise: "keras", or, on a CPU, "onnx" (ONNX Runtime),
            "openvino" (both give the vectors of Keras, in less time) or "openvino-int8" (faster still where the
            processor multiplies 8-bit numbers, with AVX-512 VNNI for instance, and a little different).
        frozen: bool, a promise that the weights will not change any more. Else an engine other than "keras" looks at
            them before it computes, which takes a sixth of the time of a short query.
    Raises: ValueError for a pooling that the encoder cannot give, a `maxlen` beyond the position table, or an `engine`
        that is unknown.
    """

    def __init__(
        self,
        encoder,
        tokenizer,
        pooling: str = "cls",
        normalize: bool = True,
        maxlen: int | None = None,
        projection: keras.layers.Dense | None = None,
        engine: str = KERAS,
        frozen: bool = False,
    ):
        check_engine(engine)
        check_pooling(encoder, pooling)
        check_vocabulary(encoder.config, tokenizer)
        check_maxlen(encoder.config, maxlen)
        limit = max_tokens(encoder.config)
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalize = normalize
        self.projection = projection
        self.engine = engine
        self._engines = {} if frozen else None  # those that need not look at the weights again
        # A rotary model has no limit, but the work grows with the square of the length.
        self.maxlen = plain(maxlen) or limit or encoder.config["max_position_embeddings"]

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, revision: str | None = None, **overrides) -> "SentenceEncoder":
        """Loads a folder of any known format, or a model of the Hugging Face hub.

        Args:
            name_or_path: see `simretro.checkpoints.read_checkpoint`.
            revision: of a model on the hub.
            overrides: `pooling`, `normalize`, `maxlen` in place of what the folder says; `engine`, `frozen`.
        Raises: ValueError if the folder's vectors come from stages that simretro does not have.
        """

        def read():  # the tokenizer's files are of the same save as the weights
            return cls.from_checkpoint(read_checkpoint(name_or_path, revision=revision), **overrides)

        return read_whole(local_folder(name_or_path), read)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **overrides) -> "SentenceEncoder":
        """As `from_pretrained`, of a checkpoint that is already read."""
        extras = checkpoint.extras
        if extras.get("other_modules"):
            raise ValueError(
                f"{checkpoint.source}: its vectors need {extras['other_modules']}, which is not supported."
            )
        if "passage_encoder" in checkpoint.parts:
            raise ValueError(
                f"{checkpoint.source} holds two encoders, one for queries and one for passages: use "
                "`BiEncoder.from_pretrained`."
            )
        if checkpoint.tokenizer_folder is None:
            raise ValueError(f"{checkpoint.source}: no tokenizer files lie beside it.")
        checkpoint, tokenizer = with_tokenizer(checkpoint)
        extras = checkpoint.extras
        if prompt := extras.get("default_prompt"):
            warn(
                f"{checkpoint.source}: sentence-transformers puts {prompt!r} before each text; here nothing is added. "
                "Put it there, or use a `BiEncoder` with prefixes."
            )
        said = {**extras.get("facts", {}).get("sentence_encoder", {}), **extras}
        settings = {key: said[key] for key in ("pooling", "normalize", "maxlen") if key in said} | overrides
        with_pool = said.get("with_pool", True) if settings.get("pooling") == "pooler" else False
        encoder = build_transformer_model(checkpoint=checkpoint, with_pool=with_pool)
        if weights := checkpoint.parts.get("projection"):
            settings["projection"] = new_projection(encoder, weights["kernel"].shape[1])
            load_part(settings["projection"], weights, checkpoint.source)
        return cls(encoder, tokenizer, **settings)

    def at_layer(self, layer: int, pooling: str = "mean") -> "SentenceEncoder":
        """An encoder that reads the states behind an inner layer: for Tatoeba CCP takes the mean of layer 14 of 24.

        It consists of copies of the first layers, as they are now; what is behind them, a projection included, is left
        out. So it can be saved, exported and run by every engine.

        Args:
            layer: int in [1, `num_hidden_layers`]; layer 1 is the first one behind the embeddings.
            pooling: "cls" or "mean".
        Returns: SentenceEncoder that normalises, cuts and computes as this one does.
        Raises: ValueError for a layer that the encoder does not have, or another pooling.
        """
        num_layers = self.encoder.config["num_hidden_layers"]
        if check_int("layer", layer, 1) > num_layers:
            raise ValueError(f"`layer` must be at most {num_layers}, the layers of the encoder; received {layer}.")
        config = {**self.encoder.config, "num_hidden_layers": layer}
        encoder = Transformer(config, self.encoder.application, dtype=self.encoder.policy)
        weights = export_weights(self.encoder)
        load_weights(encoder, {name: weights[name] for name in named_variables(encoder)}, "the encoder")
        return SentenceEncoder(encoder, self.tokenizer, pooling, self.normalize, self.maxlen, engine=self.engine)

    def save_pretrained(self, folder: str | Path, facts: dict | None = None) -> None:
        """Writes simretro's own folder: config, weights, tokenizer, and how vectors are made.

        Args:
            folder: replaced as a whole, only when everything is written.
            facts: JSON values worth knowing of the training.
        """
        facts = {**(facts or {}), "sentence_encoder": self.settings()}
        parts = {} if self.projection is None else {"projection": export_part(self.projection)}
        write_folder(folder, self.encoder, self.tokenizer, facts, parts=parts)

    def settings(self) -> dict:
        """How vectors are made, as `from_pretrained` reads it back."""
        settings = {"pooling": self.pooling, "normalize": self.normalize, "maxlen": self.maxlen}
        return settings | {"with_pool": self.encoder.with_pool}

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.encoder.config["hidden_size"] if self.projection is None else self.projection.units

    def fingerprint(self) -> str:
        """Hash of everything that a vector depends on: weights, tokenizer, pooling, longest text."""
        said = [self.pooling, self.maxlen, self.encoder.with_pool, self.encoder.application == "lm"]
        said += [self.encoder.config[key] for key in _CONFIG_OF_VECTORS]
        digest = hashlib.sha256(json.dumps(said).encode())
        digest.update(self.tokenizer.fingerprint().encode())
        for name, variable in sorted(named_variables(self.encoder).items()):
            if not name.startswith("mlm_head/"):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(ops.convert_to_numpy(ops.cast(variable, "float32"))))
        if self.projection is not None:
            digest.update(np.ascontiguousarray(ops.convert_to_numpy(self.projection.kernel)))
        return digest.hexdigest()[:16]

    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        normalize: bool | None = None,
        show_progress: bool | None = None,
        engine: str | None = None,
    ) -> np.ndarray:
        """Encodes texts.

        Texts are tokenised in bulk, sorted by length inside windows and run in batches of like length; an iterator is
        read a window at a time.

        Args:
            texts: iterable of str (a single str is an error: it would be read letter by letter).
            batch_size: int, texts of 64 tokens in a batch; of shorter texts a batch holds more, of longer ones fewer.
            normalize: bool, vectors of length 1; None = as the encoder was made.
            show_progress: bool; None = for lists of 2,000 texts or more.
            engine: str, what computes, see the constructor; None = as the encoder was made. It is made ready on the
                first call, and, unless the encoder is `frozen`, again when the weights have changed.
        Returns: float32 (N, `dimension`), in the order of the texts; (0, `dimension`) for none.
        Raises:
            TypeError: if `texts` is a str or holds anything else.
            ValueError: if `batch_size` is below 1, or the engine is unknown.
            ImportError: without the packages of the engine.
        """
        if isinstance(texts, str):
            raise TypeError("`texts` must be a list of str; received one str. Write `encode([text])`.")
        batch_size = check_int("batch_size", batch_size, 1)
        normalize = self.normalize if normalize is None else normalize
        engine = self.engine if engine is None else engine
        check_engine(engine)
        run = self._runner(engine, batch_size, normalize)
        total = len(texts) if hasattr(texts, "__len__") else None
        if show_progress is None:
            show_progress = total is not None and total >= _LONG_INPUT
        progress = keras.utils.Progbar(total, unit_name="text") if show_progress and total != 0 else None
        windows, done, cut = [], 0, []
        for window in _windows(texts):
            vectors = np.empty((len(window), self.dimension), "float32")
            for chosen, batch_vectors in self._encode_window(window, run, cut):
                vectors[chosen] = batch_vectors
                done += len(chosen)
                if progress:
                    progress.update(done, finalize=False)
            windows.append(vectors)
        if progress:
            progress.update(done, finalize=True)
        if cut:
            TruncationWarning.teller(self.maxlen, done)(*np.sum(cut, axis=0))
        return np.concatenate(windows) if windows else np.zeros((0, self.dimension), "float32")

    def _encode_window(self, texts, run, cut):
        token_ids, _ = self.tokenizer.encode_batch(
            texts, maxlen=self.maxlen, on_truncation=lambda *counts: cut.append(counts)
        )
        pad = self.tokenizer.pad_token_id
        lengths = token_ids.shape[1] - np.argmax(token_ids[:, ::-1] != pad, axis=1)
        parts = list(batches_by_length(lengths, run.tokens_per_batch, run.length_multiple))
        batches = (self._padded(token_ids[chosen, :width], width) for chosen, width in parts)
        for (chosen, _), vectors in zip(parts, run.vectors(batches), strict=True):
            yield chosen, vectors

    def _padded(self, token_ids, width):
        width = min(width, self.maxlen or width)  # the rounding must not leave the position table
        batch = np.full((len(token_ids), width), self.tokenizer.pad_token_id, "int32")
        batch[:, : token_ids.shape[1]] = token_ids[:, :width]
        return batch

    def _runner(self, engine, batch_size, normalize):
        tokens = batch_size * _TOKENS_PER_TEXT
        if engine != KERAS:
            compute = self._engine(engine).vectors
            vectors = (lambda batches: map(unit_rows, compute(batches))) if normalize else compute
            return _Runner(vectors, min(tokens, _MOST_ENGINE_TOKENS), 1)
        at_once = normalize and self.projection is None
        key = ("encode", self.pooling, at_once)
        function = compiled(self.encoder, key, lambda: self._function(at_once), any_shape=True)
        # A projection in NumPy: the compiled function is the encoder's, and knows the encoder's weights only.
        kernel = None if self.projection is None else ops.convert_to_numpy(self.projection.kernel)

        def vectors_of(batch):
            vectors = ops.convert_to_numpy(function(batch))
            vectors = vectors if kernel is None else vectors @ kernel
            return unit_rows(vectors) if normalize and not at_once else vectors

        return _Runner(lambda batches: map(vectors_of, batches), tokens)

    def _engine(self, name):
        engines = {} if self._engines is None else self._engines
        if name not in engines:
            engines[name] = engine_of(name, self.encoder, self.pooling, self.projection)
        return engines[name]

    def _function(self, normalize):
        encoder, pooling = self.encoder, self.pooling

        def function(token_ids):
            vectors = text_vectors(encoder, token_ids, pooling)
            return unit_vectors(vectors) if normalize else ops.cast(vectors, "float32")

        return function


class _Runner(NamedTuple):
    """How batches are computed."""

    vectors: Callable[[Iterable[np.ndarray]], Iterator[np.ndarray]]  # int32 (B, L) each -> float32 (B, D) each
    tokens_per_batch: int
    length_multiple: int = _LENGTH_MULTIPLE  # each length is another graph to Keras


def batches_by_length(
    lengths: np.ndarray, tokens_per_batch: int, multiple: int = _LENGTH_MULTIPLE
) -> Iterator[tuple[np.ndarray, int]]:
    """Cuts texts into batches of like length and about the same number of tokens, longest first.

    Args:
        lengths: int (N,).
        tokens_per_batch: int.
        multiple: int, of which the common width is one.
    Yields: (indices of the texts, common width).
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = round_up(lengths[order[start]], multiple)
        stop = start + max(1, tokens_per_batch // width)
        yield order[start:stop], width
        start = stop


def _windows(texts):
    iterator = iter(texts)
    while window := list(itertools.islice(iterator, _WINDOW)):
        yield window
