"""Pre-train one encoder for several languages with CCP on documents of each, without translations, and calibrate it.

Without arguments: LibreOffice's help in four languages, which the system's package tools fetch, a small model from
scratch; printed is how often a paragraph of held-out pages finds its translation, before and after calibration.

    python examples/pretrain_ccp.py
    python examples/pretrain_ccp.py --documents en.jsonl de.jsonl zh-CN=chinese.jsonl --init xlm-roberta-base
    python examples/pretrain_ccp.py --documents en.jsonl de.jsonl --init config.json --tatoeba tatoeba/v1
"""

import argparse
import os
import random
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import cross_lingual
import libreoffice_help
from command_line import HelpFormatter, check_same, free_folder, one_line_errors, stop, strategy_scope, write_options
from simretro import CCP, train_wordpiece
from simretro.data import ContextWindows, iter_documents
from simretro.evaluation import TextPair, evaluate_bitext
from simretro.models import initialize_by_spelling
from simretro.tokenizers import TruncationWarning
from simretro.training import LearningRate, Throughput, TrainingCheckpoint, mean_tokens_per_step
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
    "model_type": "roformer",  # its positions have no end: what is trained with 32 tokens reads 128
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
TINY_SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64}
# Without `--documents`: ten minutes on two cores. There is no bank: at such a rate its vectors are soon another
# network's, and what is learnt is to tell old vectors from new. A checkpoint, which has a low rate, gets the bank that
# `CCP` has by default, or its own.
SMALL_JOB = {
    "languages": ["en", "de", "fr", "es"],
    "maxlen": 32,
    "encode_maxlen": 128,
    "vocab_size": 3000,
    "pooling": "mean",
    "mlm_share": 0.2,
    "bank_size": 0,
    "epochs": 4,
    "steps_per_epoch": 650,
    "pairs_per_batch": 64,
    "learning_rate": 1e-3,
    "calibration_texts": 2500,
}
OWN_DOCUMENTS = {
    "languages": None,
    "maxlen": 64,
    "encode_maxlen": None,
    "vocab_size": 8000,
    "pooling": "cls",
    "mlm_share": 0.5,
    "bank_size": 0,
    "epochs": 1,
    "steps_per_epoch": None,
    "pairs_per_batch": 32,
    "learning_rate": 1e-3,
    "calibration_texts": 10_000,
}
FROM_CHECKPOINT = {"learning_rate": 3e-5, "optimizer": "adamw"}
# What a checkpoint knows of itself: where it is not given, it stays as it is there. And what new weights get.
OF_THE_MODEL = {"temperature": 0.1, "window_sentences": 2, "projection_size": 128}
KEPT = {*OF_THE_MODEL, "pooling", "bank_size", "maxlen", "encode_maxlen"}
QUICK_JOB = {"epochs": 2, "steps_per_epoch": 2, "bank_size": 64, "calibration_texts": 100}
PROBE_TEXTS = 200
# Options that a resumed run may have otherwise: they leave the weights as they are.
FREE_ON_RESUME = set(
    "cache tatoeba pairs calibration_texts scale rotate save_steps tensorboard strategy output".split()
)
FREE_ON_RESUME |= {"resume", "is_config"}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=defaults_told("--documents", OWN_DOCUMENTS, SMALL_JOB),
        formatter_class=HelpFormatter,
    )
    data = parser.add_argument_group("data")
    data.add_argument("--documents", nargs="+", help=".txt, .jsonl or folder of each language: de.jsonl or de=PATH")
    data.add_argument("--text-files", default="lines", choices=["lines", "whole"], help="what a document of a .txt is")
    data.add_argument("--languages", nargs="+", help="without --documents: of the help pages")
    data.add_argument("--disjoint", action="store_true", help="without --documents: no page in two languages")
    data.add_argument("--maxlen", type=int, help="tokens of a sentence")
    data.add_argument("--encode-maxlen", type=int, help="tokens of a text that is encoded; default: --maxlen")
    data.add_argument("--window-sentences", type=int, help="how far away a context may be")
    data.add_argument("--language-exponent", type=float, default=0.3, help="1: languages by their sizes, 0: all alike")
    data.add_argument("--cache", type=Path, help="folder for the token ids; later runs start at once")
    model = parser.add_argument_group("model")
    add_model_options(model, new_parts=["mlm_head"])
    objective = parser.add_argument_group("objective")
    objective.add_argument("--pooling", choices=["cls", "mean"], help="what becomes the vector")
    objective.add_argument("--mlm-share", type=float, help="of masked language modelling among the batches")
    objective.add_argument("--mask-rate", type=float, default=0.15, help="share of the tokens that are masked")
    objective.add_argument("--temperature", type=float, help="default: the checkpoint's own, or 0.1")
    objective.add_argument("--bank-size", type=int, help="vectors kept of each language; from scratch a few, or 0")
    objective.add_argument("--projection-size", type=int, help="of the head; default: the checkpoint's own, or 128")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, help="see below")
    training.add_argument("--steps-per-epoch", type=int, help="default with --documents: each sentence once")
    training.add_argument("--pairs-per-batch", type=int, help="pairs of the batch of all devices")
    training.add_argument(
        "--learning-rate", type=float, help="default with --documents: 1e-3, or 3e-5 from a checkpoint"
    )
    add_optimizer(training, default=None)
    training.add_argument("--micro-batches", type=int, default=1, help="parts of a batch, each with its own negatives")
    training.add_argument("--gradient-cache-rows", type=int, help="rows at a time, with the whole batch's negatives")
    add_run_options(training, "runs/ccp")
    after = parser.add_argument_group("calibration and evaluation")
    after.add_argument("--calibration-texts", type=int, help="sentences of each language that it is fitted with")
    after.add_argument(
        "--scale",
        default="principal",
        choices=["principal", "std", "variance", "none"],
        help="what vectors are divided by: `CrossLingualCalibrator` tells",
    )
    after.add_argument(
        "--rotate", default="procrustes", choices=["procrustes", "adversarial", "none"],
        help="how the languages' spaces are turned onto one another",
    )  # fmt: skip
    after.add_argument("--tatoeba", type=Path, help="LASER's folder of Tatoeba sentences")
    after.add_argument("--pairs", type=Path, help=".tsv of aligned sentences: language, text, language, text")
    options = parser.parse_args(arguments)
    check_options(parser, options)
    return options


