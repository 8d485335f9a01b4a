"""Which tokenizer a folder holds."""

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend

from simretro.tokenizers.base import ROLES, BaseTokenizer, rebuild
from simretro.tokenizers.bytelevel import ByteLevelTokenizer
from simretro.tokenizers.characters import is_cjk
from simretro.tokenizers.sentencepiece import ROBERTA_TOKENS, SentencePieceTokenizer
from simretro.tokenizers.vocabulary import load_vocab
from simretro.tokenizers.wordpiece import BERT_TOKENS, Tokenizer

_BERT_SETTINGS = {  # of tokenizer_config.json -> of tokenizer.json's normalizer
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def load_tokenizer(
    folder: str | Path, do_lower_case: bool | None = None, allow_special_tokens: bool | None = None
) -> BaseTokenizer:
    """Reads the tokenizer of a model folder: Hugging Face's, Google's, Keras Hub's or our own.

    Looked for in this order: `tokenizer.json` (WordPiece, Unigram or byte-level BPE), `vocab.txt`,
    `sentencepiece.bpe.model`, `vocab.json` with `merges.txt`; Keras Hub keeps the last three in `assets/tokenizer` as
    `vocabulary.*`. Settings and special tokens come from `tokenizer_config.json` and `special_tokens_map.json`.

    Args:
        folder: the folder.
        do_lower_case: bool or None, of a WordPiece tokenizer; None takes what the folder says. If it says nothing
            (Google's folders), a vocabulary with capitals in more than one word of a hundred is taken as cased.
        allow_special_tokens: bool; True reads a `[SEP]` typed inside a text as the special token, False as plain text.
            None: as the tokenizer that simretro saved, False for other folders.
    Returns: `Tokenizer`, `SentencePieceTokenizer` or `ByteLevelTokenizer`.
    Raises:
        FileNotFoundError: if none of the files is there.
        ValueError: for files that are malformed, contradict each other or lack a special token.
        NotImplementedError: for a tokenizer that needs a word segmenter.
    """
    folder = Path(folder)
    if folder.parts[-2:] == ("assets", "tokenizer"):
        folder = folder.parents[1]
    if not folder.is_dir():
        raise FileNotFoundError(f"`folder` must be a folder with a tokenizer; there is no folder {folder}.")
    settings = _read_settings(folder)
    if allow_special_tokens is None:
        allow_special_tokens = settings.get("allow_special_tokens") is True
    whole = _read_json(folder / "tokenizer.json")
    if "model" in whole:
        return _from_whole(folder, whole, settings, do_lower_case, allow_special_tokens)
    path = _find(folder, "vocab.txt", "vocabulary.txt")
    if path:
        return _from_vocab(path, {**_of_keras_hub(whole), **settings}, do_lower_case, allow_special_tokens)
    if do_lower_case is not None:
        raise ValueError(f"`do_lower_case` is for WordPiece; {folder} holds no vocab.txt. Leave it out.")
    path = _find(folder, "sentencepiece.bpe.model", "vocabulary.spm")
    if path:
        return SentencePieceTokenizer(path, allow_special_tokens)
    path, merges = _find(folder, "vocab.json", "vocabulary.json"), _find(folder, "merges.txt")
    if path and merges:
        return ByteLevelTokenizer(path, merges, allow_special_tokens)
    raise FileNotFoundError(
        f"No tokenizer in {folder}: looked for tokenizer.json, vocab.txt, sentencepiece.bpe.model, "
        "vocab.json with merges.txt, and for Keras Hub's assets/tokenizer/vocabulary.*."
    )


def _from_whole(folder: Path, whole: dict, settings: dict, do_lower_case: bool | None, allow: bool) -> BaseTokenizer:
    """Reads tokenizer.json, the one file that says everything but which token plays which part."""
    path = folder / "tokenizer.json"
    kind = whole["model"].get("type")
    steps = [step.get("type") for step in _steps(whole.get("pre_tokenizer"))]
    if kind == "WordPiece" and steps:
        cls = Tokenizer
    elif kind == "Unigram" and "Metaspace" in steps:
        cls = SentencePieceTokenizer
    elif kind == "BPE" and "ByteLevel" in steps:
        cls = ByteLevelTokenizer
    else:
        raise ValueError(
            f"{path}: must hold WordPiece, Unigram with Metaspace or byte-level BPE; "
            f"received model {kind} with pre-tokenizer {steps}."
        )
    whole = {**whole, "truncation": None, "padding": None}
    _apply_settings(path, whole, {**settings, **_given(do_lower_case)}, do_lower_case)
    state = json.dumps(whole, ensure_ascii=False)
    try:
        backend = Backend.from_str(state)
    except Exception as error:  # the Rust library raises plain Exception
        raise ValueError(f"{path}: {error}.") from error
    if cls is Tokenizer:
        vocab = backend.get_vocab(with_added_tokens=True)
        _refuse_segmenter(folder, settings, vocab)
        _compare_vocab(folder, backend, vocab)
    special_tokens = {**(BERT_TOKENS if cls is Tokenizer else ROBERTA_TOKENS), **_roles(settings)}
    separators = _count_separators(path, backend, special_tokens, default=1 if cls is Tokenizer else 2)
    del whole, backend  # XLM-R's are hundreds of megabytes
    return rebuild(cls, state, special_tokens, separators, allow, str(path))


def _from_vocab(path: Path, settings: dict, do_lower_case: bool | None, allow: bool) -> Tokenizer:
    """Reads a vocabulary file; what it leaves open is in the settings."""
    vocab = load_vocab(path)
    _refuse_segmenter(path.parent, settings, vocab)
    foreign = [token for token in _read_json(path.parent / "added_tokens.json") if token not in vocab]
    if foreign:
        raise ValueError(
            f"{path.parent / 'added_tokens.json'}: adds {foreign[0]!r}, which is not in {path.name}; "
            "save the tokenizer with Hugging Face's fast class, which writes a tokenizer.json."
        )
    settings = {"do_lower_case": not _looks_cased(vocab), **settings, **_given(do_lower_case)}
    arguments = {name: settings[name] for name in _BERT_SETTINGS if name in settings}
    special_tokens = {f"{role}_token": token for role, token in _roles(settings).items()}
    try:
        return Tokenizer(vocab, **arguments, **special_tokens, allow_special_tokens=allow)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _given(do_lower_case: bool | None) -> dict:
    return {} if do_lower_case is None else {"do_lower_case": do_lower_case}


def _apply_settings(path: Path, whole: dict, settings: dict, do_lower_case: bool | None) -> None:
    """Writes the settings into the normalizer, as Hugging Face does: the config wins over tokenizer.json."""
    normalizer = whole.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        normalizer.update({_BERT_SETTINGS[name]: settings[name] for name in _BERT_SETTINGS if name in settings})
    elif do_lower_case is not None:
        raise ValueError(
            f"`do_lower_case` is for BERT's normalizer; {path} has {normalizer.get('type')}. Leave it out."
        )


def _roles(settings: dict) -> dict[str, str]:
    """Which token plays which part, of those that the settings name."""
    named = {role: settings.get(f"{role}_token") for role in ROLES}
    tokens = {role: token.get("content") if isinstance(token, dict) else token for role, token in named.items()}
    return {role: token for role, token in tokens.items() if token}


def _count_separators(path: Path, backend: Backend, special_tokens: dict[str, str], default: int) -> int:
    """How many sep stand between A and B, found by asking for a pair."""
    if backend.post_processor is None:
        return default
    pair = backend.encode("a", "a")
    row = "".join("x" if part is None else "AB"[part] for part in pair.sequence_ids)
    specials = [token for token, part in zip(pair.tokens, pair.sequence_ids, strict=True) if part is None]
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    separators = row.rfind("A") and row.find("B") - row.rfind("A") - 1
    if specials != [cls, *[sep] * (separators + 1)] or row[0] != "x" or row[-1] != "x" or separators not in (1, 2):
        raise ValueError(
            f"{path}: a pair must be {cls} A {sep} B {sep}, with one or two {sep} in the middle; it has {specials}. "
            "If other tokens play these parts, name them in tokenizer_config.json."
        )
    return separators


def _compare_vocab(folder: Path, backend: Backend, vocab: dict[str, int]) -> None:
    """Raises ValueError if vocab.txt, where there is one, does not say the same as tokenizer.json."""
    if not (folder / "vocab.txt").exists():
        return
    lines = load_vocab(folder / "vocab.txt")
    different = next((token for token in lines if vocab.get(token) != lines[token]), None)
    if different is not None or len(lines) < backend.get_vocab_size(with_added_tokens=False):
        what = (
            f"{len(lines)} tokens and {len(vocab)}"
            if different is None
            else f"{different!r} is {lines[different]} and {vocab.get(different)}"
        )
        raise ValueError(f"{folder}: vocab.txt and tokenizer.json differ ({what}); remove the one that is out of date.")


def _refuse_segmenter(folder: Path, settings: dict, vocab: dict[str, int]) -> None:
    """Raises for classes that cut text into words first: without that the ids would be others, silently."""
    name = str(settings.get("tokenizer_class", ""))
    words = sum(len(token) > 1 and all(map(is_cjk, token)) for token in vocab)
    if name.startswith("BertJapanese") or (name.startswith("RoFormer") and words * 100 > len(vocab)):
        raise NotImplementedError(f"{folder}: {name} needs a word segmenter, which simretro does not have.")


def _looks_cased(vocab: dict[str, int]) -> bool:
    capitals = sum(token.lower() != token and not token.startswith("[") for token in vocab)
    return capitals * 100 > len(vocab)


def _of_keras_hub(whole: dict) -> dict:
    """The settings in Keras Hub's own tokenizer.json."""
    config = whole.get("config", {})
    if "lowercase" not in config:
        return {}
    # Its default is to keep accents, but the models whose weights it carries were trained without them.
    return {"do_lower_case": config["lowercase"], "strip_accents": config.get("strip_accents") or None}


def _read_settings(folder: Path) -> dict:
    named = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the latter wins
        named.update(_read_json(folder / name))
    return named


def _read_json(path: Path) -> dict:
    """The object in a file; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise ValueError(f"{path}:{line}: no JSON ({error}).") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}:1: must be a JSON object; received {type(content).__name__}.")
    return content


def _steps(part: dict | None) -> list[dict]:
    """The steps of a part of tokenizer.json, which may be none, one or a sequence."""
    return [] if part is None else part.get("pretokenizers", [part])


def _find(folder: Path, *names: str) -> Path | None:
    paths = [place / name for name in names for place in (folder, folder / "assets" / "tokenizer")]
    return next((path for path in paths if path.is_file()), None)
