"""Approximate search with the trees of Annoy, scores exact."""

import functools
import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from simretro.arguments import check_int
from simretro.retrieval.exact import exact_search, rescore
from simretro.retrieval.index import MANIFEST, VectorIndex, checked_file

TREES = "trees.ann"
# Annoy seeds each of its threads, so the trees depend on their number: it is fixed and not taken from the machine.
_BUILD_THREADS = 4


class AnnoyIndex(VectorIndex):
    """Looks at a part of the vectors only, chosen by a forest of random-projection trees.

    What is found has its exact cosine, but a neighbour may be missed: a larger `search_k` misses fewer (more trees
    hardly do, see benchmarks/index_size.py). An index of at most `search_k` texts is searched exactly, which is faster.
    The trees are built at the first search or save after texts were added, all of them anew, because Annoy cannot
    grow a forest: add everything first, then search. Where the package `annoy` cannot be imported, this index
    searches exactly and says so once.

    Args:
        fingerprint: str or None, of the model that makes the vectors.
        n_trees: int >= 1; time to build and memory grow with it.
        search_k: int >= 1 or None, nodes looked at per query; None = the larger of `n_trees * topn` (Annoy's own
            choice) and 20,000.
        seed: int >= 1 of the random projections; the same seed gives the same trees.
    Raises: ValueError for a number out of range.
    Reference: https://github.com/spotify/annoy
    """

    kind = "annoy"

    def __init__(
        self, fingerprint: str | None = None, n_trees: int = 20, search_k: int | None = None, seed: int = 1
    ):  # fmt: skip
        super().__init__(fingerprint)
        self._set(n_trees, search_k, seed)
        self._trees = None
        if _annoy() is None:
            _warn_once()

    def build(self) -> None:
        """Builds the trees now instead of at the first search; does nothing when they are up to date."""
        if self._trees is not None or not len(self) or _annoy() is None:
            return
        trees = _annoy().AnnoyIndex(self.dimension, "angular")
        trees.set_seed(self.seed)
        for row, vector in enumerate(self.vectors):
            trees.add_item(row, vector)
        trees.build(self.n_trees, n_jobs=_BUILD_THREADS)
        self._trees = trees

    def _search(self, queries, topn):
        self.build()
        search_k = self.search_k or max(20_000, self.n_trees * topn)
        # To look at everything through the trees is slower than the matrix product, and not surer.
        if self._trees is None or search_k >= len(self):
            return exact_search(self.vectors, queries, topn)
        candidates = self._candidates(queries, topn, search_k)
        rows = np.repeat(np.arange(len(queries)), [len(ids) for ids in candidates])
        rows, ids, scores = rescore(self.vectors, queries, rows, np.concatenate(candidates), topn)
        full = np.bincount(rows, minlength=len(queries)) == topn  # (Q,)
        result = np.empty((len(queries), topn), "float32"), np.empty((len(queries), topn), "int64")
        chosen = full[rows]
        result[0][full], result[1][full] = scores[chosen].reshape(-1, topn), ids[chosen].reshape(-1, topn)
        if not full.all():
            # The nodes that were looked at held fewer than `topn` different vectors.
            result[0][~full], result[1][~full] = exact_search(self.vectors, queries[~full], topn)
        return result

    def _candidates(self, queries, topn, search_k):
        """Returns for each query the ids of its candidates, int64."""
        # Some more than asked for: Annoy's own distances are float32 and break ties in any order.
        wanted = topn + 16

        def ask(query):
            return np.array(self._trees.get_nns_by_vector(query, wanted, search_k), "int64")

        if len(queries) < 4:
            return [ask(query) for query in queries.tolist()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Annoy searches without the interpreter lock
            return list(pool.map(ask, queries.tolist()))

    def _changed(self):
        self._trees = None

    def _set(self, n_trees, search_k, seed):
        self.n_trees, self.seed = check_int("n_trees", n_trees, 1), check_int("seed", seed, 1)
        self.search_k = None if search_k is None else check_int("search_k", search_k, 1)

    def _settings(self):
        return {"n_trees": self.n_trees, "search_k": self.search_k, "seed": self.seed}

    def _save_more(self, folder):
        self.build()
        if self._trees is None:
            return []
        self._trees.save(str(folder / TREES))
        return [TREES]

    def _load_more(self, folder, manifest):
        if manifest["kind"] == self.kind:
            try:
                self._set(**manifest["settings"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{folder / MANIFEST} is damaged ({error!r}). Build the index again.") from error
        if TREES not in manifest["files"] or _annoy() is None:
            return
        # The checksum matters here: Annoy follows the numbers in the file, and a wrong one ends the process.
        path = checked_file(folder, manifest, TREES)
        trees = _annoy().AnnoyIndex(self.dimension, "angular")
        try:
            trees.load(str(path))
        except OSError as error:
            raise ValueError(f"{path} cannot be read by Annoy ({error}). Build the index again.") from error
        if trees.get_n_items() != len(self):
            raise ValueError(f"{path} holds {trees.get_n_items()} vectors instead of {len(self)}. Build it again.")
        self._trees = trees


@functools.cache
def _annoy():
    """The package, or None where it cannot be imported: it is published as source only and needs a C++ compiler."""
    try:
        import annoy
    except ImportError:
        return None
    return annoy


@functools.cache
def _warn_once():
    warnings.warn(
        "The package `annoy` cannot be imported: the index searches exactly, which is slower for many texts. "
        "Install a C++ compiler and then `pip install annoy`.",
        stacklevel=3,
    )
