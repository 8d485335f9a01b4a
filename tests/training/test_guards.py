import keras
import pytest

from simretro.training import build_optimizer, check_distribution


class MirroredStrategy:
    """What the check looks at."""

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas


def accumulating(wrapped):
    optimizer = keras.optimizers.AdamW(gradient_accumulation_steps=4)
    return keras.optimizers.LossScaleOptimizer(optimizer) if wrapped else optimizer


@pytest.mark.parametrize("wrapped", [False, True])
def test_all_that_fails_is_named_in_one_error(wrapped):
    with pytest.raises(ValueError) as error:
        check_distribution(MirroredStrategy(2), accumulating(wrapped), jit_compile=True, steps_per_execution=8)
    text = str(error.value)
    for part in ("MirroredStrategy", "2 replica", "`jit_compile`", "`steps_per_execution`", "received 8",
                 "`gradient_accumulation_steps`", "received 4", "micro_batches"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    "options", [{"jit_compile": True}, {"steps_per_execution": 2}, {"optimizer": accumulating(wrapped=False)}]
)
def test_each_alone_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options)) if "optimizer" not in options else "accumulation"):
        check_distribution(MirroredStrategy(2), **options)


def test_what_works_passes():
    check_distribution(MirroredStrategy(2), build_optimizer(use_ema=True, global_clipnorm=1.0))
    check_distribution(MirroredStrategy(2), "adamw", jit_compile=False)
    check_distribution(MirroredStrategy(1), jit_compile=True, steps_per_execution=8)
    check_distribution(None, accumulating(wrapped=False), jit_compile=True, steps_per_execution=8)
    with pytest.raises(ValueError, match="accumulation"):
        check_distribution(MirroredStrategy(1), accumulating(wrapped=False))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
def test_default_strategy_of_a_model_passes():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    check_distribution(model.distribute_strategy, accumulating(wrapped=False), True, 8)
