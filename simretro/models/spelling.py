"""New token tables in which tokens that are spelt alike are near each other."""

import numpy as np
from keras import ops

from simretro.arrays import unit_rows
from simretro.models.config import check_vocabulary

_SIZES = (2, 3, 4)  # of the n-grams, in characters
_OWN_SHARE = 0.1  # of a token's length: tells apart those with the same n-grams


def initialize_by_spelling(encoder, tokenizer, seed: int = 0) -> None:
    """Gives an encoder that is to be trained from scratch a token table that knows how tokens are spelt.

    A row is the sum of random vectors, one for each run of 2 to 4 characters of the token, a blank before its word
    included, rare runs weighing more (`log(tokens / tokens with it)`); a tenth is the token's own. So "documentation"
    and "documentación" begin near each other, and the mean over a text's tokens is near a random projection of its
    counted n-grams. Languages that share spellings are so brought near each other before training. Everything else
    about the table is as it was: rows have the length that `initializer_range` gives, special tokens and rows beyond
    the vocabulary keep theirs.

    Args:
        encoder: `Transformer` with new weights.
        tokenizer: of `simretro.tokenizers`, which marks where words begin.
        seed: int >= 0.
    Raises: ValueError if encoder and tokenizer are not of one vocabulary, or if it does not mark where words begin.
    Reference: words as sums of their character n-grams: Bojanowski et al., 2017, https://arxiv.org/abs/1607.04606
    """
    check_vocabulary(encoder.config, tokenizer)
    table = encoder.embeddings.token.embeddings
    rows = np.array(ops.convert_to_numpy(table), dtype="float32")
    spelt = tokenizer.spellings()
    known = [token_id for token_id, text in enumerate(spelt) if text]
    length = encoder.config["initializer_range"] * rows.shape[1] ** 0.5
    rows[known] = length * _directions([spelt[i] for i in known], rows.shape[1], seed)
    table.assign(rows)


def _directions(texts, width, seed):
    """float32 (texts, width), l2-normalised; a text without n-grams has nothing but its own share."""
    from sklearn.feature_extraction.text import CountVectorizer  # here: its import takes a second

    rng = np.random.default_rng(seed)
    own = rng.standard_normal((len(texts), width), dtype="float32") / width**0.5
    if not any(map(_ngrams, texts)):
        return unit_rows(own)
    counts = CountVectorizer(analyzer=_ngrams, dtype=np.float32).fit_transform(texts)
    rarity = np.log(len(texts) / np.bincount(counts.indices, minlength=counts.shape[1])).astype("float32")
    sums = counts.multiply(rarity).tocsr() @ rng.standard_normal((counts.shape[1], width), dtype="float32")
    return unit_rows(unit_rows(sums) + _OWN_SHARE * own)


def _ngrams(text):
    return [text[start : start + size] for size in _SIZES for start in range(len(text) - size + 1)]
