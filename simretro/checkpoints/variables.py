"""The variables of a backbone under our names, and the comparison of what a file has with what it should have."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simretro.checkpoints.checkpoint import Checkpoint, CheckpointError

OPTIONAL_PARTS = ("pooler", "mlm_head")  # a file has all of a part or nothing of it
FLOATS = ("float16", "bfloat16", "float32", "float64")


def variable_shapes(config: Mapping, pooler: bool = True, mlm_head: bool = True) -> dict[str, tuple[int, ...]]:
    """{our name: shape} of a backbone, kernels [in, out].

    Args:
        config: a normalised config.
        pooler: bool, with the dense layer on the first token.
        mlm_head: bool, with the head that predicts tokens; its output table is the token table.
    """
    vocab_size, width, hidden_size = config["vocab_size"], config["embedding_size"], config["hidden_size"]
    shapes = {"embeddings/token/embeddings": (vocab_size, width)}
    if config["position_embedding_type"] == "absolute":
        shapes["embeddings/position/embeddings"] = (config["max_position_embeddings"], width)
    if config["type_vocab_size"]:
        shapes["embeddings/segment/embeddings"] = (config["type_vocab_size"], width)
    shapes |= _norm("embeddings/norm", width)
    if width != hidden_size:
        shapes |= _dense("embeddings/projection", width, hidden_size)
    for i in range(config["num_hidden_layers"]):
        for layer in ("query", "key", "value", "attention_output"):
            shapes |= _dense(f"block_{i}/{layer}", hidden_size, hidden_size)
        shapes |= _norm(f"block_{i}/attention_norm", hidden_size)
        shapes |= _dense(f"block_{i}/intermediate", hidden_size, config["intermediate_size"])
        shapes |= _dense(f"block_{i}/output", config["intermediate_size"], hidden_size)
        shapes |= _norm(f"block_{i}/output_norm", hidden_size)
    if pooler:
        shapes |= _dense("pooler", hidden_size, hidden_size)
    if mlm_head:
        shapes |= _dense("mlm_head/dense", hidden_size, width)
        shapes |= _norm("mlm_head/norm", width)
        shapes["mlm_head/bias"] = (vocab_size,)
    return shapes


def _dense(name, inputs, outputs):
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name, width):
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


@dataclass(frozen=True)
class NameMap:
    """The names and the layout of a foreign format.

    Attributes:
        layers: {our layer: theirs}, e.g. {"block/query": "encoder.layer.{i}.attention.self.query"}; `{i}` is the number
            of the block, `{_i}` the same with an underscore, empty for block 0.
        leaves: {our last word: their ending}, e.g. {"kernel": ".weight"}.
        whole: {our name: their name} of what does not follow from the two.
        transposed: bool; their kernels are [out, in].
        split_heads: bool; their attention kernels are [hidden, heads, head] (or the reverse, for the output).
    """

    layers: Mapping[str, str]
    leaves: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=dict)
    transposed: bool = False
    split_heads: bool = False

    def foreign(self, name: str) -> str:
        """Their name of our variable."""
        if name in self.whole:
            return self.whole[name]
        layer, leaf = name.rsplit("/", 1)
        block = re.match(r"block_(\d+)/", layer)
        i = int(block[1]) if block else 0
        layer = self.layers[re.sub(r"^block_\d+", "block", layer)].format(i=i, _i=f"_{i}" if i else "")
        return layer + self.leaves[leaf]

    def foreign_shape(self, name: str, shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
        """The shape of our variable in their file."""
        if self.transposed and name.endswith("/kernel"):
            return shape[::-1]
        if self.split_heads and re.fullmatch(r"block_\d+/(query|key|value)/(kernel|bias)", name):
            return (*shape[:-1], heads, shape[-1] // heads)
        if self.split_heads and re.fullmatch(r"block_\d+/attention_output/kernel", name):
            return (heads, shape[0] // heads, shape[1])
        return shape

    def ours(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Their array in our layout."""
        if self.transposed and name.endswith("/kernel"):
            array = array.T
        array = np.ascontiguousarray(array).reshape(shape)
        return array.astype("float32") if array.dtype == "float64" else array

    def theirs(self, name: str, array: np.ndarray) -> np.ndarray:
        """Our array in their layout (of heads that are not split)."""
        return np.ascontiguousarray(array.T if self.transposed and name.endswith("/kernel") else array)


