"""What pre-training buys: the same fine-tuning from encoders that were pre-trained differently, on test queries.

usage: python benchmarks/retromae_quality.py --collections cranfield med npl [--seconds 150] [--seeds 0 1 2] [--record]
       each collection is a folder as BEIR has them, with qrels/train.tsv, dev.tsv and test.tsv

For each collection and seed a network of 4x256 with a vocabulary learnt from the documents is pre-trained on them, with
each objective for the same time of the processor, then fine-tuned with the training queries (in-batch negatives, the
same steps for all); of --checks moments the best on the dev queries is measured on the test queries. Beside it BM25 and
the same network fine-tuned without pre-training. With --init it starts from a checkpoint, which wants AdamW
and lower rates, and one of that shape with new weights is fine-tuned as long at the rate --new-rate. Results are means
over seeds and queries; the interval of a mean is a bootstrap over queries, of values averaged over the seeds. Each run
is written to --results at once; runs that are there are not repeated, so it can be stopped and started again. Those of
the table in RESULTS.md lie in results/.
Keras on TensorFlow keeps a gigabyte for each run: for many, one process for each seed and collection.
"""

import argparse
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from common import RESULTS, add_result, read_results

from simretro import BiEncoder, MaskedDocuments, QueryPassages, RetroMAE, build_transformer_model, train_wordpiece
from simretro.data import queries_of_collection
from simretro.evaluation import (
    bm25_run,
    bootstrap_interval,
    evaluate_retrieval,
    paired_difference,
    read_beir,
    retrieval_metrics,
)
from simretro.models import load_pretrained
from simretro.tokenizers import TruncationWarning
from simretro.training import OPTIMIZER_NAMES, PeriodicEvaluation, build_optimizer

CONFIG = {  # positions by rotation are learnt sooner than a table of them
    "model_type": "roformer", "hidden_act": "gelu",
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 256**-0.5,
    "max_position_embeddings": 512,
}  # fmt: skip
VOCAB_SIZE, MAXLEN = 4000, 64
OBJECTIVES = {  # arguments of `RetroMAE`, and of its data
    "MLM": ({"decoding": None}, {}),
    "RetroMAE basic": ({"decoding": "basic"}, {"decoder_mask_rate": 0.5}),
    "RetroMAE enhanced": ({"decoding": "enhanced"}, {}),
    "DupMAE": ({"decoding": "enhanced", "bow_weight": 1.0}, {}),
    "RetroMAE, words of the vector": ({"bow_weight": 1.0, "bow_source": "vector"}, {}),
    "words of the vector": ({"decoding": None, "bow_weight": 1.0}, {}),
}
UNTRAINED, NEW = "no pre-training", "new weights"
METRICS = ("nDCG@10", "RR@10", "R@100")
SETTINGS = ("seconds", "mask_rate", "learning_rate", "rows", "fine_tune_steps", "fine_tune_rate", "init", "pooling")
SETTINGS += ("new_rate", "checks", "dtype", "optimizer", "warmup_steps")  # options that runs of one file share


