"""Texts of many scripts cut into sentences."""

import importlib.metadata
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Marks that end a sentence though no white space follows: East Asian, Indic, Arabic, Ethiopic, Burmese, Khmer, Tibetan.
_MARKS = "。！？｡．؟۔।॥።፧၊။។།"
_EAST_ASIAN = "\u2e80"  # from here on in Unicode, scripts without spaces between words
_CLOSING = "\"'”’»)]}」』）】》〉"
_KNOWN_QUOTES = str.maketrans("『』", "‹›")  # sentencex takes 『』 for letters
# と and って tell what was said, though some words begin so: とても, ところで, とにかく, とうとう, とりあえず, ...
_JAPANESE_QUOTE_END = "」』”"
_SAID = re.compile("って|と(?!ても|ころ|にかく|うとう|りあえず|もかく|きどき|きに|っくに|んでも|つぜん)")
_PARAGRAPH = re.compile(r"(?<=\u2029)")
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_BLANK_LINE = re.compile(r"\n\s*\n\s*$|\u2029\s*$")
_LETTER = r"[^\W\d_가-힣]"  # a syllable of Hangul is a word: 네.
_COUNTED = f"(?:{_LETTER}|[가나다라마바사아자차카타파하])"  # but lists count with these
_ROMAN = "(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})"
# Two letters that stand for a word: consonants ("Dr.", "Св."), and how Indic scripts and Thai write the doctor. Other
# two letters may be a sentence: "No.", "Ja.", "Sí.", "हो.".
_CONSONANT = "[b-df-hj-np-tv-xzб-джзк-нп-тф-щβ-δζθκ-νξπ-τφ-ψ]"
_SHORTENED = f"(?:(?!hm|mm|sh){_CONSONANT}{{2}}|डॉ|डा|ডা|ਡਾ|ડૉ|ડો|ଡା|டா|డా|ಡಾ|ഡോ|ดร)"
# "1.", "(a)", "IV.", "डॉ.": a number of a list or a title, not a sentence.
_LABEL = re.compile(
    rf"\s*(?:[(\[]?(?:(?:\d{{1,3}}|{_COUNTED}|{_ROMAN}|{_ROMAN.lower()})[.)]|\S{{1,2}}\))|(?i:{_SHORTENED})\.)\s*"
)
# A single letter before the mark: an initial or an abbreviated title ("J. Smith", "M. Dupont").
_INITIAL = re.compile(rf"(?:^|[\s(\[\"'«“]){_LETTER}\.\s*$")
_INITIAL_REACH = 12  # characters from the end that `_INITIAL` needs to see
_MENDED = 2  # counted up when the rules here cut texts in another way: caches made before must not be taken


@dataclass(frozen=True)
class SentenceSplitter:
    """Cuts texts of one language into sentences, see `sentences_of`.

    Args:
        language: str.
        split: callable (text, language) -> list of str, in place of `sentences_of`.
    """

    language: str
    split: Callable[[str, str], list[str]] | None = None

    def __call__(self, text: str) -> list[str]:
        """The sentences of a text."""
        return (self.split or sentences_of)(text, self.language)

    def fingerprint(self) -> list:
        """What decides where texts are cut, as JSON values; a callable is known by its name."""
        if self.split is None:
            return [self.language, _rules_version()]
        return [self.language, *(getattr(self.split, name, None) for name in ("__module__", "__qualname__"))]


def sentences_of(text: str, language: str = "en") -> list[str]:
    """Cuts a text into its sentences, by the rules and abbreviations of its language.

    The library `sentencex` finds the ends: at `.`, `!`, `?` of Latin, Cyrillic, Greek and other scripts, at the full
    stops of East Asian, Indic, Arabic, Ethiopic and other ones, at blank lines and before the points of a list, not
    within brackets and quotation marks, nor behind abbreviations. Cuts that are not meant are mended: within a word
    (`COM.MICROSOFT.SUM`), behind the number of a point in a list, behind an initial, before what has no letter, and
    before Japanese と and って behind what is said (`「はい。」と言った。`). Behind other quotations that end in a full
    stop like 。 there is a cut: `“好。”他说。` are two sentences.
    Line ends within a sentence stay. Nothing but white space is lost.

    Thai, Lao and other texts that mark no ends come as one sentence: give the sentences yourself.

    Args:
        text: str.
        language: str, a code as `en`, `zh` or `pt-BR`; the rules of an unknown one are the English ones.
    Returns: list of str, without white space around them, none empty.
    Raises: ImportError if `sentencex` is not installed.
    """
    pieces = _segment(language.replace("_", "-").split("-")[0].lower(), text)
    return [sentence for sentence in map(str.strip, _mended(pieces)) if sentence]


def _segment(language, text):
    try:
        from sentencex import segment
    except ImportError as error:
        raise ImportError(
            'Cutting texts into sentences needs sentencex: `pip install "simretro[ccp]"`. Or give documents with '
            "`sentences`, or a `split` of your own."
        ) from error
    # sentencex sees paragraphs by lines alone.
    paragraphs = _PARAGRAPH.split(text)
    pieces = [piece for paragraph in paragraphs for piece in segment(language, _known(paragraph))]
    ends = list(itertools.accumulate(map(len, pieces)))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _known(text):
    """A text of the same length in which sentencex knows all characters."""
    # sentencex 1.0 panics at "B\u3000.": it takes one byte from a wide space.
    return _WIDE_SPACE.sub(" ", text).translate(_KNOWN_QUOTES)


def _rules_version():
    try:
        return f"sentencex {importlib.metadata.version('sentencex')}, mended {_MENDED}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _mended(pieces: list[str]) -> Iterator[str]:
    """Joins the pieces between which there is no end of a sentence."""
    joined, has_word = [], False  # the sentence as far as it is known
    for piece in pieces:
        if joined and not _goes_on(joined, has_word, piece):
            yield "".join(joined)
            joined, has_word = [], False
        joined.append(piece)
        has_word = has_word or _has_word(piece)
    yield "".join(joined)


def _goes_on(joined, has_word, piece):
    last = joined[-1]
    if piece.isspace():
        return True
    if _BLANK_LINE.search(last[-_INITIAL_REACH:]):
        return False
    if not last[-1].isspace() and not piece[0].isspace():
        if last[-1] in _JAPANESE_QUOTE_END and _SAID.match(piece):
            return True
        mark = last.rstrip(_CLOSING)[-1:]
        return mark not in _MARKS and (mark not in "!?" or piece[0] < _EAST_ASIAN)
    if not has_word or not _has_word(piece):
        return True
    is_label = len(joined) == 1 and _LABEL.fullmatch(last)
    return bool(is_label or _INITIAL.search(last[-_INITIAL_REACH:]))


def _has_word(text):
    return any(character.isalnum() for character in text)
