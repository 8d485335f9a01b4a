"""From which size on is Annoy worth its build? About 3 minutes.

usage: python benchmarks/index_size.py [--sizes 1000,10000,30000,100000,200000] [--dimensions 256,768] [--runs 7]
       OPENBLAS_NUM_THREADS=1 python benchmarks/index_size.py --clock cpu    (where other jobs are running)

Vectors: clusters with a decaying spectrum; queries: disturbed rows. Everything in one process, medians, one table each
and one JSON line with all figures. Annoy's batches and its building use several threads.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np

from simretro.retrieval import AnnoyIndex, ExactIndex, normalize_rows

TOPN, NUM_QUERIES, NUM_TREES = 10, 100, 20
SEARCH_K = (5_000, 20_000)


def make_vectors(count, dimension, clusters=2000, rank=64, seed=0):
    """float32 (count, dimension) and (NUM_QUERIES, dimension), unit rows."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dimension, rank)))[0].T.astype("float32")
    basis *= (np.arange(1, rank + 1) ** -0.5).astype("float32")[:, None]
    noise = rng.standard_normal((count, rank), dtype="float32") * np.float32(0.6)
    centres = rng.standard_normal((clusters, rank), dtype="float32")
    vectors = (centres[rng.integers(0, clusters, count)] + noise) @ basis
    vectors = normalize_rows(vectors + np.float32(0.02) * rng.standard_normal(vectors.shape, dtype="float32"))
    moved = 0.3 * normalize_rows(rng.standard_normal((NUM_QUERIES, rank), dtype="float32") @ basis)
    return vectors, normalize_rows(vectors[rng.integers(0, count, NUM_QUERIES)] + moved)


clock = time.perf_counter


def milliseconds(function, runs, warm_up_seconds=0.5):
    """Median, and (least, most)."""
    end = clock() + warm_up_seconds
    while True:
        function()
        if clock() > end:
            break
    times = []
    for _ in range(runs):
        start = clock()
        function()
        times.append(1000 * (clock() - start))
    return statistics.median(times), min(times), max(times)


def one_by_one(search, queries, runs):
    """Time of a single query, over different queries."""
    turn = iter(range(10**9))
    return milliseconds(lambda: search(queries[next(turn) % len(queries)][None]), max(runs, 20))


def fill(index, vectors):
    index.add(vectors, [""] * len(vectors))
    return index


def exact_or_annoy(vectors, queries, runs):
    exact = fill(ExactIndex(), vectors)
    best = exact.search(queries, TOPN)[1].tolist()
    row = {
        "size": len(vectors), "dimension": vectors.shape[1],
        "exact_one_ms": one_by_one(lambda q: exact.search(q, TOPN), queries, runs),
        "exact_hundred_ms": milliseconds(lambda: exact.search(queries, TOPN), runs),
    }  # fmt: skip
    trees = fill(AnnoyIndex(n_trees=NUM_TREES), vectors)
    start = clock()
    trees.build()
    row["build_s"] = clock() - start
    for search_k in SEARCH_K:
        if search_k >= len(vectors):
            continue  # the index would search exactly
        trees.search_k = search_k
        found = trees.search(queries, TOPN)[1].tolist()
        row[f"annoy_{search_k}"] = {
            "one_ms": one_by_one(lambda q: trees.search(q, TOPN), queries, runs),
            "hundred_ms": milliseconds(lambda: trees.search(queries, TOPN), runs),
            "recall": float(np.mean([len(set(a) & set(b)) / TOPN for a, b in zip(found, best, strict=True)])),
        }
    return row


def print_table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1000,10000,30000,100000,200000")
    parser.add_argument("--dimensions", default="256,768")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    options = parser.parse_args()
    global clock
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    sizes = [int(size) for size in options.sizes.split(",")]

    def ms(times):
        return f"{times[0]:.2f} ({times[1]:.2f}-{times[2]:.2f})"

    result = {
        "task": "index_size",
        "clock": options.clock,
        "load_before": os.getloadavg()[0],
        "sizes": [],
    }
    for dimension in map(int, options.dimensions.split(",")):
        for size in sizes:
            result["sizes"].append(exact_or_annoy(*make_vectors(size, dimension), options.runs))
    rows = []
    for row in result["sizes"]:
        cells = [f"{row['size']:,} x {row['dimension']}", ms(row["exact_one_ms"]), ms(row["exact_hundred_ms"])]
        cells.append(f"{row['build_s']:.1f}")
        for search_k in SEARCH_K:
            some = row.get(f"annoy_{search_k}")
            cells += [ms(some["one_ms"]), ms(some["hundred_ms"]), f"{some['recall']:.3f}"] if some else ["-"] * 3
        rows.append(cells)
    header = ["size", "exact: 1, ms", "100, ms", f"Annoy, {NUM_TREES} trees: build, s"]
    for search_k in SEARCH_K:
        header += [f"search_k {search_k:,}: 1, ms", "100, ms", "recall@10"]
    print_table(header, rows)
    result["load_after"] = os.getloadavg()[0]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
