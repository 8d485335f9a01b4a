"""Encoders in float16 train with a scaled loss, also where the method itself has no such policy."""

import keras
import mirrored_bi_encoder as toy
import numpy as np
import pytest

from simretro.methods import CCP, BiEncoder, RetroMAE, SimBERT
from simretro.models import build_transformer_model
from tests.reference.harness import to_numpy

BACKEND = keras.backend.backend()
Scaled = keras.optimizers.LossScaleOptimizer


def encoder_of(dtype, **options):
    config = {**toy.CONFIG, "num_hidden_layers": 1}
    return build_transformer_model(config, dtype=dtype, with_mlm="linear", **options)


MAKERS = {
    "bi_encoder": lambda dtype: BiEncoder(encoder_of(dtype)),
    "ccp": lambda dtype: CCP(encoder_of(dtype), bank_size=0),
    "retromae": lambda dtype: RetroMAE(encoder_of(dtype)),
    "simbert": lambda dtype: SimBERT(encoder_of(dtype, application="unilm", with_pool="linear")),
}


@pytest.mark.backends
@pytest.mark.parametrize("name", MAKERS)
def test_the_policy_of_the_encoder_decides(name):
    model = MAKERS[name]("mixed_float16")
    assert model.dtype_policy.name == "float32"
    model.compile("adam")
    assert isinstance(model.optimizer, Scaled) and isinstance(model.optimizer.inner_optimizer, keras.optimizers.Adam)
    model.compile_from_config(model.get_compile_config())
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.Adam)  # not wrapped twice
    own = Scaled(keras.optimizers.SGD(), initial_scale=8.0)
    model.compile(own)
    assert model.optimizer is own
    model.compile("adam", auto_scale_loss=False)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    for other in (None, "mixed_bfloat16"):
        model = MAKERS[name](other)
        model.compile("adam")
        assert isinstance(model.optimizer, keras.optimizers.Adam)


@pytest.mark.backends
def test_the_policy_of_a_second_encoder_counts_too():
    model = BiEncoder(encoder_of(None), passage_encoder=encoder_of("mixed_float16"))
    model.compile("adam")
    assert isinstance(model.optimizer, Scaled)


def first_move(dtype, **options):
    """How far one step of rate 1 moves the weights, at a temperature at which most gradients are below 1e-7."""
    encoder = toy.make_encoder(dtype=dtype, config={"num_hidden_layers": 1})
    model = BiEncoder(encoder, toy.make_tokenizer(), temperature=3000.0)
    model.compile(keras.optimizers.SGD(1.0), **options)
    before = [to_numpy(variable) for variable in model.trainable_variables]
    model.train_on_batch(toy.make_data(model, 4).batch(0, 0))
    moved = zip(model.trainable_variables, before, strict=True)
    return np.concatenate([(to_numpy(variable) - array).ravel() for variable, array in moved])


@pytest.mark.backends
def test_small_gradients_survive():
    if BACKEND == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    want = first_move(None)
    scaled, unscaled = (first_move("mixed_float16", auto_scale_loss=auto) for auto in (True, False))
    errors = [np.linalg.norm(got - want) / np.linalg.norm(want) for got in (scaled, unscaled)]
    assert errors[0] < 0.1 < 0.3 < errors[1]
