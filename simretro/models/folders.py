"""Writing a model's folder: config, weights and tokenizer together, in the format that the next tool reads."""

from pathlib import Path

from simretro.checkpoints import write_huggingface, write_simretro, write_tf1
from simretro.files import atomic_folder
from simretro.models.weights import export_weights

_FOREIGN_WRITERS = {"huggingface": write_huggingface, "tf1": write_tf1}


def write_folder(
    folder: str | Path, encoder, tokenizer=None, facts: dict | None = None, format: str = "simretro"
) -> None:
    """Writes a folder that takes the place of an older one only when all of it is written.

    Args:
        folder: path.
        encoder: `Transformer`.
        tokenizer: of `simretro.tokenizers`, or None.
        facts: JSON values worth knowing of the model; kept by the format "simretro" only.
        format: "simretro", "huggingface" (transformers loads it) or "tf1" (bert4keras loads it).
    Raises: ValueError for an unknown format.
    """
    if format not in ("simretro", *_FOREIGN_WRITERS):
        raise ValueError(f"`format` must be one of {('simretro', *_FOREIGN_WRITERS)}; received {format!r}.")
    weights = export_weights(encoder)
    with atomic_folder(folder) as staging:
        if format == "simretro":
            write_simretro(staging, encoder.config, weights, facts)
        else:
            _FOREIGN_WRITERS[format](staging, encoder.config, weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
