import warnings

import numpy as np
import pytest
from keras.ops import convert_to_numpy
from test_periodic import train
from training_toy import Batches, build, differences, everything

from simretro.evaluation import cross_lingual_statistics
from simretro.training import CrossLingualMonitor, TrainingCheckpoint

TEXTS = {
    language: [f"{language} {i}" for i in range(count)] for language, count in (("en", 30), ("de", 30), ("fr", 20))
}
RNG = np.random.default_rng(0)
FEATURES = {language: RNG.standard_normal((30, 4)).astype("float32") for language in TEXTS}


def encoder(model):
    """Vectors of the hidden layer; text i of a language has the features of its row i."""

    def encode(texts):
        rows = [FEATURES[language][int(i)] for language, i in (text.split() for text in texts)]
        return convert_to_numpy(model.layers[0](np.stack(rows)))

    return encode


def test_logs_history_and_checkpoint(tmp_path):
    model = build(run_eagerly=True)
    monitor = CrossLingualMonitor(encoder(model), TEXTS, [("en", "de")], every_steps=3, neighbors=5)
    checkpoint = TrainingCheckpoint(tmp_path, Batches(), monitor="cross_lingual_accuracy", mode="max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = train(model, monitor, checkpoint=checkpoint).history
    vectors = {language: encoder(model)(texts) for language, texts in TEXTS.items()}
    expected = cross_lingual_statistics(vectors, [("en", "de")], 5)
    assert monitor.statistics[-1] == expected
    for name, value in expected["means"].items():
        values = history[f"cross_lingual_{name}"]
        assert len(values) == 3 and values[-1] == value
        assert values == [entry[f"cross_lingual_{name}"] for entry in checkpoint.history]
    assert {"offset", "isomorphism", "accuracy", "hubness_skewness"} <= expected["means"].keys()
    assert [entry["step"] for entry in monitor.history] == [3, 4, 6, 8, 9, 12]
    assert len(monitor.statistics) == 6
    plain = build(run_eagerly=True)
    train(plain)
    assert differences(everything(plain), everything(model)) == []
    train(model, monitor, epochs=1)
    assert len(monitor.statistics) == len(monitor.history) == 2


@pytest.mark.parametrize("texts, pairs, message", [
    ({}, (), "at least one language"), ({"en": "a text"}, (), r"texts_by_language\['en'\]` must be a list of str"),
    ({"en": ["a", "b", "a"]}, (), "3 texts, 2 different"), ({"en": ["a"]}, (), "at least 2"),
    ({"en": ["a", "b"], "de": ["c", "d", "e"]}, [("en", "de")], "received 2 and 3 rows"),
    ({"en": ["a", "b"]}, [("en", "de")], "`pairs` must be of two of the languages"),
])  # fmt: skip
def test_refuses_texts_and_pairs(texts, pairs, message):
    with pytest.raises(ValueError, match=message):
        CrossLingualMonitor(len, texts, pairs)


def test_refuses_another_number_of_rows():
    monitor = CrossLingualMonitor(lambda texts: np.ones((2, 3)), TEXTS)
    with pytest.raises(
        ValueError, match=r"`encode` must return a row per text; received shape \(2, 3\) for 30 texts of"
    ):
        monitor.evaluate()
