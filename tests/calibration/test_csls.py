import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.arrays import unit_rows
from simretro.calibration import csls, csls_neighbors, csls_pairs, neighborhood_cosines
from simretro.calibration.csls import partner_ranks


def brute_force(source, target, k):
    """The whole matrix of CSLS, in float64."""
    cosines = source.astype("float64") @ target.astype("float64").T
    source_r = np.sort(cosines, axis=1)[:, ::-1][:, :k].mean(axis=1)
    target_r = np.sort(cosines, axis=0)[::-1][:k].mean(axis=0)
    return 2 * cosines - source_r[:, None] - target_r


@st.composite
def clouds(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    sizes = draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    dimension = draw(st.integers(1, 6))
    return [unit_rows(rng.standard_normal((size, dimension))) for size in sizes]


@settings(max_examples=60)
@given(clouds(), st.integers(1, 12), st.integers(1, 100))
def test_blocked_equals_unblocked_and_brute_force(sides, k, block):
    scores = brute_force(*sides, k)
    whole = csls_neighbors(*sides, k), neighborhood_cosines(*sides, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csls, "_SCORES_PER_BLOCK", block)
        blocked = csls_neighbors(*sides, k), neighborhood_cosines(*sides, k)
    for (forward, backward), r in (whole, blocked):
        # Equal up to rounding: one dimension has two cosines only, and so ties.
        np.testing.assert_allclose(scores[np.arange(len(forward)), forward], scores.max(axis=1), atol=1e-5)
        np.testing.assert_allclose(scores[backward, np.arange(len(backward))], scores.max(axis=0), atol=1e-5)
        np.testing.assert_allclose(r, np.sort(sides[0] @ sides[1].T, axis=1)[:, -k:].mean(axis=1), atol=1e-6)
    if sides[0].shape[1] > 1:
        np.testing.assert_array_equal(whole[0][0], blocked[0][0])
        np.testing.assert_array_equal(whole[0][1], blocked[0][1])


@settings(max_examples=40)
@given(clouds(), st.integers(1, 12))
def test_a_common_rotation_changes_no_neighbour_and_sides_can_be_exchanged(sides, k):
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((sides[0].shape[1],) * 2))
    scores = brute_force(*sides, k)
    turned = [(side @ rotation).astype("float32") for side in sides]
    forward, backward = csls_neighbors(*turned, k)
    np.testing.assert_allclose(scores[np.arange(len(forward)), forward], scores.max(axis=1), atol=1e-5)
    other_forward, other_backward = csls_neighbors(*turned[::-1], k)
    if len(turned[0][0]) > 1:
        np.testing.assert_array_equal(other_forward, backward)
        np.testing.assert_array_equal(other_backward, forward)


def test_hand_computed_a_hub_is_nobodys_match():
    # By cosine both sources are nearest to the hub at 0 degrees; by CSLS the second one finds its own.
    def at(*degrees):
        return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype("float32")

    source, target = at(-5, 10, 5, -10, 28), at(0, 58)
    assert (source @ target.T).argmax(axis=1).tolist() == [0, 0, 0, 0, 0]
    # k=2: r of the hub .99, of the other (cos 30 + cos 48)/2 = .77; 28 degrees: 2(.883) - .99 < 2(.866) - .77.
    assert csls_neighbors(source, target, k=2)[0].tolist() == [0, 0, 0, 0, 1]
    assert csls_neighbors(source, target, k=2)[1].tolist()[1] == 4
    pairs = csls_pairs(source, target, k=2)
    assert [4, 1] in pairs.tolist() and len(pairs) == 2
    assert csls_pairs(source, target, k=2, mutual=False).tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [4, 1]]


def test_of_equals_the_first_is_taken_whatever_the_blocks(monkeypatch):
    points = unit_rows([[1, 0], [0, 1], [1, 0], [0, 1]])
    for block in (1 << 22, 1):
        monkeypatch.setattr(csls, "_SCORES_PER_BLOCK", block)
        for places in csls_neighbors(points, points, k=1):
            assert places.tolist() == [0, 1, 0, 1]
        assert csls_pairs(points, points, k=1).tolist() == [[0, 0], [1, 1]]


def test_memory_is_bounded(monkeypatch):
    import tracemalloc

    rng = np.random.default_rng(0)
    source, target = (unit_rows(rng.standard_normal((3000, 8))) for _ in range(2))
    monkeypatch.setattr(csls, "_SCORES_PER_BLOCK", 1 << 16)
    tracemalloc.start()
    csls_pairs(source, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # all scores at once would be 36 MB


def test_unit_rows():
    rows = unit_rows([[3, 4], [0, 0], [1e200, 0], [1e-200, 0]])
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [1, 0], [1, 0]])
    assert rows.dtype == "float32" and unit_rows(np.zeros((0, 3))).shape == (0, 3)


def test_partner_ranks(monkeypatch):
    pool = np.eye(3, dtype="float32")
    vectors = unit_rows([[3, 2, 1], [3, 2, 1], [1, 2, 3]])
    for block in (1 << 22, 1):
        monkeypatch.setattr(csls, "_SCORES_PER_BLOCK", block)
        assert partner_ranks(vectors, pool[[0, 2, 1]], pool).tolist() == [1, 3, 2]
