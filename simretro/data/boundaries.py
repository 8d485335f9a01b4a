"""Where sentences and words begin in tokenised texts."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, pairwise

import numpy as np

# The mark must have white space behind it, or numbers, versions and addresses would be cut. Blank lines count, single
# line ends do not: many texts have them within sentences.
_SENTENCE_ENDS = re.compile(r"[.!?…。！？][\"'”’»)\]」』）]*(?=\s)|\S(?=\r?\n\r?\n)")
# These end a sentence without white space behind them.
_FULL_STOPS, _CLOSING = ("。", "！", "？"), ("”", "’", "」", "』", "）")
# A word of more tokens is divided: an address, or a text without spaces in a vocabulary that marks words by them,
# would be masked as a whole, far beyond any budget.
MOST_TOKENS_OF_A_WORD = 24


def split_sentences(text: str) -> list[str]:
    """Cuts a text behind its sentences, at white space, which stays with what follows it.

    So the tokens of the parts are, one part after the other, the tokens of the text.
    """
    ends = [match.end() for match in _SENTENCE_ENDS.finditer(text)]
    return [text[a:b] for a, b in pairwise([0, *ends, len(text)]) if a < b]


def full_stop_tables(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """For each id of the vocabulary: bool, its token ends with an East Asian full stop; bool, it is a closing mark."""
    full_stop, closing = np.zeros((2, tokenizer.vocab_size), bool)
    for token, token_id in tokenizer.vocab.items():
        full_stop[token_id] = token.endswith(_FULL_STOPS)
        closing[token_id] = token.endswith(_CLOSING)
    return full_stop, closing


def behind_full_stops(token_ids: np.ndarray, full_stop: np.ndarray, closing: np.ndarray) -> np.ndarray:
    """Tokens that follow an East Asian full stop, or a closing mark behind one.

    A text in these languages is not cut there before it is tokenised, as `split_sentences` does with others: where a
    tokenizer marks words by spaces, the parts would have other tokens than the whole.

    Args:
        token_ids: int (N,).
        full_stop, closing: from `full_stop_tables`.
    Returns: bool (N,).
    """
    is_stop, is_closing = full_stop[token_ids], closing[token_ids]
    ended = is_stop.copy()
    ended[1:] |= is_closing[1:] & is_stop[:-1]
    begins = np.zeros(len(token_ids), bool)
    begins[1:] = ended[:-1] & ~is_stop[1:] & ~is_closing[1:]
    return begins


def mark_words(
    texts: Sequence[str], ids: Sequence[Sequence[int]], tokenizer, segment: Callable[[str], Iterable[str]] | None
) -> tuple[np.ndarray, int]:
    """Tells where words begin.

    Args:
        texts: N str.
        ids: the token ids of each, without specials.
        tokenizer: has `word_ids` and `sep_token_id`, with `segment` instead `encode_ragged`.
        segment: callable text -> words; None: by the tokenizer's `word_ids`.
    Returns: (bool (tokens of all texts), True where a word begins; number of texts whose words are not tokenised as
        they are within the text, where each token counts as a word).
    Raises: ValueError if the tokenizer does not mark words.
    """
    counts = np.fromiter(map(len, ids), "int64", len(ids))
    if not counts.sum():
        return np.zeros(0, bool), 0
    if segment is None:
        begins, num_unsegmented = _by_tokenizer(ids, counts, tokenizer), 0
    else:
        begins, num_unsegmented = _by_segment(texts, ids, tokenizer, segment)
    begins[(np.cumsum(counts) - counts)[counts > 0]] = True
    places = np.arange(len(begins))
    within = places - np.maximum.accumulate(np.where(begins, places, 0))
    return begins | (within % MOST_TOKENS_OF_A_WORD == 0), num_unsegmented


def _by_tokenizer(ids, counts, tokenizer):
    sep = tokenizer.sep_token_id
    try:
        words = tokenizer.word_ids(chain.from_iterable([sep, *tokens] for tokens in ids))  # one call for all texts
    except ValueError as error:
        raise ValueError(f"`whole_word` needs words: {error} Give a `segment`, or `whole_word=False`.") from error
    numbers = np.array([-1 if word is None else word for word in words], "int64")
    # What has no number is special, and each such token stands alone.
    begins = (numbers < 0) | (np.diff(numbers, prepend=-1) != 0)
    is_text = np.ones(len(numbers), bool)
    is_text[np.cumsum(counts + 1) - (counts + 1)] = False
    return begins[is_text]


def _by_segment(texts, ids, tokenizer, segment):
    words = [list(segment(text)) for text in texts]
    pieces = iter(tokenizer.encode_ragged(list(chain.from_iterable(words))))
    begins, num_unsegmented = [], 0
    for count, tokens in zip(map(len, words), ids, strict=True):
        own = list(islice(pieces, count))
        if list(chain.from_iterable(own)) == list(tokens):
            begins += chain.from_iterable([True, *[False] * (len(piece) - 1)] for piece in own if len(piece))
        else:
            num_unsegmented += 1
            begins += [True] * len(tokens)
    return np.array(begins, bool), num_unsegmented
