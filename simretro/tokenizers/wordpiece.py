"""BERT's tokenizer: words, cut into the longest pieces that the vocabulary has."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from simretro.tokenizers.base import BaseTokenizer, has_added_words
from simretro.tokenizers.joining import join_pieces
from simretro.tokenizers.vocabulary import CONTINUATION, load_vocab, save_vocab, tokens_in_order

BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class Tokenizer(BaseTokenizer):
    """BERT's tokenizer over a vocabulary of words and `##` pieces; the ids are Hugging Face's BertTokenizer's.

    Args:
        vocab: dict token -> id, or the path of a vocabulary file.
        do_lower_case: bool; False for a cased vocabulary.
        strip_accents: bool or None; None strips them if `do_lower_case`.
        tokenize_chinese_chars: bool; True makes each ideograph a word.
        word_maxlen: int; a longer word is unknown as a whole.
        pad_token, unk_token, cls_token, sep_token, mask_token: str; only the mask token may be missing in `vocab`.
        allow_special_tokens: bool; True reads a `[SEP]` typed inside a text as the special token, False as plain text.
    Raises: ValueError if a token is missing or the ids are not 0, 1, 2, ...
    """

    model_type = "WordPiece"

    def __init__(
        self,
        vocab: dict[str, int] | str | Path,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        word_maxlen: int = 100,
        pad_token: str = BERT_TOKENS["pad"],
        unk_token: str = BERT_TOKENS["unk"],
        cls_token: str = BERT_TOKENS["cls"],
        sep_token: str = BERT_TOKENS["sep"],
        mask_token: str = BERT_TOKENS["mask"],
        allow_special_tokens: bool = False,
    ):
        source = "`vocab`" if isinstance(vocab, dict) else str(vocab)
        vocab = vocab if isinstance(vocab, dict) else load_vocab(vocab)
        tokens_in_order(vocab)  # raises on a gap
        special_tokens = {
            "pad": pad_token,
            "unk": unk_token,
            "cls": cls_token,
            "sep": sep_token,
            "mask": mask_token,
        }
        backend = Backend(models.WordPiece(vocab, unk_token=unk_token, max_input_chars_per_word=word_maxlen))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            lowercase=do_lower_case,
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
        backend.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t in special_tokens.values() if t in vocab]
        )
        if cls_token in vocab and sep_token in vocab:  # otherwise `_setup` says what is missing
            backend.post_processor = processors.TemplateProcessing(
                single=[f"{cls_token}:0", "$A:0", f"{sep_token}:0"],
                pair=[f"{cls_token}:0", "$A:0", f"{sep_token}:0", "$B:1", f"{sep_token}:1"],
                special_tokens=[(token, vocab[token]) for token in (cls_token, sep_token)],
            )
        self._setup(backend.to_str(), special_tokens, 1, allow_special_tokens, source)

    def _setup(self, state: str, *settings) -> None:
        whole = json.loads(state)
        pipeline = {name: (whole.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer")}
        self._is_bert = pipeline == {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
        self._normalizer = whole.get("normalizer") or {}
        self._continuation: str = whole["model"].get("continuing_subword_prefix", CONTINUATION)
        super()._setup(state, *settings)
        self._cuts: dict[str, bool] = {}

    def _word_pattern(self, whole: dict) -> str | None:
        if not self._is_bert or has_added_words(whole):
            return None
        # Of the ideographs the common block is enough: the others are cut off inside the Rust library.
        return "[\u4e00-\u9fff]|[^ \u4e00-\u9fff]+" if self._normalizer["handle_chinese_chars"] else "[^ ]+"

    @cached_property
    def _continues(self) -> np.ndarray:
        return np.array([self._tokens.get(i, "").startswith(self._continuation) for i in range(self.vocab_size)])

    def _starts_word(self, ids: np.ndarray) -> np.ndarray:
        return ~self._continues[ids]

    def _join(self, tokens: list[str]) -> str:
        return join_pieces(tokens, self._continuation, self._is_cut_off, set(self.special_tokens.values()))

    def _is_cut_off(self, character: str) -> bool:
        """True if the character is a word of its own whatever stands beside it, so that it needs no space."""
        if character not in self._cuts:
            text = f"a{character}a"
            if self._backend.normalizer is not None:
                text = self._backend.normalizer.normalize_str(text)
            self._cuts[character] = len(self._backend.pre_tokenizer.pre_tokenize_str(text)) == 3
        return self._cuts[character]

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json, see `BaseTokenizer.save_pretrained`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_vocab(Path(folder) / "vocab.txt", self.vocab)
        super().save_pretrained(folder)

    def _config(self) -> dict:
        if not self._is_bert:
            return super()._config()
        return {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self._normalizer["lowercase"],
            "strip_accents": self._normalizer["strip_accents"],
            "tokenize_chinese_chars": self._normalizer["handle_chinese_chars"],
        }
