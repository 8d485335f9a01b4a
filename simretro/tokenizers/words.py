"""A memory of words: text is mostly words that were tokenised before."""

import re
import threading
from collections.abc import Callable
from itertools import chain

import numpy as np

_LONGEST_KEPT = 32  # characters of a word


class WordCache:
    """Token ids of many texts, each distinct word tokenised once.

    A drop-in for the Rust library where a text's ids are the ids of its words in a row. Looking words up in a dict
    is several times faster than tokenising them again, in all threads of two cores, and the ids are the same.

    Args:
        pattern: regular expression whose matches are the words. It may only leave out and cut at characters at which
            the tokenizer cuts too, whatever stands beside them.
        encode: callable, list of n words -> list of n lists of ids.
        max_words: int; a memory that has grown beyond is emptied. Words of more than 32 characters are not kept: where
            no blanks are written, a sentence or a document is one "word", and comes once.
    """

    def __init__(self, pattern: str, encode: Callable[[list[str]], list[list[int]]], max_words: int = 1 << 18):
        self._find_words = re.compile(pattern).findall
        self._encode = encode
        self._max_words = max_words
        self._ids: dict[str, list[int]] = {}
        self._lock = threading.Lock()  # Keras' data loaders call from several threads

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts in a row, int32, and the number of ids of each text, int64."""
        words = [self._find_words(text) for text in texts]
        flat_words = list(chain.from_iterable(words))
        with self._lock:
            passing = self._learn(set(flat_words))
            pieces = list(map(self._ids.__getitem__, flat_words))
            for word in passing:
                del self._ids[word]
        piece_counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
        running = np.concatenate([[0], np.cumsum(piece_counts)])
        lengths = np.diff(running[ends], prepend=0)
        return np.fromiter(chain.from_iterable(pieces), np.int32, running[-1]), lengths

    def _learn(self, words: set[str]) -> list[str]:
        """Returns the new words that are too long to be kept."""
        if len(self._ids) > self._max_words:
            self._ids.clear()
        new = [word for word in words if word not in self._ids]
        if new:
            self._ids.update(zip(new, self._encode(new), strict=True))
        return [word for word in new if len(word) > _LONGEST_KEPT]
