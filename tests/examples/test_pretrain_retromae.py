"""The job of pre-training, small: what it writes can be used and gone on with; its figures are not judged here."""

import json
import random

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import pretrain_retromae
import python_docs
import training_runs
from command_line import deciding
from simretro import RetroMAE, SentenceEncoder, Tokenizer, build_transformer_model, train_wordpiece
from simretro.models import write_folder
from tests.examples.runs import CONFIG, assert_same, kill, message_of, trained, training_process, write_config

WORDS = "open close door window light lamp music house garden river stone bread water paper green yellow".split()
NUM_DOCUMENTS = 60


@pytest.fixture
def texts():
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(8, 24))) + "." for _ in range(NUM_DOCUMENTS)]


@pytest.fixture
def corpus(tmp_path, texts):
    path = tmp_path / "docs.txt"
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path / "config.json")


def command_line(*arguments):
    """Of 60 documents these are 4 batches, an epoch."""
    return ["--rows-per-batch", "16", "--vocab-size", "120", "--maxlen", "32", *map(str, arguments)]


def run(*arguments):
    return pretrain_retromae.main(["--quick", *command_line(*arguments)])


def facts_in(output):
    """What the model in the folder of a run tells of its training."""
    return json.loads((output / "model" / "config.json").read_text("utf-8"))["simretro"]


def fails(capsys, *arguments):
    return message_of(capsys, run, *arguments)


def jsonl_of(tmp_path, texts, name="docs.jsonl"):
    records = [{"_id": str(i), "title": text.split()[0], "text": text} for i, text in enumerate(texts)]
    (tmp_path / name).write_text("\n".join(map(json.dumps, records)) + "\n", "utf-8")
    return tmp_path / name


def folder_of(tmp_path, texts):
    folder = tmp_path / "docs"
    (folder / "more").mkdir(parents=True)
    (folder / "some.txt").write_text("\n".join(texts[:20]) + "\n", "utf-8")
    jsonl_of(folder / "more", texts[20:])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options, metrics",
    [
        ("txt", [], ["encoder", "decoder"]),
        ("jsonl", ["--bow-weight", 0.1, "--query-norm", "--mask-pool", 8], ["encoder", "decoder", "bow"]),
        ("folder", ["--decoding", "basic", "--decoder-mask-rate", 0.6, "--micro-batches", 2], ["encoder", "decoder"]),
        ("txt", ["--decoding", "none", "--bow-weight", 1, "--concatenate", "--short-rate", 0.2], ["encoder", "bow"]),
    ],
)
def test_own_corpus_becomes_a_folder_to_encode_and_to_go_on_with(kind, options, metrics, tmp_path, corpus, texts):
    makers = {"txt": lambda *_: corpus, "jsonl": jsonl_of, "folder": folder_of}
    mae, numbers = run("--corpus", makers[kind](tmp_path, texts), *options, "--output", tmp_path / "run")
    assert numbers == {}, "there is nothing to measure with"
    facts = facts_in(tmp_path / "run")
    history = facts["history"]
    assert facts["options"]["bow_weight"] == str(mae.bow_weight)
    if "--concatenate" not in options:
        assert len(history) == 1 and {f"{metric}_loss" for metric in metrics} <= history[0].keys()
        assert {"learning_rate", "tokens_per_s", "embedding_effective_rank"} <= history[0].keys()
        assert ("bow_loss" in history[0]) == ("bow" in metrics)
    vectors = mae.encode(texts, show_progress=False)
    encoder = SentenceEncoder.from_pretrained(tmp_path / "run" / "model")
    assert (encoder.pooling, encoder.normalize, encoder.maxlen) == ("cls", False, 32)
    np.testing.assert_array_equal(encoder.encode(texts, show_progress=False), vectors)
    again = RetroMAE.from_pretrained(tmp_path / "run" / "model")
    for name in ("decoding", "query_norm", "mask_pool_size", "bow_weight"):
        assert getattr(again, name) == getattr(mae, name)
    assert ("decoder" in metrics) == (again.decoder is not None)
    if again.decoder is not None:
        last = load_file(next((tmp_path / "run" / "checkpoints").glob("step-*/model.safetensors")))
        kernel = next(array for name, array in last.items() if name.endswith("decoder/query/kernel"))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(again.decoder.query.kernel), kernel)


