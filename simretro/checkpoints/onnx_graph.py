"""The parts of a transformer as nodes of an ONNX graph, in operators that every runtime has (opset 17)."""

from collections.abc import Callable

import numpy as np

from simretro.checkpoints.checkpoint import CheckpointError

OPSET, IR_VERSION = 17, 8
_FLOAT, _INT64 = 1, 7  # `onnx.TensorProto.FLOAT` and `.INT64`, which are part of the format
_MASKED = -1e9  # no infinity: a row that is all padding must stay finite
_TANH_GELU = ("gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "gelu_fast")


class Graph:
    """Nodes and constants that are being collected; tensors are known by their names."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def constant(self, array, dtype=None) -> str:
        """The name of a constant; kernels that are used twice are kept twice."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(array, dtype).reshape(np.shape(array))
        return name

    def add(self, kind: str, *inputs: str, outputs: int | str = 1, **attributes):
        """A node; `outputs` is how many there are, or the name of the one. Returns the name, or a list of names."""
        from onnx import helper

        names = [outputs] if isinstance(outputs, str) else [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if len(names) == 1 else names

    def model(self, inputs: dict[str, tuple], outputs: dict[str, tuple]):
        """The `onnx.ModelProto` of the graph; inputs are int64, outputs float32, of the given shapes."""
        from onnx import helper, numpy_helper

        def described(shapes, dtype):
            return [helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()]

        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(
            self.nodes, "simretro", described(inputs, _INT64), described(outputs, _FLOAT), constants
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="simretro"
        )


Product = Callable[[Graph, str, np.ndarray], str]


def float_product(graph: Graph, x: str, kernel: np.ndarray) -> str:
    """`x @ kernel` in float32."""
    return graph.add("MatMul", x, graph.constant(kernel))


def int8_product(graph: Graph, x: str, kernel: np.ndarray) -> str:
    """`x @ kernel` with the kernel in 8 bits: a scale and a zero point for each of its columns.

    A runtime that knows how rounds `x` as well, while it runs, and multiplies whole numbers.
    """
    low, high = np.minimum(kernel.min(axis=0), 0), np.maximum(kernel.max(axis=0), 0)
    scales = np.maximum((high - low) / 255, np.finfo("float32").tiny).astype("float32")
    zeros = np.round(-low / scales)
    rounded = np.clip(np.round(kernel / scales) + zeros, 0, 255).astype("uint8")
    parts = (graph.constant(rounded), graph.constant(scales), graph.constant(zeros.astype("uint8")))
    return graph.add("MatMul", x, graph.add("DequantizeLinear", *parts, axis=1))


def biased(graph: Graph, x: str, bias: np.ndarray) -> str:
    """`x + bias`."""
    return graph.add("Add", x, graph.constant(bias))


def normed(graph: Graph, x: str, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> str:
    """Layer norm over the last axis."""
    return graph.add("LayerNormalization", x, graph.constant(gamma), graph.constant(beta), axis=-1, epsilon=epsilon)


def activated(graph: Graph, x: str, name: str) -> str:
    """The activation that a config names.

    Raises: CheckpointError for one that is none of those of published encoders.
    """
    if name in ("gelu", *_TANH_GELU):
        return _gelu(graph, x, exact=name == "gelu")
    if name in ("silu", "swish"):
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if name in ("relu", "tanh"):
        return graph.add(name.capitalize(), x)
    known = ("gelu", *_TANH_GELU, "silu", "swish", "relu", "tanh")
    raise CheckpointError(f"`hidden_act` must be one of {known} to be written as ONNX; received {name!r}.")


def _gelu(graph, x, exact):
    if exact:
        cdf = graph.add("Erf", graph.add("Div", x, graph.constant(2**0.5, "float32")))
    else:
        cube = graph.add("Pow", x, graph.constant(3.0, "float32"))
        cubic = graph.add("Add", x, graph.add("Mul", cube, graph.constant(0.044715, "float32")))
        cdf = graph.add("Tanh", graph.add("Mul", cubic, graph.constant((2 / np.pi) ** 0.5, "float32")))
    twice = graph.add("Mul", x, graph.add("Add", cdf, graph.constant(1.0, "float32")))
    return graph.add("Mul", twice, graph.constant(0.5, "float32"))


def attention_bias(graph: Graph, attention_mask: str) -> str:
    """What is added to the scores, float32 (B, 1, 1, L), of a mask int64 (B, L) with 1 = token."""
    tokens = graph.add("Cast", graph.add("Unsqueeze", attention_mask, graph.constant([1, 2], "int64")), to=_FLOAT)
    padding = graph.add("Sub", graph.constant(1.0, "float32"), tokens)
    return graph.add("Mul", padding, graph.constant(_MASKED, "float32"))


def attention(graph: Graph, query: str, key: str, value: str, bias: str, heads: int, size: int, turn=None) -> str:
    """Multi-head attention.

    Args:
        query: (B, T, heads x size); key, value: (B, L, heads x size).
        bias: from `attention_bias`.
        turn: function of a name (B, heads, L, size), the rotary embedding; None = none. With it T is L.
    Returns: (B, T, heads x size).
    """
    turn = turn or (lambda x: x)
    query, key, value = (_heads_first(graph, x, heads, size) for x in (query, key, value))
    columns = graph.add("Transpose", turn(key), perm=[0, 1, 3, 2])
    scores = graph.add("MatMul", turn(query), columns)
    scores = graph.add("Mul", scores, graph.constant(size**-0.5, "float32"))
    probabilities = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    attended = graph.add("Transpose", graph.add("MatMul", probabilities, value), perm=[0, 2, 1, 3])
    return graph.add("Reshape", attended, graph.constant([0, 0, heads * size], "int64"))


def _heads_first(graph, x, heads, size):
    split = graph.add("Reshape", x, graph.constant([0, 0, heads, size], "int64"))
    return graph.add("Transpose", split, perm=[0, 2, 1, 3])


def rotation(graph: Graph, length: str, size: int) -> Callable[[str], str]:
    """The rotary embedding for positions 0, 1, ... `length` - 1 (int64, shape (1,)), see `simretro.ops.rotate`."""
    frequencies = np.repeat(10000.0 ** (-np.arange(0, size, 2) / size), 2)
    scalar = graph.add("Squeeze", length)
    positions = graph.add("Range", graph.constant(0, "int64"), scalar, graph.constant(1, "int64"))
    column = graph.add("Unsqueeze", graph.add("Cast", positions, to=_FLOAT), graph.constant([1], "int64"))
    angles = graph.add("Mul", column, graph.constant(frequencies, "float32"))  # (L, size)
    sin, cos = graph.add("Sin", angles), graph.add("Cos", angles)
    # (x0, x1) -> (-x1, x0) of each pair, as a product: no runtime has a faster way that all of them have.
    swap = np.zeros((size, size), "float32")
    even = np.arange(0, size, 2)
    swap[even + 1, even], swap[even, even + 1] = -1, 1
    swapping = graph.constant(swap)

    def turn(x):
        swapped = graph.add("MatMul", x, swapping)
        return graph.add("Add", graph.add("Mul", x, cos), graph.add("Mul", swapped, sin))

    return turn


def mean_of_tokens(graph: Graph, hidden: str, attention_mask: str) -> str:
    """(B, L, H) -> (B, H), the mean over the tokens."""
    tokens = graph.add("Cast", graph.add("Unsqueeze", attention_mask, graph.constant([1], "int64")), to=_FLOAT)
    total = graph.add("Squeeze", graph.add("MatMul", tokens, hidden), graph.constant([1], "int64"))
    count = graph.add("ReduceSum", tokens, graph.constant([2], "int64"), keepdims=0)  # (B, 1)
    return graph.add("Div", total, graph.add("Max", count, graph.constant(1.0, "float32")))


def unit_rows(graph: Graph, x: str) -> str:
    """Rows divided by their length; a zero row stays zero."""
    squares = graph.add("ReduceSum", graph.add("Mul", x, x), graph.constant([1], "int64"), keepdims=1)
    length = graph.add("Sqrt", graph.add("Max", squares, graph.constant(1e-24, "float32")))
    return graph.add("Div", x, length)
