"""Retrieval across languages before and after calibration, and a baseline that knows characters only."""

import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from simretro.calibration import CrossLingualCalibrator
from simretro.data import iter_documents, sentences_of
from simretro.evaluation import BitextResult, TextPair, evaluate_bitext, read_tatoeba
from simretro.lines import iter_lines

# Tatoeba's names of languages, where they are not the first ones.
TATOEBA = dict(
    code.split(":")
    for code in (
        "af:afr ar:ara az:aze bg:bul bn:ben cs:ces da:dan de:deu el:ell en:eng es:spa et:est eu:eus fa:pes fi:fin "
        "fr:fra he:heb hi:hin hu:hun id:ind it:ita ja:jpn jv:jav ka:kat kk:kaz ko:kor lt:lit ml:mal mr:mar nl:nld "
        "pl:pol pt:por ro:ron ru:rus sv:swe sw:swh ta:tam te:tel th:tha tl:tgl tr:tur uk:ukr ur:urd vi:vie zh:cmn"
    ).split()
)
FEWEST_CHARACTERS, SENTENCES_TO_DRAW_FROM = 10, 20
STAGE_TITLES = {"shift": "+ shift", "scale": "+ scale", "rotate": "+ rotate"}


def read_pairs(path: str | Path) -> dict[str, TextPair]:
    """Aligned sentences of a file with four columns: language, text, other language, its translation.

    Args:
        path: UTF-8, the columns divided by tabs, packed if its name ends in `.gz`; blank lines are skipped.
    Returns: dict name, as "en-de" -> `TextPair`.
    Raises: ValueError for a line without four columns that hold something, or that is not UTF-8, naming it; for a file
        without any.
    """
    pairs = {}
    for number, line in iter_lines(path):
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 4 or not all(columns):
            raise ValueError(
                f"{path}, line {number}: must have four columns, language, text, language, text, divided by tabs; "
                f"received {len(columns)}: {line[:60]!r}."
            )
        language, text, other_language, other_text = columns
        pair = pairs.setdefault(f"{language}-{other_language}", TextPair(language, other_language, [], []))
        pair.texts.append(text)
        pair.other_texts.append(other_text)
    if not pairs:
        raise ValueError(f"{path}: holds no pairs.")
    return pairs


def tatoeba_pairs(folder: str | Path, languages: Sequence[str]) -> dict[str, TextPair]:
    """The pairs of English and each of the languages that LASER's folder has.

    Args:
        folder: see `read_tatoeba`.
        languages: codes, as `de`, `zh-CN` or `deu`; English must be one of them.
    Returns: dict name, as "en-de" -> `TextPair`, English first.
    Raises: ValueError without English, or if the folder has none of the others; see `read_tatoeba`.
    """
    codes = {language: _tatoeba_code(language) for language in languages}
    english = next((language for language, code in codes.items() if code == "eng"), None)
    found = {
        language: code
        for language, code in codes.items()
        if language != english and (Path(folder) / f"tatoeba.{code}-eng.{code}").is_file()
    }
    if english is None or not found:
        raise ValueError(f"{folder}: must have English beside one of the languages {list(languages)}; it has not.")
    pairs = read_tatoeba(folder, list(found.values()))
    return {
        f"{english}-{language}": TextPair(english, language, pairs[code].other_texts, pairs[code].texts)
        for language, code in found.items()
    }


def _tatoeba_code(language):
    return TATOEBA.get(language, TATOEBA.get(language.split("-")[0], language))


def sample_sentences(
    source, language: str, count: int, seed: int = 0, text_files: str = "lines"
) -> list[str]:  # fmt: skip
    """Different sentences of a language, drawn from the first ones of its documents.

    Args:
        source: path, see `iter_documents`, or a list of `Document`.
        language: code, which decides where sentences end.
        count: int, at most so many; drawn from 20 times as many.
        seed: int.
        text_files: see `iter_documents`.
    """
    found = {}
    for document in source if isinstance(source, list) else iter_documents(source, text_files):
        sentences = document.sentences if document.sentences is not None else sentences_of(document.text, language)
        found.update(dict.fromkeys(text for text in sentences if len(text) >= FEWEST_CHARACTERS))
        if len(found) >= SENTENCES_TO_DRAW_FROM * count:
            break
    return random.Random(seed).sample(list(found), min(count, len(found)))


