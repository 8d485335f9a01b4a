"""Hard negatives: passages that a search finds for a query though they do not answer it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simretro.arguments import check_int, warn
from simretro.data.documents import Document
from simretro.data.training_queries import TrainingQuery, queries_of_collection
from simretro.retrieval.encoded_corpus import EncodedCorpus
from simretro.retrieval.encoders import encoders_of, vectors_of

_QUERIES_AT_ONCE = 1024
_TEXTS_AT_ONCE = 16_384
SAMPLINGS = ("top", "random")


@dataclass(frozen=True)
class _Settings:
    num_negatives: int
    rank_range: tuple[int, int]
    absolute_margin: float | None
    relative_margin: float | None
    sampling: str
    seed: int
    relevant_grade: int

    def check(self):
        check_int("num_negatives", self.num_negatives, 1)
        check_int("seed", self.seed, 0)
        try:
            low, high = self.rank_range
            check_int("rank_range", low, 0)
            check_int("rank_range", high, low + 1)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`rank_range` must be two ints, 0 <= low < high; received {self.rank_range!r}."
            ) from error
        for name in ("absolute_margin", "relative_margin"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"`{name}` must be None or a number of at least 0; received {value!r}.")
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"`sampling` must be one of {SAMPLINGS}; received {self.sampling!r}.")

    @property
    def has_margin(self):
        return self.absolute_margin is not None or self.relative_margin is not None

    def limit(self, positive_score):
        """The largest score that a negative may have."""
        limits = [positive_score]
        if self.absolute_margin is not None:
            limits.append(positive_score - self.absolute_margin)
        if self.relative_margin is not None:
            # Not `positive_score * (1 - margin)`: below 0 that would let closer ones pass.
            limits.append(positive_score - abs(positive_score) * self.relative_margin)
        return min(limits)


def mine_hard_negatives(
    model,
    collection,
    num_negatives: int = 8,
    *,
    rank_range: tuple[int, int] = (10, 100),
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    teacher: Callable | None = None,
    sampling: str = "random",
    seed: int = 0,
    relevant_grade: int = 1,
    similarity: str | None = None,
) -> list[TrainingQuery]:
    """Training queries with hard negatives: documents that stand high in a search and do not answer the query.

    Never a negative is a document that a query's judgements name with a grade of 1 or more, one with the text of such
    a document or of the query itself (up to case and white space), be it judged for this query or for another one with
    the same text; nor an empty document, nor a text that the query has as a negative already.

    What nobody judged may be an answer all the same, the more so the higher it stands: so the first places are left out
    unless `rank_range` says otherwise, and margins leave out what comes close to the positives. With several positives
    the one with the lowest score decides, so that a negative keeps its distance from whichever is drawn in training.

    Args:
        model: what searches: `BiEncoder`, another model with `encode`, a function from texts to vectors; a pair
            (vectors of `collection.queries`, vectors of `collection.documents`), in their order; or a run {query id:
            {document id: score}}, of `bm25_run` or `read_run` for instance.
        collection: `simretro.evaluation.RetrievalCollection`, or what else has its `documents`, `queries`, `qrels`.
        num_negatives: int >= 1, negatives per query.
        rank_range: (low, high), places that count, from 0, `high` excluded; documents that must not be negatives have
            no place.
        absolute_margin: float >= 0; a negative's score is at least so much below that of the positives.
        relative_margin: float >= 0, the same as a share of the positive's score: 0.05 leaves out what has more than
            95 % of it.
        teacher: called with a list of pairs (query, passage), returns numbers, a cross-encoder's `predict` for
            instance. The margins are then those of its scores, and a passage with the score of a positive or a higher
            one is no negative, also without margins; the queries get its scores, for distillation.
        sampling: "random", each query by itself, or "top", the highest places.
        seed: int >= 0, of the sampling.
        relevant_grade: int; documents of this grade or a higher one are positives.
        similarity: "cosine" or "dot"; None = the model's own, or "cosine".
    Returns: list of `TrainingQuery`, in the order of `collection.qrels`. Where fewer negatives are found than asked
        for, one warning tells of how many queries.
    Raises: ValueError for an argument out of range, for a query without a positive, or for margins with a run, which
        lacks the scores of positives that it did not find.
    Reference: Xiong et al., 2020, https://arxiv.org/abs/2007.00808; margins: Moreira et al., 2024,
        https://arxiv.org/abs/2407.15831
    """
    settings = _Settings(
        num_negatives, rank_range, absolute_margin, relative_margin, sampling, seed, relevant_grade
    )  # fmt: skip
    settings.check()
    if isinstance(model, Mapping) and settings.has_margin and teacher is None:
        raise ValueError(
            "`absolute_margin` and `relative_margin` need the positives' scores, and a run has only those that it "
            "found. Give a model, vectors, or a `teacher`."
        )
    # Before anything is encoded: unknown ids and queries without a positive.
    queries_of_collection(
        collection.documents, collection.queries, collection.qrels, relevant_grade=relevant_grade
    )  # fmt: skip
    texts = _Texts(collection, settings)
    found, teacher_scores = {}, {}
    by_margin = settings.has_margin and teacher is None  # else the teacher's scores decide
    for numbers, candidates, limits in _searched(model, texts, settings, similarity, by_margin):
        picker = _Picker(texts, settings, numbers, candidates, limits)
        found |= picker.pick() if teacher is None else picker.pick_with(teacher, teacher_scores)
    fewer = [len(negatives) for negatives in found.values() if len(negatives) < num_negatives]
    if fewer:
        warn(
            f"{len(fewer)} of {len(found)} queries have fewer than `num_negatives`={num_negatives} negatives, the "
            f"fewest {min(fewer)}: within `rank_range`={tuple(rank_range)} and the margins there are no more. Widen "
            "them, or give a larger collection."
        )
    return queries_of_collection(
        collection.documents,
        collection.queries,
        collection.qrels,
        found,
        relevant_grade,
        None if teacher is None else teacher_scores,
    )


class _Texts:
    """The different texts among the documents, and which of them each query must not have as negatives."""

    def __init__(self, collection, settings):
        self.documents, self.grade = collection.documents, settings.relevant_grade
        self.query_ids = list(collection.qrels)
        self.queries = [collection.queries[query] for query in self.query_ids]
        self.qrels = collection.qrels
        self.all_query_ids = list(collection.queries)
        self.number_of, self.texts, self.ids, self.places, by_key = {}, [], [], [], {}
        for place, (key, document) in enumerate(collection.documents.items()):
            text = document.full_text if isinstance(document, Document) else document.strip()
            if not text:
                continue
            number = by_key.setdefault(_key(text), len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
                self.ids.append(key)
                self.places.append(place)
            self.number_of[key] = number
        self._by_key, self._answers = by_key, {}
        for query, text in zip(self.query_ids, self.queries, strict=True):
            answers = self._answers.setdefault(_key(text), {by_key[_key(text)]} if _key(text) in by_key else set())
            least = min(1, self.grade)
            answers |= {
                self.number_of[d] for d, grade in self.qrels[query].items() if grade >= least and d in self.number_of
            }

    def excluded(self, number):
        """Texts that query `number` must not have as negatives, a set of numbers."""
        return self._answers[_key(self.queries[number])]

    def positives(self, number):
        """Ids of the positives of a query that are not empty, first those of each text."""
        grades = self.qrels[self.query_ids[number]]
        return [document for document, grade in grades.items() if grade >= self.grade and document in self.number_of]


def _searched(model, texts, settings, similarity, by_margin) -> Iterator:
    """Yields for blocks of queries: their numbers, for each its candidates in order, and the limits of their scores.

    Candidates are (text numbers, scores), those that must not be negatives left out; a limit is None where there is
    none.
    """
    if isinstance(model, Mapping):
        numbers = range(len(texts.queries))
        yield list(numbers), [_of_run(model, texts, number) for number in numbers], [None] * len(numbers)
        return
    queries, vectors, similarity = _vectors(model, texts, similarity)
    corpus = EncodedCorpus.of_vectors(vectors, texts.ids, similarity)
    for start in range(0, len(texts.queries), _QUERIES_AT_ONCE):
        numbers = list(range(start, min(start + _QUERIES_AT_ONCE, len(texts.queries))))
        deepest = settings.rank_range[1] + max(len(texts.excluded(number)) for number in numbers)
        scores, rows = corpus.search(queries[numbers], deepest)
        candidates, limits = [], []
        for number, row_scores, row in zip(numbers, scores, rows, strict=True):
            kept = ~np.isin(row, list(texts.excluded(number)))
            candidates.append((row[kept], row_scores[kept]))
            limits.append(_limit(queries[number], vectors, texts, number, similarity, settings) if by_margin else None)
        yield numbers, candidates, limits


def _limit(query, vectors, texts, number, similarity, settings):
    """The largest score that a negative of this query may have, by the lowest of its positives; None = any."""
    positives = [texts.number_of[document] for document in texts.positives(number)]
    if not positives:
        return None
    query, own = query.astype("float64"), vectors[positives].astype("float64")
    scores = own @ query
    if similarity == "cosine":
        lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(query)
        scores = scores / np.where(lengths > 0, lengths, 1)
    return settings.limit(scores.min())


def _vectors(model, texts, similarity):
    """Vectors of the queries and of the different texts."""
    if not isinstance(model, tuple):
        encoders = encoders_of(model, similarity)
        return _encoded(encoders.queries, texts.queries), _encoded(encoders.passages, texts.texts), encoders.similarity
    if len(model) != 2:
        raise ValueError(f"`model` must be a pair (query vectors, document vectors); received {len(model)} parts.")
    queries, vectors = map(np.asarray, model)
    expected = len(texts.all_query_ids), len(texts.documents)
    if queries.ndim != 2 or vectors.ndim != 2 or (len(queries), len(vectors)) != expected:
        raise ValueError(
            f"`model` must have a vector for each of {expected[0]} queries and {expected[1]} documents; received "
            f"shapes {queries.shape} and {vectors.shape}."
        )
    place_of = {query: place for place, query in enumerate(texts.all_query_ids)}
    encoders = encoders_of(lambda _: None, similarity)  # for the check of `similarity`
    return queries[[place_of[query] for query in texts.query_ids]], vectors[texts.places], encoders.similarity


def _encoded(encode, texts):
    starts = range(0, len(texts), _TEXTS_AT_ONCE)
    return np.concatenate([vectors_of(encode, texts[start : start + _TEXTS_AT_ONCE], "model") for start in starts])


def _of_run(run, texts, number):
    """Candidates of a run: its documents by descending score, each text once."""
    scores = run.get(texts.query_ids[number], {})
    unknown = [document for document in scores if document not in texts.documents]
    if unknown:
        raise ValueError(
            f"`model`: the run names {len(unknown)} documents for the query {texts.query_ids[number]!r} that are not "
            f"in `collection`, {unknown[0]!r} for instance. Is it a run of this collection?"
        )
    excluded, found = texts.excluded(number), {}
    for document in sorted(scores, key=lambda document: -scores[document]):
        text = texts.number_of.get(document)
        if text is not None and text not in excluded:
            found.setdefault(text, scores[document])
    return np.array(list(found), "int64"), np.array(list(found.values()), "float64")


class _Picker:
    """Chooses the negatives of a block of queries among their candidates."""

    def __init__(self, texts, settings, numbers, candidates, limits):
        self.texts, self.settings, self.numbers = texts, settings, numbers
        low, high = settings.rank_range
        self.orders = []
        for number, (rows, scores), limit in zip(numbers, candidates, limits, strict=True):
            rows, scores = rows[low:high], scores[low:high]
            if limit is not None:
                rows = rows[scores <= limit]
            if settings.sampling == "random":
                rows = np.random.default_rng([settings.seed, number]).permutation(rows)
            self.orders.append(rows.tolist())

    def pick(self):
        """{query id: document ids}."""
        return self._named([order[: self.settings.num_negatives] for order in self.orders])

    def pick_with(self, teacher, teacher_scores):
        """As `pick`, of those whose score by the teacher is low enough; adds its scores to `teacher_scores`."""
        texts, wanted = self.texts, self.settings.num_negatives
        own = [(i, texts.number_of[d], d) for i, number in enumerate(self.numbers) for d in texts.positives(number)]
        lowest = [np.inf] * len(self.numbers)
        for (i, _, document), score in zip(own, self._scores(teacher, own), strict=True):
            teacher_scores.setdefault(texts.query_ids[self.numbers[i]], {})[document] = score
            lowest[i] = min(lowest[i], score)
        picked = [[] for _ in self.numbers]
        limits = [np.inf if score == np.inf else self.settings.limit(score) for score in lowest]
        # A teacher is slow: it is asked for as many passages as are still missing, then for more where some fell out.
        while pairs := [
            (i, text, texts.ids[text])
            for i, order in enumerate(self.orders)
            for text in order[: wanted - len(picked[i])]
        ]:
            for (i, text, document), score in zip(pairs, self._scores(teacher, pairs), strict=True):
                self.orders[i].remove(text)
                if score < lowest[i] and score <= limits[i]:
                    picked[i].append(text)
                    teacher_scores.setdefault(texts.query_ids[self.numbers[i]], {})[document] = score
        return self._named(picked)

    def _scores(self, teacher, pairs):
        asked = [(self.texts.queries[self.numbers[i]], self.texts.texts[text]) for i, text, _ in pairs]
        scores = np.asarray(teacher(asked), "float64")
        if scores.shape != (len(asked),) or not np.isfinite(scores).all():
            raise ValueError(
                f"`teacher` must return a finite number for each pair; received shape {scores.shape} for {len(asked)} "
                f"pairs, {np.count_nonzero(~np.isfinite(scores))} of them not finite."
            )
        return scores.tolist()

    def _named(self, picked):
        return {
            self.texts.query_ids[number]: [self.texts.ids[text] for text in chosen]
            for number, chosen in zip(self.numbers, picked, strict=True)
        }


def _key(text):
    return " ".join(text.split()).casefold()
