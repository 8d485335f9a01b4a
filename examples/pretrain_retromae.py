"""Pre-train an encoder for retrieval with RetroMAE or DupMAE, on one's own text.

Without arguments: the documentation strings of the installed Python packages, a small model from scratch; what the
pre-training bought is then shown by fine-tuning, on questions about modules that were held out.

    python examples/pretrain_retromae.py
    python examples/pretrain_retromae.py --corpus docs.jsonl --init bert-base-uncased --bow-weight 0.1
    python examples/pretrain_retromae.py --corpus docs.txt --init config.json --probe beir/scifact
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
from command_line import (
    HelpFormatter,
    add_strategy,
    check_same,
    free_folder,
    one_line_errors,
    stop,
    strategy_scope,
    write_options,
)
from simretro import BiEncoder, MaskedDocuments, QueryPassages, RetroMAE, build_transformer_model, train_wordpiece
from simretro.checkpoints import read_config
from simretro.data import iter_documents, queries_of_collection
from simretro.evaluation import bm25_run, evaluate_retrieval, read_beir, retrieval_metrics
from simretro.tokenizers import TruncationWarning
from simretro.training import (
    EmbeddingMonitor,
    LearningRate,
    PeriodicEvaluation,
    Throughput,
    TrainingCheckpoint,
    build_optimizer,
    mean_tokens_per_step,
)
from simretro.training.state import updates_done

SMALL_MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 192**-0.5,
}
# Without `--corpus`: ten minutes on two cores. From scratch many updates by few rows learn sooner than few by many, and
# the bag of words tells the vector at once what it is for.
SMALL_JOB = {"maxlen": 64, "rows_per_batch": 8, "max_steps": 2400, "bow_weight": 1.0, "learning_rate": 5e-4}
OWN_CORPUS = {"maxlen": 128, "rows_per_batch": 64, "max_steps": None, "bow_weight": 0.0, "learning_rate": 1e-3}
CHECKPOINT_RATE = 1e-4
# Of the fine-tuning that shows what the pre-training bought.
FINE_TUNING = {"queries_per_batch": 64, "query_maxlen": 24, "passage_maxlen": 64}
FINE_TUNING_EPOCHS, FINE_TUNING_RATE = 2, 5e-4
PROBE_TEXTS = 200
# Options that a resumed run may have otherwise: they leave the weights as they are.
FREE_ON_RESUME = set("cache probe probe_steps save_steps tensorboard strategy output resume is_config".split())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=defaults_told(), formatter_class=HelpFormatter)
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
    model.add_argument("--init", help="checkpoint (folder or hub name), or the path of a config for new weights")
    model.add_argument("--new-parts", nargs="*", default=[], choices=["mlm_head"], help="parts the checkpoint lacks")
    model.add_argument("--vocab-size", type=int, default=6000, help="of the vocabulary learnt for a new model")
    model.add_argument("--dropout", type=float, help="replaces the dropout rates of the config")
    model.add_argument("--dtype", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    model.add_argument("--recompute", action="store_true", help="less memory, a third more work")
    objective = parser.add_argument_group("objective")
    objective.add_argument("--decoding", default="enhanced", choices=["enhanced", "basic", "none"])
    objective.add_argument("--mask-rate", type=float, default=0.3, help="of the encoder's tokens")
    objective.add_argument("--decoder-mask-rate", type=float, default=0.5)
    objective.add_argument("--query-norm", action="store_true", help="queries as in DupMAE's and BGE's code")
    objective.add_argument("--mask-pool", type=int, help="whole-word decoder masks from a pool of this size")
    objective.add_argument("--bow-weight", type=float, help="of the bag of words; DupMAE: 0.1")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, default=1)
    training.add_argument("--max-steps", type=int, help="end after so many steps")
    training.add_argument("--rows-per-batch", type=int, help="rows of the batch of all devices")
    training.add_argument("--learning-rate", type=float, help="from a checkpoint 1e-4")
    training.add_argument("--warmup-share", type=float, default=0.1, help="share of the steps with a rising rate")
    training.add_argument("--micro-batches", type=int, default=1, help="parts a batch is worked through in")
    training.add_argument("--save-steps", type=int, help="save every so many steps, too, not only at epochs' ends")
    training.add_argument("--tensorboard", action="store_true", help="needs `pip install tensorboard`")
    add_strategy(training)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--output", type=Path, default=Path("runs/retromae"))
    training.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    training.add_argument("--quick", action="store_true", help="a few steps of a tiny model, to see that all runs")
    options = parser.parse_args(arguments)
    if options.corpus is not None and not options.corpus.exists():
        parser.error(f"--corpus: {options.corpus} does not exist")
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1; received {options.epochs}")
    if options.decoding == "none":
        options.decoding = None
    options.is_config = bool(options.init) and options.init.endswith(".json") and Path(options.init).is_file()
    defaults = dict(OWN_CORPUS if options.corpus else SMALL_JOB)
    if options.init and not options.is_config:
        defaults["learning_rate"] = CHECKPOINT_RATE
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.rows_per_batch % max(1, options.micro_batches):
        parser.error(f"--micro-batches {options.micro_batches} must divide --rows-per-batch {options.rows_per_batch}")
    if options.quick:
        options.max_steps = 4
    return options


def defaults_told():
    """What the defaults are that differ with and without `--corpus`."""
    told = [f"--{name.replace('_', '-')} {value}, {SMALL_JOB[name]}" for name, value in OWN_CORPUS.items()]
    return "defaults with --corpus, and without:\n  " + "\n  ".join(told)


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
    return (document.text for document in iter_documents(source, options.text_files))


def build_model(options, source):
    """A RetroMAE of the checkpoint, decoder included where there is one, or of new weights and a new vocabulary."""
    settings = {
        "decoding": options.decoding,
        "decoder_mask_rate": options.decoder_mask_rate,
        "query_norm": options.query_norm,
        "mask_pool_size": options.mask_pool,
        "bow_weight": options.bow_weight,
        "maxlen": options.maxlen,
        "seed": options.seed,
    }
    parts = {"dropout_rate": options.dropout, "dtype": options.dtype, "recompute": options.recompute}
    if options.init and not options.is_config:
        return RetroMAE.from_pretrained(options.init, new_parts=tuple(options.new_parts), **parts, **settings)
    tokenizer = train_wordpiece(texts_of(source, options), options.vocab_size)
    config = read_config(options.init) if options.is_config else {**SMALL_MODEL, "max_position_embeddings": 512}
    if options.quick:
        config |= {"num_hidden_layers": 2, "hidden_size": 48, "embedding_size": 48, "intermediate_size": 96}
    config |= {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    return RetroMAE(build_transformer_model(config, with_mlm="linear", **parts), tokenizer, **settings)


def load_data(options, source, tokenizer):
    return MaskedDocuments(
        source,
        tokenizer,
        options.rows_per_batch,
        options.maxlen,
        options.mask_rate,
        options.seed,
        decoder_mask_rate=options.decoder_mask_rate if options.decoding == "basic" else None,
        with_word_ids=options.mask_pool is not None,
        short_rate=options.short_rate,
        concatenate=options.concatenate,
        text_files=options.text_files,
        drop_remainder=options.micro_batches > 1,
        cache_dir=options.cache,
    )


class StopAfter(keras.callbacks.Callback):
    """Ends the training when the optimizer has made so many updates."""

    def __init__(self, max_steps):
        super().__init__()
        self.max_steps = max_steps

    def on_train_batch_end(self, batch, logs=None):
        if updates_done(self.model.optimizer) >= self.max_steps:
            self.model.stop_training = True


def prepare(mae, data, source, options):
    """Compiles the model; returns the callbacks of `fit`, their checkpoint, and the epoch to begin with."""
    total_steps = min(len(data) * options.epochs, options.max_steps or float("inf"))
    optimizer = build_optimizer(
        "adamw",
        options.learning_rate,
        warmup_steps=round(options.warmup_share * total_steps),
        total_steps=total_steps,
        global_clipnorm=1.0,
    )
    mae.compile(optimizer, micro_batches=options.micro_batches)
    print(f"{mae.encoder.count_params():,} parameters; {data.num_documents:,} documents, {len(data)} steps an epoch")
    callbacks = [
        Throughput(tokens_per_step=mean_tokens_per_step(data, mae.tokenizer.pad_token_id)),
        LearningRate(),
        EmbeddingMonitor(lambda texts: mae.encode(texts, show_progress=False), probe_texts(source, options)),
    ]
    if options.probe:
        collection = read_beir(options.probe, "dev" if (options.probe / "qrels/dev.tsv").is_file() else "test")
        callbacks.append(
            PeriodicEvaluation(lambda: measure(mae.encode, collection).means, options.probe_steps, options.probe.name)
        )
    checkpoint = TrainingCheckpoint(options.output / "checkpoints", data, every_steps=options.save_steps)
    callbacks.append(checkpoint)
    if options.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(options.output / "logs", update_freq=50))
    if options.max_steps:
        callbacks.append(StopAfter(options.max_steps))
    return callbacks, checkpoint, checkpoint.restore(mae) if options.resume else 0


def pretrain(mae, data, source, options):
    """Trains with checkpoints and monitors; returns the logs of all epochs."""
    with one_line_errors():
        callbacks, checkpoint, first_epoch = prepare(mae, data, source, options)
        write_options(options, FREE_ON_RESUME)
    if options.max_steps is None or checkpoint.step < options.max_steps:
        mae.fit(data, epochs=options.epochs, initial_epoch=first_epoch, callbacks=callbacks)
    return checkpoint.history


def probe_texts(source, options):
    """Distinct texts for the monitor, a random sample of the first ones."""
    texts = []
    for text in texts_of(source, options):
        texts.append(text)
        if len(texts) == 20 * PROBE_TEXTS:
            break
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(texts) < 16:
        stop(f"the corpus has {len(texts)} different documents; at least 16 are needed to watch the embeddings")
    return random.Random(options.seed).sample(texts, min(PROBE_TEXTS, len(texts)))


def measure(encode, collection):
    return evaluate_retrieval(lambda texts: encode(texts, batch_size=64, show_progress=False), collection)


def report(mae, untrained, options):
    """Fine-tunes the pre-trained and the untrained network alike, and searches with them; returns the numbers."""
    train, test = (python_docs.load_collection(split) for split in ("train", "test"))
    if options.quick:
        train = replace(train, qrels=dict(list(train.qrels.items())[:128]))
    print(f"\nWhich of {len(test.documents):,} documents belongs to a first sentence? Modules that were held out.")
    print(f"{'':44}{'nDCG@10':>8}  {'95 % interval':15}{'RR@10':>7}{'R@100':>7}{'queries':>9}")
    numbers = {"BM25": show_result("BM25", retrieval_metrics(bm25_run(test), test.qrels))}
    for name, encoder in (("untrained", untrained), ("pre-trained", mae.encoder)):
        numbers[name] = show_result(f"{name}, as it is", measure(sentence_encoder(encoder, mae.tokenizer).encode, test))
        retriever = fine_tune(encoder, mae.tokenizer, train, options)
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


def sentence_encoder(encoder, tokenizer):
    return BiEncoder(encoder, tokenizer, maxlen=FINE_TUNING["passage_maxlen"]).sentence_encoder


def fine_tune(encoder, tokenizer, collection, options):
    """A retriever: questions against the documents that answer the others in the batch."""
    queries = queries_of_collection(collection.documents, collection.queries, collection.qrels)
    data = QueryPassages(queries, tokenizer, seed=options.seed, **FINE_TUNING)
    retriever = BiEncoder(encoder, tokenizer, temperature=0.05, maxlen=FINE_TUNING["passage_maxlen"])
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
            data = load_data(options, source, mae.tokenizer)
        untrained = type(mae.encoder).from_config(mae.encoder.get_config())
        untrained.set_weights(mae.encoder.get_weights())
        history = pretrain(mae, data, source, options)
    facts = {"options": {key: str(value) for key, value in vars(options).items()}, "history": history}
    mae.save_pretrained(options.output / "model", facts)
    mae = RetroMAE.from_pretrained(options.output / "model")
    print(f"saved and loaded again: {options.output / 'model'}")
    print("For search, fine-tune it: the vectors of a pre-trained encoder as it is are poor.")
    return mae, report(mae, untrained, options) if options.corpus is None else {}


if __name__ == "__main__":
    main()