@dataclass(frozen=True)
class Found:
    """A variable as a file announces it: its shape, and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str


def match_variables(
    config: Mapping, names: NameMap, found: Mapping[str, Found], source: str, problems: Sequence[str] = ()
) -> dict[str, str]:
    """Accounts for every variable of a file, before any is read.

    Args:
        config: the normalised config, which says what there must be.
        names: the map of the format.
        found: {their name: what the file announces}, without what is known to be harmless.
        source: str, the file, named in the error.
        problems: further lines for the same error.
    Returns: {our name: their name} of all variables of the file.
    Raises: CheckpointError naming all variables that are missing, unexpected, or of another shape or dtype.
    """
    everything = variable_shapes(config)
    foreign = {name: names.foreign(name) for name in everything}
    parts = {part: any(foreign[name] in found for name in everything if _part(name) == part) for part in OPTIONAL_PARTS}
    shapes = variable_shapes(config, **parts)
    heads = config["num_attention_heads"]
    wanted = {foreign[name]: names.foreign_shape(name, shape, heads) for name, shape in shapes.items()}
    compare(wanted, found, source, problems)
    return {name: foreign[name] for name in shapes}


def compare(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Found], source: str, problems: Sequence[str] = ()
) -> None:
    """Raises CheckpointError unless a file has the wanted variables, all of them, and no others."""
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    both = [name for name in wanted if name in found]
    shapes = [
        f"{name} is {found[name].shape}, the config asks for {tuple(wanted[name])}"
        for name in both
        if tuple(found[name].shape) != tuple(wanted[name])
    ]
    dtypes = [f"{name} is {found[name].dtype}" for name in both if found[name].dtype not in FLOATS]
    lines = [
        *problems,
        *_listed("missing", missing, ", "),
        *_listed("unexpected", unexpected, ", "),
        *_listed("wrong shape", shapes, "; "),
        *_listed(f"wrong dtype, must be one of {FLOATS}", dtypes, "; "),
    ]
    if lines:
        raise CheckpointError("\n  ".join([f"{source} does not fit its config or vocabulary:", *lines]))


def check_weights(config: Mapping, weights: Mapping[str, np.ndarray]) -> None:
    """Raises CheckpointError unless `weights` are those of `config`, all of them; for the writers."""
    parts = {part: any(_part(name) == part for name in weights) for part in OPTIONAL_PARTS}
    found = {name: Found(np.shape(array), np.asarray(array).dtype.name) for name, array in weights.items()}
    compare(variable_shapes(config, **parts), found, "`weights`")


def slice_vocabulary(checkpoint: Checkpoint, keep_tokens: Iterable[int]) -> Checkpoint:
    """Keeps some tokens of a checkpoint: row i of the new tables is row `keep_tokens[i]` of the old ones.

    Args:
        checkpoint: with the tables of the whole vocabulary.
        keep_tokens: ids of the whole vocabulary in their new order, as `load_vocab(simplified=True)` returns them.
    Returns: Checkpoint; `tokenizer_folder` is None, for the files there belong to the whole vocabulary.
    Raises: CheckpointError naming both sizes if the tables are too small for the ids, or have been sliced already.
    """
    kept = np.asarray(list(keep_tokens))
    rows = checkpoint.config["vocab_size"]
    if kept.ndim != 1 or not len(kept) or kept.dtype.kind not in "iu" or kept.min() < 0:
        raise CheckpointError("`keep_tokens` must be a list of token ids, not empty, each at least 0.")
    if len(np.unique(kept)) != len(kept):
        raise CheckpointError("`keep_tokens` must not name a token twice.")
    sizes = (
        f"`keep_tokens` has {len(kept)} ids, the largest is {kept.max()}; the token table of {checkpoint.source} has "
        f"{rows} rows."
    )
    if rows == len(kept):
        raise CheckpointError(
            f"{sizes} It has that size already: load it without `keep_tokens`, with its own vocabulary."
        )
    if kept.max() >= rows:
        raise CheckpointError(
            f"{sizes} The ids are of a larger vocabulary: take `keep_tokens` of this checkpoint's vocabulary, or none "
            "if it has been simplified before."
        )
    pad = np.flatnonzero(kept == checkpoint.config["pad_token_id"])
    if not len(pad):
        raise CheckpointError(f"`keep_tokens` must keep the padding token, id {checkpoint.config['pad_token_id']}.")
    config = {**checkpoint.config, "vocab_size": len(kept), "pad_token_id": int(pad[0])}
    sliced = {
        name: checkpoint.weights[name][kept]
        for name in ("embeddings/token/embeddings", "mlm_head/bias")
        if name in checkpoint.weights
    }
    return replace(checkpoint, config=config, weights={**checkpoint.weights, **sliced}, tokenizer_folder=None)


def _part(name):
    return name.split("/", 1)[0]


def _listed(title, entries, separator):
    return [f"{title} ({len(entries)}): {separator.join(entries)}"] if entries else []
