"""`export`: from a method or a sentence encoder to a folder that another library loads."""

from collections.abc import Mapping
from pathlib import Path

from simretro.checkpoints import write_onnx
from simretro.checkpoints.config import checked_facts
from simretro.exports.keras_hub import write_preset
from simretro.exports.model_card import write_model_card
from simretro.exports.saved_model import write_saved_model
from simretro.files import atomic_folder
from simretro.models import SentenceEncoder, export_weights, write_folder
from simretro.models.weights import export_part

# Which formats hold a linear layer behind the pooling; the others hold the encoder alone.
_WITH_PROJECTION = ("sentence-transformers", "onnx", "saved-model")


def export(
    model,
    folder: str | Path,
    to: str = "huggingface",
    facts: Mapping | None = None,
    prompts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes an encoder and its tokenizer for another library, and a model card, `README.md`.

    | `to` | who loads it | what is kept |
    |---|---|---|
    | "huggingface" | transformers | encoder, pooler, MLM head |
    | "sentence-transformers" | sentence-transformers; transformers | all that makes the vectors, prefixes as prompts |
    | "keras-hub" | Keras Hub | encoder, pooler |
    | "onnx" | any ONNX runtime: `model.onnx` | all that makes the vectors |
    | "saved-model" | TensorFlow alone, without simretro and Keras | all that makes the vectors |
    | "tf1" | bert4keras | encoder, pooler, MLM head |

    Args:
        model: a method (`BiEncoder`, `SimBERT`, `RetroMAE`, ...) with a tokenizer, or a `SentenceEncoder`. Of a
            `BiEncoder` with an encoder for passages export its two sentence encoders one by one.
        folder: path. Written aside and renamed, so that it is there whole or not at all.
        to: the format.
        facts: JSON values worth knowing of the training, for the model card.
        prompts: {name: what is put before a text}; None = the prefixes of a `BiEncoder`, as "query" and "document".
        overwrite: bool; True replaces a folder that is there (what only the old one holds is kept beside it). Unlike
            `save_pretrained`, which a run calls again and again, an export takes no folder's place unasked.
    Returns: the path of the folder.
    Raises:
        ValueError: for an unknown format, or one that cannot hold the model; for NaN or infinity among the `facts`.
        TypeError: for other `facts` that are no JSON values; for a model that is none of those above.
        FileExistsError: if the folder is there, with something in it, and `overwrite` is False.
        NotImplementedError: for "saved-model" on another Keras backend than TensorFlow.
        ImportError: without the package that the format needs.
    """
    if to not in FORMATS:
        raise ValueError(f"`to` must be one of {FORMATS}; received {to!r}.")
    encoder = model if isinstance(model, SentenceEncoder) else _sentence_encoder(model)
    if encoder.projection is not None and to not in _WITH_PROJECTION:
        raise ValueError(
            f"`to={to!r}` holds an encoder, but this model's vectors go through a projection behind it: choose one of "
            f"{_WITH_PROJECTION}."
        )
    folder = Path(folder)
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"`folder` must be new; {folder} is there. Name another one, or pass `overwrite=True`.")
    told = checked_facts(_facts(model, facts))
    prompts = _prompts(model) if prompts is None else dict(prompts)
    with atomic_folder(folder, "a model") as staging:
        _WRITERS[to](staging, encoder, told, prompts)
        write_model_card(staging, to, encoder, told, prompts)
    return folder


def _sentence_encoder(model):
    try:
        return model.sentence_encoder
    except AttributeError as error:
        raise TypeError(
            f"`model` must be a `SentenceEncoder`, or a method that has a `sentence_encoder`; received "
            f"{type(model).__name__}."
        ) from error


def _facts(model, facts):
    if isinstance(model, SentenceEncoder):
        return dict(facts or {})
    settings = {name: getattr(model, name) for name in getattr(model, "settings_names", ())}
    return {"method": type(model).__name__, **settings, **(facts or {})}


def _prompts(model):
    """The prefixes of a `BiEncoder` under the names that `encode_query` and `encode_document` look for."""
    prefixes = {"query": getattr(model, "query_prefix", ""), "document": getattr(model, "passage_prefix", "")}
    return {name: prefix for name, prefix in prefixes.items() if prefix}


def _write_sentence_transformers(staging, encoder, facts, prompts):
    similarity = facts.get("similarity", "cosine" if encoder.normalize else "dot")
    settings = {**encoder.settings(), "prompts": prompts, "similarity": similarity}
    facts = {**facts, "sentence_encoder": settings}
    parts = {} if encoder.projection is None else {"projection": export_part(encoder.projection)}
    write_folder(staging, encoder.encoder, encoder.tokenizer, facts, "sentence-transformers", parts)


def _write_onnx(staging, encoder, facts, prompts):
    transformer = encoder.encoder
    if transformer.application == "lm":
        raise ValueError("`to='onnx'` is for encoders; this one was built with `application='lm'`.")
    kernel = None if encoder.projection is None else export_part(encoder.projection)["kernel"]
    write_onnx(
        staging / "model.onnx",
        transformer.config,
        export_weights(transformer),
        encoder.pooling,
        encoder.normalize,
        transformer.with_pool,
        kernel,
    )
    encoder.tokenizer.save_pretrained(staging)


def _write_saved_model(staging, encoder, facts, prompts):
    write_saved_model(staging, encoder)
    encoder.tokenizer.save_pretrained(staging)


def _encoder_alone(format):
    def write(staging, encoder, facts, prompts):
        write_folder(staging, encoder.encoder, encoder.tokenizer, format=format)

    return write


def _write_keras_hub(staging, encoder, facts, prompts):
    write_preset(staging, encoder.encoder, encoder.tokenizer)


_WRITERS = {
    "huggingface": _encoder_alone("huggingface"),
    "sentence-transformers": _write_sentence_transformers,
    "keras-hub": _write_keras_hub,
    "onnx": _write_onnx,
    "saved-model": _write_saved_model,
    "tf1": _encoder_alone("tf1"),
}
FORMATS = tuple(_WRITERS)
