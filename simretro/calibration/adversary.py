"""The adversary of MUSE: a map is learned until a classifier cannot tell mapped vectors from those of the target.

Slow, and unsure for distant languages: results differ between seeds, so the calibrator trains several and compares.
Reference: Conneau et al., 2018, https://arxiv.org/abs/1710.04087
"""

import numpy as np

from simretro.arrays import unit_rows
from simretro.calibration.csls import csls_pairs

_INPUT_DROPOUT, _NEGATIVE_SLOPE, _LABEL_SMOOTHING, _ORTHOGONALITY = 0.1, 0.2, 0.1, 0.001
_RATE_DECAY, _RATE_SHRINK, _LEAST_RATE = 0.98, 0.5, 1e-6
_CRITERION_VECTORS = 10_000


def adversarial_map(
    source: np.ndarray, target: np.ndarray, seed: int, *, epochs: int = 5, steps_per_epoch: int = 1000,
    discriminator_steps: int = 5, batch_size: int = 32, hidden_size: int = 2048, learning_rate: float = 0.1,
    csls_k: int = 10,
) -> np.ndarray:  # fmt: skip
    """Learns an orthogonal map of the source's cloud onto the target's, from the identity, without any pair.

    The settings are MUSE's, but for the length: there an epoch is 1,000,000 samples, that is 31,250 steps.

    Args:
        source, target: float32 (S, d) and (T, d), l2-normalised.
        seed: int, of the batches, the discriminator's weights and its dropout.
        epochs: int; after each the mean cosine of the nearest neighbours by CSLS is taken, and the best map is kept.
        steps_per_epoch: int, steps of the map in an epoch.
        discriminator_steps: int, steps of the discriminator before each of these.
        batch_size: int, vectors of each side in a step, drawn from all.
        hidden_size: int, width of the discriminator's two hidden layers.
        learning_rate: float, of both; times 0.98 after each epoch, halved when the criterion falls a second time.
        csls_k: int, see `csls_pairs`.
    Returns: float64 (d, d), the orthogonal matrix next to the best map.
    """
    game = _Game(source.shape[1], hidden_size, seed)
    rng = np.random.default_rng(seed)
    # Coordinates of unit size, as word vectors have them: the learning rates are made for these.
    source_rows, target_rows = (side * np.float32(side.shape[1] ** 0.5) for side in (source, target))
    best, best_criterion, fallen = game.map, -np.inf, False
    for _ in range(epochs):
        for _ in range(steps_per_epoch):
            for _ in range(discriminator_steps):
                batches = (_draw(side, batch_size, rng) for side in (source_rows, target_rows))
                game.discriminate(*batches, learning_rate)
            game.fool(_draw(source_rows, batch_size, rng), learning_rate)
        criterion = _mean_cosine(source, target, game.map, csls_k)
        learning_rate *= _RATE_DECAY
        if criterion > best_criterion:
            best, best_criterion = game.map, criterion
        else:
            learning_rate *= _RATE_SHRINK if fallen else 1
            fallen = True
        if learning_rate < _LEAST_RATE:
            break
    left, _, right = np.linalg.svd(best.astype("float64"))
    return left @ right


def _draw(vectors, count, rng):
    return vectors[rng.integers(0, len(vectors), count)]


def _mean_cosine(source, target, matrix, csls_k):
    """The only criterion without labels that MUSE has; it may fall while the map gets better."""
    source, target = unit_rows(source[:_CRITERION_VECTORS] @ matrix), target[:_CRITERION_VECTORS]
    pairs = csls_pairs(source, target, csls_k, mutual=False)
    return float(np.einsum("ij,ij->i", source[pairs[:, 0]], target[pairs[:, 1]]).mean())


class _Game:
    """Map and discriminator, in turns, on any Keras backend."""

    def __init__(self, dimension, hidden_size, seed):
        import keras  # here: the rest of the room needs NumPy alone

        class FoolingModel(keras.Model):
            def __init__(self, mapping, discriminator):
                super().__init__()
                self.mapping, self.discriminator = mapping, discriminator

            def call(self, vectors, training=None):
                return self.discriminator(self.mapping(vectors), training=False)  # without its dropout

        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        weights = [keras.initializers.GlorotUniform(seed=seed + number) for number in range(3)]
        self.discriminator = keras.Sequential([
            keras.Input((dimension,)),
            keras.layers.Dropout(_INPUT_DROPOUT, seed=seed),
            keras.layers.Dense(hidden_size, kernel_initializer=weights[0]),
            keras.layers.LeakyReLU(_NEGATIVE_SLOPE),
            keras.layers.Dense(hidden_size, kernel_initializer=weights[1]),
            keras.layers.LeakyReLU(_NEGATIVE_SLOPE),
            keras.layers.Dense(1, kernel_initializer=weights[2]),
        ])  # fmt: skip
        self.discriminator.compile(keras.optimizers.SGD(), loss)
        self.mapping = keras.layers.Dense(dimension, use_bias=False, kernel_initializer="identity")
        self.mapping.build((None, dimension))
        self.fooling = FoolingModel(self.mapping, self.discriminator)
        self.fooling.compile(keras.optimizers.SGD(), loss)
        self.map = np.eye(dimension, dtype="float32")  # of row vectors, `x @ map`

    def discriminate(self, source, target, learning_rate):
        """One step of the discriminator: mapped source vectors have the label 1, target vectors 0, both smoothed."""
        labels = np.full((len(source) + len(target), 1), _LABEL_SMOOTHING, "float32")
        labels[: len(source)] = 1 - _LABEL_SMOOTHING
        self.discriminator.trainable = True
        self.discriminator.optimizer.learning_rate = learning_rate
        self.discriminator.train_on_batch(np.concatenate([source @ self.map, target]), labels)

    def fool(self, source, learning_rate):
        """One step of the map with the labels turned round, then back towards the orthogonal matrices."""
        self.discriminator.trainable = False
        # MUSE averages over both sides of the batch, but no gradient flows through the target's.
        self.fooling.optimizer.learning_rate = learning_rate / 2
        self.fooling.train_on_batch(source, np.full((len(source), 1), _LABEL_SMOOTHING, "float32"))
        matrix = self.mapping.get_weights()[0]
        matrix = (1 + _ORTHOGONALITY) * matrix - _ORTHOGONALITY * matrix @ matrix.T @ matrix
        self.mapping.set_weights([matrix])
        self.map = matrix
