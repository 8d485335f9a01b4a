import math
import sys

import numpy as np
import pytest

from simretro.evaluation import (
    RetrievalCollection,
    bm25_run,
    evaluate_retrieval,
    fuse_runs,
    search,
    search_collection,
    search_encoded,
)
from simretro.retrieval import EncodedCorpus, encode_corpus

DOCUMENTS = {"a": "slip flow of a wing", "b": "flow flow", "empty": "", "c": "heat", "same as b": "flow flow"}
QUERIES = {"q1": "slip flow", "q2": "heat transfer", "q3": "unknown words"}
COLLECTION = RetrievalCollection(DOCUMENTS, QUERIES, {"q1": {"a": 1}, "q2": {"c": 1}, "q3": {"b": 1}})
WORDS = ["slip", "flow", "wing", "heat"]


def encode(texts):
    return np.array([[text.split().count(word) for word in WORDS] for text in texts], "float32")


def test_searches_by_cosine():
    run = search_collection(encode, COLLECTION)
    assert list(run) == list(QUERIES)
    assert run["q1"] == pytest.approx(
        {"a": 2 / 6**0.5, "b": 1 / 2**0.5, "same as b": 1 / 2**0.5, "empty": 0, "c": 0}, abs=1e-6
    )
    assert list(run["q1"])[1:3] == ["b", "same as b"]  # equal cosines: as in the collection
    assert next(iter(run["q2"].items())) == ("c", pytest.approx(1))


def test_blocks_and_top_k_change_nothing_else():
    whole, calls = search_collection(encode, COLLECTION), []

    def counting(texts):
        calls.append(len(texts))
        return encode(texts)

    run = search_collection(counting, COLLECTION, top_k=2, block_size=2)
    assert calls == [2, 2, 1, 3]
    assert run == {query: dict(list(found.items())[:2]) for query, found in whole.items()}


def test_queries_may_have_an_encoder_of_their_own():
    run = search_collection(encode, COLLECTION, 1, encode_queries=lambda texts: encode(["heat"] * len(texts)))
    assert [list(found) for found in run.values()] == [["c"]] * 3


def test_searches_by_inner_product_where_the_model_was_trained_so():
    run = search_collection(encode, COLLECTION, similarity="dot", block_size=2)
    assert run["q1"] == {"a": 2, "b": 2, "same as b": 2, "empty": 0, "c": 0}
    assert list(run["q1"])[:3] == ["a", "b", "same as b"]  # equal scores: as in the collection
    result = evaluate_retrieval(encode, COLLECTION, ["RR@10"], similarity="dot")
    assert result.run == run


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_an_encoded_corpus_gives_the_same_run(similarity, tmp_path):
    encode_corpus(encode, COLLECTION.documents, tmp_path, similarity=similarity)
    run = search_encoded(encode, COLLECTION.queries, EncodedCorpus.load(tmp_path), top_k=3)
    assert run == search_collection(encode, COLLECTION, top_k=3, similarity=similarity)


def test_evaluates():
    result = evaluate_retrieval(encode, COLLECTION, ["nDCG@10", "RR@10"])
    # q3 has no vector: all cosines are 0, and by descending id "b" is fourth of five.
    assert result.per_query["RR@10"] == {"q1": 1, "q2": 1, "q3": 1 / 4}
    assert result.means["nDCG@10"] == pytest.approx((2 + 1 / math.log2(5)) / 3)
    assert result.intervals["RR@10"][0] < result.means["RR@10"] < result.intervals["RR@10"][1]
    assert list(result.run) == list(QUERIES)


def test_evaluating_asks_an_encoder_of_the_queries_own_and_so_far_as_told():
    result = evaluate_retrieval(
        encode, COLLECTION, ["R@100"], encode_queries=lambda texts: encode(["heat"] * len(texts)), top_k=1
    )
    assert [list(found) for found in result.run.values()] == [["c"]] * 3


@pytest.mark.parametrize("function, options, message", [
    (encode, {"top_k": 0}, "`top_k`.*0"), (encode, {"top_k": True}, "`top_k`"),
    (encode, {"block_size": 0}, "`block_size`"), (encode, {"similarity": "l2"}, "`similarity`.*'l2'"),
    (lambda texts: encode(texts)[:-1], {}, r"`encode` must return a row per text; received shape \(4, 4\) for 5"),
    (lambda texts: encode(texts)[0], {}, r"`encode` must return a row per text; received shape \(4,\)"),
    (lambda texts: encode(texts) * np.nan, {}, "finite"),
])  # fmt: skip
def test_search_refuses(function, options, message):
    with pytest.raises(ValueError, match=message):
        search_collection(function, COLLECTION, **options)


