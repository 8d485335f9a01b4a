"""One language's map onto the pivot: how it is learned, and what decides whether it is used."""

import numpy as np

from simretro.calibration.adversary import adversarial_map
from simretro.calibration.csls import partner_ranks
from simretro.calibration.rotation import (
    Rotation,
    chance_agreement,
    highest_agreement,
    procrustes,
    refine,
    split_half_agreement,
)

_FOLDS = 4
# Where chance leaves less room than this, as in four dimensions, the rest counts as so much.
_LEAST_ROOM = 0.05


def learn_rotation(
    source: np.ndarray, target: np.ndarray, method: str, seeds, rng: np.random.Generator, *,
    min_agreement: float, min_relative_agreement: float, n_starts: int, adversarial: dict,
    identity_weight: float = 0.0, **refinement,
) -> tuple[np.ndarray | None, dict]:  # fmt: skip
    """Learns the map of `source` onto `target` and judges it.

    Args:
        source, target: float32 (S, d) and (T, d), l2-normalised.
        method: "procrustes" or "adversarial".
        seeds: None, or two arrays (P, d) of known pairs.
        rng: draws splits and seeds.
        min_agreement: float, least split-half agreement of a map that was learned without pairs.
        min_relative_agreement: float, the same as a share of what is possible, both counted from chance.
        n_starts: int, adversarial maps to choose from.
        adversarial: dict, further arguments of `adversarial_map`.
        identity_weight: float, of the map that starts from the identity, see `procrustes`. What the halves agree on is
            judged without it, or they would agree on the identity.
        refinement: csls_k, mutual, n_refine of `refine`.
    Returns: the map, float64 (d, d), or None where the judgement is against it; and the report, see
        `CrossLingualCalibrator.reports_`.
    """
    if seeds is not None:
        return _from_dictionary(source, target, seeds, rng, refinement)
    if method == "procrustes":
        rotation, agreement = _from_identity(source, target, rng, refinement, identity_weight)
    else:
        rotation, agreement = _adversarial(source, target, rng, refinement, n_starts, adversarial)
    chance = chance_agreement(_refined_identity(refinement), source, target, rng)
    room = highest_agreement(rotation, source, rng) - chance
    relative = (agreement - chance) / max(room, _LEAST_ROOM)
    report = {
        "method": method, "applied": agreement >= min_agreement and relative >= min_relative_agreement,
        "agreement": agreement, "relative_agreement": relative, "num_pairs": rotation.num_pairs,
    }  # fmt: skip
    return rotation.matrix if report["applied"] else None, report


def _identity(dimension):
    return Rotation.start(np.eye(dimension), determined=False)


def _refined_identity(refinement):
    return lambda source, target: refine(source, target, _identity(source.shape[1]), **refinement)


def _from_identity(source, target, rng, refinement, identity_weight):
    agreement, _ = split_half_agreement(_refined_identity(refinement), source, target, rng)
    return _refined_identity(refinement | {"identity_weight": identity_weight})(source, target), agreement


def _adversarial(source, target, rng, refinement, n_starts, options):
    """Each start learns on both halves; the one whose halves agree best goes on, from the map between the two."""
    best, best_agreement = _identity(source.shape[1]), -np.inf
    for _ in range(n_starts):

        def learn(source, target):
            matrix = adversarial_map(source, target, int(rng.integers(1 << 30)), csls_k=refinement["csls_k"], **options)
            return refine(source, target, Rotation.start(matrix, determined=True), **refinement)

        agreement, maps = split_half_agreement(learn, source, target, rng, num_splits=1)
        if maps and agreement > best_agreement:
            left, _, right = np.linalg.svd(maps[0].matrix + maps[1].matrix)
            best, best_agreement = Rotation.start(left @ right, determined=True), agreement
    return refine(source, target, best, **refinement), max(best_agreement, 0.0)


def _from_dictionary(source, target, seeds, rng, refinement):
    """No rotation, the pairs' own, or that one refined: the one which finds pairs that it has not seen soonest.

    Known pairs are labels. They judge better than the agreement of halves, which a few pairs leave low even where their
    map is a great help.
    """
    candidates = {"identity": lambda known: _identity(source.shape[1]), "procrustes": lambda known: procrustes(*known)}
    if refinement["n_refine"]:
        candidates["refined"] = lambda known: refine(source, target, procrustes(*known), seeds=known, **refinement)
    if len(seeds[0]) < 2:  # nothing can be held out
        report = {"method": "identity", "applied": False, "num_pairs": 0, "held_out_ranks": {}}
        return None, report
    log_ranks = _held_out_log_ranks(candidates, seeds, target, rng)
    means = {name: float(values.mean()) for name, values in log_ranks.items()}
    chosen = "identity"
    for name, values in log_ranks.items():
        gains = log_ranks["identity"] - values
        # By two standard errors: wrong pairs make a map that is as good as none, and by chance a little better.
        if means[name] < means[chosen] and gains.mean() > 2 * gains.std() / len(gains) ** 0.5:
            chosen = name
    rotation = candidates[chosen](seeds)
    report = {
        "method": chosen, "applied": chosen != "identity", "num_pairs": rotation.num_pairs,
        "held_out_ranks": {name: float(np.exp(mean)) for name, mean in means.items()},
    }  # fmt: skip
    return rotation.matrix if report["applied"] else None, report


def _held_out_log_ranks(candidates, seeds, target, rng):
    """For each way to learn a map the log of the rank of every pair, learned without it; arrays (P,)."""
    count = len(seeds[0])
    log_ranks = {name: np.empty(count) for name in candidates}
    for fold in np.array_split(rng.permutation(count), min(_FOLDS, count)):
        known = tuple(np.delete(side, fold, axis=0) for side in seeds)
        for name, learn in candidates.items():
            mapped = (seeds[0][fold] @ learn(known).matrix).astype("float32")
            log_ranks[name][fold] = np.log(partner_ranks(mapped, seeds[1][fold], target))
    return log_ranks
