"""The main job, small: all it prints and writes is there and right in kind; its figures are not judged here."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import train_simbert
from command_line import free_folder
from tests.examples.runs import assert_same, trained

WORDS = ["开灯", "关灯", "开窗", "关窗", "开门", "关门", "开电视", "关电视", "放音乐", "停音乐", "调高温度", "调低温度"]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "groups.jsonl"
    groups = [{"text": f"请{word}", "synonyms": [f"帮我{word}吧", f"{word}一下"]} for word in WORDS]
    path.write_text("\n".join(json.dumps(group, ensure_ascii=False) for group in groups) + "\n", encoding="utf-8")
    return path


def run(*arguments):
    return train_simbert.main(["--quick", "--pairs-per-batch", "4", *map(str, arguments)])


@pytest.mark.slow
def test_own_corpus_then_its_checkpoint(corpus, tmp_path, capsys):
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("请开灯\t开灯一下\t1\n请开灯\t关门一下\t0\n", encoding="utf-8")
    output = tmp_path / "run"
    options = ["--corpus", corpus, "--held-out", 0.2, "--mlm-rate", 0.2, "--evaluate", pairs, "--ema"]
    simbert, numbers = run(*options, "--output", output)
    printed = capsys.readouterr().out
    for part in ("seq2seq_loss", "similarity_loss", "mlm_loss", "R@1", "perplexity", "gen_synonyms(", "AnnoyIndex"):
        assert part in printed
    assert 0 <= numbers["dev.tsv SimBERT"] <= 1 and 1 < numbers["perplexity"] < 10 * simbert.tokenizer.vocab_size
    facts = json.loads((output / "model" / "config.json").read_text(encoding="utf-8"))["facts"]
    assert facts["options"]["mlm_rate"] == "0.2" and len(facts["history"]) == 2
    again, _ = run("--corpus", corpus, "--checkpoint", output / "model", "--output", output)
    assert again.encoder.config == simbert.encoder.config
    assert (tmp_path / "run-2" / "model" / "config.json").is_file(), "a run that is there is never overwritten"


@pytest.mark.slow
def test_a_run_is_resumed_where_it_ended(corpus, tmp_path, capsys):
    options = ["--corpus", corpus, "--output", tmp_path / "run"]
    _, numbers = run(*options)
    capsys.readouterr()
    _, again = run(*options, "--resume")
    assert "Epoch" not in capsys.readouterr().out, "all epochs were done"
    assert all(math.isclose(numbers[name], again[name], rel_tol=1e-6) for name in numbers)
    with pytest.raises(SystemExit):
        run(*options, "--resume", "--temperature", 0.5, "--seed", 1)
    told = capsys.readouterr().err
    assert "--temperature was" in told and "is 0.5" in told and "--seed was 0, is 1" in told


@pytest.mark.slow
def test_a_run_that_was_interrupted_within_its_first_epoch_goes_on_exactly(corpus, tmp_path, monkeypatch):
    class Interrupt(train_simbert.Throughput):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 2:
                raise KeyboardInterrupt
            super().on_train_batch_begin(batch, logs)

    options = ["--corpus", corpus, "--held-out", 0.2, "--save-steps", 1]
    run(*options, "--output", tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_simbert, "Throughput", Interrupt)
        run(*options, "--output", tmp_path / "broken")
    saved = [path.name for path in (tmp_path / "broken" / "checkpoints").glob("step-*")]
    assert saved == ["step-00000002"]
    run(*options, "--resume", "--output", tmp_path / "broken")
    files = ["model.safetensors"]
    assert_same(trained(tmp_path / "broken", files), trained(tmp_path / "whole", files))


def test_defaults_depend_on_where_the_weights_come_from():
    parsed = train_simbert.parse_arguments
    assert (parsed([]).epochs, parsed([]).learning_rate) == (10, 1e-3)
    checkpoint = parsed(["--checkpoint", "some/model"])
    assert (checkpoint.epochs, checkpoint.learning_rate) == (5, 2e-5)
    assert parsed(["--quick"]).epochs == 2 and parsed(["--quick", "--epochs", "3"]).epochs == 3
    assert parsed(["--learning-rate", "0"]).learning_rate == 0


@pytest.mark.slow
def test_groups_of_near_copies_are_told_and_not_measured(tmp_path, capsys):
    path = tmp_path / "groups.jsonl"
    groups = [{"text": f"how do i {word} it", "synonyms": [f"how can i {word} it"]} for word in "abcdefghijkl"]
    path.write_text("".join(json.dumps(group) + "\n" for group in groups))
    _, numbers = run("--corpus", path, "--held-out", 0.3, "--output", tmp_path / "run")
    assert "No sentence has a positive in its group" in capsys.readouterr().out
    assert "SimBERT" not in numbers and numbers["perplexity"] > 1


@pytest.mark.slow
def test_the_job_without_a_corpus(tmp_path, capsys):
    _, numbers = run("--pairs-per-batch", 16, "--output", tmp_path / "run")
    printed = capsys.readouterr().out
    assert "TF-IDF, character bigrams" in printed and "intent and slots" in printed
    assert 0 < numbers["TF-IDF, character bigrams"] < 0.9


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        train_simbert.parse_arguments(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for option in ("--corpus", "--checkpoint", "--evaluate", "--mlm-rate", "--strategy", "--resume", "--output"):
        assert option in printed


def test_the_next_free_folder_is_taken(tmp_path):
    options = train_simbert.parse_arguments(["--output", str(tmp_path / "run")])
    # Each is made at once: the next one, be it another process's, takes another.
    taken = [free_folder(options.output, options.resume) for _ in range(3)]
    assert taken == [tmp_path / name for name in ("run", "run-2", "run-3")]
    assert all(folder.is_dir() for folder in taken)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--new-parts", "bogus"], "invalid choice: 'bogus'"),
        (["--corpus", "missing.jsonl"], "missing.jsonl is not a file"),
        (["--evaluate", "missing.tsv"], "missing.tsv is not a file"),
        (["--corpus", "{corpus}", "--checkpoint", "{folder}/missing"], "missing does not exist"),
        (["--corpus", "{folder}/broken.jsonl"], "broken.jsonl, line 1"),
        (["--corpus", "{folder}/common.jsonl"], "of 2 groups held out 0 have no text in common"),
        (["--resume"], "--resume: there is no run"),
        (["--epochs", "0"], "--epochs must be at least 1; received 0"),
        (["--evaluate", "{folder}/one.tsv"], "one.tsv needs pairs of both labels, 0 and 1"),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(arguments, message, corpus, tmp_path, capsys):
    (tmp_path / "broken.jsonl").write_text("{\n", encoding="utf-8")
    (tmp_path / "one.tsv").write_text("a\tb\t1\nc\td\t1\n", encoding="utf-8")
    lines = [json.dumps({"text": "same", "synonyms": [f"text {i}"]}) for i in range(8)]
    (tmp_path / "common.jsonl").write_text("\n".join(lines), encoding="utf-8")
    arguments = [argument.format(corpus=corpus, folder=tmp_path) for argument in arguments]
    with pytest.raises(SystemExit) as left:
        train_simbert.main([*arguments, "--output", str(tmp_path / "run"), "--quick"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1] and "Traceback" not in error


def test_the_interval_counts_groups_and_not_their_queries():
    """Ten groups of nine queries that succeed or fail together are ten observations, not ninety."""
    group_ids = np.repeat(np.arange(10), 9)
    result = SimpleNamespace(query_ids=np.arange(90), ranks=1 + (group_ids % 2))
    low, high = train_simbert.interval_of_groups(result, group_ids.tolist())
    assert low <= 0.2 and high >= 0.8  # of ninety observations: 0.4 to 0.6
    skipped = SimpleNamespace(query_ids=np.arange(3), ranks=np.array([1, 1, 1]))
    assert train_simbert.interval_of_groups(skipped, ["a", "b", "b"]) == (1.0, 1.0)