def test_bm25_by_hand():
    run = bm25_run(COLLECTION, k1=0.9, b=0.4)
    mean_length = (5 + 2 + 0 + 1 + 2) / 5

    def weight(documents_with, count, length):
        rarity = math.log(1 + (5 - documents_with + 0.5) / (documents_with + 0.5))
        return rarity * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / mean_length))

    assert run["q1"] == pytest.approx(
        {"a": weight(1, 1, 5) + weight(3, 1, 5), "b": weight(3, 2, 2), "same as b": weight(3, 2, 2)}, rel=1e-5
    )
    assert run["q2"] == pytest.approx({"c": weight(1, 1, 1)}, rel=1e-5)
    assert run["q3"] == {}  # no word in common: unanswered
    assert list(run["q1"]) == ["a", "b", "same as b"]


def test_bm25_keeps_the_best_and_of_equals_the_first():
    documents = {f"d{i}": "flow" if i % 2 else "flow flow" for i in range(50)}
    run = bm25_run(RetrievalCollection(documents, {"q": "flow"}, {"q": {"d0": 1}}), top_k=30, b=0)
    assert list(run["q"]) == [f"d{i}" for i in range(0, 50, 2)] + ["d1", "d3", "d5", "d7", "d9"]


def test_bm25_of_other_scripts_and_other_words():
    documents = {"1": "微信和支付宝哪个好", "2": "怎么开未婚证明", "3": "Wie heißt ÜBER-Flug 747?"}
    collection = RetrievalCollection(documents, {"zh": "支付宝", "de": "über 747"}, {"zh": {"1": 1}})
    assert {query: list(found) for query, found in bm25_run(collection).items()} == {"zh": ["1"], "de": ["3"]}
    pairs = bm25_run(collection, tokenize=lambda text: [text[i : i + 2] for i in range(len(text) - 1)])
    assert list(pairs["zh"]) == ["1"] and not pairs["de"].get("1")


@pytest.mark.parametrize("text, words", [
    ("हिन्दी की किताबें, १२ रुपये", ["हिन्दी", "की", "किताबें", "१२", "रुपये"]),
    ("বাংলা ভাষার বই", ["বাংলা", "ভাষার", "বই"]), ("தமிழ் மொழி", ["தமிழ்", "மொழி"]), ("తెలుగు భాష", ["తెలుగు", "భాష"]),
    ("ภาษาไทย ปี ๒๕๖๗ ok", ["ภ", "า", "ษ", "า", "ไ", "ท", "ย", "ปี", "๒๕๖๗", "ok"]), ("ที่นี้", ["ที่", "นี้"]),
    ("ພາສາລາວ", ["ພ", "າ", "ສ", "າ", "ລ", "າ", "ວ"]), ("ខ្មែរ", ["ខ្", "មែ", "រ"]),
    ("မြန်မာ", ["မြ", "န်", "မာ"]), ("Cafe\u0301 A\u030aNGSTRO\u0308M", ["café", "ångström"]),
    ("x\u0331y q\u0331", ["x\u0331y", "q\u0331"]),  # a mark that no letter is composed with
    ("か\u3099く", ["が", "く"]), ("\u1112\u1161\u11ab글", ["한글"]), ("葛\U000e0100城", ["葛", "城"]),
    ("don't_do", ["don", "t", "do"]), ("größer😀शब्द 👍🏽", ["größer", "शब्द"]),
    ("𠀀𠀁 𑄌\U00011127𑄟 größer", ["𠀀", "𠀁", "𑄌\U00011127𑄟", "größer"]),  # beyond 16 bits, ideographs and Chakma
    ("র\u200d্যাম র্যাম", ["র্যাম"] * 2), ("क्\u200dष क्ष", ["क्ष"] * 2), ("می\u200cخواهم", ["می", "خواهم"]),
    ("\u0301 \u0301a", ["a"]), ("", []),
])  # fmt: skip
def test_words_keep_their_marks(text, words):
    assert search._words(text) == words
    assert search._words(f"{text}\N{SNOWMAN}") == words  # behind what is not ASCII


def test_bm25_finds_words_with_marks():
    documents = {"hi": "किताब खो गई", "other": "कीमत", "th": "ภาษาไทย", "fr": "un café noir"}
    queries = {"hi": "किताब", "th": "ไทย", "fr": "CAFE\u0301"}
    run = bm25_run(RetrievalCollection(documents, queries, {"hi": {"hi": 1}}))
    assert {query: list(found) for query, found in run.items()} == {query: [query] for query in queries}


def test_bm25_of_documents_without_words():
    assert bm25_run(RetrievalCollection({"d": "", "e": "..."}, {"q": "word"}, {"q": {"d": 1}})) == {"q": {}}


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r'pip install "simretro\[eval\]"'):
        bm25_run(COLLECTION)


def test_runs_of_both_kinds_can_be_fused():
    fused = fuse_runs([search_collection(encode, COLLECTION), bm25_run(COLLECTION)])
    assert next(iter(fused["q1"])) == "a" and set(fused["q1"]) == set(DOCUMENTS)
