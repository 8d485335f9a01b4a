import json
import shutil

import numpy as np
import pytest

from simretro.retrieval import AnnoyIndex, ExactIndex, build_index, load_index, normalize_rows
from simretro.retrieval import annoy as annoy_module
from simretro.retrieval import build as build_module
from simretro.retrieval import index as index_module

TEXTS = ["微信和支付宝哪个好？", "two\nlines\r\n", "a\tb", "", "\u2028 and \x1c", '"quoted"', "😀", "a lone \ud800"]
KINDS = ["exact", pytest.param("annoy", marks=pytest.mark.skipif(not annoy_module._annoy(), reason="needs annoy"))]


def make_vectors(count=8, dimension=5, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension))


@pytest.fixture(params=KINDS)
def saved(request, tmp_path):
    """The folder of a saved index and the index."""
    index = build_index(make_vectors(), TEXTS, request.param, fingerprint="model-1")
    index.save(tmp_path / "index")
    return tmp_path / "index", index


def test_round_trip(saved):
    folder, index = saved
    loaded = load_index(folder, fingerprint="model-1")
    assert type(loaded) is type(index) and len(loaded) == 8 and loaded.dimension == 5
    assert loaded.texts == TEXTS and loaded.fingerprint == "model-1"
    np.testing.assert_array_equal(loaded.vectors, index.vectors)
    for ours, theirs in zip(loaded.search(make_vectors(seed=1), 3), index.search(make_vectors(seed=1), 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_vectors_are_mapped_and_cannot_be_written(saved):
    loaded = load_index(saved[0])
    assert isinstance(loaded._buffer.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        loaded.vectors[0] = 0


def test_add_after_load_and_save_into_the_same_folder(saved):
    folder, _ = saved
    loaded = load_index(folder)
    loaded.add([[1, 2, 3, 4, 5]], ["new"])
    assert loaded.most_similar([[1, 2, 3, 4, 5]], 1)[0][0][0] == "new"
    loaded.save(folder)
    assert loaded.most_similar([[1, 2, 3, 4, 5]], 1)[0][0][0] == "new"
    assert load_index(folder).texts == [*TEXTS, "new"]
    assert [path.name for path in folder.parent.iterdir()] == ["index"]  # nothing is left beside it


def test_empty_index_round_trip(tmp_path):
    ExactIndex().save(tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert len(loaded) == 0 and loaded.most_similar([[1, 2]]) == [[]]
    loaded.add([[1, 2]], ["first"])
    assert loaded.most_similar([[1, 2]])[0][0][0] == "first"


def test_adding_in_pieces_equals_adding_at_once():
    vectors = make_vectors(100, 7)
    whole, pieces = ExactIndex(), ExactIndex()
    whole.add(vectors, [str(i) for i in range(100)])
    for start, stop in ((0, 1), (1, 40), (40, 40), (40, 93), (93, 100)):
        pieces.add(vectors[start:stop], [str(i) for i in range(start, stop)])
    np.testing.assert_array_equal(whole.vectors, pieces.vectors)
    assert whole.texts == pieces.texts


def test_another_model_is_refused_with_both_named(saved):
    with pytest.raises(ValueError, match=r"model-1.*model-2"):
        load_index(saved[0], fingerprint="model-2")


def test_an_unknown_model_is_refused_if_one_is_asked_for(tmp_path):
    build_index(make_vectors(), TEXTS).save(tmp_path / "index")
    assert len(load_index(tmp_path / "index")) == 8
    with pytest.raises(ValueError, match=r"does not say which model.*model-2"):
        load_index(tmp_path / "index", fingerprint="model-2")


def files_of(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_missing_file_is_named(saved):
    folder, _ = saved
    assert {"index.json", "texts.jsonl", "vectors.npy"} <= set(files_of(folder))
    for name in files_of(folder):
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        (copy / name).unlink()
        with pytest.raises(FileNotFoundError, match=name.replace(".", r"\.")):
            load_index(copy)
        shutil.rmtree(copy)


def test_each_truncated_file_is_named(saved):
    folder, _ = saved
    for name in files_of(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=name.replace(".", r"\.") + ".*damaged"):
            load_index(folder)
        (folder / name).write_bytes(content)
    load_index(folder)


def test_a_changed_byte_is_noticed_where_it_could_do_harm(saved):
    folder, _ = saved
    for name in set(files_of(folder)) - {"index.json", "vectors.npy"}:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 3] ^= 1
        (folder / name).write_bytes(bytes(content))
        with pytest.raises(ValueError, match=name.replace(".", r"\.") + ".*checksum"):
            load_index(folder)
        content[len(content) // 3] ^= 1
        (folder / name).write_bytes(bytes(content))
    load_index(folder)


def test_damaged_header_of_the_vectors(saved):
    path = saved[0] / "vectors.npy"
    content = path.read_bytes()
    path.write_bytes(b"\0" * 16 + content[16:])
    with pytest.raises(ValueError, match=r"vectors\.npy is damaged"):
        load_index(saved[0])
    path.write_bytes(content.replace(b"(8, 5)", b"(5, 8)"))
    with pytest.raises(ValueError, match=r"vectors\.npy must be float32 of shape \(8, 5\)"):
        load_index(saved[0])


@pytest.mark.parametrize("change, message", [
    ({"format": "other"}, "another program|of another"), ({"version": 99}, "version 99"), ({"kind": "magic"}, "magic"),
    ({"size": "8"}, "damaged"), ({"files": {}}, "does not list"), ({"files": []}, "damaged"),
])  # fmt: skip
def test_wrong_manifest(change, message, tmp_path):
    build_index(make_vectors(), TEXTS).save(tmp_path)
    path = tmp_path / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"index\.json.*({message})"):
        load_index(tmp_path)


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_index(tmp_path / "nowhere")


def test_a_failed_save_leaves_the_old_index(saved, monkeypatch):
    folder, index = saved

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    index.add(make_vectors(1), ["one more"])
    for module, name in ((index_module.np, "save"), (index_module, "crc32_of")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full_disk)
            with pytest.raises(OSError, match=f"no room to write {folder}.*No space left.*Make room"):
                index.save(folder)
    assert load_index(folder).texts == TEXTS
    assert [path.name for path in folder.parent.iterdir()] == ["index"]
    index.save(folder)
    assert load_index(folder).texts == [*TEXTS, "one more"]


@pytest.mark.parametrize("vectors, texts, message", [
    (np.ones((2, 6)), ["a", "b"], "dimension 5; received dimension 6"),
    (np.ones((2, 5)), ["a"], "1 texts, 2 rows"),
    (np.ones((1, 5)), "a", "`texts` must be a sequence"),
    (np.ones((2, 5)), ["a", 3], "text 1 is int"),
    (np.ones(5), ["a"], r"shape \(5,\)"),
    ([[1, 2, 3, 4, np.nan]], ["a"], "row 0 is not"),
    ([[1, 2, 3, 4, 5], [1, 2, 3, 4, np.inf]], ["a", "b"], "row 1 is not"),
    ([["1", "2", "3", "4", "5"]], ["a"], "real numbers"),
])  # fmt: skip
def test_add_refuses_and_stays_as_it_was(vectors, texts, message):
    index = build_index(make_vectors(), TEXTS, "exact")
    before = index.vectors.copy()
    with pytest.raises(ValueError, match=message):
        index.add(vectors, texts)
    assert index.texts == TEXTS
    np.testing.assert_array_equal(index.vectors, before)


def test_search_names_both_dimensions():
    with pytest.raises(ValueError, match=r"`vectors`.*dimension 5.*dimension 4"):
        build_index(make_vectors(), TEXTS).search(np.ones((1, 4)))


@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1, 1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalize_rows_of_any_size(factor, dtype):
    rows = normalize_rows(np.array([[3, 4], [0, 0], [-6, 8]], dtype) * np.array(factor, dtype))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [-0.6, 0.8]], atol=1e-7)
    assert rows.dtype == "float32"


def test_normalize_rows_leaves_its_argument():
    vectors = np.full((2, 3), 2, "float32")
    normalize_rows(vectors)
    assert (vectors == 2).all()


def test_build_index_picks_by_size(monkeypatch):
    monkeypatch.setattr(build_module, "EXACT_UP_TO", 7)
    assert type(build_index(make_vectors(7), TEXTS[:7])) is ExactIndex
    assert type(build_index(make_vectors(), TEXTS)) is AnnoyIndex
    assert type(build_index(make_vectors(), TEXTS, "exact")) is ExactIndex
    with pytest.raises(ValueError, match=r"`kind`.*'annoy', 'exact'.*'faiss'"):
        build_index(make_vectors(), TEXTS, "faiss")


@pytest.mark.parametrize("name", ["config.json", "bert_config.json", "latest.json"])
def test_a_model_or_a_run_is_not_replaced_by_an_index(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"must not hold anything but an index.*{name}"):
        build_index(make_vectors(), TEXTS).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("load", [load_index, ExactIndex.load])
def test_an_index_that_is_saved_while_it_is_read_is_never_mixed(load, saved, monkeypatch):
    folder, index = saved
    reads = []

    def save_first(path, manifest):
        reads.append(path)
        if len(reads) == 1:
            later = build_index(-make_vectors(), TEXTS[::-1], index.kind, fingerprint="model-2")
            later.save(folder)
        return read_texts(path, manifest)

    read_texts = index_module._read_texts
    monkeypatch.setattr(index_module, "_read_texts", save_first)
    loaded = load(folder)
    assert loaded.fingerprint == "model-2" and loaded.texts == TEXTS[::-1] and len(reads) > 1
    np.testing.assert_array_equal(loaded.vectors, normalize_rows(-make_vectors()))
