import math
from collections import Counter

import numpy as np
import pytest

from simretro.models import build_transformer_model, export_weights, initialize_by_spelling
from simretro.tokenizers import Tokenizer

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] document documentation documentación ##tation ##s 微 settings setting apple"
TOKENS = TOKENS.split()
SPECIAL, ROWS = 5, len(TOKENS)


def new_encoder(rows=ROWS, **config):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 2}
    sizes |= {"max_position_embeddings": 8, "vocab_size": rows}
    return build_transformer_model({**sizes, **config})


def tokenizer(tokens=TOKENS):
    return Tokenizer({token: i for i, token in enumerate(tokens)}, strip_accents=False)


def table_of(encoder):
    return export_weights(encoder)["embeddings/token/embeddings"]


def expected_cosines(tokens, own=0.1):
    """Of the weighted counts of n-grams, written out; each token has another axis for its own share."""
    spelt = [token.removeprefix("##") if token.startswith("##") else " " + token for token in tokens]
    counts = [Counter(s[i : i + n] for n in (2, 3, 4) for i in range(len(s) - n + 1)) for s in spelt]
    rows = np.zeros((len(tokens), len(tokens)))
    in_tokens = Counter(gram for own_counts in counts for gram in own_counts)
    vectors = [{g: c * math.log(len(tokens) / in_tokens[g]) for g, c in one.items()} for one in counts]
    lengths = [math.sqrt(sum(x * x for x in v.values())) for v in vectors]
    for i, one in enumerate(vectors):
        for j, other in enumerate(vectors):
            product = sum(x * other.get(g, 0) for g, x in one.items()) / max(lengths[i] * lengths[j], 1e-9)
            rows[i, j] = product / (1 + own**2)
    np.fill_diagonal(rows, 1)
    return rows


def test_cosines_are_those_of_counted_ngrams():
    encoder = new_encoder(embedding_size=16384, initializer_range=0.5)
    initialize_by_spelling(encoder, tokenizer())
    rows = table_of(encoder)[SPECIAL:]
    np.testing.assert_allclose(np.sqrt((rows**2).mean(1)), 0.5, rtol=1e-5)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = expected_cosines(TOKENS[SPECIAL:])
    assert expected[0, 1] > 0.2 and expected[1, 2] > 0.4  # there is something to find
    np.testing.assert_allclose(rows @ rows.T, expected, atol=4 / 16384**0.5)


def test_seeds_and_what_stays():
    encoder = new_encoder(rows=ROWS + 3)
    before = table_of(encoder).copy()
    initialize_by_spelling(encoder, tokenizer(), seed=1)
    first = table_of(encoder).copy()
    known = slice(SPECIAL, ROWS)
    np.testing.assert_array_equal(np.delete(first, known, 0), np.delete(before, known, 0))
    assert (first[known] != before[known]).all()
    initialize_by_spelling(encoder, tokenizer(), seed=2)
    assert (table_of(encoder)[known] != first[known]).all()
    initialize_by_spelling(encoder, tokenizer(), seed=1)
    np.testing.assert_array_equal(table_of(encoder), first)


def test_a_factorised_table_and_tokens_without_ngrams():
    tokens = [*TOKENS[:SPECIAL], "##a", "##b", "##c"]
    encoder = new_encoder(rows=8, embedding_size=64)
    initialize_by_spelling(encoder, tokenizer(tokens))
    rows = table_of(encoder)[SPECIAL:]
    assert rows.shape == (3, 64)
    np.testing.assert_allclose(np.sqrt((rows**2).mean(1)), 0.02, rtol=1e-5)


def test_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"`tokenizer` has 14 tokens, but the token table of the encoder has 9 rows"):
        initialize_by_spelling(new_encoder(rows=9), tokenizer())
