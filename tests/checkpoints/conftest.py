"""Tiny configs and random weights for every format; nothing here depends on the code under test."""

import numpy as np
import pytest


def tiny_config(**changes):
    """A normalised config; embedding_size 6 and hidden_size 8 differ, so that a mix-up of the two shows."""
    config = {
        "model_type": "bert",
        "vocab_size": 11,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2,
        "max_position_embeddings": 9,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "embedding_size": 8,
        "initializer_range": 0.02,
        "position_embedding_type": "absolute",
        "position_offset": 0,
        "pad_token_id": 0,
        "mlm_layer_norm_eps": 1e-12,
        "mlm_hidden_act": "gelu",
    }
    return {**config, **changes}


def tiny_weights(config, pooler=True, mlm_head=True, dtype="float32", seed=0):
    """{our name: array}, the names and shapes written out here a second time."""
    v, e, h, f = (config[key] for key in ("vocab_size", "embedding_size", "hidden_size", "intermediate_size"))
    shapes = {"embeddings/token/embeddings": (v, e), "embeddings/norm/gamma": (e,), "embeddings/norm/beta": (e,)}
    if config["position_embedding_type"] == "absolute":
        shapes["embeddings/position/embeddings"] = (config["max_position_embeddings"], e)
    if config["type_vocab_size"]:
        shapes["embeddings/segment/embeddings"] = (config["type_vocab_size"], e)
    if e != h:
        shapes |= {"embeddings/projection/kernel": (e, h), "embeddings/projection/bias": (h,)}
    for i in range(config["num_hidden_layers"]):
        block = {}
        for layer in ("query", "key", "value", "attention_output"):
            block |= {f"{layer}/kernel": (h, h), f"{layer}/bias": (h,)}
        block |= {
            "intermediate/kernel": (h, f),
            "intermediate/bias": (f,),
            "output/kernel": (f, h),
            "output/bias": (h,),
        }
        for norm in ("attention_norm", "output_norm"):
            block |= {f"{norm}/gamma": (h,), f"{norm}/beta": (h,)}
        shapes |= {f"block_{i}/{name}": shape for name, shape in block.items()}
    if pooler:
        shapes |= {"pooler/kernel": (h, h), "pooler/bias": (h,)}
    if mlm_head:
        shapes |= {"mlm_head/dense/kernel": (h, e), "mlm_head/dense/bias": (e,), "mlm_head/bias": (v,)}
        shapes |= {"mlm_head/norm/gamma": (e,), "mlm_head/norm/beta": (e,)}
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def assert_same_weights(read, wanted):
    """Exactly the same names, dtypes and values."""
    assert sorted(read) == sorted(wanted)
    for name, array in wanted.items():
        assert read[name].dtype == np.asarray(array).dtype, name
        np.testing.assert_array_equal(read[name], array, err_msg=name)


KINDS = {
    "bert": {},
    "bert without segments": {"type_vocab_size": 0},
    "roberta": {
        **{"model_type": "roberta", "pad_token_id": 1, "position_offset": 2, "type_vocab_size": 1},
        "layer_norm_eps": 1e-5,
        "mlm_layer_norm_eps": 1e-5,
    },
    "xlm-roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "position_offset": 2, "type_vocab_size": 1},
    "roformer": {"model_type": "roformer", "position_embedding_type": "rotary", "layer_norm_eps": 1e-7},
    "factorised": {"embedding_size": 6},
    "factorised roformer": {"model_type": "roformer", "position_embedding_type": "rotary", "embedding_size": 6},
}


@pytest.fixture
def make_config():
    return tiny_config


@pytest.fixture
def make_weights():
    return tiny_weights


@pytest.fixture
def assert_same():
    return assert_same_weights


@pytest.fixture(params=KINDS)
def any_config(request):
    """One config of every kind of backbone."""
    return tiny_config(**KINDS[request.param])


@pytest.fixture(params=[(True, True), (True, False), (False, True), (False, False)], ids=str)
def heads(request):
    """With and without pooler and MLM head."""
    return dict(zip(("pooler", "mlm_head"), request.param, strict=True))