@pytest.mark.slow
def test_the_written_folder_is_a_start_for_the_next_run(corpus, tmp_path, capsys):
    run("--corpus", corpus, "--output", tmp_path / "run")
    first = trained(tmp_path / "run")
    run("--corpus", corpus, "--init", tmp_path / "run" / "model", "--output", tmp_path / "run")
    second = trained(tmp_path / "run-2")  # a run that is there is never overwritten
    changes = [np.abs(second[name] - first[name]).max() for name in first if name.startswith(("model", "parts"))]
    assert 0 < max(changes) < 1e-3, "four steps at 1e-4, from the weights of the first run, decoder included"
    assert f"--resume --output {tmp_path / 'run-2'}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_next_run_keeps_the_objective_of_the_checkpoint(tmp_path, texts):
    """And its data are those that this objective reads."""
    corpus = jsonl_of(tmp_path, texts)
    own = ["--query-norm", "--mask-pool", 8, "--bow-weight", 0.1, "--decoder-mask-rate", 0.6, "--pooling", "mean"]
    run("--corpus", corpus, *own, "--output", tmp_path / "run")
    init = ["--corpus", corpus, "--init", tmp_path / "run" / "model", "--output", tmp_path / "run"]
    again, _ = run(*init)
    assert (again.decoding, again.query_norm, again.mask_pool_size) == ("enhanced", True, 8)
    assert (again.bow_weight, again.decoder_mask_rate, again.pooling) == (0.1, 0.6, "mean")
    assert "bow_loss" in facts_in(tmp_path / "run-2")["history"][0]
    other, _ = run(*init, "--decoding", "none", "--mask-pool", 0, "--bow-weight", 1, "--no-query-norm")
    assert (other.decoding, other.decoder, other.query_norm, other.mask_pool_size) == (None, None, False, None)
    assert (other.bow_weight, other.pooling) == (1, "mean")
    run("--corpus", corpus, "--decoding", "basic", "--decoder-mask-rate", 0.7, "--output", tmp_path / "basic")
    init = ["--corpus", corpus, "--init", tmp_path / "basic" / "model", "--output", tmp_path / "basic"]
    basic, _ = run(*init)
    assert (basic.decoding, basic.decoder_mask_rate, basic.bow_weight) == ("basic", 0.7, 0)
    state = json.loads(next((tmp_path / "basic-2" / "checkpoints").glob("step-*/state.json")).read_text("utf-8"))
    assert state["data"]["decoder_mask_rate"] == 0.7 and not state["data"]["with_word_ids"]


@pytest.mark.slow
def test_few_long_documents_are_trained_on_without_a_monitor(tmp_path, texts, capsys):
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text("\n".join(texts[number::8]) + "\n", "utf-8")
    run("--corpus", folder, "--text-files", "whole", "--rows-per-batch", 4, "--output", tmp_path / "run")
    assert "There are 8 different texts: too few to watch their vectors, which takes 16" in capsys.readouterr().out
    entry = facts_in(tmp_path / "run")["history"][0]
    assert "encoder_loss" in entry and "embedding_std" not in entry


@pytest.mark.slow
def test_a_run_that_ends_within_an_epoch_keeps_its_logs(corpus, tmp_path):
    """As the job without a corpus: its epoch is three times as long as the job."""
    options = ["--corpus", corpus, "--max-steps", 3, "--output", tmp_path / "run"]
    run(*options)
    told = facts_in(tmp_path / "run")
    assert [(entry["step"], entry["step_in_epoch"]) for entry in told["history"]] == [(3, 3)]
    assert {"decoder_loss", "learning_rate", "embedding_std"} <= told["history"][0].keys()
    assert [entry["step"] for entry in told["evaluations"]["embedding"]] == [3]
    before = trained(tmp_path / "run")
    run(*options, "--resume")  # all steps are done
    again = facts_in(tmp_path / "run")
    assert (again["history"], again["evaluations"]) == (told["history"], told["evaluations"])
    assert_same(trained(tmp_path / "run"), before)