def check_options(parser, options):
    """Refuses what does not go together, and fills in what depends on other options."""
    if options.documents and (options.languages or options.disjoint):
        parser.error("--languages and --disjoint are for the help pages: leave them out with --documents")
    options.is_config = is_config(options.init)
    if options.cache and not options.documents:
        parser.error("--cache is for the documents of --documents: the help pages are kept in memory")
    fill_in(options, QUICK_JOB if options.quick else {})
    defaults = OF_THE_MODEL | (OWN_DOCUMENTS if options.documents else SMALL_JOB) | {"optimizer": "muon"}
    if options.init and not options.is_config:
        defaults = {name: value for name, value in defaults.items() if name not in KEPT} | FROM_CHECKPOINT
    fill_in(options, defaults)
    if options.documents:
        options.documents = documents_by_language(parser, options.documents)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1; received {options.epochs}")
    if options.pairs_per_batch % max(1, options.micro_batches):
        parser.error(f"--micro-batches {options.micro_batches} must divide --pairs-per-batch {options.pairs_per_batch}")
    for name in ("tatoeba", "pairs"):
        path = getattr(options, name)
        if path is not None and not path.exists():
            parser.error(f"--{name}: {path} does not exist")


def documents_by_language(parser, given):
    """dict language -> path, of `de.jsonl` or `de=PATH`."""
    found = {}
    for item in given:
        language, mark, path = item.partition("=")
        path = Path(path if mark else item)
        language = language if mark else path.name.split(".")[0]
        if not path.exists():
            parser.error(f"--documents: {path} does not exist")
        if not language or language in found:
            parser.error(f"--documents: {item} must name another language than the others, as de.jsonl or de=PATH")
        found[language] = path
    if len(found) < 2:
        parser.error(f"--documents must be of two languages or more; received {list(found)}")
    return found


