"""The same batches for files that are larger than the memory."""

import hashlib
import json
import shutil
import tempfile
import weakref
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from simretro.arguments import warn
from simretro.data.groups import iter_groups
from simretro.data.pairs import SimilarPairs
from simretro.data.table import FileColumn, GroupTable, SharedTexts, build_table, map_column
from simretro.files import atomic_folder

_FORMAT = 2
_COLUMNS = {"token_ids": "int32", "text_starts": "int64", "group_starts": "int64", "units": "uint16"}
_SHARED = ("texts", "numbers", "starts", "groups")


class StreamingSimilarPairs(SimilarPairs):
    """`SimilarPairs` of a file whose texts do not fit into memory: the same batches, promises and way to resume.

    The file is read and tokenised once, part by part; the token ids go into files that are mapped and read where a
    batch needs them. In memory stay about 4 bytes for each text and, while an epoch is planned, 100 for each pair.

    Args:
        path: file of groups, see `iter_groups`.
        tokenizer, pairs_per_batch, maxlen, seed: as of `SimilarPairs`.
        cache_dir: folder for the token ids, 4 bytes a token and 8 a text. With it, the next run with the same file
            (by size and time), tokenizer and `maxlen` starts at once; nothing is ever deleted from it, but what is
            damaged is made anew. None: a folder
            among the system's temporary files, which goes with this object.
        **settings: other arguments of `SimilarPairs`. A `segment` is known in the cache by its name: use another
            `cache_dir` after changing what it does.
    Raises: as `SimilarPairs`; OSError if there is no room for the files.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer,
        pairs_per_batch: int = 64,
        maxlen: int = 64,
        seed: int = 0,
        *,
        cache_dir: str | Path | None = None,
        **settings,
    ):
        self._cache_dir = cache_dir
        super().__init__(path, tokenizer, pairs_per_batch, maxlen, seed, **settings)

    def _make_table(self, path, tokenizer, limit, segment, whole_word):
        if not isinstance(path, str | Path):
            raise ValueError(f"`path` must be the path of a file; received {type(path).__name__}. Use `SimilarPairs`.")
        settings = (tokenizer, limit, segment, whole_word)
        if self._cache_dir is None:
            folder = Path(tempfile.mkdtemp(prefix="simretro-pairs-"))
            remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            try:
                return _write_table(folder, path, *settings)
            except BaseException:
                remove()
                raise
        folder = Path(self._cache_dir) / f"{Path(path).stem}-{_key(path, *settings)}"
        damage = _damage(folder)
        if damage:
            if folder.is_dir():
                warn(f"{folder} is made anew, for it is damaged: {damage}.")
            with atomic_folder(folder) as unfinished:
                _write_table(unfinished, path, *settings)
        return _read_table(folder)


def _key(path, tokenizer, limit, segment, whole_word):
    status = Path(path).stat()
    # Not every callable has both names.
    names = None if segment is None else [getattr(segment, a, None) for a in ("__module__", "__qualname__")]
    facts = [_FORMAT, status.st_size, status.st_mtime_ns, tokenizer.fingerprint(), limit, names, whole_word]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _write_table(folder, path, tokenizer, limit, segment, whole_word) -> GroupTable:
    with ExitStack() as files:

        def column(name, dtype):
            return files.enter_context(closing(FileColumn(folder / name, dtype)))

        table = build_table(iter_groups(path), tokenizer, limit, segment, whole_word, column)
    (folder / "hashes").unlink()  # were needed to find the texts that stand in several groups
    for name in _SHARED:
        np.save(folder / f"shared_{name}.npy", getattr(table.shared, name))
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    facts = {"format": _FORMAT, "largest_unit": table.largest_unit, "notes": table.notes, "bytes": sizes}
    (folder / "facts.json").write_text(json.dumps(facts), "utf-8")
    return table


def _damage(folder) -> str:
    """What is wrong with the files of a cache, in words; empty where nothing is."""
    try:
        sizes = json.loads((folder / "facts.json").read_text("utf-8"))["bytes"]
        found = {name: (folder / name).stat().st_size for name in sizes}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return str(error)
    wrong = [name for name in sizes if found[name] != sizes[name]]
    return ", ".join(f"{name} has {found[name]} bytes, not {sizes[name]}" for name in wrong)


def _read_table(folder) -> GroupTable:
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    columns = {
        name: map_column(folder / name, dtype) if (folder / name).exists() else None for name, dtype in _COLUMNS.items()
    }
    shared = SharedTexts(*(np.load(folder / f"shared_{name}.npy", allow_pickle=False) for name in _SHARED))
    return GroupTable(**columns, shared=shared, largest_unit=facts["largest_unit"], notes=facts["notes"])
