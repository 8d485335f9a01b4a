import math
import subprocess
import sys

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.evaluation import fuse_runs, ranked, retrieval_metrics

# 2.00000000001 is 2 in float32, in which trec_eval compares.
TIED_SCORES = [2.0, 2.00000000001, 1.0, 0.5, -1.0]


def tied_runs(seed, num_queries=40):
    """Random run and judgements; ties, grades of 0 to 3, queries that are unanswered or have nothing relevant."""
    rng = np.random.default_rng(seed)
    documents = [f"d{i}" for i in range(30)] + ["é", "Z", "z", "10", "9"]
    run, qrels = {}, {}
    for query in map(str, range(num_queries)):
        found = rng.choice(documents, rng.integers(0, 30) * (rng.random() < 0.8), replace=False).tolist()
        if found or rng.random() < 0.5:  # no entry, or an empty one
            run[query] = {document: float(rng.choice(TIED_SCORES)) for document in found}
        judged = rng.choice(documents, rng.integers(1, 12), replace=False).tolist()
        qrels[query] = {document: int(rng.integers(0, 4)) for document in judged}
    return run, qrels


def test_hand_computed():
    run = {"q": {"x": 4.0, "a": 3.0, "y": 2.0, "b": 1.0}}
    result = retrieval_metrics(run, {"q": {"a": 2, "b": 1, "c": 1, "n": 0}})
    gained = 2 / math.log2(3) + 1 / math.log2(5)  # ranks 2 and 4
    best = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert result.means == {"nDCG@10": pytest.approx(gained / best), "RR@10": 0.5, "R@100": pytest.approx(2 / 3)}
    assert result.per_query["RR@10"] == {"q": 0.5} and result.intervals["RR@10"] == (0.5, 0.5)
    assert (result.num_queries, result.num_unanswered, result.num_skipped) == (1, 0, 0)


def test_cut_offs():
    run = {"q": {f"d{i:02}": -float(i) for i in range(20)}}
    qrels = {"q": {"d04": 1, "d10": 1}}
    result = retrieval_metrics(run, qrels, ["R@10", "R@11", "RR@4", "MRR@5", "P@5", "Success@4"])
    assert result.means == {"R@10": 0.5, "R@11": 1, "RR@4": 0, "MRR@5": 0.2, "P@5": 0.2, "Success@4": 0}


def test_unanswered_queries_count_zero_and_those_without_answer_do_not_count():
    run = {"hit": {"a": 1.0}, "empty": {}, "nobody judged": {"a": 1.0}, "nothing relevant": {"a": 1.0}}
    qrels = {"hit": {"a": 1}, "empty": {"a": 1}, "missing": {"a": 1}, "nothing relevant": {"a": 0, "b": -1}}
    result = retrieval_metrics(run, qrels, ["nDCG@10", "RR@10"])
    expected = {"hit": 1, "empty": 0, "missing": 0}
    assert result.per_query == {"nDCG@10": expected, "RR@10": expected}
    assert result.means["nDCG@10"] == pytest.approx(1 / 3)
    assert (result.num_queries, result.num_unanswered, result.num_skipped) == (3, 2, 1)
    low, high = result.intervals["nDCG@10"]
    assert low == 0 and high == 1


@pytest.mark.parametrize("seed", range(5))
def test_equals_trec_eval_with_ties(seed):
    run, qrels = tied_runs(seed)
    names = ["nDCG@10", "nDCG", "AP", "RR", "R@5", "R@100", "P@3"]
    result = retrieval_metrics(run, qrels, names)
    counted = {query for query, grades in qrels.items() if max(grades.values()) > 0}
    assert 0 < result.num_unanswered < result.num_queries == len(counted) == len(qrels) - result.num_skipped
    measures = {ir_measures.parse_measure(name): name for name in names}
    for found in ir_measures.iter_calc(list(measures), qrels, run):
        if found.query_id in counted:
            value = result.per_query[measures[found.measure]][found.query_id]
            assert value == pytest.approx(found.value, abs=1e-9), found
    for name in names:
        assert result.means[name] == pytest.approx(np.mean(list(result.per_query[name].values())))


