"""The reference itself, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from tests.reference import decoding
from tests.reference import numpy_bert as nb
from tests.reference.scripted import scripted_weights

LN5 = 1.6094379124341003


def test_activations():
    np.testing.assert_allclose(nb.gelu(np.array([-1.0, 0, 1, 3])), [-0.1586553, 0, 0.8413447, 2.9959503], atol=1e-7)
    np.testing.assert_allclose(nb.gelu_tanh(np.array([1.0, 3])), [0.8411920, 2.9963627], atol=1e-7)


def test_layer_norm_uses_the_biased_variance_and_eps():
    weights = {"n/gamma": np.array([1, 1, 2, 2.0]), "n/beta": np.array([0, 0, 0, 1.0])}
    x = np.array([1, 2, 3, 4.0])  # mean 2.5, variance 1.25
    np.testing.assert_allclose(nb.layer_norm(x, weights, "n", 0), [-1.3416408, -0.4472136, 0.8944272, 3.6832816])
    np.testing.assert_allclose(nb.layer_norm(x, weights, "n", 1)[:2], [-1.0, -1 / 3])


def test_rotation_turns_neighbouring_pairs():
    x = np.tile([1, 0, 0, 1.0], (1, 1, 2, 1))
    turned = nb.rotate(x)[0, 0]
    np.testing.assert_allclose(turned[0], [1, 0, 0, 1])
    np.testing.assert_allclose(turned[1], [0.5403023, 0.8414710, -0.0099998, 0.9999500], atol=1e-7)


def test_rotation_makes_scores_depend_on_the_distance():
    rng = np.random.default_rng(0)
    query, key = (np.tile(rng.normal(size=8), (1, 1, 9, 1)) for _ in range(2))
    scores = (nb.rotate(query) @ nb.rotate(key).transpose(0, 1, 3, 2))[0, 0]
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-12)
    assert abs(scores[0, 1] - scores[0, 5]) > 1e-3


@pytest.mark.parametrize(
    "application, rows",
    [
        ("encoder", "111110 111110 111110 111110 111110 111110"),
        ("unilm", "111000 111000 111000 111100 111110 111110"),
        ("lm", "100000 110000 111000 111100 111110 111110"),
    ],
)
def test_who_sees_whom(application, rows):
    token_ids, segment_ids = np.array([[2, 7, 3, 8, 3, 0]]), np.array([[0, 0, 0, 1, 1, 0]])
    seen = nb.visible(application, token_ids, segment_ids)[0]
    assert [[c == "1" for c in row] for row in rows.split()] == seen.tolist()


def test_attention_of_two_tokens():
    config = nb.tiny_config(hidden_size=2, num_attention_heads=1)
    weights = {}
    for part in ("query", "key", "value", "attention_output"):
        weights |= {f"b/{part}/kernel": np.eye(2), f"b/{part}/bias": np.zeros(2)}
    own = math.exp(math.sqrt(0.5)) / (math.exp(math.sqrt(0.5)) + 1)  # 0.6698
    x = np.eye(2)[None]
    seen = np.array([[[True, True], [False, True]]])
    np.testing.assert_allclose(nb.attention(config, weights, "b", x, seen), [[[own, 1 - own], [0, 1]]])


def test_embedding_positions_and_segments():
    config = nb.tiny_config("roberta", hidden_size=4, embedding_size=4)
    weights = nb.random_weights(config)
    weights["embeddings/norm/gamma"][:], weights["embeddings/norm/beta"][:] = 1, 0
    token, position = weights["embeddings/token/embeddings"], weights["embeddings/position/embeddings"]
    segment = weights["embeddings/segment/embeddings"]
    x = nb.embed(config, weights, np.array([[2, 9]]), np.array([[0, 1]]))[0]
    for i, token_id in enumerate((2, 9)):
        row = token[token_id] + position[i + 2] + segment[0]
        np.testing.assert_allclose(x[i], (row - row.mean()) / row.std(), rtol=1e-5)


@pytest.mark.parametrize("family", nb.FAMILIES)
def test_source_is_blind_to_target_and_padding(family):
    config = nb.tiny_config(family)
    weights, pad = nb.random_weights(config, 1), config["pad_token_id"]
    alone = nb.forward(config, weights, [[2, 9, 8, 3]], None, "unilm")
    pair = nb.forward(config, weights, [[2, 9, 8, 3, 7, 3, pad]], [[0, 0, 0, 0, 1, 1, 0]], "unilm")
    for name in ("pooled_linear", "pooled_tanh"):
        np.testing.assert_allclose(alone[name], pair[name], atol=1e-12)
    other = nb.forward(config, weights, [[2, 9, 8, 3, 7, 11, pad]], [[0, 0, 0, 0, 1, 1, 0]], "unilm")
    np.testing.assert_allclose(pair["mlm_logits"][:, :5], other["mlm_logits"][:, :5], atol=1e-12)
    assert np.abs(pair["mlm_logits"][:, 5] - other["mlm_logits"][:, 5]).max() > 0.1


def test_weight_names_follow_the_configuration():
    names = set(nb.weight_shapes(nb.tiny_config("roformer"), with_pool=False, with_mlm=False))
    assert "embeddings/position/embeddings" not in names and "embeddings/projection/kernel" not in names
    shapes = nb.weight_shapes(nb.tiny_config("factorised"))
    assert shapes["embeddings/projection/kernel"] == (12, 32) and shapes["mlm_head/dense/kernel"] == (32, 12)


def test_cross_entropy_ignores_negative_labels():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
    loss, correct = nb.cross_entropy(logits, [1, -1, 2])
    assert loss == pytest.approx((math.log(4) + math.log(2)) / 2) and correct == 1
    assert nb.cross_entropy(logits, [-1, -1, -1]) == (0, 0)


def test_seq2seq_loss_reads_the_position_before_each_target():
    token_ids, segment_ids = [[2, 5, 3, 6, 3, 0]], [[0, 0, 0, 1, 1, 0]]
    probs = np.full((1, 6, 8), 0.5 / 7)
    probs[0, 2, 6] = 0.5  # predicts token 3
    probs[0, 3, :] = 0.9 / 7
    probs[0, 3, 3] = 0.1  # predicts token 4, the closing [SEP]
    loss = nb.seq2seq_loss(np.log(probs), token_ids, segment_ids)
    assert loss == pytest.approx((math.log(2) + math.log(10)) / 2)


def test_similarity_loss_of_known_batches():
    assert nb.similarity_loss(np.ones((6, 4)))[0] == pytest.approx(LN5)
    pairs = np.repeat(np.eye(3), 2, axis=0)
    assert nb.similarity_loss(pairs) == (pytest.approx(math.log1p(4 * math.exp(-30)), abs=1e-15), 1)
    assert nb.similarity_loss(pairs, 1.0)[0] == pytest.approx(math.log1p(4 * math.exp(-1)))
    group_twice = np.repeat(np.eye(3)[[0, 0, 1, 2]], 2, axis=0)  # rows 0-3 are one group: ln 3 is their floor
    assert nb.similarity_loss(group_twice)[0] == pytest.approx(math.log(3) / 2, abs=1e-9)


def test_scripted_weights_say_what_they_were_told():
    config = nb.tiny_config(vocab_size=12, hidden_size=32, max_position_embeddings=9)
    probabilities = np.random.default_rng(3).dirichlet(np.full(12, 0.3), 9)
    weights = scripted_weights(config, probabilities)
    for row in ([2, 5, 6, 3, 7, 8, 11, 3], [2, 9, 9, 3, 4, 4, 4, 4]):
        probs = nb.forward(config, weights, [row], [[0, 0, 0, 0, 1, 1, 1, 1]], "unilm")["mlm_probs"][0]
        np.testing.assert_allclose(probs, np.maximum(probabilities[:8], 1e-9), rtol=2e-3, atol=2e-4)


def test_sampling_distribution_filters_in_order():
    logits = np.log([0.05, 0.5, 0.3, 0.15])
    np.testing.assert_allclose(decoding.sampling_distribution(logits, top_k=2), [0, 0.625, 0.375, 0])
    np.testing.assert_allclose(decoding.sampling_distribution(logits, top_p=0.7), [0, 0.625, 0.375, 0])
    np.testing.assert_allclose(decoding.sampling_distribution(logits, top_k=2, top_p=0.6), [0, 1, 0, 0])
    np.testing.assert_allclose(decoding.sampling_distribution(logits, top_p=0.65, temperature=0.5), [0, 1, 0, 0])
    np.testing.assert_allclose(decoding.sampling_distribution(logits, excluded=[1]), [0.1, 0, 0.6, 0.3])


def test_hypotheses_exhaust_the_probability():
    config = nb.tiny_config(vocab_size=6, num_hidden_layers=1)
    weights = nb.random_weights(config, 2)
    source, letters = [2, 4, 3], [1, 2, 4, 5]
    weights["mlm_head/bias"][0] = -30  # no padding
    found = decoding.every_hypothesis(config, weights, source, 3, 3, letters)
    assert len(found) == 1 + 4 + 16 + 64 and sum(not ended for _, ended in found.values()) == 64
    assert sum(np.exp(score) for score, _ in found.values()) == pytest.approx(1, abs=1e-9)
    assert found[(4, 5)][0] == pytest.approx(decoding.log_probability(config, weights, source, [4, 5, 3]))
    first, _ = decoding.greedy(config, weights, source, 1, 3, min_new_tokens=2)
    assert first[0] == max(letters, key=lambda token: nb.next_logits(config, weights, source, [])[token])
