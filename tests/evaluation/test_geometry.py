"""Spread, offsets, hubs, graphs: by hand, against plain loops, and by what must not change them."""

import math

import numpy as np
import pytest

from simretro.evaluation import (
    cross_lingual_statistics,
    embedding_statistics,
    graph_spectrum,
    hubness,
    spectrum_distance,
)
from simretro.evaluation.geometry import _effective_rank

NAMES = ("std", "uniformity", "effective_rank", "mean_cosine")
RNG = np.random.default_rng(0)


def similar(spread, count=200, dimension=64, seed=1):
    """Vectors that share a direction, as those of transformers do."""
    noise = np.random.default_rng(seed).standard_normal((count, dimension)) / dimension**0.5
    return np.eye(dimension)[0] + spread * noise


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def rotation(dimension, seed=3):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dimension, dimension)))[0]


# One space
def test_by_hand():
    found = embedding_statistics([[2.0, 0.0], [0.0, 0.5]])  # lengths do not count
    # Each coordinate is 1 and 0; the distance is sqrt(2), the only direction of difference (1, -1).
    assert found == pytest.approx({"std": 0.5 * 2**0.5, "uniformity": -4, "effective_rank": 1, "mean_cosine": 0})
    found = embedding_statistics([[1, 0], [1, 0], [-1, 0], [0, 0]])
    assert found["mean_cosine"] == pytest.approx((1 - 1 - 1) / 6)
    assert found["uniformity"] == pytest.approx(math.log((1 + 2 * math.exp(-8) + 3 * math.exp(-2)) / 6))
    assert found["effective_rank"] == pytest.approx(1)


def test_effective_rank_of_known_singular_values():
    assert _effective_rank(np.diag([3.0, 1, 0])) == pytest.approx(
        math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    )
    assert _effective_rank(np.eye(7)) == pytest.approx(7)
    assert _effective_rank(np.zeros((3, 3))) == 0


def test_all_directions_alike():
    found = embedding_statistics(RNG.standard_normal((1000, 16)))
    assert found["std"] == pytest.approx(1, abs=0.02) and found["mean_cosine"] == pytest.approx(0, abs=0.005)
    assert found["effective_rank"] == pytest.approx(16, abs=0.2)
    # |u - v|^2 = 2 - 2c, and c is nearly normal with variance 1/16.
    assert found["uniformity"] == pytest.approx(-4 + 16 / 16 / 2, abs=0.05)


def test_equal_vectors():
    found = embedding_statistics(np.tile(RNG.standard_normal(24).astype("float32"), (50, 1)))
    assert found == pytest.approx({"std": 0, "uniformity": 0, "effective_rank": 0, "mean_cosine": 1}, abs=1e-6)


def test_small_differences_are_not_lost_in_rounding():
    for spread in (1e-2, 1e-4):
        found = embedding_statistics(similar(spread))
        assert found["std"] == pytest.approx(spread, rel=0.05)
        assert found["uniformity"] == pytest.approx(-4 * spread**2, rel=0.05)
        assert found["effective_rank"] > 40


def test_neither_length_nor_order_nor_rotation_matters():
    vectors = similar(0.5)
    for other in (vectors[::-1], vectors * RNG.uniform(0.1, 10, (200, 1))):
        assert embedding_statistics(other) == pytest.approx(embedding_statistics(vectors))
    turned = embedding_statistics(vectors @ rotation(64))
    assert [turned[name] for name in NAMES[1:]] == pytest.approx([embedding_statistics(vectors)[n] for n in NAMES[1:]])


@pytest.mark.parametrize("vectors, message", [
    (np.ones(3), r"shape \(3,\)"), (np.ones((1, 3)), r"shape \(1, 3\)"), ([[1, 2], [np.nan, 1]], "row 1"),
])  # fmt: skip
@pytest.mark.parametrize("function", [embedding_statistics, hubness, graph_spectrum])
def test_statistics_refuse(function, vectors, message):
    with pytest.raises(ValueError, match=rf"`vectors`.*{message}"):
        function(vectors)


