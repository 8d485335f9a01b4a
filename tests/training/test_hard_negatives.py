"""Negatives mined anew between epochs: by the model as it is then, and the same ones in a run that was interrupted."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops
from training_toy import Stop, StopAt, differences, everything

from simretro.data import QueryPassages, TrainingQuery, read_training_queries, write_training_queries
from simretro.training import HardNegativeMining, TrainingCheckpoint
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(size=60)
EPOCHS, STEPS = 5, 3
W = TOKENIZER.vocab["w0"]


@keras.saving.register_keras_serializable()
class Model(keras.Model):
    """A query should be near its positive and far from its negatives, in a table of tokens."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(TOKENIZER.vocab_size, 4, name="table")
        self.table.build(())
        self.built = True

    def call(self, x):
        query = ops.mean(self.table(x["query_token_ids"]), axis=1)[:, None]
        return ops.sum(query * ops.mean(self.table(x["passage_token_ids"]), axis=2), axis=-1)  # (B, G)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.logsumexp(y_pred, axis=1) - y_pred[:, 0])


def make(folder, every_epochs=2):
    keras.utils.set_random_seed(0)
    model = Model()
    model.compile(keras.optimizers.SGD(0.3, momentum=0.9), run_eagerly=True)  # a graph takes longer to build
    first = queries(lambda i: [40 + i % 3])
    data = QueryPassages(first, TOKENIZER, 4, negatives_per_query=1)
    mined = []

    def mine(path):
        table = ops.convert_to_numpy(model.table.embeddings)[W:]
        mined.append(table.copy())
        write_training_queries(path, queries(lambda i: np.argsort(-table[30:] @ table[i])[:2] + 30))

    return model, data, HardNegativeMining(mine, data, folder / "negatives", every_epochs), mined


def queries(negatives):
    """Words 0 to 11 are asked for, 15 to 26 answer, from 30 on none does."""
    return [TrainingQuery(f"w{i}", (f"w{15 + i}",), tuple(f"w{n}" for n in negatives(i))) for i in range(12)]


def fit(model, data, callbacks, initial_epoch=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data, epochs=EPOCHS, initial_epoch=initial_epoch, shuffle=False, verbose=0, callbacks=callbacks)


class Seen(keras.callbacks.Callback):
    """Notes which negatives each epoch has."""

    def __init__(self, data):
        super().__init__()
        self.data, self.epochs = data, {}

    def on_train_batch_end(self, batch, logs=None):
        table = self.data.table
        self.epochs[self.data.state[0]] = table.passages.rows(table.negatives, 3, (0, 0, 0))[:, 1].tolist()


def test_mines_before_each_nth_epoch_with_the_weights_of_that_moment(tmp_path):
    model, data, mining, mined = make(tmp_path)
    seen = Seen(data)
    fit(model, data, [mining, TrainingCheckpoint(tmp_path / "run", data), seen])
    assert len(mined) == 2 and not np.array_equal(*mined)
    assert seen.epochs[0] == seen.epochs[1] and seen.epochs[2] == seen.epochs[3]
    assert len({tuple(found) for found in seen.epochs.values()}) == 3
    files = sorted(path.name for path in (tmp_path / "negatives").iterdir())
    assert files == ["epoch-0002-step-00000006.jsonl", "epoch-0004-step-00000012.jsonl"]
    read = read_training_queries(tmp_path / "negatives" / files[1])
    assert [W + int(d.text[1:]) for query in read for d in query.negatives] == seen.epochs[4]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    model, data, mining, _ = make(tmp_path_factory.mktemp("whole"))
    fit(model, data, [mining])
    return everything(model)


@pytest.mark.parametrize("step, order", [(2, [0, 1]), (6, [0, 1]), (8, [1, 0]), (10, [0, 1]), (14, [1, 0])])
def test_a_resumed_run_has_the_negatives_of_the_interrupted_one(step, order, expected, tmp_path):
    """Steps 6 to 11 are of the epochs 2 and 3, from 12 on of epoch 4; epoch 2 is mined at step 6."""
    for stop in (StopAt(step), StopAt()):
        model, data, mining, mined = make(tmp_path)
        checkpoint = TrainingCheckpoint(tmp_path / "run", data, every_steps=1)
        callbacks = [[mining, checkpoint][i] for i in order]
        try:
            fit(model, data, [*callbacks, stop], checkpoint.restore(model))
        except Stop:
            assert len(mined) == (step > 6) + (step > 12)
    assert differences(expected, everything(model)) == []
    assert len(mined) == 2 - (step > 6) - (step > 12)


def test_a_new_run_does_not_read_the_files_of_an_old_one(tmp_path):
    model, data, mining, _ = make(tmp_path / "whole", every_epochs=1)
    fit(model, data, [mining])
    (tmp_path / "negatives").mkdir()
    for name in ("epoch-0001-step-00000001.jsonl", "epoch-0009-step-00000009.jsonl", "notes.txt"):
        (tmp_path / "negatives" / name).write_text("old")
    other, data, mining, _ = make(tmp_path, every_epochs=1)
    fit(other, data, [mining])
    assert differences(everything(model), everything(other)) == []
    kept = sorted(path.name for path in (tmp_path / "negatives").iterdir())
    assert kept == ["epoch-0003-step-00000009.jsonl", "epoch-0004-step-00000012.jsonl", "notes.txt"]


def test_a_second_run_with_data_of_mined_negatives_is_refused(tmp_path):
    model, data, mining, _ = make(tmp_path)
    fit(model, data, [mining])
    with pytest.raises(ValueError, match="mined in an earlier `fit`.*Make `data` anew"):
        fit(model, data, [mining])


def test_resuming_without_the_files_is_refused(tmp_path):
    model, data, mining, _ = make(tmp_path)
    with pytest.raises(ValueError, match="has no negatives of epoch 3, which this run was trained on"):
        fit(model, data, [mining], initial_epoch=3)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"every_epochs": 0}, ValueError, "`every_epochs`"),
        ({"mine": "path"}, ValueError, "`mine` must be callable"),
        ({"data": [1]}, ValueError, r"`data` must have a method `replace\(path\)`; received list"),
        ({"mine": lambda path: None}, FileNotFoundError, "`mine` must write training queries to the path"),
        ({"mine": lambda path: write_training_queries(path, queries(lambda i: [50])[1:])}, ValueError, "`source` must"),
    ],
)  # fmt: skip
def test_refuses(change, error, message, tmp_path):
    model, data, mining, _ = make(tmp_path)
    with pytest.raises(error, match=message):
        arguments = {"mine": mining.mine, "data": data, "folder": tmp_path, "every_epochs": 1, **change}
        fit(model, data, [HardNegativeMining(**arguments)])
