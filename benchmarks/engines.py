"""Sentence vectors of MiniLM-L6 by each engine of `SentenceEncoder.encode`, beside sentence-transformers' backends.

usage: python benchmarks/engines.py --peer-python PEERS/bin/python       about 20 minutes
       (a look at simretro's engines alone: without --peer-python, 6)

Texts, calls and peers are those of encode.py. "simretro" is the engine "onnx", in float32. What an engine loses is
measured against Keras in float32: the cosines of the vectors of all texts, and of single words, which rounding to 8
bits harms most.
"""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
from common import OURS, Benchmark, serve
from encode import (
    NUM_QUERIES,
    ONNX,
    QUERY_TOKENS,
    TORCH,
    begin,
    sentence_transformers,
    sentence_transformers_onnx,
    text_flops,
)
from encode import simretro as encode_side

OPENVINO = "sentence-transformers openvino"
ENGINES = {OURS: "onnx", "simretro keras": "keras", "simretro openvino": "openvino", "simretro int8": "openvino-int8"}
PACKAGES = {"onnx": ("onnxruntime",), "openvino": ("openvino",), "openvino-int8": ("openvino",), "keras": ()}
ROUNDED = "simretro int8"
NUM_WORDS = 500


def simretro(settings):
    engine = ENGINES[settings["side"]]
    calls, names = encode_side(settings, engine=engine, frozen=True)  # as the peers' exported files are
    return {**calls, "words": lambda: calls["save"]("words")}, (*names, *PACKAGES[engine])


def sentence_transformers_openvino(settings):
    arguments = {"export": True, "device": "CPU", "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
    arguments["ov_config"]["INFERENCE_NUM_THREADS"] = str(settings["threads"])
    calls, names = sentence_transformers(settings, backend="openvino", model_kwargs=arguments)
    return calls, (*names, "openvino", "optimum-intel")


def main():
    options, model, texts, shape = begin(__doc__)
    with Benchmark(__file__, options, shape) as benchmark:
        folder = Path(benchmark.folder)
        words = list(dict.fromkeys(word for text in texts for word in text.split()))[:NUM_WORDS]
        for name, content in (("all", texts), ("words", words)):
            (folder / f"{name}.json").write_text(json.dumps(content))
        for side in ENGINES:
            benchmark.start(side, sys.executable, model=model)
        for side in (TORCH, ONNX, OPENVINO):
            benchmark.start(side, options.peer_python, model=model)
        lengths = benchmark.values("lengths")[OURS]
        queries = [text for text, length in zip(texts, lengths, strict=True) if length in QUERY_TOKENS][:NUM_QUERIES]
        (folder / "queries.json").write_text(json.dumps(queries))
        benchmark.note(f"{sum(lengths):,} tokens, at most {max(lengths)} in a text.")
        benchmark.measure("all", "mixed texts", "texts/s", len(texts), text_flops(lengths))
        label = f"one query of {QUERY_TOKENS[0]} to {QUERY_TOKENS[-1]} tokens"
        benchmark.measure("queries", label, "ms", len(queries))
        note_quality(benchmark, texts, words)
        note_targets(benchmark)
        benchmark.report()


def note_quality(benchmark, texts, words):
    """Cosines to Keras in float32, or to the engine "onnx" where Keras is left out."""
    for call, things in (("save", texts), ("words", words)):
        paths = benchmark.values(call)
        reference = "simretro keras" if "simretro keras" in paths else OURS
        expected = np.load(paths.pop(reference))
        for side, path in paths.items():
            cosines = (np.load(path) * expected).sum(axis=1)
            what = "texts" if call == "save" else "single words"
            worst = things[cosines.argmin()][:40]
            benchmark.note(
                f"{side}: cosine to {reference}, {len(things):,} {what}: worst {cosines.min():.5f} ({worst!r}), one of "
                f"a hundred below {np.percentile(cosines, 1):.5f}, mean {cosines.mean():.5f}."
            )
            if side != ROUNDED and cosines.min() < 1 - 1e-5:
                raise RuntimeError(f"{side} and {reference} do not compute the same vectors.")


def note_targets(benchmark):
    """What the fast paths gain on the best float32 backend of sentence-transformers."""
    texts, queries = (
        {side: statistics.median(x for times in measured["turns"] for x in times) for side, measured in sides.items()}
        for sides in (case["sides"] for case in benchmark.cases)
    )
    peers = [side for side in texts if side not in ENGINES]
    if not peers:
        return
    best, fastest = min(peers, key=texts.get), min(peers, key=queries.get)
    for side in [side for side in ENGINES if side in texts]:
        benchmark.note(
            f"{side}: {texts[best] / texts[side]:.2f} x the throughput of {best}, one query in "
            f"{queries[side] / queries[fastest]:.2f} x the time of {fastest}."
        )


SIDES = dict.fromkeys(ENGINES, simretro)
SIDES |= {TORCH: sentence_transformers, ONNX: sentence_transformers_onnx, OPENVINO: sentence_transformers_openvino}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
