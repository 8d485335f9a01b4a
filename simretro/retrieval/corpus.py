"""Encoding a corpus into a folder, which a killed run goes on with.

A folder holds

    vectors.npy        the vectors, (N, d) or, of the kind "binary", (N, ceil(d / 8)); opened with mmap
    ids.jsonl          the id of each document, one JSON string a line
    calibration.npy    only of the kind "int8": what the codes mean
    corpus.json        settings and sizes, written last: a folder without it is not finished
    progress.json      only of a folder that is not finished: settings, and how far it is

With several shards each has a folder of its own in the one that is named, `shard-2-of-8`.
"""

import io
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from simretro.arguments import check_int, warn
from simretro.data.documents import Document, document_files, iter_files
from simretro.files import atomic_file, remove_unfinished
from simretro.lines import iter_lines
from simretro.retrieval.encoders import encoders_of, vectors_of
from simretro.retrieval.index import normalize_rows
from simretro.retrieval.stored_vectors import DTYPES, calibrate, from_codes, stored_dtype, stored_width, to_codes

FORMAT, VERSION = "simretro-corpus", 1
MANIFEST, PROGRESS = "corpus.json", "progress.json"
VECTORS, IDS, CALIBRATION = "vectors.npy", "ids.jsonl", "calibration.npy"
_HEADER_BYTES = 128
_LONG_INPUT = 2_000  # documents from which a progress bar is shown
_MANY_CLIPPED = 0.001


