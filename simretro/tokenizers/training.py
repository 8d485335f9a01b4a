"""Vocabularies learnt from text, for models that are trained from scratch."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from simretro.arguments import check_int, warn
from simretro.tokenizers.characters import without_surrogates
from simretro.tokenizers.vocabulary import CONTINUATION
from simretro.tokenizers.wordpiece import BERT_TOKENS, Tokenizer

_WORDS_AT_ONCE = 1024  # of one word in a row handed to the Rust library
_MUCH_LOST = 0.01
# Cuts at some of the characters at which BERT's pre-tokenizer cuts, too, whatever stands beside them.
_CUTS = r"!-/:-@\[-`{-~\u4e00-\u9fff"
_find_runs = re.compile(rf"[{_CUTS}]|[^ \t\n\r{_CUTS}]+").findall
_WITH_ACCENTS = ("LATIN", "GREEK", "CYRILLIC")
_ON_ANY = ("COMBINING", "VARIATION SELECTOR", "CJK")  # marks that letters of any script may have; ideographs


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int = 8000,
    min_count: int = 2,
    lowercase: bool = True,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Learns the vocabulary of a BERT tokenizer from texts.

    The same words with the same counts give the same vocabulary, in every process and whatever their order. Ids 0 to 4
    are `[PAD] [UNK] [CLS] [SEP] [MASK]`; then come the characters, then the characters within a word (`##x`), both by
    code point, then the longer pieces in the order in which they were learnt, the most frequent first.

    Args:
        texts: iterable of str, read once and not kept; only the distinct words are, and of scripts without blanks, as
            Thai, the distinct runs of characters between punctuation.
        vocab_size: int, tokens at most, with the special ones; fewer where the texts have no more to learn.
        min_count: int >= 1; what is seen less often gets no token of its own. Of a word with so rare a character
            nothing is learnt: it will be `[UNK]` as a whole.
        lowercase: bool; True lower-cases, here and in the tokenizer that is returned.
        strip_accents: bool or None; True strips all marks from their letters, as BERT does when it lower-cases: an "é"
            becomes an "e", but Hindi and Thai lose vowels, a Japanese "が" becomes a "か", and a syllable of Hangul
            falls into letters. None does so with `lowercase` where most of the marks in the texts stand on letters of
            Latin, Greek or Cyrillic script.
    Returns: `Tokenizer`.
    Warns: where words are too long for the tokenizer, which makes each `[UNK]`, and are more than 1 % of the text.
    Raises:
        TypeError: if `texts` is one str or holds something else.
        ValueError: for a value out of range; if the texts have no word; if `vocab_size` has no room for the characters.
    """
    check_int("vocab_size", vocab_size, 1)
    check_int("min_count", min_count, 1)
    specials = list(BERT_TOKENS.values())
    runs = _count_runs(texts)
    if strip_accents is None:
        strip_accents = lowercase and _most_marks_are_accents(runs)
    reading = {"do_lower_case": lowercase, "strip_accents": None if strip_accents == lowercase else strip_accents}
    # The tokenizer that will read the vocabulary cuts the words, so that the two cannot differ.
    words = _count_words(runs, Tokenizer({token: i for i, token in enumerate(specials)}, **reading)._backend)
    characters = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    kept = {character for character, count in characters.items() if count >= min_count}
    words = {word: count for word, count in words.items() if kept.issuperset(word)}
    first = sorted(kept)
    within = [CONTINUATION + character for character in sorted({c for word in words for c in word[1:]})]
    needed = len(specials) + len(first) + len(within)
    if not words:
        raise ValueError(f"`texts` must have words whose characters occur {min_count} times or more; received none.")
    if vocab_size < needed:
        raise ValueError(
            f"`vocab_size` must be at least {needed} for these texts: {len(specials)} special tokens, {len(first)} "
            f"characters and {len(within)} within words; received {vocab_size}. With a larger `min_count` than "
            f"{min_count}, rare characters get no token."
        )
    # The Rust trainer numbers the `##x` in the order of a hash map, new in every process, and decides by these numbers
    # between pairs that are equally frequent. Declared as special tokens they are numbered here.
    backend = Backend(models.WordPiece(unk_token=BERT_TOKENS["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_count, special_tokens=specials + first + within,
        continuing_subword_prefix=CONTINUATION, show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(_repeated(words), trainer)
    vocab = backend.get_vocab(with_added_tokens=False)
    return Tokenizer({token: i for i, token in enumerate(sorted(vocab, key=vocab.get))}, **reading)


def _count_runs(texts: Iterable[str]) -> Counter[str]:
    """What stands between blanks and characters that are words of their own."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"`texts` must be an iterable of str; received one {type(texts).__name__}; put it into a list.")
    runs = Counter()
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`texts` must hold str; received {type(text).__name__} {text!r} at place {place}.")
        runs.update(_find_runs(without_surrogates(text)))
    return runs


def _most_marks_are_accents(runs):
    """Whether what `strip_accents` would change are, for the most part, letters of Latin, Greek and Cyrillic script."""
    counts = Counter()
    for run, count in runs.items():
        if not run.isascii():
            for character in run:
                counts[character] += count
    accents = others = 0
    for character, count in counts.items():
        base, *marks = unicodedata.normalize("NFD", character)
        if not marks and unicodedata.category(base) != "Mn":
            continue
        name = unicodedata.name(base, "")
        accents += count * name.startswith(_WITH_ACCENTS)
        others += count * (not name.startswith((*_WITH_ACCENTS, *_ON_ANY)))
    return accents >= others


def _count_words(runs: Counter[str], reader: Backend) -> dict[str, int]:
    """The words of all runs as the model gets them, without those that are too long for it."""
    words = Counter()
    for run, count in runs.items():
        # The normaliser leaves no other white space than blanks.
        for part in reader.normalizer.normalize_str(run).split(" "):
            for word, _ in reader.pre_tokenizer.pre_tokenize_str(part):
                words[word] += count
    limit = reader.model.max_input_chars_per_word
    lost = sum(len(word) * count for word, count in words.items() if len(word) > limit)
    share = lost / max(1, sum(len(word) * count for word, count in words.items()))
    if share > _MUCH_LOST:
        warn(
            f"{share:.0%} of the text is in words of more than {limit} characters: nothing is learnt of them, and each "
            "will be the unknown token. Thai, Lao, Khmer and Burmese write no blanks: put some between the words of "
            "`texts`, or take a SentencePiece model."
        )
    return {word: count for word, count in words.items() if len(word) <= limit}


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Texts that have each word as often as it was counted: the Rust library takes no counts."""
    for word, count in words.items():
        for start in range(0, count, _WORDS_AT_ONCE):
            yield " ".join([word] * min(_WORDS_AT_ONCE, count - start))
