"""The job of CCP, small: what it writes can be used and gone on with; its figures are not judged here."""

import gzip
import json
import random

import keras
import numpy as np
import pytest

import cross_lingual
import libreoffice_help
import pretrain_ccp
import training_runs
from command_line import deciding
from simretro import CCP, SentenceEncoder
from simretro.calibration import CrossLingualCalibrator
from simretro.data import Document
from simretro.evaluation import TextPair, evaluate_bitext
from tests.examples.runs import assert_same, message_of, trained, write_config

WORDS = "open close door window light lamp music house garden river stone bread water paper green yellow".split()
NUM_DOCUMENTS, SENTENCES = 12, 6
ENDING = {"en": "", "de": "en", "tr": "lar"}


def texts_of(language, seed, count):
    """Sentences that are the same in all languages, but for the ending of each word."""
    rng = random.Random(seed)
    words = [[word + ENDING[language] for word in rng.choices(WORDS, k=rng.randint(4, 9))] for _ in range(count)]
    return [" ".join(sentence).capitalize() + "." for sentence in words]


@pytest.fixture
def documents(tmp_path):
    """A .jsonl of each language, of documents that are no translations of each other."""
    paths = []
    for number, language in enumerate(ENDING):
        texts = texts_of(language, number, NUM_DOCUMENTS * SENTENCES)
        documents = [" ".join(texts[start : start + SENTENCES]) for start in range(0, len(texts), SENTENCES)]
        paths.append(tmp_path / f"{language}.jsonl")
        paths[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), "utf-8")
    return list(map(str, paths))


@pytest.fixture
def pairs(tmp_path):
    rows = zip(texts_of("en", 9, 20), texts_of("de", 9, 20), texts_of("tr", 9, 20), strict=True)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"en\t{en}\tde\t{de}\nde\t{de}\ttr\t{tr}\n" for en, de, tr in rows), "utf-8")
    return str(path)


@pytest.fixture
def config(tmp_path):
    return str(write_config(tmp_path / "config.json"))


def command_line(*arguments):
    return ["--pairs-per-batch", "8", "--vocab-size", "150", "--maxlen", "32", *map(str, arguments)]


def run(*arguments):
    return pretrain_ccp.main(["--quick", *command_line(*arguments)])


def fails(capsys, *arguments):
    return message_of(capsys, run, *arguments)


# Runs


@pytest.mark.slow
def test_own_documents_become_an_encoder_and_a_calibrator(documents, pairs, config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_runs, "MONITOR_STEPS", 1)
    tatoeba = tmp_path / "tatoeba"
    tatoeba.mkdir()
    for side, language in (("deu", "de"), ("eng", "en")):
        (tatoeba / f"tatoeba.deu-eng.{side}").write_text("\n".join(texts_of(language, 8, 15)) + "\n", "utf-8")
    output = tmp_path / "run"
    options = ["--documents", *documents, "--init", config, "--pairs", pairs, "--tatoeba", tatoeba, "--output", output]
    ccp, calibrator, results = run(*options)
    printed = capsys.readouterr().out
    vectors = ccp.encode(texts_of("de", 9, 20), show_progress=False)
    encoder = SentenceEncoder.from_pretrained(output / "model")
    assert (encoder.pooling, encoder.normalize) == ("cls", False)
    np.testing.assert_array_equal(encoder.encode(texts_of("de", 9, 20), show_progress=False), vectors)
    again = CCP.from_pretrained(output / "model")
    assert (again.languages, again.bank_size) == (("en", "de", "tr"), 64)
    filled = keras.ops.convert_to_numpy(again.bank.bank_filled)
    assert filled.sum() > 0, "a later run goes on with head and bank"
    loaded = CrossLingualCalibrator.load(output / "calibrator", fingerprint=encoder.fingerprint())
    assert loaded.languages_ == ["en", "de", "tr"] and loaded.pivot_ == "en"
    np.testing.assert_array_equal(loaded.transform(vectors, "de"), calibrator.transform(vectors, "de"))
    titles = ["TF-IDF", "calibrated", "before", "after", "+ shift", "+ scale", "+ rotate"]
    assert list(results) == ["Tatoeba", "pairs.tsv"]
    assert all(list(columns) == titles for columns in results.values()) and all(title in printed for title in titles)
    assert list(results["pairs.tsv"]["after"].pairs) == ["en-de", "de-tr"]
    assert len(results["Tatoeba"]["+ rotate"].pairs["en-de"].forward_hits) == 15
    facts = json.loads((output / "model" / "config.json").read_text("utf-8"))["simretro"]
    assert len(facts["history"]) == 2 and facts["options"]["temperature"] == "0.1"
    names = {"context_loss", "mlm_loss", "learning_rate", "tokens_per_s", "embedding_effective_rank"}
    assert names <= facts["history"][0].keys()
    assert [entry["step"] for entry in facts["evaluations"]["embedding"]] == [1, 2, 3, 4], "also within epochs"


