"""Train a SimBERT, then generate and retrieve with it.

Without arguments: Chinese commands for a smart home (package home-assistant-intents), a small model from scratch.

    python examples/train_simbert.py
    python examples/train_simbert.py --corpus groups.jsonl --checkpoint chinese_simbert_L-4_H-312_A-12
    python -i examples/train_simbert.py        # leaves `gen_synonyms(text)` and `most_similar(text)` in the prompt
"""

import argparse
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import home_assistant
import simretro
from command_line import (
    HelpFormatter,
    check_same,
    free_folder,
    one_line_errors,
    stop,
    strategy_scope,
    write_options,
)
from simretro.data import SimilarPairs, read_groups
from simretro.evaluation import bootstrap_interval, evaluate_pairs, group_retrieval, read_labelled_pairs, tfidf_vectors
from simretro.models import build_transformer_model
from simretro.tokenizers import Tokenizer
from simretro.training import Throughput, TrainingCheckpoint, mean_tokens_per_step
from training_runs import (
    add_last_options,
    add_network_options,
    add_optimizer,
    begin_run,
    facts_of,
    fill_in,
    scheduled_optimizer,
)

SMALL_MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    # From scratch and within minutes: BERT's 0.02 and 0.1 dropout lose the first epochs to vectors that are all alike.
    "initializer_range": 256**-0.5,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
FROM_SCRATCH = {"epochs": 10, "learning_rate": 1e-3}
FROM_CHECKPOINT = {"epochs": 5, "learning_rate": 2e-5}
FREE_ON_RESUME = {"evaluate", "save_steps", "strategy", "output", "resume"}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    data = parser.add_argument_group("data")
    data.add_argument("--corpus", type=Path, help="your groups, one JSON object a line: text, synonyms")
    data.add_argument("--evaluate", type=Path, nargs="*", default=[], help="files text1<TAB>text2<TAB>label to score")
    data.add_argument("--held-out", type=float, default=0.1, help="share of the groups of --corpus kept for validation")
    data.add_argument("--maxlen", type=int, default=32, help="tokens of a sentence, [CLS] and [SEP] included")
    model = parser.add_argument_group("model")
    model.add_argument("--checkpoint", help="folder or hub name to start from; default: a small model from scratch")
    model.add_argument(
        "--new-parts", nargs="*", default=[], choices=["pooler", "mlm_head"], help="parts that the checkpoint lacks"
    )
    add_network_options(model)
    objective = parser.add_argument_group("objective")
    objective.add_argument("--temperature", type=float, default=1 / 30, help="of the similarity loss")
    objective.add_argument("--mlm-rate", type=float, default=0.0, help="share of source tokens to mask and predict")
    objective.add_argument("--corruption-rate", type=float, default=0.0, help="as RoFormer-Sim: mask, do not predict")
    objective.add_argument(
        "--batching", default="grouped", choices=["grouped", "random"], help="grouped: no negatives that mean the same"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, help="default: 10 from scratch, 5 from a checkpoint")
    training.add_argument("--pairs-per-batch", type=int, default=32, help="pairs of the batch of all devices")
    training.add_argument("--learning-rate", type=float, help="default: 1e-3 from scratch, 2e-5 from a checkpoint")
    add_optimizer(training)
    training.add_argument("--ema", action="store_true", help="keep and use an average of the weights")
    training.add_argument("--micro-batches", type=int, default=1, help="parts a batch is worked through in")
    add_last_options(training, "runs/simbert")
    options = parser.parse_args(arguments)
    for path in (options.corpus, *options.evaluate):
        if path is not None and not path.is_file():
            parser.error(f"{path} is not a file")
    if not 0 < options.held_out < 1:
        parser.error(f"--held-out must be between 0 and 1; received {options.held_out}")
    fill_in(options, {"epochs": 2} if options.quick else {})
    fill_in(options, FROM_CHECKPOINT if options.checkpoint else FROM_SCRATCH)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1; received {options.epochs}")
    return options


def load_corpus(options):
    """Returns groups of texts for training, validation and test.

    A corpus of the user's is not cut a third time: its test groups are those of the validation.
    """
    if options.corpus is None:
        sizes = {"groups_per_block": 2} if options.quick else {}
        parts = home_assistant.split_by_block(home_assistant.load_groups(seed=options.seed, **sizes))
        return tuple([group.texts for group in part] for part in parts)
    groups = [group.texts for group in read_groups(options.corpus)]
    random.Random(options.seed).shuffle(groups)
    size = max(2, round(options.held_out * len(groups)))
    if len(groups) < size + 2:
        stop(f"{options.corpus}: {len(groups)} groups are too few, at least 4 are needed to hold some out.")
    trained = {text for group in groups[size:] for text in group}
    held_out = [group for group in groups[:size] if trained.isdisjoint(group)]
    if len(held_out) < 2:
        stop(
            f"{options.corpus}: of {size} groups held out {len(held_out)} have no text in common with the others, but "
            "two are needed. Give a larger --held-out, or merge groups that mean the same."
        )
    return groups[size:], held_out, held_out