def load_job(options):
    """({language: path or documents}, {what is measured with: {name: aligned texts}})."""
    evaluations = {}
    if options.documents:
        sources = options.documents
    else:
        try:
            pages = libreoffice_help.load_pages(options.languages, libreoffice_help.CACHE)
        except OSError as error:
            stop(f"{error} Or give documents of your own: --documents en.jsonl de.jsonl")
        training, held_out = libreoffice_help.split_pages(pages, comparable=not options.disjoint, seed=options.seed)
        sources = {name: libreoffice_help.documents_of(pages[name], own) for name, own in training.items()}
        evaluations["held-out pages"] = help_pairs(pages, held_out, options)
        how = "no page in two languages" if options.disjoint else "the same pages, which nothing aligns"
        print(f"LibreOffice's help, {how}: { ({name: len(own) for name, own in sources.items()}) } pages")
        if options.quick:
            sources = {name: own[:30] for name, own in sources.items()}
    if options.tatoeba:
        evaluations["Tatoeba"] = cross_lingual.tatoeba_pairs(options.tatoeba, list(sources))
    if options.pairs:
        evaluations[options.pairs.name] = cross_lingual.read_pairs(options.pairs)
    pairs = [pair for own in evaluations.values() for pair in own.values()]
    unknown = sorted({language for pair in pairs for language in pair[:2]} - set(sources))
    if unknown:
        stop(f"--pairs: there are no documents to calibrate {unknown} with; there are {list(sources)}")
    if not pairs:
        print("No evaluation: there are no aligned texts. Give --tatoeba or --pairs to see what the training brought.")
    return sources, evaluations


def help_pairs(pages, held_out, options):
    """Paragraphs of held-out pages: the first language with each other, and the second with the third."""
    first, *others = options.languages
    chosen = [(first, other) for other in others] + ([tuple(others[:2])] if len(others) > 1 else [])
    texts = {
        pair: libreoffice_help.aligned_paragraphs(pages, *pair, held_out, num_pairs=50 if options.quick else 1000)
        for pair in chosen
    }
    return {"-".join(pair): TextPair(*pair, *sides) for pair, sides in texts.items()}


def build_model(options, sources):
    """A CCP of the checkpoint, head and bank included where there are any, or of new weights and a new vocabulary."""
    settings = {name: getattr(options, name) for name in sorted(KEPT) if getattr(options, name) is not None}
    settings["languages"] = list(sources)
    if "encode_maxlen" in settings:
        settings["maxlen"] = settings.pop("encode_maxlen")
    if options.init and not options.is_config:
        network = network_options(options)
        return CCP.from_pretrained(options.init, new_parts=tuple(options.new_parts), **network, **settings)
    tokenizer = train_wordpiece(texts_of(sources, options), options.vocab_size)
    encoder = new_encoder(options, tokenizer, SMALL_MODEL, TINY_SIZES, with_mlm="linear")
    initialize_by_spelling(encoder, tokenizer, options.seed)
    return CCP(encoder, tokenizer, **settings)


def texts_of(sources, options):
    """The texts of all languages one by one."""
    for source in sources.values():
        documents = source if isinstance(source, list) else iter_documents(source, options.text_files)
        yield from (document.text for document in documents)


def load_data(options, sources, ccp):
    return ContextWindows(
        sources,
        ccp.tokenizer,
        options.pairs_per_batch,
        options.maxlen or ccp.maxlen or OWN_DOCUMENTS["maxlen"],
        ccp.window_sentences,
        options.mlm_share,
        options.seed,
        mask_rate=options.mask_rate,
        language_exponent=options.language_exponent,
        batches_per_epoch=options.steps_per_epoch,
        text_files=options.text_files,
        cache_dir=options.cache,
    )


def prepare(ccp, data, probe_texts, options):
    """Compiles the model; returns the callbacks of `fit`, their checkpoint, and the epoch to begin with."""
    total_steps = len(data) * options.epochs
    ccp.compile(
        scheduled_optimizer(options, total_steps),
        micro_batches=options.micro_batches,
        gradient_cache_rows=options.gradient_cache_rows,
    )
    shares = ", ".join(f"{name} {count:,}" for name, count in data.num_pairs.items())
    print(f"{ccp.encoder.count_params():,} parameters; sentences: {shares}; {len(data)} steps an epoch")
    evaluations = embedding_monitor(encoder_of(ccp), probe_texts)
    checkpoint = TrainingCheckpoint(
        options.output / "checkpoints", data, every_steps=options.save_steps or None, evaluations=evaluations
    )
    throughput = Throughput(tokens_per_step=mean_tokens_per_step(data, ccp.tokenizer.pad_token_id))
    callbacks = [throughput, LearningRate(), *evaluations, checkpoint, *tensorboard(options, evaluations)]
    return callbacks, checkpoint, begin_run(checkpoint, ccp, options)


def pretrain(ccp, data, texts, options):
    """Trains with checkpoints and monitors; returns the checkpoint, which knows the logs of all epochs."""
    with one_line_errors():
        callbacks, checkpoint, first_epoch = prepare(ccp, data, probe_texts(texts, options.seed), options)
        write_options(options, FREE_ON_RESUME)
    if first_epoch < options.epochs:
        ccp.fit(data, epochs=options.epochs, initial_epoch=first_epoch, callbacks=callbacks)
    return checkpoint


