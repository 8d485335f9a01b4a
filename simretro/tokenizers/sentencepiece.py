"""The tokenizer of XLM-R and its kind: a SentencePiece Unigram model, run by the Rust library."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from simretro.tokenizers.base import BaseTokenizer, has_added_words
from simretro.tokenizers.characters import is_unspaced

SPACE = "\u2581"  # SentencePiece's mark of a piece that begins a word
ROBERTA_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
_NORMAL, _UNIGRAM = 1, 1  # of SentencePiece's enumerations of piece and of model types


class SentencePieceTokenizer(BaseTokenizer):
    """XLM-R's tokenizer; the ids are Hugging Face's XLMRobertaTokenizer's.

    The file is SentencePiece's; the ids are not: `<s>`=0, `<pad>`=1, `</s>`=2, `<unk>`=3, every piece one higher than
    in the file, `<mask>` last. A pair is `<s> A </s> </s> B </s>`. XLM-R has no table for segment ids; they are made
    all the same, for they drive the UniLM mask: 0 for `<s> A </s>`, 1 for all behind, so that the second `</s>`, which
    a single text lacks, is no part of the source.

    Args:
        path: a SentencePiece model file, `sentencepiece.bpe.model`. For a `tokenizer.json` use `load_tokenizer`.
        allow_special_tokens: bool; True reads a `</s>` typed inside a text as the special token, False as plain text.
    Raises:
        ImportError: without the packages `sentencepiece` and `protobuf`.
        ValueError: for a file that is no Unigram model in XLM-R's order.
    """

    model_type = "Unigram"

    def __init__(self, path: str | Path, allow_special_tokens: bool = False):
        model = _read_model(path)
        vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        vocab += [(piece.piece, piece.score) for piece in model.pieces[3:]] + [("<mask>", 0.0)]
        backend = Backend(models.Unigram(vocab, unk_id=3))
        if model.normalizer_spec.precompiled_charsmap:
            backend.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
        metaspace = {"replacement": SPACE, "prepend_scheme": "always"}
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
        )
        backend.decoder = decoders.Metaspace(**metaspace)
        backend.add_special_tokens(
            [AddedToken(t, special=True, normalized=False, lstrip=t == "<mask>") for t in ROBERTA_TOKENS.values()]
        )
        backend.post_processor = processors.TemplateProcessing(
            single=["<s>", "$A", "</s>"],
            pair=["<s>", "$A", "</s>", "</s>", "$B", "</s>"],
            special_tokens=[("<s>", 0), ("</s>", 2)],
        )
        self._setup(backend.to_str(), ROBERTA_TOKENS, 2, allow_special_tokens, str(path))

    def _plain_state(self, whole: dict, special_tokens: dict[str, str]) -> str:
        """Hides the special tokens from the model.

        They are pieces like any other and would be found in a text. With a space in their names they are not: no
        space reaches the model, all are `▁` by then.
        """
        added = whole.get("added_tokens", [])
        special = {token["content"] for token in added if token["special"]}
        special |= set(special_tokens.values())
        vocab = [[_hidden(piece) if piece in special else piece, score] for piece, score in whole["model"]["vocab"]]
        added = [{**token, "content": _hidden(token["content"])} if token["special"] else token for token in added]
        self._hidden = {_hidden(token): token for token in special}
        return json.dumps({**whole, "model": {**whole["model"], "vocab": vocab}, "added_tokens": added})

    def _read_vocab(self) -> dict[str, int]:
        vocab = super()._read_vocab()
        return vocab if self.allow_special_tokens else {self._hidden.get(t, t): i for t, i in vocab.items()}

    def _word_pattern(self, whole: dict) -> str | None:
        steps = whole["pre_tokenizer"].get("pretokenizers", [])
        by_word = [step["type"] for step in steps] == ["WhitespaceSplit", "Metaspace"]
        if not by_word or steps[1].get("prepend_scheme") != "always" or has_added_words(whole):
            return None
        return "[^ ]+"

    @cached_property
    def _word_marks(self) -> dict[str, np.ndarray]:
        """For each id what its piece says about words."""
        pieces = [self._tokens.get(token_id, "") for token_id in range(self.vocab_size)]
        return {
            "begins": np.array([piece.startswith(SPACE) for piece in pieces]),
            "lone_space": np.array([piece == SPACE for piece in pieces]),
            "unspaced_left": np.array([is_unspaced(piece[:1]) for piece in pieces]),
            "unspaced_right": np.array([is_unspaced(piece[-1:]) for piece in pieces]),
        }

    def _starts_word(self, ids: np.ndarray) -> np.ndarray:
        marks = self._word_marks
        if not marks["begins"].any():
            raise ValueError(f"No piece of this vocabulary begins with {SPACE!r}: it does not mark words.")
        behind_space = np.concatenate([[False], marks["lone_space"][ids[:-1]]])
        behind_unspaced = np.concatenate([[False], marks["unspaced_right"][ids[:-1]]])
        # Without spaces a Chinese sentence would be one word; there each piece is a word.
        return marks["begins"][ids] | ((marks["unspaced_left"][ids] | behind_unspaced) & ~behind_space)

    def _join(self, tokens: list[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip(" ")


def _hidden(token: str) -> str:
    return f" {token} "


def _read_model(path: str | Path):
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError(
            f"{path}: reading a SentencePiece model needs `sentencepiece` and `protobuf`; "
            'pip install "simretro[sentencepiece]".'
        ) from error
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(Path(path).read_bytes())
    except Exception as error:  # protobuf's DecodeError, whose place differs between versions
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path}: no SentencePiece model ({error}).") from error
    first = [piece.piece for piece in model.pieces[:3]]
    if model.trainer_spec.model_type != _UNIGRAM or first != ["<unk>", "<s>", "</s>"]:
        raise ValueError(
            f"{path}: must be a Unigram model whose pieces begin <unk>, <s>, </s>, as XLM-R's; received model type "
            f"{model.trainer_spec.model_type}, pieces {first}. Convert it to a tokenizer.json."
        )
    odd = next((piece.piece for piece in model.pieces[3:] if piece.type != _NORMAL), None)
    spec = model.normalizer_spec
    if odd is not None or not spec.add_dummy_prefix or model.trainer_spec.treat_whitespace_as_suffix:
        what = "a model without dummy prefix" if odd is None else f"the user-defined or byte piece {odd!r}"
        raise ValueError(
            f"{path}: XLM-R's models have only plain pieces; received {what}. Convert it to tokenizer.json."
        )
    return model
