"""What a checkpoint is once it has been read, whatever its format was."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or does not fit its config or vocabulary. The message names the file."""


@dataclass
class Checkpoint:
    """A checkpoint under our names.

    Attributes:
        config: the normalised config, see `normalize_config`.
        weights: {our name: float array}, kernels [in, out]; float32, or float16/bfloat16 where the file has those.
        source: str, the path of the weights, for messages.
        tokenizer_folder: the folder that holds the tokenizer's files; None where there are none.
        extras: what the folder says beyond the encoder, each only where it is said: `pooling` ("cls", "mean",
            "pooler", ...; several are joined by "+"), `with_pool` (True or "linear", of a pooler), `normalize` (bool),
            `maxlen` (int), `do_lower_case` (bool), `prompts` ({name: str}), `default_prompt` (str), `similarity`
            ("cosine", "dot", ...), `other_modules` (list of str: stages of a sentence-transformers pipeline that change
            the vectors and are not read), `facts` (dict, what the writer knew of the training).
        parts: {part: {name: array}}, what was trained beside the encoder.
    """

    config: dict
    weights: dict[str, np.ndarray]
    source: str
    tokenizer_folder: Path | None = None
    extras: dict = field(default_factory=dict)
    parts: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