def build_model(options, groups):
    """A SimBERT of the checkpoint, or a small one whose vocabulary is the characters of the training texts."""
    settings = {
        "temperature": options.temperature,
        "mlm_weight": 1.0 if options.mlm_rate else 0.0,
        "maxlen": options.maxlen,
    }
    if options.checkpoint:
        return simretro.SimBERT.from_pretrained(
            options.checkpoint,
            new_parts=tuple(options.new_parts),
            dropout_rate=options.dropout,
            dtype=options.dtype,
            **settings,
        )
    tokenizer = Tokenizer(home_assistant.character_vocab(text for group in groups for text in group))
    # A row holds two sentences, and its length is rounded up to a multiple of 8.
    positions = max(128, 2 * options.maxlen + 8)
    config = SMALL_MODEL | {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": positions}
    if options.quick:
        config |= {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 256}
    encoder = build_transformer_model(
        config,
        application="unilm",
        with_pool="linear",
        with_mlm="linear",
        dropout_rate=options.dropout,
        dtype=options.dtype,
    )
    return simretro.SimBERT(encoder, tokenizer, **settings)


def train(simbert, groups, validation_groups, options):
    """Trains with checkpoints; leaves the best epoch's weights in the model, returns the checkpoint with all logs."""
    common = {"pairs_per_batch": options.pairs_per_batch, "maxlen": options.maxlen}
    common |= {"mlm_rate": options.mlm_rate, "corruption_rate": options.corruption_rate}
    split_evenly = options.micro_batches > 1
    data = SimilarPairs(
        groups, simbert.tokenizer, seed=options.seed, batching=options.batching, drop_remainder=split_evenly, **common
    )
    validation_data = SimilarPairs(validation_groups, simbert.tokenizer, fixed=True, **common)
    optimizer = scheduled_optimizer(options, len(data) * options.epochs, use_ema=options.ema)
    simbert.compile(optimizer, micro_batches=options.micro_batches)
    print(f"{simbert.encoder.count_params():,} parameters; {data.num_pairs:,} pairs and {len(data)} steps an epoch")
    with one_line_errors():
        checkpoint = TrainingCheckpoint(
            options.output / "checkpoints", data, "val_loss", "min", every_steps=options.save_steps or None
        )
        first_epoch = begin_run(checkpoint, simbert, options)
        write_options(options, FREE_ON_RESUME)
    simbert.fit(
        data,
        validation_data=validation_data,
        epochs=options.epochs,
        initial_epoch=first_epoch,
        callbacks=[Throughput(tokens_per_step=mean_tokens_per_step(data, simbert.tokenizer.pad_token_id)), checkpoint],
    )
    checkpoint.load_best(simbert)
    return checkpoint


def report(simbert, untrained_vectors, groups, options):
    """Prints what the training bought, on groups it has not seen; returns the numbers."""
    texts = [text for group in groups for text in group]
    group_ids = [i for i, group in enumerate(groups) for _ in group]
    kind = "unseen sentences" if options.corpus is None else "held-out sentences (they chose the best epoch, too)"
    print(f"\nRetrieval among {len(texts):,} {kind} in {len(groups):,} groups.")
    print("A positive is in the group of the query and shares at most half of its character bigrams.")
    print("The interval is that of other groups of the same kind: the queries of a group come or go together.")
    print(f"{'':30}{'R@1':>6}  {'95 % interval':15}{'R@5':>6}{'MRR':>7}{'queries':>9}")
    rows = {
        "SimBERT": simbert.encode(texts, show_progress=False),
        "the same network, untrained": untrained_vectors,
        "TF-IDF, character bigrams": tfidf_vectors(texts, (2, 2)),
        "TF-IDF, 1- and 2-grams": tfidf_vectors(texts, (1, 2)),
        "TF-IDF, characters": tfidf_vectors(texts, (1, 1)),
    }
    numbers = {}
    for name, vectors in rows.items():
        result = group_retrieval(vectors, group_ids, texts)
        if not result.num_queries:
            print("No sentence has a positive in its group: all share more than half of their character bigrams.")
            break
        low, high = interval_of_groups(result, group_ids)
        figures = f"{result.recall_at_1:6.3f}  [{low:.3f}, {high:.3f}] {result.recall_at_5:6.3f}{result.mrr:7.3f}"
        print(f"{name:30}{figures}{result.num_queries:9}")
        numbers[name] = result.recall_at_1
    numbers["perplexity"] = perplexity(simbert, groups, options)
    print(f"\nSeq2seq perplexity of the unseen pairs: {numbers['perplexity']:.2f} a token")
    for path in options.evaluate:
        pairs = read_labelled_pairs(path)
        for name, encode in (("SimBERT", simbert.encode), ("TF-IDF", tfidf_vectors)):
            scores = evaluate_pairs(encode, pairs)
            print(f"{path.name}, {name}: AUC {scores.auc:.3f}, Spearman {scores.spearman:.3f}")
            numbers[f"{path.name} {name}"] = scores.auc
    return numbers


def interval_of_groups(result, group_ids):
    """95 % interval of R@1, resampled by group: its texts are alike, so its queries succeed or fail together."""
    _, group_of = np.unique(np.array(group_ids)[result.query_ids], return_inverse=True)
    hits, queries = np.bincount(group_of, result.ranks == 1), np.bincount(group_of)
    return bootstrap_interval(lambda hits, queries: hits.sum() / queries.sum(), hits, queries)


def perplexity(simbert, groups, options):
    """exp of the mean cross-entropy of a target token, nothing masked."""
    data = SimilarPairs(groups, simbert.tokenizer, options.pairs_per_batch, options.maxlen, fixed=True)
    judge = simretro.SimBERT(simbert.encoder, simbert.tokenizer)  # the same weights without masked tokens
    judge.compile()
    return math.exp(judge.evaluate(data, verbose=0, return_dict=True)["seq2seq_loss"])


def show(simbert, groups, options):
    """Prints what the two handles give for some unseen sentences; returns the sources that it took."""
    rng = random.Random(options.seed)
    sources = [rng.choice(group) for group in rng.sample(groups, min(40, len(groups)))]
    settings = {"maxlen": options.maxlen, "seed": options.seed, "with_scores": True}
    synonyms = simbert.gen_synonyms(sources, n=20, k=5, **settings)
    for source, found in list(zip(sources, synonyms, strict=True))[:3]:
        print(f"\ngen_synonyms({source!r})")
        for text, score in found:
            print(f"    {score:.3f}  {text}")
    index = simbert.build_index((text for group in groups for text in group), kind="annoy")
    print(f"\n{index}")
    for source in sources[:3]:
        print(f"most_similar({source!r})")
        for text, score in simbert.most_similar(source, topn=6):
            print(f"    {score:.3f}  {text}")
    if options.corpus is None:
        pairs = [(source, text) for source, found in zip(sources, synonyms, strict=True) for text, _ in found]
        share = home_assistant.share_recognised(pairs) if pairs else 0.0
        print(f"\n{share:.0%} of {len(pairs)} generated sentences have the intent and slots of their source (hassil)")
    return sources


def main(arguments: Sequence[str] | None = None):
    """Runs the job; returns the trained SimBERT and the numbers of the report."""
    options = parse_arguments(arguments)
    options.output = free_folder(options.output, options.resume)
    if options.resume:
        check_same(options, FREE_ON_RESUME, "--checkpoint")
    with one_line_errors():
        for path in options.evaluate:
            # A bad file is told before the training.
            if len({pair.label for pair in read_labelled_pairs(path)}) < 2:
                stop(f"--evaluate: {path} needs pairs of both labels, 0 and 1")
    keras.utils.set_random_seed(options.seed)
    with one_line_errors():
        groups, validation_groups, test_groups = load_corpus(options)
    print(f"writing to {options.output}; after a break go on with --resume --output {options.output}")
    print(f"groups: {len(groups):,} to train, {len(validation_groups):,} to validate, {len(test_groups):,} to test")
    with strategy_scope(options.strategy):
        with one_line_errors():
            simbert = build_model(options, groups)
        untrained = simbert.encode([text for group in test_groups for text in group], show_progress=False)
        checkpoint = train(simbert, groups, validation_groups, options)
    simbert.save_pretrained(options.output / "model", facts_of(options, checkpoint))
    simbert = simretro.SimBERT.from_pretrained(options.output / "model")
    print(f"saved and loaded again: {options.output / 'model'}")
    numbers = report(simbert, untrained, test_groups, options)
    show(simbert, test_groups, options)
    return simbert, numbers


if __name__ == "__main__":
    simbert, _ = main()
    gen_synonyms, most_similar = simbert.gen_synonyms, simbert.most_similar
