"""What mteb calls, with a model that notes how it is called; the real library is in test_parity_mteb.py."""

from types import SimpleNamespace

import numpy as np
import pytest

from simretro.evaluation import MtebEncoder

TASK = {"task_metadata": SimpleNamespace(name="toy"), "hf_split": "test", "hf_subset": "default"}
BATCHES = [{"text": ["a", "bb"], "title": ["", ""]}, {"text": ["ccc"]}]


class Encoder:
    """A text becomes its length and a number that tells which function encoded it."""

    def __init__(self):
        self.options = []

    def _vectors(self, texts, number, options):
        self.options.append(options)
        return np.array([[len(text), number] for text in texts], "float32")

    def encode(self, texts, **options):
        return self._vectors(texts, 1, options)


class Towers(Encoder):
    similarity, query_prefix, passage_prefix = "dot", "", ""
    query_sentence_encoder = passage_sentence_encoder = SimpleNamespace(fingerprint=lambda: "0123")

    def encode_queries(self, texts, **options):
        return self._vectors(texts, 2, options)

    def encode_passages(self, texts, **options):
        return self._vectors(texts, 3, options)


@pytest.mark.parametrize("prompt_type, number", [("query", 2), ("document", 3), (None, 2)])
def test_passages_and_queries(prompt_type, number):
    towers = Towers()
    vectors = MtebEncoder(towers).encode(BATCHES, prompt_type=prompt_type, batch_size=7, **TASK)
    np.testing.assert_array_equal(vectors, [[1, number], [2, number], [3, number]])
    assert towers.options == [{"batch_size": 7, "show_progress": False}]


def test_models_with_one_encoder():
    assert MtebEncoder(Encoder()).encode(BATCHES, prompt_type="document", **TASK)[:, 1].tolist() == [1, 1, 1]


def test_similarity_is_that_of_the_model():
    first, second = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])
    dot, cosine = MtebEncoder(Towers()), MtebEncoder(Encoder())
    np.testing.assert_allclose(dot.similarity(first, second), [[24, 8], [0, 0]])
    np.testing.assert_allclose(cosine.similarity(first, second), [[0.96, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(dot.similarity_pairwise(first, second), [24, 0])
    np.testing.assert_allclose(cosine.similarity_pairwise(first, second), [0.96, 0], rtol=1e-6)
    np.testing.assert_allclose(cosine.similarity(first[0], second[0]), [[0.96]], rtol=1e-6)  # one vector each
    np.testing.assert_allclose(MtebEncoder(Encoder(), similarity="dot").similarity(first[:1], second[:1]), [[24]])


def test_the_revision_names_all_that_the_scores_depend_on():
    """mteb takes stored results of an equal revision."""
    revisions = {MtebEncoder(Towers()).revision, MtebEncoder(Towers(), similarity="cosine").revision}
    for name, value in [
        ("query_prefix", "q: "),
        ("passage_prefix", "p: "),
        ("query_sentence_encoder", SimpleNamespace(fingerprint=lambda: "4567")),
        ("passage_sentence_encoder", SimpleNamespace(fingerprint=lambda: "4567")),
    ]:
        model = Towers()
        setattr(model, name, value)
        revisions.add(MtebEncoder(model).revision)
    assert len(revisions) == 6
    assert MtebEncoder(Towers()).revision in revisions and MtebEncoder(Towers(), revision="v1").revision == "v1"


@pytest.mark.parametrize("make, message", [
    (lambda: MtebEncoder(Encoder(), "plain"), "`name` must be like 'organization/model'.*'plain'"),
    (lambda: MtebEncoder(len), "`model` must have `encode`; received builtin_function_or_method"),
    (lambda: MtebEncoder(Encoder(), similarity="l2"), "`similarity` must be one of"),
    (lambda: MtebEncoder(Encoder()).encode([{"image": [0]}], **TASK), "The task toy has no texts, only image"),
])  # fmt: skip
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_become_arrays_and_one_str_is_no_list():
    class Lists(Encoder):
        def encode(self, texts, **options):
            return super().encode(texts, **options).tolist()

    vectors = MtebEncoder(Lists()).encode(BATCHES, **TASK)
    assert vectors.dtype == "float32" and vectors.shape == (3, 2)
    with pytest.raises(TypeError, match="`text` must be a list of str"):
        MtebEncoder(Encoder()).encode([{"text": "abc"}], **TASK)
