"""Fine-tune an encoder to retrieve: queries against the passages that answer them, and against hard negatives.

Without arguments: first sentences of the installed packages' documentation as queries for the rest of it, a small
model from scratch. That shows that all runs and that the model learns, but BM25, which is measured beside it, stays far
ahead: for a good retriever start from a pre-trained encoder.

    python examples/train_retriever.py
    python examples/train_retriever.py --data beir/nfcorpus --init runs/retromae/model --mine-epochs 1
    python examples/train_retriever.py --data train.jsonl --init bert-base-uncased --output runs/retriever
"""

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import retrieval_data
from command_line import HelpFormatter, check_same, free_folder, one_line_errors, stop, strategy_scope, write_options
from pretrain_retromae import SMALL_MODEL, show_result
from simretro import BiEncoder, QueryPassages, train_wordpiece
from simretro.data import queries_of_collection, write_training_queries
from simretro.evaluation import bm25_run, evaluate_retrieval, retrieval_metrics
from simretro.retrieval import mine_hard_negatives
from simretro.tokenizers import TruncationWarning
from simretro.training import (
    HardNegativeMining,
    LearningRate,
    PeriodicEvaluation,
    Throughput,
    TrainingCheckpoint,
)
from training_runs import (
    add_model_options,
    add_optimizer,
    add_run_options,
    begin_run,
    facts_of,
    fill_in,
    is_config,
    network_options,
    new_encoder,
    scheduled_optimizer,
    tensorboard,
)

TINY_SIZES = {"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 96}
NEW_MODEL = {"epochs": 4, "learning_rate": 5e-4}
FROM_CHECKPOINT = {"epochs": 3, "learning_rate": 2e-5}
MONITOR = "dev_nDCG@10"
# Options that a resumed run may have otherwise: they leave the weights as they are.
FREE_ON_RESUME = set("probe_steps probe_documents save_steps tensorboard strategy output resume report is_new".split())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=Path, help="BEIR folder; .jsonl (query, pos, neg); or .tsv (query, positive, negatives)"
    )
    data.add_argument(
        "--held-out", type=float, default=0.1, help="share of a file's queries that choose the best epoch"
    )
    data.add_argument("--query-maxlen", type=int, default=32, help="tokens of a query, [CLS] and [SEP] included")
    data.add_argument("--maxlen", type=int, help="tokens of a passage; default: 128 with --data, 64 without")
    data.add_argument("--query-prefix", help="put before each query; default: the checkpoint's own")
    data.add_argument("--passage-prefix", help="put before each passage; default: the checkpoint's own")
    data.add_argument("--each-positive", action="store_true", help="a query comes once with each of its positives")
    add_negatives(parser.add_argument_group("hard negatives"))
    model = parser.add_argument_group("model")
    add_model_options(model, 6000)
    model.add_argument("--pooling", choices=["cls", "mean", "pooler"], help="default: the checkpoint's own, or cls")
    model.add_argument("--similarity", choices=["cosine", "dot"], help="default: the checkpoint's own, or cosine")
    model.add_argument("--projection-size", type=int, help="shorter vectors, by a linear layer; default: as before")
    model.add_argument("--matryoshka", type=int, nargs="*", help="lengths at which vectors may be cut")
    objective = parser.add_argument_group("objective")
    objective.add_argument(
        "--temperature", type=float, help="default: the checkpoint's own, or 0.05; with --similarity dot 1"
    )
    objective.add_argument(
        "--symmetric", action="store_true", default=None, help="passages must find their queries, too"
    )
    objective.add_argument("--distillation", choices=["kl", "margin_mse"], help="from the scores that --data has")
    objective.add_argument("--distillation-weight", type=float, default=0.5, help="share of the loss")
    objective.add_argument("--teacher-temperature", type=float, help="default: the checkpoint's own, or 1")
    add_training(parser.add_argument_group("training"))
    options = parser.parse_args(arguments)
    return checked(parser, options)


def add_negatives(group):
    group.add_argument(
        "--negatives", default="auto", choices=["auto", "file", "bm25", "model", "none"],
        help="where they come from; auto: from --data if it has any, else bm25",
    )  # fmt: skip
    group.add_argument("--negatives-per-query", type=int, default=1, help="in a batch")
    group.add_argument("--num-mined", type=int, default=8, help="mined for each query, to be drawn from")
    group.add_argument("--rank-range", type=int, nargs=2, default=[10, 100], help="places of the search that count")
    group.add_argument("--relative-margin", type=float, help="0.05: a negative scores below 95 %% of the positive")
    group.add_argument("--mine-epochs", type=int, default=0, help="mine anew by the model every so many epochs")


