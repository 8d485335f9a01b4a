"""The same batches for files that are larger than the memory."""

from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from simretro.data.groups import iter_groups
from simretro.data.pairs import SimilarPairs
from simretro.data.table import FileColumn, GroupTable, SharedTexts, build_table, map_column
from simretro.data.table_folder import cached_table, name_of, read_facts, temporary_table, write_facts
from simretro.files import file_facts

_FORMAT = 3
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
            (by name, size, time and its ends), tokenizer and `maxlen` reads only these files, to see that they are
            whole; what is damaged is made anew, nothing else is ever deleted. None: a folder among the system's
            temporary files, which goes with this object.
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
        settings = (path, tokenizer, limit, segment, whole_word)
        if self._cache_dir is None:
            return temporary_table("simretro-pairs-", self, lambda folder: _write_table(folder, *settings))

        def write(folder):
            table = _write_table(folder, *settings)
            facts = {"format": _FORMAT, "largest_unit": table.largest_unit, "notes": table.notes}
            del table  # its files are open
            write_facts(folder, facts)

        key = [_FORMAT, *file_facts(path), tokenizer.fingerprint(), limit, name_of(segment), whole_word]
        return cached_table(self._cache_dir, path, key, write, _read_table)


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
