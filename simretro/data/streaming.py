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
from simretro.data.table_folder import read_facts, write_facts
from simretro.files import atomic_folder, file_facts

_FORMAT = 3
_LONGEST_STEM = 40  # characters of the source's name in that of a folder
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
            (by size and time), tokenizer and `maxlen` reads only these files, to see that they are whole; what is
            damaged is made anew, nothing else is ever deleted. None: a folder among the system's temporary files,
            which goes with this object.
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
        folder = Path(self._cache_dir) / f"{Path(path).stem[:_LONGEST_STEM]}-{_key(path, *settings)}"
        if folder.is_dir():
            try:
                return _read_table(folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                warn(f"{folder} is made anew, for it is damaged: {error}")
        with atomic_folder(folder) as unfinished:
            table = _write_table(unfinished, path, *settings)
            facts = {"format": _FORMAT, "largest_unit": table.largest_unit, "notes": table.notes}
            del table  # its files are open
            write_facts(unfinished, facts)
        return _read_table(folder, check=False)


def _key(path, tokenizer, limit, segment, whole_word):
    # Not every callable has both names.
    names = None if segment is None else [getattr(segment, a, None) for a in ("__module__", "__qualname__")]
    facts = [_FORMAT, *file_facts(path), tokenizer.fingerprint(), limit, names, whole_word]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _write_table(folder, path, tokenizer, limit, segment, whole_word) -> GroupTable:
    with ExitStack() as files:

        def column(name, dtype):
            return files.enter_context(closing(FileColumn(folder / name, dtype)))

        table = build_table(iter_groups(path), tokenizer, limit, segment, whole_word, column)
    (folder / "hashes").unlink()  # were needed to find the texts that stand in several groups
    for name in _SHARED:
        np.save(folder / f"shared_{name}.npy", getattr(table.shared, name))
    return table


def _read_table(folder, check=True) -> GroupTable:
    facts = read_facts(folder, check)
    columns = {
        name: map_column(folder / name, dtype) if name in facts["files"] else None for name, dtype in _COLUMNS.items()
    }
    shared = SharedTexts(*(np.load(folder / f"shared_{name}.npy", allow_pickle=False) for name in _SHARED))
    return GroupTable(**columns, shared=shared, largest_unit=facts["largest_unit"], notes=facts["notes"])
