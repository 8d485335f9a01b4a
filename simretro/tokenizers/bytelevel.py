"""The tokenizer of RoBERTa and its kind: byte-level BPE, run by the Rust library."""

from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from simretro.tokenizers.base import BaseTokenizer
from simretro.tokenizers.sentencepiece import ROBERTA_TOKENS

_BLANKS = ("\u0120", "\u010a", "\u0109", "\u010d")  # how space, \n, \t and \r look in a byte-level vocabulary


class ByteLevelTokenizer(BaseTokenizer):
    """RoBERTa's tokenizer; the ids are Hugging Face's RobertaTokenizer's. A pair is `<s> A </s> </s> B </s>`.

    Args:
        vocab_path: vocab.json, token -> id.
        merges_path: merges.txt.
        allow_special_tokens: bool; True reads a `</s>` typed inside a text as the special token, False as plain text.
    Raises: ValueError if a special token is missing or a file cannot be read.
    """

    model_type = "BPE"

    def __init__(self, vocab_path: str | Path, merges_path: str | Path, allow_special_tokens: bool = False):
        try:
            model = models.BPE.from_file(str(vocab_path), str(merges_path))
        except Exception as error:  # the Rust library raises plain Exception
            raise ValueError(f"{vocab_path}, {merges_path}: no byte-level BPE ({error}).") from error
        backend = Backend(model)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>")
                for token in ROBERTA_TOKENS.values()
                if model.token_to_id(token) is not None
            ]
        )
        vocab = backend.get_vocab()
        if "<s>" in vocab and "</s>" in vocab:  # otherwise `_setup` says what is missing
            backend.post_processor = processors.RobertaProcessing(
                ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), add_prefix_space=False
            )
        self._setup(backend.to_str(), ROBERTA_TOKENS, 2, allow_special_tokens, str(vocab_path))

    @cached_property
    def _begins(self) -> np.ndarray:
        return np.array([self._tokens.get(i, "").startswith(_BLANKS) for i in range(self.vocab_size)])

    def _starts_word(self, ids: np.ndarray) -> np.ndarray:
        if not self._begins.any():
            raise ValueError(f"No token of this vocabulary begins with {_BLANKS[0]!r}: it does not mark words.")
        return self._begins[ids]

    def _join(self, tokens: list[str]) -> str:
        return decoders.ByteLevel().decode(tokens).strip(" ")
