import warnings

import numpy as np
import pytest
from keras.ops import convert_to_numpy
from test_periodic import train
from training_toy import Batches, build, differences, everything

from simretro.evaluation import embedding_statistics
from simretro.training import EmbeddingMonitor, TrainingCheckpoint

TEXTS = [f"text {i}" for i in range(40)]
NAMES = ("std", "uniformity", "effective_rank", "mean_cosine")
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((40, 4)).astype("float32")


def encoder(model):
    """Vectors of the hidden layer; text i has the features of row i."""
    return lambda texts: convert_to_numpy(model.layers[0](FEATURES[[int(text.split()[1]) for text in texts]]))


def similar(spread, count=200, dimension=64):
    """Vectors that share a direction, as those of transformers do."""
    noise = np.random.default_rng(1).standard_normal((count, dimension)) / dimension**0.5
    return np.eye(dimension)[0] + spread * noise


def test_logs_history_and_checkpoint(tmp_path):
    model = build(run_eagerly=True)
    monitor = EmbeddingMonitor(encoder(model), TEXTS, every_steps=3)
    checkpoint = TrainingCheckpoint(tmp_path, Batches(), monitor="embedding_std", mode="max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing has collapsed
        history = train(model, monitor, checkpoint=checkpoint).history
    expected = embedding_statistics(encoder(model)(TEXTS))
    for name in NAMES:
        values = history[f"embedding_{name}"]
        assert len(values) == 3 and values[-1] == expected[name]
        assert values == [entry[f"embedding_{name}"] for entry in checkpoint.history]
    assert [entry["step"] for entry in monitor.history] == [3, 4, 6, 8, 9, 12]
    assert checkpoint.best["value"] == max(history["embedding_std"])
    plain = build(run_eagerly=True)
    train(plain)
    assert differences(everything(plain), everything(model)) == []


COLLAPSED = {
    "all equal": similar(0, 40),
    "equal up to rounding": similar(1e-7, 40).astype("float32"),
    "little, along one direction": similar(0, 40) + 0.005 * np.outer(FEATURES[:, 0], np.eye(64)[1]),
    "little, in three directions": similar(0, 40) + 0.002 * FEATURES[:, :3] @ np.eye(64)[1:4],
}
HEALTHY = {
    "far apart": similar(30, 40),
    "mean of the tokens, untrained": similar(0.13, 40),
    "[CLS], untrained": similar(0.001, 40),
    "few directions prevail": similar(0.001, 40) + 0.2 * FEATURES[:, :3] @ np.eye(64)[1:4],
}


def measure(monitor, model, epochs=2):
    """A `fit` as the callback sees it."""
    monitor.set_model(model)
    monitor.on_train_begin()
    for epoch in range(epochs):
        monitor.on_epoch_begin(epoch)
        monitor.history.clear()  # else an epoch without updates is not measured again
        monitor.on_epoch_end(epoch, {})


@pytest.fixture(scope="module")
def model():
    """The toy, untrained."""
    return build()


@pytest.mark.parametrize("vectors", COLLAPSED.values(), ids=COLLAPSED)
def test_warns_of_a_collapse_once_a_run(model, vectors):
    monitor = EmbeddingMonitor(lambda texts: vectors, TEXTS)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"collapsed at update 0: .* of 39 directions .*`learning_rate`") as caught:
            measure(monitor, model)
        assert len(caught) == 1


@pytest.mark.parametrize("vectors", HEALTHY.values(), ids=HEALTHY)
def test_does_not_warn_of_vectors_that_share_a_direction(model, vectors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(EmbeddingMonitor(lambda texts: vectors, TEXTS), model)


@pytest.mark.parametrize("texts, message", [
    ("a text", "list of str"), ([1] * 20, "list of str"), (TEXTS[:15], "at least 16.*15 texts"),
    (TEXTS + TEXTS[:1], "41 texts, 40 different"),
])  # fmt: skip
def test_refuses_texts(texts, message):
    with pytest.raises(ValueError, match=rf"`texts`.*{message}"):
        EmbeddingMonitor(len, texts)


def test_refuses_another_number_of_rows(model):
    with pytest.raises(ValueError, match=r"`encode` must return a row per text; received shape \(39, 64\) for 40"):
        measure(EmbeddingMonitor(lambda texts: similar(1, 39), TEXTS), model)
