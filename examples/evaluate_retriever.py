"""Measure a retriever: trec_eval's metrics with intervals, BM25 and hybrid search beside it, and whether they differ.

    python examples/evaluate_retriever.py --model runs/retriever/model --data beir/nfcorpus --bm25 --hybrid
    python examples/evaluate_retriever.py --model runs/retriever/model --data beir/nq --corpus-folder enc --dtype int8
    python examples/evaluate_retriever.py --data beir/nq --corpus-folder enc --num-shards 8 --shard-index 3

With --shard-index only this shard of the corpus is encoded; once all are there, the call without it measures. Without
--data: the documentation of the installed packages, on which examples/train_retriever.py trains by itself.
"""

import argparse
import os
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import python_docs
from command_line import HelpFormatter, one_line_errors
from simretro import BiEncoder
from simretro.evaluation import (
    bm25_run,
    fuse_runs,
    paired_difference,
    read_beir,
    retrieval_metrics,
    search_collection,
    search_encoded,
    write_run,
)
from simretro.files import atomic_file
from simretro.models import ENGINE_NAMES
from simretro.retrieval import EncodedCorpus, encode_corpus
from simretro.tokenizers import TruncationWarning

METRICS = ("nDCG@10", "RR@10", "RR@100", "R@10", "R@100", "AP")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    model = parser.add_argument_group("model")
    model.add_argument("--model", default="runs/retriever/model", help="folder or hub name")
    model.add_argument("--pooling", choices=["cls", "mean", "pooler"], help="instead of the model's own")
    model.add_argument("--similarity", choices=["cosine", "dot"], help="instead of the model's own")
    model.add_argument("--query-prefix", help="instead of the model's own")
    model.add_argument("--passage-prefix", help="instead of the model's own")
    model.add_argument("--query-maxlen", type=int, help="instead of the model's own")
    model.add_argument("--passage-maxlen", type=int, help="instead of the model's own")
    model.add_argument("--engine", default="keras", choices=ENGINE_NAMES, help="what encodes on a CPU")
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, help="BEIR folder")
    data.add_argument("--split", default="test", help="whose queries are searched")
    data.add_argument("--bm25", action="store_true", help="measure BM25, too")
    data.add_argument("--hybrid", action="store_true", help="and both fused by their ranks")
    data.add_argument("--top-k", type=int, default=1000, help="documents found for each query")
    data.add_argument("--metrics", nargs="+", default=METRICS, help="as of ir-measures; AP is MAP, RR is MRR")
    corpus = parser.add_argument_group("corpus")
    corpus.add_argument("--corpus-folder", type=Path, help="vectors of the documents; a killed run goes on there")
    corpus.add_argument(
        "--dtype", default="float32", choices=["float32", "float16", "int8", "binary"], help="of the vectors in it"
    )
    corpus.add_argument("--num-shards", type=int, help="how many there are in all")
    corpus.add_argument("--shard-index", type=int, help="encode this shard only")
    corpus.add_argument("--batch-size", type=int, default=64, help="texts of 64 tokens on the device at a time")
    output = parser.add_argument_group("output")
    output.add_argument("--run", type=Path, help="write the ranking in TREC's format; others beside it: out.bm25.trec")
    output.add_argument("--per-query", type=Path, help="write the values of each query, columns between tabs")
    output.add_argument("--seed", type=int, default=0, help="of intervals and tests")
    options = parser.parse_args(arguments)
    if options.corpus_folder is None and (options.dtype != "float32" or options.shard_index is not None):
        parser.error("--dtype and --shard-index are those of --corpus-folder")
    if (options.shard_index is None) != (options.num_shards is None):
        parser.error("--shard-index and --num-shards belong together")
    for name in ("top_k", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1; received {getattr(options, name)}")
    for path in (options.run, options.per_query):
        if path is not None and not path.parent.is_dir():
            parser.error(f"{path}: the folder does not exist")
    return options


def load_model(options):
    names = ("pooling", "similarity", "query_prefix", "passage_prefix", "query_maxlen", "passage_maxlen")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    model = BiEncoder.from_pretrained(options.model, **given)
    model.engine = options.engine
    return model


def encoders(model, options):
    """(queries, passages): functions from texts to vectors."""

    def with_options(encode):
        return lambda texts: encode(texts, batch_size=options.batch_size, show_progress=False)

    return with_options(model.encode_queries), with_options(model.encode_passages)


def open_corpus(model, collection, options):
    """The encoded corpus, made first where it is not there; None if only a shard was to be encoded."""
    folder, is_shard = options.corpus_folder, options.shard_index is not None
    shards = [path.parent for path in sorted(folder.glob("shard-*-of-*/corpus.json"))]
    if is_shard:
        wanted = [{"shard_index": options.shard_index, "num_shards": options.num_shards}]
    else:  # what is finished is only compared with the documents and the options
        wanted = [
            dict(zip(("shard_index", "num_shards"), map(int, path.name.split("-")[1::2]), strict=True))
            for path in shards
        ]
    for shard in wanted or [{}]:
        made = encode_corpus(model, collection.documents, folder, options.dtype, batch_size=options.batch_size, **shard)
    if is_shard:
        print(f"encoded: {made}")
        return None
    corpus = EncodedCorpus.load(folder, model)
    print(corpus)
    return corpus


def search(model, collection, options):
    """The run of the model; None if only a shard was to be encoded."""
    queries, passages = encoders(model, options)
    if options.corpus_folder is None:
        return search_collection(passages, collection, options.top_k, queries, similarity=model.similarity)
    corpus = open_corpus(model, collection, options)
    return corpus and search_encoded(queries, collection.queries, corpus, options.top_k)


def all_runs(run, collection, options):
    """{name: run}, the model's first."""
    runs = {"model": run}
    if options.bm25 or options.hybrid:
        runs["bm25"] = bm25_run(collection, options.top_k)
    if options.hybrid:
        runs["hybrid"] = fuse_runs([runs["model"], runs["bm25"]], top_k=options.top_k)
    return runs


def show(results, options):
    """Prints a table of all metrics and, of the first one, which difference is more than chance."""
    some = next(iter(results.values()))
    print(f"{some.num_queries} queries, {options.top_k} documents each; below each mean its 95 % interval")
    if some.num_skipped:
        print(f"{some.num_skipped} queries without a relevant document are not counted")
    print("".join([f"{'':10}", *(f"{metric:>16}" for metric in options.metrics)]))
    for name, result in results.items():
        means = (f"{result.means[metric]:16.4f}" for metric in options.metrics)
        intervals = (f"[{low:.3f}, {high:.3f}]".rjust(16) for low, high in result.intervals.values())
        print("".join([f"{name:10}", *means]) + "\n" + "".join([f"{'':10}", *intervals]))
        if result.num_unanswered:
            print(f"{'':10}{result.num_unanswered} queries found nothing and count 0")
    metric = options.metrics[0]
    for first, second in combinations(results, 2):
        found = paired_difference(
            results[first].per_query[metric], results[second].per_query[metric], seed=options.seed
        )  # fmt: skip
        low, high = found.interval
        print(f"{metric}, {first} - {second}: {found.difference:+.4f} [{low:+.4f}, {high:+.4f}], p = {found.p:.4f}")


def write(results, options):
    if options.run:
        for name, result in results.items():
            path = options.run if name == "model" else options.run.with_suffix(f".{name}{options.run.suffix}")
            write_run(path, result.run, tag=name)
            print(f"written: {path}")
    if options.per_query:
        with atomic_file(options.per_query, "w") as file:
            file.write("\t".join(["query-id", "ranking", *options.metrics]) + "\n")
            for name, result in results.items():
                for query in result.per_query[options.metrics[0]]:
                    values = (repr(result.per_query[metric][query]) for metric in options.metrics)
                    file.write("\t".join([query, name, *values]) + "\n")
        print(f"written: {options.per_query}")


def main(arguments: Sequence[str] | None = None):
    """Measures; returns {name of the ranking: `RetrievalResult`}."""
    options = parse_arguments(arguments)
    warnings.simplefilter("ignore", TruncationWarning)  # the documents are cut to what the model reads
    with one_line_errors():
        if options.data is None:
            collection = python_docs.load_collection(options.split)
        else:
            collection = read_beir(options.data, options.split)
        model = load_model(options)
        print(f"{options.model}: {len(collection.documents):,} documents, split {options.split}")
        run = search(model, collection, options)
        if run is None:
            return {}
        runs = all_runs(run, collection, options)
        results = {
            name: retrieval_metrics(run, collection.qrels, options.metrics, options.seed) for name, run in runs.items()
        }
        show(results, options)
        write(results, options)
    return results


if __name__ == "__main__":
    main()
