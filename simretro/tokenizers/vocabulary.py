"""Vocabulary files: one token a line, the line number is the id."""

from pathlib import Path

from simretro.files import atomic_file
from simretro.tokenizers.characters import is_cjk, is_punctuation

CONTINUATION = "##"  # WordPiece's mark of a piece that continues a word


def load_vocab(
    path: str | Path, encoding: str = "utf-8", simplified: bool = False, startswith: list[str] | None = None
) -> dict[str, int] | tuple[dict[str, int], list[int]]:
    """Reads a vocabulary file; with `simplified` also drops the tokens that a Chinese model never sees.

    Only `\\n` ends a line: U+2028, U+0085 and their kind are tokens. A file whose lines all end in `\\r\\n` loses one
    `\\r` a line. A final newline ends the last line, it does not begin another. A byte order mark is dropped.

    Args:
        path: the file.
        encoding: str, of the file.
        simplified: bool; True keeps `startswith` first, then in the old order every token but the redundant ones:
            those of two or more characters (`##` not counted) with an ideograph or a punctuation character among
            them. Google's 21128 Chinese tokens become 13584. `[MASK]` and `[unusedN]` go too, unless named first.
        startswith: list of tokens that come first, with `simplified`.
    Returns: dict token -> id; with `simplified` a tuple of that dict, with new ids, and the list of old ids in the new
        order (`keep_tokens`): the rows to take from the tables of the original checkpoint.
    Raises: ValueError for a token on two lines, one of `startswith` that is in no line, or bytes of another encoding.
    """
    if startswith is not None and not simplified:
        raise ValueError("`startswith` orders a simplified vocabulary; pass `simplified=True` with it.")
    vocab = _index(_split_lines(_read_text(path, encoding), path), path)
    return _simplify(vocab, startswith or [], path) if simplified else vocab


def save_vocab(path: str | Path, vocab: dict[str, int], encoding: str = "utf-8") -> None:
    """Writes a vocabulary file that `load_vocab` reads back equal.

    Args:
        path: the file to write.
        vocab: dict token -> id; the ids must be 0, 1, 2, ... without a gap.
        encoding: str, of the file.
    Raises: ValueError if ids are missing or repeated, or a token cannot stand on a line of its own.
    """
    tokens = tokens_in_order(vocab)
    text = "".join(f"{token}\n" for token in tokens)
    try:
        reads_back = _split_lines(text, path) == tokens
    except ValueError:  # some tokens end in "\r", others do not
        reads_back = False
    if not reads_back:
        bad = next((t for t in tokens if "\n" in t or t.endswith("\r")), tokens[0])
        raise ValueError(f"`vocab` cannot be written to {path}: token {bad!r} would not read back from a line.")
    with atomic_file(path, "w", encoding=encoding) as file:
        file.write(text)


def tokens_in_order(vocab: dict[str, int]) -> list[str]:
    """The tokens by id; raises ValueError unless the ids are 0, 1, 2, ... without a gap."""
    tokens = sorted(vocab, key=vocab.__getitem__)
    for expected, token in enumerate(tokens):
        if vocab[token] != expected:
            raise ValueError(
                f"`vocab` must use each id from 0 to {len(vocab) - 1} once; "
                f"received id {vocab[token]} for {token!r} where {expected} was due."
            )
    return tokens


def _read_text(path: str | Path, encoding: str) -> str:
    data = Path(path).read_bytes()
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: not {encoding} ({error.reason}); pass the file's `encoding`.") from error


def _split_lines(text: str, path: str | Path) -> list[str]:
    lines = text.removeprefix("\ufeff").split("\n")  # a byte order mark is no part of the first token
    last = lines.pop()  # what follows the final newline: nothing, if the file ends in one
    returns = [line.endswith("\r") for line in lines]
    if lines and all(returns):
        lines = [line[:-1] for line in lines]
    else:
        for number, (line, has_return) in enumerate(zip(lines, returns, strict=True), start=1):
            # "\r" alone may be a token; "good\r" is a line of Windows in a file of Unix.
            if has_return and line != "\r":
                raise ValueError(
                    f"{path}:{number}: ends in \\r\\n, other lines in \\n; give all lines one kind of end."
                )
    return [*lines, last] if last else lines


def _index(tokens: list[str], path: str | Path) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        first = vocab.setdefault(token, token_id)
        if first != token_id:
            raise ValueError(
                f"{path}: token {token!r} stands on line {first + 1} and again on line {token_id + 1}; "
                "a token has one id: rename one of them."
            )
    if not vocab:
        raise ValueError(f"{path}: an empty vocabulary.")
    return vocab


def _is_redundant(token: str) -> bool:
    stem = token.removeprefix(CONTINUATION)
    return len(token) > 1 and any(is_cjk(character) or is_punctuation(character) for character in stem)


def _simplify(vocab: dict[str, int], startswith: list[str], path: str | Path) -> tuple[dict[str, int], list[int]]:
    missing = [token for token in startswith if token not in vocab]
    if missing:
        raise ValueError(f"{path}: no token {missing[0]!r}, which `startswith` wants first.")
    first = dict.fromkeys(startswith)
    kept = [*first, *(token for token in vocab if token not in first and not _is_redundant(token))]
    return {token: new_id for new_id, token in enumerate(kept)}, [vocab[token] for token in kept]
