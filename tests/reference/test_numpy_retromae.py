"""The reference itself, against `numpy_bert` where the two must agree and against hand-made numbers."""

import math

import numpy as np
import pytest

from tests.reference import numpy_bert as nb
from tests.reference import numpy_retromae as nr

TOKEN_IDS = np.array([[2, 9, 8, 17, 11, 3], [2, 21, 3, 0, 0, 0]])


@pytest.mark.parametrize("family", nb.FAMILIES)
def test_block_of_one_stream_is_that_of_the_encoder(family):
    """The blocks of `numpy_bert.forward`, one after the other."""
    config = nb.tiny_config(family)
    weights = nb.random_weights(config, 3)
    token_ids = np.where(TOKEN_IDS == 0, config["pad_token_id"], TOKEN_IDS)
    wide = {name: value.astype("float64") for name, value in weights.items()}
    x = nb.embed(config, wide, token_ids, np.zeros_like(token_ids))
    seen = nb.visible("encoder", token_ids, np.zeros_like(token_ids), config["pad_token_id"])
    for i in range(2):
        x = nr.block(config, wide, f"block_{i}", x, seen)
    truth = nb.forward(config, weights, token_ids)
    np.testing.assert_allclose(x, truth["sequence"], atol=1e-12)
    np.testing.assert_allclose(nr.mlm_logits(config, weights, x), truth["mlm_logits"], atol=1e-12)


def test_enhanced_row_reads_its_visible_columns_and_no_others():
    config = nb.tiny_config()
    weights = nb.random_weights(config, 3) | nr.decoder_weights(config)
    vectors = np.random.default_rng(0).normal(size=(2, 32))
    seen = np.random.default_rng(1).random((2, 6, 6)) < 0.5
    before = nr.decode_enhanced(config, weights, TOKEN_IDS, vectors, seen)
    for j in range(1, 6):
        changed = TOKEN_IDS.copy()
        changed[:, j] = 40
        moved = np.abs(nr.decode_enhanced(config, weights, changed, vectors, seen) - before).max(-1) > 1e-6
        np.testing.assert_array_equal(moved, seen[:, :, j])


def test_query_stream_is_the_sum_or_its_norm():
    config = nb.tiny_config("roberta", hidden_size=4, embedding_size=4)
    weights = nb.random_weights(config)
    weights["embeddings/norm/gamma"][:], weights["embeddings/norm/beta"][:] = 1, 0
    vectors = np.array([[1.0, -1, 2, 0]])
    raw = nr.query_stream(config, weights, vectors, 2)
    np.testing.assert_allclose(raw[0], vectors + weights["embeddings/position/embeddings"][2:4])
    row = raw[0, 1] + weights["embeddings/segment/embeddings"][0]
    normed = nr.query_stream(config, weights, vectors, 2, query_norm=True)[0, 1]
    np.testing.assert_allclose(normed, (row - row.mean()) / row.std(), rtol=1e-6)


def test_bag_of_words_of_known_rows():
    logits = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    token_ids, counted = [[0, 1, 0, 2], [0, 1, 2, 2]], [[1, 1, 1, 0], [0, 0, 0, 0]]
    ln2 = math.log(2)
    np.testing.assert_allclose(nr.bag_of_words(logits, token_ids, counted), [(2 * ln2 + 2 * ln2) / 3, 0])
    np.testing.assert_allclose(nr.bag_of_words(logits, token_ids, counted, "reference"), [(ln2 + 2 * ln2) / 3, 0])


def test_ordinary_tokens():
    want = ["011110", "010000"]
    np.testing.assert_array_equal(nr.ordinary(nb.tiny_config(), TOKEN_IDS), [[c == "1" for c in row] for row in want])
