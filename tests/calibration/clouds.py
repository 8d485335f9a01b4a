"""Clouds of vectors whose calibration is known."""

import numpy as np


def random_rotation(dimension, rng, angle=None):
    """An orthogonal matrix; with an `angle` a rotation by it (radians) in every one of `dimension // 2` planes."""
    basis, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    if angle is None:
        return basis
    turn = np.eye(dimension)
    for first in range(0, dimension - 1, 2):
        turn[first : first + 2, first : first + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return basis @ turn @ basis.T


def meanings(count, dimension, rng, num_topics=12):
    """Vectors with clusters in them, so that a wrong rotation does not fit as well as the right one."""
    topics = 2 * rng.standard_normal((num_topics, dimension))
    return topics[rng.integers(0, num_topics, count)] + rng.standard_normal((count, dimension))


def spoken(meanings, rng, angle, noise=0.05):
    """The vectors of a language for given meanings: turned, stretched by dimension, moved. And what undoes it."""
    dimension = meanings.shape[1]
    rotation = random_rotation(dimension, rng, angle)
    spread, mean = np.exp(0.3 * rng.standard_normal(dimension)), 3 * rng.standard_normal(dimension)
    vectors = (meanings @ rotation + noise * rng.standard_normal(meanings.shape)) * spread + mean
    return vectors.astype("float32"), rotation, spread, mean


def top1(left, right):
    """Share of rows that are nearest to the row of the same place."""
    return float(((left @ right.T).argmax(axis=1) == np.arange(len(left))).mean())
