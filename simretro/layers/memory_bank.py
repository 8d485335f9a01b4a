"""The vectors of past batches, as further negatives."""

import keras
from keras import ops

from simretro.ops import unit_vectors

_KINDS = ("per_language", "tagged", "shared")


@keras.saving.register_keras_serializable(package="simretro")
class MemoryBank(keras.layers.Layer):
    """First in, first out: the last `bank_size` vectors, by language, with the documents they are from.

    Read it for the loss (the call), and write to it when the loss is computed (`enqueue`). Slots that were never
    written are not visible: an empty bank is none at all. Gradients do not flow into it.

    - "per_language": a ring of `bank_size` for each language. A batch has one language; where it has several, only
      the rows of one of them see its ring, and all are written to their own.
    - "tagged": one ring for all; a row sees what is of its own language. For very many languages.
    - "shared": one ring for all, in which every row sees everything. With it languages can be told apart instead of
      sentences, the paper's failing baseline.

    All is state: it goes into checkpoints and `.keras` files. It takes `rings * bank_size * dimension * 4` bytes. On
    TensorFlow only the rows that are written are touched, on other backends the whole bank is written anew.

    Args:
        bank_size: int, slots of a ring.
        dimension: int, length of a vector.
        num_languages: int.
        kind: "per_language", "tagged" or "shared".
        normalized: bool, vectors are stored with length 1.
        mask_same_document: bool, rows do not see what is of their own document: a neighbour is no good negative.
    Call args:
        language_ids: int (B,), of the anchors, 0 <= id < `num_languages`.
        document_ids: int (B,), of the anchors, the same number for a document in all epochs.
        sentence_keys: int (N,), of all sentences of the batch, those of other devices too: equal for equal texts,
            negative = unknown. No anchor sees any of these texts: it might be its own, or that of its context.
    Returns: (float32 (`bank_size`, `dimension`) vectors, bool (B, `bank_size`) visible).
    Raises: ValueError for another kind or a size below 1.
    Reference: Wu et al., 2022 (CCP), language-specific memory bank; He et al., 2019 (MoCo),
        https://arxiv.org/abs/1911.05722.
    """

    def __init__(
        self,
        bank_size: int,
        dimension: int,
        num_languages: int = 1,
        kind: str = "per_language",
        normalized: bool = True,
        mask_same_document: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, size in (("bank_size", bank_size), ("dimension", dimension), ("num_languages", num_languages)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1; received {size}.")
        if kind not in _KINDS:
            raise ValueError(f"`kind` must be one of {_KINDS}; received {kind!r}.")
        self.bank_size = bank_size
        self.dimension = dimension
        self.num_languages = num_languages
        self.kind = kind
        self.normalized = normalized
        self.mask_same_document = mask_same_document
        self.num_rings = num_languages if kind == "per_language" else 1

    def build(self, *shapes):
        # Rings lie one behind the other; the row after the last is where zeros are written for rows that are not kept.
        rows = self.num_rings * self.bank_size + 1
        self.bank_vectors = self.add_weight(
            shape=(rows, self.dimension), dtype="float32", initializer="zeros", trainable=False, name="vectors"
        )
        self.bank_document_ids = self._integers((rows,), "document_ids")
        self.bank_sentence_keys = self._integers((rows,), "sentence_keys")
        self.bank_languages = self._integers((rows,), "languages") if self.kind == "tagged" else None
        self.bank_pointer = self._integers((self.num_rings,), "pointer")
        self.bank_filled = self._integers((self.num_rings,), "filled")

    def _integers(self, shape, name):
        # Keras' own integer: on TensorFlow int64, since int32 variables do not live on a GPU.
        return self.add_weight(shape=shape, dtype="int", initializer="zeros", trainable=False, name=name)

    def call(self, language_ids, document_ids, sentence_keys=None):
        language_ids, document_ids = ops.cast(language_ids, "int32"), ops.cast(document_ids, "int32")
        ring = ops.convert_to_tensor(0, "int32")
        if self.kind == "per_language":
            ring = ops.clip(ops.max(language_ids, initial=0), 0, self.num_languages - 1)
        slots = ops.arange(self.bank_size, dtype="int32")
        rows = ring * self.bank_size + slots
        visible = (slots < ops.take(_read(self.bank_filled), ring))[None]
        if self.kind == "per_language":
            visible = ops.logical_and(visible, (language_ids == ring)[:, None])
        elif self.kind == "tagged":
            visible = ops.logical_and(visible, language_ids[:, None] == _read_rows(self.bank_languages, rows)[None])
        if self.mask_same_document:
            visible = ops.logical_and(visible, document_ids[:, None] != _read_rows(self.bank_document_ids, rows)[None])
        if sentence_keys is not None:
            keys = ops.cast(sentence_keys, "int32")[:, None]
            same = ops.logical_and(keys >= 0, keys == _read_rows(self.bank_sentence_keys, rows)[None])
            visible = ops.logical_and(visible, ops.logical_not(ops.any(same, axis=0, keepdims=True)))
        shape = (ops.shape(language_ids)[0], self.bank_size)
        return ops.stop_gradient(_read_rows(self.bank_vectors, rows)), ops.broadcast_to(visible, shape)

    def enqueue(self, vectors, language_ids, document_ids, sentence_keys=None, accepted=None) -> None:
        """Writes rows over the oldest ones of their ring; of more than a ring holds the last ones stay.

        Args:
            vectors: float (B, `dimension`).
            language_ids: int (B,).
            document_ids: int (B,).
            sentence_keys: int (B,) or None = unknown.
            accepted: bool (B,), the rows to write; None = all. A row of an unknown language is never written.
        """
        vectors = unit_vectors(vectors) if self.normalized else ops.cast(vectors, "float32")
        language_ids = ops.cast(language_ids, "int32")
        is_language = ops.logical_and(language_ids >= 0, language_ids < self.num_languages)
        accepted = is_language if accepted is None else ops.logical_and(ops.cast(accepted, "bool"), is_language)
        per_language = self.kind == "per_language"
        rings = ops.where(accepted, language_ids, 0) if per_language else ops.zeros_like(language_ids)
        rows, counts, kept = self._places(rings, accepted)
        if sentence_keys is None:
            sentence_keys = -ops.ones_like(language_ids)
        written = [(self.bank_vectors, ops.stop_gradient(vectors))]
        written += [(self.bank_document_ids, document_ids), (self.bank_sentence_keys, sentence_keys)]
        if self.bank_languages is not None:
            written.append((self.bank_languages, language_ids))
        for variable, values in written:
            values = ops.cast(values, variable.dtype)
            mask = ops.reshape(kept, (-1, *[1] * (len(values.shape) - 1)))
            _write_rows(variable, rows, ops.where(mask, values, ops.zeros_like(values)))
        pointer = (_read(self.bank_pointer) + counts) % self.bank_size
        filled = ops.minimum(_read(self.bank_filled) + counts, self.bank_size)
        self.bank_pointer.assign(ops.cast(pointer, self.bank_pointer.dtype))
        self.bank_filled.assign(ops.cast(filled, self.bank_filled.dtype))

    def _places(self, rings, accepted):
        """Row of the variables for each row of the batch, how many each ring gets, and which rows it keeps."""
        together = ops.logical_and(rings[:, None] == rings[None], ops.logical_and(accepted[:, None], accepted[None]))
        together = ops.cast(together, "int32")
        ranks = ops.sum(ops.tril(together, -1), axis=1)
        # Two rows must not go to one slot: which of them would stay is nowhere said.
        kept = ops.logical_and(accepted, ranks >= ops.sum(together, axis=1) - self.bank_size)
        slots = (ops.take(_read(self.bank_pointer), rings) + ranks) % self.bank_size
        rows = ops.where(kept, rings * self.bank_size + slots, self.num_rings * self.bank_size)
        is_of_ring = rings[:, None] == ops.arange(self.num_rings, dtype="int32")[None]
        counts = ops.sum(ops.cast(ops.logical_and(is_of_ring, accepted[:, None]), "int32"), axis=0)
        return rows, counts, kept

    def get_config(self):
        names = ("bank_size", "dimension", "num_languages", "kind", "normalized", "mask_same_document")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _read(variable):
    return ops.cast(ops.convert_to_tensor(variable), "int32")


def _read_rows(variable, rows):
    """Rows of a variable; integers as int32."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Of the variable itself: a variable that is written in parts is copied whole when it is read whole.
        found = tf.gather(variable.value, rows)
    else:
        found = ops.take(ops.convert_to_tensor(variable), rows, axis=0)
    return found if len(found.shape) > 1 else ops.cast(found, "int32")


def _write_rows(variable, rows, values):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variable.value.scatter_update(tf.IndexedSlices(values, rows))
        return
    whole = ops.copy(ops.convert_to_tensor(variable))
    variable.assign(ops.scatter_update(whole, rows[:, None], values))
