"""Documents from files to flat arrays: what the reader accepts, what its errors name, where sentences and words begin,
and that the files of token ids are used again or gone."""

import codecs
import gc
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.data import Document, MaskedDocuments, document_table, iter_documents
from simretro.data.boundaries import (
    MOST_TOKENS_OF_A_WORD,
    behind_full_stops,
    full_stop_tables,
    mark_words,
    split_sentences,
)
from simretro.data.document_table import TableMaker
from simretro.data.documents import as_documents
from simretro.tokenizers import Tokenizer
from tests.data.toy import ToyTokenizer

GOOD = '{"_id": "7", "title": "A wing", "text": "w1 w2"}'
TOKENIZER = ToyTokenizer(["un", "+do", ".", "。", "”"], size=1000)


def write(path, *lines, end="\n", prefix=b""):
    data = prefix + b"".join((line if isinstance(line, bytes) else line.encode()) + end.encode() for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# The reader


def test_records_in_order_with_their_places(tmp_path):
    path = write(tmp_path / "c.jsonl", GOOD, '{"id": 8, "text": ""}', '{"sentences": ["a.", "b"], "docid": "x"}')
    assert list(iter_documents(path)) == [
        Document("w1 w2", "A wing", "7", str(path), 1),
        Document("", None, "8", str(path), 2),
        Document("a. b", None, "x", str(path), 3, ("a.", "b")),
    ]
    assert next(iter_documents(str(path))).place == f"{path}, line 1"


@pytest.mark.parametrize("name", ["c.txt", "c.txt.gz", "C.TXT"])
def test_a_line_is_a_document(tmp_path, name):
    path = write(tmp_path / name, "eins zwei", "", " \t", "drei\u2028\x0bvier ", end="\r\n", prefix=codecs.BOM_UTF8)
    assert [(d.text, d.line) for d in iter_documents(path)] == [("eins zwei", 1), ("drei\u2028\x0bvier ", 4)]
    [whole] = iter_documents(path, text_files="whole")
    assert whole.text == "eins zwei\n\n \t\ndrei\u2028\x0bvier \n" and whole.line == 1


def test_a_folder_is_read_in_order_of_names(tmp_path):
    for name in ("b.txt", "a/z.jsonl", "a/y.txt.gz", "a.txt"):
        write(tmp_path / name, GOOD)
    for name in (".hidden.txt", ".git/x.txt", "notes.md", "a/x.json"):
        write(tmp_path / name, "no document")
    read = [os.path.relpath(document.path, tmp_path) for document in iter_documents(tmp_path)]
    assert read == ["a/y.txt.gz", "a/z.jsonl", "a.txt", "b.txt"]


def test_queries_of_a_beir_folder_are_no_documents(tmp_path):
    write(tmp_path / "corpus.jsonl", GOOD)
    write(tmp_path / "queries.jsonl", '{"_id": "q1", "text": "a test query"}')
    with pytest.warns(UserWarning, match=r"queries\.jsonl is left out.*BEIR") as caught:
        assert [document.id for document in iter_documents(tmp_path)] == ["7"]
    assert caught[0].filename == __file__
    assert [document.id for document in iter_documents(tmp_path / "queries.jsonl")] == ["q1"]


@pytest.mark.parametrize(
    "title, text, parts",
    [
        ("A wing", "w1", ("A wing", "w1")),
        ("a wing .", "A  wing . w1 w2", ("A  wing . w1 w2",)),
        ("Wing", "wing", ("wing",)),
        ("Wing", "wing: w1", ("wing: w1",)),
        ("Win", "wing w1", ("Win", "wing w1")),
        ("苹果", "苹果是水果", ("苹果是水果",)),
        ("", "w1", ("w1",)),
        (" ", "w1", ("w1",)),
        (None, "w1", ("w1",)),
        ("w1 w2", "w1", ("w1 w2", "w1")),
    ],
)
def test_title_stands_before_the_text_once(title, text, parts):
    assert Document(text, title).parts == parts


def test_the_full_text_is_one_line_of_the_parts():
    assert Document(" w1 w2\n", " A wing ").full_text == "A wing w1 w2"
    assert Document("", "Wing", sentences=("w1. ", "w2.")).full_text == "Wing w1. w2."
    assert Document("").full_text == ""


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"text": "a\nb"}', [r"one whole JSON object", r'{"text": "a', r"\\n"]),
        ('["a"]', [r"must be a JSON object"]),
        ('{"title": "b"}', [r"has no `text`", r'{"title"']),
        ('{"text": null}', [r"has no `text`"]),
        ('{"text": 3}', [r"`text` must be a str; received int 3"]),
        ('{"text": ["a"]}', [r"`text` must be a str; received list"]),
        ('{"text": "a", "title": 3}', [r"`title` must be a str; received int 3"]),
        ('{"text": "a", "_id": [1]}', [r"`_id` must be a str or an int; received \[1\]"]),
        ('{"text": "a", "sentences": ["a"]}', [r"has both `text` and `sentences`"]),
        ('{"sentences": "ab"}', [r"`sentences` must be a list of str; received 'ab'"]),
        ('{"sentences": ["a", 1]}', [r"each of `sentences` must be a str"]),
        ('{"text": "x\\ud83d"}', [r"valid Unicode", r"character 1"]),
        ("[" * 100000, [r"one whole JSON object"]),
        (b'{"text": "\xb2\xe9"}', [r"not UTF-8", r"byte 10"]),
        (b"\xff\xfe{\x00", [r"not UTF-8"]),
    ],
)
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_bad_line_is_named(tmp_path, line, words, name):
    path = write(tmp_path / name, GOOD, GOOD, line, GOOD)
    with pytest.raises(ValueError) as caught:
        list(iter_documents(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ") and len(message) < 700
    for word in words:
        assert re.search(word, message), message


def test_bytes_that_are_no_text(tmp_path):
    path = write(tmp_path / "c.txt", "fine", b"caf\xe9")
    with pytest.raises(ValueError, match=r"c\.txt, line 2: is not UTF-8 \(byte 3: .*Save it as UTF-8"):
        list(iter_documents(path))
    with pytest.raises(ValueError, match=r"c\.txt: is not UTF-8 \(byte 8, line 2"):
        list(iter_documents(path, text_files="whole"))


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"plain text", lambda data: data[:50] * 2])
def test_damaged_archive_is_named(tmp_path, damage):
    path = write(tmp_path / "c.txt.gz", *(f"{number} {number**7}" for number in range(2000)))
    path.write_bytes(damage(path.read_bytes()))
    for how in ("lines", "whole"):
        with pytest.raises(ValueError, match=r"c\.txt\.gz: cannot be unpacked"):
            list(iter_documents(path, text_files=how))


