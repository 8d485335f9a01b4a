"""What the benchmarks share: one worker process a library, calls in turns, floating-point counts, table and JSON line.

A benchmark starts itself once for every library, each in the interpreter that has it. A worker builds its model, then
answers requests, a JSON line each: "call this so many times". The workers take turns, forth and back, so that a machine
that gets slower or faster does so for all of them; while one works the others wait. Each has memory peaks of its own.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

OURS = "simretro"
SIZES = {  # as in the names of BERT's small models: layers, hidden size, feed-forward size, heads
    "small": (4, 256, 1024, 4),
    "base": (12, 768, 3072, 12),
}
VOCAB_SIZE = 13584
PAD, UNK, CLS, SEP, MASK, FIRST_WORD = range(6)
# New processes have been seen to compute at half speed for some seconds, and waiting ones come back with cold caches.
_WARM_UP_SECONDS, _WARM_AGAIN_SECONDS = 3.0, 0.5
_CEILING = """
import sys, time, numpy as np
def seconds():
    start = time.perf_counter(); np.matmul(a, a, out=b); return time.perf_counter() - start
a = np.random.default_rng(0).standard_normal((2048, 2048), dtype="float32"); b = np.empty_like(a)
for name in ("warm up", "measure"):
    end, times = time.perf_counter() + float(sys.argv[1]), [seconds()]
    while time.perf_counter() < end: times.append(seconds())
