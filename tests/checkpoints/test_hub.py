import os
import subprocess
import sys
import types
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from simretro.checkpoints import CheckpointError, read_checkpoint, write_huggingface
from simretro.checkpoints.hub import is_hub_name

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name, is_name",
    [
        *[(name, True) for name in ("owner/model", "owner_1/a.b-c", "bert-base-chinese", "hf://owner/model")],
        *[(name, True) for name in ("runs/simbert", "kaggle://keras/bert/keras/bert_base_zh/3")],
        *[(name, False) for name in ("./model", "../model", "/a/model", "~/model", "a/b/c", "a/", "", ".", "a\\b")],
        *[(name, False) for name in ("model/bert_config.json", "model/bert_model.ckpt", "x.safetensors", "用户/模型")],
    ],
)
def test_what_can_be_a_name(name, is_name):
    assert is_hub_name(name) is is_name


@pytest.fixture
def hub(monkeypatch, tmp_path, make_config, make_weights):
    """A hub with the files of `hub.files` {name: content}; `hub.calls` are the questions it was asked."""
    config = make_config()
    write_huggingface(tmp_path / "original", config, make_weights(config))
    files = {path.name: path.read_bytes() for path in (tmp_path / "original").iterdir()}
    hub = types.SimpleNamespace(files=files, calls=[], fetched=set(), folder=tmp_path / "cache")

    def snapshot_download(repo_id, *, revision=None, allow_patterns=None):
        hub.calls.append((repo_id, revision))
        for name, content in hub.files.items():
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                hub.fetched.add(name)
                (hub.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (hub.folder / name).write_bytes(content)
        hub.folder.mkdir(exist_ok=True)
        return str(hub.folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return hub


def test_fetches_what_is_needed_and_nothing_else(hub, make_config, make_weights, assert_same):
    needed = {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "1_Pooling/config.json"}
    needed |= {"modules.json", "sentence_bert_config.json"}
    hub.files["vocab.txt"] = b"a\n" * 11
    hub.files["modules.json"] = b'[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]'
    hub.files["1_Pooling/config.json"] = b'{"pooling_mode_cls_token": true}'
    hub.files |= {"sentence_bert_config.json": b"{}", "tokenizer_config.json": b"{}"}
    unneeded = ("tf_model.h5", "pytorch_model.bin", "onnx/model.onnx", "onnx/config.json", "README.md", "model.py")
    hub.files |= {name: b"" for name in (*unneeded, "rust_model.ot", "flax_model.msgpack", "openvino/model.bin")}
    checkpoint = read_checkpoint("owner/model", revision="v2")
    assert_same(checkpoint.weights, make_weights(make_config()))
    assert checkpoint.extras["pooling"] == "cls"
    assert hub.fetched == needed
    assert hub.calls == [("owner/model", "v2")]


def test_other_weights_are_fetched_only_without_safetensors(hub):
    del hub.files["model.safetensors"]
    hub.files |= {"pytorch_model.bin": b"", "bert_model.ckpt.index": b"", "model.onnx": b""}
    with pytest.raises((ImportError, CheckpointError), match=r"pytorch_model\.bin"):
        read_checkpoint("owner/model")
    assert hub.calls == [("owner/model", None)] * 2
    assert hub.fetched == {"config.json", "pytorch_model.bin", "bert_model.ckpt.index"}


def test_old_sentence_transformers_with_the_encoder_in_a_folder(hub, make_config, make_weights, assert_same):
    hub.files = {f"0_Transformer/{name}": content for name, content in hub.files.items()}
    hub.files["modules.json"] = b'[{"type": "a.Transformer", "path": "0_Transformer"}]'
    assert_same(read_checkpoint("hf://owner/model").weights, make_weights(make_config()))
    assert hub.calls == [("owner/model", None)]


def test_model_of_no_known_format(hub):
    hub.files = {"adapter_model.safetensors": b"", "README.md": b""}
    with pytest.raises(CheckpointError, match="holds no checkpoint; looked for"):
        read_checkpoint("owner/model")


def test_local_folder_comes_first(hub, tmp_path, make_config, make_weights, assert_same):
    config = make_config()
    weights = make_weights(config, seed=3)
    write_huggingface(tmp_path / "owner" / "model", config, weights)
    assert_same(read_checkpoint("owner/model").weights, weights)
    assert hub.calls == []
    with pytest.raises(CheckpointError, match="`revision` must be None for a local path; received 'v2'"):
        read_checkpoint("owner/model", revision="v2")


@pytest.mark.parametrize("name", ["./owner/model", "owner/model/bert_model.ckpt", Path("owner/model"), "a/b/c"])
def test_path_that_does_not_exist_is_named_and_not_looked_up(name, hub, tmp_path):
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(name)
    assert str((tmp_path / name).absolute()) in str(error.value)
    assert "does not exist; looked for a folder" in str(error.value)
    assert hub.calls == []


def test_unknown_name_says_where_it_looked(monkeypatch, tmp_path):
    def snapshot_download(repo_id, **_):
        raise LocalEntryNotFoundError("the connection is down")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint("owner/model", revision="v2")
    message = str(error.value)
    assert str(tmp_path / "owner" / "model") in message
    assert f"{huggingface_hub.constants.ENDPOINT}/owner/model, revision v2" in message
    assert huggingface_hub.constants.HF_HUB_CACHE in message
    assert "the connection is down" in message


def test_without_huggingface_hub(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match="'owner/model' is no local path.*pip install huggingface_hub"):
        read_checkpoint("owner/model")


OFFLINE = """
from simretro.checkpoints import CheckpointError, read_checkpoint
try:
    print(read_checkpoint("owner/model").source)
except CheckpointError as error:
    print(error)
"""


def test_offline_with_and_without_a_copy_in_the_cache(tmp_path, make_config, make_weights):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    environment = {key: value for key, value in environment.items() if key not in ("HF_HUB_CACHE", "HF_ENDPOINT")}
    environment["PYTHONPATH"] = str(REPOSITORY)

    def run():
        command = [sys.executable, "-c", OFFLINE]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    message = run()
    assert "HF_HUB_OFFLINE is set, so only the cache was asked" in message
    assert str(tmp_path / "owner" / "model") in message and str(tmp_path / "home" / "hub") in message

    commit = "0123456789" * 4
    cached = tmp_path / "home" / "hub" / "models--owner--model"
    config = make_config()
    write_huggingface(cached / "snapshots" / commit, config, make_weights(config))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert run() == str(cached / "snapshots" / commit / "model.safetensors")


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    """Keras Hub with one preset, and Kaggle with the files of `kaggle.files`."""
    kaggle = types.SimpleNamespace(files={}, calls=[])
    handle = "kaggle://keras/bert/keras/bert_tiny_test/3"
    backbone = types.SimpleNamespace(presets={"bert_tiny_test": {"kaggle_handle": handle}})
    fake = types.ModuleType("keras_hub")
    fake.models = types.SimpleNamespace(Backbone=backbone)
    fake.__spec__ = types.SimpleNamespace(name="keras_hub")

    def model_download(handle, path):
        kaggle.calls.append(handle)
        if isinstance(kaggle.files, Exception):
            raise kaggle.files
        if path not in kaggle.files:
            raise ValueError(f"{path} is not present in the model files")
        (tmp_path / "kaggle" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kaggle" / path).write_bytes(kaggle.files[path])
        return str(tmp_path / "kaggle" / path)

    monkeypatch.setitem(sys.modules, "keras_hub", fake)
    monkeypatch.setitem(sys.modules, "kagglehub", types.SimpleNamespace(model_download=model_download))
    monkeypatch.chdir(tmp_path)
    return kaggle


@pytest.mark.parametrize("name", ["bert_tiny_test", "kaggle://keras/bert/keras/bert_tiny_test/3"])
def test_preset_of_keras_hub(name, kaggle, tmp_path):
    kaggle.files = {"config.json": b'{"class_name": "GemmaBackbone", "registered_name": "x"}'}
    kaggle.files |= {"model.weights.h5": b"", "assets/tokenizer/vocabulary.txt": b""}
    with pytest.raises(CheckpointError, match=r"kaggle.config\.json: `class_name`"):  # its own reader has been asked
        read_checkpoint(name)
    assert set(kaggle.calls) == {"keras/bert/keras/bert_tiny_test/3"}
    assert (tmp_path / "kaggle" / "assets" / "tokenizer" / "vocabulary.txt").is_file()


def test_preset_that_cannot_be_fetched(kaggle, tmp_path):
    kaggle.files = ConnectionError("no route to host")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint("bert_tiny_test")
    message = str(error.value)
    assert "https://www.kaggle.com/models/keras/bert/keras/bert_tiny_test/3" in message
    assert str(tmp_path / "bert_tiny_test") in message and "no route to host" in message
    with pytest.raises(CheckpointError, match="`revision` must be None"):
        read_checkpoint("bert_tiny_test", revision="v2")


def test_failure_on_an_optional_file_of_a_preset_is_not_passed_over(kaggle, monkeypatch):
    kaggle.files = {"config.json": b"{}", "model.weights.h5": b""}
    download = sys.modules["kagglehub"].model_download

    def broken(handle, path):
        if path == "task.json":
            raise OSError("503 Server Error")
        return download(handle, path)

    monkeypatch.setattr(sys.modules["kagglehub"], "model_download", broken)
    with pytest.raises(CheckpointError, match=r"task\.json of https.*503"):
        read_checkpoint("bert_tiny_test")


def test_name_that_is_no_preset_goes_to_the_other_hub(kaggle, monkeypatch):
    def snapshot_download(repo_id, **_):
        raise LocalEntryNotFoundError("asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="asked"):
        read_checkpoint("no_such_preset")
    assert kaggle.calls == []