def encode_pairs(encode: Callable, pairs: Mapping[str, TextPair]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The vectors of both sides of each pair, each text encoded once."""
    texts = dict.fromkeys(text for pair in pairs.values() for side in pair[2:] for text in side)
    rows = {text: row for row, text in enumerate(texts)}
    vectors = np.asarray(encode(list(texts)))
    return {name: tuple(vectors[[rows[text] for text in side]] for side in pair[2:]) for name, pair in pairs.items()}


def fit_calibrator(vectors: Mapping[str, np.ndarray], **settings) -> CrossLingualCalibrator:
    """A calibrator onto English, where there is English.

    Args:
        vectors: for each language those of its texts, of which none translates another as far as anybody knows.
        settings: of `CrossLingualCalibrator`, and `fingerprint` of its `fit`.
    """
    fingerprint = settings.pop("fingerprint", None)
    calibrator = CrossLingualCalibrator(pivot="en" if "en" in vectors else None, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Not rotated onto")  # `describe_rotations` tells
        return calibrator.fit(dict(vectors), fingerprint=fingerprint)


def describe_rotations(calibrator: CrossLingualCalibrator) -> str:
    """A line on which languages are rotated, and how far two halves of the data agreed on it."""
    told = [
        f"{language} {'' if report['applied'] else 'not '}rotated ({report['agreement']:.2f}, "
        f"{report['relative_agreement']:.2f} of what is possible)"
        for language, report in calibrator.reports_.items()
    ]
    return f"onto {calibrator.pivot_}, by the agreement of halves of the data: {', '.join(told) or 'no rotation'}"


def stage_results(
    vectors, pairs: Mapping[str, TextPair], calibrator: CrossLingualCalibrator
) -> dict[str, BitextResult]:  # fmt: skip
    """Accuracies of the vectors as they are ("raw") and after each operation of the calibrator and those before it."""
    return {
        stage: evaluate_bitext(pairs, vectors, calibrate=partial(calibrator.transform, upto=stage))
        for stage in calibrator.stages
    }


def tfidf_svd(
    texts: Mapping[str, Iterable[str]], dimension: int, seed: int = 0, max_features: int = 50_000
) -> Callable:  # fmt: skip
    """What needs no training: TF-IDF of runs of 2 to 4 characters, of all languages together, cut to some dimensions.

    Args:
        texts: for each language those that frequencies and directions are taken from.
        dimension: int, fewer where the texts do not have so many.
        seed: int, of the decomposition.
        max_features: int, runs of characters at most, the most frequent ones.
    Returns: callable texts -> float32 (N, dimension).
    """
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, max_features=max_features, dtype=np.float32
    )
    counts = vectorizer.fit_transform([text for own in texts.values() for text in own])
    svd = TruncatedSVD(min(dimension, *(size - 1 for size in counts.shape)), random_state=seed).fit(counts)
    return lambda texts: svd.transform(vectorizer.transform(texts)).astype("float32")


def print_table(columns: Mapping[str, BitextResult], pairs: Mapping[str, TextPair], what: str) -> None:
    """A line for each pair of languages and the mean, two numbers a column: top-1 there and back, in percent.

    Args:
        columns: title -> result, of the same pairs.
        pairs: name -> `TextPair`.
        what: str, stands above the names.
    """
    widths = {title: max(len(title), 9) + 2 for title in columns}
    first = max(len(what), *(len(name) + 8 for name in pairs))
    print(f"{what:{first}}  chance" + "".join(f"{title:>{width}}" for title, width in widths.items()))
    chances = {name: 100 / len(pair.texts) for name, pair in pairs.items()}
    for name, pair in pairs.items():
        numbers = [(result.pairs[name], widths[title]) for title, result in columns.items()]
        print(_line(f"{name} {len(pair.texts):,}", chances[name], numbers, first))
    if len(pairs) > 1:
        numbers = [(result, widths[title]) for title, result in columns.items()]
        print(_line("mean", float(np.mean(list(chances.values()))), numbers, first), flush=True)


def _line(name, chance, numbers, first):
    cells = [
        f"{f'{100 * result.forward:.1f}/{100 * result.backward:.1f}':>{width}}" for result, width in numbers
    ]  # fmt: skip
    return f"{name:{first}}{chance:8.1f}" + "".join(cells)
