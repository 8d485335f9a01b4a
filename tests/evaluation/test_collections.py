import json

import numpy as np
import pytest

from simretro.evaluation import RetrievalCollection, read_beir, write_beir
from simretro.retrieval import encode_corpus

CORPUS = [
    {"_id": "d1", "title": "Slip flow", "text": "slip  flow . the boundary layer"},
    {"_id": "d2", "title": "Wings", "text": "A wing in a slipstream."},
    {"_id": "d3", "text": ""},
    {"_id": 4, "title": None, "text": "no title\u2028here"},
]
QUERIES = [{"_id": "q1", "text": "what is slip flow"}, {"_id": 2, "text": "wings"}, {"_id": "q3", "text": "unjudged"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td3\t1\n2\td2\t2\n2\t4\t0\n"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    (tmp_path / "qrels" / "dev.tsv").write_text("q3\td1\t1\n")
    return tmp_path


def write(path, records):
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def test_reads_a_folder(folder):
    collection = read_beir(folder)
    assert collection.documents == {
        "d1": "slip  flow . the boundary layer",  # begins with its title
        "d2": "Wings A wing in a slipstream.",
        "d3": "",  # judged relevant, so it stays
        "4": "no title\u2028here",
    }
    assert collection.queries == {"q1": "what is slip flow", "2": "wings"}
    assert collection.qrels == {"q1": {"d1": 1, "d3": 1}, "2": {"d2": 2, "4": 0}}
    assert repr(collection) == "RetrievalCollection(4 documents, 2 queries, 4 judged pairs)"
    assert read_beir(str(folder), "dev").queries == {"q3": "unjudged"}


def test_a_written_folder_is_read_again(folder, tmp_path):
    splits = {name: read_beir(folder, name) for name in ("test", "dev")}
    write_beir(tmp_path / "copy", splits)
    for name, collection in splits.items():
        assert read_beir(tmp_path / "copy", name) == collection
    first = json.loads((tmp_path / "copy" / "corpus.jsonl").read_text("utf-8").split("\n")[0])
    assert first == {"_id": "d1", "title": "", "text": "slip  flow . the boundary layer"}
    assert (tmp_path / "copy" / "qrels" / "dev.tsv").read_text() == "query-id\tcorpus-id\tscore\nq3\td1\t1\n"
    with pytest.raises(FileExistsError, match="copy exists"):
        write_beir(tmp_path / "copy", splits)


@pytest.mark.parametrize(
    "splits, message",
    [
        ({}, "at least one split"),
        ({"../test": ({"d": "a"}, {"q": "b"}, {"q": {"d": 1}})}, "names of files.*'../test'"),
        ({"test": ({"d 1": "a", "d\t2": "a"}, {"q": "b"}, {"q": {"d 1": 1}})}, r"`splits\['test'\]`: the id 'd\\t2'"),
        ({"test": ({"d": "a"}, {" q": "b"}, {" q": {"d": 1}})}, "the id ' q' cannot"),
        (
            {"a": ({"d": "a"}, {"q": "b"}, {"q": {"d": 1}}), "b": ({"d": "c"}, {"q": "b"}, {"q": {"d": 1}})},
            r"`splits\['b'\]`: the id 'd' has another text",
        ),
    ],
)
def test_what_cannot_be_written_leaves_no_folder(splits, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_beir(tmp_path / "new", {name: RetrievalCollection(*parts) for name, parts in splits.items()})
    assert not list(tmp_path.iterdir())


def test_what_is_measured_is_what_is_encoded(folder, tmp_path):
    titles = [("Win", "Winter"), ("苹果", "苹果是水果"), ("A  b", "a\nb c"), ("", " text "), ("Title", "")]
    records = [{"_id": f"t{n}", "title": title, "text": text} for n, (title, text) in enumerate(titles)]
    write(folder / "corpus.jsonl", [*CORPUS, *records])
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return np.ones((len(texts), 2))

    encode_corpus(encode, folder, tmp_path / "vectors", block_size=1)
    assert encoded == list(read_beir(folder).documents.values())
    assert "苹果是水果" in encoded and "Win Winter" in encoded


@pytest.mark.parametrize("name, records, message", [
    ("corpus", ["{", CORPUS[0]], "line 1: not a JSON object"), ("corpus", ["[" * 100000], "line 1: not a JSON object"),
    ("corpus", [CORPUS[0], "[1]"], "line 2: must be a JSON object"),
    ("corpus", [{"id": "d1", "text": "x"}], "line 1: `_id` must be a str that is not empty; received None"),
    ("corpus", [{"_id": " ", "text": "x"}], "line 1: `_id` must"),
    ("corpus", [{"_id": True, "text": "x"}], "line 1: `_id` must"),
    ("corpus", [{"_id": "d1", "title": "no text"}], "line 1: `text` must be a str; received None"),
    ("corpus", [{"_id": "d1", "title": ["x"], "text": "x"}], "line 1: `title` must be a str"),
    ("corpus", [CORPUS[0], CORPUS[1], "", CORPUS[0]], "line 4: the id 'd1' stands in line 1 too"),
    ("corpus", [CORPUS[3], {"_id": "4", "text": "x"}], "line 2: the id '4' stands in line 1 too"),
    ("corpus", [""], "holds no record"),
    ("queries", [QUERIES[0], {"_id": "2", "text": "  "}], "line 2: `text` of a query must not be empty"),
])  # fmt: skip
def test_names_file_and_line(folder, name, records, message):
    write(folder / f"{name}.jsonl", records)
    with pytest.raises(ValueError, match=rf"{name}\.jsonl.*{message}"):
        read_beir(folder)


def test_names_missing_files_and_the_splits_there_are(folder):
    with pytest.raises(FileNotFoundError, match=r"train\.tsv is missing.*\['dev', 'test'\]"):
        read_beir(folder, "train")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"queries\.jsonl is missing"):
        read_beir(folder)


def test_unknown_ids_are_counted_or_left_out(folder):
    path = folder / "qrels" / "test.tsv"
    path.write_text(QRELS + "001\td1\t1\n2\tCACM-46\t1\nq1\td9\t1\n")
    counts = r"1 of 3 queries are unknown \('001'\); 2 of 7 judged documents are unknown \('d9', 'CACM-46'\)"
    with pytest.raises(ValueError, match=rf"test\.tsv: {counts}.*unknown_ids"):
        read_beir(folder)
    with pytest.warns(UserWarning, match=counts) as caught:
        collection = read_beir(folder, unknown_ids="drop")
    assert collection.qrels == {"q1": {"d1": 1, "d3": 1}, "2": {"d2": 2, "4": 0}} and caught[0].filename == __file__
    path.write_text("001\td1\t1\n")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="no judgement is left"):
        read_beir(folder, unknown_ids="drop")
    with pytest.raises(ValueError, match="`unknown_ids`.*'ignore'"):
        read_beir(folder, unknown_ids="ignore")


@pytest.mark.parametrize("parts, message", [
    (({}, {"q": "x"}, {"q": {"d": 1}}), "`documents`.*empty dict"), ((["x"], {"q": "x"}, {}), "`documents`.*list"),
    (({"d": "x"}, {1: "x"}, {"q": {"d": 1}}), "`queries` must map str to str; received 1"),
    (({"d": None}, {"q": "x"}, {"q": {"d": 1}}), "`documents` must map str to str"),
    (({"d": "x"}, {"q": "x"}, {"q": {"d": 0.5}}), "`qrels` must have int grades; received 0.5 for 'q', 'd'"),
    (({"d": "x"}, {"q": "x"}, {"q": {"e": 1}}), r"`qrels` must name.*1 of 1 judged documents are unknown \('e'\)"),
])  # fmt: skip
def test_collection_in_memory_is_checked(parts, message):
    with pytest.raises(ValueError, match=message):
        RetrievalCollection(*parts)
