"""`SimilarPairs` in Keras' own loops: lengths that vary, order of the epochs, resuming, evaluation."""

import json
import os
import subprocess
import sys
import textwrap
import warnings

import keras
import numpy as np
import pytest

from simretro.data import SimilarPairs
from tests.data.test_pairs import group_of, many_groups
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(size=1000)
pytestmark = pytest.mark.backends


class Recorder(keras.Model):
    """Learns nothing, and notes the shape and a fingerprint of each batch, on the device."""

    def __init__(self, steps=500):
        super().__init__()
        self.seen = self.add_weight(shape=(steps, 8), initializer="zeros", trainable=False, name="seen")
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="step")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return keras.ops.convert_to_tensor(self.scale)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        ops = keras.ops
        names = ["token_ids", "target_positions", "masked_positions"]
        shapes = [ops.shape(x[name])[1] if name in x else 0 for name in names]
        ids = ops.cast(x["token_ids"], "float32")
        numbers = [ops.shape(ids)[0], *shapes, ops.sum(ids), ops.sum(ids[:, 1:2]), ops.sum(ids[:, 2:3]), 1]
        row = ops.stack([ops.cast(number, "float32") for number in numbers])
        if training:
            here = ops.cast(ops.arange(self.seen.shape[0]) == ops.convert_to_tensor(self.step), "float32")
            self.seen.assign(ops.convert_to_tensor(self.seen) + here[:, None] * row)
            self.step.assign(ops.convert_to_tensor(self.step) + ops.max(x["segment_ids"]))
        return y_pred * 0.0

    @property
    def rows(self):
        return np.asarray(keras.ops.convert_to_numpy(self.seen))[: int(self.step)]


def expected(data, *positions):
    """What `Recorder` notes of the batches (epoch, index)."""
    rows = []
    for epoch, index in positions:
        batch = data.batch(epoch, index)
        ids = batch["token_ids"]
        widths = [batch[n].shape[1] if n in batch else 0 for n in ("token_ids", "target_positions", "masked_positions")]
        rows.append([len(ids), *widths, ids.sum(), ids[:, 1].sum(), ids[:, 2].sum(), 1])
    return np.array(rows, "float32")


def epochs_of(data, *epochs, first=0):
    return [(epoch, index) for epoch in epochs for index in range(first, len(data))]


