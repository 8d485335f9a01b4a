"""Whole or not at all: injected failures at every call, kills at every call, and what nests in what."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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


KINDS = {"config.json": "a model", "bert_config.json": "a model", "index.json": "an index"}
KINDS |= {"calibrator.json": "a calibrator", "corpus.json": "an encoded corpus", "progress.json": "an encoded corpus"}
KINDS |= {"latest.json": "the checkpoints of a training run"}


@pytest.mark.parametrize("held", KINDS)
@pytest.mark.parametrize("kind", ["a model", "an index", "a calibrator"])
def test_a_folder_of_another_kind_is_not_replaced(kind, held, tmp_path):
    target = tmp_path / "folder [1]"
    write(target, {held: b"{}", "a": b"old"})
    if kind == KINDS[held]:
        with atomic_folder(target, kind) as staging:
            write(staging, {held: b"new", "a": b"new"})
        assert read(target)["a"] == b"new"
        return
    with pytest.raises(ValueError, match=rf"anything but {kind}.*folder \[1\] holds {KINDS[held]} \({held}\)"):
        with atomic_folder(target, kind) as staging:
            write(staging, {"a": b"new"})
    assert read(tmp_path) == {f"folder [1]/{held}": b"{}", "folder [1]/a": b"old"}


def save(folder, value):
    with atomic_folder(folder) as staging:
        write(staging, {"a": value, "b": value})


HERE = files._Place("aaaaaa", "bbbbbb", "cccccc")
ELSEWHERE = {
    "another machine": HERE._replace(host="dddddd", boot="eeeeee"),
    "another container": HERE._replace(host="dddddd", space="ffffff"),
    "another container of this name": HERE._replace(space="ffffff"),
}
DAY, MINUTE = 86_400, 60


def left_by(place, target, kind, seconds, pid=DEAD):
    """Path of what a writer of some place has begun `seconds` ago."""
    return target.with_name(f".{target.name}.{kind}-{'-'.join(place)}-{int(time.time() - seconds)}-{pid}-0")


def change(path, seconds):
    """Changes everything of a path `seconds` ago."""
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (time.time() - seconds,) * 2)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(files, "_here", lambda: HERE)


def test_a_name_says_where_its_writer_is(here, tmp_path):
    with atomic_folder(tmp_path / "my-model") as staging:
        assert staging.name.startswith(".my-model.tmp-aaaaaa-bbbbbb-cccccc-")
        name = files._SIBLING.search(staging.name)
    assert (name["kind"], int(name["pid"])) == ("tmp", os.getpid())
    assert abs(int(name["made"]) - time.time()) < MINUTE


def test_this_machine_has_one_place(monkeypatch):
    files._here.cache_clear()
    first = files._here()
    files._here.cache_clear()
    assert files._here() == first
    code = "from simretro import files; print(*files._here())"
    other = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert tuple(other.stdout.split()) == first
    files._here.cache_clear()
    monkeypatch.setattr(files.socket, "gethostname", lambda: "another")
    changed = files._here()
    files._here.cache_clear()
    assert changed.host != first.host and changed[1:] == first[1:]


@pytest.mark.parametrize(
    "pid", [DEAD, os.getpid()], ids=["dead", "own"]
)  # a container's program always has the same number
@pytest.mark.parametrize("place", ELSEWHERE)
def test_what_a_writer_elsewhere_is_at_stays_for_a_day(place, pid, here, tmp_path):
    folder = left_by(ELSEWHERE[place], tmp_path / "model", "tmp", 3 * DAY, pid)
    file = left_by(ELSEWHERE[place], tmp_path / "latest.json", "tmp", 0, pid)
    write(folder, {"sub/weights": b"half"})
    file.write_text("{")
    change(folder, 2 * DAY)
    os.utime(folder / "sub" / "weights")  # a long file: nothing else changes
    for seconds in (0, DAY - MINUTE):
        change(file, seconds)
        save(tmp_path / "model", b"new")
        files.remove_unfinished(tmp_path, ["latest.json"])
        assert folder.exists() and file.exists()
    change(file, DAY + MINUTE)
    change(folder, DAY + MINUTE)
    save(tmp_path / "model", b"newer")
    files.remove_unfinished(tmp_path, ["latest.json"])
    assert not folder.exists() and not file.exists()


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("seconds", [0, 4 * MINUTE, 6 * MINUTE])
def test_what_a_writer_elsewhere_has_moved_aside_is_put_back_after_minutes(place, seconds, here, tmp_path):
    aside = left_by(ELSEWHERE[place], tmp_path / "model", "old", seconds)
    write(aside, {"a": b"old"})
    change(aside, 30 * DAY)  # saved long ago: moving a folder does not change it
    waits = seconds < 5 * MINUTE
    message = rf"model is missing\. {re.escape(aside.name)} .* 5 minutes" if waits else "put back from"
    with pytest.warns(UserWarning, match=message):
        assert recover_folder(tmp_path / "model") is not waits
    assert aside.exists() is waits
    if waits:  # who does not wait writes a new one
        with pytest.warns(UserWarning, match="is missing"):
            save(tmp_path / "model", b"new")
    assert read(tmp_path / "model")["a"] == (b"new" if waits else b"old")


def test_after_a_restart_of_the_machine_nobody_waits(here, tmp_path):
    before = HERE._replace(boot="eeeeee", space="ffffff")
    living = os.getppid()  # a number that is in use again
    unfinished = left_by(before, tmp_path / "model", "tmp", MINUTE, living)
    aside = left_by(before, tmp_path / "model", "old", MINUTE, living)
    unfinished.mkdir()
    write(aside, {"a": b"old"})
    with pytest.warns(UserWarning, match="put back from"):
        assert recover_folder(tmp_path / "model")
    save(tmp_path / "model", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_on_this_machine_the_process_decides(here, tmp_path):
    dead, living, unknown = (left_by(HERE, tmp_path / "model", "tmp", 0, p) for p in (DEAD, os.getppid(), 10**30))
    moved = left_by(HERE, tmp_path / "model", "old", 2 * DAY, os.getppid())
    for path in (dead, living, unknown, moved):
        path.mkdir()
        change(path, 2 * DAY)
    assert not recover_folder(tmp_path / "model")
    files.remove_unfinished(tmp_path, ["model"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, moved.name])


def test_where_processes_cannot_be_asked_nobody_is_killed(here, tmp_path, monkeypatch):
    """As on Windows, where `os.kill` does that."""
    monkeypatch.setattr(files, "_ASKS_PROCESSES", False)
    monkeypatch.setattr(files.os, "kill", None)
    fresh, stale = (left_by(HERE, tmp_path / "model", "tmp", 0, pid) for pid in (os.getppid(), DEAD))
    of_old, old_aside = tmp_path / f".model.tmp-{DEAD}-a", tmp_path / f".other.old-{DEAD}-a"
    for path in (fresh, stale, of_old, old_aside):
        path.mkdir()
    for path in (stale, old_aside):
        change(path, 2 * DAY)
    with pytest.warns(UserWarning, match="put back"):
        assert recover_folder(tmp_path / "other")
    files.remove_unfinished(tmp_path, ["model"])
    assert {path.name for path in tmp_path.iterdir()} == {fresh.name, of_old.name, "other"}


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


def test_another_process_may_put_the_folder_back_first(tmp_path, monkeypatch):
    write(tmp_path / f".model.old-{DEAD}-a", {"a": b"old"})
    rename = os.rename

    def late(source, target):
        rename(source, target)
        rename(source, target)  # as if the other had been a moment earlier

    monkeypatch.setattr(os, "rename", late)
    assert not recover_folder(tmp_path / "model")
    assert (tmp_path / "model" / "a").read_bytes() == b"old"


def test_names_may_be_as_long_as_the_file_system_allows(tmp_path):
    name = "中" * 85  # 255 bytes
    for content in ("1", "2"):
        with atomic_folder(tmp_path / name) as folder:
            (folder / "a").write_text(content)
    assert (tmp_path / name / "a").read_text() == "2"
    with atomic_file(tmp_path / f"f{name[1:]}", "w") as file:
        file.write("3")
    assert len(list(tmp_path.iterdir())) == 2


def test_file_facts_tell_files_of_one_size_and_time_apart(tmp_path):
    size = 200_000
    found = []
    for folder, content in (("a", b"x" * size), ("b", b"y" + b"x" * (size - 1)), ("c", b"x" * (size - 1) + b"y")):
        path = tmp_path / folder / "docs.txt"
        path.parent.mkdir()
        path.write_bytes(content)
        os.utime(path, (1, 1))
        found.append(files.file_facts(path))
    assert found[0] != found[1] != found[2] != found[0]
    shutil.copy2(tmp_path / "a/docs.txt", tmp_path / "docs.txt")
    assert files.file_facts(tmp_path / "docs.txt") == found[0]
