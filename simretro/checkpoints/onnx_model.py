"""Sentence encoders as ONNX models, written from config and weights: no tracing, no torch.

Inputs and outputs are named as in Hugging Face's exports. Reference: https://onnx.ai/onnx/operators
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simretro.checkpoints.checkpoint import CheckpointError
from simretro.checkpoints.config import normalize_config
from simretro.checkpoints.onnx_graph import (
    Graph,
    activated,
    attention,
    attention_bias,
    biased,
    float_product,
    int8_product,
    mean_of_tokens,
    normed,
    rotation,
    unit_rows,
)
from simretro.checkpoints.variables import check_weights

LAST_HIDDEN_STATE, SENTENCE_EMBEDDING = "last_hidden_state", "sentence_embedding"
_LARGEST_FILE = 2**31 - 2**20  # a file of protocol buffers ends at 2 GiB


def onnx_inputs(config: Mapping) -> tuple[str, ...]:
    """Names of the inputs, all int64 (B, L): segments only where the model tells them apart."""
    return ("input_ids", "attention_mask", *(("token_type_ids",) if config["type_vocab_size"] > 1 else ()))


def write_onnx(
    path: str | Path,
    config: Mapping,
    weights: Mapping[str, np.ndarray],
    pooling: str = "cls",
    normalize: bool = True,
    with_pool: bool | str = True,
    projection: np.ndarray | None = None,
    hidden_states: bool = True,
    int8: bool = False,
) -> None:
    """Writes a sentence encoder as one ONNX model; beyond 2 GiB the weights lie beside it, in `<name>_data`.

    Inputs: `onnx_inputs`; padding goes behind the tokens. Outputs: `last_hidden_state` float32 (B, L, H) and
    `sentence_embedding` float32 (B, D). B and L are free.

    Args:
        path: the file to write; its folder must exist.
        config: the config of the weights.
        weights: {our name: float array}, all of them; the MLM head is left out.
        pooling: "cls", "mean" or "pooler".
        normalize: bool, whether `sentence_embedding` has length 1.
        with_pool: True (tanh behind the pooler) or "linear".
        projection: float (H, D), a linear layer behind the pooling; None = none.
        hidden_states: bool; False leaves out `last_hidden_state`, and with it the work on tokens that "cls" and
            "pooler" do not read.
        int8: bool; the kernels of the blocks in 8 bits, see `int8_product`.
    Raises:
        CheckpointError: if weights and config do not fit, or the config's activation has no form in ONNX.
        ImportError: without the package onnx.
    """
    onnx = _onnx()
    config = normalize_config(config)
    check_weights(config, weights)
    if pooling == "pooler" and "pooler/kernel" not in weights:
        raise CheckpointError("`pooling='pooler'` needs a pooler; `weights` has none.")
    writer = _Writer(config, weights, int8_product if int8 else float_product)
    if hidden_states:
        vectors = writer.pooled(writer.hidden(LAST_HIDDEN_STATE), pooling, with_pool)
    else:
        vectors = writer.pooled(writer.hidden(first_only=pooling != "mean"), pooling, with_pool)
    graph, size = writer.graph, config["hidden_size"]
    if projection is not None:
        vectors, size = float_product(graph, vectors, np.asarray(projection, "float32")), projection.shape[1]
    if normalize:
        vectors = unit_rows(graph, vectors)
    graph.add("Identity", vectors, outputs=SENTENCE_EMBEDDING)
    outputs = {LAST_HIDDEN_STATE: ("batch", "length", config["hidden_size"])} if hidden_states else {}
    outputs[SENTENCE_EMBEDDING] = ("batch", size)
    model = graph.model(dict.fromkeys(onnx_inputs(config), ("batch", "length")), outputs)
    path = Path(path)
    beside = sum(array.nbytes for array in graph.constants.values()) > _LARGEST_FILE
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}_data" if beside else None)


def _onnx():
    try:
        import onnx
    except ImportError as error:
        raise ImportError("ONNX models need the package onnx: `pip install simretro[engines]`.") from error
    return onnx


class _Writer:
    """One encoder that is being written: names of tensors in, names of tensors out."""

    def __init__(self, config, weights, product):
        self.config, self.product = config, product
        self.weights = {name: np.asarray(array).astype("float32") for name, array in weights.items()}
        self.graph = Graph()

    def hidden(self, name: str | None = None, first_only: bool = False) -> str:
        """The last hidden states (B, L, H), under a name if one is given; of the first tokens alone, (B, 1, H)."""
        config, graph = self.config, self.graph
        length = graph.add("Shape", "input_ids", start=1, end=2)
        rotary = config["position_embedding_type"] == "rotary"
        turn = rotation(graph, length, self._head_size) if rotary else None
        bias = attention_bias(graph, "attention_mask")
        x = self._embedded(length)
        last = config["num_hidden_layers"] - 1
        for i in range(last + 1):
            x = self._block(x, bias, turn, f"block_{i}", first_only and i == last)
        return graph.add("Identity", x, outputs=name) if name else x

    @property
    def _head_size(self):
        return self.config["hidden_size"] // self.config["num_attention_heads"]

    def _embedded(self, length):
        config, graph, weights = self.config, self.graph, self.weights
        x = graph.add("Gather", graph.constant(weights["embeddings/token/embeddings"]), "input_ids")
        if config["position_embedding_type"] == "absolute":
            rows = weights["embeddings/position/embeddings"][config["position_offset"] :]
            if config["type_vocab_size"] == 1:  # the same for every token
                rows = rows + weights["embeddings/segment/embeddings"][0]
            zero = graph.constant([0], "int64")
            x = graph.add("Add", x, graph.add("Slice", graph.constant(rows), zero, length, zero))
        elif config["type_vocab_size"] == 1:
            x = biased(graph, x, weights["embeddings/segment/embeddings"][0])
        if config["type_vocab_size"] > 1:
            table = graph.constant(weights["embeddings/segment/embeddings"])
            x = graph.add("Add", x, graph.add("Gather", table, "token_type_ids"))
        x = self._normed(x, "embeddings/norm")
        return self._dense(x, "embeddings/projection") if "embeddings/projection/kernel" in weights else x

    def _block(self, x, bias, turn, name, first_only):
        graph, config, weights = self.graph, self.config, self.weights
        names = [f"{name}/{kind}" for kind in ("query", "key", "value")]
        kernels, biases = ([weights[f"{each}/{leaf}"] for each in names] for leaf in ("kernel", "bias"))
        both = self._project(x, np.concatenate(kernels, axis=1), np.concatenate(biases))  # one product for all three
        query, key, value = graph.add(
            "Split", both, graph.constant([config["hidden_size"]] * 3, "int64"), axis=-1, outputs=3
        )
        if first_only and turn is None:
            query, x = self._first(query), self._first(x)
        heads = config["num_attention_heads"]
        attended = attention(graph, query, key, value, bias, heads, self._head_size, turn)
        if first_only and turn is not None:
            attended, x = self._first(attended), self._first(x)
        attended = self._dense(attended, f"{name}/attention_output")
        x = self._normed(graph.add("Add", attended, x), f"{name}/attention_norm")
        fed = activated(graph, self._dense(x, f"{name}/intermediate"), config["hidden_act"])
        fed = self._dense(fed, f"{name}/output")
        return self._normed(graph.add("Add", fed, x), f"{name}/output_norm")

    def _first(self, x):
        ends = (self.graph.constant([end], "int64") for end in (0, 1, 1))
        return self.graph.add("Slice", x, *ends)

    def _dense(self, x, name):
        return self._project(x, self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"])

    def _project(self, x, kernel, bias):
        return biased(self.graph, self.product(self.graph, x, kernel), bias)

    def _normed(self, x, name):
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return normed(self.graph, x, gamma, beta, self.config["layer_norm_eps"])

    def pooled(self, hidden: str, pooling: str, with_pool: bool | str) -> str:
        """The vectors of texts (B, H), of hidden states (B, L or 1, H)."""
        if pooling == "mean":
            return mean_of_tokens(self.graph, hidden, "attention_mask")
        vectors = self.graph.add("Squeeze", self._first(hidden), self.graph.constant([1], "int64"))
        if pooling == "cls":
            return vectors
        product = float_product(self.graph, vectors, self.weights["pooler/kernel"])
        vectors = biased(self.graph, product, self.weights["pooler/bias"])
        return vectors if with_pool == "linear" else self.graph.add("Tanh", vectors)
