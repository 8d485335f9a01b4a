import json

import numpy as np
import pytest

import python_docs
import retrieval_data
import train_retriever
from command_line import deciding
from simretro import BiEncoder
from simretro.data import read_training_queries
from tests.examples import retrieval_files, runs


@pytest.fixture
def beir(tmp_path):
    return retrieval_files.write_beir(tmp_path / "beir")


@pytest.fixture
def config(tmp_path):
    return runs.write_config(tmp_path / "config.json", max_position_embeddings=64)


def command_line(*arguments):
    """Of 36 queries these are 3 batches, an epoch."""
    options = ["--queries-per-batch", "12", "--vocab-size", "150", "--maxlen", "32", "--rank-range", "0", "20"]
    return [*options, *map(str, arguments)]


def run(*arguments):
    return train_retriever.main(["--quick", *command_line(*arguments)])


def fails(capsys, *arguments):
    return runs.message_of(capsys, run, *arguments)


def trained(output):
    return runs.trained(output, ["model.safetensors"])


@pytest.mark.slow
def test_a_beir_folder_becomes_a_retriever_and_a_table(beir, tmp_path, capsys):
    options = ["--query-prefix", "query: ", "--pooling", "mean", "--matryoshka", "16"]
    retriever, numbers = run("--data", beir, *options, "--probe-steps", 2, "--output", tmp_path / "run")
    printed = capsys.readouterr().out
    assert "test queries" in printed and "best epoch by dev_nDCG@10" in printed
    assert numbers.keys() == {"BM25", "before", "retriever"} and numbers["BM25"] > 0.9
    assert (retriever.query_prefix, retriever.pooling, retriever.matryoshka_sizes) == ("query: ", "mean", [16])
    facts = json.loads((tmp_path / "run" / "model" / "config.json").read_text("utf-8"))["facts"]
    assert len(facts["history"]) == 2 and 0 <= facts["history"][0]["dev_nDCG@10"] <= 1
    found = facts["evaluations"]["dev"]
    assert [entry["step"] for entry in found] == [2, 3, 4, 6], "also within epochs"
    assert "\nstep 2: dev_nDCG@10 " in printed and found[1]["dev_nDCG@10"] == facts["history"][0]["dev_nDCG@10"]
    queries = read_training_queries(tmp_path / "run" / "train.jsonl")
    documents, _, _ = retrieval_files.make_texts()
    assert len(queries) == 36
    for query in queries:
        assert query.positives[0].text == documents[f"d{query.id[1:]}"]
        assert query.negatives and query.positives[0].text not in [passage.text for passage in query.negatives]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options",
    [
        ("jsonl", ["--negatives-per-query", 2]),
        ("tsv", ["--similarity", "dot", "--temperature", 1, "--symmetric", "--projection-size", 8]),
        ("scores", ["--distillation", "kl", "--teacher-temperature", 2, "--held-out", 0, "--cached-rows", 5]),
        ("plain", ["--negatives", "model", "--relative-margin", 0.01, "--no-report"]),
        ("jsonl", ["--negatives", "none", "--each-positive"]),
    ],
)
def test_files_of_queries_become_a_retriever(kind, options, tmp_path, capsys):
    path = tmp_path / ("train.tsv" if kind == "tsv" else "train.jsonl")
    if kind == "tsv":
        retrieval_files.write_tsv(path)
    else:
        retrieval_files.write_jsonl(path, scores=kind == "scores", negatives=kind != "plain")
    retriever, numbers = run("--data", path, *options, "--output", tmp_path / "run")
    printed = capsys.readouterr().out
    if "--held-out" in options:
        assert numbers == {} and "the last epoch is kept" in printed
    elif "--no-report" in options:
        assert numbers == {}
    else:
        assert "dev queries (they chose the best epoch, too)" in printed and set(numbers) >= {"BM25", "retriever"}
    vectors = BiEncoder.from_pretrained(tmp_path / "run" / "model").encode_passages(["door"], show_progress=False)
    np.testing.assert_array_equal(vectors, retriever.encode_passages(["door"], show_progress=False))
    if "--negatives" not in options:
        queries = read_training_queries(tmp_path / "run" / "train.jsonl")
        assert {len(query.negatives) for query in queries} == {1 if kind == "tsv" else 2}


