"""Orthogonal maps between two clouds of vectors, with and without known pairs, and how far to trust them.

A map acts on row vectors, `x @ rotation`. Reflections are allowed, as in MUSE.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simretro.calibration.csls import csls_pairs

# Singular values below this share of the largest are rounding errors: the pairs say nothing about that direction.
_RANK_TOLERANCE = 1e-9


class Rotation(NamedTuple):
    """An orthogonal map and what it rests on.

    Attributes:
        matrix: float64 (d, d), orthogonal.
        determined: float64 (d, d), the part of `matrix` that the pairs determine; of directions that no pair reaches
            it makes zeros.
        pairs: two arrays (P, d), the vectors of the two sides that it was solved from.
    """

    matrix: np.ndarray
    determined: np.ndarray
    pairs: tuple[np.ndarray, np.ndarray]

    @property
    def num_pairs(self) -> int:
        """How many pairs it rests on."""
        return len(self.pairs[0])

    @classmethod
    def start(cls, matrix: np.ndarray, determined: bool) -> "Rotation":
        """A map that rests on no pairs: the identity, which nothing determines, or an adversary's."""
        none = np.zeros((0, len(matrix)))
        return cls(matrix, matrix if determined else np.zeros_like(matrix), (none, none))


def procrustes(source: np.ndarray, target: np.ndarray, identity_weight: float = 0.0) -> Rotation:
    """The orthogonal W with the least sum of squares of `source @ W - target` and `identity_weight * (W - I)`.

    With a weight of 0, fewer pairs than dimensions leave W open in some directions: there it is as near to the identity
    as it can be. With a greater one, W leaves the identity as far as the pairs are a reason to: the weight counts as so
    many pairs along each axis that lie where their partners lie.

    Args:
        source, target: numbers (P, d), row i of the one belongs to row i of the other; P may be 0.
        identity_weight: float >= 0; the squares of `W - I` count so often.
    Returns: a `Rotation`.
    Reference: Schönemann, 1966, https://doi.org/10.1007/BF02289451
    """
    products = np.asarray(source, "float64").T @ np.asarray(target, "float64")
    left, sizes, right = np.linalg.svd(products + identity_weight * np.eye(len(products)))
    known = sizes > _RANK_TOLERANCE * sizes[0] if sizes[0] > 0 else np.zeros(len(sizes), bool)
    determined = left[:, known] @ right[known]
    open_left, open_right = left[:, ~known], right[~known]
    # max over orthogonal R of trace(open_left R open_right): what is open turned as little as possible.
    turn_left, _, turn_right = np.linalg.svd(open_left.T @ open_right.T)
    matrix = determined + open_left @ turn_left @ turn_right @ open_right
    return Rotation(matrix, determined, (source, target))


def refine(
    source: np.ndarray, target: np.ndarray, start: Rotation, *,
    seeds=None, csls_k=10, mutual=True, n_refine=5, identity_weight=0.0,
) -> Rotation:  # fmt: skip
    """Turn by turn: pairs by CSLS under the present map, then the map by Procrustes from these pairs.

    Args:
        source, target: float32 (S, d) and (T, d), l2-normalised.
        start: a `Rotation`.
        seeds: None, or two arrays (P, d) of known pairs, which take part in every turn.
        csls_k, mutual: see `csls_pairs`.
        n_refine: int, turns at most; fewer if the pairs stay the same or if there are none.
        identity_weight: see `procrustes`.
    Returns: a `Rotation`.
    """
    rotation, before = start, None
    for _ in range(n_refine):
        pairs = csls_pairs((source @ rotation.matrix).astype("float32"), target, csls_k, mutual)
        if not len(pairs) or (before is not None and np.array_equal(pairs, before)):
            break
        left, right = source[pairs[:, 0]], target[pairs[:, 1]]
        if seeds is not None:
            left, right = np.concatenate([left, seeds[0]]), np.concatenate([right, seeds[1]])
        rotation, before = procrustes(left, right, identity_weight), pairs
    return rotation


def split_half_agreement(
    learn: Callable, source: np.ndarray, target: np.ndarray, rng: np.random.Generator, num_splits: int = 2
) -> tuple[float, list[Rotation]]:
    """Learns the map on disjoint halves of the data and compares: where both find the same, there is something to find.

    No label is needed, and unlike the mean cosine of the pairs found it tells a failure: two wrong maps of one and the
    same space have little in common.

    Args:
        learn: called with the source and target of a half, returns a `Rotation`.
        source, target: float32 (S, d) and (T, d), l2-normalised.
        rng: draws the halves.
        num_splits: int, how often; the mean is returned.
    Returns: the mean cosine of a source vector under the two maps, where an undetermined direction counts as zero;
        between -1 and 1, and 0 for fewer than four vectors. And the `Rotation`s of the halves, two for each split.
    """
    if min(len(source), len(target)) < 4:
        return 0.0, []
    agreements, maps = [], []
    for _ in range(num_splits):
        orders = [rng.permutation(len(side)) for side in (source, target)]
        pair = [learn(source[orders[0][half::2]], target[orders[1][half::2]]) for half in (0, 1)]
        agreements.append(_agreement(source, *pair))
        maps += pair
    return float(np.mean(agreements)), maps


def highest_agreement(
    rotation: Rotation, source: np.ndarray, rng: np.random.Generator, num_splits: int = 2
) -> float:  # fmt: skip
    """The agreement that halves would have if the pairs of a map were beyond doubt: of the maps of half of them each.

    Even right pairs leave a map of many dimensions uncertain. What `split_half_agreement` lacks of this number is due
    to halves that chose other pairs.

    Args:
        rotation: a `Rotation`, learned on all data.
        source, rng, num_splits: see `split_half_agreement`.
    Returns: float; 0 for fewer than two pairs.
    """
    if rotation.num_pairs < 2:
        return 0.0
    agreements = []
    for _ in range(num_splits):
        order = rng.permutation(rotation.num_pairs)
        agreements.append(
            _agreement(source, *(procrustes(*(side[order[half::2]] for side in rotation.pairs)) for half in (0, 1)))
        )
    return float(np.mean(agreements))


def chance_agreement(
    learn: Callable, source: np.ndarray, target: np.ndarray, rng: np.random.Generator, num_splits: int = 2
) -> float:  # fmt: skip
    """The `split_half_agreement` of a hopeless case: of the same data, its source turned at random.

    Maps of halves that start at one place and rest on few pairs are alike to some degree whatever the data. Turned at
    random, a source has lost the nearness to its target that refinement needs, and nothing else.

    Args: as of `split_half_agreement`.
    Returns: float.
    """
    turn, _ = np.linalg.qr(rng.standard_normal((source.shape[1],) * 2))
    agreement, _ = split_half_agreement(learn, (source @ turn).astype(source.dtype), target, rng, num_splits)
    return agreement


def _agreement(source, one, two):
    return float(np.einsum("ij,ij->i", source @ one.determined, source @ two.determined).mean())
