"""Search in the folders that `encode_corpus` writes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from simretro.arguments import check_int
from simretro.retrieval.corpus import CALIBRATION, IDS, MANIFEST, PROGRESS, VECTORS, read_json, setting_differences
from simretro.retrieval.encoders import fingerprint_of
from simretro.retrieval.exact import exact_search, rescore
from simretro.retrieval.index import normalize_rows
from simretro.retrieval.stored_vectors import StoredRows, hamming_search, scale_of, stored_dtype, stored_width

_OF_A_SHARD = ("shard_index", "block_size")  # settings in which the shards of a corpus may differ


class EncodedCorpus:
    """The vectors of a corpus, mapped from disk, and the ids of its documents. See `load`.

    Attributes:
        ids: list of str, id of each document, in the order of the corpus.
        dtype: str, how vectors are stored, see `encode_corpus`.
        similarity: "cosine" or "dot".
        dimension: int, length of a vector.
    """

    def __init__(self, ids: list[str], rows: StoredRows, similarity: str):
        self.ids, self._rows, self.similarity = ids, rows, similarity
        self.dtype, self.dimension = rows.dtype, rows.shape[1]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"EncodedCorpus(size={len(self)}, dimension={self.dimension}, dtype={self.dtype!r})"

    @classmethod
    def load(cls, folders: str | os.PathLike | Sequence[str | os.PathLike], model=None) -> "EncodedCorpus":
        """Opens a finished corpus.

        Args:
            folders: the folder that was given to `encode_corpus`, which holds the corpus or all its shards; or the
                folders of all shards, in any order.
            model: what will encode the queries, or the fingerprint of what encodes its passages; a corpus of another
                model, or of this one with another prefix or similarity, is refused. None = not compared.
        Returns: the corpus; its vectors are mapped, not read.
        Raises: FileNotFoundError or ValueError for a folder that is not finished or not whole, for shards that are
            missing or do not belong together, or for another model, naming both fingerprints.
        """
        folders = _shard_folders(folders)
        manifests = [_read_manifest(folder) for folder in folders]
        order = _order(folders, manifests)
        folders, manifests = [folders[i] for i in order], [manifests[i] for i in order]
        first = manifests[0]
        _check_model(folders[0], first["settings"], model)
        parts = [_open_vectors(folder, manifest) for folder, manifest in zip(folders, manifests, strict=True)]
        dtype, similarity = first["settings"]["dtype"], first["settings"]["similarity"]
        calibrations = [_open_calibration(folder) if dtype == "int8" else None for folder in folders]
        scale = scale_of(max(manifest["longest"] for manifest in manifests))
        rows = StoredRows(parts, dtype, first["dimension"], calibrations, scale)
        return cls(_joined_ids(folders, manifests), rows, similarity)

    @classmethod
    def of_vectors(cls, vectors: np.ndarray, ids: list[str], similarity: str) -> "EncodedCorpus":
        """A corpus in memory, to be searched in the same way.

        Args:
            vectors: numbers (N, d).
            ids: N str.
            similarity: "cosine" (the vectors are normalised here) or "dot".
        """
        vectors = normalize_rows(vectors) if similarity == "cosine" else np.asarray(vectors, "float32")
        longest = float(np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype="float64")).max(initial=0))
        return cls(ids, StoredRows([vectors], "float32", vectors.shape[1], [None], scale_of(longest)), similarity)

    def search(
        self, query_vectors: ArrayLike, top_k: int = 10, rescore_multiplier: int = 4
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the documents nearest to each query.

        "float32", "float16" and "int8" are compared with all stored vectors, which are decoded block by block, and the
        scores of what is found are computed in float64; "binary" is searched by the bits in which query and document
        differ, and `rescore_multiplier * top_k` candidates are compared once more with the numbers of the query.

        Args:
            query_vectors: numbers (Q, d).
            top_k: int >= 1, documents per query; of a smaller corpus all.
            rescore_multiplier: int >= 1, of the kind "binary"; with 1 no document is lost or won, only their order
                changes.
        Returns: scores float32 (Q, k) and rows int64 (Q, k), places in `ids`, by descending score, equal scores by
            ascending row. Scores of "binary" and "int8" are estimates of the others'.
        Raises: ValueError for a number out of range, or queries of another dimension.
        """
        check_int("top_k", top_k, 1)
        check_int("rescore_multiplier", rescore_multiplier, 1)
        queries = np.asarray(query_vectors)
        unit = normalize_rows(queries, "query_vectors")
        if unit.shape[1] != self.dimension:
            raise ValueError(
                f"`query_vectors` must have the corpus' dimension {self.dimension}; received {unit.shape[1]}. Encode "
                "them with the model that the corpus was encoded with."
            )
        top_k = min(top_k, len(self))
        if not len(unit):
            return np.zeros((0, top_k), "float32"), np.zeros((0, top_k), "int64")
        if self.dtype == "binary":
            num_candidates = min(top_k * rescore_multiplier, len(self))
            candidates = hamming_search(self._rows, np.packbits(unit > 0, axis=1), num_candidates)
            places = np.repeat(np.arange(len(unit)), candidates.shape[1])
            _, rows, scores = rescore(self._rows, unit, places, candidates.ravel(), top_k)
            scores, rows = scores.reshape(-1, top_k), rows.reshape(-1, top_k)
        else:
            scores, rows = exact_search(self._rows, unit, top_k)
        factors = np.full(len(unit), self._rows.scale)
        if self.similarity == "dot":
            factors *= np.linalg.norm(queries.astype("float64"), axis=1)
        return (scores * factors[:, None]).astype("float32"), rows


