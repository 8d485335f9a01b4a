"""Per-language shift, scale and rotation of sentence vectors, so that languages share one space."""

from simretro.calibration.adversary import adversarial_map
from simretro.calibration.calibrator import CrossLingualCalibrator
from simretro.calibration.csls import csls_neighbors, csls_pairs, neighborhood_cosines
from simretro.calibration.rotation import (
    Rotation,
    chance_agreement,
    highest_agreement,
    procrustes,
    refine,
    split_half_agreement,
)

__all__ = [
    "CrossLingualCalibrator",
    "Rotation",
    "adversarial_map",
    "chance_agreement",
    "csls_neighbors",
    "csls_pairs",
    "highest_agreement",
    "neighborhood_cosines",
    "procrustes",
    "refine",
    "split_half_agreement",
]
