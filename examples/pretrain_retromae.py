"""Pre-train an encoder for retrieval with RetroMAE or DupMAE, on one's own text.

Without arguments: the documentation strings of the installed Python packages, a small model from scratch; what the
pre-training bought is then shown by fine-tuning, on questions about modules that were held out.

    python examples/pretrain_retromae.py
    python examples/pretrain_retromae.py --corpus docs.jsonl --init bert-base-uncased --bow-weight 0.1
    python examples/pretrain_retromae.py --corpus docs.txt --init config.json --probe beir/nfcorpus
"""

import argparse
import os
import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import python_docs
from command_line import HelpFormatter, check_same, free_folder, one_line_errors, strategy_scope, write_options
from simretro import BiEncoder, MaskedDocuments, QueryPassages, RetroMAE, train_wordpiece
from simretro.data import iter_documents, queries_of_collection
from simretro.evaluation import bm25_run, evaluate_retrieval, read_beir, retrieval_metrics
from simretro.tokenizers import TruncationWarning
from simretro.training import (
    LearningRate,
    PeriodicEvaluation,
    Throughput,
    TrainingCheckpoint,
    build_optimizer,
    mean_tokens_per_step,
)
from simretro.training.state import updates_done
from training_runs import (
    add_model_options,
    add_optimizer,
    add_run_options,
    begin_run,
    defaults_told,
    embedding_monitor,
    facts_of,
    fill_in,
    is_config,
    network_options,
    new_encoder,
    scheduled_optimizer,
    tensorboard,
)

SMALL_MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 192**-0.5,
}
TINY_SIZES = {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96}
# Without `--corpus`: ten minutes on two cores. The bag of words tells the vector at once what it is for.
SMALL_JOB = {"maxlen": 64, "rows_per_batch": 32, "max_steps": 600, "bow_weight": 1.0, "learning_rate": 2e-3}
OWN_CORPUS = {"maxlen": 128, "rows_per_batch": 64, "max_steps": None, "bow_weight": 0.0, "learning_rate": 1e-3}
CHECKPOINT_RATE = 1e-4
# Option -> setting of RetroMAE. Where it is not given, it stays as the checkpoint has it, or is RetroMAE's default.
OF_THE_MODEL = {"mask_pool": "mask_pool_size"}
OF_THE_MODEL |= {name: name for name in ("decoding", "decoder_mask_rate", "query_norm", "pooling")}
OF_THE_MODEL |= {name: name for name in ("bow_weight", "bow_source")}
# Of the fine-tuning that shows what the pre-training bought.
FINE_TUNING = {"queries_per_batch": 64, "query_maxlen": 24, "passage_maxlen": 64}
FINE_TUNING_EPOCHS, FINE_TUNING_RATE = 1, 5e-4
PROBE_TEXTS = 200
# Options that a resumed run may have otherwise: they leave the weights as they are.
FREE_ON_RESUME = set("cache probe probe_steps save_steps tensorboard strategy output resume is_config".split())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=defaults_told("--corpus", OWN_CORPUS, SMALL_JOB), formatter_class=HelpFormatter
    )
    data = parser.add_argument_group("data")
    data.add_argument("--corpus", type=Path, help=".txt (a line is a document), .jsonl (`text`), or a folder of these")
    data.add_argument("--text-files", default="lines", choices=["lines", "whole"], help="what a document of a .txt is")
    data.add_argument("--concatenate", action="store_true", help="fill rows with several short documents")
    data.add_argument("--short-rate", type=float, default=0.0, help="share of examples that are cut short")
    data.add_argument("--maxlen", type=int, help="tokens of a row")
    data.add_argument("--cache", type=Path, help="folder for the token ids; later runs start at once")
    data.add_argument("--probe", type=Path, help="BEIR folder whose dev or test queries are searched while training")
    data.add_argument("--probe-steps", type=int, help="probe every so many steps, too, not only at epochs' ends")
    model = parser.add_argument_group("model")
    add_model_options(model, 6000, ["mlm_head"])
    objective = parser.add_argument_group("objective")
    objective.add_argument("--mask-rate", type=float, default=0.3, help="of the encoder's tokens")
    add_objective(objective)
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, default=1, help="at most so many")
    training.add_argument("--max-steps", type=int, help="end after so many steps")
    training.add_argument("--rows-per-batch", type=int, help="rows of the batch of all devices")
    training.add_argument("--learning-rate", type=float, help="from a checkpoint 1e-4")
    add_optimizer(training, default=None)
    training.add_argument("--micro-batches", type=int, default=1, help="parts a batch is worked through in")
    add_run_options(training, "runs/retromae")
    options = parser.parse_args(arguments)
    if options.corpus is not None and not options.corpus.exists():
        parser.error(f"--corpus: {options.corpus} does not exist")
    if options.cache and options.corpus is None:
        parser.error("--cache is for the documents of --corpus: those of the installed packages are kept in memory")
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1; received {options.epochs}")
    options.is_config = is_config(options.init)
    defaults = (OWN_CORPUS if options.corpus else SMALL_JOB) | {"optimizer": "muon"}
    if options.init and not options.is_config:
        defaults |= {"learning_rate": CHECKPOINT_RATE, "optimizer": "adamw", "bow_weight": None}
    fill_in(options, {"max_steps": 4} if options.quick else {})
    fill_in(options, defaults)
    if options.probe_steps is not None and options.probe is None:
        parser.error("--probe-steps needs --probe, a collection to search")
    if options.rows_per_batch % max(1, options.micro_batches):
        parser.error(f"--micro-batches {options.micro_batches} must divide --rows-per-batch {options.rows_per_batch}")
    return options


