"""A TensorFlow SavedModel: ids in, vectors out, without Keras and without simretro."""

from pathlib import Path

import keras
from keras import ops

from simretro.models.pooling import text_vectors
from simretro.ops import unit_vectors

INPUT, OUTPUT = "token_ids", "sentence_embedding"


def write_saved_model(folder: Path, encoder) -> None:
    """Adds the files of a SavedModel to a folder.

    Its signature `serving_default` takes `token_ids`, int32 (B, L), rows `[CLS] text [SEP]` with padding behind them,
    and returns `sentence_embedding`, float32 (B, D).

    Args:
        folder: being written.
        encoder: `SentenceEncoder`.
    Raises: NotImplementedError on another Keras backend than TensorFlow.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise NotImplementedError(
            f"A SavedModel is written by the TensorFlow backend of Keras; this is {backend}. Save the model, and "
            "export it with `KERAS_BACKEND=tensorflow`."
        )
    import tensorflow as tf

    def vectors(token_ids):
        x = ops.cast(text_vectors(encoder.encoder, token_ids, encoder.pooling), "float32")
        x = x if encoder.projection is None else encoder.projection(x)
        return {OUTPUT: unit_vectors(x) if encoder.normalize else x}

    module = tf.Module()
    module.layers = [layer for layer in (encoder.encoder, encoder.projection) if layer is not None]
    signature = tf.TensorSpec((None, None), tf.int32, name=INPUT)
    module.serve = tf.function(vectors, input_signature=[signature])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
