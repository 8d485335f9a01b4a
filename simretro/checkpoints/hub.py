"""Names that are no local path: models on the Hugging Face hub, and presets of Keras Hub."""

import importlib.util
import re
from pathlib import Path

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.huggingface import WEIGHT_FILES
from simretro.checkpoints.vocabulary import TOKENIZER_FILES

_SMALL_FILES = (
    *("config.json", "bert_config.json", "task.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "merges.txt", "modules.json", "*_Pooling/config.json", "sentence_*_config.json"),
    *("*_Dense/config.json", "*_Dense/model.safetensors", "config_sentence_transformers.json"),
    *TOKENIZER_FILES,
    "assets/tokenizer/*",
)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors", "*.weights.h5")
# Fetched only where there are none of those: most of these models are on the hub in several formats.
_OTHER_WEIGHTS = (
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
    "bert_model.ckpt.*",
)
_ENCODER_FOLDER = "0_Transformer/"  # of sentence-transformers before it put the encoder into the main folder
_PRESET_FILES = ("config.json", "model.weights.h5")
_PRESET_OPTIONAL_FILES = (
    *("task.json", "task.weights.h5", "tokenizer.json"),
    *(f"assets/tokenizer/{name}" for name in ("vocabulary.txt", "vocabulary.spm", "vocabulary.json", "merges.txt")),
)


def is_hub_name(name: str) -> bool:
    """True if `name` can be `owner/model`, `model`, or a Keras Hub handle, and not a path only."""
    if name.startswith(("hf://", "kaggle://")):
        return True
    if name.endswith((".json", ".ckpt", ".index", ".safetensors", ".bin", ".h5")):
        return False
    return re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", name, re.ASCII) is not None


def fetch(name: str, revision: str | None = None) -> Path:
    """Gets the files of a model that a reader needs, from the network or from the cache of an earlier call.

    Args:
        name: "owner/model" on the Hugging Face hub ("hf://" may stand before it); a preset of Keras Hub, by its name
            ("bert_base_zh") or its handle ("kaggle://...").
        revision: branch, tag or commit on the Hugging Face hub.
    Returns: the local folder.
    Raises:
        CheckpointError: saying where it looked, if there is no such model, or no network and no copy in the cache.
        ImportError: without the library that downloads.
    """
    handle = name if name.startswith("kaggle://") else _preset_handle(name)
    if handle is None:
        return _fetch_huggingface(name.removeprefix("hf://"), revision)
    if revision is not None:
        raise CheckpointError(f"`revision` must be None for the Keras Hub preset {name!r}: its handle has the version.")
    return _fetch_preset(name, handle.removeprefix("kaggle://"))


def _fetch_huggingface(name, revision):
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"{_not_local(name)} To look it up on the Hugging Face hub: `pip install huggingface_hub`."
        ) from error
    try:
        folder = _snapshot(huggingface_hub, name, revision, _WEIGHTS)
        if not _has_weights(folder):
            folder = _snapshot(huggingface_hub, name, revision, _OTHER_WEIGHTS)
    except Exception as error:  # no network, no such model, nothing in the cache; its transport's errors have no base
        raise CheckpointError(_not_found(huggingface_hub.constants, name, revision, error)) from error
    return folder


def _snapshot(huggingface_hub, name, revision, weights):
    patterns = [*_SMALL_FILES, *weights]
    patterns += [_ENCODER_FOLDER + pattern for pattern in patterns]
    return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns))


def _has_weights(folder):
    names = (*WEIGHT_FILES[:2], "model.weights.h5")
    return any((folder / place / name).is_file() for place in ("", _ENCODER_FOLDER) for name in names)


def _not_local(name):
    return f"{name!r} is no local path (looked for {Path(name).absolute()})."


def _not_found(constants, name, revision, error):
    offline = " HF_HUB_OFFLINE is set, so only the cache was asked." if constants.HF_HUB_OFFLINE else ""
    return (
        f"{_not_local(name)} Nor was it found as {constants.ENDPOINT}/{name}, revision {revision or 'main'}, nor in "
        f"the cache {constants.HF_HUB_CACHE}.{offline} Check the name and the network. {type(error).__name__}: {error}"
    )


def _preset_handle(name):
    """The handle of a preset of Keras Hub; None if there is no preset of that name, or no Keras Hub."""
    # Every preset's name has an underscore and no slash; importing Keras Hub takes seconds.
    if "/" in name or "_" not in name or importlib.util.find_spec("keras_hub") is None:
        return None
    import keras_hub

    preset = keras_hub.models.Backbone.presets.get(name)
    return preset["kaggle_handle"] if preset else None


def _fetch_preset(name, handle):
    try:
        import kagglehub
    except ImportError as error:
        raise ImportError(f"{_not_local(name)} To fetch it from Kaggle: `pip install kagglehub`.") from error
    try:
        paths = [Path(kagglehub.model_download(handle, file)) for file in _PRESET_FILES]
    except Exception as error:  # kagglehub passes on whatever its transport raises
        raise CheckpointError(
            f"{_not_local(name)} Nor could it be fetched as https://www.kaggle.com/models/{handle}. Check the name and "
            f"the network. {type(error).__name__}: {error}"
        ) from error
    for file in _PRESET_OPTIONAL_FILES:
        _fetch_optional(kagglehub, handle, file)
    return paths[0].parent


def _fetch_optional(kagglehub, handle, file):
    try:
        kagglehub.model_download(handle, file)
    except Exception as error:
        # A preset has some of these files; which, only the answer tells. What is needed is missed by its reader.
        if not re.search(r"404|not present|not found|doesn't exist", str(error), re.IGNORECASE):
            raise CheckpointError(f"{file} of https://www.kaggle.com/models/{handle}: {error}") from error