print(2 * 2048**3 / sorted(times)[len(times) // 2] / 1e9)
"""


def bert_config(size):
    """Keys of `bert_config.json`, read by all libraries."""
    layers, hidden, feed_forward, heads = SIZES[size]
    return {
        "model_type": "bert", "vocab_size": VOCAB_SIZE, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": feed_forward, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": PAD,
    }  # fmt: skip


# Floating-point operations: products of matrices only, a multiplication with its addition counts 2. Work that need not
# be done is not counted: padding, logits that no loss reads, tokens that a cache has.


def trunk_flops(shape, queries, keys):
    """Forward pass of `queries` tokens, each seeing `keys` tokens, through the blocks of `shape` (see `SIZES`)."""
    layers, hidden, feed_forward, _ = shape
    products = 2 * (4 * hidden**2 + 2 * hidden * feed_forward)
    return layers * queries * (products + 4 * hidden * keys)


def head_flops(shape, positions, vocab_size=VOCAB_SIZE):
    """Vocabulary logits of `positions` tokens."""
    return 2 * positions * shape[1] * (shape[1] + vocab_size)


# Workers


def serve(sides):
    """In a worker: answers until the input ends; returns False in the process that a user has started.

    Args:
        sides: {library: function (settings) -> ({name: callable without arguments}, names of its distributions)}.
    """
    if sys.argv[1:2] != ["--worker"]:
        return False
    # Answers go through the original standard output, whatever the libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[2])
    calls, distributions = sides[settings["side"]](settings)
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in distributions}}
    print(json.dumps({"versions": versions, "calls": list(calls)}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(calls, **json.loads(line))), file=answers, flush=True)
    return True


def _answer(calls, name, runs, warm_up_seconds):
    function, value, times = calls[name], None, []
    end = time.perf_counter() + warm_up_seconds
    while time.perf_counter() < end:
        function()
    for _ in range(runs):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return {"times": times, "value": value, "peak_mib": _peak_mib()}


def _peak_mib():
    """Most resident memory that this process has had, libraries included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024)


def _environment(threads):
    """The same number of threads for every library, and no advice to OpenBLAS on what machine this is."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    environment |= dict.fromkeys((*names, "RAYON_NUM_THREADS"), str(threads))
    environment |= {"KERAS_BACKEND": "tensorflow", "TF_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
    return environment | {"TOKENIZERS_PARALLELISM": "true", "CUDA_VISIBLE_DEVICES": ""}


class Worker:
    """The process of one library."""

    def __init__(self, script, python, threads, settings):
        self.side = settings["side"]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [python, script, "--worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=_environment(threads),
        )
        ready = self._read()
        self.versions, self.calls = ready["versions"], ready["calls"]

    def ask(self, name, runs=1, warm_up_seconds=0.0):
        """Dict of `times` (seconds of each run), `value` (what the last one returned), `peak_mib`."""
        request = {"name": name, "runs": runs, "warm_up_seconds": warm_up_seconds}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"The worker of {self.side} has ended:\n{self.log.read()[-3000:]}")
        return json.loads(line)


# The process that a user has started


def options_of(doc, rounds, runs, add_arguments=lambda parser: None):
    """Parsed command line: the options of all benchmarks and those that `add_arguments` adds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter with requirements-peers.txt; without it, simretro alone")
    parser.add_argument("--sides", help="libraries to measure beside simretro, comma-separated; default: all")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each library, default {rounds}")
    parser.add_argument("--runs", type=int, default=runs, help=f"timed calls in a turn, default {runs}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small data, one call: does it run? The times say nothing")
    parser.add_argument("--record", action="store_true", help="append table and JSON line to RESULTS.md")
    add_arguments(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds = options.runs = 1
    return options


class Benchmark:
    """Starts workers, times them in turns, reports. A context manager; `report` comes last.

    Args:
        script: path of the benchmark.
        options: from `options_of`.
        shape: str, what is computed.
    """

    def __init__(self, script, options, shape):
        self.script, self.options, self.shape = script, options, shape
        self.workers, self.cases, self.notes = {}, [], []
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name
        self.load = [os.getloadavg()[0]]
        self.ceiling = [self._ceiling()]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for worker in self.workers.values():
            worker.close()
        self._folder.cleanup()

    def start(self, side, python, **settings):
        """Starts a library's worker where there is an interpreter for it and the library is wanted."""
        wanted = not self.options.sides or side in [OURS, *self.options.sides.split(",")]
        if python and wanted:
            _tell(f"{side}: starting")
            settings |= {"side": side, "folder": self.folder, "quick": self.options.quick}
            settings["threads"] = self.options.threads
            self.workers[side] = Worker(self.script, python, self.options.threads, settings)

    def values(self, name):
        """{library: what its call returns}, for those that have such a call."""
        return {side: worker.ask(name)["value"] for side, worker in self.workers.items() if name in worker.calls}

    def measure(self, name, label, unit="ms", count=1, flops=None, few=()):
        """Times the call `name` in all workers that have it.

        Args:
            name: of the call.
            label: str, for the table.
            unit: "ms" or "s" (of a call divided by `count`), or what ends in "/s" (`count` by the seconds of a call).
            count: number of things that a call works on.
            flops: number of floating-point operations of a call.
            few: libraries so slow that two timed calls have to do.
        Returns: {library: what the last call returned}.
        """
        workers = {side: worker for side, worker in self.workers.items() if name in worker.calls}
        sides, values = {}, {}
        for side, worker in workers.items():
            _tell(f"{side}: first call: {label}")
            sides[side] = {"first": worker.ask(name)["times"][0], "turns": []}
            if side not in few and not self.options.quick:
                worker.ask(name, 0, _WARM_UP_SECONDS)
        for turn in range(self.options.rounds):
            for side in list(workers)[:: 1 if turn % 2 == 0 else -1]:
                if side in few and turn > 1:
                    continue
                turns = sides[side]["turns"]
                warm = self.options.quick or side in few or (turns and turns[-1][-1] > 2 * _WARM_AGAIN_SECONDS)
                runs = 1 if side in few else self.options.runs
                answer = workers[side].ask(name, runs, 0 if warm else _WARM_AGAIN_SECONDS)
                _tell(f"{side}: {[round(x, 4) for x in answer['times']]} s: {label}")
                turns.append(answer["times"])
                sides[side]["peak_mib"], values[side] = answer["peak_mib"], answer["value"]
        self.cases.append({"case": label, "unit": unit, "count": count, "flops": flops, "sides": sides})
        return values

    def note(self, text):
        """A line below the table."""
        _tell(text)
        self.notes.append(text)

    def report(self):
        """Prints table and JSON line, and appends them to RESULTS.md where that is asked for."""
        self.ceiling.append(self._ceiling())
        self.load.append(os.getloadavg()[0])
        cases = [self._summary(case) for case in self.cases]
        text = f"### {Path(self.script).stem}: {self.shape}\n\n{self._header()}\n\n{_table(cases)}\n"
        text += "".join(f"\n- {note}" for note in self.notes) + "\n" * bool(self.notes)
        facts = {
            "benchmark": Path(self.script).stem, "shape": self.shape, "date": time.strftime("%Y-%m-%d"),
            "cpu": _cpu(), "cores": os.cpu_count(), "threads": self.options.threads, "quick": self.options.quick,
            "ceiling_gflops": [round(x, 1) for x in self.ceiling], "load": [round(x, 2) for x in self.load],
            "versions": {side: worker.versions for side, worker in self.workers.items()},
            "notes": self.notes, "cases": cases,
        }  # fmt: skip
        line = json.dumps(facts, ensure_ascii=False)
        print(f"{text}\n{line}")
        if self.options.record:
            with open(Path(self.script).with_name("RESULTS.md"), "a", encoding="utf-8") as file:
                file.write(f"\n{text}\n```json\n{line}\n```\n")

    def _header(self):
        before, after = self.ceiling
        text = (
            f"{time.strftime('%Y-%m-%d')}, {_cpu()}, {self.options.threads} threads on {os.cpu_count()} cores, "
            f"float32. Matrix product of NumPy, 2048x2048x2048: {before:.0f} GFLOP/s before, {after:.0f} after; MFU is "
            f"the share of the higher one. Load before and after: {self.load[0]:.1f}, {self.load[1]:.1f}. Peak RSS is "
            "that of the process so far, earlier lines included."
        )
        return text + self.options.quick * " QUICK: the times say nothing."

    def _ceiling(self):
        command = [sys.executable, "-c", _CEILING, "0.3" if self.options.quick else "3"]
        environment = _environment(self.options.threads)
        return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    def _summary(self, case):
        rate, ours = case["unit"].endswith("/s"), case["sides"].get(OURS)
        scale = {"ms": 1000, "s": 1}.get(case["unit"], 1)

        def figure(seconds):
            return case["count"] / seconds if rate else scale * seconds / case["count"]

        summary = {"case": case["case"], "unit": case["unit"], "sides": {}}
        for side, measured in case["sides"].items():
            seconds = [x for times in measured["turns"] for x in times]
            figures = [figure(x) for x in seconds]
            row = {
                "median": statistics.median(figures), "min": min(figures), "max": max(figures), "runs": len(figures),
                "first_call_s": measured["first"], "peak_mib": measured["peak_mib"],
            }  # fmt: skip
            if ours and side != OURS:
                ratios = [
                    figure(statistics.median(a)) / figure(statistics.median(b))
                    for a, b in zip(ours["turns"], measured["turns"], strict=False)
                ]
                row |= {"ratio": summary["sides"][OURS]["median"] / row["median"], "ratio_range": _range(ratios)}
            if case["flops"]:
                gflops = case["flops"] / statistics.median(seconds) / 1e9
                row |= {"gflop": case["flops"] / 1e9, "mfu": gflops / max(self.ceiling)}
            summary["sides"][side] = _rounded(row)
        return summary


def _table(cases):
    lines = ["| | library | first call, s | median (range; calls) | simretro to it (range) | MFU | peak RSS, MiB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for case in cases:
        for side, row in case["sides"].items():
            median = f"{row['median']:.4g} {case['unit']} ({row['min']:.4g}-{row['max']:.4g}; {row['runs']})"
            ratio = "its rate" if case["unit"].endswith("/s") else "its time"
            if "ratio" in row:
                ratio = f"{row['ratio']:.2f} x {ratio} ({row['ratio_range'][0]:.2f}-{row['ratio_range'][1]:.2f})"
            cells = [case["case"], side, f"{row['first_call_s']:.2f}", median, ratio if "ratio" in row else "-"]
            cells += [f"{100 * row['mfu']:.0f} %" if "mfu" in row else "-", str(row["peak_mib"])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _range(values):
    return [min(values), max(values)]


def _cpu():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _tell(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# Runs of hours, kept one by one

RESULTS = Path(__file__).with_name("results")


def read_results(path, settings, *names):
    """Results of runs that were written with `add_result`: {their values of `names`: result}.

    Exits if one was made with other `settings`, a dict of JSON values under "settings" of each result.
    """
    if not path.is_file():
        return {}
    results = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for result in results:
        found = result["settings"]
        different = [
            f"{name} {found.get(name)!r}, now {value!r}" for name, value in settings.items() if found.get(name) != value
        ]
        if different:
            raise SystemExit(f"{path} holds runs with {'; '.join(different)}. Name another file with --results.")
    return {tuple(result[name] for name in names): result for result in results}


def add_result(path, result):
    """Keeps the result of a run at once, so that a benchmark that is stopped goes on behind it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(_rounded(result), separators=(",", ":")) + "\n")


def _rounded(value):
    """The same with four decimals, more than any table has."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


# bert4torch, for the two benchmarks that know it


def bert4torch_model(settings, base=None):
    """bert4torch's UniLM with the weights that simretro's worker has written, its output table tied to the input's."""
    stand_in_for_torchvision()
    from bert4torch.models import build_transformer_model

    folder = Path(settings["folder"])
    path = folder / settings["side"] / "bert4torch_config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**bert_config(settings["size"]), "model": "bert", "tie_word_embeddings": True}))
    return build_transformer_model(
        config_path=str(path),
        checkpoint_path=str(folder / "huggingface" / "model.safetensors"),
        model=base,
        application="unilm",
        with_pool="linear",
        with_mlm="linear",
    )


def stand_in_for_torchvision():
    """bert4torch imports torchvision for its vision models; a CPU build of torch may well come without it."""
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec
    from unittest.mock import MagicMock

    if find_spec("torchvision") is None:
        for name in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional"):
            name = "torchvision" + name
            sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None), __path__=[])