def encode_corpus(
    model,
    source: str | Path | Mapping[str, str] | Iterable,
    folder: str | Path,
    dtype: str = "float32",
    *,
    block_size: int = 4096,
    shard_index: int = 0,
    num_shards: int = 1,
    similarity: str | None = None,
    batch_size: int = 32,
    show_progress: bool | None = None,
) -> Path:
    """Encodes documents one block at a time into a folder, for `EncodedCorpus.load`.

    Called again with the same arguments it goes on behind the last finished block, after a kill at any moment too, and
    the files are those of a run that was not interrupted, byte for byte. The documents are read again from the start,
    but not encoded, to see that they are the same. A finished folder is only compared.

    The texts of a block are given to the model longest first, so that batches have texts of like length; the order of
    the vectors is that of the documents. In memory are a block and all ids, to find one that occurs twice.

    Args:
        model: `BiEncoder` (what `encode_passages` gives), `SentenceEncoder`, another model with `encode`; or a
            function: list of texts -> numbers (N, d).
        source: path of documents, see `simretro.data.iter_documents`, or of a folder in BEIR's layout, whose
            `corpus.jsonl` is read; {id: text}; or an iterable of (id, text) or `Document`. A document without an id has
            its number, counted from 0.
        folder: made if missing.
        dtype: "float32"; "float16"; "int8", 255 steps a dimension between the smallest and the largest number of the
            first block (numbers beyond are clipped, and told where they are many); "binary", the sign of each number.
        block_size: int >= 1, documents of a block: what a kill loses at most.
        shard_index: int, which shard this call encodes: every `num_shards`-th document from this one on.
        num_shards: int >= 1, calls that share the work, on machines of their own if you like.
        similarity: "cosine" (vectors are normalised) or "dot"; None = the model's own, or "cosine".
        batch_size: int >= 1, for the model's `encode`; a function gets all texts of a block. A run that is to be gone
            on with byte for byte needs the same one.
        show_progress: bool; None = for 2,000 documents or more, if their number is known.
    Returns: the folder with the vectors of this shard.
    Raises:
        ValueError: for an argument out of range; an id that occurs twice; vectors that are not finite; a folder of
            another model, other documents or settings, naming what differs.
        OSError: if a file cannot be read or written.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {DTYPES}; received {dtype!r}.")
    block_size = check_int("block_size", block_size, 1)
    num_shards = check_int("num_shards", num_shards, 1)
    shard_index = check_int("shard_index", shard_index, 0)
    if shard_index >= num_shards:
        raise ValueError(f"`shard_index` must be below `num_shards`={num_shards}; received {shard_index}.")
    batch_size = check_int("batch_size", batch_size, 1)
    encoders = encoders_of(model, similarity, batch_size)
    settings = {
        "model": encoders.fingerprint,
        "passage_prefix": encoders.passage_prefix,
        "engine": encoders.engine,
        "similarity": encoders.similarity,
        "dtype": dtype,
        "block_size": block_size,
        "shard_index": shard_index,
        "num_shards": num_shards,
    }
    folder = Path(folder)
    if num_shards > 1:
        folder /= f"shard-{shard_index}-of-{num_shards}"
    state = _begin(folder, settings)
    source, total = _counted(source)
    own = None if total is None else -((shard_index - total) // num_shards)
    progress = _Progress(own, show_progress)
    documents = _Documents(source, shard_index, num_shards)
    documents.skip(state, folder)
    if state["finished"]:
        documents.expect_end(folder, state["rows"])
        _check_sizes(folder, state, exactly=True)
        (folder / PROGRESS).unlink(missing_ok=True)  # of a run that was killed in its last moment
        return folder
    with _Writer(folder, settings, state) as writer:
        progress.update(writer.rows)
        while block := list(itertools.islice(documents, block_size)):
            writer.add(block, _encode_block(encoders, [text for _, text in block]), documents.checksum)
            progress.update(writer.rows)
        writer.finish()
    progress.end(writer.rows)
    return folder


def _encode_block(encoders, texts):
    order = np.argsort([-len(text) for text in texts], kind="stable")
    found = vectors_of(encoders.passages, [texts[place] for place in order], "model")
    vectors = np.empty_like(found)
    vectors[order] = found
    return normalize_rows(vectors) if encoders.similarity == "cosine" else vectors.astype("float32")


def _begin(folder, settings):
    """The state of a folder: of a finished one, of one to go on with, or of a new one."""
    if folder.is_dir():
        remove_unfinished(folder, [MANIFEST, PROGRESS, CALIBRATION])
    for name in (MANIFEST, PROGRESS):
        if not (folder / name).is_file():
            continue
        state = read_json(folder / name)
        differences = setting_differences(state["settings"], settings)
        if differences:
            raise ValueError(
                f"{folder} holds a corpus of other settings: {differences}. Give these, or name another folder."
            )
        return {**state, "finished": name == MANIFEST}
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"`folder` must be new, empty, or hold an encoded corpus; {folder} holds other files.")
    folder.mkdir(parents=True, exist_ok=True)
    state = {"format": FORMAT, "version": VERSION, "settings": settings, "rows": 0}
    _write_json(folder / PROGRESS, state)
    return {**state, "finished": False}


def setting_differences(before: dict, now: dict) -> str:
    """In words; empty where there are none."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"`{name}` was {before.get(name)!r}, is {now.get(name)!r}" for name in names)


def read_json(path: Path) -> dict:
    """Manifest or progress of a folder; raises ValueError naming the file where it is damaged."""
    try:
        state = json.loads(path.read_text("utf-8"))
        known = state["format"] == FORMAT and isinstance(state["settings"], dict)
        version = state["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}). Remove the folder and encode the corpus again.") from error
    if not known or version != VERSION:
        raise ValueError(f"{path} is of another program, or of another version of this one. Encode the corpus again.")
    return state


def _counted(source):
    """(iterable of documents, their number or None)."""
    if isinstance(source, Mapping):
        return source.items(), len(source)
    if not isinstance(source, str | Path):
        return source, len(source) if hasattr(source, "__len__") else None
    path = Path(source)
    if (path / "corpus.jsonl").is_file():
        path = path / "corpus.jsonl"
    files = document_files(path)
    # Reading the lines once takes next to nothing beside encoding them, and without their number no end is in sight.
    return iter_files(files, path), sum(1 for file in files for _ in iter_lines(file))