class Interrupt(train_retriever.LearningRate):
    """Stops in the second epoch, when its first step, number 4, is saved: its negatives are read again."""

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if int(self.model.optimizer.iterations) == 5:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_run_with_mined_negatives_goes_on_exactly(beir, config, tmp_path, monkeypatch):
    options = ["--data", beir, "--init", config, "--mine-epochs", 1, "--save-steps", 1]
    run(*options, "--output", tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_retriever, "LearningRate", Interrupt)
        run(*options, "--output", tmp_path / "broken")
    saved = [path.name for path in (tmp_path / "broken" / "checkpoints").glob("step-*")]
    assert saved == ["step-00000004"]
    run(*options, "--resume", "--output", tmp_path / "broken")
    runs.assert_same(trained(tmp_path / "broken"), trained(tmp_path / "whole"))
    mined = [sorted((tmp_path / name / "negatives").iterdir()) for name in ("whole", "broken")]
    assert [path.name for path in mined[0]] == ["epoch-0001-step-00000003.jsonl"]
    assert [path.read_bytes() for path in mined[0]] == [path.read_bytes() for path in mined[1]]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_exactly(beir, config, tmp_path):
    """By SIGKILL, at whatever moment of its second epoch or of those after it, perhaps while it mines or saves."""
    arguments = command_line("--data", beir, "--init", config, "--epochs", 12, "--save-steps", 1, "--no-report")
    arguments += ["--mine-epochs", "2", "--output"]
    train_retriever.main([*arguments, str(tmp_path / "whole")])
    runs.kill("train_retriever.py", [*arguments, str(tmp_path / "killed")], rb"Epoch 3/12.*[2-3]/3")
    assert not (tmp_path / "killed" / "model").exists()
    train_retriever.main([*arguments, str(tmp_path / "killed"), "--resume"])
    runs.assert_same(trained(tmp_path / "killed"), trained(tmp_path / "whole"))


@pytest.mark.slow
def test_the_written_folder_is_a_start_for_the_next_run_also_under_a_strategy(beir, tmp_path):
    run("--data", beir, "--output", tmp_path / "run")
    run("--data", beir, "--init", tmp_path / "run" / "model", "--strategy", "mirrored", "--output", tmp_path / "run")
    first, second = trained(tmp_path / "run"), trained(tmp_path / "run-2")
    changes = [np.abs(second[name] - first[name]).max() for name in first if name.startswith("model")]
    assert 0 < max(changes) < 1e-3, "six steps at 2e-5"


@pytest.mark.slow
def test_the_next_run_keeps_how_the_checkpoint_makes_its_vectors(beir, tmp_path):
    own = ["--query-prefix", "q ", "--passage-prefix", "p ", "--similarity", "dot", "--projection-size", 8]
    own += ["--temperature", 2, "--symmetric", "--teacher-temperature", 3]
    run("--data", beir, *own, "--output", tmp_path / "run")
    again, _ = run("--data", beir, "--init", tmp_path / "run" / "model", "--output", tmp_path / "run")
    assert (again.query_prefix, again.passage_prefix, again.similarity, again.projection_size) == ("q ", "p ", "dot", 8)
    assert (again.temperature, again.symmetric, again.teacher_temperature) == (2, True, 3)
    again, _ = run(
        "--data", beir, "--init", tmp_path / "run" / "model", "--query-prefix", "", "--output", tmp_path / "run"
    )
    assert (again.query_prefix, again.passage_prefix) == ("", "p ")


@pytest.mark.slow
def test_the_job_without_data(tmp_path, monkeypatch, capsys):
    folders = {"sklearn": python_docs.installed_folders()["sklearn"]}
    monkeypatch.setattr(python_docs, "installed_folders", lambda: folders)
    _, numbers = train_retriever.main(["--quick", "--output", str(tmp_path / "run")])
    assert numbers.keys() == {"BM25", "before", "retriever"} and 0.3 < numbers["BM25"] < 0.9
    assert "new weights, untrained" in capsys.readouterr().out


