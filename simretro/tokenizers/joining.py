"""From WordPiece tokens to a line that a person would have typed."""

import re
import unicodedata
from collections.abc import Callable, Iterable

from simretro.tokenizers.characters import is_cjk, is_punctuation

_NO_SPACE_BEHIND = frozenset("+-/\\=_~@#$^([{<|")
_SPACE_BEFORE = frozenset("@#$&")
_CONTRACTED = re.compile("re|m|s|t|ve|d|ll", re.IGNORECASE)


def join_pieces(
    tokens: Iterable[str], continuation: str, is_cut_off: Callable[[str], bool], special_tokens: set[str]
) -> str:
    """Joins the pieces of words, puts spaces between words and none around ideographs.

    Where a space is left out the tokenizer cuts all the same, so the text has the tokens that it came from.

    Args:
        tokens: str each; any sequence of them, also one that starts with a continuing piece.
        continuation: the mark of a piece that continues a word, `##`.
        is_cut_off: callable, character -> bool; True if the tokenizer makes it a word of its own.
        special_tokens: tokens that get a space on both sides.
    Returns: str.
    """
    text = ""
    after_special = False
    for token in tokens:
        if token in special_tokens:
            text += f" {token}" if text else token
            after_special = True
            continue
        piece = token.removeprefix(continuation)
        continues = len(piece) < len(token) and not after_special
        if piece:
            gap = "" if continues or not text else " " if after_special else _gap(text, piece, is_cut_off)
            text += gap + piece
            after_special = False
    return text


def _gap(text: str, piece: str, is_cut_off: Callable[[str], bool]) -> str:
    """What stands between a text, not empty, and the word that follows."""
    left, right = text[-1], piece[0]
    if not (is_cut_off(left) or is_cut_off(right)):
        return " "
    if _stands_close(left) or _stands_close(right):
        return ""
    in_quotes = text.count('"') % 2 == 1
    glued = _takes_no_space(left) or (left == '"' and in_quotes)
    if is_punctuation(right):
        opens = right in _SPACE_BEFORE or unicodedata.category(right) in ("Ps", "Pi") or right == '"' and not in_quotes
        return " " if opens and not glued else ""
    if glued:
        return ""
    if left in ".,:" and right.isdigit() and text[-2:-1].isdigit():
        return ""  # 3.14, 1,000, 12:30
    if left in "'\u2019" and _CONTRACTED.fullmatch(piece) and text[-2:-1].isalpha():
        return ""  # don't
    return " "


def _stands_close(character: str) -> bool:
    """True for ideographs and for the punctuation of their width, which brings its own space."""
    return is_cjk(character) or (is_punctuation(character) and unicodedata.east_asian_width(character) in "WF")


def _takes_no_space(character: str) -> bool:
    """True for punctuation behind which no space is written."""
    return character in _NO_SPACE_BEHIND or unicodedata.category(character) in ("Ps", "Pi", "Pd")
