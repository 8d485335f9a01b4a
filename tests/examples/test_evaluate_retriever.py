import warnings

import numpy as np
import pytest

import evaluate_retriever
from simretro import BiEncoder, build_transformer_model, train_wordpiece
from simretro.evaluation import bm25_run, fuse_runs, read_beir, read_run, retrieval_metrics
from tests.examples import retrieval_files
from tests.examples.runs import CONFIG, message_of


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return retrieval_files.write_beir(tmp_path_factory.mktemp("data") / "beir")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """New weights; the token table alone makes texts with the same words alike."""
    documents, _, _ = retrieval_files.make_texts()
    tokenizer = train_wordpiece(documents.values(), 150)
    config = {**CONFIG, "max_position_embeddings": 64, "vocab_size": tokenizer.vocab_size, "initializer_range": 0.3}
    encoder = build_transformer_model({**config, "pad_token_id": tokenizer.pad_token_id})
    folder = tmp_path_factory.mktemp("model") / "retriever"
    BiEncoder(encoder, tokenizer, pooling="mean", query_prefix="open ").save_pretrained(folder)
    return folder


def run(model, beir, *arguments):
    return evaluate_retriever.main(["--model", str(model), "--data", str(beir), *map(str, arguments)])


def fails(capsys, *arguments):
    return message_of(capsys, run, *arguments)


def test_all_that_is_printed_and_written(model, beir, tmp_path, capsys):
    run_path, per_query = tmp_path / "out.trec", tmp_path / "out.tsv"
    results = run(model, beir, "--hybrid", "--run", run_path, "--per-query", per_query, "--top-k", 30)
    printed = capsys.readouterr().out
    collection = read_beir(beir)
    retriever = BiEncoder.from_pretrained(model)
    vectors = retriever.encode_passages(list(collection.documents.values()), show_progress=False)
    queries = retriever.encode_queries(list(collection.queries.values()), show_progress=False)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :30]
    expected = [[list(collection.documents)[i] for i in row] for row in best]
    assert [list(found) for found in results["model"].run.values()] == expected
    assert read_run(run_path) == results["model"].run
    bm25 = bm25_run(collection, 30)
    assert read_run(tmp_path / "out.bm25.trec") == {query: found for query, found in bm25.items() if found}
    assert read_run(tmp_path / "out.hybrid.trec") == fuse_runs([results["model"].run, bm25], top_k=30)
    measured = retrieval_metrics(results["model"].run, collection.qrels, evaluate_retriever.METRICS)
    assert results["model"].means == measured.means
    for metric in evaluate_retriever.METRICS:
        assert metric in printed and f"{measured.means[metric]:.4f}" in printed
    low, high = measured.intervals["nDCG@10"]
    assert f"[{low:.3f}, {high:.3f}]" in printed and "14 queries, 30 documents each" in printed
    for pair in ("model - bm25", "model - hybrid", "bm25 - hybrid"):
        assert f"nDCG@10, {pair}:" in printed
    rows = [line.split("\t") for line in per_query.read_text().splitlines()]
    assert rows[0] == ["query-id", "ranking", *evaluate_retriever.METRICS] and len(rows) == 1 + 3 * 14
    assert float(rows[1][2]) == measured.per_query["nDCG@10"][rows[1][0]]


@pytest.mark.slow
def test_an_encoded_corpus_gives_the_same_numbers_whole_or_in_shards(model, beir, tmp_path, capsys):
    expected = run(model, beir)["model"]
    whole = run(model, beir, "--corpus-folder", tmp_path / "whole")["model"].run
    # Texts in other batches: the last bits differ.
    assert {query: pytest.approx(scores, abs=1e-5) for query, scores in expected.run.items()} == whole
    assert run(model, beir, "--corpus-folder", tmp_path / "whole")["model"].run == whole  # it is there already
    for shard in (0, 1):
        options = ["--corpus-folder", tmp_path / "enc", "--num-shards", 2, "--shard-index", shard]
        if shard:
            assert "must be all 2 shards" in fails(capsys, model, beir, "--corpus-folder", tmp_path / "enc")
        assert run(model, beir, *options) == {}
        assert f"shard-{shard}-of-2" in capsys.readouterr().out
    assert run(model, beir, "--corpus-folder", tmp_path / "enc")["model"].means == pytest.approx(expected.means)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