def test_queries_of_files_become_collections(tmp_path):
    path = tmp_path / "train.jsonl"
    records = [
        {"query": "a", "pos": ["same", "other"], "neg": ["no"], "pos_scores": [3, None], "neg_scores": [1]},
        {"query": "b", "pos": ["same"], "neg": ["no", "no"]},
        {"query": "a", "pos": ["third"]},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    data = retrieval_data.load_data(path, held_out=0)
    assert data.dev is None and data.test is None
    assert data.train.documents == {"d0": "same", "d1": "other", "d2": "no", "d3": "third"}
    assert data.train.queries == {"q0": "a", "q1": "b"}
    assert data.train.qrels == {"q0": {"d0": 1, "d1": 1, "d3": 1}, "q1": {"d0": 1}}
    assert data.negatives == {"q0": ["d2"], "q1": ["d2"]}
    assert data.scores == {"q0": {"d0": 3.0, "d2": 1.0}}
    data = retrieval_data.load_data(path, held_out=0.5)
    assert len(data.train.queries) == len(data.dev.queries) == 1
    assert data.train.queries.keys() | data.dev.queries.keys() == {"q0", "q1"}
    assert data.train.documents == data.dev.documents and data.negatives.keys() == data.train.queries.keys()


def test_a_reduced_collection_keeps_what_is_judged(beir):
    collection = retrieval_data.read_split(beir, "test")
    assert retrieval_data.reduced(collection, 60) is collection
    judged = {f"d{i}" for i in range(46, 60)}
    for limit in (5, 20):
        kept = retrieval_data.reduced(collection, limit).documents.keys()
        assert judged <= kept and len(kept) == max(limit, 14)
        assert kept == retrieval_data.reduced(collection, limit).documents.keys()
    assert list(kept) == [document for document in collection.documents if document in kept]


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        train_retriever.parse_arguments(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for option in "data init negatives mine-epochs pooling query-prefix temperature epochs resume strategy".split():
        assert f"--{option}" in printed


def test_defaults_depend_on_where_the_weights_come_from(beir, config):
    def parsed(*arguments):
        options = train_retriever.parse_arguments(list(map(str, arguments)))
        return options.epochs, options.maxlen, options.learning_rate

    def temperature(*arguments):
        return train_retriever.parse_arguments(list(map(str, arguments))).temperature

    assert temperature() is None and temperature("--similarity", "dot") == 1  # None: the model's own
    assert temperature("--similarity", "dot", "--temperature", 2) == 2
    assert parsed() == (4, 64, 5e-4)
    assert parsed("--data", beir, "--init", config) == (4, 128, 5e-4)
    assert parsed("--data", beir, "--init", "some-model") == (3, 128, 2e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--negatives", "hard"], "invalid choice: 'hard'"),
        (["--data", "missing"], "--data: missing does not exist"),
        (["--data", "{folder}"], "is no folder in BEIR's layout: corpus.jsonl is missing"),
        (["--data", "{config}"], "--data: config.json must end in .jsonl"),
        (["--epochs", "0"], "--epochs must be at least 1; received 0"),
        (["--held-out", "1"], "--held-out must be in [0, 1); received 1.0"),
        (["--data", "{beir}", "--relative-margin", "0.1"], "--relative-margin is for the model's scores"),
        (["--mine-epochs", "-1"], "--mine-epochs must not be negative; received -1"),
        (["--mine-epochs", "1", "--negatives", "none"], "--mine-epochs needs hard negatives"),
        (["--mine-epochs", "1", "--distillation", "kl"], "--mine-epochs finds passages that no teacher has scored"),
        (["--resume"], "--resume: there is no run in"),
        (["--data", "{beir}", "--distillation", "kl"], "--data has no scores of a teacher"),
        (["--data", "{beir}", "--negatives", "file"], "--negatives file: --data has no negatives"),
        (["--data", "{test}"], "has no qrels/train.tsv to train on"),
        (["--data", "{folder}/text.jsonl"], "text.jsonl, line 2: `pos` must be a list of passages; received str 'abc'"),
        (["--data", "{folder}/none.jsonl"], "none.jsonl, line 1: `pos` must hold at least one passage"),
        (["--data", "{folder}/one.tsv"], "one.tsv, line 1: must have at least two columns"),
        (["--data", "{lost}"], "1 of 36 judged documents are unknown ('d0')"),
        (["--data", "{beir}", "--init", "{folder}/missing"], "missing does not exist"),
        (["--data", "{beir}", "--init", "{config}", "--maxlen", "65"], "`maxlen`"),
        (["--data", "{beir}", "--rank-range", "9", "9"], "`rank_range` must be two ints"),
        (["--data", "{beir}", "--temperature", "0"], "`temperature` must be positive"),
        (["--data", "{beir}", "--matryoshka", "49", "--init", "{config}"], "`matryoshka_sizes`"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments, message, beir, config, tmp_path, capsys):
    (tmp_path / "text.jsonl").write_text('{"query": "q", "pos": ["p"]}\n{"query": "q", "pos": "abc"}\n')
    (tmp_path / "none.jsonl").write_text('{"query": "q", "pos": []}\n')
    (tmp_path / "one.tsv").write_text("query\n")
    test = retrieval_files.write_beir(tmp_path / "test", ["test"])
    lost = retrieval_files.write_beir(tmp_path / "lost")
    lines = (lost / "corpus.jsonl").read_text().splitlines()
    (lost / "corpus.jsonl").write_text("\n".join(lines[1:]))
    places = {"folder": tmp_path, "beir": beir, "config": config, "test": test, "lost": lost}
    arguments = [argument.format(**places) for argument in arguments]
    assert message in fails(capsys, *arguments, "--output", tmp_path / "run")


def test_a_resumed_run_with_other_options_is_refused_naming_them(beir, tmp_path, capsys):
    output = tmp_path / "run"
    (output / "checkpoints").mkdir(parents=True)
    options = ["--quick", *command_line("--data", beir, "--output", output)]
    begun = deciding(train_retriever.parse_arguments(options), train_retriever.FREE_ON_RESUME)
    (output / "options.json").write_text(json.dumps(begun))
    message = fails(capsys, *options, "--num-mined", 3, "--save-steps", 7, "--resume")  # how often it saves is free
    assert "--num-mined was 8, is 3. To go on" in message and "save-steps" not in message
