"""Weights under which the next token depends on the position alone, with probabilities chosen by hand.

So a test of a decoder can say what the model "thinks" at each step, and a test of `gen_synonyms` can have a model
that writes a given sentence. Attention and feed-forward layers return zero; the position table carries the script.
"""

import numpy as np

from tests.reference.numpy_bert import weight_shapes

NEVER = 1e-9  # probability of what must not be written, where a test has no way to forbid it


def scripted_weights(config, probabilities):
    """Returns float32 weights of a UniLM whose next token after position p has the distribution `probabilities[p]`.

    Args:
        config: normalised dict, absolute positions, hidden_size == embedding_size, at least vocab_size + 2 of it.
        probabilities: (P, V), P <= max_position_embeddings; rows are normalised and bounded below by `NEVER`.
    """
    vocab, size = config["vocab_size"], config["hidden_size"]
    p = np.maximum(np.asarray(probabilities, "float64"), NEVER)
    logits = np.log(p / p.sum(1, keepdims=True))
    logits -= logits.mean(1, keepdims=True)
    # Each hidden state must pass the layer norms unchanged: mean 0, variance 1. Spare columns see to that.
    scale = np.sqrt((logits**2).sum(1).max() / (0.8 * size))
    spare = size - vocab - (size - vocab) % 2
    filler = np.sqrt((size - (logits**2).sum(1) / scale**2) / spare)
    states = np.zeros((len(p), size))
    states[:, :vocab] = logits / scale
    states[:, vocab : vocab + spare] = filler[:, None] * np.tile([1, -1], spare // 2)

    weights = {name: np.zeros(shape, "float32") for name, shape in weight_shapes(config).items()}
    for name in weights:
        if name.endswith("gamma"):
            weights[name][:] = 1
    weights["embeddings/token/embeddings"][:, :vocab] = scale * np.eye(vocab)
    first = config["position_offset"]
    # So far above the token's own embedding that only the position speaks after the norm.
    weights["embeddings/position/embeddings"][first : first + len(p)] = 1e6 * states
    weights["mlm_head/dense/kernel"][:] = np.eye(size)
    weights["mlm_head/dense/bias"][:] = 20  # lifts every entry to where GELU is the identity; the norm takes it away
    weights["pooler/kernel"][:] = np.eye(size)
    return weights
