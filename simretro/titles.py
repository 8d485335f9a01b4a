"""Titles before texts: the same rule for what is encoded, trained on and measured."""

import unicodedata


def with_title(title: str, text: str) -> str:
    """Title and text of a document as one text.

    Returns: `title text`, or `text` alone where it begins with its title; without white space around them.
    """
    title, text = title.strip(), text.strip()
    return text if begins_with_title(text, title) else f"{title} {text}".strip()


def begins_with_title(text: str, title: str) -> bool:
    """Whether a text begins with its title, as in BEIR's Cranfield and others.

    Case and white space may differ, but the title must be whole words: "Win" is none of "Winter is coming", but one of
    "Win. The story". Ideographs go on without a blank. Every text begins with an empty title.
    """
    words = title.split()
    beginning = " ".join(text.split(None, len(words))[: len(words)]).casefold()
    title = " ".join(words).casefold()
    behind = beginning[len(title) :][:1]
    is_within_word = is_of_word(title[-1:]) and is_of_word(behind) and behind < "\u2e80"
    return beginning.startswith(title) and not is_within_word


def is_of_word(character: str) -> bool:
    """Whether a character, or none, is a letter, a digit or a mark: in Hindi and others a word may end with a mark."""
    return character.isalnum() or (character != "" and unicodedata.category(character).startswith("M"))
