"""What CCP and calibration bring: how often a paragraph finds its translation, top-1 of 1,000, without parallel text.

usage: python benchmarks/ccp_quality.py [--pages FOLDER] [--tatoeba FOLDER] [--steps 1000] [--seeds 0 1 2] [--record]
       FOLDER: en.jsonl.gz, de.jsonl.gz, ... as examples/libreoffice_help.py keeps them, perhaps with a split.json

For each setting, variant and seed a network of 4x256 with a joint vocabulary is trained from new weights on help pages
in eight languages, for the same number of steps. "disjoint": each page is given to one language, so no text is seen in
two; "comparable": all pages in all languages, which nothing aligns. Held-out pages are what is measured, after each
operation of the calibration, which is fitted with sentences of the training pages; Tatoeba is out of domain. Beside it
stand TF-IDF of characters with SVD, raw and calibrated, and the network before training. Each run is written to
--results at once; runs that are there are not repeated, so the benchmark can be stopped and started again.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from common import RESULTS, add_result, read_results

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import cross_lingual
import libreoffice_help
from simretro import CCP, build_transformer_model, train_wordpiece
from simretro.data import ContextWindows
from simretro.evaluation import TextPair
from simretro.models import initialize_by_spelling
from simretro.tokenizers import TruncationWarning
from simretro.training import OPTIMIZER_NAMES, build_optimizer

CONFIG = {
    "model_type": "roformer",
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 512,
}  # fmt: skip
# Rotary positions let a network that is trained with the beginnings of sentences read whole paragraphs.
VOCAB_SIZE, TRAINED_MAXLEN, MAXLEN, CALIBRATION_TEXTS = 8000, 32, 128, 2500
LANGUAGES = libreoffice_help.LANGUAGES
PAIRS = [*(("en", other) for other in LANGUAGES if other != "en"), ("de", "fr"), ("es", "ru"), ("ja", "zh-CN")]
LATIN = {"en", "de", "fr", "es", "tr"}
UNTRAINED, COUNTED, WHOLE = "random init", "TF-IDF + SVD", "MLM+CCP"
TRAINED = {
    "pairs_per_batch": 64,
    "window_sentences": 2,
    "mlm_share": 0.2,
    "bank_size": 0,
    "batch_norm": "alternating",
}
VARIANTS = {  # what is other than in `TRAINED`
    "MLM": {"mlm_share": 1.0},
    WHOLE: {},
    "CCP": {"mlm_share": 0.0},
    "no L2 norm": {"similarity": "dot"},
    "no BN": {"batch_norm": None},
    "plain BN": {"batch_norm": "plain"},
    "bank of 256": {"bank_size": 256},
    "bank of 4096": {"bank_size": 4096},
    "shared bank of 256": {"bank_kind": "shared", "bank_size": 256},
    "window 1": {"window_sentences": 1},
    "window 5": {"window_sentences": 5},
    "16 pairs": {"pairs_per_batch": 16},
}
# Options that runs of one file share.
SETTINGS = ("steps", "optimizer", "learning_rate", "pooling", "dtype", "token_table")
OF_DATA = ("pairs_per_batch", "window_sentences", "mlm_share")
STAGES = {
    "raw": "", "shift": " + shift", "scale": " + scale", "rotate": " + rotate", "shift, rotate": " + shift, rotate",
    "std": " + shift, scale by std", "std, rotate": " + shift, scale by std, rotate",
}  # fmt: skip
SCALES = {  # for each way to scale what its stages are called in the tables
    "principal": {"raw": "raw", "shift": "shift", "scale": "scale", "rotate": "rotate"},
    None: {"rotate": "shift, rotate"},
    "std": {"scale": "std", "rotate": "std, rotate"},
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=Path, default=libreoffice_help.CACHE, help="default: the example's cache")
    parser.add_argument("--tatoeba", type=Path, help="LASER's folder")
    parser.add_argument("--settings", nargs="+", default=["disjoint", "comparable"], choices=["disjoint", "comparable"])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), help="variants to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000, help="of every training")
    parser.add_argument("--optimizer", default="muon", choices=OPTIMIZER_NAMES)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--dtype", default="mixed_bfloat16", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--token-table", default="spelling", choices=["spelling", "random"], help="of new weights")
    parser.add_argument("--pooling", default="mean", choices=["mean", "cls"])
    parser.add_argument("--results", type=Path, default=RESULTS / "ccp_quality.jsonl")
    parser.add_argument("--record", action="store_true", help="append the tables to RESULTS.md")
    return parser.parse_args()


# Data


def load_setting(options, setting):
    """({language: documents}, {language: texts to calibrate with}, {name: `TextPair`} of help pages and of Tatoeba)."""
    pages = libreoffice_help.load_pages(LANGUAGES, options.pages)
    training, held_out = split_of(options.pages, pages, comparable=setting == "comparable")
    documents = {name: libreoffice_help.documents_of(pages[name], training[name]) for name in LANGUAGES}
    texts = {
        name: cross_lingual.sample_sentences(own, name, CALIBRATION_TEXTS) for name, own in documents.items()
    }  # fmt: skip
    pairs = {
        "-".join(pair): TextPair(*pair, *libreoffice_help.aligned_paragraphs(pages, *pair, held_out)) for pair in PAIRS
    }
    tatoeba = {}
    if options.tatoeba:
        found = cross_lingual.tatoeba_pairs(options.tatoeba, LANGUAGES)
        tatoeba = {f"Tatoeba {name}": pair for name, pair in found.items()}
    return documents, texts, pairs | tatoeba


def split_of(folder, pages, comparable):
    """({language: pages to train on}, pages to measure with), of the folder's split.json where there is one."""
    path = folder / "split.json"
    if not path.is_file():
        return libreoffice_help.split_pages(pages, comparable=comparable)
    split = json.loads(path.read_text("utf-8"))
    held_out = split["eval"]
    if not comparable:
        return split["train"], held_out
    return {name: [page for page in own if page not in set(held_out)] for name, own in pages.items()}, held_out


