"""Corpora on disk: what is stored, what is found, and that no kill and no other input goes unnoticed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from simretro.data import Document
from simretro.retrieval import EncodedCorpus, ExactIndex, encode_corpus, exact, normalize_rows, stored_vectors
from simretro.retrieval import corpus as corpus_module
from tests.retrieval.killed_encoding import encode

ROOT = Path(__file__).parents[2]
DOCUMENTS = {f"d{i}": "word " * (1 + i * 7 % 13) + str(i) for i in range(40)}
TEXTS = list(DOCUMENTS.values())
KINDS = ["float32", "float16", "int8", "binary"]
QUERIES = encode([f"query {i}" for i in range(9)])


class Model:
    """With what a `BiEncoder` has."""

    def __init__(self, fingerprint="one", prefix="", similarity="cosine", engine="keras"):
        self.engine = engine
        self.passage_sentence_encoder, self.passage_prefix, self.similarity = self, prefix, similarity
        self.of_model = fingerprint

    def fingerprint(self):
        return self.of_model

    def encode_queries(self, texts, batch_size, show_progress):
        return encode(texts)

    def encode_passages(self, texts, batch_size, show_progress):
        assert show_progress is False  # the bar is the corpus'
        self.batch_size = batch_size
        return encode([self.passage_prefix + text for text in texts])


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_what_is_stored_is_what_the_model_gives_in_order(tmp_path):
    calls = []

    def noting(texts):
        calls.append([len(text) for text in texts])
        return 4 * encode(texts)

    folder = encode_corpus(noting, DOCUMENTS, tmp_path / "enc", block_size=16)
    assert [len(call) for call in calls] == [16, 16, 8]
    assert all(call == sorted(call, reverse=True) for call in calls)  # longest first
    np.testing.assert_array_equal(np.load(folder / "vectors.npy"), normalize_rows(encode(TEXTS)))
    assert [json.loads(line) for line in open(folder / "ids.jsonl")] == list(DOCUMENTS)
    assert sorted(files(folder)) == ["corpus.json", "ids.jsonl", "vectors.npy"]
    corpus = EncodedCorpus.load(folder)
    assert (corpus.ids, len(corpus), corpus.dimension) == (list(DOCUMENTS), 40, 12)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_float32_finds_what_sorting_everything_finds(similarity, tmp_path):
    vectors = 5 * encode(TEXTS)
    vectors[7] = vectors[3]  # equal scores: the first in the corpus comes first
    by_text = dict(zip(TEXTS, vectors, strict=True))

    def of_text(texts):
        return np.stack([by_text[text] for text in texts])

    encode_corpus(of_text, DOCUMENTS, tmp_path / "enc", similarity=similarity)
    scores, rows = EncodedCorpus.load(tmp_path / "enc").search(QUERIES, 40)
    stored, queries = vectors.astype("float32"), QUERIES
    if similarity == "cosine":
        stored, queries = normalize_rows(stored), normalize_rows(queries)
    expected = queries.astype("float64") @ stored.astype("float64").T
    order = np.lexsort((np.broadcast_to(np.arange(40), expected.shape), -expected.astype("float32")))
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, order, axis=1), rtol=1e-5, atol=1e-6)


def test_cosines_are_those_of_the_exact_index(tmp_path):
    encode_corpus(encode, DOCUMENTS, tmp_path / "enc")
    index = ExactIndex()
    index.add(encode(TEXTS), TEXTS)
    for found, expected in zip(
        EncodedCorpus.load(tmp_path / "enc").search(QUERIES), index.search(QUERIES), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", KINDS)
def test_shards_joined_are_the_whole(dtype, tmp_path):
    whole = EncodedCorpus.load(encode_corpus(encode, DOCUMENTS, tmp_path / "whole", dtype, block_size=100))
    for shard in (2, 0, 1):
        made = encode_corpus(
            encode, DOCUMENTS, tmp_path / "enc", dtype, block_size=100, shard_index=shard, num_shards=3
        )
        assert made == tmp_path / "enc" / f"shard-{shard}-of-3"
    for folders in (tmp_path / "enc", [tmp_path / "enc" / f"shard-{i}-of-3" for i in (1, 2, 0)]):
        joined = EncodedCorpus.load(folders)
        assert joined.ids == whole.ids
        scores, rows = joined.search(QUERIES, 15)
        expected_scores, expected_rows = whole.search(QUERIES, 15)
        if dtype == "int8":  # each shard has its own calibration
            np.testing.assert_allclose(scores, expected_scores, atol=0.02)
        else:
            np.testing.assert_array_equal(rows, expected_rows)
            np.testing.assert_array_equal(scores, expected_scores)


def test_int8_is_what_was_calibrated_and_is_decoded_before_scoring(tmp_path):
    folder = encode_corpus(encode, DOCUMENTS, tmp_path / "enc", "int8")
    codes, (low, step) = np.load(folder / "vectors.npy"), np.load(folder / "calibration.npy")
    unit = normalize_rows(encode(TEXTS))
    np.testing.assert_allclose(low, unit.min(axis=0))
    np.testing.assert_allclose(step, np.ptp(unit, axis=0) / 255, rtol=1e-5)
    assert codes.dtype == "int8" and codes.min() == -128 and codes.max() == 127
    decoded = (codes.astype("float64") + 128) * step + low
    assert np.abs(decoded - unit).max() <= step.max() / 2 + 1e-6
    scores, rows = EncodedCorpus.load(folder).search(QUERIES, 5)
    expected = normalize_rows(QUERIES) @ decoded.T
    np.testing.assert_array_equal(rows, np.argsort(-expected, axis=1)[:, :5])
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :5], atol=1e-5)


def test_numbers_beyond_the_calibration_are_clipped_and_told(tmp_path):
    def growing(texts):
        return np.stack([[int(text), 1.0] for text in texts])

    documents = {str(i): str(i) for i in range(20)}
    with pytest.warns(UserWarning, match=r"40.0% of the numbers.*first 4 documents"):
        folder = encode_corpus(growing, documents, tmp_path / "enc", "int8", block_size=4, similarity="dot")
    assert np.load(folder / "vectors.npy")[:, 0].tolist() == [-128, -43, 42, *[127] * 17]
    assert EncodedCorpus.load(folder).search([[0, 2]], 20)[0][0] == pytest.approx([2] * 20)  # a constant is kept


@pytest.mark.parametrize("numpy_1", [False, True])
@pytest.mark.parametrize("dimension", [12, 64, 70])
def test_binary_is_searched_by_bits_and_rescored_by_numbers(numpy_1, dimension, tmp_path, monkeypatch):
    if numpy_1:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    monkeypatch.setattr(stored_vectors, "_CODES_PER_BLOCK", 16)
    rng = np.random.default_rng(dimension)
    vectors, queries = rng.standard_normal((40, dimension)), rng.standard_normal((6, dimension))
    by_text = dict(zip(TEXTS, vectors, strict=True))
    folder = encode_corpus(lambda texts: np.stack([by_text[t] for t in texts]), DOCUMENTS, tmp_path / "enc", "binary")
    assert np.load(folder / "vectors.npy").shape == (40, -(-dimension // 8))
    scores, rows = EncodedCorpus.load(folder).search(queries, 4, rescore_multiplier=3)
    signs = np.where(vectors > 0, 1, -1)
    distances = np.sum(signs[None] != np.where(queries > 0, 1, -1)[:, None], axis=2)
    for query in range(6):
        candidates = np.lexsort((np.arange(40), distances[query]))[:12]
        unit = queries[query] / np.linalg.norm(queries[query])
        expected = signs[candidates] @ unit / dimension**0.5
        best = np.argsort(-expected, kind="stable")[:4]
        assert rows[query].tolist() == candidates[best].tolist()
        np.testing.assert_allclose(scores[query], expected[best], atol=1e-6)


@pytest.mark.parametrize("dtype, least", [("float16", 0.99), ("int8", 0.95), ("binary", 0.4)])
def test_smaller_kinds_find_nearly_the_same(dtype, least, tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 64))
    names = {str(i): str(i) for i in range(500)}
    queries = vectors[:50] + 0.5 * rng.standard_normal((50, 64))
    found = {}
    for kind in ("float32", dtype):
        encode_corpus(lambda texts: vectors[[int(text) for text in texts]], names, tmp_path / kind, kind)
        found[kind] = EncodedCorpus.load(tmp_path / kind).search(queries, 10, rescore_multiplier=8)[1]
    shared = [len(set(a) & set(b)) / 10 for a, b in zip(found["float32"], found[dtype], strict=True)]
    assert least <= np.mean(shared) <= 1


def interrupted(number, monkeypatch):
    """Lets the disk fail at the write of this number, wherever that is."""
    writes = 0

    def failing(file):
        nonlocal writes
        writes += 1
        if writes == number:
            raise OSError("the disk is gone")

    monkeypatch.setattr(corpus_module, "_sync", failing)


@pytest.mark.filterwarnings("ignore:.*have been clipped")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("number", [1, 2, 5, 6, 13])
def test_a_broken_run_goes_on_to_the_same_bytes(number, dtype, tmp_path, monkeypatch):
    encode_corpus(encode, DOCUMENTS, tmp_path / "whole", dtype, block_size=7)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        interrupted(number, patch)
        encode_corpus(encode, DOCUMENTS, tmp_path / "enc", dtype, block_size=7)
    with pytest.raises(ValueError, match=r"is not finished: \d+ documents.*`encode_corpus` again"):
        EncodedCorpus.load(tmp_path / "enc")
    calls = []
    encode_corpus(lambda texts: calls.append(texts) or encode(texts), DOCUMENTS, tmp_path / "enc", dtype, block_size=7)
    assert len(calls) == 6 - (number - 1) // 2, "finished blocks are not encoded again"
    assert files(tmp_path / "enc") == files(tmp_path / "whole")


def test_killed_between_its_last_two_steps(tmp_path):
    folder = encode_corpus(encode, DOCUMENTS, tmp_path / "enc")
    finished = files(folder)
    shutil.copy(folder / "corpus.json", folder / "progress.json")
    (folder / ".progress.json.tmp-999999999-0").write_text("{")
    assert len(EncodedCorpus.load(folder)) == 40
    encode_corpus(encode, DOCUMENTS, folder)
    assert files(folder) == finished


@pytest.mark.slow
def test_a_network_goes_on_to_the_same_bytes_in_a_new_process(tmp_path, monkeypatch):
    """What it has encoded before must not change its vectors, not even in the last bit."""
    from simretro import SentenceEncoder, Tokenizer, build_transformer_model

    tokenizer = Tokenizer({word: i for i, word in enumerate("[PAD] [UNK] [CLS] [SEP] word 1 2 3 ##1 ##2".split())})
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config |= {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64, "initializer_range": 0.3}
    SentenceEncoder(build_transformer_model(config), tokenizer, "mean").save_pretrained(tmp_path / "model")

    def encode_all(folder):
        encoder = SentenceEncoder.from_pretrained(tmp_path / "model")
        encode_corpus(encoder, DOCUMENTS, folder, block_size=7)

    encode_all(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        interrupted(6, patch)
        encode_all(tmp_path / "enc")
    encode_all(tmp_path / "enc")
    assert files(tmp_path / "enc") == files(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", KINDS)
def test_kill_9_in_the_midst_of_a_block(dtype, tmp_path):
    source = tmp_path / "corpus.jsonl"
    source.write_text("".join(json.dumps({"_id": k, "text": t}) + "\n" for k, t in DOCUMENTS.items()))
    command = [sys.executable, str(ROOT / "tests/retrieval/killed_encoding.py"), str(source)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, str(tmp_path / "whole"), dtype], env=environment, check=True)
    for block in (1, 3, 6):
        arguments = [*command, str(tmp_path / f"killed-{block}"), dtype]
        with subprocess.Popen(
            [*arguments, "--stop-in-block", str(block)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"encoding\n"
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        state = json.loads((tmp_path / f"killed-{block}/progress.json").read_text())
        assert state["rows"] == 7 * (block - 1)
        subprocess.run(arguments, env=environment, check=True)
        assert files(tmp_path / f"killed-{block}") == files(tmp_path / "whole")


def test_sources_of_all_kinds_give_the_same_files(tmp_path):
    beir = tmp_path / "beir"
    beir.mkdir()
    records = [{"_id": key, "title": "", "text": text} for key, text in DOCUMENTS.items()]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (beir / "queries.jsonl").write_text('{"_id": "q", "text": "no document"}\n')
    sources = [DOCUMENTS, beir, beir / "corpus.jsonl", DOCUMENTS.items(), iter(DOCUMENTS.items())]
    sources.append([Document(text, id=key) for key, text in DOCUMENTS.items()])
    made = []
    for number, source in enumerate(sources):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.append(files(encode_corpus(encode, source, tmp_path / str(number), "float16")))
    assert all(one == made[0] for one in made)


def test_titles_are_read_and_documents_without_id_are_numbered(tmp_path):
    texts = []
    source = [Document("flow of air", "slip"), Document("Slip. A flow", "slip", id="x"), Document("heat")]
    folder = encode_corpus(lambda t: texts.extend(t) or encode(t), source, tmp_path / "enc")
    assert set(texts) == {"slip flow of air", "Slip. A flow", "heat"}
    assert EncodedCorpus.load(folder).ids == ["0", "x", "2"]


def test_progress_tells_how_long_it_takes(tmp_path, capsys):
    encode_corpus(encode, DOCUMENTS, tmp_path / "quiet", block_size=10)
    assert capsys.readouterr().out == ""
    encode_corpus(encode, DOCUMENTS, tmp_path / "shown", block_size=10, show_progress=True)
    assert "10/40" in (shown := capsys.readouterr().out) and "40/40" in shown
    encode_corpus(encode, iter(DOCUMENTS.items()), tmp_path / "open", block_size=10, show_progress=True)
    assert "40/Unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    "model, options, message",
    [
        (Model("two"), {}, "`model` was 'one', is 'two'"),
        (Model(prefix="p: "), {}, "`passage_prefix` was '', is 'p: '"),
        (Model(engine="openvino"), {}, "`engine` was 'keras', is 'openvino'"),
        (Model(similarity="dot"), {}, "`similarity` was 'cosine', is 'dot'"),
        (Model(), {"dtype": "int8", "block_size": 9}, "`dtype` was 'float32', is 'int8', `block_size` was 7, is 9"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_another_kind_is_refused_naming_what_differs(
    finished, model, options, message, tmp_path, monkeypatch
):
    start(Model(), finished, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=f"holds a corpus of other settings: {message}"):
        encode_corpus(model, DOCUMENTS, tmp_path / "enc", **{"block_size": 7, **options})


def start(model, finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        if finished:
            encode_corpus(model, DOCUMENTS, tmp_path / "enc", block_size=7)
            return
        interrupted(6, patch)
        with pytest.raises(OSError, match="gone"):
            encode_corpus(model, DOCUMENTS, tmp_path / "enc", block_size=7)


@pytest.mark.parametrize("finished", [True, False])
def test_other_documents_are_refused(finished, tmp_path, monkeypatch):
    start(encode, finished, tmp_path, monkeypatch)
    before = files(tmp_path / "enc")
    for other in ({**DOCUMENTS, "d3": "changed"}, dict(list(DOCUMENTS.items())[:5])):
        with pytest.raises(ValueError, match="holds the vectors of other documents: the first"):
            encode_corpus(encode, other, tmp_path / "enc", block_size=7)
    if finished:
        with pytest.raises(ValueError, match="vectors of 40 documents, but `source` has more"):
            encode_corpus(encode, {**DOCUMENTS, "new": "text"}, tmp_path / "enc", block_size=7)
    assert files(tmp_path / "enc") == before


@pytest.mark.parametrize(
    "source, message",
    [
        ([("a", "x"), ("b", "y"), ("a", "z")], "document 2: the id 'a' occurs twice"),
        ([Document("x", id="a", path="f.jsonl", line=3), Document("y", id="a", path="f.jsonl", line=9)],
         "f.jsonl, line 9: the id 'a' occurs twice"),
        ([], "at least one document"),
        (["text"], r"document 0: must be \(id, text\)"),
        ([("a", None)], "document 0: must be"),
        ([(7, "text")], "document 0: must be"),
    ],
)  # fmt: skip
def test_bad_documents_are_named(source, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        encode_corpus(encode, source, tmp_path / "enc")


@pytest.mark.parametrize(
    "model, options, message",
    [
        (encode, {"dtype": "int4"}, "`dtype` must be one of.*'int4'"),
        (encode, {"block_size": 0}, "`block_size`.*0"),
        (encode, {"num_shards": 0}, "`num_shards`"),
        (encode, {"shard_index": 2, "num_shards": 2}, "`shard_index` must be below `num_shards`=2; received 2"),
        (encode, {"shard_index": 41, "num_shards": 50}, "`num_shards` must be at most the number of documents"),
        (encode, {"similarity": "l2"}, "`similarity` must be one of.*'l2'"),
        (None, {}, "`model` must have `encode`.*NoneType"),
        (lambda texts: encode(texts)[1:], {}, r"`model` must return a row per text; received shape \(39, 12\) for 40"),
        (lambda texts: encode(texts) * np.nan, {}, "`model` must return finite float32 numbers; the vector of 'word"),
        (lambda texts: 1e6 * encode(texts), {"dtype": "float16", "similarity": "dot"}, '`dtype` must be "float32"'),
        (lambda texts: encode(texts)[:, : len(texts)], {"block_size": 8, "dtype": "binary"}, None),
        (lambda texts: encode(texts)[:, : len(texts)], {"block_size": 9}, "one dimension; received 4 after 9"),
    ],
)  # fmt: skip
def test_bad_models_and_options_are_named(model, options, message, tmp_path):
    if message is None:
        encode_corpus(model, DOCUMENTS, tmp_path / "enc", **options)
        return
    with pytest.raises(ValueError, match=message):
        encode_corpus(model, DOCUMENTS, tmp_path / "enc", **options)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        encode_corpus(encode, DOCUMENTS, tmp_path)
    assert list(files(tmp_path)) == ["notes.txt"]


def test_load_refuses_another_model_and_knows_the_right_one(tmp_path):
    encode_corpus(Model(), DOCUMENTS, tmp_path / "enc")
    for model in (None, "one", Model()):
        assert len(EncodedCorpus.load(tmp_path / "enc", model)) == 40
    with pytest.raises(ValueError, match="encoded with the model one, but `model` is two"):
        EncodedCorpus.load(tmp_path / "enc", Model("two"))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_load_refuses_a_model_that_would_have_encoded_otherwise(num_shards, tmp_path):
    for shard_index in range(num_shards):
        encode_corpus(Model(prefix="p: "), DOCUMENTS, tmp_path, num_shards=num_shards, shard_index=shard_index)
    with pytest.raises(ValueError, match="`passage_prefix` was 'p: ', is ''"):
        EncodedCorpus.load(tmp_path, Model())
    with pytest.raises(ValueError, match="`similarity` was 'cosine', is 'dot'"):
        EncodedCorpus.load(tmp_path, Model(prefix="p: ", similarity="dot"))
    assert len(EncodedCorpus.load(tmp_path, Model(prefix="p: "))) == 40


def test_a_model_without_a_similarity_of_its_own_takes_that_of_the_corpus(tmp_path):
    model = Model(similarity="dot")
    encode_corpus(model, DOCUMENTS, tmp_path)
    del model.similarity
    assert EncodedCorpus.load(tmp_path, model).similarity == "dot"


def test_the_size_of_batches_reaches_the_model(tmp_path):
    model = Model()
    encode_corpus(model, DOCUMENTS, tmp_path / "enc", batch_size=5)
    assert model.batch_size == 5
    with pytest.raises(ValueError, match="`batch_size`.*0"):
        encode_corpus(model, DOCUMENTS, tmp_path / "other", batch_size=0)


def test_load_refuses_what_is_not_one_whole_corpus(tmp_path):
    def shard(index, number, name, documents=DOCUMENTS, dtype="float32"):
        return encode_corpus(encode, documents, tmp_path / name, dtype, shard_index=index, num_shards=number)

    first, second = shard(0, 2, "enc"), shard(1, 2, "enc")
    with pytest.raises(ValueError, match=r"all 2 shards.*received \[0\], missing are \[1\]"):
        EncodedCorpus.load(first)
    with pytest.raises(ValueError, match="one is given twice"):
        EncodedCorpus.load([first, second, second])
    with pytest.raises(ValueError, match="no shards of one corpus: `dtype` was 'float32', is 'float16'"):
        EncodedCorpus.load([first, shard(1, 2, "half", dtype="float16")])
    fewer = dict(list(DOCUMENTS.items())[:30])
    with pytest.raises(ValueError, match=r"have \[20, 15\] documents, so they are not of one corpus"):
        EncodedCorpus.load([first, shard(1, 2, "fewer", fewer)])
    with pytest.raises(FileNotFoundError, match="holds no encoded corpus"):
        EncodedCorpus.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="`folders` must name at least one"):
        EncodedCorpus.load([])


@pytest.mark.parametrize("name", ["corpus.json", "vectors.npy", "ids.jsonl", "calibration.npy"])
def test_damage_is_named(name, tmp_path):
    folder = encode_corpus(encode, DOCUMENTS, tmp_path / "enc", "int8")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"{name}.*(damaged|instead of)"):
        EncodedCorpus.load(folder)


@pytest.mark.parametrize(
    "queries, options, message",
    [
        (QUERIES[:, :5], {}, "dimension 12; received 5"),
        (QUERIES[0], {}, r"`query_vectors` must be.*\(12,\)"),
        (QUERIES, {"top_k": 0}, "`top_k`"),
        (QUERIES, {"rescore_multiplier": 0}, "`rescore_multiplier`"),
        (QUERIES * np.nan, {}, "`query_vectors` must be finite"),
    ],
)
def test_search_refuses(queries, options, message, tmp_path):
    corpus = EncodedCorpus.load(encode_corpus(encode, DOCUMENTS, tmp_path / "enc"))
    with pytest.raises(ValueError, match=message):
        corpus.search(queries, **options)


@pytest.mark.parametrize("dtype", KINDS)
def test_search_of_no_query_and_of_more_than_there_is(dtype, tmp_path):
    corpus = EncodedCorpus.load(encode_corpus(encode, DOCUMENTS, tmp_path / "enc", dtype))
    assert [part.shape for part in corpus.search(QUERIES[:0], 5)] == [(0, 5)] * 2
    scores, rows = corpus.search(QUERIES, 99)
    assert np.sort(rows, axis=1).tolist() == [list(range(40))] * 9 and (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("block_size, flat", [(1, 0), (1, 40), (20, 40)])
def test_int8_of_a_first_block_that_does_not_vary(block_size, flat, tmp_path):
    """The later vectors stay apart all the same."""
    rng = np.random.default_rng(0)
    vectors = normalize_rows(rng.standard_normal((200, 64)))
    vectors[:20, :flat] = vectors[0, :flat]  # of the first texts these numbers are equal
    texts = [str(i) for i in range(200)]
    folder = encode_corpus(
        lambda some: vectors[[int(text) for text in some]], dict(zip(texts, texts, strict=True)), tmp_path / "enc",
        "int8", block_size=block_size, similarity="dot",
    )  # fmt: skip
    found = EncodedCorpus.load(folder).search(vectors[20:], 1)[1][:, 0]
    assert (found == np.arange(20, 200)).mean() > 0.95


@pytest.mark.parametrize("with_locks", [True, False])
@pytest.mark.parametrize("start_within", [0, 2])
def test_a_second_writer_is_refused(start_within, with_locks, tmp_path, monkeypatch):
    """One of the two says so, and the other's folder is that of a run alone."""
    if not with_locks:
        monkeypatch.setattr(corpus_module, "fcntl", None)
    alone = encode_corpus(encode, DOCUMENTS, tmp_path / "alone", block_size=8)
    calls = []

    def with_another_call(texts):
        calls.append(len(texts))
        if len(calls) == start_within + 1:
            with contextlib.suppress(ValueError) if with_locks else contextlib.nullcontext():
                encode_corpus(encode, DOCUMENTS, tmp_path / "enc", block_size=8)
                assert not with_locks
        return encode(texts)

    refused = contextlib.nullcontext() if with_locks else pytest.raises(ValueError, match="another call of")
    with refused:
        encode_corpus(with_another_call, DOCUMENTS, tmp_path / "enc", block_size=8)
    written, expected = files(tmp_path / "enc"), files(alone)
    for name in ("vectors.npy", "ids.jsonl"):
        assert written[name] == expected[name]
    encode_corpus(encode, DOCUMENTS, tmp_path / "enc", block_size=8)


