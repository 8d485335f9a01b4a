"""A calibrator as a folder: calibrator.json (settings, languages, reports) and calibrator.npz (numbers); no pickle."""

import json
import zipfile
from pathlib import Path

import numpy as np

from simretro.files import atomic_folder, crc32_of, read_whole, recover_folder

FORMAT, VERSION = "simretro-calibrator", 1
MANIFEST, NUMBERS = "calibrator.json", "calibrator.npz"


def save_folder(folder, calibrator):
    """Writes a fitted calibrator; see `CrossLingualCalibrator.save`."""
    languages, rotated, dimension = calibrator.languages_, list(calibrator.rotations_), calibrator.n_features_in_
    rotations = np.array([calibrator.rotations_[language] for language in rotated]).reshape(-1, dimension, dimension)
    with atomic_folder(folder, "a calibrator") as temporary:
        path = Path(temporary) / NUMBERS
        axes = {} if calibrator.axes_ is None else {"axes": calibrator.axes_}
        np.savez(
            path,
            **axes,
            means=np.stack([calibrator.means_[language] for language in languages]),
            variances=np.stack([calibrator.variances_[language] for language in languages]),
            rotations=rotations,
        )
        manifest = {
            "format": FORMAT, "version": VERSION, "settings": calibrator.get_params(deep=False), "languages": languages,
            "rotated": rotated, "pivot": calibrator.pivot_, "dimension": dimension, "counts": calibrator.counts_,
            "reports": calibrator.reports_, "fingerprint": calibrator.fingerprint_, "crc32": crc32_of(path),
        }  # fmt: skip
        text = json.dumps(manifest, indent=1, ensure_ascii=False, default=_plain)
        (Path(temporary) / MANIFEST).write_text(text, encoding="utf-8")


def load_folder(folder, cls):
    """Reads a calibrator; see `CrossLingualCalibrator.load`."""
    folder = Path(folder)
    recover_folder(folder)
    manifest, numbers = read_whole(folder, lambda: _read(folder))
    try:
        calibrator = cls(**manifest["settings"])
    except TypeError as error:
        raise ValueError(f"{folder / MANIFEST} has settings that this program does not know: {error}.") from error
    calibrator.languages_, calibrator.pivot_ = manifest["languages"], manifest["pivot"]
    calibrator.n_features_in_, calibrator.fingerprint_ = manifest["dimension"], manifest["fingerprint"]
    calibrator.counts_, calibrator.reports_ = manifest["counts"], manifest["reports"]
    calibrator.means_ = dict(zip(manifest["languages"], numbers["means"], strict=True))
    calibrator.variances_ = dict(zip(manifest["languages"], numbers["variances"], strict=True))
    calibrator.axes_ = numbers.get("axes")
    calibrator.rotations_ = dict(zip(manifest["rotated"], numbers["rotations"], strict=True))
    return calibrator


def _read(folder):
    manifest = _read_manifest(folder / MANIFEST)
    return manifest, _read_numbers(folder / NUMBERS, manifest)


def _read_manifest(path):
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: its folder is not, or not completely, a calibrator's.")
    keys = {"settings", "languages", "rotated", "pivot", "dimension", "counts", "reports", "fingerprint", "crc32"}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"] == FORMAT and keys <= set(manifest)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another program ({error!r}). Fit the calibrator again.") from error
    if not known:
        raise ValueError(f"{path} is damaged or of another program. Fit the calibrator again.")
    if manifest.get("version") != VERSION:
        raise ValueError(f"{path} has version {manifest.get('version')}; this program reads {VERSION}. Fit again.")
    return manifest


def _read_numbers(path, manifest):
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Copy the whole folder, or fit the calibrator again.")
    if crc32_of(path) != manifest["crc32"]:
        raise ValueError(f"{path} is damaged: its checksum is not the one of {MANIFEST}. Fit the calibrator again.")
    count, rotated, dimension = len(manifest["languages"]), len(manifest["rotated"]), manifest["dimension"]
    shapes = {
        "means": (count, dimension),
        "variances": (count, dimension),
        "rotations": (rotated, dimension, dimension),
    }
    if manifest["settings"].get("scale") == "principal":
        shapes["axes"] = (dimension, dimension)
    try:
        with np.load(path, allow_pickle=False) as file:
            numbers = {name: file[name] for name in shapes}
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error!r}). Fit the calibrator again.") from error
    for name, shape in shapes.items():
        array = numbers[name]
        if array.shape != shape or array.dtype != "float64":
            raise ValueError(f"{path} is damaged: `{name}` is {array.dtype} {array.shape} instead of float64 {shape}.")
    return numbers


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a setting of type {type(value).__name__} cannot be saved; use plain numbers and strings.")