# Hubs
def test_hubness_by_hand():
    # All but the last have the first as their nearest; it has the second: 4 + 1 + 0 + 0 + 0 places.
    angles = np.array([0.0, 0.1, -0.2, 0.3, -0.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    counts = np.zeros(5)
    for i in range(5):
        distances = np.abs(angles - angles[i])
        distances[i] = np.inf
        counts[np.argmin(distances)] += 1
    assert counts.tolist() == [2, 2, 1, 0, 0]
    centred = counts - 1
    expected = (centred**3).mean() / (centred**2).mean() ** 1.5
    assert hubness(3 * vectors, neighbors=1) == pytest.approx({"skewness": expected, "hub_share": 0})
    # One vector is everybody's nearest: counts 7, 0, 0, 0, 0, 0; the mean is 7 / 6.
    others = np.array([[1.0, 0.01 * i] for i in range(7)])
    vectors = np.concatenate([[[1.0, 0.03]], -np.ones((5, 2)) + 0.1 * RNG.standard_normal((5, 2))])
    centred = np.array([7, 0, 0, 0, 0, 0]) - 7 / 6
    expected = (centred**3).mean() / (centred**2).mean() ** 1.5
    assert hubness(vectors, others, neighbors=1) == pytest.approx({"skewness": expected, "hub_share": 1 / 6})


def test_hubs_are_what_lies_in_the_middle_and_counts_equal_a_full_sort():
    """On the whole sphere no place is in the middle; around a common direction there is one."""
    around, everywhere = similar(1.0, 400, 100), np.random.default_rng(2).standard_normal((400, 100))
    assert hubness(around)["skewness"] > hubness(everywhere)["skewness"] + 1
    cosines = unit(around) @ unit(around).T
    np.fill_diagonal(cosines, -2)
    counts = np.bincount(np.argsort(-cosines, axis=1)[:, :10].ravel(), minlength=400)
    expected = ((counts - 10) ** 3).mean() / counts.std() ** 3
    assert hubness(around) == pytest.approx({"skewness": expected, "hub_share": (counts >= 50).mean()})
    assert hubness(around)["hub_share"] > 0


def test_more_neighbours_than_there_are():
    found = {"skewness": 0, "hub_share": 0}  # all have all
    assert hubness(np.eye(3), neighbors=50) == found == hubness(np.eye(3), np.eye(3)[:1], neighbors=3)


def test_blocks_do_not_matter(monkeypatch):
    vectors, others = RNG.standard_normal((50, 8)), RNG.standard_normal((70, 8))
    found = hubness(vectors), hubness(vectors, others), graph_spectrum(vectors)
    monkeypatch.setattr("simretro.evaluation.geometry._SCORES_PER_BLOCK", 150)
    again = hubness(vectors), hubness(vectors, others), graph_spectrum(vectors)
    assert again[:2] == found[:2]
    np.testing.assert_allclose(again[2], found[2])


# Graphs
def test_spectra_by_hand():
    # Two pairs far apart: two graphs of one edge each, eigenvalues 2 and 0.
    pairs = np.array([[1, 0], [1, 0.1], [-1, 0], [-1, 0.1]])
    np.testing.assert_allclose(graph_spectrum(pairs, 1), [2, 2, 0, 0], atol=1e-12)
    # Everything joined with everything: N, N - 1 times.
    np.testing.assert_allclose(graph_spectrum(RNG.standard_normal((5, 3)), 9), [5, 5, 5, 5, 0], atol=1e-12)
    # A path of three, the middle one near to both: 3, 1, 0.
    path = np.array([[1, -0.5], [1, 0], [1, 0.5]])
    np.testing.assert_allclose(graph_spectrum(path, 1), [3, 1, 0], atol=1e-12)
    assert spectrum_distance([3, 1, 0], [3, 3, 0]) == pytest.approx(4)
    # The first makes up 90 % with one eigenvalue, so one is compared.
    assert spectrum_distance([9, 1, 0], [5, 5, 0]) == pytest.approx(16)
    assert spectrum_distance([9, 1, 0], [5, 5, 0]) == spectrum_distance([5, 5, 0], [9, 1, 0])
    with pytest.raises(ValueError, match="as many vectors; received 3 and 2 eigenvalues"):
        spectrum_distance([3, 1, 0], [2, 0])


# Several languages
def languages(count=120, dimension=24, shift=0.0, noise=0.0, seed=5):
    """A language and a copy of it, turned, moved and disturbed; unit vectors."""
    rng = np.random.default_rng(seed)
    vectors = unit(rng.standard_normal((count, dimension)))
    other = vectors @ rotation(dimension) + noise * rng.standard_normal((count, dimension))
    return {"en": vectors, "de": other + shift * np.eye(dimension)[0]}


def test_pair_by_hand():
    found = cross_lingual_statistics({"en": [[3, 0], [0, 1]], "de": [[-1, 0], [0, -2]]}, [("en", "de")], neighbors=1)
    # The means are (.5, .5) and (-.5, -.5), sqrt(2) apart; both vectors are sqrt(.5) from their mean.
    assert found["pairs"].keys() == {"en-de"}
    numbers = found["pairs"]["en-de"]
    assert numbers["offset"] == pytest.approx(2)
    assert numbers["alignment"] == pytest.approx(4)
    assert numbers["laplacian_distance"] == pytest.approx(0)
    assert numbers["accuracy"] == 0
    assert found["languages"]["de"] == embedding_statistics([[-1, 0], [0, -2]])
    assert found["means"]["offset"] == numbers["offset"]
    assert found["means"]["mean_cosine"] == pytest.approx(0)


def test_a_turned_space_is_isomorphic_but_not_aligned():
    same = cross_lingual_statistics({"en": languages()["en"], "de": 2 * languages()["en"]}, [("en", "de")])["means"]
    assert (same["offset"], same["alignment"], same["accuracy"]) == pytest.approx((0, 0, 1))
    assert same["isomorphism"] == pytest.approx(1)
    turned = cross_lingual_statistics(languages(), [("en", "de")])["means"]
    assert turned["isomorphism"] == pytest.approx(1) and turned["laplacian_distance"] == pytest.approx(0, abs=1e-9)
    assert turned["alignment"] == pytest.approx(2, abs=0.3) and turned["accuracy"] < 0.1


def test_isomorphism_equals_the_correlation_of_cosines_and_falls_with_noise():
    found = []
    for noise in (0.02, 0.1, 0.5):
        data = languages(noise=noise)
        numbers = cross_lingual_statistics(data, [("en", "de")])["pairs"]["en-de"]
        rows = np.triu_indices(120, 1)
        cosines = [(unit(side) @ unit(side).T)[rows] for side in data.values()]
        assert numbers["isomorphism"] == pytest.approx(np.corrcoef(*cosines)[0, 1])
        found.append((numbers["isomorphism"], -numbers["laplacian_distance"]))
    assert found == sorted(found, reverse=True)
    strangers = {"en": languages()["en"], "de": languages(seed=6)["en"]}
    assert abs(cross_lingual_statistics(strangers, [("en", "de")])["means"]["isomorphism"]) < 0.05


def test_a_shift_is_offset_and_nothing_else():
    vectors = similar(0.3, 120, 24)
    # The other language is the same, or its mirror image: then the means stand apart, and that is all.
    found = [
        cross_lingual_statistics({"en": vectors, "de": vectors * sign}, [("en", "de")])["means"]
        for sign in (1, np.where(np.arange(24) == 0, -1, 1))
    ]
    assert found[0]["offset"] == pytest.approx(0, abs=1e-9) and found[1]["offset"] > 1
    for name in ("isomorphism", "laplacian_distance", "std", "uniformity", "effective_rank"):
        assert found[1][name] == pytest.approx(found[0][name], abs=1e-6), name


def test_without_translations_and_of_several_languages():
    data = {**languages(), "fr": RNG.standard_normal((80, 24))}
    found = cross_lingual_statistics(data, [("de", "en")])
    assert [*found["pairs"]] == ["de-en", "en-fr", "de-fr"]
    assert "accuracy" in found["pairs"]["de-en"] and "accuracy" not in found["pairs"]["en-fr"]
    offsets = [numbers["offset"] for numbers in found["pairs"].values()]
    assert found["means"]["offset"] == pytest.approx(np.mean(offsets))
    assert found["means"]["accuracy"] == found["pairs"]["de-en"]["accuracy"]
    both = hubness(data["fr"], data["en"]), hubness(data["en"], data["fr"])
    for name in ("skewness", "hub_share"):
        expected = (both[0][name] + both[1][name]) / 2
        key = name if name == "hub_share" else "hubness_skewness"
        assert found["pairs"]["en-fr"][key] == pytest.approx(expected)
    expected = spectrum_distance(graph_spectrum(data["en"][:80]), graph_spectrum(data["fr"]))
    assert found["pairs"]["en-fr"]["laplacian_distance"] == pytest.approx(expected)
    alone = cross_lingual_statistics({"en": data["en"]})
    assert alone["pairs"] == {} and alone["means"] == pytest.approx(embedding_statistics(data["en"]))


def test_collapsed_languages():
    point = np.tile(RNG.standard_normal(24).astype("float32"), (30, 1))
    found = cross_lingual_statistics({"en": point, "de": point, "fr": -point}, [("en", "de")])
    assert found["pairs"]["en-de"]["offset"] == 0 and found["pairs"]["en-fr"]["offset"] == math.inf
    assert found["pairs"]["en-de"]["isomorphism"] == 0


@pytest.mark.parametrize("data, pairs, message", [
    ({}, None, "`vectors_by_language` must have at least one"),
    ({"en": np.ones((1, 3))}, None, r"`vectors_by_language\['en'\]` must be \(N, d\) with at least 2 rows"),
    ({"en": np.eye(3), "de": np.eye(4)}, None, "one dimension in all languages; received {'en': 3, 'de': 4}"),
    ({"en": np.eye(3), "de": np.eye(3)}, [("en", "fr")], "two of the languages .*'fr'"),
    ({"en": np.eye(3), "de": np.eye(3)[:2]}, [("en", "de")], "received 3 and 2 rows"),
])  # fmt: skip
def test_languages_refuse(data, pairs, message):
    with pytest.raises(ValueError, match=message):
        cross_lingual_statistics(data, pairs)


def test_other_refusals():
    with pytest.raises(ValueError, match="one dimension; received 3 and 4"):
        hubness(np.eye(3), np.eye(4))
    with pytest.raises(ValueError, match="`neighbors` must be an int of at least 1"):
        cross_lingual_statistics({"en": np.eye(3)}, neighbors=0)
