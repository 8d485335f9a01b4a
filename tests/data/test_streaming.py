"""The streaming data set has the batches of the one in memory, and its files are reused or gone."""

import gc
import json
import os
import tempfile
import warnings

import numpy as np
import pytest

from simretro.data import SimilarPairs, StreamingSimilarPairs, streaming
from tests.data.test_pairs import many_groups
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(["un", "+do"], size=1000)


def write(path, groups):
    lines = [json.dumps({"text": group[0], "synonyms": list(group[1:])}) for group in groups]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


GROUPS = [*many_groups(50), ["un+do w1", "w2 un+do"], ["w1 w1", "W1 w1", "w2 un+do"], ["w9", "W9"]]


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "groups.jsonl", GROUPS)


def same_batches(first, second, epochs=(0, 3)):
    assert len(first) == len(second) and first.num_pairs == second.num_pairs
    for epoch in epochs:
        for index in range(len(first)):
            a, b = first.batch(epoch, index), second.batch(epoch, index)
            assert set(a) == set(b)
            for name in a:
                assert type(b[name]) is np.ndarray and b[name].dtype == np.int32
                np.testing.assert_array_equal(a[name], b[name])


def quiet(cls, *args, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(*args, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mlm_rate": 0.3, "whole_word": True}, {"pairs_per_group": 2, "drop_remainder": True}, {"batching": "random"}],
)
@pytest.mark.parametrize("cached", [False, True])
def test_same_batches_as_in_memory(corpus, tmp_path, settings, cached):
    settings = {"pairs_per_batch": 8, "maxlen": 20, "seed": 3, **settings}
    streamed = quiet(
        StreamingSimilarPairs, corpus, TOKENIZER, cache_dir=tmp_path / "cache" if cached else None, **settings
    )
    in_memory = quiet(SimilarPairs, GROUPS, TOKENIZER, **settings)
    same_batches(in_memory, streamed)
    streamed.resume(1, 2)
    assert len(list(streamed)) == len(in_memory) - 2
    # The texts are in files.
    assert isinstance(streamed.table.token_ids, np.memmap)


def test_warnings_name_the_caller_and_come_again_from_the_cache(corpus, tmp_path):
    messages = []
    for cls, settings in (
        (SimilarPairs, {}),
        (StreamingSimilarPairs, {"cache_dir": tmp_path / "cache"}),
        (StreamingSimilarPairs, {"cache_dir": tmp_path / "cache"}),
    ):
        with pytest.warns(UserWarning) as caught:
            cls(corpus, TOKENIZER, maxlen=20, **settings)
        assert all(warning.filename == __file__ for warning in caught)
        messages.append([str(warning.message) for warning in caught])
    assert messages[0] == messages[1] == messages[2]
    assert any(message.startswith("1 groups were left out") for message in messages[0])


def test_cache_is_used_again_only_for_the_same_texts(corpus, tmp_path, monkeypatch):
    cache, calls = tmp_path / "cache", []
    read = streaming.iter_groups
    monkeypatch.setattr(streaming, "iter_groups", lambda path: calls.append(path) or read(path))

    def make(tokenizer=TOKENIZER, **settings):
        return quiet(StreamingSimilarPairs, corpus, tokenizer, **{"pairs_per_batch": 8, "cache_dir": cache, **settings})

    first = make()
    same_batches(first, make())
    make(seed=1, pairs_per_batch=4, pairs_per_group=2)  # other batches of the same texts
    assert len(calls) == 1
    make(maxlen=20)
    make(ToyTokenizer(size=30))
    make(mlm_rate=0.1, whole_word=True)
    make(mlm_rate=0.1, segment=str.split)
    assert len(calls) == 5
    write(corpus, GROUPS[:20])
    os.utime(corpus, ns=(0, 0))
    assert make().table.num_groups == 20 and len(calls) == 6
    same_batches(first, first)  # what is open stays as it was


def test_temporary_files_go_with_the_object(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    data = quiet(StreamingSimilarPairs, corpus, TOKENIZER)
    assert len(os.listdir(tmp_path / "temporary")) == 1
    del data
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize("cached", [False, True])
def test_nothing_is_left_of_a_file_with_an_error(corpus, tmp_path, monkeypatch, cached):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with open(corpus, "a", encoding="utf-8") as file:
        file.write('{"text": "w1"}\n')
    with pytest.raises(ValueError, match=rf"groups.jsonl, line {len(GROUPS) + 1}: has no `synonyms`"):
        StreamingSimilarPairs(corpus, TOKENIZER, cache_dir=tmp_path / "cache" if cached else None)
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []
    assert not cached or os.listdir(tmp_path / "cache") == []


def test_full_disk_leaves_nothing(corpus, tmp_path, monkeypatch):
    def full(self, part):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streaming.FileColumn, "append", full)
    with pytest.raises(OSError, match="No space left"):
        StreamingSimilarPairs(corpus, TOKENIZER, cache_dir=tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_needs_a_path_and_knows_its_settings(corpus):
    with pytest.raises(ValueError, match="`path` must be the path of a file; received list"):
        StreamingSimilarPairs(GROUPS, TOKENIZER)
    with pytest.raises(TypeError, match="pairs_per_bach"):
        StreamingSimilarPairs(corpus, TOKENIZER, pairs_per_bach=3)


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    """Changes one byte: the file keeps its size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["token_ids", "text_starts", "group_starts", "shared_texts.npy", "facts.json"])
def test_a_damaged_cache_is_made_anew(name, corpus, tmp_path):
    settings = {"pairs_per_batch": 8, "maxlen": 20}
    good = quiet(SimilarPairs, GROUPS, TOKENIZER, **settings)
    settings["cache_dir"] = tmp_path / "cache"
    quiet(StreamingSimilarPairs, corpus, TOKENIZER, **settings)
    (folder,) = (tmp_path / "cache").iterdir()
    for damage in (cut, flip, os.remove):
        damage(folder / name)
        with pytest.warns(UserWarning, match=f"{folder} is damaged and is made again") as told:
            again = StreamingSimilarPairs(corpus, TOKENIZER, **settings)
        assert told[0].filename == __file__
        same_batches(good, again)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", ".*is damaged")
            same_batches(good, StreamingSimilarPairs(corpus, TOKENIZER, **settings))
