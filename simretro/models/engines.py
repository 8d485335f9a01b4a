"""Other ways to run an encoder on a CPU than through Keras: ONNX Runtime and OpenVINO, from its weights alone."""

import importlib
import os
import queue
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from keras import ops

from simretro.checkpoints.onnx_model import SENTENCE_EMBEDDING, onnx_inputs, write_onnx
from simretro.models.weights import export_weights, quick_checksum

# Numbers of a row that are rounded to 8 bits with a scale of their own. Of MiniLM's vectors of 2,000 texts the worst
# had a cosine of .998 to float32 with 32, of .997 with 64 and of .995 with 128; 32 takes a seventh more time.
_ROUNDED_TOGETHER = 64
_ATTRIBUTE = "_engines"
KERAS = "keras"  # no engine of this module


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_engine(engine: str) -> None:
    """Raises ValueError for an engine that is unknown."""
    if engine not in ENGINE_NAMES:
        raise ValueError(f"`engine` must be one of {ENGINE_NAMES}; received {engine!r}.")


def engine_of(engine: str, encoder, pooling: str, projection=None) -> "Engine":
    """The engine of an encoder, made on the first call and again when the weights have changed.

    It lives as long as the encoder.

    Args:
        engine: name among `ENGINES`.
        encoder: `Transformer`, no language model: its mask would be another.
        pooling: see `SentenceEncoder`.
        projection: linear layer behind the pooling, or None.
    Raises:
        ValueError: for an encoder that reads from left to right.
        ImportError: without the packages of the engine.
    """
    if encoder.application == "lm":
        raise ValueError(
            f"`engine={engine!r}` is for encoders; this one was built with `application='lm'`. Use {KERAS!r}."
        )
    kernel = None if projection is None else ops.convert_to_numpy(projection.kernel)
    state = quick_checksum(encoder), None if kernel is None else zlib.crc32(np.ascontiguousarray(kernel))
    # Written past Keras' `__setattr__`, which would track it as a part of the model to be saved.
    engines = encoder.__dict__.setdefault(_ATTRIBUTE, {})
    key = engine, pooling, kernel is not None
    if key not in engines or engines[key][0] != state:
        engines.pop(key, None)  # two of them at once would take the memory of both
        engines[key] = state, Engine(engine, encoder, pooling, kernel)
    return engines[key][1]


class Engine:
    """Batches of token ids to vectors, not normalised, with the weights that `encoder` has now.

    Of many batches each is computed by one thread, several at a time: so no thread waits for another inside a batch. Of
    few, one query for instance, each is computed by all threads.

    Args: see `engine_of`; kernel: float (H, D) of the projection, or None.
    """

    def __init__(self, engine: str, encoder, pooling: str, kernel: np.ndarray | None):
        self._kind = ENGINES[engine]
        self._module = _imported(engine, self._kind.package)
        self._encoder, self._pooling, self._kernel = encoder, pooling, kernel
        self._threads = processors()
        self._sessions: dict[int, Callable] = {}  # by the threads of a batch; each has a copy of the weights
        self._lock = threading.Lock()

    def vectors(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Vectors float32 (B, D) of each batch, int32 (B, L), in the order of the batches."""
        batches = list(batches)
        if len(batches) < 2 * self._threads:
            yield from map(self._session(self._threads), batches)
            return
        session = self._session(1)
        pool = ThreadPoolExecutor(self._threads)
        try:
            yield from pool.map(session, batches)
        finally:
            pool.shutdown(cancel_futures=True)

    def _session(self, threads):
        with self._lock:
            if threads not in self._sessions:
                self._sessions[threads] = self._start(threads)
            return self._sessions[threads]

    def _start(self, threads):
        encoder = self._encoder
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_onnx(
                path,
                encoder.config,
                export_weights(encoder),
                self._pooling,
                normalize=False,
                with_pool=encoder.with_pool,
                projection=self._kernel,
                hidden_states=False,
                int8=self._kind.int8,
            )
            run = self._kind.start(self._module, path, threads)
        names, pad = onnx_inputs(encoder.config), encoder.config["pad_token_id"]

        def session(token_ids):
            inputs = {"input_ids": token_ids, "attention_mask": token_ids != pad}
            if "token_type_ids" in names:
                inputs["token_type_ids"] = np.zeros_like(token_ids)
            return run({name: array.astype("int64") for name, array in inputs.items()})

        return session


def _imported(engine, package):
    try:
        importlib.import_module("onnx")
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"`engine={engine!r}` needs the packages onnx and {package}: `pip install simretro[engines]`."
        ) from error


def _start_onnxruntime(onnxruntime, path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run([SENTENCE_EMBEDDING], inputs)[0]


def _start_openvino(openvino, path, threads):
    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # left to itself it takes bfloat16 where the processor has it
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _ROUNDED_TOGETHER,  # only where the kernels are in 8 bits
    }
    streams = processors() // threads
    settings |= {"INFERENCE_NUM_THREADS": streams * threads, "NUM_STREAMS": streams}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    free = queue.SimpleQueue()  # requests that nobody uses: one is for one caller at a time, and keeps its output

    def run(inputs):
        try:
            request = free.get_nowait()
        except queue.Empty:
            request = compiled.create_infer_request()
        vectors = request.infer(inputs)[SENTENCE_EMBEDDING].copy()
        free.put(request)
        return vectors

    return run


class _Kind(NamedTuple):
    package: str
    start: Callable  # (package, path of the ONNX model, threads of a batch) -> function of {input: int64 array}
    int8: bool = False


ENGINES = {
    "onnx": _Kind("onnxruntime", _start_onnxruntime),
    "openvino": _Kind("openvino", _start_openvino),
    "openvino-int8": _Kind("openvino", _start_openvino, int8=True),
}
ENGINE_NAMES = (KERAS, *ENGINES)
