"""mteb's own protocol on tasks whose data are made here, beside this library's metrics on the same data."""

import numpy as np
import pytest

from simretro.evaluation import LabelledPair, MtebEncoder, RetrievalCollection, evaluate_pairs, evaluate_retrieval
from simretro.methods import BiEncoder
from tests.exports.conftest import make_encoder

pytestmark = pytest.mark.parity
SAID = {"description": "-", "eval_splits": ["test"], "eval_langs": ["eng-Latn"], "modalities": ["text"]}
SAID |= {"dataset": {"path": "made/here", "revision": "1"}}


def texts(number, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 9))) for _ in range(number)]


@pytest.fixture(scope="module")
def model():
    plain = make_encoder(pooling="mean")
    return BiEncoder(plain.encoder, plain.tokenizer, pooling="mean", query_prefix="a b ")


@pytest.fixture(scope="module")
def collection():
    documents = {f"d{i}": text for i, text in enumerate(texts(80, 0))}
    queries = {f"q{i}": text for i, text in enumerate(texts(12, 1))}
    rng = np.random.default_rng(2)
    qrels = {query: {f"d{i}": 1 + int(i % 2) for i in rng.choice(80, 3, replace=False)} for query in queries}
    return RetrievalCollection(documents, queries, qrels)


def test_retrieval(model, collection):
    """nDCG, recall and precision of the first ten are trec_eval's on both sides, whatever makes the texts' vectors."""
    import datasets
    import mteb
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    class Toy(AbsTaskRetrieval):
        metadata = mteb.TaskMetadata(name="ToyRetrieval", type="Retrieval", main_score="ndcg_at_10", **SAID)

        def load_data(self, **options):
            rows = {
                name: datasets.Dataset.from_list([{"id": i, "text": text} for i, text in part.items()])
                for name, part in (("corpus", collection.documents), ("queries", collection.queries))
            }
            self.dataset = {"default": {"test": rows | {"relevant_docs": dict(collection.qrels), "top_ranked": None}}}
            self.data_loaded = True

    scores = mteb.evaluate(MtebEncoder(model), [Toy()], cache=None, show_progress_bar=False)[0].scores["test"][0]
    encode = {"encode": model.encode_passages, "encode_queries": model.encode_queries}
    own = evaluate_retrieval(collection=collection, metrics=["nDCG@10", "R@10", "P@10"], **encode).means
    assert 0.02 < own["nDCG@10"] < 0.5  # a random network finds some
    for name, metric in (("ndcg_at_10", "nDCG@10"), ("recall_at_10", "R@10"), ("precision_at_10", "P@10")):
        assert scores[name] == pytest.approx(own[metric], abs=1e-5), name  # mteb rounds to five digits
    without = BiEncoder(model.encoder, model.tokenizer, pooling="mean")
    again = mteb.evaluate(MtebEncoder(without), [Toy()], cache=None, show_progress_bar=False)[0].scores["test"][0]
    assert again["ndcg_at_100"] != scores["ndcg_at_100"]  # the prefix reached the queries


def test_sentence_pairs(model):
    import datasets
    import mteb
    from mteb.abstasks.sts import AbsTaskSTS

    first, second, labels = texts(40, 3), texts(40, 4), np.random.default_rng(5).integers(0, 2, 40).tolist()

    class Toy(AbsTaskSTS):
        metadata = mteb.TaskMetadata(name="ToySTS", type="STS", main_score="cosine_spearman", **SAID)

        def load_data(self, **options):
            rows = datasets.Dataset.from_dict({"sentence1": first, "sentence2": second, "score": labels})
            self.dataset = {"test": rows}
            self.data_loaded = True

    encoder = model.query_sentence_encoder
    scores = mteb.evaluate(MtebEncoder(encoder), [Toy()], cache=None, show_progress_bar=False)[0].scores["test"][0]
    pairs = [LabelledPair(*pair) for pair in zip(first, second, labels, strict=True)]
    assert scores["cosine_spearman"] == pytest.approx(evaluate_pairs(encoder.encode, pairs).spearman, abs=1e-5)


def test_metadata(model):
    import mteb

    meta = MtebEncoder(model, "some/name").mteb_model_meta
    assert isinstance(meta, mteb.models.ModelMeta)
    assert (meta.name, meta.revision) == ("some/name", MtebEncoder(model).revision)
    assert meta.similarity_fn_name == "cosine"
