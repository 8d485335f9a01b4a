"""RetroMAE's decoders and losses in plain NumPy float64, on the steps of `numpy_bert`.

Weights are those of the encoder and the decoder's block under `decoder/...`. References: Xiao et al. 2022 (RetroMAE);
Xiao et al. 2022 (RetroMAE-2 / DupMAE).
"""

import math

import numpy as np

from tests.reference import numpy_bert as nb


def decoder_weights(config, seed=9):
    """Returns float32 weights {`decoder/query/kernel`: ...} of one block, of the size that `random_weights` gives."""
    weights = nb.random_weights(config, seed)
    return {f"decoder{name[7:]}": value for name, value in weights.items() if name.startswith("block_0/")}


def block(config, weights, name, x, seen, context=None):
    """A post-LN block; queries and residuals from `x`, keys and values from `context` (None = `x`); seen (B, L, L)."""
    batch, length, hidden = x.shape
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def split(stream, part):
        return nb.dense(stream, weights, f"{name}/{part}").reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    context = x if context is None else context
    query, key, value = split(x, "query"), split(context, "key"), split(context, "value")
    if config["position_embedding_type"] == "rotary":
        query, key = nb.rotate(query), nb.rotate(key)
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(hidden // heads)
    mixed = nb.softmax(np.where(seen[:, None], scores, -1e30)) @ value
    mixed = nb.dense(mixed.transpose(0, 2, 1, 3).reshape(batch, length, hidden), weights, f"{name}/attention_output")
    x = nb.layer_norm(x + mixed, weights, f"{name}/attention_norm", eps)
    inner = nb.ACTIVATIONS[config["hidden_act"]](nb.dense(x, weights, f"{name}/intermediate"))
    return nb.layer_norm(x + nb.dense(inner, weights, f"{name}/output"), weights, f"{name}/output_norm", eps)


def query_stream(config, weights, sentence_vectors, length, query_norm=False):
    """[h + p_0, h + p_1, ...] (B, L, H): the raw sum, or with `query_norm` also + type 0, then the norm."""
    x = np.repeat(sentence_vectors[:, None], length, axis=1)
    if config["position_embedding_type"] == "absolute":
        first = config["position_offset"]
        x = x + weights["embeddings/position/embeddings"][first : first + length]
    if query_norm:
        if config["type_vocab_size"]:
            x = x + weights["embeddings/segment/embeddings"][0]
        x = nb.layer_norm(x, weights, "embeddings/norm", config["layer_norm_eps"])
    return x


def context_stream(config, weights, token_ids, sentence_vectors):
    """Embedded tokens (B, L, H), the raw sentence vector in position 0."""
    x = nb.embed(config, weights, token_ids, np.zeros_like(token_ids))
    x[:, 0] = sentence_vectors
    return x


def decode_enhanced(config, weights, token_ids, sentence_vectors, seen, query_norm=False):
    """Hidden states (B, L, H) of the enhanced decoder, where row i sees the columns `seen` (B, L, L)."""
    weights = {name: np.asarray(value, "float64") for name, value in weights.items()}
    query = query_stream(config, weights, sentence_vectors, token_ids.shape[1], query_norm)
    context = context_stream(config, weights, token_ids, sentence_vectors)
    return block(config, weights, "decoder", query, seen, context)


def decode_basic(config, weights, token_ids, sentence_vectors):
    """Hidden states (B, L, H) of the basic decoder of the masked `token_ids`."""
    weights = {name: np.asarray(value, "float64") for name, value in weights.items()}
    x = context_stream(config, weights, token_ids, sentence_vectors)
    segments = np.zeros_like(token_ids)
    return block(config, weights, "decoder", x, nb.visible("encoder", token_ids, segments, config["pad_token_id"]))


def mlm_logits(config, weights, hidden):
    """Vocabulary logits (..., V) of hidden states."""
    weights = {name: np.asarray(value, "float64") for name, value in weights.items()}
    x = nb.ACTIVATIONS[config["hidden_act"]](nb.dense(hidden, weights, "mlm_head/dense"))
    x = nb.layer_norm(x, weights, "mlm_head/norm", config.get("mlm_layer_norm_eps", config["layer_norm_eps"]))
    return x @ weights["embeddings/token/embeddings"].T + weights["mlm_head/bias"]


def bag_of_words(pooled_logits, token_ids, counted, target="normalized"):
    """Cross-entropy (B,) of log softmax(pooled) against each row's tokens; a row without any gives 0.

    A token that stands k times among n has the target k / n, or with "reference" 1 / n however often it stands there.
    """
    losses = np.zeros(len(token_ids))
    for row, (logits, ids, use) in enumerate(
        zip(np.asarray(pooled_logits, "float64"), token_ids, counted, strict=True)
    ):
        ids = np.asarray(ids)[np.asarray(use, bool)]
        if len(ids):
            chosen = ids if target == "normalized" else np.unique(ids)
            losses[row] = -nb.log_softmax(logits)[chosen].sum() / len(ids)
    return losses


def ordinary(config, token_ids):
    """Bool (B, L): all but the first token, the last one ([SEP]) and padding."""
    token_ids = np.asarray(token_ids)
    lengths = (token_ids != config["pad_token_id"]).sum(1, keepdims=True)
    columns = np.arange(token_ids.shape[1])[None]
    return (columns > 0) & (columns < lengths - 1)


def losses(
    config,
    weights,
    batch,
    decoding="enhanced",
    seen=None,
    query_norm=False,
    bow_target="normalized",
    pooling="cls",
    bow_source="tokens",
):
    """Returns {part: (loss, accuracy)} of a batch without dropout: `encoder`, `decoder`, `bow` (no accuracy).

    Args:
        batch: dict of int arrays as `simretro.data.MaskedDocuments` makes them.
        seen: bool (B, L, L), the enhanced decoder's mask.
    """
    token_ids = batch["token_ids"]
    rows = np.arange(len(token_ids))[:, None]
    encoded = nb.forward(config, weights, batch["encoder_token_ids"])
    vectors = encoded["sequence"][:, 0]
    if pooling == "mean":
        tokens = (batch["encoder_token_ids"] != config["pad_token_id"])[..., None]
        vectors = (encoded["sequence"] * tokens).sum(1) / tokens.sum(1)
    parts = {"encoder": _token_loss(encoded["mlm_logits"][rows, batch["masked_positions"]], batch["masked_ids"])}
    real = ordinary(config, token_ids)
    if decoding == "enhanced":
        hidden = decode_enhanced(config, weights, token_ids, vectors, seen, query_norm)
        parts["decoder"] = _token_loss(mlm_logits(config, weights, hidden), np.where(real, token_ids, -1))
    if decoding == "basic":
        hidden = decode_basic(config, weights, batch["decoder_token_ids"], vectors)[rows, batch["decoder_positions"]]
        parts["decoder"] = _token_loss(mlm_logits(config, weights, hidden), batch["decoder_ids"])
    # The maximum is over all positions behind [CLS], the closing [SEP] too; the target counts ordinary tokens alone.
    behind = (token_ids != config["pad_token_id"]) & (np.arange(token_ids.shape[1]) > 0)
    pooled = np.where(behind[..., None], encoded["mlm_logits"], -np.inf).max(1)
    if bow_source == "vector":
        pooled = mlm_logits(config, weights, vectors)
    parts["bow"] = bag_of_words(pooled, token_ids, real, bow_target).mean(), None
    return parts


def _token_loss(logits, labels):
    labels = np.asarray(labels).ravel()
    loss, correct = nb.cross_entropy(logits.reshape(len(labels), -1), labels)
    return loss, correct / (labels >= 0).sum()
