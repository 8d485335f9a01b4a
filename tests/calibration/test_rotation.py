import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.arrays import unit_rows
from simretro.calibration import Rotation, chance_agreement, highest_agreement, procrustes, refine, split_half_agreement
from tests.calibration.clouds import meanings, random_rotation


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(1, 8), st.integers(0, 8))
def test_procrustes_recovers_a_rotation_from_enough_pairs(seed, dimension, more):
    rng = np.random.default_rng(seed)
    rotation = random_rotation(dimension, rng)  # a reflection every other time
    source = rng.standard_normal((dimension + more, dimension))
    found = procrustes(source, source @ rotation)
    np.testing.assert_allclose(found.matrix, rotation, atol=1e-6)
    np.testing.assert_allclose(found.determined, found.matrix, atol=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(0, 5))
def test_what_few_pairs_leave_open_is_turned_as_little_as_possible(seed, count):
    rng = np.random.default_rng(seed)
    source, rotation = rng.standard_normal((count, 6)), random_rotation(6, rng)
    found = procrustes(source, source @ rotation)
    np.testing.assert_allclose(found.matrix @ found.matrix.T, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(source @ found.matrix, source @ rotation, atol=1e-6)
    assert np.linalg.matrix_rank(found.determined, tol=1e-6) == count and found.num_pairs == count
    # No other completion has a larger trace: those made by turning only the open directions have a smaller one.
    left, right = (
        np.linalg.svd(source @ m if count else np.zeros((1, 6)))[2][count:] for m in (np.eye(6), found.matrix)
    )
    other = found.determined + left.T @ random_rotation(6 - count, rng) @ right
    np.testing.assert_allclose(source @ other, source @ rotation, atol=1e-6)
    assert np.trace(other) <= np.trace(found.matrix) + 1e-6


def test_procrustes_minimises_the_distance():
    rng = np.random.default_rng(0)
    source, target = rng.standard_normal((2, 40, 5))
    best = np.linalg.norm(source @ procrustes(source, target).matrix - target)
    assert all(best <= np.linalg.norm(source @ random_rotation(5, rng) - target) for _ in range(200))


@settings(max_examples=40)
@given(st.integers(0, 1 << 20), st.integers(0, 9), st.floats(0.01, 50))
def test_the_weight_of_the_identity_counts_as_pairs_along_each_axis(seed, count, weight):
    source, target = np.random.default_rng(seed).standard_normal((2, count, 6))
    axes = np.sqrt(weight) * np.eye(6)
    expected = procrustes(np.concatenate([source, axes]), np.concatenate([target, axes]))
    found = procrustes(source, target, weight)
    np.testing.assert_allclose(found.matrix, expected.matrix, atol=1e-7)
    assert found.num_pairs == count
    np.testing.assert_allclose(procrustes(source, target, 1e9).matrix, np.eye(6), atol=1e-6)


def identity(dimension):
    return Rotation.start(np.eye(dimension), determined=False)


def turned_clouds(angle, count=400, dimension=8, seed=0, same=True):
    rng = np.random.default_rng(seed)
    rotation = random_rotation(dimension, rng, angle)
    source = meanings(count, dimension, rng)
    target = source[::-1] if same else meanings(count, dimension, rng)
    return unit_rows(source), unit_rows(target @ rotation), rotation


def test_refinement_finds_a_small_rotation_from_the_identity():
    source, target, rotation = turned_clouds(0.4)
    found = refine(source, target, identity(8))
    np.testing.assert_allclose(found.matrix, rotation, atol=1e-4)
    assert found.num_pairs > 350


def test_refinement_stops_without_pairs_and_keeps_the_start(monkeypatch):
    source, target, rotation = turned_clouds(0.4)
    start = Rotation.start(rotation, determined=True)
    monkeypatch.setattr("simretro.calibration.rotation.csls_pairs", lambda *a: np.zeros((0, 2), "int64"))
    found = refine(source, target, start)
    assert found is start and found.num_pairs == 0


def test_seeds_take_part_in_every_turn():
    source, target, rotation = turned_clouds(0.4, count=30)
    seeds = np.eye(8, dtype="float32"), np.eye(8, dtype="float32") @ rotation
    found = refine(source, target, procrustes(*seeds), seeds=seeds, n_refine=1)
    assert found.num_pairs > 8
    np.testing.assert_array_equal(found.pairs[0][-8:], seeds[0])


def refined(source, target):
    return refine(source, target, identity(source.shape[1]))


def agreements(source, target):
    """Of halves, of halves after a random turn, and the highest possible."""
    rng = np.random.default_rng(0)
    agreement, maps = split_half_agreement(refined, source, target, rng)
    assert len(maps) == 4
    highest = highest_agreement(refined(source, target), source, rng)
    return agreement, chance_agreement(refined, source, target, rng), highest


@pytest.mark.parametrize("dimension", [8, 16])
def test_halves_agree_where_there_is_something_to_find(dimension):
    source, target, _ = turned_clouds(0.3, count=1000, dimension=dimension)
    agreement, chance, highest = agreements(source, target)
    assert agreement > 0.95 and 0.95 < agreement / highest < 1.05
    assert chance < (0.8 if dimension == 16 else 1)  # in few dimensions refinement often finds its way


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count, dimension", [(300, 30), (300, 10), (600, 16)])
def test_halves_of_unrelated_clouds_agree_by_chance_alone(count, dimension, seed):
    rng = np.random.default_rng(seed)
    source, target = (unit_rows(rng.standard_normal((count, dimension))) for _ in range(2))
    agreement, chance, highest = agreements(source, target)
    assert abs(agreement - chance) < 0.4 * max(highest - chance, 0.1)
    if dimension == 30:
        assert agreement < 0.5 and agreement / highest < 0.65


def test_undetermined_directions_do_not_count_as_agreement():
    # Two pairs a half in twenty dimensions: both maps are nearly the identity, and know next to nothing.
    rng = np.random.default_rng(0)
    points = unit_rows(rng.standard_normal((4, 20)))
    agreement, maps = split_half_agreement(lambda s, t: procrustes(s[:1], s[:1]), points, points, rng, num_splits=1)
    assert all(np.trace(rotation.matrix) > 19.9 for rotation in maps)
    assert agreement < 0.3


def test_too_few_to_split():
    points = np.eye(3, dtype="float32")
    assert split_half_agreement(None, points, points, np.random.default_rng(0)) == (0.0, [])
    assert highest_agreement(procrustes(points[:1], points[:1]), points, np.random.default_rng(0)) == 0
