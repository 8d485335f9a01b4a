"""Top 10 of 200,000 vectors of 384 numbers: exact search beside NumPy, faiss and torch; Annoy beside an HNSW library.

usage: python benchmarks/search.py --peer-python PEERS/bin/python       about 8 minutes, of which one builds a graph
       (exact search alone: --sides "NumPy,torch,faiss flat")

The vectors are those of index_size.py, and so are the queries. All exact searches must find the same. What approximate
indexes miss, and how long they take to build, stands below the table.
"""

import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from common import OURS, Benchmark, options_of, serve

COUNT, DIMENSION, TOPN = 200_000, 384, 10
TREES, SEARCH_K = "simretro annoy", (5_000, 20_000, 80_000)
GRAPH, EF = "hnswlib", (16, 64, 256)
NUM_TREES, NUM_LINKS, EF_CONSTRUCTION = 100, 16, 200
EXACT_PEERS = ("torch", "faiss flat")


@cache
def arrays(folder):
    return np.load(Path(folder, "vectors.npy")), np.load(Path(folder, "queries.npy"))


def calls_of(settings, search, suffix=""):
    """Of `search`: queries float32 (Q, d) -> ids (Q, 10)."""
    _, queries = arrays(settings["folder"])

    def one_by_one():
        for query in queries:
            search(query[None])

    def found():
        path = f"{settings['folder']}/{settings['side']}{suffix}.npy"
        np.save(path, np.asarray(search(queries)))
        return path

    return {f"one{suffix}": one_by_one, f"hundred{suffix}": lambda: search(queries) is None, f"found{suffix}": found}


def approximate_calls(settings, build, values):
    """Of an index with a setting that trades time for recall; `build()` -> function (value) -> function as above."""
    start = time.perf_counter()
    search_with = build()
    seconds = time.perf_counter() - start
    calls = {"build": lambda: seconds}
    for value in values:
        calls |= calls_of(settings, search_with(value), f" {value}")
    return calls


def simretro(settings):
    from simretro.retrieval import ExactIndex

    vectors, _ = arrays(settings["folder"])
    index = ExactIndex()
    index.add(vectors, [""] * len(vectors))
    return calls_of(settings, lambda queries: index.search(queries, TOPN)[1]), ("numpy",)


def simretro_annoy(settings):
    from simretro.retrieval import AnnoyIndex

    vectors, _ = arrays(settings["folder"])

    def build():
        index = AnnoyIndex(n_trees=NUM_TREES)
        index.add(vectors, [""] * len(vectors))
        index.build()

        def search_with(search_k):
            def search(queries):
                index.search_k = search_k
                return index.search(queries, TOPN)[1]

            return search

        return search_with

    return approximate_calls(settings, build, SEARCH_K), ("annoy", "numpy")


def numpy_search(settings):
    """What a user writes without a library."""
    vectors, _ = arrays(settings["folder"])

    def search(queries):
        scores = queries @ vectors.T
        part = np.argpartition(scores, -TOPN, axis=1)[:, -TOPN:]
        order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1)
        return np.take_along_axis(part, order, 1)

    return calls_of(settings, search), ("numpy",)


def torch_search(settings):
    import torch

    torch.set_num_threads(settings["threads"])
    vectors = torch.from_numpy(arrays(settings["folder"])[0])

    def search(queries):
        with torch.inference_mode():
            return torch.topk(torch.from_numpy(queries) @ vectors.T, TOPN).indices

    return calls_of(settings, search), ("torch",)


def faiss_flat(settings):
    import faiss

    faiss.omp_set_num_threads(settings["threads"])
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(arrays(settings["folder"])[0])
    return calls_of(settings, lambda queries: index.search(queries, TOPN)[1]), ("faiss-cpu",)


def hnswlib_graph(settings):
    import hnswlib

    vectors, _ = arrays(settings["folder"])

    def build():
        index = hnswlib.Index("ip", DIMENSION)
        index.init_index(len(vectors), EF_CONSTRUCTION, NUM_LINKS)
        index.set_num_threads(settings["threads"])
        index.add_items(vectors)

        def search_with(ef):
            def search(queries):
                index.set_ef(ef)
                return index.knn_query(queries, TOPN)[0]

            return search

        return search_with

    return approximate_calls(settings, build, EF), ("hnswlib",)


def main():
    from index_size import make_vectors

    options = options_of(__doc__, 3, 5)
    count = 20_000 if options.quick else COUNT
    with Benchmark(__file__, options, f"top {TOPN} of {count:,} x {DIMENSION}") as benchmark:
        vectors, queries = make_vectors(count, DIMENSION)
        np.save(Path(benchmark.folder, "vectors.npy"), vectors)
        np.save(Path(benchmark.folder, "queries.npy"), queries)
        del vectors
        for side in (OURS, "NumPy", TREES):
            benchmark.start(side, sys.executable)
        for side in (*EXACT_PEERS, GRAPH):
            benchmark.start(side, options.peer_python)
        benchmark.measure("one", "one query", "ms", len(queries))
        benchmark.measure("hundred", f"{len(queries)} queries at once", "ms")
        found = {side: np.load(path) for side, path in benchmark.values("found").items()}
        for side, ids in found.items():
            share = float((ids == found[OURS]).mean())
            if share < 0.999:  # but for ties
                raise RuntimeError(f"simretro and {side} do not find the same: {share:.4f}.")
        for side, word, values in ((TREES, "search_k", SEARCH_K), (GRAPH, "ef", EF)):
            if side in benchmark.workers:
                measure_curve(benchmark, side, word, values, len(queries), found[OURS])
        benchmark.report()


def measure_curve(benchmark, side, word, values, num_queries, best):
    recalls = []
    for value in values:
        benchmark.measure(f"one {value}", f"one query, {word} {value:,}", "ms", num_queries)
        benchmark.measure(f"hundred {value}", f"{num_queries} queries at once, {word} {value:,}", "ms")
        ids = np.load(benchmark.values(f"found {value}")[side])
        recall = np.mean([len(set(a) & set(b)) / TOPN for a, b in zip(ids.tolist(), best.tolist(), strict=True)])
        recalls.append(f"{recall:.3f} with {word} {value:,}")
    seconds = benchmark.values("build")[side]
    benchmark.note(f"{side}: built in {seconds:.1f} s; finds {', '.join(recalls)} of the nearest {TOPN}.")


SIDES = {OURS: simretro, "NumPy": numpy_search, TREES: simretro_annoy}
SIDES |= {"torch": torch_search, "faiss flat": faiss_flat, GRAPH: hnswlib_graph}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
