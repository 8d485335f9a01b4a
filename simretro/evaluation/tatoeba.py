"""Tatoeba in the layout of LASER v1: sentences in many languages, each with its English translation.

tatoeba.{xxx}-eng.{xxx}    tatoeba.{xxx}-eng.eng    UTF-8, a sentence a line, line i translates line i
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simretro.arguments import warn
from simretro.evaluation.bitext import BitextAccuracy, bitext_accuracy
from simretro.evaluation.rows import is_sparse, text_list
from simretro.lines import iter_whole_lines

_PREFIX = "tatoeba."
_LINES_TO_JUDGE_ORDER = 20


class TextPair(NamedTuple):
    """Sentences in two languages; text i of the one translates text i of the other."""

    language: str
    other_language: str
    texts: list[str]
    other_texts: list[str]


class BitextResult(NamedTuple):
    """Result of `evaluate_bitext` and `evaluate_tatoeba`.

    Attributes:
        forward, backward, mean: float, unweighted means over the pairs.
        pairs: dict name -> `BitextAccuracy`.
    """

    forward: float
    backward: float
    mean: float
    pairs: dict[str, BitextAccuracy]


def read_tatoeba(folder: str | os.PathLike, languages: Sequence[str] | None = None) -> dict[str, TextPair]:
    """Reads the language pairs of a folder.

    Pairs without English are read as well if their files are named in the same way, `tatoeba.deu-fra.deu` and
    `tatoeba.deu-fra.fra`; LASER's own cannot be joined into such, as the English sentences differ from pair to pair.

    Args:
        folder: path. Lines end with `\\n`, other separators are part of a sentence.
        languages: names to read, "deu" for deu-eng or "deu-fra"; None = all there are, sorted.
    Returns: dict name -> `TextPair`, the name being "deu" for deu-eng, else both languages.
    Raises: FileNotFoundError for a missing file or a folder without any; ValueError for two files of different numbers
        of lines, naming both, for bytes that are not UTF-8, or an empty file; TypeError for one str as `languages`.
    """
    folder = Path(folder)
    if languages is None:
        found = {path.name.split(".")[1] for path in folder.glob(f"{_PREFIX}*-*.*") if path.name.count(".") == 2}
        if not found:
            raise FileNotFoundError(f"{folder} has no files {_PREFIX}xxx-eng.xxx and {_PREFIX}xxx-eng.eng.")
        languages = sorted(found)
    pairs = {}
    for name in text_list(languages, "languages"):
        language, _, other = name.partition("-")
        other = other or "eng"
        pair = f"{language}-{other}"
        texts, other_texts = (_read_lines(folder / f"{_PREFIX}{pair}.{side}") for side in (language, other))
        if len(texts) != len(other_texts):
            raise ValueError(
                f"{folder / f'{_PREFIX}{pair}.{language}'} has {len(texts)} lines, but {_PREFIX}{pair}.{other} has "
                f"{len(other_texts)}: line i must translate line i."
            )
        pairs[language if other == "eng" else pair] = TextPair(language, other, texts, other_texts)
        if len(other_texts) >= _LINES_TO_JUDGE_ORDER and other_texts == sorted(other_texts):
            warn(
                f"{_PREFIX}{pair}.{other} is in alphabetical order, as in XTREME's preparation of these files, where "
                "line i does not translate line i: the numbers would mean nothing. Use LASER's own files."
            )
    return pairs


def evaluate_tatoeba(
    folder: str | os.PathLike, encode: Callable | Mapping, languages: Sequence[str] | None = None, **settings
) -> BitextResult:  # fmt: skip
    """Accuracy of the nearest neighbour, from each language into English and back.

    Args:
        folder, languages: see `read_tatoeba`.
        encode: see `evaluate_bitext`. CCP takes the mean of a middle layer's states for this task, of 24 layers
            `ccp.sentence_encoder.at_layer(14, "mean").encode`.
        settings: retrieval, neighbors, ties and calibrate of `evaluate_bitext`.
    Returns: a `BitextResult`; `forward` is xx -> en, `backward` en -> xx.
    Raises: see `read_tatoeba` and `evaluate_bitext`.
    """
    return evaluate_bitext(read_tatoeba(folder, languages), encode, **settings)


def evaluate_bitext(
    pairs: Mapping[str, TextPair], encode: Callable | Mapping, *, retrieval: str = "cosine",
    neighbors: int | None = None, ties: str = "index", calibrate: Callable | None = None,
) -> BitextResult:  # fmt: skip
    """As `evaluate_tatoeba`, for sentences in memory: any two languages, `{"de-ru": TextPair("de", "ru", de, ru)}`.

    Args:
        pairs: dict name -> `TextPair`, or a tuple of the same four.
        encode: called with a list of texts, returns numbers (N, d) or a SciPy sparse matrix, of the languages of a pair
            in one space; or a dict name -> (vectors, other_vectors), made before.
        retrieval, neighbors, ties: see `bitext_accuracy`.
        calibrate: None, or called with (vectors, language) before the comparison, for instance
            `lambda vectors, language: calibrator.transform(vectors, language, upto="shift")`.
    Returns: a `BitextResult`.
    Raises: ValueError for no pairs, texts or vectors of different numbers, TypeError for one str as the texts of a
        side, and see `bitext_accuracy`.
    """
    if not pairs:
        raise ValueError("`pairs` must hold at least one pair of languages; received none.")
    results = {}
    for name, pair in pairs.items():
        pair = TextPair(*pair)
        pair = pair._replace(
            texts=text_list(pair.texts, f"pairs[{name!r}].texts"),
            other_texts=text_list(pair.other_texts, f"pairs[{name!r}].other_texts"),
        )
        if len(pair.texts) != len(pair.other_texts):
            raise ValueError(
                f"`pairs[{name!r}]` must have as many texts on both sides; received {len(pair.texts)} "
                f"{pair.language}, {len(pair.other_texts)} {pair.other_language}."
            )
        sides = _vectors(encode, name, pair)
        if calibrate is not None:
            languages = (pair.language, pair.other_language)
            sides = [calibrate(side, language) for side, language in zip(sides, languages, strict=True)]
        results[name] = bitext_accuracy(
            *sides, retrieval=retrieval, neighbors=neighbors, ties=ties, texts=pair.texts,
            other_texts=pair.other_texts,
        )  # fmt: skip
    means = (float(np.mean([getattr(r, name) for r in results.values()])) for name in ("forward", "backward", "mean"))
    return BitextResult(*means, results)


def _vectors(encode, name, pair):
    if not callable(encode):
        if name not in encode:
            raise ValueError(f"`encode` has no vectors for the pair {name!r}; it has {sorted(encode)}.")
        sides = encode[name]
    else:
        sides = encode(pair.texts), encode(pair.other_texts)
    sides = [side if is_sparse(side) else np.asarray(side) for side in sides]
    for side, texts, language in zip(sides, (pair.texts, pair.other_texts), pair[:2], strict=True):
        rows = side.shape[0] if side.ndim else 0
        if rows != len(texts):
            raise ValueError(
                f"`encode` must give one row per text; received {rows} rows for the {len(texts)} {language} texts of "
                f"{name}."
            )
    return sides


def _read_lines(path):
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Files are named {_PREFIX}xxx-eng.xxx and {_PREFIX}xxx-eng.eng.")
    texts = [text.removesuffix("\n").removesuffix("\r") for _, text in iter_whole_lines(path)]
    if not texts:
        raise ValueError(f"{path} holds no line.")
    return texts