class _Documents:
    """The documents of a shard one by one, as (id, text); `checksum` is of all that were taken."""

    def __init__(self, source, shard_index, num_shards):
        self.checksum = 0
        self._all = self._checked(source)
        self._own = itertools.islice(self._all, shard_index, None, num_shards)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self

    def __next__(self):
        key, text = next(self._own)
        self.checksum = zlib.crc32(json.dumps([key, text]).encode(), self.checksum)
        return key, text

    def skip(self, state, folder):
        """Passes over those that are encoded; raises ValueError if they are others."""
        taken = sum(1 for _ in itertools.islice(self, state["rows"]))
        if taken < state["rows"] or self.checksum != state.get("documents_crc32", 0):
            raise ValueError(
                f"{folder} holds the vectors of other documents: the first {state['rows']} of this shard are not those "
                "of `source`. Name another folder for these."
            )

    def expect_end(self, folder, rows):
        if next(self, None) is not None:
            raise ValueError(
                f"{folder} holds the vectors of {rows} documents, but `source` has more. Name another folder for these."
            )

    def _checked(self, source):
        seen = set()
        for number, item in enumerate(source):
            key, text, place = _parts(item, number)
            if key in seen:
                raise ValueError(f"{place}: the id {key!r} occurs twice. Give each document an id of its own.")
            seen.add(key)
            yield key, text
        if not seen:
            raise ValueError("`source` must hold at least one document; received none.")