def test_a_finished_folder_that_was_damaged_is_told(tmp_path):
    folder = encode_corpus(encode, DOCUMENTS, tmp_path / "enc")
    with open(folder / "ids.jsonl", "ab") as file:
        file.write(b'"more"\n')
    with pytest.raises(ValueError, match=r"ids\.jsonl is damaged"):
        encode_corpus(encode, DOCUMENTS, tmp_path / "enc")


def test_numpy_numbers_are_numbers(tmp_path):
    numbers = {"block_size": np.int64(8), "num_shards": np.int32(2), "shard_index": np.uint8(1)}
    folder = encode_corpus(encode, DOCUMENTS, tmp_path / "enc", **numbers)
    assert json.loads((folder / "corpus.json").read_text())["settings"]["block_size"] == 8


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "binary"])
def test_shards_of_unlike_lengths_that_are_searched_in_several_blocks(dtype, similarity, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((41, 12)).astype("float32"), rng.standard_normal((5, 12))
    vectors[1::3] *= 100  # those of one shard
    by_text = {str(i): i for i in range(41)}
    documents = dict(zip(by_text, by_text, strict=True))

    def vectors_of(texts):
        return vectors[[by_text[text] for text in texts]]

    folder = encode_corpus(vectors_of, documents, tmp_path / "whole", dtype, similarity=similarity)
    expected_scores, expected_rows = EncodedCorpus.load(folder).search(queries, 9)
    for shard in range(3):
        encode_corpus(
            vectors_of, documents, tmp_path / "enc", dtype, similarity=similarity, shard_index=shard, num_shards=3
        )
    for name in ("_MIN_ROWS", "_MAX_ROWS"):
        monkeypatch.setattr(exact, name, 10)
    monkeypatch.setattr(stored_vectors, "_CODES_PER_BLOCK", 10)
    scores, rows = EncodedCorpus.load(tmp_path / "enc").search(queries, 9)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