def test_smaller_vectors(dtype, model, beir, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        results = run(model, beir, "--corpus-folder", tmp_path / "enc", "--dtype", dtype, "--metrics", "R@60")
    assert results["model"].means == {"R@60": 1.0}
    assert (tmp_path / "enc" / "vectors.npy").stat().st_size < 60 * 16 * 4


@pytest.mark.slow
def test_an_engine_gives_the_same_numbers(model, beir, tmp_path):
    pytest.importorskip("onnxruntime")
    expected = run(model, beir)["model"].run
    for corpus in ([], ["--corpus-folder", tmp_path / "enc"]):
        found = run(model, beir, "--engine", "onnx", *corpus)["model"].run
        assert {query: pytest.approx(scores, abs=1e-4) for query, scores in expected.items()} == found


@pytest.mark.slow
def test_settings_of_the_model_can_be_replaced(model, beir):
    expected = run(model, beir, "--metrics", "AP")["model"].run
    for option in (["--query-prefix", ""], ["--pooling", "cls"], ["--similarity", "dot"], ["--passage-maxlen", 5]):
        assert run(model, beir, "--metrics", "AP", *option)["model"].run != expected


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        evaluate_retriever.parse_arguments(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for option in "model data split bm25 hybrid run per-query corpus-folder shard-index num-shards dtype".split():
        assert f"--{option}" in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--dtype", "int8"], "--dtype and --shard-index are those of --corpus-folder"),
        (["--corpus-folder", "enc", "--shard-index", "1"], "--shard-index and --num-shards belong together"),
        (["--dtype", "int4"], "invalid choice: 'int4'"),
        (["--engine", "torch"], "invalid choice: 'torch'"),
        (["--top-k", "0"], "--top-k must be at least 1; received 0"),
        (["--run", "{folder}/missing/out.trec"], "missing/out.trec: the folder does not exist"),
        (["--split", "train2"], "train2.tsv is missing; `split` must be one of ['dev', 'test', 'train']"),
        (["--metrics", "best"], "`metrics`: 'best' is unknown"),
        (["--model", "{folder}/missing"], "missing does not exist"),
        (["--corpus-folder", "{folder}"], "holds other files"),
        (["--corpus-folder", "{folder}/enc", "--shard-index", "2", "--num-shards", "2"], "`shard_index` must be below"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments, message, model, beir, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert message in fails(capsys, model, beir, *(argument.format(folder=tmp_path) for argument in arguments))


def test_a_corpus_of_another_model_or_of_other_documents_is_refused(model, beir, tmp_path, capsys):
    folder = tmp_path / "enc"
    run(model, beir, "--corpus-folder", folder)
    message = fails(capsys, model, beir, "--corpus-folder", folder, "--pooling", "cls")
    assert "holds a corpus of other settings: `model` was" in message
    assert "`dtype` was 'float32', is 'int8'" in fails(
        capsys, model, beir, "--corpus-folder", folder, "--dtype", "int8"
    )
    other = retrieval_files.write_beir(tmp_path / "other")
    corpus = (other / "corpus.jsonl").read_text()
    (other / "corpus.jsonl").write_text(corpus.replace("door", "gate"))
    assert "holds the vectors of other documents" in fails(capsys, model, other, "--corpus-folder", folder)


def test_judgements_of_unknown_documents_are_counted(model, tmp_path, capsys):
    lost = retrieval_files.write_beir(tmp_path / "lost")
    with open(lost / "qrels" / "test.tsv", "a") as file:
        file.write("q50\tD50\t1\n")
    assert "1 of 15 judged documents are unknown ('D50')" in fails(capsys, model, lost)