def add_training(group):
    group.add_argument("--epochs", type=int, help="default: 4 for a new model, 3 for a checkpoint")
    group.add_argument("--queries-per-batch", type=int, default=64, help="queries of the batch of all devices")
    group.add_argument("--learning-rate", type=float, help="default: 5e-4 for a new model, 2e-5 for a checkpoint")
    add_optimizer(group)
    group.add_argument("--cached-rows", type=int, help="rows on the device at a time: a batch larger than memory")
    group.add_argument("--probe-steps", type=int, help="measure on dev every so many steps, too")
    group.add_argument("--probe-documents", type=int, default=20_000, help="searched on dev; judged ones always are")
    add_run_options(group, "runs/retriever")
    group.add_argument("--no-report", dest="report", action="store_false", help="no table at the end")


def checked(parser, options):
    retrieval_data.check_path(options.data)
    if not 0 <= options.held_out < 1:
        parser.error(f"--held-out must be in [0, 1); received {options.held_out}")
    for name in ("epochs", "num_mined", "probe_documents"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1; received {value}")
    if options.mine_epochs < 0:
        parser.error(f"--mine-epochs must not be negative; received {options.mine_epochs}")
    if options.mine_epochs and (options.negatives == "none" or not options.negatives_per_query):
        parser.error("--mine-epochs needs hard negatives: leave out --negatives none, --negatives-per-query 0")
    if options.mine_epochs and options.distillation:
        parser.error("--mine-epochs finds passages that no teacher has scored: leave out --distillation")
    options.is_new = is_config(options.init) or not options.init
    fill_in(options, {"epochs": 2} if options.quick else {})
    fill_in(options, NEW_MODEL if options.is_new else FROM_CHECKPOINT)
    fill_in(options, {"maxlen": 128 if options.data else 64})
    if options.similarity == "dot":
        fill_in(options, {"temperature": 1.0})
    return options


def load_data(options):
    found = retrieval_data.load_data(options.data, options.held_out, options.seed)
    if options.quick:
        found = replace(found, train=replace(found.train, qrels=dict(list(found.train.qrels.items())[:128])))
    if options.distillation and not found.scores:
        stop(f"--distillation {options.distillation}: --data has no scores of a teacher (pos_scores, neg_scores)")
    if options.negatives == "auto":
        options.negatives = "file" if found.negatives else "bm25"
    if options.relative_margin is not None and options.negatives != "model" and not options.mine_epochs:
        stop("--relative-margin is for the model's scores: give --negatives model or --mine-epochs")
    if options.negatives == "file" and not found.negatives:
        stop("--negatives file: --data has no negatives")
    if found.dev is None:
        print("There are no dev queries: the last epoch is kept, not the best one.")
    return found


def build_model(options, data):
    """A BiEncoder of the checkpoint, or of new weights and a vocabulary learnt from the documents."""
    settings = {
        "distillation": options.distillation,
        "distillation_weight": options.distillation_weight,
        "maxlen": options.maxlen,
        "query_maxlen": options.query_maxlen,
    }
    # What was not given stays as the checkpoint has it.
    names = ("pooling", "similarity", "projection_size", "query_prefix", "passage_prefix")
    names += ("temperature", "symmetric", "teacher_temperature")
    settings |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.matryoshka is not None:
        settings["matryoshka_sizes"] = options.matryoshka or None
    if not options.is_new:
        new_parts = ("pooler",) if options.pooling == "pooler" else ()
        return BiEncoder.from_pretrained(options.init, new_parts=new_parts, **network_options(options), **settings)
    tokenizer = train_wordpiece(filter(str.strip, data.train.documents.values()), options.vocab_size)
    encoder = new_encoder(options, tokenizer, SMALL_MODEL, TINY_SIZES, with_pool=options.pooling == "pooler")
    return BiEncoder(encoder, tokenizer, **settings)


def training_queries(model, data, options):
    """The queries with the negatives that the training begins with."""
    train = data.train
    if options.negatives in ("none", "file"):
        negatives = data.negatives if options.negatives == "file" else None
        kept = {query: found for query, found in (negatives or {}).items() if query in train.qrels}
        return queries_of_collection(train.documents, train.queries, train.qrels, kept, scores=data.scores or None)
    if options.negatives == "model":
        return mine(model, train, options)
    return mine(bm25_run(train, top_k=options.rank_range[1] + 100), train, options, by_model=False)


def mine(model, collection, options, by_model=True):
    return mine_hard_negatives(
        model,
        collection,
        options.num_mined,
        rank_range=tuple(options.rank_range),
        relative_margin=options.relative_margin if by_model else None,
        seed=options.seed,
    )


def load_passages(options, model):
    """Batches of the queries in the folder of the run, which a resumed run reads again."""
    return QueryPassages(
        options.output / "train.jsonl",
        model.tokenizer,
        options.queries_per_batch,
        options.query_maxlen,
        options.maxlen,
        0 if options.negatives == "none" else options.negatives_per_query,
        options.seed,
        each_positive=options.each_positive,
        query_prefix=model.query_prefix,
        passage_prefix=model.passage_prefix,
        with_scores=options.distillation is not None,
    )


def prepare(model, passages, data, options):
    """Compiles the model; returns the callbacks of `fit`, their checkpoint, and the epoch to begin with."""
    total_steps = len(passages) * options.epochs
    model.compile(scheduled_optimizer(options, total_steps), gradient_cache_rows=options.cached_rows)
    print(
        f"{model.encoder.count_params():,} parameters; {passages.num_queries:,} queries, {len(passages)} steps an epoch"
    )
    callbacks, evaluations = [Throughput(rows_per_step=options.queries_per_batch), LearningRate()], []
    if options.mine_epochs:

        def mine_again(path):
            write_training_queries(path, mine(model, data.train, options))

        folder = options.output / "negatives"
        callbacks.append(HardNegativeMining(mine_again, passages, folder, options.mine_epochs))
    if data.dev is not None:
        dev = retrieval_data.reduced(data.dev, options.probe_documents, options.seed)
        evaluations.append(PeriodicEvaluation(lambda: measure(model, dev).means, options.probe_steps, "dev"))
    checkpoint = TrainingCheckpoint(
        options.output / "checkpoints",
        passages,
        monitor=None if data.dev is None else MONITOR,
        every_steps=options.save_steps or None,
        save_best=model.save_pretrained,
        evaluations=evaluations,
    )
    callbacks += [*evaluations, checkpoint, *tensorboard(options, evaluations)]
    return callbacks, checkpoint, begin_run(checkpoint, model, options)


def train(model, passages, data, options):
    """Trains with checkpoints; returns the retriever of the best epoch by the dev queries, and the checkpoint."""
    with one_line_errors():
        callbacks, checkpoint, first_epoch = prepare(model, passages, data, options)
    model.fit(passages, epochs=options.epochs, initial_epoch=first_epoch, callbacks=callbacks)
    if checkpoint.best is None:
        return model, checkpoint
    best = checkpoint.best
    print(f"best epoch by {MONITOR}: {best['epoch'] + 1}, {best['value']:.3f}")
    return BiEncoder.from_pretrained(options.output / "checkpoints" / "best"), checkpoint


def measure(model, collection):
    def encoder(encode):
        return lambda texts: encode(texts, batch_size=64, show_progress=False)

    return evaluate_retrieval(
        encoder(model.encode_passages),
        collection,
        encode_queries=encoder(model.encode_queries),
        similarity=model.similarity,
    )


def begin(options, model, data):
    """Before the training: what the model finds as it is, and the queries with negatives in the folder of the run."""
    path, untrained = options.output / "untrained.json", {}
    if options.resume:
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}
    write_options(options, FREE_ON_RESUME)
    write_training_queries(options.output / "train.jsonl", training_queries(model, data, options))
    collection = data.test or data.dev
    if options.report and collection is not None:
        result = measure(model, collection)
        untrained = {"means": result.means, "intervals": result.intervals, "num_queries": result.num_queries}
        path.write_text(json.dumps(untrained), "utf-8")
    return untrained