@pytest.mark.slow
def test_an_interrupted_run_goes_on_exactly(documents, config, tmp_path, monkeypatch, capsys):
    class Interrupt(pretrain_ccp.LearningRate):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 3:
                raise KeyboardInterrupt
            super().on_train_batch_begin(batch, logs)

    options = ["--documents", *documents, "--init", config, "--save-steps", 1, "--output"]
    run(*options, tmp_path / "whole")
    expected = trained(tmp_path / "whole")
    assert "no aligned texts. Give --tatoeba or --pairs" in capsys.readouterr().out
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretrain_ccp, "LearningRate", Interrupt)
        run(*options, tmp_path / "broken")
    assert not (tmp_path / "broken" / "model").exists()
    run(*options, tmp_path / "broken", "--resume", "--scale", "none")  # how it is calibrated is free
    assert_same(trained(tmp_path / "broken"), expected)
    printed = capsys.readouterr().out
    assert "Epoch 2/2" in printed.split("writing to")[-1]
    run(*options, tmp_path / "broken", "--resume")  # all steps are done: no further one
    assert_same(trained(tmp_path / "broken"), expected)
    assert "Epoch" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_written_folder_is_a_start_for_the_next_run_on_all_devices(documents, tmp_path):
    run("--documents", *documents, "--pooling", "mean", "--window-sentences", 1, "--output", tmp_path / "run")
    first = trained(tmp_path / "run")
    init = ["--init", tmp_path / "run" / "model", "--strategy", "mirrored", "--micro-batches", 2]
    ccp, _, _ = run("--documents", *documents, *init, "--output", tmp_path / "run")
    assert (ccp.pooling, ccp.window_sentences) == ("mean", 1)
    second = trained(tmp_path / "run-2")  # a run that is there is never overwritten
    weights = [name for name in first if name.startswith("model")]
    changes = [np.abs(second[name] - first[name]).max() for name in weights]
    assert 0 < max(changes) < 1e-3, "four steps at 3e-5, from the weights of the first run"