@pytest.mark.parametrize("seed", range(3))
def test_reciprocal_rank_with_a_cut_off_has_the_same_tie_rule(seed):
    run, qrels = tied_runs(seed)
    result = retrieval_metrics(run, qrels, ["RR@5", "RR"])
    for query, value in result.per_query["RR"].items():
        assert result.per_query["RR@5"][query] == (value if value >= 1 / 5 else 0)
    raw = ir_measures.calc_aggregate([ir_measures.RR @ 30, ir_measures.RR], qrels, run)
    assert raw[ir_measures.RR @ 30] != raw[ir_measures.RR]  # what the library does with the ties themselves


def test_tie_rule():
    assert ranked({"a": 1.0, "b": 2.0, "c": 1.0}) == ["b", "c", "a"]
    assert ranked({"10": 1.0, "9": 1.0, "d": 1 + 1e-9}) == ["d", "9", "10"]
    assert ranked({"z": 1.0, "é": 1.0}) == ["é", "z"]  # by bytes
    assert ranked({}) == []


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=4), st.sampled_from(TIED_SCORES), max_size=12), st.randoms())
def test_order_does_not_depend_on_the_order_of_the_dict(scores, random):
    items = list(scores.items())
    random.shuffle(items)
    order = ranked(dict(items))
    assert order == ranked(scores) and sorted(order) == sorted(scores)
    values = [np.float32(scores[document]) for document in order]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("run, qrels, metrics, message", [
    ({"q": {"a": 1.0}}, {"q": {"a": 1}}, ["nDGC@10"], r"`metrics`: 'nDGC@10' is unknown.*nDCG@10"),
    ({"q": {"a": 1.0}}, {"q": {"a": 1}}, [], "`metrics`.*none"),
    ({"q": {"a": 1.0}}, {"q": {"a": 0}}, ["AP"], "`qrels`.*none of 1"),
    ({"q": {"a": math.nan}}, {"q": {"a": 1}}, ["AP"], "finite.*'q' has nan for 'a'"),
    ({"q": {"a": 1e300}}, {"q": {"a": 1}}, ["AP"], "finite in float32"),
    ({"1": {"a": 1.0}}, {"001": {"a": 1}}, ["AP"], r"`run` must answer.*'1'.*'001'.*alike"),
    ({}, {"q": {"a": 1}}, ["AP"], "`run` must answer.*none"),
])  # fmt: skip
def test_refuses(run, qrels, metrics, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(run, qrels, metrics)


def test_warns_where_no_document_is_judged():
    with pytest.warns(UserWarning, match="'CACM-46'.*'CACM-0046'") as caught:
        result = retrieval_metrics({"q": {"CACM-46": 1.0}}, {"q": {"CACM-0046": 1}}, ["RR@10"])
    assert result.means == {"RR@10": 0} and caught[0].filename == __file__


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(ImportError, match=r'pip install "simretro\[eval\]"'):
        retrieval_metrics({"q": {"a": 1.0}}, {"q": {"a": 1}})


def test_optional_packages_are_not_imported_before_use():
    code = "import sys, simretro.evaluation; print([m for m in ('ir_measures', 'bm25s', 'keras') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_fusion():
    cosines = {"q": {"a": 0.9, "b": 0.8, "c": 0.7}, "only here": {"a": 0.1}}
    words = {"q": {"c": 31.0, "a": 12.0, "d": 3.0}}
    fused = fuse_runs([cosines, words], k=60)
    assert fused["only here"] == {"a": 1 / 61}
    assert fused["q"] == pytest.approx({"a": 1 / 61 + 1 / 62, "c": 1 / 63 + 1 / 61, "b": 1 / 62, "d": 1 / 63})
    assert list(fused["q"]) == ["a", "c", "b", "d"]
    assert list(fuse_runs([cosines, words], top_k=2)["q"]) == ["a", "c"]
    assert list(fuse_runs([words])["q"]) == list(words["q"])  # one run keeps its order


@pytest.mark.parametrize("runs, options, message", [
    ([], {}, "`runs`"), ([{}], {"k": -1}, "`k`.*-1"), ([{}], {"top_k": 0}, "`top_k`.*0"),
])  # fmt: skip
def test_fusion_refuses(runs, options, message):
    with pytest.raises(ValueError, match=message):
        fuse_runs(runs, **options)
