"""Whole or not at all: injected failures at every call, kills at every call, and what nests in what."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro import files
from simretro.files import atomic_file, atomic_folder, recover_folder

REPOSITORY = Path(__file__).parents[1]
CONTENTS = st.dictionaries(st.sampled_from(["a", "b", "sub/c", "sub/deep/d"]), st.binary(max_size=20), min_size=1)

DEAD = 4_194_303  # the id of no process: one below the limit of Linux


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(folder):
    found = {path for path in folder.rglob("*") if path.is_file()}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


class Breaking:
    """Raises at the nth call that touches the disk, counted over all of them; n = 0 never does."""

    NAMES = [(os, "rename"), (os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "open"), (shutil, "copymode")]

    def __init__(self, nth, error):
        self.nth, self.error, self.calls = nth, error, 0

    def __enter__(self):
        self.patches = [mock.patch.object(*place, self.wrap(getattr(*place))) for place in self.NAMES]
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_):
        for patch in self.patches:
            patch.stop()

    def wrap(self, function):
        def call(*args, **kwargs):
            self.calls += 1
            if self.calls == self.nth:
                raise self.error
            return function(*args, **kwargs)

        return call


ERRORS = st.sampled_from([OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])


@given(st.none() | CONTENTS, CONTENTS, st.integers(0, 25), ERRORS)
def test_folder_is_the_old_or_the_new_one(old, new, nth, error):
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        target = Path(place).resolve() / "model"
        if old is not None:
            write(target, old)
        try:
            with Breaking(nth, error):
                with atomic_folder(target) as staging:
                    assert staging.parent == target.parent
                    write(staging, new)
            failed = False
        except (OSError, KeyboardInterrupt) as raised:
            assert error in (raised, raised.__cause__)
            assert raised is error or str(target) in str(raised) and "Make room" in str(raised)
            failed = True
        now = read(target) if target.exists() else None
        assert now == new or (failed and now == old)
        assert not failed or nth
        left = [path.name for path in target.parent.iterdir() if path != target]
        if now == old != new:
            assert left == []  # nothing of the failed attempt is there
        if not failed and any(name.startswith(".model.") for name in left):
            assert "could not be removed" in str(told[-1].message)
        assert not files._open_folders


@given(st.none() | st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 8), ERRORS)
def test_file_is_the_old_or_the_new_one(old, new, nth, error):
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "vocab.txt"
        if old is not None:
            target.write_bytes(old)
        try:
            with Breaking(nth, error):
                with atomic_file(target) as file:
                    file.write(new)
            failed = False
        except (OSError, KeyboardInterrupt) as raised:
            assert raised is error
            failed = True
        now = target.read_bytes() if target.exists() else None
        assert now == new or (failed and now == old)
        assert [path.name for path in Path(place).iterdir()] == (["vocab.txt"] if now is not None else [])


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_error_inside_the_block_leaves_the_old(error, tmp_path):
    write(tmp_path / "model", {"a": b"old"})
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(type(error)):
        with atomic_folder(tmp_path / "model") as staging:
            write(staging, {"a": b"new"})
            raise error
    with pytest.raises(type(error)):
        with atomic_file(tmp_path / "file") as file:
            file.write(b"new")
            raise error
    assert read(tmp_path) == {"model/a": b"old", "file": b"old"}


def test_text_is_written_as_utf8_with_plain_line_ends(tmp_path):
    with atomic_file(tmp_path / "a.txt", "w") as file:
        file.write("问\r\n答\n")
    assert (tmp_path / "a.txt").read_bytes() == "问\r\n答\n".encode()
    with atomic_file(tmp_path / "a.txt", "w", encoding="gbk") as file:
        file.write("问")
    assert (tmp_path / "a.txt").read_bytes() == "问".encode("gbk")
    with pytest.raises(ValueError, match="`mode`.*'ab'"):
        with atomic_file(tmp_path / "a.txt", "ab"):
            pass
    with pytest.raises(IsADirectoryError, match="`path` must be a file"):
        with atomic_file(tmp_path):
            pass


def test_parents_are_made_and_all_old_files_go(tmp_path):
    target = tmp_path / "runs" / "one" / "model"
    for contents in ({"a": b"1", "sub/b": b"2"}, {"a": b"3", "sub/b": b"4"}):
        with atomic_folder(target) as staging:
            assert not list(staging.iterdir())
            write(staging, contents)
        assert read(tmp_path / "runs") == {f"one/model/{name}": content for name, content in contents.items()}


def test_files_that_only_the_old_folder_has_are_kept_beside_it(tmp_path):
    target = tmp_path / "model"
    write(target, {"a": b"old", "notes.txt": b"mine", "sub/b": b"2"})
    with pytest.warns(UserWarning, match=r"notes\.txt, sub.b") as warned:
        with atomic_folder(target) as staging:
            write(staging, {"a": b"new"})
    assert warned[0].filename == __file__
    assert read(target) == {"a": b"new"}
    (kept,) = (path for path in tmp_path.iterdir() if path != target)
    assert kept.name.startswith("model.replaced-")
    assert read(kept) == {"a": b"old", "notes.txt": b"mine", "sub/b": b"2"}
    shutil.rmtree(target)
    assert not recover_folder(target)  # what is kept for its files is no unfinished business


def test_inner_block_joins_the_outer_one(tmp_path):
    target = tmp_path / "model"
    write(target, {"weights": b"old", "vocab": b"old"})
    with atomic_folder(target) as outer:
        write(outer, {"vocab": b"new"})
        with atomic_folder(str(outer)) as inner:
            write(inner, {"weights": b"new"})
        assert inner == outer
        assert read(target) == {"weights": b"old", "vocab": b"old"}
    assert read(target) == {"weights": b"new", "vocab": b"new"}
    with pytest.raises(RuntimeError):
        with atomic_folder(target) as outer:
            with atomic_folder(outer) as inner:
                write(inner, {"weights": b"newer"})
                raise RuntimeError
    assert read(tmp_path) == {"model/weights": b"new", "model/vocab": b"new"}


def test_folder_inside_the_open_one_is_a_folder_of_its_own(tmp_path):
    with atomic_folder(tmp_path / "model") as outer:
        with atomic_folder(outer / "index") as inner:
            write(inner, {"a": b"1"})
        assert read(outer) == {"index/a": b"1"}
    assert read(tmp_path) == {"model/index/a": b"1"}


def test_links_are_followed(tmp_path):
    write(tmp_path / "run 1", {"a": b"old"})
    (tmp_path / "latest").symlink_to("run 1")
    (tmp_path / "link").symlink_to(tmp_path / "run 1" / "a")
    with atomic_folder(tmp_path / "latest") as staging:
        write(staging, {"a": b"new"})
    assert (tmp_path / "latest").is_symlink() and read(tmp_path / "run 1") == {"a": b"new"}
    with atomic_file(tmp_path / "link") as file:
        file.write(b"newer")
    assert (tmp_path / "link").is_symlink() and read(tmp_path / "run 1") == {"a": b"newer"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_permissions_stay(tmp_path):
    write(tmp_path / "model", {"a": b"old"})
    (tmp_path / "model").chmod(0o750)
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(0o640)
    with atomic_folder(tmp_path / "model") as staging:
        write(staging, {"a": b"new"})
    with atomic_file(tmp_path / "file") as file:
        file.write(b"new")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("model", "file")] == [0o750, 0o640]


def test_places_that_are_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match="`path` must be a folder"):
        with atomic_folder(tmp_path / "file"):
            pass
    inside = tmp_path / "model" / "sub"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    for path in (".", "..", tmp_path, inside):
        with pytest.raises(ValueError, match="working directory"):
            with atomic_folder(path):
                pass
    assert read(tmp_path) == {"file": b"x"}


def test_old_folder_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    write(tmp_path / "model", {"a": b"old"})

    def refuse(path, ignore_errors=False):
        raise PermissionError(f"{path} is in use")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(UserWarning, match="has been written, but .* could not be removed: .* is in use"):
        with atomic_folder(tmp_path / "model") as staging:
            write(staging, {"a": b"new"})
    assert read(tmp_path / "model") == {"a": b"new"}


def test_recovery_takes_the_latest_of_several(tmp_path):
    for name, content, seconds in ((f".model.old-{DEAD}-a", b"older", 100), (f".model.old-{DEAD}-b", b"newer", 200)):
        write(tmp_path / name, {"a": content})
        os.utime(tmp_path / name, (seconds, seconds))
    assert not recover_folder(tmp_path / "other")
    with pytest.warns(UserWarning, match=rf"put back from \.model\.old-{DEAD}-b"):
        assert recover_folder(tmp_path / "model")
    assert read(tmp_path / "model") == {"a": b"newer"}
    assert not recover_folder(tmp_path / "model")
    with atomic_folder(tmp_path / "model") as staging:
        write(staging, {"a": b"newest"})
    assert read(tmp_path) == {"model/a": b"newest"}  # what the killed run left is gone


# Replaces the folder, and kills itself with SIGKILL at the nth call that touches the disk.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from simretro import files

target, nth = Path(sys.argv[1]), int(sys.argv[2])
calls = 0

def wrap(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("rename", "fsync", "mkdir", "unlink", "rmdir", "open"):
    setattr(os, name, wrap(getattr(os, name)))
with files.atomic_folder(target) as staging:
    for name in ("a", "b", "sub/c"):
        (staging / name).parent.mkdir(exist_ok=True)
        (staging / name).write_bytes(b"new")
"""
OLD = {"a": b"old", "b": b"old", "sub/c": b"old"}
NEW = {"a": b"new", "b": b"new", "sub/c": b"new"}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.filterwarnings("ignore:.*put back:UserWarning")
def test_kill_at_any_moment_leaves_the_old_or_the_new_folder(tmp_path):
    target = tmp_path / "model"
    states = []
    for nth in range(1, 60):
        shutil.rmtree(tmp_path)
        write(target, OLD)
        command = [sys.executable, "-S", "-c", KILLED, str(target), str(nth)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        assert run.returncode in (0, -signal.SIGKILL), run.stderr
        missing = not target.exists()
        assert recover_folder(target) is missing
        states.append((missing, read(target) == NEW))
        assert read(target) in (OLD, NEW)
        with atomic_folder(target) as staging:  # and the next run works as if nothing had been
            write(staging, NEW)
        assert read(target) == NEW
        if run.returncode == 0:
            break
    assert run.returncode == 0, "there are more calls to kill at than were tried"
    # the kills hit before, between and after the two renames
    assert {(False, False), (True, False), (False, True)} == set(states)


def test_a_reader_leaves_alone_what_a_living_writer_has_moved_aside(tmp_path):
    (tmp_path / f".model.old-{os.getppid()}-a").mkdir()
    assert not recover_folder(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore:.*put back:UserWarning")
def test_a_killed_run_that_had_the_number_of_this_process_is_dead(tmp_path):
    """As in a container that is started again, where the program always has the same number."""
    write(tmp_path / f".model.old-{os.getpid()}-a", {"a": b"old"})
    (tmp_path / f".model.tmp-{os.getpid()}-b").mkdir()
    assert recover_folder(tmp_path / "model")
    with atomic_folder(tmp_path / "model") as staging:
        files.remove_unfinished(tmp_path, ["model"])  # our own, which we are at, stays
        write(staging, {"a": b"new"})
    assert read(tmp_path) == {"model/a": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_killed_writers_left_unfinished_is_removed(tmp_path):
    dead, living = (tmp_path / f".model.tmp-{pid}-a" for pid in (DEAD, os.getppid()))
    dead.mkdir(), living.mkdir()
    with atomic_folder(tmp_path / "model") as staging:
        (staging / "file").write_text("x")
    assert not dead.exists() and living.exists()


@pytest.mark.parametrize("held", ["config.json", "bert_config.json", "index.json", "latest.json"])
@pytest.mark.parametrize("kind", ["a model", "an index"])
def test_a_folder_of_another_kind_is_not_replaced(kind, held, tmp_path):
    target = tmp_path / "folder [1]"
    write(target, {held: b"{}", "a": b"old"})
    if (kind == "a model") == held.endswith("config.json") and (kind == "an index") == (held == "index.json"):
        with atomic_folder(target, kind) as staging:
            write(staging, {held: b"new", "a": b"new"})
        assert read(target)["a"] == b"new"
        return
    with pytest.raises(ValueError, match=rf"anything but {kind}.*folder \[1\] holds .* \({held}\)"):
        with atomic_folder(target, kind) as staging:
            write(staging, {"a": b"new"})
    assert read(tmp_path) == {f"folder [1]/{held}": b"{}", "folder [1]/a": b"old"}


def save(folder, value):
    with atomic_folder(folder) as staging:
        write(staging, {"a": value, "b": value})


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    save(tmp_path / "model", b"old")
    saves = iter([b"new"])

    def read_both():
        a = (tmp_path / "model" / "a").read_bytes()
        for value in saves:
            save(tmp_path / "model", value)
        return a, (tmp_path / "model" / "b").read_bytes()

    assert files.read_whole(tmp_path / "model", read_both) == (b"new", b"new")
    saves = iter([b"newer"])
    shutil.rmtree(tmp_path / "model")  # the moment between the two renames of a save

    def read_missing():
        try:
            return read_both()
        finally:
            for value in saves:
                save(tmp_path / "model", value)

    assert files.read_whole(tmp_path / "model", read_missing) == (b"newer", b"newer")


def test_a_folder_that_never_stays_or_is_broken_is_an_error(tmp_path):
    save(tmp_path / "model", b"old")
    with pytest.raises(OSError, match="model is being replaced over and over"):
        files.read_whole(tmp_path / "model", lambda: save(tmp_path / "model", b"new"))
    calls = []
    for folder in (tmp_path / "model", tmp_path / "missing"):
        with pytest.raises(KeyError):
            files.read_whole(folder, lambda: calls.append(1) or {}["a"])
    assert len(calls) == 2
