"""Rankings against judgements: trec_eval's metrics, and the fusion of rankings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simretro.arguments import check_int, plain, warn
from simretro.evaluation.bootstrap import bootstrap_interval

Run = Mapping[str, Mapping[str, float]]  # {query id: {document id: score}}, a higher score is better
Qrels = Mapping[str, Mapping[str, int]]  # {query id: {document id: grade}}, 1 or more is relevant


@dataclass(frozen=True)
class RetrievalResult:
    """Result of `retrieval_metrics`.

    Attributes:
        means: {metric: mean over the queries}.
        intervals: {metric: (low, high)}, 95 % bootstrap intervals of the means.
        per_query: {metric: {query id: value}}, what `paired_difference` compares.
        num_queries: int, queries counted: those with a relevant document.
        num_unanswered: int, how many of them have no result in the run; their values are 0.
        num_skipped: int, judged queries that have no relevant document and so are not counted.
        run: the run that was measured, for `write_run` and `fuse_runs`.
    """

    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    per_query: dict[str, dict[str, float]]
    num_queries: int
    num_unanswered: int
    num_skipped: int
    run: Run = field(repr=False)


def retrieval_metrics(
    run: Run, qrels: Qrels, metrics: Sequence[str] = ("nDCG@10", "RR@10", "R@100"), seed: int = 0
) -> RetrievalResult:  # fmt: skip
    """Measures a run with `ir-measures`, that is with trec_eval's numbers.

    Every judged query that has a relevant document counts, with 0 if the run does not answer it; queries of the run
    that nobody judged do not. Documents that nobody judged are not relevant.

    Equal scores are put in trec_eval's order first, see `ranked`, for all metrics alike. Given the ties themselves,
    the library would decide them one way for nDCG and the other way for RR@10, which trec_eval does not have.

    Args:
        run: {query id: {document id: score}}.
        qrels: {query id: {document id: grade}}.
        metrics: names as of ir-measures: "nDCG@10", "RR@10" (also "MRR@10"), "R@100", "AP", "P@5", "Success@1", ...
        seed: int, of the bootstrap.
    Returns: a `RetrievalResult`; its dicts have the names as given here.
    Raises:
        ImportError: without `ir-measures`; the error names the extra.
        ValueError: for an unknown metric, a score that is not finite, or no query to count.
    """
    measures = _measures(metrics)
    counted = [query for query, grades in qrels.items() if any(grade > 0 for grade in grades.values())]
    if not counted:
        raise ValueError(f"`qrels` must have a relevant document for some query; none of {len(qrels)} queries has one.")
    _check_ids(run, qrels, counted)
    # Numbered from behind, no two scores are equal any more, whichever way a metric is computed.
    order = {query: ranked(run[query], query) for query in counted if run.get(query)}
    ordered = {
        query: {document: float(len(documents) - place) for place, document in enumerate(documents)}
        for query, documents in order.items()
    }
    judged = {query: plain(qrels[query]) for query in counted}  # the library takes no NumPy numbers
    values = {measure: dict.fromkeys(counted, 0.0) for measure in measures.values()}
    for found in _ir_measures().iter_calc(list(values), judged, ordered):
        values[found.measure][found.query_id] = float(found.value)
    per_query = {name: dict(values[measure]) for name, measure in measures.items()}
    arrays = {name: np.array(list(by_query.values())) for name, by_query in per_query.items()}
    return RetrievalResult(
        means={name: float(array.mean()) for name, array in arrays.items()},
        intervals={name: bootstrap_interval(np.mean, array, seed=seed) for name, array in arrays.items()},
        per_query=per_query, num_queries=len(counted), num_unanswered=len(counted) - len(order),
        num_skipped=len(qrels) - len(counted), run=run,
    )  # fmt: skip


def ranked(scores: Mapping[str, float], query: str = "") -> list[str]:
    """Document ids, best first: by descending score, equal scores by descending id.

    This is trec_eval's order: it compares scores as float32, then the ids byte by byte, the larger one first. It
    depends neither on the order in which documents were found nor on what is judged.

    Args:
        scores: {document id: score}.
        query: id of the query, for the error.
    Raises: ValueError if a score is not finite.
    """
    documents = list(scores)
    with np.errstate(over="ignore"):
        values = np.fromiter(scores.values(), "float64", len(documents)).astype("float32")
    if not np.isfinite(values).all():
        document = documents[int(np.flatnonzero(~np.isfinite(values))[0])]
        raise ValueError(
            f"`run` must have scores that are finite in float32; query {query!r} has {scores[document]} for "
            f"{document!r}."
        )
    keys = [document.encode("utf-8", "surrogatepass") for document in documents]
    order = sorted(range(len(documents)), key=lambda place: (values[place], keys[place]), reverse=True)
    return [documents[place] for place in order]


def fuse_runs(runs: Sequence[Run], k: float = 60, top_k: int | None = None) -> dict[str, dict[str, float]]:
    """Reciprocal rank fusion: a document's score is the sum over the runs of `1 / (k + rank)`.

    Only ranks count, so runs whose scores have nothing in common (cosines and BM25) can be fused. A run that lacks a
    query or a document adds nothing to it.

    Args:
        runs: at least one run; ranks are by `ranked`, from 1.
        k: float >= 0, how little the first ranks stand out.
        top_k: int, documents kept per query; None = all.
    Returns: {query id: {document id: score}}, best first.
    Raises: ValueError for no runs or a value out of range.
    Reference: Cormack, Clarke and Büttcher, 2009, https://doi.org/10.1145/1571941.1572114
    """
    runs = [runs] if isinstance(runs, Mapping) else list(runs)
    if not runs:
        raise ValueError("`runs` must hold at least one run; received none.")
    if not k >= 0:
        raise ValueError(f"`k` must be at least 0; received {k!r}.")
    if top_k is not None:
        check_int("top_k", top_k, 1)
    fused = {}
    for run in runs:
        for query, scores in run.items():
            sums = fused.setdefault(query, {})
            for rank, document in enumerate(ranked(scores, query), 1):
                sums[document] = sums.get(document, 0.0) + 1 / (k + rank)
    return {query: {d: sums[d] for d in ranked(sums, query)[:top_k]} for query, sums in fused.items()}


def _ir_measures():
    try:
        import ir_measures
    except ImportError as error:
        raise ImportError('Retrieval metrics need ir-measures: `pip install "simretro[eval]"`.') from error
    return ir_measures


def _measures(metrics):
    """{name as given: measure of the library}."""
    if isinstance(metrics, str):
        metrics = [metrics]
    library, measures = _ir_measures(), {}
    for name in metrics:
        try:
            measures[name] = library.parse_measure(name)
        except (NameError, ValueError, SyntaxError, TypeError) as error:
            raise ValueError(
                f"`metrics`: {name!r} is unknown ({error}). Write them as nDCG@10, RR@10, R@100, AP, P@5, Success@1."
            ) from error
    if not measures:
        raise ValueError("`metrics` must name at least one metric; received none.")
    return measures


def _check_ids(run, qrels, counted):
    """Warns where the run and the judgements seem to speak of different things."""
    if not any(run.get(query) for query in counted):
        raise ValueError(
            f"`run` must answer at least one judged query; its queries are {_some(run)}, the judged ones "
            f"{_some(counted)}. Are the ids written alike?"
        )
    if not any(document in qrels[query] for query in counted for document in run.get(query, ())):
        found = next(iter(next(run[query] for query in counted if run.get(query))))
        warn(
            f"`run`: none of its documents is judged. Are the ids written alike? The run has {found!r}, the judgements "
            f"have {next(iter(qrels[counted[0]]))!r}."
        )


def _some(ids):
    ids = list(ids)
    return ", ".join(map(repr, ids[:3])) + (", ..." if len(ids) > 3 else "") if ids else "none"
