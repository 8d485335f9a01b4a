import sys
import warnings

import numpy as np
import pytest

from simretro.retrieval import AnnoyIndex, ExactIndex, build_index, load_index
from simretro.retrieval import annoy as annoy_module

needs_annoy = pytest.mark.skipif(not annoy_module._annoy(), reason="needs annoy")


def clustered(count=4000, dimension=24, seed=0):
    """Vectors in clusters and queries near some of them."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count // 20, dimension))[rng.integers(0, count // 20, count)]
    vectors = vectors + 0.3 * rng.standard_normal(vectors.shape)
    return vectors, vectors[:50] + 0.1 * rng.standard_normal((50, dimension))


def fill(index, vectors):
    index.add(vectors, [f"text {i}" for i in range(len(vectors))])
    return index


@pytest.fixture
def without_annoy(monkeypatch):
    monkeypatch.setitem(sys.modules, "annoy", None)  # makes the import fail
    for function in (annoy_module._annoy, annoy_module._warn_once):
        function.cache_clear()
    yield
    for function in (annoy_module._annoy, annoy_module._warn_once):
        function.cache_clear()


@needs_annoy
@pytest.mark.parametrize("num_queries", [1, 50])  # one thread, several
def test_finds_nearly_all_neighbours_and_their_exact_cosines(num_queries):
    vectors, queries = clustered()
    queries = queries[:num_queries]
    scores, ids = fill(AnnoyIndex(n_trees=20, search_k=1000), vectors).search(queries, 10)
    all_scores, all_ids = fill(ExactIndex(), vectors).search(queries, len(vectors))
    by_id = np.take_along_axis(all_scores, np.argsort(all_ids, axis=1), axis=1)
    np.testing.assert_array_equal(scores, np.take_along_axis(by_id, ids, axis=1))
    assert (np.diff(scores, axis=1) <= 0).all()
    found = [len(set(ours) & set(best)) / 10 for ours, best in zip(ids.tolist(), all_ids[:, :10].tolist(), strict=True)]
    assert 0.9 < np.mean(found)


@needs_annoy
def test_the_trees_are_what_is_searched():
    vectors, queries = clustered()
    narrow = fill(AnnoyIndex(n_trees=1, search_k=30), vectors).search(queries, 10)[1]
    assert (narrow != fill(ExactIndex(), vectors).search(queries, 10)[1]).any()


@needs_annoy
def test_more_nodes_miss_less():
    vectors, queries = clustered()
    best = fill(ExactIndex(), vectors).search(queries, 10)[1].tolist()

    def recall(search_k):
        found = fill(AnnoyIndex(n_trees=10, search_k=search_k), vectors).search(queries, 10)[1].tolist()
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)])

    assert recall(60) < recall(2000)
    assert recall(len(vectors)) == 1


@needs_annoy
def test_the_seed_decides():
    vectors, queries = clustered()
    search = [fill(AnnoyIndex(n_trees=4, search_k=60, seed=s), vectors).search(queries, 10)[1] for s in (7, 7, 8)]
    np.testing.assert_array_equal(search[0], search[1])
    assert (search[0] != search[2]).any()


@needs_annoy
def test_where_the_trees_give_too_few_the_exact_search_fills_in():
    vectors, queries = clustered()
    scores, ids = fill(AnnoyIndex(n_trees=1, search_k=100), vectors).search(queries, 600)
    np.testing.assert_array_equal(ids, fill(ExactIndex(), vectors).search(queries, 600)[1])


@needs_annoy
def test_zero_and_equal_vectors():
    vectors = np.zeros((3000, 8))
    vectors[1000:] = 1
    scores, ids = fill(AnnoyIndex(n_trees=5, search_k=500), vectors).search([[0] * 8, [1] * 8], 20)
    np.testing.assert_allclose(scores, [[0] * 20, [1] * 20], atol=1e-6)
    assert (ids[1] >= 1000).all()


@needs_annoy
def test_add_after_a_search_builds_the_trees_again():
    vectors, queries = clustered()
    index = fill(AnnoyIndex(n_trees=10, search_k=500), vectors)
    index.search(queries)
    index.add(queries, [f"query {i}" for i in range(len(queries))])
    assert [row[0][0] for row in index.most_similar(queries, 1)] == [f"query {i}" for i in range(len(queries))]


@needs_annoy
def test_settings_and_trees_are_saved(tmp_path, monkeypatch):
    vectors, queries = clustered()
    index = fill(AnnoyIndex(n_trees=3, search_k=40, seed=5), vectors)
    index.save(tmp_path / "index")
    monkeypatch.setattr(AnnoyIndex, "build", lambda self: None)  # the stored trees must do
    loaded = load_index(tmp_path / "index")
    assert (loaded.n_trees, loaded.search_k, loaded.seed) == (3, 40, 5)
    assert loaded._trees.get_n_trees() == 3
    np.testing.assert_array_equal(loaded.search(queries)[1], index.search(queries)[1])


@needs_annoy
def test_a_folder_can_be_opened_as_the_other_kind(tmp_path):
    vectors, queries = clustered()
    exact, trees = fill(ExactIndex(), vectors), fill(AnnoyIndex(n_trees=3, search_k=40), vectors)
    exact.save(tmp_path / "exact")
    trees.save(tmp_path / "annoy")
    np.testing.assert_array_equal(ExactIndex.load(tmp_path / "annoy").search(queries)[1], exact.search(queries)[1])
    opened = AnnoyIndex.load(tmp_path / "exact")
    assert opened._trees is None
    opened.build()
    assert opened._trees.get_n_items() == len(vectors)


@pytest.mark.parametrize("setting", [{"n_trees": 0}, {"search_k": -1}, {"seed": 0}, {"n_trees": 2.5}])
def test_settings_out_of_range(setting):
    with pytest.raises(ValueError, match=rf"`{next(iter(setting))}`.*at least 1"):
        AnnoyIndex(**setting)


def test_without_annoy_the_exact_search_serves_and_says_so_once(without_annoy, tmp_path):
    vectors, queries = clustered(300)
    with pytest.warns(UserWarning, match="searches exactly") as caught:
        index = build_index(vectors, [str(i) for i in range(len(vectors))], "annoy")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.save(tmp_path / "index")
        loaded = load_index(tmp_path / "index")
        for found in (index, loaded, fill(AnnoyIndex(n_trees=1, search_k=1), vectors)):
            np.testing.assert_array_equal(found.search(queries)[1], fill(ExactIndex(), vectors).search(queries)[1])


@needs_annoy
def test_a_folder_with_trees_opens_without_annoy(tmp_path, request):
    vectors, queries = clustered()
    fill(AnnoyIndex(n_trees=3, search_k=40), vectors).save(tmp_path / "index")
    request.getfixturevalue("without_annoy")
    with pytest.warns(UserWarning, match="searches exactly"):
        loaded = load_index(tmp_path / "index")
    np.testing.assert_array_equal(loaded.search(queries)[1], fill(ExactIndex(), vectors).search(queries)[1])


@needs_annoy
def test_damaged_settings_name_the_file(tmp_path):
    fill(AnnoyIndex(n_trees=3), clustered(300)[0]).save(tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    path.write_text(path.read_text("utf-8").replace('"n_trees": 3', '"n_trees": "many"'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"index\.json.*n_trees"):
        load_index(tmp_path / "index")
