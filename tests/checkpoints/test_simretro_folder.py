import errno
import json
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from simretro.checkpoints import (
    CheckpointError,
    read_checkpoint,
    simretro_folder,
    write_huggingface,
    write_simretro,
    write_tf1,
)
from simretro.files import atomic_folder

REPOSITORY = Path(__file__).parents[2]


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@pytest.fixture
def folder(make_config, make_weights, tmp_path):
    config = make_config()
    write_simretro(tmp_path / "model", config, make_weights(config), {"steps": 3})
    return tmp_path / "model"


def test_round_trip_is_exact(any_config, make_weights, heads, tmp_path, assert_same):
    weights = make_weights(any_config, **heads)
    facts = {"steps": 7, "corpus": "问题", "losses": [1.5, None]}
    write_simretro(tmp_path / "a", any_config, weights, facts)
    first = read_checkpoint(tmp_path / "a")
    write_simretro(tmp_path / "b", first.config, first.weights, first.extras["facts"])
    second = read_checkpoint(str(tmp_path / "b" / "config.json"))
    for checkpoint in (first, second):
        assert_same(checkpoint.weights, weights)
        assert checkpoint.config == any_config
        assert checkpoint.extras == {"facts": facts}
        assert checkpoint.tokenizer_folder is None
    assert second.source == str(tmp_path / "b" / "model.safetensors")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_files_hold_our_names_and_say_what_they_are(folder, make_config, make_weights):
    config = make_config()
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    checksum = zlib.crc32((folder / "model.safetensors").read_bytes())
    assert content == {
        "format": "simretro", "format_version": 1, "config": config, "facts": {"steps": 3},
        "crc32": {"model.safetensors": checksum},
    }  # fmt: skip
    arrays = load_file(folder / "model.safetensors")
    assert sorted(arrays) == sorted(make_weights(config))


def test_turned_and_strided_arrays_are_written_as_they_look(make_config, make_weights, tmp_path, assert_same):
    config = make_config()
    weights = make_weights(config)
    turned = {name: np.asfortranarray(array) if array.ndim == 2 else array[::-1] for name, array in weights.items()}
    write_simretro(tmp_path / "a", config, turned)
    assert_same(read_checkpoint(tmp_path / "a").weights, turned)


def test_tokenizer_files_join_the_same_folder(make_config, make_weights, tmp_path):
    config = make_config()
    weights = make_weights(config)
    with atomic_folder(tmp_path / "model") as staging:
        (staging / "vocab.txt").write_text("a\n" * 11, encoding="utf-8")
        write_simretro(staging, config, weights)
        assert not (tmp_path / "model").exists()
    assert read_checkpoint(tmp_path / "model").tokenizer_folder == tmp_path / "model"
    (tmp_path / "model" / "vocab.txt").write_text("a\n" * 12, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocab\.txt has 12 tokens, `vocab_size` is 11"):
        read_checkpoint(tmp_path / "model")


def test_one_error_names_missing_unexpected_and_misshapen(folder):
    arrays = load_file(folder / "model.safetensors")
    del arrays["block_1/output/bias"], arrays["pooler/kernel"]
    arrays["decoder/kernel"] = np.ones((2, 2), "float32")
    arrays["mlm_head/bias"] = np.ones(12, "float32")
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder)
    message = str(error.value)
    assert str(folder / "model.safetensors") in message
    assert "missing (2): block_1/output/bias, pooler/kernel" in message
    assert "unexpected (1): decoder/kernel" in message
    assert "mlm_head/bias is (12,), the config asks for (11,)" in message


def test_damaged_folders(folder):
    edit(folder / "config.json", format_version=2)
    with pytest.raises(CheckpointError, match=r"config\.json: `format_version` is 2, this simretro reads 1"):
        read_checkpoint(folder)
    edit(folder / "config.json", format_version=1, facts=None)
    with pytest.raises(CheckpointError, match=r"config\.json must hold the objects"):
        read_checkpoint(folder)
    edit(folder / "config.json", facts={})
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not exist"):
        read_checkpoint(folder)