def fit(data, model=None, **settings):
    if model is None:
        model = Recorder()
        model.compile(optimizer="sgd", run_eagerly=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        warnings.filterwarnings("ignore", message="The model does not have any trainable weights")
        model.fit(data, shuffle=False, verbose=0, **settings)
    return model


CORPORA = {
    "many lengths": many_groups(90, largest=40),
    "all of one length": [group_of(g, [7, 7, 7]) for g in range(40)],
    "near one length": [group_of(g, [12 + g % 3, 13]) for g in range(40)],  # rows of 28 to 31 tokens
    "one long text": [*(group_of(g, [3, 4]) for g in range(30)), group_of(99, [60, 50])],
    "all longer than maxlen": [group_of(g, [70, 80]) for g in range(30)],
    "mostly longer than maxlen": [group_of(g, [70, 80] if g % 9 else [30, 20, 70]) for g in range(40)],
    "one batch": many_groups(5, largest=40),
    "two batches": many_groups(9, largest=40),
    "two batches and a rest of one pair": many_groups(17, largest=40),
    "groups that share texts": [
        [f"w{i} w{i % 7}" + " w0" * i, f"w{i + 1} w{(i + 1) % 7}" + " w0" * (i + 1)] for i in range(40)
    ],
}


SETTINGS = [*((corpus, {"mlm_rate": 0.15}) for corpus in CORPORA), ("many lengths", {})]
SETTINGS += [(corpus, {"pairs_per_group": 2, "drop_remainder": True}) for corpus in ("many lengths", "two batches")]


@pytest.mark.parametrize("corpus, settings", SETTINGS)
def test_fit_takes_all_lengths_epoch_by_epoch(corpus, settings):
    """Keras fixes the dimensions that its first two batches share; a later batch must not differ in them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cut texts
        data = SimilarPairs(CORPORA[corpus], TOKENIZER, pairs_per_batch=8, **settings)
    model = fit(data, epochs=3)
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 0, 1, 2)))
    assert data.state == (3, 0)
    # Another `fit` goes on, whichever epoch Keras sees first. (Other backends take a batch or two to build the model,
    # which is all that there are.)
    if len(data) <= 2 and keras.backend.backend() != "tensorflow":
        return
    model = fit(data, epochs=2)
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 3, 4)))


@pytest.mark.filterwarnings("ignore:.*are left out of epoch")
@pytest.mark.parametrize("batching", ["grouped", "random"])
@pytest.mark.parametrize("seed", range(10))
def test_first_two_batches_differ_in_all_that_varies(seed, batching):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, rng.integers(3, 70), (rng.integers(2, 60), 3))
    groups = [group_of(g, sizes) for g, sizes in enumerate(lengths)]
    if seed % 2:  # neighbours share a text
        groups = [[*group, groups[g - 1][0]] for g, group in enumerate(groups)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = SimilarPairs(groups, TOKENIZER, rng.integers(2, 9), mlm_rate=0.3, seed=seed, batching=batching)
    shapes = [[tuple(a.shape[1] for a in data.batch(e, i).values()) for i in range(len(data))] for e in range(6)]
    varying = [len({s for epoch in shapes for s in (shape[d] for shape in epoch)}) > 1 for d in range(6)]
    for epoch in shapes:
        assert max(shape[0] for shape in epoch) <= 128  # never longer than two texts of `maxlen`
        for dimension in range(6):
            if varying[dimension]:
                assert epoch[0][dimension] > epoch[1][dimension]
        # The first batch is the largest that the data can have.
        assert all(epoch[0][d] >= shape[d] for other in shapes for shape in other for d in range(6))


def test_lengths_still_vary_where_one_text_is_long():
    data = SimilarPairs(CORPORA["one long text"], TOKENIZER, pairs_per_batch=8)
    assert sorted(data[i]["token_ids"].shape[1] for i in range(4))[:2] == [16, 16]


def test_resumed_epoch_is_shorter_and_later_ones_are_whole():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    assert len(data) == 8
    data.resume(2, 5)
    model = fit(data, initial_epoch=2, epochs=5)
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 2, first=5), *epochs_of(data, 3, 4)))
    data.resume(1, 7)  # a used data set, and one batch only
    if keras.backend.backend() == "tensorflow":
        model = fit(data, epochs=2)
        np.testing.assert_array_equal(model.rows, expected(data, (1, 7), *epochs_of(data, 2)))


class Position(keras.callbacks.Callback):
    """Tells the data where to go on when an epoch begins, and ends the short epoch, as a checkpoint has to."""

    def __init__(self, data, epoch, step):
        super().__init__()
        self.data, self.start = data, (epoch, step)

    def on_epoch_begin(self, epoch, logs=None):
        self.data.resume(epoch, self.start[1] if epoch == self.start[0] else 0)

    def on_train_batch_begin(self, batch, logs=None):
        # Keras takes this for the end of the data. Left to find that out by itself, TensorFlow's graph would run
        # what needs no data of one more step: count an update, draw dropout seeds.
        if batch == self.params["steps"] - self.data.state[1]:
            raise StopIteration


def test_position_set_by_a_callback():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    for start in ((3, 6), (1, 0), (0, 7)):
        model = fit(data, initial_epoch=start[0], epochs=start[0] + 2, callbacks=[Position(data, *start)])
        wanted = epochs_of(data, start[0], first=start[1]) + epochs_of(data, start[0] + 1)
        np.testing.assert_array_equal(model.rows, expected(data, *wanted))


def test_short_epoch_counts_no_step_too_many():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    model = Recorder()
    model.compile(optimizer="sgd")
    fit(data, model, initial_epoch=2, epochs=4, callbacks=[Position(data, 2, 3)])
    assert int(model.optimizer.iterations) == 5 + 8
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 2, first=3), *epochs_of(data, 3)))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends refuse a short last execution")
def test_several_steps_in_one_execution():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    model = Recorder()
    model.compile(optimizer="sgd", steps_per_execution=4)
    data.resume(0, 2)
    fit(data, model, epochs=2)
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 0, first=2), *epochs_of(data, 1)))


def test_fewer_steps_than_batches_go_on_within_the_epoch():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    model = fit(data, epochs=4, steps_per_epoch=2)
    np.testing.assert_array_equal(model.rows, expected(data, *epochs_of(data, 0)))


def test_evaluation_does_not_move_what_is_fixed():
    train = SimilarPairs(many_groups(40), TOKENIZER, pairs_per_batch=8)
    validation = SimilarPairs(many_groups(30, seed=1), TOKENIZER, pairs_per_batch=8, fixed=True)
    before = expected(validation, *epochs_of(validation, 0))
    model = fit(train, epochs=3, validation_data=validation)
    np.testing.assert_array_equal(model.rows, expected(train, *epochs_of(train, 0, 1, 2)))
    model.evaluate(validation, verbose=0)
    assert validation.state == (0, 0)
    np.testing.assert_array_equal(expected(validation, *((9, i) for i in range(len(validation)))), before)


def test_stopped_epoch_is_not_counted():
    data = SimilarPairs(many_groups(600, largest=6), TOKENIZER, pairs_per_batch=4)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    model = fit(data, epochs=3, callbacks=[Stop()])
    assert len(model.rows) == 3 and data.state == (0, 0)


def test_shuffling_by_keras_keeps_the_batches():
    data = SimilarPairs(many_groups(60), TOKENIZER, pairs_per_batch=8)
    model = Recorder()
    model.compile(optimizer="sgd", run_eagerly=True)
    model.fit(data, shuffle=True, epochs=2, verbose=0)
    for epoch in (0, 1):
        rows = model.rows[8 * epoch : 8 * epoch + 8]
        wanted = expected(data, *epochs_of(data, epoch))
        np.testing.assert_array_equal(rows[np.lexsort(rows.T)], wanted[np.lexsort(wanted.T)])


MIRRORED = """
    import json, sys, warnings
    import numpy as np
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    from simretro.data import SimilarPairs
    from tests.data.test_pairs import many_groups
    from tests.data.toy import ToyTokenizer

    class Sums(keras.Model):
        "Notes the sum of the ids of each step; what it logs is the mean over the replicas."

        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(), initializer="ones")
            self.total = keras.metrics.Sum(name="total")

        def call(self, x):
            return self.w

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.total.update_state(keras.ops.cast(x["token_ids"], "float32"))
            return y_pred * 0.0

    class Log(keras.callbacks.Callback):
        steps = []

        def on_train_batch_end(self, batch, logs=None):
            self.steps.append(logs["total"])

        def on_epoch_begin(self, epoch, logs=None):
            self.steps.append(0)

    data = SimilarPairs(many_groups(100), ToyTokenizer(size=1000), pairs_per_batch=8, drop_remainder=True)
    data.resume(1, 9)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Sums()
        model.compile(optimizer="sgd")
    warnings.simplefilter("ignore")
    model.fit(data, initial_epoch=1, epochs=4, shuffle=False, verbose=0, callbacks=[Log()])
    sums = np.array(Log.steps)
    got = [2 * float(b - a) for a, b in zip(sums, sums[1:]) if b > 0]
    wanted = [int(data.batch(e, i)["token_ids"].sum()) for e in (1, 2, 3) for i in range(9 if e == 1 else 0, 12)]
    print(json.dumps([len(data), got, wanted, list(data.state)]))
"""


@pytest.mark.distributed
def test_under_a_strategy():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow's strategy")
    script = textwrap.dedent(MIRRORED)
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    length, got, wanted, state = json.loads(done.stdout.decode().splitlines()[-1])
    assert length == 12 and got == wanted and state == [4, 0]


def test_settings_may_be_numpys_numbers(tmp_path):
    """As in `for seed in np.arange(3)`: a checkpoint writes them down."""
    numbers = {"pairs_per_batch": np.int64(2), "maxlen": np.int32(8), "seed": np.int64(1), "mlm_rate": np.float32(0.25)}
    data = SimilarPairs(many_groups(20), TOKENIZER, **numbers)
    facts = json.loads(json.dumps(data.facts()))
    assert facts["seed"] == 1 and facts["mlm_rate"] == 0.25
    same = SimilarPairs(many_groups(20), TOKENIZER, pairs_per_batch=2, maxlen=8, seed=1, mlm_rate=0.25)
    np.testing.assert_array_equal(data.batch(0, 0)["token_ids"], same.batch(0, 0)["token_ids"])
