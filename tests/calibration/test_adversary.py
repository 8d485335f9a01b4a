import warnings

import numpy as np
import pytest

from simretro.arrays import unit_rows
from simretro.calibration import CrossLingualCalibrator, adversarial_map
from simretro.calibration.adversary import _Game
from tests.calibration.clouds import random_rotation, top1

pytestmark = pytest.mark.backends
TINY = {"epochs": 2, "steps_per_epoch": 50, "hidden_size": 32, "discriminator_steps": 2, "learning_rate": 0.3}


def lopsided(count, rng):
    """Directions with no symmetry: two clusters of different weight and width."""
    near = rng.standard_normal((count, 3)) * [0.5, 0.2, 0.1] + [2.0, 0.5, 0]
    far = rng.standard_normal((count, 3)) * [0.1, 0.4, 0.2] + [-0.5, 1, 1.5]
    return unit_rows(np.where(rng.random((count, 1)) < 0.7, near, far))


def test_the_adversary_turns_one_cloud_onto_the_other():
    rng = np.random.default_rng(0)
    rotation = random_rotation(3, rng, 0.6)
    source, target = lopsided(600, rng), (lopsided(600, rng) @ rotation).astype("float32")  # no vector in common
    found = adversarial_map(source, target, 0, **TINY)
    before, after = (np.linalg.norm((source @ matrix).mean(0) - target.mean(0)) for matrix in (np.eye(3), found))
    assert after < before / 2
    assert np.linalg.norm(found - rotation) < np.linalg.norm(np.eye(3) - rotation)
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-6)


def test_a_step_of_one_side_leaves_the_other_as_it_is():
    rng = np.random.default_rng(0)
    game, batch = _Game(3, 8, 0), rng.standard_normal((4, 3)).astype("float32")
    discriminator, matrix = game.discriminator.get_weights(), game.map
    game.fool(batch, 0.5)
    assert not np.array_equal(game.map, matrix)
    for before, after in zip(discriminator, game.discriminator.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    matrix = game.map
    game.discriminate(batch, batch + 1, 0.5)
    np.testing.assert_array_equal(game.map, matrix)
    np.testing.assert_array_equal(game.mapping.get_weights()[0], matrix)
    assert not np.array_equal(game.discriminator.get_weights()[0], discriminator[0])


def test_the_map_step_has_no_dropout_and_is_gradient_descent_on_flipped_labels():
    """By hand: the derivative of the mean cross-entropy through the discriminator, with label 0.1 for source rows."""
    game, batch = _Game(2, 4, 0), np.array([[0.5, -1.0], [2.0, 0.3]], "float32")
    w1, b1, w2, b2, w3, b3 = (weight.astype("float64") for weight in game.discriminator.get_weights())

    def loss(matrix):
        x = batch @ matrix
        for weight, bias in ((w1, b1), (w2, b2)):
            x = x @ weight + bias
            x = np.where(x > 0, x, 0.2 * x)
        logit = x @ w3 + b3
        return float(np.mean(np.log1p(np.exp(logit)) - 0.1 * logit))

    gradient = np.zeros((2, 2))
    for place in np.ndindex(2, 2):
        step = np.zeros((2, 2))
        step[place] = 1e-5
        gradient[place] = (loss(np.eye(2) + step) - loss(np.eye(2) - step)) / 2e-5
    expected = np.eye(2) - 0.1 / 2 * gradient
    expected = 1.001 * expected - 0.001 * expected @ expected.T @ expected
    game.fool(batch, 0.1)
    np.testing.assert_allclose(game.map, expected, atol=1e-5)


def test_the_calibrator_takes_the_adversary_and_its_settings():
    rng = np.random.default_rng(1)
    rotation = random_rotation(3, rng, 0.5)
    X = {"en": lopsided(300, rng), "xx": lopsided(300, rng) @ rotation}
    calibrator = CrossLingualCalibrator(
        False, None, "adversarial", "en", n_starts=1, adversarial=TINY, min_relative_agreement=-9
    )
    calibrator.fit(X)
    assert calibrator.reports_["xx"]["method"] == "adversarial"
    one, two = (np.linalg.norm(calibrator.transform(X["xx"], "xx", upto=stage).mean(0) - X["en"].mean(0))
                for stage in ("raw", "rotate"))  # fmt: skip
    assert two < one / 2
    with pytest.raises(TypeError, match="no_such"):
        CrossLingualCalibrator(rotate="adversarial", adversarial={"no_such": 1}).fit(X)


@pytest.mark.parametrize("dimension, related", [(40, False), (6, True)])
def test_thirty_points_fit_and_a_failure_is_told(dimension, related):
    """Two small clouds with different means: a batch of more vectors than there are, and no map refused in silence."""
    rng = np.random.default_rng(0)
    points, others = rng.standard_normal((2, 30, dimension))
    if related:
        others = points[::-1] @ random_rotation(dimension, rng, 0.2)
    X = {"en": points + 20, "zh": others - 20}
    options = {**TINY, "epochs": 1, "steps_per_epoch": 20, "batch_size": 64}
    calibrator = CrossLingualCalibrator(rotate="adversarial", pivot="en", n_starts=2, adversarial=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator.fit(X)
    report = calibrator.reports_["zh"]
    assert report["method"] == "adversarial" and 0 <= report["agreement"] <= 1
    sure = report["agreement"] >= 0.3 and report["relative_agreement"] >= 0.5
    assert report["applied"] == ("zh" in calibrator.rotations_) == sure == related
    told = [str(one.message) for one in caught if "Not rotated onto en" in str(one.message)]
    assert len(told) == (not sure)
    # Centred by default: without that all of one side is opposite to all of the other.
    raw, centred, scaled, rotated = (calibrator.transform(X, upto=stage) for stage in calibrator.stages)
    assert (raw["zh"] @ raw["en"].T).max() < 0 and abs((centred["zh"] @ centred["en"].T).mean()) < 0.1
    if sure:
        assert top1(rotated["zh"][::-1], rotated["en"]) > 0.9
    else:
        assert f"zh (halves agree by {report['agreement']:.2f}" in told[0] and "30 vectors" in told[0]
        np.testing.assert_array_equal(rotated["zh"], scaled["zh"])