# One run


def new_model(tokenizer, seed, options, arguments=None):
    keras.utils.set_random_seed(seed)
    config = {**CONFIG, "vocab_size": tokenizer.vocab_size}
    encoder = build_transformer_model(config, with_mlm="linear", dtype=options.dtype)
    if options.token_table == "spelling":
        initialize_by_spelling(encoder, tokenizer, seed)
    return CCP(encoder, tokenizer, languages=LANGUAGES, pooling=options.pooling, maxlen=MAXLEN, **(arguments or {}))


def train(documents, tokenizer, variant, seed, options):
    """Trains from new weights; returns the model and the logs of the last quarter of the steps."""
    arguments = TRAINED | VARIANTS[variant]
    data = ContextWindows(
        documents, tokenizer, maxlen=TRAINED_MAXLEN, seed=seed, batches_per_epoch=-(-options.steps // 4),
        **{name: arguments.pop(name) for name in OF_DATA if name != "window_sentences"},
        window_sentences=arguments["window_sentences"],
    )  # fmt: skip
    ccp = new_model(tokenizer, seed, options, arguments)
    total_steps = 4 * len(data)
    schedule = {"warmup_steps": total_steps // 10, "total_steps": total_steps}
    ccp.compile(build_optimizer(options.optimizer, options.learning_rate, **schedule, global_clipnorm=1.0))
    history = ccp.fit(data, epochs=4, verbose=0).history
    return ccp, {name: values[-1] for name, values in history.items()}


def measure(encode, texts, pairs, seed):
    """{stage: {pair: [there, back]}}, top-1."""
    vectors = cross_lingual.encode_pairs(encode, pairs)
    fitted = {language: encode(list(own)) for language, own in texts.items()}
    found = {}
    for scale, names in SCALES.items():
        calibrator = cross_lingual.fit_calibrator(fitted, scale=scale, random_state=seed)
        stages = cross_lingual.stage_results(vectors, pairs, calibrator)
        found |= {name: stages[stage] for stage, name in names.items()}
    return {
        stage: {name: [one.forward, one.backward] for name, one in result.pairs.items()}
        for stage, result in found.items()
    }


def run_all(options):
    """{(setting, variant, seed): result}, those of earlier calls included."""
    settings = {name: getattr(options, name) for name in SETTINGS}
    done = read_results(options.results, settings, "setting", "variant", "seed")
    for setting in options.settings:
        wanted = [(setting, variant, seed) for variant in (UNTRAINED, *options.only) for seed in options.seeds]
        wanted = [key for key in [(setting, COUNTED, options.seeds[0]), *wanted] if key not in done]
        if not wanted:
            continue
        documents, texts, pairs = load_setting(options, setting)
        tokenizer = train_wordpiece((document.text for own in documents.values() for document in own), VOCAB_SIZE)
        for key in wanted:
            start = time.process_time()
            done[key] = run(key, documents, texts, pairs, tokenizer, options) | {"settings": settings}
            done[key]["cpu_s"] = time.process_time() - start
            add_result(options.results, done[key])
            stages = {stage: round(mean_of(found, in_latin), 1) for stage, found in done[key]["stages"].items()}
            print(*key, f"{done[key]['cpu_s']:.0f} s", stages, flush=True)
            keras.backend.clear_session()
    return done


def run(key, documents, texts, pairs, tokenizer, options):
    setting, variant, seed = key
    logs = {}
    if variant == COUNTED:
        encode = cross_lingual.tfidf_svd(texts, CONFIG["hidden_size"], seed)
    else:
        if variant == UNTRAINED:
            ccp = new_model(tokenizer, seed, options)
        else:
            ccp, logs = train(documents, tokenizer, variant, seed, options)
        encoder = ccp.sentence_encoder

        def encode(texts):
            return encoder.encode(texts, batch_size=64, show_progress=False)

    stages = measure(encode, texts, pairs, seed)
    return {
        "setting": setting,
        "variant": variant,
        "seed": seed,
        "steps": options.steps,
        "logs": logs,
        "stages": stages,
    }


# Tables


def in_latin(name):
    return set(name.split("-", 1)) <= LATIN


def other_script(name):
    return not in_latin(name) and not of_tatoeba(name)


def of_tatoeba(name):
    return name.startswith("Tatoeba ")


def mean_of(found, chosen):
    """Mean over the chosen pairs and both directions, in percent; NaN if there are none."""
    values = [value for name, both in found.items() if chosen(name) for value in both]
    return 100 * float(np.mean(values)) if values else float("nan")


def table(options, done, setting):
    """A line for each variant and stage, means over pairs; behind the mean of the seeds their range."""
    columns = {"Latin script": in_latin, "other scripts": other_script, "Tatoeba": of_tatoeba}
    lines = [
        "| | " + " | ".join(columns) + " | last losses (chance): context, MLM |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for variant in (COUNTED, UNTRAINED, *options.only):
        runs = [done[setting, variant, seed] for seed in options.seeds if (setting, variant, seed) in done]
        for stage, title in STAGES.items():
            cells = []
            for chosen in columns.values():
                values = [mean_of(one["stages"][stage], chosen) for one in runs]
                cells.append("-" if np.isnan(values).any() else spread(values))
            lines.append(f"| {variant}{title} | {' | '.join(cells)} | {losses(runs) if stage == 'raw' else ''} |")
    return "\n".join(lines)


def spread(values):
    mean = f"{np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f}-{max(values):.1f})"


def losses(runs):
    logs = [one["logs"] for one in runs if one["logs"]]
    if not logs:
        return ""
    context, chance, mlm = (
        np.mean([log[name] for log in logs]) for name in ("context_loss", "context_chance", "mlm_loss")
    )  # fmt: skip
    return f"{context:.2f} ({chance:.2f}), {mlm:.2f}"


def pair_table(options, done, setting):
    """A column for each pair: the baseline, and what is trained after each stage; there and back."""
    names = ["-".join(pair) for pair in PAIRS]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for variant in (COUNTED, UNTRAINED, *(name for name in ("MLM", WHOLE) if name in options.only)):
        runs = [done[setting, variant, seed] for seed in options.seeds if (setting, variant, seed) in done]
        for stage, title in STAGES.items():
            both = [np.mean([one["stages"][stage][name] for one in runs], axis=0) for name in names]
            lines.append(f"| {variant}{title} | {' | '.join(f'{100 * x:.1f}/{100 * y:.1f}' for x, y in both)} |")
    return "\n".join(lines)


def main():
    options = parse_arguments()
    warnings.simplefilter("ignore", TruncationWarning)
    warnings.filterwarnings("ignore", "The vectors given for")  # Tatoeba's, after calibration with help pages
    done = run_all(options)
    text = (
        f"### ccp_quality: 4x256, {options.steps} steps, seeds {options.seeds}\n\n"
        f"{time.strftime('%Y-%m-%d')}; vocabulary {VOCAB_SIZE}, {TRAINED_MAXLEN} tokens of a sentence in training, "
        f"{MAXLEN} of a text in use, "
        + ", ".join(f"{name} {getattr(options, name)}" for name in SETTINGS)
        + f", otherwise {TRAINED}. Top-1 in percent, chance 0.1.\n"
    )
    for setting in options.settings:
        text += f"\n**{setting}**\n\n{table(options, done, setting)}\n\n{pair_table(options, done, setting)}\n"
    print(text)
    if options.record:
        with open(Path(__file__).with_name("RESULTS.md"), "a", encoding="utf-8") as file:
            file.write(f"\n{text}")


if __name__ == "__main__":
    main()
