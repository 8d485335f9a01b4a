"""Making and opening an index without naming its class."""

import os
from collections.abc import Sequence

from numpy.typing import ArrayLike

from simretro.files import read_whole
from simretro.retrieval.annoy import AnnoyIndex
from simretro.retrieval.exact import ExactIndex
from simretro.retrieval.index import MANIFEST, VectorIndex, read_manifest

KINDS = {index.kind: index for index in (ExactIndex, AnnoyIndex)}
# One exact query among so many costs about as long as encoding it does, a batch of queries less than with Annoy, and
# nothing is missed; above, Annoy answers a single query several times faster. See benchmarks/index_size.py.
EXACT_UP_TO = 100_000


def build_index(
    vectors: ArrayLike, texts: Sequence[str], kind: str | None = None, fingerprint: str | None = None
) -> VectorIndex:  # fmt: skip
    """Builds an index of texts and their vectors.

    Args:
        vectors: numbers (N, d); normalised here.
        texts: N strings.
        kind: "exact", "annoy" or None = exact up to `EXACT_UP_TO` texts, Annoy above.
        fingerprint: str or None, of the model that made the vectors.
    Returns: an `ExactIndex` or an `AnnoyIndex`, the latter with its trees built.
    Raises: ValueError for an unknown `kind`, or from `add`.
    """
    if kind is None:
        kind = ExactIndex.kind if len(texts) <= EXACT_UP_TO else AnnoyIndex.kind
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {sorted(KINDS)} or None; received {kind!r}.")
    index = KINDS[kind](fingerprint=fingerprint)
    index.add(vectors, texts)
    if isinstance(index, AnnoyIndex):
        index.build()
    return index


def load_index(folder: str | os.PathLike, fingerprint: str | None = None) -> VectorIndex:
    """Opens a folder that `index.save` wrote, as the kind of index that wrote it.

    Args:
        folder: path of the folder.
        fingerprint: str or None, of the model that will make the queries; an index of another model is refused.
            None = not compared.
    Returns: the index; its vectors are mapped, not read.
    Raises: FileNotFoundError or ValueError, see `VectorIndex.load`.
    """

    def read():
        path, manifest = read_manifest(folder)
        if manifest["kind"] not in KINDS:
            raise ValueError(f"{path / MANIFEST}: unknown kind {manifest['kind']!r}; known are {sorted(KINDS)}.")
        return KINDS[manifest["kind"]].load(path, fingerprint)

    return read_whole(folder, read)
