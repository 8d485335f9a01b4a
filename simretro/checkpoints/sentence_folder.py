"""What a sentence-transformers folder says beyond its encoder: pooling, normalisation, the longest input.

Reference: https://www.sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from pathlib import Path

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.config import read_json

_MODES = {  # the switches of `1_Pooling/config.json`; several that are on are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pipeline(folder: Path) -> tuple[Path, dict]:
    """Reads `modules.json` and the small files that it names.

    Args:
        folder: of a sentence-transformers model, or any other.
    Returns: the folder of the encoder, and the `extras` of `Checkpoint`; `folder` and {} without a `modules.json`.
    Raises: CheckpointError if one of the files is missing or wrong.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return folder, {}
    encoder, extras, others = None, {"normalize": False}, []
    for module in read_json(path, list):
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise CheckpointError(f"{path} must hold objects with a `type`; received {module!r}.")
        kind, place = module["type"].rsplit(".", 1)[-1], _inside(folder, module.get("path", ""), path)
        if kind == "Transformer" and encoder is None:
            encoder = place
            extras |= _limits(place)
        elif kind == "Pooling" and "pooling" not in extras:
            extras["pooling"] = _pooling(place / "config.json")
        elif kind == "Normalize":
            extras["normalize"] = True
        elif kind != "Dropout":  # which does nothing outside training
            others.append(kind)
    if encoder is None:
        raise CheckpointError(f"{path} names no Transformer module.")
    if others:
        extras["other_modules"] = others
    return encoder, extras


def _inside(folder, place, path):
    if not isinstance(place, str) or ".." in Path(place).parts or Path(place).is_absolute():
        raise CheckpointError(f"{path} must name folders inside its own; received {place!r}.")
    return folder / place


def _limits(folder):
    paths = sorted(folder.glob("sentence_*_config.json"))  # `bert`, `roberta`, `xlm-roberta`
    content = read_json(paths[0]) if paths else {}
    limits = {"maxlen": content.get("max_seq_length"), "do_lower_case": content.get("do_lower_case")}
    return {key: value for key, value in limits.items() if value is not None}


def _pooling(path):
    content = read_json(path)
    modes = content.get("pooling_mode")  # new files have the name, or a list of names
    if modes is None:
        modes = [name for switch, name in _MODES.items() if content.get(switch)]
    return modes if isinstance(modes, str) else "+".join(map(str, modes)) or "mean"