def _parts(item, number):
    """(id, text, place) of a document."""
    if isinstance(item, Document):
        place = item.place if item.line is not None else f"document {number}"
        return str(number) if item.id is None else item.id, item.full_text, place
    place = f"document {number}"
    if not isinstance(item, tuple | list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
        raise ValueError(f"{place}: must be (id, text), both str, or a `Document`; received {str(item)[:100]!r}.")
    return *item, place


def _sizes(state):
    """{file: its bytes} in a given state."""
    vectors_bytes = 0
    if state["rows"]:
        dtype = state["settings"]["dtype"]
        row_bytes = stored_width(dtype, state["dimension"]) * stored_dtype(dtype).itemsize
        vectors_bytes = _HEADER_BYTES + state["rows"] * row_bytes
    return {VECTORS: vectors_bytes, IDS: state.get("ids_bytes", 0)}


def _check_sizes(folder, state, exactly=False):
    for name, size in _sizes(state).items():
        path = folder / name
        found = path.stat().st_size if path.exists() else 0
        if found < size or (exactly and found > size):
            raise ValueError(
                f"{path} is damaged: it has {found} bytes in place of {size}. Remove the folder and encode the corpus "
                "again."
            )


class _Writer:
    """Adds blocks to the files of a folder; what is there beyond the last finished block is cut off.

    It holds a lock on the vectors, which ends with its process. Where the system has none (Windows, some network
    drives), a second writer is found out by files that are of another size than this one has left them.
    """

    def __init__(self, folder, settings, state):
        self.folder, self.settings, self.dtype = folder, settings, settings["dtype"]
        self.rows, self.dimension = state["rows"], state.get("dimension")
        self.ids_bytes, self.checksum = state.get("ids_bytes", 0), state.get("documents_crc32", 0)
        self.clipped, self.longest = state.get("clipped", 0), state.get("longest", 0.0)
        self.calibration = None
        if self.dtype == "int8" and self.rows:
            self.calibration = np.load(folder / CALIBRATION, allow_pickle=False)
        _check_sizes(folder, state)
        self._locked = open(folder / VECTORS, "ab")
        if not _lock(self._locked):
            self._locked.close()
            raise ValueError(_two_writers(folder))
        for name, size in _sizes(state).items():
            with open(folder / name, "ab") as file:
                file.truncate(size)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._locked.close()

    def add(self, block, vectors, checksum):
        if self.dimension is None:
            self.dimension = vectors.shape[1]
        if vectors.shape[1] != self.dimension:
            raise ValueError(
                f"`model` must give vectors of one dimension; received {vectors.shape[1]} after {self.dimension}."
            )
        if self.dtype == "int8" and self.calibration is None:
            self.calibration = calibrate(vectors)
            with atomic_file(self.folder / CALIBRATION) as file:
                np.save(file, self.calibration, allow_pickle=False)
        codes, clipped = to_codes(vectors, self.dtype, self.calibration)
        kept = from_codes(codes, self.dtype, self.dimension, self.calibration).astype("float64")
        self.longest = max(self.longest, float(np.sqrt(np.einsum("ij,ij->i", kept, kept)).max()))
        lines = b"".join(json.dumps(key).encode() + b"\n" for key, _ in block)
        sizes = _sizes(self._state())
        _append(self.folder / VECTORS, sizes[VECTORS], b"" if self.rows else self._header(0), codes)
        _append(self.folder / IDS, sizes[IDS], lines)
        self.rows, self.clipped = self.rows + len(block), self.clipped + clipped
        self.ids_bytes, self.checksum = self.ids_bytes + len(lines), checksum
        self._record(PROGRESS)

    def finish(self):
        """Writes the number of rows into the header of the vectors, then the manifest."""
        if not self.rows:
            raise ValueError(
                f"`num_shards` must be at most the number of documents; received {self.settings['num_shards']}, and "
                f"shard {self.settings['shard_index']} has none."
            )
        share = self.clipped / (self.rows * self.dimension)
        if share > _MANY_CLIPPED:
            warn(
                f"{share:.1%} of the numbers are beyond the range of the first {self.settings['block_size']} documents "
                'and have been clipped. Shuffle the documents, give a larger `block_size`, or take `dtype="float16"`.'
            )
        with open(self.folder / VECTORS, "r+b") as file:
            file.write(self._header(self.rows))
            _sync(file)
        self._record(MANIFEST)
        (self.folder / PROGRESS).unlink()

    def _header(self, rows):
        """Of a `.npy` file; always of the same size, since NumPy leaves room for the number of rows to grow."""
        shape = rows, stored_width(self.dtype, self.dimension)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": stored_dtype(self.dtype).str, "fortran_order": False, "shape": shape}
        )
        return header.getvalue()

    def _record(self, name):
        _write_json(self.folder / name, self._state())

    def _state(self):
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "rows": self.rows,
            "dimension": self.dimension,
            "ids_bytes": self.ids_bytes,
            "documents_crc32": self.checksum,
            "longest": self.longest,
            "clipped": self.clipped,
        }


def _write_json(path, state):
    with atomic_file(path, "w") as file:
        json.dump(state, file, indent=1)


def _append(path, size, *pieces):
    """Adds to a file that must have `size` bytes."""
    with open(path, "ab") as file:
        if file.seek(0, os.SEEK_END) != size:
            raise ValueError(_two_writers(path.parent))
        for piece in pieces:
            file.write(piece)
        _sync(file)


def _lock(file):
    """False if another open file has the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            return True
    return True


def _two_writers(folder):
    return (
        f"{folder} is being written by another call of `encode_corpus`. Wait for it to end, or stop it and call again; "
        "of several shards, each is for one call."
    )


def _sync(file):
    file.flush()
    os.fsync(file.fileno())


class _Progress:
    """A bar with the time that is left, where the number of documents is known."""

    def __init__(self, total, shown):
        self._bar = None
        if shown or (shown is None and total is not None and total >= _LONG_INPUT):
            import keras  # here: searching needs no Keras

            self._bar = keras.utils.Progbar(total, unit_name="document")

    def update(self, done):
        if self._bar and done:
            self._bar.update(done, finalize=False)

    def end(self, done):
        if self._bar:
            self._bar.update(done, finalize=True)
