import keras
import numpy as np
import pytest

from simretro.training.state import (
    assign_variables,
    build_optimizer_variables,
    first_non_finite,
    misfits,
    read_variables,
    state_variables,
)

pytestmark = pytest.mark.backends


class Holder(keras.Model):
    """Two equally named layers, a weight and a running metric of its own."""

    def __init__(self, dtype):
        super().__init__(dtype=dtype)
        self.first, self.second = (keras.layers.Dense(2, name="same", dtype=dtype) for _ in range(2))
        self.dropout = keras.layers.Dropout(0.5)
        self.seen = keras.metrics.Mean(name="seen")

    def build(self, shape=None):
        self.temperature = self.add_weight(shape=(), name="temperature")
        self.first.build((None, 3))
        self.second.build((None, 4))
        self.built = True


def make(dtype="float32", optimizer=None):
    model = Holder(dtype)
    model.build()
    model.compile(optimizer or keras.optimizers.AdamW(0.1, use_ema=True))
    build_optimizer_variables(model)
    return model


def randomise(model, seed=0):
    rng = np.random.default_rng(seed)
    for group in state_variables(model).values():
        for variable in group.values():
            variable.assign(rng.integers(0, 100, variable.shape))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_second_model_of_a_process_takes_the_state_of_the_first(dtype):
    """Keras numbers models, optimizers and seed generators through; `mixed_float16` wraps the optimizer."""
    first, second = make(dtype), make(dtype)
    randomise(first)
    assert first.name != second.name and first.optimizer.variables[0].path != second.optimizer.variables[-1].path
    for group, variables in state_variables(first).items():
        arrays = read_variables(variables)
        mine = state_variables(second)[group]
        assert misfits(mine, arrays) == [] and assign_variables(second, mine, arrays)
        again = read_variables(mine)
        assert set(again) == set(arrays) and all(np.array_equal(again[name], arrays[name]) for name in arrays)
        assert all(array.dtype.kind in "iuf" for array in arrays.values())


def test_names():
    names = state_variables(make())
    assert set(names["model"]) == {
        "temperature", "same/kernel", "same/bias", "same/kernel#2", "same/bias#2",
        "seed_generator/seed_generator_state",
    }  # fmt: skip
    assert {
        "iteration",
        "learning_rate",
        "temperature_momentum",
        "same_kernel_average",
        "same_kernel_average#2",
    } <= set(names["optimizer"])
    assert {"seen/total", "seen/count", "loss/total"} <= set(names["metrics"])


def test_misfits_are_told_apart():
    variables = state_variables(make())["model"]
    arrays = read_variables(variables)
    arrays["other"] = arrays.pop("temperature")
    arrays["same/bias"] = np.zeros(5, "float32")
    assert misfits(variables, arrays) == [
        "missing in the file: temperature",
        "not in the model: other",
        "of another shape: same/bias (model (2,), file (5,))",
    ]


def test_first_non_finite_ignores_ints():
    arrays = {"a": np.array([1, 2]), "b": np.ones(2), "c": np.array([1, np.inf]), "d": np.array(np.nan)}
    assert first_non_finite(arrays) == "c"
    assert first_non_finite({"a": arrays["a"], "b": arrays["b"]}) is None