class Deadline(keras.callbacks.Callback):
    """Lowers the learning rate to zero by the end of the time, and ends the training then."""

    def __init__(self, seconds, learning_rate, warmup_steps):
        super().__init__()
        self.seconds, self.learning_rate, self.warmup_steps = seconds, learning_rate, warmup_steps
        self.step, self.spent = 0, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.process_time()
        left = max(0.0, 1 - self.spent / self.seconds)
        self.model.optimizer.learning_rate = self.learning_rate * min(left, (self.step + 1) / self.warmup_steps)

    def on_train_batch_end(self, batch, logs=None):
        if self.step:  # the first one builds the graph
            self.spent += time.process_time() - self.start
        self.step += 1
        if self.spent >= self.seconds:
            self.model.stop_training = True


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", type=Path, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=150, help="processor time of a pre-training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES)[:4], choices=list(OBJECTIVES))
    parser.add_argument("--mask-rate", type=float, default=0.3, help="of the encoder")
    parser.add_argument("--optimizer", default="muon", choices=OPTIMIZER_NAMES, help="of the pre-training")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of the pre-training")
    parser.add_argument("--warmup-steps", type=int, default=20, help="of the pre-training")
    parser.add_argument("--rows", type=int, default=32, help="of a batch of the pre-training")
    parser.add_argument("--fine-tune-steps", type=int, default=160)
    parser.add_argument("--fine-tune-rate", type=float, default=3e-4)
    parser.add_argument("--checks", type=int, default=2, help="dev measurements of a fine-tuning; 0: take its end")
    parser.add_argument("--new-rate", type=float, default=3e-4, help="of the fine-tuning of new weights, with --init")
    parser.add_argument("--init", help="checkpoint to start from, in place of new weights")
    parser.add_argument("--pooling", default="mean", choices=["cls", "mean"], help="of pre-training and retriever")
    parser.add_argument("--dtype", default="mixed_bfloat16", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--results", type=Path, default=RESULTS / "retromae_quality.jsonl")
    parser.add_argument("--record", action="store_true", help="append the table to RESULTS.md")
    return parser.parse_args()


def new_encoder(tokenizer, seed, options):
    """(encoder, tokenizer) to begin with; with --init those of the checkpoint."""
    keras.utils.set_random_seed(seed)
    if options.init:
        started = {"dropout_rate": 0.0, "new_parts": ("mlm_head",), "with_mlm": "linear", "dtype": options.dtype}
        return load_pretrained(options.init, **started)[:2]
    config = {**CONFIG, "vocab_size": tokenizer.vocab_size}
    return build_transformer_model(config, with_mlm="linear", dtype=options.dtype), tokenizer


def rows_of(options):
    """The names of what is fine-tuned and measured."""
    return (*([NEW] if options.init else []), UNTRAINED, *options.objectives)


def pretrain(encoder, tokenizer, texts, objective, seed, options):
    """Trains the encoder in place; returns the logs of the last epoch."""
    arguments, of_data = OBJECTIVES[objective]
    data = MaskedDocuments(texts, tokenizer, options.rows, MAXLEN, options.mask_rate, seed, **of_data)
    mae = RetroMAE(encoder, tokenizer, pooling=options.pooling, seed=seed, **arguments)
    mae.compile(build_optimizer(options.optimizer, options.learning_rate, global_clipnorm=1.0))
    deadline = Deadline(options.seconds, options.learning_rate, options.warmup_steps)
    history = mae.fit(data, epochs=10_000, callbacks=[deadline], verbose=0).history
    return {"steps": deadline.step, "epochs": deadline.step / len(data)} | {k: v[-1] for k, v in history.items()}


def fine_tune(encoder, tokenizer, collections, seed, rate, options):
    """(dev, the test result) of the moment that is best on the dev queries, or with `checks` 0 of the end."""
    train, dev, test = collections
    queries = queries_of_collection(train.documents, train.queries, train.qrels)
    data = QueryPassages(queries, tokenizer, 32, 32, MAXLEN, seed=seed, each_positive=True)
    retriever = BiEncoder(encoder, tokenizer, temperature=0.05, pooling=options.pooling, maxlen=MAXLEN)
    epochs = max(1, round(options.fine_tune_steps / len(data)))
    steps = epochs * len(data)
    retriever.compile(build_optimizer("adamw", rate, warmup_steps=steps // 10, total_steps=steps, global_clipnorm=1.0))
    best = {"dev": -1.0, "weights": None}

    def keep_best():
        found = measure(retriever, dev).means["nDCG@10"]
        if found > best["dev"]:
            best.update(dev=found, weights=retriever.get_weights())
        return {"dev": found}

    callbacks = []
    if options.checks:
        callbacks.append(PeriodicEvaluation(keep_best, max(1, options.fine_tune_steps // options.checks)))
    retriever.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
    if options.checks:
        retriever.set_weights(best["weights"])
    return best["dev"], measure(retriever, test)


def measure(retriever, collection):
    return evaluate_retrieval(
        lambda texts: retriever.encode(texts, batch_size=64, show_progress=False), collection, METRICS
    )


def run_all(options):
    """Does the runs that are not in --results; returns all that are asked for."""
    settings = {name: getattr(options, name) for name in SETTINGS}
    done = read_results(options.results, settings, "collection", "objective", "seed")
    for seed in options.seeds:
        for folder in options.collections:
            collections = [read_beir(folder, split) for split in ("train", "dev", "test")]
            texts = [text for text in collections[0].documents.values() if text.strip()]
            learnt = None if options.init else train_wordpiece(texts, VOCAB_SIZE)
            for objective in rows_of(options):
                key = folder.name, objective, seed
                if key in done:
                    continue
                encoder, tokenizer = new_encoder(learnt, seed, options)
                logs, rate = {}, options.fine_tune_rate
                if objective == NEW:
                    config = encoder.config | {"initializer_range": encoder.config["hidden_size"] ** -0.5}
                    encoder, rate = build_transformer_model(config, dtype=options.dtype), options.new_rate
                elif objective != UNTRAINED:
                    logs = pretrain(encoder, tokenizer, texts, objective, seed, options)
                dev, result = fine_tune(encoder, tokenizer, collections, seed, rate, options)
                done[key] = {
                    "collection": folder.name, "objective": objective, "seed": seed, "settings": settings, "dev": dev,
                    "means": result.means, "per_query": result.per_query, "pretraining": logs,
                }  # fmt: skip
                add_result(options.results, done[key])
                print(*key, f"dev {dev:.3f}", {k: round(v, 3) for k, v in result.means.items()}, flush=True)
                keras.backend.clear_session()
    return done


def table(options, done):
    """Markdown: a row for each objective, the collections beside each other, and what enhanced decoding gains."""
    names = [folder.name for folder in options.collections]
    lines = ["| | " + " | ".join(f"{name}: {', '.join(METRICS)}" for name in names) + " | mean nDCG@10 |"]
    lines.append("|---" * (len(names) + 2) + "|")
    cells, ndcg = [], []
    for folder in options.collections:
        test = read_beir(folder, "test")
        result = retrieval_metrics(bm25_run(test), test.qrels, METRICS)
        cells.append(cell({metric: list(result.per_query[metric].values()) for metric in METRICS}))
        ndcg.append(result.means["nDCG@10"])
    lines.append(f"| BM25 | {' | '.join(cells)} | {np.mean(ndcg):.3f} |")
    averaged = {}
    for objective in rows_of(options):
        cells, ndcg = [], []
        for name in names:
            rows = [done[name, objective, seed]["per_query"] for seed in options.seeds]
            values = {m: np.mean([list(row[m].values()) for row in rows], axis=0) for m in METRICS}
            averaged[objective, name] = values["nDCG@10"]
            cells.append(cell(values))
            ndcg.append(values["nDCG@10"].mean())
        lines.append(f"| {objective} | {' | '.join(cells)} | {np.mean(ndcg):.3f} |")
    lines.append("")
    for other in (NEW, UNTRAINED, "MLM"):
        if "RetroMAE enhanced" in options.objectives and (other, names[0]) in averaged:
            pair = [np.concatenate([averaged[x, name] for name in names]) for x in ("RetroMAE enhanced", other)]
            found = paired_difference(*(dict(enumerate(values)) for values in pair))
            low, high = found.interval
            lines.append(
                f"RetroMAE enhanced less {other}, over all {len(pair[0])} test queries: nDCG@10 "
                f"{found.difference:+.3f} [{low:+.3f}, {high:+.3f}], p = {found.p:.3f}."
            )
    return "\n".join(lines)


def cell(values):
    low, high = bootstrap_interval(np.mean, np.asarray(values["nDCG@10"]))
    ndcg, *others = (np.mean(values[metric]) for metric in METRICS)
    return f"{ndcg:.3f} [{low:.3f}, {high:.3f}], " + ", ".join(f"{value:.3f}" for value in others)


def main():
    options = parse_arguments()
    warnings.simplefilter("ignore", TruncationWarning)
    done = run_all(options)
    text = (
        f"### retromae_quality: {options.init or '4x256 from scratch'}, seeds {options.seeds}\n\n"
        f"{time.strftime('%Y-%m-%d')}; " + ", ".join(f"{name} {getattr(options, name)}" for name in SETTINGS) + ".\n\n"
        f"{table(options, done)}\n"
    )
    print(text)
    if options.record:
        with open(Path(__file__).with_name("RESULTS.md"), "a", encoding="utf-8") as file:
            file.write(f"\n{text}")


if __name__ == "__main__":
    main()