@pytest.mark.slow
def test_a_collapse_is_told_within_the_epoch(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_runs, "MONITOR_STEPS", 2)
    monkeypatch.setattr(RetroMAE, "encode", lambda self, texts, **_: np.ones((len(texts), 8), "float32"))
    with pytest.warns(UserWarning, match="collapsed at update 2"):
        run("--corpus", corpus, "--output", tmp_path / "run")
    assert "\nstep 2: embedding_std 0, " in capsys.readouterr().out
    assert [entry["step"] for entry in facts_in(tmp_path / "run")["evaluations"]["embedding"]] == [2, 4]


@pytest.mark.slow
def test_tensorboard_shows_the_losses_and_what_is_evaluated_within_epochs(corpus, tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(training_runs, "MONITOR_STEPS", 2)
    run("--corpus", corpus, "--tensorboard", "--output", tmp_path / "run")
    shown = {}
    for path in (tmp_path / "run" / "logs").rglob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("tensor") and value.tensor.dtype == tf.float32.as_datatype_enum:
                    shown.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    told = facts_in(tmp_path / "run")
    for name in ("loss", "encoder_loss", "decoder_loss"):
        [(epoch, value)] = shown[f"epoch_{name}"]
        assert epoch == 0 and value == pytest.approx(told["history"][0][name], rel=1e-6)
    expected = [(entry["step"], entry["embedding_std"]) for entry in told["evaluations"]["embedding"]]
    assert [step for step, _ in expected] == [2, 4]
    np.testing.assert_allclose(shown["embedding_std"], expected, rtol=1e-6)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_exactly(corpus, tmp_path, monkeypatch, capsys):
    class Interrupt(pretrain_retromae.StopAfter):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 2:
                raise KeyboardInterrupt

    options = ["--corpus", corpus, "--dropout", 0.1, "--save-steps", 1]
    run(*options, "--output", tmp_path / "whole")
    expected = trained(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretrain_retromae, "StopAfter", Interrupt)
        run(*options, "--output", tmp_path / "broken")
    assert [path.name for path in (tmp_path / "broken" / "checkpoints").glob("step-*")] == ["step-00000002"]
    steps = []

    class Counted(pretrain_retromae.StopAfter):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(int(self.model.optimizer.iterations))
            super().on_train_batch_end(batch, logs)

    monkeypatch.setattr(pretrain_retromae, "StopAfter", Counted)
    run(*options, "--resume", "--output", tmp_path / "broken")
    assert_same(trained(tmp_path / "broken"), expected)
    assert steps == [3, 4]
    capsys.readouterr()
    run(*options, "--resume", "--output", tmp_path / "broken")  # all steps are done: no further one
    assert_same(trained(tmp_path / "broken"), expected)
    assert steps == [3, 4] and "/4" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_exactly(corpus, config, tmp_path):
    """By SIGKILL, at whatever moment of its second step or of those after it, perhaps while it saves."""
    arguments = command_line("--corpus", corpus, "--init", config, "--epochs", 12, "--save-steps", 1, "--output")
    pretrain_retromae.main([*arguments, str(tmp_path / "whole")])
    kill("pretrain_retromae.py", [*arguments, str(tmp_path / "killed")], rb"[2-4]/4")
    assert not (tmp_path / "killed" / "model").exists()
    last = json.loads((tmp_path / "killed" / "checkpoints" / "latest.json").read_text("utf-8"))
    assert "48" not in str(last), "it was killed before its last step"
    pretrain_retromae.main([*arguments, str(tmp_path / "killed"), "--resume"])
    assert_same(trained(tmp_path / "killed"), trained(tmp_path / "whole"))


@pytest.mark.slow
def test_mirrored_strategy_and_a_probe(corpus, tmp_path, texts, capsys):
    """With one device the strategy changes how the step is made, not what it does."""
    beir = tmp_path / "tiny"
    (beir / "qrels").mkdir(parents=True)
    jsonl_of(beir, texts, "corpus.jsonl")
    queries = [{"_id": f"q{i}", "text": texts[i][:30]} for i in range(5)]
    (beir / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), "utf-8")
    judgements = "".join(f"q{i}\t{i}\t1\n" for i in range(5))
    (beir / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    run("--corpus", corpus, "--output", tmp_path / "plain")
    run("--corpus", corpus, "--strategy", "mirrored", "--probe", beir, "--probe-steps", 2, "--output", tmp_path / "run")
    printed = capsys.readouterr().out
    facts = facts_in(tmp_path / "run")
    found = facts["evaluations"]["tiny"]
    assert [entry["step"] for entry in found] == [2, 4]
    assert all(0 <= entry["tiny_nDCG@10"] <= 1 for entry in found)
    assert facts["history"][0]["tiny_nDCG@10"] == found[1]["tiny_nDCG@10"]
    assert f"\nstep 2: tiny_nDCG@10 {found[0]['tiny_nDCG@10']:.4g}, " in printed and "tiny_nDCG@10: " in printed
    plain, mirrored = trained(tmp_path / "plain"), trained(tmp_path / "run")
    for name in plain:
        if name.startswith("model"):
            np.testing.assert_allclose(mirrored[name], plain[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["none", "mirrored"])
def test_the_job_without_a_corpus(strategy, tmp_path, monkeypatch, capsys):
    folders = {"sklearn": python_docs.installed_folders()["sklearn"]}
    monkeypatch.setattr(python_docs, "installed_folders", lambda: folders)
    mae, numbers = pretrain_retromae.main(["--quick", "--strategy", strategy, "--output", str(tmp_path / "run")])
    assert mae.bow_weight == 1
    printed = capsys.readouterr().out
    assert "sklearn" in printed and "texts to pre-train on" in printed
    kinds = ("untrained", "untrained, fine-tuned", "pre-trained", "pre-trained, fine-tuned")
    assert numbers.keys() == {"BM25", *kinds}
    assert 0.3 < numbers["BM25"] < 0.9 and all(0 <= numbers[kind] <= 1 for kind in kinds)


def test_the_progress_bar_knows_where_the_training_ends(capsys):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stop = pretrain_retromae.StopAfter(7)
    model.fit(np.ones((10, 3)), np.ones((10, 1)), batch_size=2, epochs=4, verbose=2, callbacks=[stop])
    printed = capsys.readouterr().out
    assert "5/5 - " in printed and "2/2 - " in printed and "Epoch 2/4" in printed and "Epoch 3/4" not in printed
    assert int(model.optimizer.iterations) == 7


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        pretrain_retromae.parse_arguments(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for option in "corpus init decoding mask-rate bow-weight probe strategy save-steps resume output quick".split():
        assert f"--{option}" in printed


def test_defaults_depend_on_where_the_weights_come_from(corpus, config):
    def parsed(*arguments):
        return pretrain_retromae.parse_arguments(list(map(str, arguments)))

    assert (parsed().max_steps, parsed().maxlen, parsed().learning_rate) == (600, 64, 2e-3)
    assert (parsed().rows_per_batch, parsed().bow_weight, parsed("--bow-weight", 0).bow_weight) == (32, 1.0, 0.0)
    own = parsed("--corpus", corpus, "--init", config)
    assert (own.is_config, own.max_steps, own.maxlen, own.learning_rate) == (True, None, 128, 1e-3)
    assert (own.rows_per_batch, own.bow_weight) == (64, 0.0)
    kept = parsed("--corpus", corpus, "--init", "some-model")
    assert kept.learning_rate == 1e-4
    assert [one.optimizer for one in (parsed(), own, kept)] == ["muon", "muon", "adamw"]
    assert parsed("--optimizer", "adamw").optimizer == "adamw"
    # What the checkpoint knows of itself is left to it.
    assert {getattr(kept, name) for name in pretrain_retromae.OF_THE_MODEL} == {None}
    assert (parsed("--init", "some-model").bow_weight, parsed("--init", "some-model").maxlen) == (None, 64)
    assert [parsed("--quick", *more).max_steps for more in ([], ["--max-steps", 2])] == [4, 2]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--decoding", "full"], "invalid choice: 'full'"),
        (["--new-parts", "pooler"], "invalid choice: 'pooler'"),
        (["--corpus", "missing.txt"], "--corpus: missing.txt does not exist"),
        (["--epochs", "0"], "--epochs must be at least 1; received 0"),
        (["--micro-batches", "3"], "--micro-batches 3 must divide --rows-per-batch 16"),
        (["--probe-steps", "5"], "--probe-steps needs --probe"),
        (["--resume"], "--resume: there is no run in"),
    ],
)
def test_bad_options_are_told_in_a_line(arguments, message, tmp_path, capsys):
    assert message in fails(capsys, *arguments, "--output", tmp_path / "run")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--corpus", "{folder}/empty.txt"], "empty.txt: holds no documents"),
        (["--corpus", "{folder}/bare"], "bare: the folder holds no documents"),
        (["--corpus", "{folder}/broken.jsonl"], "broken.jsonl, line 2: has no `text`"),
        (["--corpus", "{corpus}", "--init", "{folder}/missing"], "missing does not exist"),
        (["--corpus", "{corpus}", "--init", "{config}", "--maxlen", "33"], "at most 32, the positions of the encoder"),
        (["--corpus", "{corpus}", "--init", "{folder}/no_mask"], "`tokenizer` must have a `mask_token_id`"),
        (["--corpus", "{corpus}", "--init", "{folder}/no_head"], "mlm_head"),
        (["--corpus", "{corpus}", "--mask-rate", "1"], "`mask_rate` must be in [0, 1); received 1.0"),
        (["--corpus", "{corpus}", "--warmup-share", "2"], "`warmup_steps`"),
        (["--corpus", "{corpus}", "--probe", "{folder}/bare"], "corpus.jsonl is missing"),
    ],
)
def test_bad_files_and_values_are_told_in_a_line(arguments, message, corpus, config, texts, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bare").mkdir()
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"body": "lost"}\n')
    tokenizer = train_wordpiece(texts, 120)
    if "{folder}/no_head" in arguments:
        write_folder(tmp_path / "no_head", encoder_of(tokenizer), tokenizer)
    if "{folder}/no_mask" in arguments:
        tokenizer = Tokenizer({token: i for i, token in enumerate(t for t in tokenizer.vocab if t != "[MASK]")})
        write_folder(tmp_path / "no_mask", encoder_of(tokenizer, with_mlm="linear"), tokenizer)
    arguments = [argument.format(corpus=corpus, config=config, folder=tmp_path) for argument in arguments]
    assert message in fails(capsys, *arguments, "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the name stays free"


def test_the_vocabulary_is_learnt_from_titles_too(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text(json.dumps({"title": "Zebra", "text": "an animal"}) + "\n" + json.dumps({"text": "a plant"}) + "\n")
    options = pretrain_retromae.parse_arguments(["--corpus", str(path)])
    assert list(pretrain_retromae.texts_of(path, options)) == ["Zebra an animal", "a plant"]


def test_a_folder_in_which_another_process_trains_is_refused_in_a_line(corpus, config, tmp_path, capsys):
    output = tmp_path / "run"
    with training_process(output / "checkpoints"):
        message = fails(capsys, "--corpus", corpus, "--init", config, "--resume", "--output", output)
    assert f"{output / 'checkpoints'} is being written by another training run" in message


def test_tensorboard_that_is_not_installed_is_told_before_the_training(corpus, config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_runs, "find_spec", lambda name: None)
    message = fails(capsys, "--corpus", corpus, "--init", config, "--tensorboard", "--output", tmp_path / "run")
    assert "--tensorboard needs another package: pip install tensorboard" in message
    assert not (tmp_path / "run").exists(), "the name stays free"


def encoder_of(tokenizer, **options):
    config = {**CONFIG, "vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    return build_transformer_model(config, **options)


def test_a_resumed_run_with_other_options_is_refused_naming_them(corpus, tmp_path, capsys):
    output = tmp_path / "run"
    (output / "checkpoints").mkdir(parents=True)
    options = ["--quick", *command_line("--corpus", corpus, "--output", output)]
    begun = deciding(pretrain_retromae.parse_arguments(options), pretrain_retromae.FREE_ON_RESUME)
    (output / "options.json").write_text(json.dumps(begun))
    other = ["--mask-rate", 0.4, "--bow-weight", 0.1, "--save-steps", 7]  # how often it saves is free
    message = fails(capsys, *options, *other, "--resume")
    assert "--mask-rate was 0.3, is 0.4; --bow-weight was 0.0, is 0.1. To go on" in message
    assert "save-steps" not in message
