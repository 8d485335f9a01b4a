"""`read_checkpoint`: from a path or a name to the reader of the right format."""

from collections.abc import Mapping
from pathlib import Path

from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError
from simretro.checkpoints.config import read_json
from simretro.checkpoints.hub import fetch, is_hub_name
from simretro.checkpoints.huggingface import WEIGHT_FILES, read_huggingface
from simretro.checkpoints.keras_hub import read_keras_hub
from simretro.checkpoints.simretro_folder import FORMAT, read_simretro
from simretro.checkpoints.tf1 import find_prefix, read_tf1
from simretro.files import read_whole, recover_folder


def read_checkpoint(
    name_or_path: str | Path, revision: str | None = None, config: Mapping | str | Path | None = None
) -> Checkpoint:
    """Reads a checkpoint of any known format, with every variable accounted for.

    Args:
        name_or_path: a folder of simretro, Hugging Face, sentence-transformers, Keras Hub or TensorFlow 1; the config
            file in it; the prefix of a TensorFlow 1 checkpoint. What is no local path is looked up on the hubs:
            "owner/model" on Hugging Face's, "bert_base_zh" or "kaggle://..." on Keras Hub's.
        revision: branch, tag or commit on the Hugging Face hub; None for local paths.
        config: of a TensorFlow 1 checkpoint, in place of the `bert_config.json` beside it: the file, or its content.
            Folders of the other formats have one config, their own, which must say the same.
    Returns: Checkpoint.
    Raises:
        CheckpointError: if nothing is found (naming where it looked), if a file is damaged, or if config, vocabulary
            and weights do not fit each other (naming all variables that do not).
        ImportError: if the format needs a library that is not installed (TensorFlow, torch).
    """
    name = str(name_or_path)
    if not name.strip():
        raise CheckpointError(f"`name_or_path` must be a path or a name on a hub; received {name!r}.")
    path = Path(name).expanduser()
    if not _exists(path):
        recover_folder(path)
    return read_whole(local_folder(path), lambda: _read(name_or_path, path, revision, config))


def local_folder(path: str | Path) -> Path:
    """The folder that `read_checkpoint` would read, be it there or not, of a folder, a file in it or a prefix."""
    path = Path(path).expanduser()
    return path.parent if path.is_file() or not path.exists() and _exists(path) else path


def _read(name_or_path, path, revision, config):
    name = str(name_or_path)
    if not _exists(path):
        if isinstance(name_or_path, Path) or not is_hub_name(name):
            raise CheckpointError(
                f"{path.absolute()} does not exist; looked for a folder, a config file, and the prefix of a TensorFlow "
                "checkpoint."
            )
        return _read_local(fetch(name, revision), config)
    if revision is not None:
        raise CheckpointError(f"`revision` must be None for a local path; received {revision!r} for {path}.")
    return _read_local(path, config)


def _exists(path):
    return path.exists() or path.with_name(f"{path.name}.index").is_file()


def _read_local(path, config):
    folder = path.parent if path.name == "config.json" else path
    if folder.is_dir():
        reader = _folder_reader(folder)
        if reader:
            checkpoint = reader(folder)
            _check_same(config, checkpoint)
            return checkpoint
    if path.suffix in (".safetensors", ".bin", ".h5"):
        raise CheckpointError(f"{path} is one file of a checkpoint: give the folder, {path.parent}.")
    if find_prefix(path):
        return read_tf1(path, config)
    raise CheckpointError(
        f"{path} holds no checkpoint; looked for {', '.join(WEIGHT_FILES)} and model.weights.h5 beside a "
        "`config.json`, and for `bert_model.ckpt.index` beside a `bert_config.json`."
    )


def _check_same(config, checkpoint):
    given = {} if config is None else config if isinstance(config, Mapping) else read_json(config)
    own = checkpoint.config
    different = [
        f"`{key}` is {value!r}, there {own[key]!r}"
        for key, value in given.items()
        if key in own and value is not None and value != own[key]
    ]
    if different:
        raise CheckpointError(
            f"`config` differs from the config of {checkpoint.source}: {'; '.join(different)}. Leave `config` out."
        )


def _folder_reader(folder):
    if (folder / "modules.json").is_file():
        return read_huggingface
    if not (folder / "config.json").is_file():
        return None
    content = read_json(folder / "config.json")
    if content.get("format") == FORMAT:
        return read_simretro
    if "registered_name" in content:
        return read_keras_hub
    has_weights = any((folder / name).is_file() for name in WEIGHT_FILES)
    return read_huggingface if has_weights else None