def test_no_documents(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        iter_documents(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match=r"the folder holds no documents.*\.jsonl"):
        iter_documents(tmp_path)
    for name, content in (("a.txt", ""), ("b.jsonl", "\n \n"), ("c.txt", "\ufeff")):
        with pytest.raises(ValueError, match=rf"{name}: holds no documents"):
            list(iter_documents(write(tmp_path / name, content, end="")))
    with pytest.raises(ValueError, match=rf"{tmp_path}: holds no documents"):
        list(iter_documents(tmp_path))
    with pytest.raises(ValueError, match=r"corpus\.json: the name must end in \.txt, \.jsonl"):
        iter_documents(write(tmp_path / "corpus.json", GOOD))
    with pytest.raises(ValueError, match='`text_files` must be "lines" or "whole"; received \'line\''):
        iter_documents(tmp_path / "a.txt", "line")


def test_documents_in_memory_are_checked():
    given = ["a", Document("b", "t", path="f.txt", line=3)]
    assert [(d.text, d.place) for d in as_documents(given)] == [("a", "document 0"), ("b", "f.txt, line 3")]
    [document] = as_documents([Document("a b", sentences=iter(["a", "b"]))])
    assert document.sentences == ("a", "b")  # checking them does not use them up
    with pytest.raises(ValueError, match="document 0: `sentences` must be several str; received one, 'a b'"):
        list(as_documents([Document("a b", sentences="a b")]))
    for source, message in [
        ([["a"]], "document 0: must be a str or a `Document`; received list"),
        (["a", {"text": "b"}], "document 1: .* received dict"),
        ([Document(3)], "document 0: a text must be a str; received int 3"),
        (["\ud83d"], "document 0: a text must be valid Unicode"),
        ([], "at least one document"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(as_documents(source))


def test_reading_needs_no_keras():
    script = "import sys; from simretro.data import iter_documents; assert 'keras' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60)
def test_what_is_written_is_read(tmp_path_factory, records, packed):
    folder = tmp_path_factory.mktemp("documents")
    lines = [json.dumps({"text": text, "title": title}, ensure_ascii=False) for text, title in records]
    path = write(folder / f"c.jsonl{'.gz' * packed}", *lines)
    assert [(d.text, d.title) for d in iter_documents(path)] == records
    lines = [text.replace("\n", " ") for text, _ in records if text.strip()]
    if lines:
        path = write(folder / f"c.txt{'.gz' * packed}", *lines, prefix=codecs.BOM_UTF8)
        assert [d.text for d in iter_documents(path)] == [line.rstrip("\r\n") for line in lines if line.strip()]


# Sentences and words


@pytest.mark.parametrize(
    "parts",
    [
        ["One.", " Two!", "  Three?"],
        ['He said "no."', " Then (yes).", " End"],
        ["Version 3.14 of example.com", "\n\nNext\nline"],
        ["今天。明天。", " 后天"],  # the tokens tell those without a space
        ["a ... b", ""],
    ],
)
def test_sentences(parts):
    expected = [part for part in parts if part]
    if parts[0] == "a ... b":
        expected = ["a ...", " b"]
    assert split_sentences("".join(parts)) == expected


@given(st.text(st.sampled_from('aB.!?。”" \n\r\t3'), max_size=60))
def test_sentences_together_are_the_text(text):
    parts = split_sentences(text)
    assert "".join(parts) == text and all(parts)
    letters = 'aB.!?。”"3'
    tokenizer = Tokenizer(
        {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "b", "##a", "##b", "##3"])}
    )
    [whole] = tokenizer.encode_ragged([text])
    assert sum(tokenizer.encode_ragged(parts), []) == whole


def table_of(*texts, segment=None, whole_word=True):
    documents = [text if isinstance(text, Document) else Document(text) for text in texts]
    return TableMaker(TOKENIZER, segment, whole_word).make(as_documents(documents), "`source`")


def test_table_by_hand():
    v = TOKENIZER.vocab
    table = table_of("w1 un+do . w2", Document("w4", "w3"), Document("w5 w6", None, None, None, None, ("w5", "w6")))
    assert table.token_ids.tolist() == [v[t] for t in "w1 un +do . w2 w3 w4 w5 w6".split()]
    assert table.document_starts.tolist() == [0, 5, 7, 9] and table.num_documents == 3
    assert table.sentence_starts.tolist() == [0, 4, 5, 6, 7, 8]
    assert np.flatnonzero(~table.word_starts).tolist() == [2] and table.largest_word == 2
    assert table_of("w1 un+do", whole_word=False).word_starts is None


def test_east_asian_full_stops_are_known_by_their_tokens():
    [ids] = TOKENIZER.encode_ragged(["w1 。 w2 w3 。 ” w4 ” 。 。 w5"])
    begins = behind_full_stops(np.array(ids), *full_stop_tables(TOKENIZER))
    assert np.flatnonzero(begins).tolist() == [2, 6, 10]  # behind the closing mark, and the last of several
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天明。？「」"])}
    documents = [Document("今天。「明天？」明。")]
    table = TableMaker(Tokenizer(vocab)).make(documents, "`source`")
    assert table.sentence_starts.tolist() == [0, 3, 8]


def test_empty_documents_are_left_out_and_told():
    table = table_of("", "w1", "nothing", " ", "w2 w3")
    assert table.document_starts.tolist() == [0, 1, 3]
    assert [note[:57] for note in table.notes] == ["3 documents were left out, the first at document 0: they a"[:57]]
    with pytest.raises(ValueError, match="`source`: no document has any text: 2 were read, the first at document 0"):
        table_of("", "nothing")


def test_words_of_a_segmenter_and_what_it_gets_wrong():
    texts = ["un+do w1 w2 w3", "w4 w5"]
    ids = TOKENIZER.encode_ragged(texts)
    words = {texts[0]: ["un+do w1", "w2 w3"], texts[1]: ["w5", "w4"]}
    begins, wrong = mark_words(texts, ids, TOKENIZER, words.__getitem__)
    assert begins.tolist() == [True, False, False, True, False, True, True] and wrong == 1
    table = table_of("w1 w2 w3", "w4 w5", segment=lambda text: text.split()[::-1])
    assert table.notes[0].startswith("2 sentences are masked token by token")


def test_endless_words_are_divided():
    table = table_of("un" + "+do" * 100 + " w1")
    assert table.largest_word == MOST_TOKENS_OF_A_WORD
    assert np.flatnonzero(table.word_starts).tolist() == [0, 24, 48, 72, 96, 101]


def test_parts_make_the_same_table(monkeypatch):
    texts = ["w1 un+do . w2", "", "w3 。 w4", "nothing", "w5"] * 3
    whole = table_of(*texts)
    monkeypatch.setattr(document_table, "_CHARACTERS_AT_A_TIME", 5)
    parts = table_of(*texts)
    assert parts.notes == whole.notes
    for name in ("token_ids", "document_starts", "sentence_starts", "word_starts"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


# The files of token ids

DOCUMENTS = [" ".join(f"w{i}" for i in np.random.default_rng(n).integers(0, 999, 3 + 7 * n)) for n in range(30)] + [""]


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.jsonl", *(json.dumps({"text": text}) for text in DOCUMENTS))


def quiet(*args, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MaskedDocuments(*args, **{"rows_per_batch": 8, "maxlen": 20, **settings})


def same_batches(first, second):
    assert len(first) == len(second) > 3
    for epoch in (0, 3):
        for index in range(len(first)):
            a, b = first.batch(epoch, index), second.batch(epoch, index)
            assert set(a) == set(b)
            for name in a:
                assert type(b[name]) is np.ndarray and b[name].dtype == np.int32
                np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("cached", [False, True])
def test_files_have_the_batches_of_the_memory(corpus, tmp_path, cached):
    cache = tmp_path / "cache" if cached else None
    for _ in range(2):
        same_batches(quiet(DOCUMENTS, TOKENIZER), quiet(corpus, TOKENIZER, cache_dir=cache))
    table = quiet(corpus, TOKENIZER, cache_dir=cache).table
    assert all(isinstance(column.base, np.memmap) for column in (table.token_ids, table.word_starts))


def test_cache_is_used_again_only_for_the_same_texts(corpus, tmp_path, monkeypatch):
    calls, read = [], document_table.iter_files
    monkeypatch.setattr(document_table, "iter_files", lambda *args: calls.append(args) or read(*args))

    def make(tokenizer=TOKENIZER, **settings):
        return quiet(corpus, tokenizer, **{"cache_dir": tmp_path / "cache", **settings})

    first = make()
    make(maxlen=50, mask_rate=0.1, concatenate=True)  # other windows of the same texts
    assert len(calls) == 1
    make(ToyTokenizer(size=30))
    make(whole_word=False)
    make(segment=str.split)
    make(text_files="whole")
    assert len(calls) == 5
    write(corpus, GOOD)
    assert make().num_documents == 1 and len(calls) == 6
    same_batches(first, first)  # what is open stays as it was


def test_warnings_name_the_caller_and_come_again_from_the_cache(corpus, tmp_path):
    messages = []
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        with pytest.warns(UserWarning) as caught:
            MaskedDocuments(corpus, TOKENIZER, cache_dir=cache)
        assert all(warning.filename == __file__ for warning in caught)
        messages.append([str(warning.message) for warning in caught])
    assert messages[0] == messages[1] == messages[2] and len(messages[0]) == 1
    assert messages[0][0].startswith(f"1 documents were left out, the first at {corpus}, line 31")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["token_ids", "document_starts", "sentence_starts", "word_starts", "facts.json"])
@pytest.mark.parametrize("damage", [flip, os.remove, lambda path: path.write_bytes(b"")])
def test_damaged_cache_is_made_again(corpus, tmp_path, name, damage):
    cache = tmp_path / "cache"
    whole = quiet(DOCUMENTS, TOKENIZER)
    quiet(corpus, TOKENIZER, cache_dir=cache)
    damage(next(cache.iterdir()) / name)
    for told in (1, 0):
        with pytest.warns(UserWarning) as caught:
            same_batches(whole, MaskedDocuments(corpus, TOKENIZER, 8, 20, cache_dir=cache))
        assert sum("is damaged and is made again" in str(warning.message) for warning in caught) == told
    assert len(list(cache.iterdir())) == 1


def test_temporary_files_go_with_the_object(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    data = quiet(corpus, TOKENIZER)
    assert len(os.listdir(tmp_path / "temporary")) == 1
    del data
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize("cached", [False, True])
def test_nothing_is_left_of_a_file_with_an_error(corpus, tmp_path, monkeypatch, cached):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    cache = tmp_path / "cache" if cached else None
    full = document_table.FileColumn.append
    monkeypatch.setattr(document_table.FileColumn, "append", lambda *_: full(*_) or os.fstat(-1))
    with pytest.raises(OSError):
        quiet(corpus, TOKENIZER, cache_dir=cache)
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with open(corpus, "a", encoding="utf-8") as file:
        file.write('{"body": "w1"}\n')
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 32: has no `text`"):
        quiet(corpus, TOKENIZER, cache_dir=cache)
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []
    assert not cached or os.listdir(tmp_path / "cache") == []


def test_linked_folders_are_read_and_links_upwards_are_not(tmp_path):
    write(tmp_path / "wiki/b.txt", "b")
    write(tmp_path / "corpus/a.txt", "a")
    (tmp_path / "corpus/linked").symlink_to(tmp_path / "wiki")
    (tmp_path / "wiki/round").symlink_to(tmp_path / "wiki")
    (tmp_path / "corpus/up").symlink_to(tmp_path / "corpus")
    assert [document.text for document in iter_documents(tmp_path / "corpus")] == ["a", "b"]


def test_cache_tells_files_of_one_name_size_and_time_apart(tmp_path):
    tables = []
    for folder, text in (("one", "w1 w2"), ("two", "w3 w4")):
        path = write(tmp_path / folder / "docs.txt", text)
        os.utime(path, (1, 1))
        tables.append(quiet(path, TOKENIZER, cache_dir=tmp_path / "cache").table)
    assert tables[0].token_ids.tolist() != tables[1].token_ids.tolist()


def test_line_ends_of_old_macintoshes_are_told(tmp_path):
    path = tmp_path / "docs.txt"
    path.write_bytes(b"one\rtwo\rthree\r")
    with pytest.warns(UserWarning, match=r'docs.txt: has one line, .* there are 3 "\\r" in it'):
        assert len(list(iter_documents(path))) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(path, "one", end="\r\n")
        list(iter_documents(path))
