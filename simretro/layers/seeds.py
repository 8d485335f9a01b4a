"""A seed that is a tensor, for draws that must be repeated."""

import keras


class FixedSeed(keras.random.SeedGenerator):
    """Gives the same seed at each call: `keras.random` takes ints and generators, but no tensors.

    Args:
        seed: tensor, what `SeedGenerator.next` gave.
    """

    def __init__(self, seed):  # no variable: the state is the seed itself
        self._seed = seed

    def next(self, ordered=True):
        return self._seed
