"""What kind of character this is: the classes that the vocabulary rule, `decode` and word grouping need."""

import re
import unicodedata

# The blocks that BERT's basic tokenizer sets apart; the same list as in Google's code.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# Thai, Lao, Myanmar, Khmer, Japanese kana, Bopomofo: scripts beside the ideographs that put no space between words.
_UNSPACED_BLOCKS = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x312F), *_CJK_BLOCKS)
_UNSPACED = re.compile("[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in _UNSPACED_BLOCKS) + "]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_blank(text: str) -> bool:
    """True if the text is white space, which for Unicode (and Rust) U+001C to U+001F are not, for Python they are."""
    return text.isspace() and not any("\x1c" <= character <= "\x1f" for character in text)


def is_cjk(character: str) -> bool:
    """True for a Chinese ideograph (not for kana or Hangul, which BERT treats like Latin letters)."""
    code = ord(character)
    return any(low <= code <= high for low, high in _CJK_BLOCKS)


def is_unspaced(character: str) -> bool:
    """True for a character of a script that is written without spaces between its words; False for no character."""
    return _UNSPACED.match(character) is not None


def is_punctuation(character: str) -> bool:
    """True for BERT's punctuation: ASCII that is no letter, digit, space or control, and Unicode's classes P*."""
    code = ord(character)
    if code < 128:
        return 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return unicodedata.category(character).startswith("P")


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates (from JSON's `\\ud83d`, say), which no encoder takes, by U+FFFD, one for one."""
    return _SURROGATE.sub("\ufffd", text)
