"""The tokenizer's files beside a checkpoint: where they are, and whether their size is that of the token table."""

from collections.abc import Mapping
from pathlib import Path

from simretro.checkpoints.config import read_json

# One of these makes a folder a tokenizer's; Keras Hub calls them `vocabulary.*`.
TOKENIZER_FILES = (
    *("vocab.txt", "tokenizer.json", "sentencepiece.bpe.model", "vocab.json"),
    *("vocabulary.txt", "vocabulary.spm", "vocabulary.json"),
)


def tokenizer_folder(folder: Path) -> Path | None:
    """`folder`, if a tokenizer can be made of its files."""
    return folder if any((folder / name).is_file() for name in TOKENIZER_FILES) else None


def vocabulary_problems(folder: Path | None, config: Mapping, padded: bool) -> list[str]:
    """Compares the number of tokens in `vocab.txt`, or in `tokenizer.json` where there is none, with `vocab_size`.

    Args:
        folder: of the tokenizer's files; None and folders with other files give no problem.
        config: a normalised config.
        padded: bool; True lets the table be padded to a multiple of 8, as many published ones are.
    Returns: list of str with the problem, for the error of `compare`; empty where the sizes fit.
    """
    rows = config["vocab_size"]
    for name in ("vocab.txt", "vocabulary.txt"):
        path = folder / name if folder else None
        if path and path.is_file():
            tokens = _count_tokens(path)
            # No real padding is as long as 128, and a simplified vocabulary must not pass for one.
            fits = tokens == rows or (padded and rows % 8 == 0 and 0 < rows - tokens < 128)
            return [] if fits else [f"{path} has {tokens} tokens, `vocab_size` is {rows}"]
    path = folder / "tokenizer.json" if folder else None
    if path and path.is_file():
        # Published multilingual models have some rows that no token uses, so that only too many tokens are wrong.
        tokens = _count_ids(path)
        return [] if tokens <= rows else [f"{path} has {tokens} tokens, `vocab_size` is {rows}"]
    return []


def _count_tokens(path):
    # Only "\n" ends a line: the line number is the id, and tokens may be any other line separator.
    content = path.read_bytes()
    tokens = content.count(b"\n") + bool(content and not content.endswith(b"\n"))
    added = path.with_name("added_tokens.json")
    if added.is_file():
        tokens = max([tokens, *(1 + index for index in read_json(added).values() if isinstance(index, int))])
    return tokens


def _count_ids(path):
    content = read_json(path)
    model, added = content.get("model"), content.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab or []))  # WordPiece and BPE; Unigram
    return 1 + max([-1, *ids, *(entry["id"] for entry in added or [])])
