"""What every index of sentence vectors shares: adding, checking, saving, loading.

An index folder holds

    index.json    kind, size, dimension, fingerprint of the model, settings, size of each other file
    vectors.npy   float32 (size, dimension), l2-normalised; opened with mmap
    texts.jsonl   one JSON string a line, line number = id
    trees.ann     only for Annoy

The folder is written aside and renamed, so an interrupted or failed save leaves the one that was there.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from simretro.arguments import check_int
from simretro.files import atomic_folder, crc32_of, read_whole, recover_folder

FORMAT = "simretro-index"
VERSION = 1
MANIFEST, VECTORS, TEXTS = "index.json", "vectors.npy", "texts.jsonl"
_BLOCK_ROWS = 8192  # rows normalised at once: the float64 copy stays small


def normalize_rows(vectors: ArrayLike, name: str = "vectors") -> np.ndarray:
    """L2-normalises each row; a row of zeros stays zero.

    Args:
        vectors: numbers (N, d).
        name: str, what the argument is called in an error.
    Returns: float32 (N, d), a new array.
    Raises: ValueError if `vectors` is not two-dimensional, not numeric or not finite.
    """
    vectors = _matrix(vectors, name)
    result = np.empty(vectors.shape, "float32")
    _normalize_into(vectors, result, name)
    return result


def _matrix(vectors, name):
    vectors = np.asarray(vectors)
    if vectors.ndim != 2:
        raise ValueError(
            f"`{name}` must be (number of texts, dimension), also for one text; received shape {vectors.shape}."
        )
    try:
        # Kinds that NumPy does not know, bfloat16 among them, can still be cast.
        vectors[:0].astype("float32", casting="unsafe")
        if vectors.dtype.kind in "cSUOMm":
            raise TypeError
    except TypeError:
        raise ValueError(f"`{name}` must hold real numbers; received dtype {vectors.dtype}.") from None
    return vectors


def _normalize_into(source, target, name):
    """Writes the normalised rows of `source` into `target`, a block at a time."""
    for start in range(0, len(source), _BLOCK_ROWS):
        # float64: the square of a large or of a tiny float32 leaves the range of float32.
        block = source[start : start + _BLOCK_ROWS].astype("float64")
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))
        if not np.isfinite(norms).all():
            row = start + int(np.flatnonzero(~np.isfinite(norms))[0])
            raise ValueError(
                f"`{name}` must be finite and of a size that can be squared; row {row} is not. "
                "Look for NaN or infinity in the model's weights or inputs."
            )
        target[start : start + _BLOCK_ROWS] = block / np.where(norms > 0, norms, 1.0)[:, None]


class VectorIndex:
    """Base of the indexes: holds normalised vectors and their texts; a subclass says how to search.

    The score of a text is its cosine with the query: computed in float64 from the stored float32 vectors and rounded
    to float32, so it depends neither on the number of queries in a call nor on the kind of index. Results are ordered
    by descending score, equal scores by ascending id. An id is the place of a text in the order of adding.

    Args:
        fingerprint: str or None, of the model that makes the vectors; kept with the index, compared on loading.
    """

    kind = ""

    def __init__(self, fingerprint: str | None = None):
        self.fingerprint = fingerprint
        self._texts: list[str] = []
        self._buffer = np.zeros((0, 0), "float32")  # (capacity, d); the first len(self) rows are in use

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={len(self)}, dimension={self.dimension})"

    @property
    def dimension(self) -> int | None:
        """Size of a vector, None before the first `add`."""
        return self._buffer.shape[1] or None

    @property
    def texts(self) -> Sequence[str]:
        """The texts, text `i` at place `i`; a copy."""
        return list(self._texts)

    @property
    def vectors(self) -> np.ndarray:
        """float32 (N, d), the normalised vectors; a view that cannot be written to."""
        view = self._buffer[: len(self)].view()
        view.flags.writeable = False
        return view

    def add(self, vectors: ArrayLike, texts: Sequence[str]) -> None:
        """Adds texts with their vectors; the first has the id `len(self)`.

        Args:
            vectors: numbers (N, d), normalised here; zero vectors are allowed and have the score 0 with everything.
            texts: N strings.
        Raises: ValueError if the numbers of rows differ, if the dimension is not the index's or if a vector is not
            finite. The index is then as it was.
        """
        vectors = self._checked(vectors, "vectors")
        if isinstance(texts, str):
            raise ValueError("`texts` must be a sequence of strings; received one string: put it into a list.")
        texts = list(texts)
        if len(texts) != len(vectors):
            raise ValueError(f"`texts` must be as many as `vectors`; received {len(texts)} texts, {len(vectors)} rows.")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"`texts` must be strings; text {row} is {type(text).__name__}.")
        if not texts:
            return
        size = len(self)
        buffer = self._reserved(size + len(texts), vectors.shape[1])
        _normalize_into(vectors, buffer[size : size + len(texts)], "vectors")
        self._buffer = buffer
        self._texts.extend(texts)
        self._changed()

    def search(self, vectors: ArrayLike, topn: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Finds the texts nearest to each query by cosine.

        Args:
            vectors: numbers (Q, d), the queries; need not be normalised.
            topn: int >= 1, results per query; above `len(self)` there are only `len(self)`.
        Returns: scores float32 (Q, k) and ids int64 (Q, k), k = min(topn, len(self)), by descending score, equal
            scores by ascending id.
        Raises: ValueError for a wrong `topn` or dimension, naming both dimensions.
        """
        topn = check_int("topn", topn, 1)
        queries = normalize_rows(self._checked(vectors, "vectors"))
        found = min(topn, len(self))
        if not found or not len(queries):
            return np.zeros((len(queries), found), "float32"), np.zeros((len(queries), found), "int64")
        return self._search(queries, found)

    def most_similar(self, vectors: ArrayLike, topn: int = 10) -> list[list[tuple[str, float]]]:
        """Like `search`, with texts: for each query a list of (text, cosine), best first."""
        scores, ids = self.search(vectors, topn)
        return [
            [(self._texts[i], score) for i, score in zip(row_ids, row_scores, strict=True)]
            for row_ids, row_scores in zip(ids.tolist(), scores.tolist(), strict=True)
        ]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the index to a folder, in place of what was there; on any error what was there stays.

        Raises: ValueError if the folder holds a model, a calibrator, an encoded corpus or the checkpoints of a run.
        """
        with atomic_folder(folder, "an index") as temporary:
            temporary = Path(temporary)
            np.save(temporary / VECTORS, self._buffer[: len(self)], allow_pickle=False)
            with open(temporary / TEXTS, "wb") as file:
                for text in self._texts:
                    # surrogatepass: a lone surrogate is no valid text, but no reason to lose an index.
                    file.write(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            checked = [TEXTS, *self._save_more(temporary)]
            files = {name: {"bytes": (temporary / name).stat().st_size} for name in (VECTORS, *checked)}
            for name in checked:
                files[name]["crc32"] = crc32_of(temporary / name)
            manifest = {
                "format": FORMAT, "version": VERSION, "kind": self.kind, "size": len(self),
                "dimension": self.dimension, "fingerprint": self.fingerprint, "settings": self._settings(),
                "files": files,
            }  # fmt: skip
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike, fingerprint: str | None = None) -> "VectorIndex":
        """Opens a saved index of any kind as an index of this class; the vectors are mapped, not read.

        `ExactIndex.load` searches the vectors of an Annoy folder exactly, `AnnoyIndex.load` builds the trees that an
        exact folder lacks. `load_index` takes the class that wrote the folder.

        Args:
            folder: path of the folder.
            fingerprint: str or None, of the model that will make the queries. None = not compared.
        Returns: the index.
        Raises: FileNotFoundError or ValueError that names the file, when one is missing or damaged; ValueError that
            names both fingerprints, when the index is of another model.
        """

        def read():
            path, manifest = read_manifest(folder)
            check_fingerprint(path, manifest["fingerprint"], fingerprint)
            index = cls(fingerprint=manifest["fingerprint"])
            index._texts = _read_texts(path, manifest)
            index._buffer = _open_vectors(path, manifest)
            index._load_more(path, manifest)
            return index

        return read_whole(folder, read)

    # What a subclass may say.
    def _search(self, queries, topn):
        """Searches with normalised float32 queries (Q, d) for 1 <= topn <= len(self)."""
        raise NotImplementedError

    def _changed(self):
        """Is called after texts were added."""

    def _settings(self):
        """Returns what must be stored to search in the same way again."""
        return {}

    def _save_more(self, folder):
        """Writes further files into `folder` and returns their names."""
        return []

    def _load_more(self, folder, manifest):
        """Reads settings and further files."""

    def _checked(self, vectors, name):
        vectors = _matrix(vectors, name)
        if self.dimension is not None and vectors.shape[1] != self.dimension:
            raise ValueError(
                f"`{name}` must have the index's dimension {self.dimension}; received dimension {vectors.shape[1]}. "
                "Encode them with the model that the index was built with."
            )
        if not vectors.shape[1]:
            raise ValueError(f"`{name}` must have a dimension of at least 1; received shape {vectors.shape}.")
        return vectors

    def _reserved(self, size, dimension):
        """Returns a buffer of at least `size` rows that begins with the present vectors."""
        if size <= len(self._buffer) and self._buffer.flags.writeable:
            return self._buffer
        # Exactly what is asked for at first; half as much again for those who add bit by bit.
        capacity = size if not len(self) else max(size, len(self) + len(self) // 2)
        buffer = np.empty((capacity, dimension), "float32")
        if len(self):
            buffer[: len(self)] = self._buffer[: len(self)]
        return buffer


def read_manifest(folder: str | os.PathLike) -> tuple[Path, dict]:
    """Reads and checks `index.json`; returns the folder as a Path and the manifest."""
    folder = Path(folder)
    recover_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: there is no index to load. Write one with `index.save`.")
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {folder} is not, or not completely, an index folder.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"] == FORMAT
        sizes = [manifest["size"], manifest["dimension"] or 0, *(f["bytes"] for f in manifest["files"].values())]
        known = known and all(isinstance(size, int) for size in sizes) and {"kind", "fingerprint"} <= set(manifest)
        version = manifest["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or of another program ({error!r}). Build the index again.") from error
    if not known:
        raise ValueError(f"{path} is damaged or of another program. Build the index again.")
    if version != VERSION:
        raise ValueError(f"{path} has version {version}; this program reads {VERSION}. Build the index again.")
    return folder, manifest


def check_fingerprint(folder: Path, stored: str | None, wanted: str | None) -> None:
    """Refuses an index whose vectors come from another model than the queries will."""
    if wanted is None or stored == wanted:
        return
    known = f"was built with the model {stored}" if stored is not None else "does not say which model it was built with"
    raise ValueError(
        f"The index in {folder} {known}, but `fingerprint` is {wanted}: their cosines would mean nothing. Build the "
        "index again with this model, or load the model that belongs to it."
    )


def checked_file(folder: Path, manifest: dict, name: str) -> Path:
    """Returns the path of a file of the index after comparing its size, and its checksum where one was written."""
    path, facts = folder / name, manifest["files"].get(name)
    if facts is None:
        raise ValueError(f"{folder / MANIFEST} is damaged: it does not list {name}. Build the index again.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Copy the whole folder, or build the index again.")
    size = path.stat().st_size
    if size != facts["bytes"]:
        raise ValueError(f"{path} is damaged: it has {size} bytes instead of {facts['bytes']}. Build the index again.")
    if "crc32" in facts and crc32_of(path) != facts["crc32"]:
        raise ValueError(f"{path} is damaged: its checksum is not the one of {MANIFEST}. Build the index again.")
    return path


def _read_texts(folder, manifest):
    path = checked_file(folder, manifest, TEXTS)
    texts = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = json.loads(line.decode("utf-8", "surrogatepass"))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: not a JSON string ({error}). Build the index again."
                ) from error
            if not isinstance(text, str):
                raise ValueError(f"{path}, line {number}: not a JSON string. Build the index again.")
            texts.append(text)
    if len(texts) != manifest["size"]:
        raise ValueError(f"{path} has {len(texts)} lines instead of {manifest['size']}. Build the index again.")
    return texts


def _open_vectors(folder, manifest):
    # No checksum here: reading the whole file would undo what mapping it gains.
    path = checked_file(folder, manifest, VECTORS)
    shape = manifest["size"], manifest["dimension"] or 0
    try:
        # An empty array cannot be mapped.
        vectors = np.load(path, mmap_mode="r" if manifest["size"] else None, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}). Build the index again.") from error
    if vectors.shape != shape or vectors.dtype != np.dtype("<f4") or not vectors.flags.c_contiguous:
        raise ValueError(
            f"{path} must be float32 of shape {shape}; it is {vectors.dtype} of shape {vectors.shape}. "
            "Build the index again."
        )
    return np.asarray(vectors)
