"""What the encoder computes, in plain NumPy float64: what models, losses and generation are compared with.

Nothing here imports the library or Keras. A configuration is the normalised dict (keys of `bert_config.json`), weights
are the flat dict of arrays by variable name (`block_0/query/kernel`, kernels [in, out]). Written to be read: one
function a step, no caches, no batching tricks.

References: Devlin et al. 2018 (BERT, post-LN); Dong et al. 2019 (UniLM mask); Su et al. 2021 (RoFormer, interleaved
rotary pairs); Liu et al. 2019 (RoBERTa: the first position is row 2); Lan et al. 2019 (factorised embeddings).
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])

TINY = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "embedding_size": 32,
    "initializer_range": 0.02,
    "position_embedding_type": "absolute",
    "position_offset": 0,
    "pad_token_id": 0,
}

FAMILIES = {
    "bert": {},
    "factorised": {"embedding_size": 12},
    "roberta": {"model_type": "roberta", "type_vocab_size": 1, "position_offset": 2, "pad_token_id": 1},
    "no_segments": {"model_type": "xlm-roberta", "type_vocab_size": 0, "position_offset": 2, "pad_token_id": 1},
    "roformer": {
        "model_type": "roformer",
        "position_embedding_type": "rotary",
        "layer_norm_eps": 1e-7,
        "mlm_layer_norm_eps": 1e-12,
    },
    "other_act": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
}


def tiny_config(family="bert", **overrides):
    """Returns the normalised configuration of a tiny model of one of the `FAMILIES`."""
    return {**TINY, **FAMILIES[family], **overrides}


# Weights
def weight_shapes(config, with_pool=True, with_mlm=True):
    """Returns {name: shape} of every weight that a model with these parts has, and of no other."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    inner, width = config["intermediate_size"], config["embedding_size"]
    shapes = {"embeddings/token/embeddings": (vocab, width)}
    if config["position_embedding_type"] == "absolute":
        shapes["embeddings/position/embeddings"] = (config["max_position_embeddings"], width)
    if config["type_vocab_size"]:
        shapes["embeddings/segment/embeddings"] = (config["type_vocab_size"], width)
    shapes |= _norm("embeddings/norm", width)
    if width != hidden:
        shapes |= _dense("embeddings/projection", width, hidden)
    for i in range(config["num_hidden_layers"]):
        for part in ("query", "key", "value", "attention_output"):
            shapes |= _dense(f"block_{i}/{part}", hidden, hidden)
        shapes |= _norm(f"block_{i}/attention_norm", hidden)
        shapes |= _dense(f"block_{i}/intermediate", hidden, inner) | _dense(f"block_{i}/output", inner, hidden)
        shapes |= _norm(f"block_{i}/output_norm", hidden)
    if with_pool:
        shapes |= _dense("pooler", hidden, hidden)
    if with_mlm:
        shapes |= _dense("mlm_head/dense", hidden, width) | _norm("mlm_head/norm", width) | {"mlm_head/bias": (vocab,)}
    return shapes


def _dense(name, size_in, size_out):
    return {f"{name}/kernel": (size_in, size_out), f"{name}/bias": (size_out,)}


def _norm(name, size):
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}


def random_weights(config, seed=0):
    """Returns float32 weights, pooler and MLM head included, large enough that every one of them matters.

    Trained networks are not near zero either: with a deviation of 0.02 a wrong bias, eps or mask would hide in 1e-5.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        if name.endswith("kernel"):
            value = rng.normal(0, 1.2 / np.sqrt(shape[0]), shape)
        elif name.endswith("embeddings"):
            value = rng.normal(0, 0.4, shape)
        else:
            value = rng.normal(1 if name.endswith("gamma") else 0, 0.15, shape)
        weights[name] = value.astype("float32")
    return weights


# Steps of the network
def gelu(x):
    """The exact GELU, x * Phi(x)."""
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x):
    """The tanh approximation of GELU."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": gelu, "gelu_new": gelu_tanh, "relu": lambda x: np.maximum(x, 0)}


