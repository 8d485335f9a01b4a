import pytest

from simretro.checkpoints import CheckpointError, read_checkpoint, write_huggingface, write_simretro


@pytest.fixture
def folder(make_config, make_weights, tmp_path):
    config = make_config()
    write_huggingface(tmp_path / "model", config, make_weights(config))
    return tmp_path / "model"


def test_folders_with_nothing_to_read(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint; looked for model\.safetensors.*bert_model"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json, line 1: no valid JSON"):
        read_checkpoint(tmp_path)


def test_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert read_checkpoint("~/model").source == str(folder / "model.safetensors")


def test_folder_that_a_killed_run_has_left_aside(folder):
    folder.rename(folder.with_name(".model.old-4194303-2"))
    with pytest.warns(UserWarning, match="put back"):
        assert read_checkpoint(folder).source == str(folder / "model.safetensors")


def test_second_config_must_say_the_same(folder, make_config, tmp_path):
    config = make_config()
    read_checkpoint(folder, config=config)
    read_checkpoint(folder, config=folder / "config.json")
    with pytest.raises(CheckpointError, match=r"`hidden_act` is 'relu', there 'gelu'.*Leave `config` out"):
        read_checkpoint(folder, config={**config, "hidden_act": "relu"})


def test_format_is_read_from_the_folder_not_from_its_name(make_config, make_weights, tmp_path, assert_same):
    config = make_config()
    first, second = make_weights(config, seed=1), make_weights(config, seed=2)
    for write, weights in ((write_simretro, first), (write_huggingface, second), (write_simretro, first)):
        write(tmp_path / "model", config, weights)
        assert_same(read_checkpoint(tmp_path / "model").weights, weights)
