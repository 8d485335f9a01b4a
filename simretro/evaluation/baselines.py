"""What can be reached without learning; a metric of a model means little without it."""

from collections.abc import Sequence

import numpy as np

from simretro.evaluation.rows import text_list


def tfidf_vectors(texts: Sequence[str], ngram_range: tuple[int, int] = (1, 2)):
    """Vectors of character n-grams weighted by TF-IDF, fitted on the same texts.

    Args:
        texts: N strings.
        ngram_range: (least, most) length of an n-gram in characters; (2, 2) = bigrams.
    Returns: SciPy sparse CSR matrix float32 (N, V), l2-normalised rows; `evaluate_pairs` and `group_retrieval` take it.
        A text without any n-gram, being shorter, is a row of zeros.
    Raises: TypeError for one str; ValueError if no text has an n-gram.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # here: its import takes a second

    texts = text_list(texts)
    if not any(len(text) >= ngram_range[0] for text in texts):
        raise ValueError(f"`texts` must hold at least one text of {ngram_range[0]} characters; received none.")
    return TfidfVectorizer(analyzer="char", ngram_range=ngram_range, dtype=np.float32).fit_transform(texts)