def add_objective(group):
    """Adds what a checkpoint of RetroMAE knows of itself."""
    group.add_argument(
        "--decoding", choices=["enhanced", "basic", "none"], help="default: the checkpoint's own, or enhanced"
    )
    group.add_argument(
        "--decoder-mask-rate", type=float, help="of the decoder's tokens; default: the checkpoint's own, or 0.5"
    )
    group.add_argument(
        "--query-norm", action=argparse.BooleanOptionalAction,
        help="queries as in DupMAE's and BGE's code; default: the checkpoint's own, or not",
    )  # fmt: skip
    group.add_argument(
        "--mask-pool", type=int,
        help="whole-word decoder masks from a pool of this size, 0: no pool; default: the checkpoint's own, or 0",
    )  # fmt: skip
    group.add_argument(
        "--bow-weight", type=float, help="of the bag of words, DupMAE: 0.1; default: the checkpoint's own, or see below"
    )
    group.add_argument(
        "--bow-source", choices=["tokens", "vector"], help="what it is read off; default: the tokens beside a decoder"
    )
    group.add_argument("--pooling", choices=["cls", "mean"], help="default: the checkpoint's own, or cls")


def load_texts(options):
    """The documents: a path that is streamed, or, without `--corpus`, a list."""
    if options.corpus is not None:
        return options.corpus
    print(python_docs.describe())
    texts = python_docs.load_texts()
    return texts[:: 1 + len(texts) // 400] if options.quick else texts


def texts_of(source, options):
    """The texts one by one, whatever the source is."""
    if isinstance(source, list):
        return iter(source)
    return (document.full_text for document in iter_documents(source, options.text_files))


def build_model(options, source):
    """A RetroMAE of the checkpoint, decoder included where there is one, or of new weights and a new vocabulary."""
    given = {OF_THE_MODEL[name]: getattr(options, name) for name in OF_THE_MODEL if getattr(options, name) is not None}
    nothing = {"decoding": "none", "mask_pool_size": 0}
    settings = {name: None if value == nothing.get(name) else value for name, value in given.items()}
    settings |= {"maxlen": options.maxlen, "seed": options.seed}
    if options.init and not options.is_config:
        network = network_options(options)
        return RetroMAE.from_pretrained(options.init, new_parts=tuple(options.new_parts), **network, **settings)
    tokenizer = train_wordpiece(texts_of(source, options), options.vocab_size)
    encoder = new_encoder(options, tokenizer, SMALL_MODEL, TINY_SIZES, with_mlm="linear")
    return RetroMAE(encoder, tokenizer, **settings)


def load_data(options, source, mae):
    """Batches with what this model reads."""
    return MaskedDocuments(
        source,
        mae.tokenizer,
        options.rows_per_batch,
        options.maxlen,
        options.mask_rate,
        options.seed,
        decoder_mask_rate=mae.decoder_mask_rate if mae.decoding == "basic" else None,
        with_word_ids=mae.mask_pool_size is not None,
        short_rate=options.short_rate,
        concatenate=options.concatenate,
        text_files=options.text_files,
        drop_remainder=options.micro_batches > 1,
        cache_dir=options.cache,
    )


class StopAfter(keras.callbacks.ProgbarLogger):
    """Ends the training when the optimizer has made so many updates. A progress bar that knows it: give it last."""

    def __init__(self, max_steps):
        super().__init__()
        self.max_steps = max_steps

    def set_params(self, params):
        super().set_params(params)
        self.steps = params["steps"]

    def on_epoch_begin(self, epoch, logs=None):
        self.target = min(self.steps, self.max_steps - updates_done(self.model.optimizer))
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if updates_done(self.model.optimizer) >= self.max_steps:
            self.model.stop_training = True


def prepare(mae, data, source, options):
    """Compiles the model; returns the callbacks of `fit`, their checkpoint, and the epoch to begin with."""
    total_steps = min(len(data) * options.epochs, options.max_steps or float("inf"))
    mae.compile(scheduled_optimizer(options, total_steps), micro_batches=options.micro_batches)
    print(f"{mae.encoder.count_params():,} parameters; {data.num_documents:,} documents, {len(data)} steps an epoch")
    evaluations = embedding_monitor(
        lambda texts: mae.encode(texts, show_progress=False), probe_texts(source, options)
    )  # fmt: skip
    if options.probe:
        collection = read_beir(options.probe, "dev" if (options.probe / "qrels/dev.tsv").is_file() else "test")
        evaluations.append(
            PeriodicEvaluation(lambda: measure(mae.encode, collection).means, options.probe_steps, options.probe.name)
        )
    checkpoint = TrainingCheckpoint(
        options.output / "checkpoints", data, every_steps=options.save_steps or None, evaluations=evaluations
    )
    throughput = Throughput(tokens_per_step=mean_tokens_per_step(data, mae.tokenizer.pad_token_id))
    callbacks = [throughput, LearningRate(), *evaluations, checkpoint, *tensorboard(options, evaluations)]
    if options.max_steps:
        callbacks.append(StopAfter(options.max_steps))
    return callbacks, checkpoint, begin_run(checkpoint, mae, options)


def pretrain(mae, data, source, options):
    """Trains with checkpoints and monitors; returns the checkpoint, which knows the logs of all epochs."""
    with one_line_errors():
        callbacks, checkpoint, first_epoch = prepare(mae, data, source, options)
        write_options(options, FREE_ON_RESUME)
    if options.max_steps is None or checkpoint.step < options.max_steps:
        mae.fit(data, epochs=options.epochs, initial_epoch=first_epoch, callbacks=callbacks)
    return checkpoint


def probe_texts(source, options):
    """Distinct texts for the monitor, a random sample of the first ones."""
    texts = []
    for text in texts_of(source, options):
        texts.append(text)
        if len(texts) == 20 * PROBE_TEXTS:
            break
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    return random.Random(options.seed).sample(texts, min(PROBE_TEXTS, len(texts)))


def measure(encode, collection):
    return evaluate_retrieval(lambda texts: encode(texts, batch_size=64, show_progress=False), collection)


def report(mae, first_weights, options):
    """Fine-tunes the pre-trained network and the one it was alike, and searches with them; returns the numbers."""
    untrained = type(mae.encoder).from_config(mae.encoder.get_config())
    untrained.set_weights(first_weights)
    train, test = (python_docs.load_collection(split) for split in ("train", "test"))
    if options.quick:
        train = replace(train, qrels=dict(list(train.qrels.items())[:128]))
    print(f"\nWhich of {len(test.documents):,} documents belongs to a first sentence? Modules that were held out.")
    print(f"{'':44}{'nDCG@10':>8}  {'95 % interval':15}{'RR@10':>7}{'R@100':>7}{'queries':>9}")
    numbers = {"BM25": show_result("BM25", retrieval_metrics(bm25_run(test), test.qrels))}
    for name, encoder in (("untrained", untrained), ("pre-trained", mae.encoder)):
        numbers[name] = show_result(f"{name}, as it is", measure(retriever_of(encoder, mae).encode, test))
        retriever = fine_tune(retriever_of(encoder, mae), train, options)
        numbers[f"{name}, fine-tuned"] = show_result(f"{name}, then fine-tuned", measure(retriever.encode, test))
    return numbers


def show_result(name, result):
    ndcg, reciprocal_rank, recall = (result.means[metric] for metric in ("nDCG@10", "RR@10", "R@100"))
    low, high = result.intervals["nDCG@10"]
    print(
        f"{name:44}{ndcg:8.3f}  [{low:.3f}, {high:.3f}] {reciprocal_rank:7.3f}{recall:7.3f}{result.num_queries:9}",
        flush=True,
    )
    return ndcg


def retriever_of(encoder, mae):
    maxlen = FINE_TUNING["passage_maxlen"]
    return BiEncoder(encoder, mae.tokenizer, temperature=0.05, pooling=mae.pooling, maxlen=maxlen)


def fine_tune(retriever, collection, options):
    """Trains with questions against the documents that answer the others in the batch."""
    queries = queries_of_collection(collection.documents, collection.queries, collection.qrels)
    data = QueryPassages(queries, retriever.tokenizer, seed=options.seed, **FINE_TUNING)
    total_steps = len(data) * FINE_TUNING_EPOCHS
    optimizer = build_optimizer(
        "adamw", FINE_TUNING_RATE, warmup_steps=total_steps // 10, total_steps=total_steps, global_clipnorm=1.0
    )
    retriever.compile(optimizer)
    retriever.fit(data, epochs=FINE_TUNING_EPOCHS, verbose=0)
    return retriever


def main(arguments: Sequence[str] | None = None):
    """Runs the job; returns the pre-trained RetroMAE and the numbers of the report."""
    options = parse_arguments(arguments)
    options.output = free_folder(options.output, options.resume)
    if options.resume:
        check_same(options, FREE_ON_RESUME)
    # Texts that are encoded to measure something are cut to `--maxlen` on purpose.
    warnings.simplefilter("ignore", TruncationWarning)
    warnings.filterwarnings("ignore", "Gradients do not exist for variables .'mlm_head")  # while it is fine-tuned
    with one_line_errors():
        keras.utils.set_random_seed(options.seed)
    source = load_texts(options)
    print(f"writing to {options.output}; after a break go on with --resume --output {options.output}")
    with strategy_scope(options.strategy):
        with one_line_errors():
            mae = build_model(options, source)
            data = load_data(options, source, mae)
        # As arrays: a model that is made within the scope cannot be fine-tuned outside of it.
        first_weights = mae.encoder.get_weights() if options.corpus is None else None
        checkpoint = pretrain(mae, data, source, options)
    mae.save_pretrained(options.output / "model", facts_of(options, checkpoint))
    mae = RetroMAE.from_pretrained(options.output / "model")
    print(f"saved and loaded again: {options.output / 'model'}")
    print("For search, fine-tune it: the vectors of a pre-trained encoder as it is are poor.")
    return mae, report(mae, first_weights, options) if options.corpus is None else {}


if __name__ == "__main__":
    main()
