"""The main job, small: all it prints and writes is there and right in kind; its figures are not judged here."""

import json
import math

import pytest

import train_simbert

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
    assert train_simbert.output_folder(options) == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert train_simbert.output_folder(options) == tmp_path / "run-3"