@pytest.fixture
def help_pages(tmp_path, monkeypatch):
    """A cache of four languages, the same twenty pages in each."""
    for language, ending in {"en": "", "de": "en", "fr": "er", "es": "ar"}.items():
        rng = random.Random(0)
        with gzip.open(tmp_path / f"{language}.jsonl.gz", "wt", encoding="utf-8") as file:
            for page in range(20):
                texts = [
                    " ".join(word + ending for word in rng.choices(WORDS, k=8)) + f" {page} {number}."
                    for number in range(6)
                ]  # fmt: skip
                record = {"doc": f"{page}.html", "paragraphs": [[f"p{n}", text] for n, text in enumerate(texts)]}
                file.write(json.dumps(record) + "\n")
    monkeypatch.setattr(libreoffice_help, "CACHE", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--disjoint", "--languages", "en", "de", "--rotate", "none"]])
def test_the_job_without_documents(options, help_pages, tmp_path, capsys):
    _, calibrator, results = run(*options, "--output", tmp_path / "run")
    languages = ["en", "de"] if options else ["en", "de", "fr", "es"]
    assert calibrator.languages_ == languages
    wanted = ["en-de"] if options else ["en-de", "en-fr", "en-es", "de-fr"]
    columns = results["held-out pages"]
    assert list(columns["before"].pairs) == wanted and 0 <= columns["after"].mean <= 1
    printed = capsys.readouterr().out
    assert ("no page in two languages" if options else "the same pages") in printed
    assert ("+ rotate" in printed) == (not options)


# Options and files


def test_without_pages_or_tools_the_documents_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(libreoffice_help, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = fails(capsys, "--output", tmp_path / "run")
    assert "apt-get is not on this machine" in message and "--documents en.jsonl de.jsonl" in message
    assert not (tmp_path / "run").exists(), "the name stays free"


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        pretrain_ccp.parse_arguments(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for option in "documents init pooling mlm-share bank-size gradient-cache-rows scale rotate tatoeba pairs".split():
        assert f"--{option}" in printed


def test_defaults_depend_on_where_documents_and_weights_come_from(documents, config):
    def parsed(*arguments):
        return pretrain_ccp.parse_arguments(list(map(str, arguments)))

    small = parsed()
    assert small.languages == ["en", "de", "fr", "es"] and (small.pooling, small.learning_rate) == ("mean", 1e-3)
    own = parsed("--documents", *documents, "--init", config)
    assert list(own.documents) == ["en", "de", "tr"] and str(own.documents["tr"]) == documents[2]
    assert (own.is_config, own.pooling, own.bank_size, own.steps_per_epoch) == (True, "cls", 0, None)
    assert (own.learning_rate, own.mlm_share, own.languages) == (1e-3, 0.5, None)
    kept = parsed("--documents", *documents, "--init", "some-model")
    assert kept.learning_rate == 3e-5
    assert [one.optimizer for one in (small, own, kept)] == ["muon", "muon", "adamw"]
    # What the checkpoint knows of itself is left to it.
    names = ("pooling", "bank_size", "maxlen", "temperature", "window_sentences", "projection_size", "encode_maxlen")
    assert [getattr(kept, name) for name in names] == [None] * 7
    assert [getattr(parsed("--init", "some-model"), name) for name in names] == [None] * 7
    assert [getattr(own, name) for name in names] == ["cls", 0, 64, 0.1, 2, 128, None]
    assert (small.maxlen, small.encode_maxlen) == (32, 128)
    named = parsed("--documents", documents[0], f"zh-CN={documents[1]}", "--bank-size", 0, "--quick")
    assert (list(named.documents), named.bank_size, named.epochs) == (["en", "zh-CN"], 0, 2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--documents", "missing.jsonl"], "--documents: missing.jsonl does not exist"),
        (["--documents", "{0}"], "--documents must be of two languages or more; received ['en']"),
        (["--documents", "{0}", "en={1}"], "must name another language than the others"),
        (["--documents", "{0}", "{1}", "--disjoint"], "leave them out with --documents"),
        (["--epochs", "0"], "--epochs must be at least 1; received 0"),
        (["--micro-batches", "3"], "--micro-batches 3 must divide --pairs-per-batch 8"),
        (["--tatoeba", "nowhere"], "--tatoeba: nowhere does not exist"),
        (["--resume"], "--resume: there is no run in"),
        (["--documents", "{0}", "{1}", "--pairs", "{folder}/three.tsv"], "three.tsv, line 2: must have four columns"),
        (["--documents", "{0}", "{2}", "--pairs", "{pairs}"], "no documents to calibrate ['de'] with"),
        (["--documents", "{0}", "{1}", "--tatoeba", "{folder}"], "must have English beside one of the languages"),
        (["--documents", "{0}", "{folder}/empty.jsonl"], "empty.jsonl: holds no documents"),
        (["--documents", "{0}", "{1}", "--init", "{folder}/missing.ckpt"], "missing.ckpt does not exist"),
        (["--documents", "{0}", "{1}", "--maxlen", "33", "--init", "{config}"], "at most 32"),
        (["--documents", "{0}", "{1}", "--mlm-share", "2"], "`mlm_share` must be in [0, 1]; received 2.0"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments, message, documents, pairs, config, tmp_path, capsys):
    (tmp_path / "three.tsv").write_text("en\ta\tde\tb\nen\ta\tb\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    arguments = [one.format(*documents, pairs=pairs, config=config, folder=tmp_path) for one in arguments]
    assert message in fails(capsys, *arguments, "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the name stays free"


def test_a_resumed_run_with_other_options_is_refused_naming_them(documents, tmp_path, capsys):
    output = tmp_path / "run"
    (output / "checkpoints").mkdir(parents=True)
    options = ["--quick", *command_line("--documents", *documents, "--output", output)]
    begun = deciding(pretrain_ccp.parse_arguments(options), pretrain_ccp.FREE_ON_RESUME)
    (output / "options.json").write_text(json.dumps(begun))
    message = fails(capsys, *options[1:], "--temperature", 0.2, "--rotate", "none", "--resume")
    assert "--temperature was 0.1, is 0.2. To go on" in message and "rotate" not in message


# What is measured


def test_pairs_of_tatoeba_have_the_languages_of_the_documents(tmp_path):
    for code, line in {"deu": "Hallo.", "cmn": "你好。", "swh": "Habari."}.items():
        (tmp_path / f"tatoeba.{code}-eng.{code}").write_text(f"{line}\n", "utf-8")
        (tmp_path / f"tatoeba.{code}-eng.eng").write_text(f"Hello {code}.\n", "utf-8")
    pairs = cross_lingual.tatoeba_pairs(tmp_path, ["zh-CN", "en", "deu", "fr"])
    assert pairs == {
        "en-zh-CN": TextPair("en", "zh-CN", ["Hello cmn."], ["你好。"]),
        "en-deu": TextPair("en", "deu", ["Hello deu."], ["Hallo."]),
    }
    with pytest.raises(ValueError, match="must have English"):
        cross_lingual.tatoeba_pairs(tmp_path, ["de", "zh-CN"])


def test_sentences_are_drawn_once_each():
    documents = [Document(f"A sentence with {number}. Another one, too.") for number in range(60)]
    texts = cross_lingual.sample_sentences(documents, "en", 50)
    assert len(texts) == len(set(texts)) == 50 and texts == cross_lingual.sample_sentences(documents, "en", 50)
    assert texts != cross_lingual.sample_sentences(documents, "en", 50, seed=1)
    known = [Document("x", sentences=("First sentence here", "short", "Second sentence here"))]
    assert sorted(cross_lingual.sample_sentences(known, "en", 5)) == ["First sentence here", "Second sentence here"]


def test_stages_of_a_shifted_space_and_their_table(capsys):
    """Two languages in one space, the one moved away: the shift finds all again."""
    rng = np.random.default_rng(0)
    table = {f"{side}{row}": vector for side in "ab" for row, vector in enumerate(rng.normal(size=(300, 8)))}
    for row in range(50):
        table[f"b{row}"] = table[f"a{row}"].copy()
    for row in range(300):
        table[f"b{row}"] += np.eye(8)[0] * 40
    calls = []

    def encode(texts):
        calls.extend(texts)
        return np.array([table[text] for text in texts], "float32")

    side = [f"a{row}" for row in range(50)], [f"b{row}" for row in range(50)]
    pairs = {"en-xx": TextPair("en", "xx", *side), "xx-en": TextPair("xx", "en", *side[::-1])}
    vectors = cross_lingual.encode_pairs(encode, pairs)
    assert len(calls) == len(set(calls)) == 100
    fitted = {
        language: encode([f"{side}{row}" for row in range(50, 300)]) for language, side in (("en", "a"), ("xx", "b"))
    }
    calibrator = cross_lingual.fit_calibrator(fitted, scale=None, rotate=None, fingerprint="of these")
    assert (calibrator.pivot_, calibrator.fingerprint_) == ("en", "of these")
    assert cross_lingual.describe_rotations(calibrator).endswith("no rotation")
    found = cross_lingual.stage_results(vectors, pairs, calibrator)
    assert list(found) == ["raw", "shift"] and found["raw"].mean < 0.5 and found["shift"].mean > 0.9
    assert found["raw"].mean == pytest.approx(evaluate_bitext(pairs, vectors).mean)
    cross_lingual.print_table({"raw": found["raw"], "+ shift": found["shift"]}, pairs, "texts")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["texts", "chance", "raw", "+", "shift"] and len(lines) == 4
    shown = f"{100 * found['shift'].forward:.1f}/{100 * found['shift'].backward:.1f}"
    assert lines[3].split()[:2] == ["mean", "2.0"] and lines[3].endswith(shown)


def test_the_baseline_sees_characters_that_languages_share():
    english, german = texts_of("en", 0, 80), texts_of("de", 0, 80)
    encode = cross_lingual.tfidf_svd({"en": english[20:], "de": german[20:]}, 32)
    assert encode(english[:3]).shape == (3, 32) and encode(english).dtype == np.float32
    pairs = {"en-de": TextPair("en", "de", english[:20], german[:20])}
    assert evaluate_bitext(pairs, cross_lingual.encode_pairs(encode, pairs)).mean > 0.5