def report(model, untrained, data, options):
    """Prints what the training bought, beside BM25; returns nDCG@10 of each."""
    collection = data.test or data.dev
    kind = "test queries" if data.test is not None else "dev queries (they chose the best epoch, too)"
    print(f"\nSearch among {len(collection.documents):,} documents, {kind}.")
    print(f"{'':44}{'nDCG@10':>8}  {'95 % interval':15}{'RR@10':>7}{'R@100':>7}{'queries':>9}")
    numbers = {"BM25": show_result("BM25", retrieval_metrics(bm25_run(collection), collection.qrels))}
    if untrained:
        name = "new weights, untrained" if options.is_new else f"{options.init}, as it is"
        numbers["before"] = show_result(name[:43], SimpleNamespace(**untrained))
    numbers["retriever"] = show_result("fine-tuned", measure(model, collection))
    return numbers


def main(arguments: Sequence[str] | None = None):
    """Runs the job; returns the retriever and the numbers of the report."""
    options = parse_arguments(arguments)
    options.output = free_folder(options.output, options.resume)
    # Texts that are encoded to measure something are cut to `--maxlen` on purpose.
    warnings.simplefilter("ignore", TruncationWarning)
    with one_line_errors():
        keras.utils.set_random_seed(options.seed)
        data = load_data(options)
        if options.resume:
            check_same(options, FREE_ON_RESUME)
    print(f"writing to {options.output}; after a break go on with --resume --output {options.output}")
    with strategy_scope(options.strategy):
        with one_line_errors():
            model = build_model(options, data)
            untrained = begin(options, model, data)
            passages = load_passages(options, model)
        model, checkpoint = train(model, passages, data, options)
    model.save_pretrained(options.output / "model", facts_of(options, checkpoint))
    model = BiEncoder.from_pretrained(options.output / "model")
    print(f"saved and loaded again: {options.output / 'model'}")
    shows = options.report and (data.test or data.dev) is not None
    return model, report(model, untrained, data, options) if shows else {}


if __name__ == "__main__":
    main()
