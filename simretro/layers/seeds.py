"""A seed that is a tensor, for draws that must be repeated."""

import keras


class FixedSeed(keras.random.SeedGenerator):
    """Gives the same seed at each call: `keras.random` takes ints and generators, but no tensors.

    Args:
        seed: tensor, what `SeedGenerator.next` gave.
    """

    # On torch, Keras leaves dropout to torch's own random numbers where a generator has no initial seed.
    _initial_seed = 0

    def __init__(self, seed):  # no variable: the state is the seed itself
        self._seed = seed

    def next(self, ordered=True):
        return self._seed