def softmax(x):
    """Softmax over the last axis."""
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def log_softmax(x):
    """Logarithm of the softmax over the last axis, also where the softmax underflows."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def dense(x, weights, name):
    """x W + b with W [in, out]."""
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def layer_norm(x, weights, name, eps):
    """Normalises the last axis with the biased variance, then scales and shifts."""
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def rotate(x):
    """Turns pair (2i, 2i+1) of x (B, heads, L, D) at position p by the angle p * 10000^(-2i/D)."""
    length, size = x.shape[-2:]
    angle = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)  # (L, D/2)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = odd * np.cos(angle) + even * np.sin(angle)
    return out


def visible(application, token_ids, segment_ids, pad_token_id=0):
    """Returns bool (B, L, L): [b, i, j] is True where query i sees key j."""
    length = token_ids.shape[1]
    order = {
        "encoder": np.zeros_like(segment_ids),
        "unilm": np.cumsum(segment_ids, 1),
        "lm": np.broadcast_to(np.arange(length), segment_ids.shape),
    }[application]
    return (order[:, None, :] <= order[:, :, None]) & (token_ids != pad_token_id)[:, None, :]


def embed(config, weights, token_ids, segment_ids):
    """Sum of the tables, normalised, then projected where the tables are narrower than the blocks."""
    x = weights["embeddings/token/embeddings"][token_ids]
    if config["position_embedding_type"] == "absolute":
        first = config["position_offset"]
        x = x + weights["embeddings/position/embeddings"][first : first + token_ids.shape[1]]
    if config["type_vocab_size"]:  # a table of one row (RoBERTa) knows no target: the mask alone does
        x = x + weights["embeddings/segment/embeddings"][np.minimum(segment_ids, config["type_vocab_size"] - 1)]
    x = layer_norm(x, weights, "embeddings/norm", config["layer_norm_eps"])
    return dense(x, weights, "embeddings/projection") if "embeddings/projection/kernel" in weights else x


def attention(config, weights, block, x, seen):
    """Multi-head attention with its output layer; `seen` (B, L, L)."""
    batch, length, hidden = x.shape
    heads = config["num_attention_heads"]

    def split(name):
        return dense(x, weights, f"{block}/{name}").reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    query, key, value = split("query"), split("key"), split("value")  # (B, heads, L, D)
    if config["position_embedding_type"] == "rotary":
        query, key = rotate(query), rotate(key)
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(hidden // heads)
    # Finite, so that a row that sees nothing gives the mean of the values and no NaN.
    mixed = softmax(np.where(seen[:, None], scores, -1e30)) @ value
    return dense(mixed.transpose(0, 2, 1, 3).reshape(batch, length, hidden), weights, f"{block}/attention_output")


def forward(config, weights, token_ids, segment_ids=None, application="encoder"):
    """Runs the whole network.

    Args:
        token_ids, segment_ids: int (B, L) or nested lists; no segment ids = zeros.
        application: "encoder", "unilm" or "lm": who sees whom.
    Returns: dict of float64 arrays: `sequence` (B, L, H), `pooled_linear` and `pooled_tanh` (B, H),
        `mlm_logits` and `mlm_probs` (B, L, V).
    """
    token_ids = np.asarray(token_ids)
    segment_ids = np.zeros_like(token_ids) if segment_ids is None else np.asarray(segment_ids)
    weights = {name: np.asarray(value, "float64") for name, value in weights.items()}
    act, eps = ACTIVATIONS[config["hidden_act"]], config["layer_norm_eps"]

    seen = visible(application, token_ids, segment_ids, config["pad_token_id"])
    x = embed(config, weights, token_ids, segment_ids)
    for i in range(config["num_hidden_layers"]):
        block = f"block_{i}"
        x = layer_norm(x + attention(config, weights, block, x, seen), weights, f"{block}/attention_norm", eps)
        inner = act(dense(x, weights, f"{block}/intermediate"))
        x = layer_norm(x + dense(inner, weights, f"{block}/output"), weights, f"{block}/output_norm", eps)

    pooled = dense(x[:, 0], weights, "pooler")
    h = act(dense(x, weights, "mlm_head/dense"))
    h = layer_norm(h, weights, "mlm_head/norm", config.get("mlm_layer_norm_eps", eps))
    logits = h @ weights["embeddings/token/embeddings"].T + weights["mlm_head/bias"]
    return {
        "sequence": x,
        "pooled_linear": pooled,
        "pooled_tanh": np.tanh(pooled),
        "mlm_logits": logits,
        "mlm_probs": softmax(logits),
    }


def next_logits(config, weights, source, output):
    """Logits (V,) of the token that follows `source` (with [CLS] and [SEP]) and the `output` written so far."""
    row = [*source, *output]
    segments = [0] * len(source) + [1] * len(output)
    return forward(config, weights, [row], [segments], "unilm")["mlm_logits"][0, -1]


# Losses
def cross_entropy(logits, labels):
    """Token mean of -log p(label) over labels >= 0, and how many of those the largest logit names.

    logits (N, V), labels (N,); without a label to predict the loss is 0.
    """
    logits, labels = np.asarray(logits, "float64"), np.asarray(labels)
    rows = np.flatnonzero(labels >= 0)
    losses = -log_softmax(logits[rows])[np.arange(len(rows)), labels[rows]]
    return losses.sum() / max(len(rows), 1), int((logits[rows].argmax(-1) == labels[rows]).sum())


def seq2seq_loss(logits, token_ids, segment_ids):
    """Token mean over the batch of the cross-entropy of target tokens, the closing [SEP] included.

    logits (R, L, V): position t predicts token t + 1; target = segment 1.
    """
    labels = np.where(np.asarray(segment_ids)[:, 1:] > 0, np.asarray(token_ids)[:, 1:], -1)
    return cross_entropy(np.asarray(logits)[:, :-1].reshape(labels.size, -1), labels.ravel())[0]


def similarity_loss(sentence_vectors, temperature=1 / 30):
    """Row k must pick row k XOR 1 among all other rows of the batch by cosine. Returns (mean loss, accuracy)."""
    vectors = np.asarray(sentence_vectors, "float64")
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    logits = vectors @ vectors.T / temperature
    np.fill_diagonal(logits, -np.inf)
    partner = np.arange(len(vectors)) ^ 1
    chosen = log_softmax(logits)[np.arange(len(vectors)), partner]
    return -chosen.mean(), float((logits.argmax(1) == partner).mean())
