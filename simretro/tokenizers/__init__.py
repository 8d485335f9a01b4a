"""Text to ids and back, on the Rust library `tokenizers`; vocabulary files. No Keras."""

from simretro.tokenizers.base import TruncationWarning
from simretro.tokenizers.bytelevel import ByteLevelTokenizer
from simretro.tokenizers.loading import load_tokenizer
from simretro.tokenizers.sentencepiece import SentencePieceTokenizer
from simretro.tokenizers.training import train_wordpiece
from simretro.tokenizers.vocabulary import load_vocab, save_vocab
from simretro.tokenizers.wordpiece import Tokenizer

__all__ = [
    "ByteLevelTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "TruncationWarning",
    "load_tokenizer",
    "load_vocab",
    "save_vocab",
    "train_wordpiece",
]
