"""The reference against transformers (torch), so that what everything is compared with is itself compared.

Needs torch and transformers, which the test extra does not install.
"""

import numpy as np
import pytest

from tests.reference import numpy_bert as nb

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKEN_IDS = [[2, 9, 8, 17, 3, 7, 11, 30, 3], [2, 21, 3, 5, 49, 3, 0, 0, 0]]
SEGMENT_IDS = [[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0]]


def peer_name(name, prefix, head):
    """Name in transformers of one of our weights; kernels are transposed there."""
    if name.startswith("embeddings/projection"):
        return f"{prefix}.embeddings_project." + ("weight" if name.endswith("kernel") else "bias")
    parts = name.split("/")
    leaf = {"kernel": "weight", "gamma": "weight", "embeddings": "weight", "beta": "bias", "bias": "bias"}[parts[-1]]
    if parts[0].startswith("block_"):
        place = {
            "query": "attention.self.query",
            "key": "attention.self.key",
            "value": "attention.self.value",
            "attention_output": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "intermediate": "intermediate.dense",
            "output": "output.dense",
            "output_norm": "output.LayerNorm",
        }[parts[1]]
        return f"{prefix}.encoder.layer.{parts[0][6:]}.{place}.{leaf}"
    place = {
        "embeddings/token": f"{prefix}.embeddings.word_embeddings",
        "embeddings/position": f"{prefix}.embeddings.position_embeddings",
        "embeddings/segment": f"{prefix}.embeddings.token_type_embeddings",
        "embeddings/norm": f"{prefix}.embeddings.LayerNorm",
        "mlm_head/dense": "lm_head.dense" if head == "lm_head" else "cls.predictions.transform.dense",
        "mlm_head/norm": "lm_head.layer_norm" if head == "lm_head" else "cls.predictions.transform.LayerNorm",
        "mlm_head": "lm_head" if head == "lm_head" else "cls.predictions",
        "pooler": f"{prefix}.pooler.dense",
    }["/".join(parts[:-1])]
    return f"{place}.{leaf}"


def peer(config, weights, model_class, config_class, prefix, **options):
    """A transformers model with our weights; no weight of ours is left over, and its own extras are only buffers."""
    shared = {key: config[key] for key in nb.TINY if key not in ("model_type", "position_offset")}
    model = model_class(config_class(**{**shared, **options}, attn_implementation="eager")).eval()
    state = {}
    for name, value in weights.items():
        if name.startswith("pooler"):
            continue
        value = torch.from_numpy(value.T.copy() if name.endswith("kernel") else value)
        state[peer_name(name, prefix, "lm_head" if prefix == "roberta" else "cls")] = value
    report = model.load_state_dict(state, strict=False)
    assert not report.unexpected_keys
    allowed = ("decoder.weight", "decoder.bias", "position_ids", "embed_positions.weight")
    assert all(key.endswith(allowed) for key in report.missing_keys), report.missing_keys
    model.tie_weights()
    return model.double()


def peer_mask(attention_mask):
    """A mask of queries and keys as the installed transformers takes it: since 5 it is added to the scores."""
    mask = torch.tensor(attention_mask)
    if mask.ndim < 3 or int(transformers.__version__.split(".")[0]) < 5:
        return mask
    return torch.where(mask[:, None] > 0, 0.0, -1e9).double()


def compare(model, config, weights, token_ids, segment_ids, application, attention_mask, atol=1e-9):
    with torch.no_grad():
        out = model(
            torch.tensor(token_ids),
            attention_mask=peer_mask(attention_mask),
            token_type_ids=torch.tensor(np.minimum(segment_ids, config["type_vocab_size"] - 1)),
            output_hidden_states=True,
        )
    ours = nb.forward(config, weights, token_ids, segment_ids, application)
    real = np.asarray(token_ids) != config["pad_token_id"]
    np.testing.assert_allclose(ours["sequence"][real], out.hidden_states[-1].numpy()[real], atol=atol)
    np.testing.assert_allclose(ours["mlm_logits"][real], out.logits.numpy()[real], atol=atol)


@pytest.mark.parametrize("application", ["encoder", "unilm", "lm"])
@pytest.mark.parametrize("family", ["bert", "other_act"])
def test_bert(family, application):
    config = nb.tiny_config(family)
    weights = nb.random_weights(config, 4)
    model = peer(config, weights, transformers.BertForMaskedLM, transformers.BertConfig, "bert")
    seen = nb.visible(application, np.array(TOKEN_IDS), np.array(SEGMENT_IDS)).astype("int64")
    compare(model, config, weights, TOKEN_IDS, SEGMENT_IDS, application, seen)


def test_bert_pooler():
    config = nb.tiny_config()
    weights = nb.random_weights(config, 4)
    model = transformers.BertModel(transformers.BertConfig(**{k: config[k] for k in nb.TINY if k != "model_type"}))
    state = {}
    for name, value in weights.items():
        if not name.startswith("mlm_head"):
            value = value.T.copy() if name.endswith("kernel") else value
            state[peer_name(name, "bert", "cls").removeprefix("bert.")] = torch.from_numpy(value)
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        pooled = model.eval().double()(torch.tensor(TOKEN_IDS[:1])).pooler_output.numpy()
    np.testing.assert_allclose(nb.forward(config, weights, TOKEN_IDS[:1])["pooled_tanh"], pooled, atol=1e-9)


def test_roberta_positions_start_at_two():
    config = nb.tiny_config("roberta")
    weights = nb.random_weights(config, 5)
    model = peer(config, weights, transformers.RobertaForMaskedLM, transformers.RobertaConfig, "roberta")
    token_ids = [[0, 9, 8, 17, 2, 2, 11, 30, 2], [0, 21, 2, 2, 49, 2, 1, 1, 1]]
    mask = (np.array(token_ids) != 1).astype("int64")
    compare(model, config, weights, token_ids, np.zeros_like(token_ids), "encoder", mask)


@pytest.mark.parametrize("embedding_size", [32, 12])
@pytest.mark.parametrize("application", ["encoder", "unilm"])
def test_roformer(application, embedding_size):
    config = nb.tiny_config("roformer", embedding_size=embedding_size)
    config["mlm_layer_norm_eps"] = config["layer_norm_eps"]  # transformers has one eps
    weights = nb.random_weights(config, 6)
    classes = transformers.RoFormerForMaskedLM, transformers.RoFormerConfig
    model = peer(config, weights, *classes, "roformer", rotary_value=False)
    seen = nb.visible(application, np.array(TOKEN_IDS), np.array(SEGMENT_IDS)).astype("int64")
    # Its table of sines is float32 for good.
    compare(model, config, weights, TOKEN_IDS, SEGMENT_IDS, application, seen, atol=1e-6)