def test_weights_that_do_not_fit_are_not_written(make_config, make_weights, tmp_path):
    config = make_config()
    with pytest.raises(CheckpointError, match=r"(?s)`weights`.*config asks for \(12, 8\)"):
        write_simretro(tmp_path / "a", {**config, "vocab_size": 12}, make_weights(config))
    for error, value in ((TypeError, np.ones(2)), (ValueError, float("nan")), (ValueError, [float("inf")])):
        with pytest.raises(error, match="`facts` must be JSON values"):
            write_simretro(tmp_path / "a", config, make_weights(config), {"array": value})
    assert not list(tmp_path.iterdir())


def test_a_weight_that_changed_on_the_disk_is_noticed(folder, make_config, make_weights, assert_same):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # a bit of a number, which stays finite
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its checksum.*remove `crc32`"):
        read_checkpoint(folder)
    content[-2] ^= 1
    path.write_bytes(bytes(content))
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del saved["crc32"]  # as folders of the first versions
    (folder / "config.json").write_text(json.dumps(saved), encoding="utf-8")
    assert_same(read_checkpoint(folder).weights, make_weights(make_config()))


@pytest.mark.parametrize("writer", ["huggingface", "simretro", pytest.param("tf1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["index.json", "latest.json"])
def test_an_index_or_a_run_is_not_replaced_by_a_model(writer, name, make_config, make_weights, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"must not hold anything but a model.*{name}"):
        WRITERS[writer](tmp_path, make_config(), make_weights(make_config()))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.filterwarnings("error")
def test_a_folder_that_is_saved_while_it_is_read_is_never_mixed(folder, make_config, make_weights, monkeypatch):
    """The config and the facts are read first, the weights then; a save comes in between."""
    config, later = make_config(), {}
    opened = simretro_folder.open_safetensors

    def save_first(paths):
        if not later:
            later.update(make_weights(config, seed=9))
            write_simretro(folder, config, later, {"steps": 4})
        return opened(paths)

    monkeypatch.setattr(simretro_folder, "open_safetensors", save_first)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.extras["facts"] == {"steps": 4}
    np.testing.assert_array_equal(checkpoint.weights["mlm_head/bias"], later["mlm_head/bias"])


def test_no_name_is_no_checkpoint(tmp_path, monkeypatch):
    for name in ("", " "):
        with pytest.raises(CheckpointError, match=f"`name_or_path`.*received {name!r}"):
            read_checkpoint(name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        read_checkpoint(".")


WRITERS = {"huggingface": write_huggingface, "simretro": write_simretro, "tf1": write_tf1}


@pytest.mark.parametrize("writer", ["huggingface", "simretro"])
def test_full_disk_while_saving_leaves_the_old_checkpoint(
    writer, make_config, make_weights, tmp_path, monkeypatch, assert_same
):
    config = make_config()
    old, new = make_weights(config, seed=1), make_weights(config, seed=2)
    write = WRITERS[writer]
    write(tmp_path / "model", config, old)

    def run_full(arrays, path, metadata=None):
        Path(path).write_bytes(b"the first half")
        raise OSError(errno.ENOSPC, "No space left on device")

    module = {"huggingface": "huggingface", "simretro": "simretro_folder"}[writer]
    with monkeypatch.context() as patch:
        patch.setattr(f"simretro.checkpoints.{module}.save_file", run_full)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "model", config, new)
    assert_same(read_checkpoint(tmp_path / "model").weights, old)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    write(tmp_path / "model", config, new)
    assert_same(read_checkpoint(tmp_path / "model").weights, new)


LIMITED = """
import resource, sys
import numpy as np
from simretro.checkpoints import read_checkpoint, write_huggingface, write_simretro, write_tf1
folder, writer = sys.argv[1:]
checkpoint = read_checkpoint(folder)
if writer == "write_tf1":
    import tensorflow
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file may grow beyond, so that writing fails half way
try:
    globals()[writer](folder, checkpoint.config, {name: 0 * array for name, array in checkpoint.weights.items()})
except Exception as error:
    print(f"failed with {type(error).__name__}")
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
@pytest.mark.parametrize(
    "writer", ["write_huggingface", "write_simretro", pytest.param("write_tf1", marks=pytest.mark.slow)]
)
def test_writing_that_really_fails_leaves_the_old_checkpoint(writer, make_config, make_weights, tmp_path, assert_same):
    config = make_config()
    weights = make_weights(config)
    write_simretro(tmp_path / "model", config, weights)
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "model"), writer]
    run = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert "failed with" in run.stdout, run.stderr
    assert_same(read_checkpoint(tmp_path / "model").weights, weights)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