def probe_texts(texts, seed):
    """Texts for the monitor, as many of each language as there are."""
    each = max(1, PROBE_TEXTS // len(texts))
    chosen = {text: None for own in texts.values() for text in random.Random(seed).sample(own, min(each, len(own)))}
    return list(chosen)


def encoder_of(ccp):
    return lambda texts: ccp.encode(texts, batch_size=64, show_progress=False)


def calibrate(ccp, texts, options):
    """The calibrator of the model's vectors, which is saved beside the model."""
    encoder = ccp.sentence_encoder
    vectors = {name: encoder.encode(own, batch_size=64, show_progress=False) for name, own in texts.items()}
    calibrator = cross_lingual.fit_calibrator(vectors, fingerprint=encoder.fingerprint(), **calibration(options))
    calibrator.save(options.output / "calibrator")
    print(f"saved: {options.output / 'calibrator'}; {cross_lingual.describe_rotations(calibrator)}")
    return calibrator


def calibration(options):
    settings = {"scale": options.scale, "rotate": options.rotate}
    settings = {name: None if value == "none" else value for name, value in settings.items()}
    return settings | {"random_state": options.seed}


def measure(ccp, evaluations):
    """{what is measured with: `BitextResult`} of the vectors as they are."""
    return {
        name: evaluate_bitext(pairs, cross_lingual.encode_pairs(encoder_of(ccp), pairs))
        for name, pairs in evaluations.items()
    }


def report(ccp, calibrator, before, texts, evaluations, options):
    """Prints how often a text finds its translation; returns {what is measured with: {title: `BitextResult`}}."""
    count = cross_lingual.tfidf_svd(texts, ccp.encoder.config["hidden_size"], options.seed)
    counted_texts = {name: count(own) for name, own in texts.items()}
    scales = dict.fromkeys([calibration(options)["scale"], None])  # what suits the network may not suit the counts
    counting = [
        cross_lingual.fit_calibrator(counted_texts, **calibration(options) | {"scale": scale}) for scale in scales
    ]
    print("\nHow often the nearest text of the other language is the translation, in percent, there and back.")
    print("TF-IDF: of characters, cut to as many dimensions; calibrated: at its best. Before, after: training.")
    results = {}
    for name, pairs in evaluations.items():
        vectors = cross_lingual.encode_pairs(count, pairs)
        counted = [cross_lingual.stage_results(vectors, pairs, one) for one in counting]
        stages = cross_lingual.stage_results(cross_lingual.encode_pairs(encoder_of(ccp), pairs), pairs, calibrator)
        results[name] = {
            "TF-IDF": counted[0]["raw"],
            "calibrated": max((result for one in counted for result in one.values()), key=lambda result: result.mean),
            "before": before[name],
            "after": stages.pop("raw"),
            **{cross_lingual.STAGE_TITLES[stage]: result for stage, result in stages.items()},
        }
        cross_lingual.print_table(results[name], pairs, name)
    return results


def main(arguments: Sequence[str] | None = None):
    """Runs the job; returns the pre-trained CCP, the calibrator and the results of the report."""
    began = time.perf_counter()
    options = parse_arguments(arguments)
    options.output = free_folder(options.output, options.resume)
    if options.resume:
        check_same(options, FREE_ON_RESUME)
    # Texts that are encoded to measure something are cut on purpose.
    warnings.simplefilter("ignore", TruncationWarning)
    with one_line_errors():
        keras.utils.set_random_seed(options.seed)
        sources, evaluations = load_job(options)
        texts = {
            name: cross_lingual.sample_sentences(
                source, name, options.calibration_texts, options.seed, options.text_files
            )
            for name, source in sources.items()
        }
    print(f"writing to {options.output}; after a break go on with --resume --output {options.output}")
    with strategy_scope(options.strategy):
        with one_line_errors():
            ccp = build_model(options, sources)
            data = load_data(options, sources, ccp)
        before = measure(ccp, evaluations)
        checkpoint = pretrain(ccp, data, texts, options)
    ccp.save_pretrained(options.output / "model", facts_of(options, checkpoint))
    ccp = CCP.from_pretrained(options.output / "model")
    print(f"saved and loaded again: {options.output / 'model'}")
    calibrator = calibrate(ccp, texts, options)
    results = report(ccp, calibrator, before, texts, evaluations, options) if evaluations else {}
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes")
    return ccp, calibrator, results


if __name__ == "__main__":
    main()