def _check_model(folder, settings, model):
    wanted, stored = fingerprint_of(model), settings["model"]
    if wanted is not None and wanted != stored:
        raise ValueError(
            f"{folder} was encoded with the model {stored}, but `model` is {wanted}: their scores would mean nothing. "
            "Encode the corpus again, or load the model that belongs to it."
        )
    if model is None or isinstance(model, str) or wanted is None:
        return
    own = {"passage_prefix": getattr(model, "passage_prefix", "")}
    if hasattr(model, "similarity"):  # other models are compared as the caller says
        own["similarity"] = model.similarity
    if differences := setting_differences({name: settings[name] for name in own}, own):
        raise ValueError(
            f"{folder} was encoded with other settings than `model` has: {differences}. Encode the corpus again, or "
            "give the model that it was encoded with."
        )


def _shard_folders(folders):
    if isinstance(folders, str | os.PathLike):
        folder = Path(folders)
        shards = [path for path in folder.glob("shard-*-of-*") if path.is_dir()]
        return shards if shards and not (folder / MANIFEST).is_file() else [folder]
    folders = [Path(folder) for folder in folders]
    if not folders:
        raise ValueError("`folders` must name at least one folder; received none.")
    return folders


def _read_manifest(folder):
    if (folder / MANIFEST).is_file():
        return read_json(folder / MANIFEST)
    if (folder / PROGRESS).is_file():
        rows = read_json(folder / PROGRESS)["rows"]
        raise ValueError(
            f"{folder} is not finished: {rows} documents are encoded. Call `encode_corpus` again with the same "
            "arguments, and it goes on from there."
        )
    raise FileNotFoundError(f"{folder / MANIFEST} is missing: {folder} holds no encoded corpus.")


def _order(folders, manifests):
    """Places of the shards in their order; raises ValueError where they are not those of one corpus."""
    settings = [manifest["settings"] for manifest in manifests]
    common = [
        {**{name: of_shard[name] for name in of_shard if name not in _OF_A_SHARD}, "dimension": manifest["dimension"]}
        for of_shard, manifest in zip(settings, manifests, strict=True)
    ]
    for folder, other in zip(folders, common, strict=True):
        differences = setting_differences(common[0], other)
        if differences:
            raise ValueError(f"{folders[0]} and {folder} are no shards of one corpus: {differences}.")
    num_shards, found = settings[0]["num_shards"], [of_shard["shard_index"] for of_shard in settings]
    if sorted(found) != list(range(num_shards)):
        missing = sorted(set(range(num_shards)) - set(found))
        what = f"missing are {missing}" if missing else "one is given twice"
        raise ValueError(f"`folders` must be all {num_shards} shards of a corpus; received {sorted(found)}, {what}.")
    order = sorted(range(num_shards), key=lambda place: found[place])
    rows = [manifests[place]["rows"] for place in order]
    total = sum(rows)
    if rows != [-((shard - total) // num_shards) for shard in range(num_shards)]:
        raise ValueError(f"The shards have {rows} documents, so they are not of one corpus.")
    return order


def _open_vectors(folder, manifest):
    path = folder / VECTORS
    width = stored_width(manifest["settings"]["dtype"], manifest["dimension"])
    expected = (manifest["rows"], width), stored_dtype(manifest["settings"]["dtype"])
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}). Encode the corpus again.") from error
    if (vectors.shape, vectors.dtype) != expected:
        raise ValueError(
            f"{path} must be {expected[1]} of shape {expected[0]}; it is {vectors.dtype} of shape {vectors.shape}. "
            "Encode the corpus again."
        )
    return np.asarray(vectors)


def _open_calibration(folder):
    try:
        return np.load(folder / CALIBRATION, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{folder / CALIBRATION} is missing or damaged ({error}). Encode the corpus again.") from error


def _joined_ids(folders, manifests):
    ids = [""] * sum(manifest["rows"] for manifest in manifests)
    for shard, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):
        path = folder / IDS
        try:
            own = [json.loads(line) for line in path.read_bytes().splitlines()]
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is missing or damaged ({error}). Encode the corpus again.") from error
        if len(own) != manifest["rows"]:
            raise ValueError(f"{path} has {len(own)} ids instead of {manifest['rows']}. Encode the corpus again.")
        ids[shard :: len(folders)] = own
    return ids
