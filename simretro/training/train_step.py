"""The training step of methods whose loss is a sum over rows, divided by counts of the whole batch."""

import inspect

import keras
import numpy as np
from keras import ops

from simretro.arguments import check_int
from simretro.training.callbacks import TerminateOnNonFinite
from simretro.training.checkpoint import TrainingCheckpoint
from simretro.training.distribution import sum_over_replicas, whole_batch_gradients
from simretro.training.gradient_cache import cached_gradients
from simretro.training.guards import check_distribution


class AdditiveLossModel(keras.Model):
    """A `keras.Model` whose loss adds up over replicas and micro-batches to that of the whole batch.

    A subclass defines `call(x, training)` and two methods:

    - `normalizers(x)`: dict of float32 scalars, what the sums of the loss are divided by (tokens, rows), for the
      rows `x` alone;
    - `additive_loss(x, y_pred, normalizers, training)`: this part's sums divided by `normalizers`. The parts of a
      batch, each given the normalizers of the whole, add up to the batch's loss.

    Then a mean over tokens is one over all tokens of all replicas, and neither a short last batch nor an uneven
    split of the tokens changes what a token weighs.

    Two options of `compile` save memory (TensorFlow):

    - `micro_batches=k` splits each batch into k parts that go through model and loss one after the other before the
      one update: the memory of one part, the gradient of all. In-batch negatives are those of a part, so this adds no
      negatives.
    - `gradient_cache_rows=r` lets r rows at a time through the network, and compares all rows of the batch: the memory
      of r rows, the negatives, loss and gradient of the whole batch, for one more forward pass. It is for models with
      `in_batch_negatives`, whose `call` is `batch_outputs(x, row_outputs(x))`.
    """

    micro_batches = 1
    gradient_cache_rows = None
    rows_per_example = 1  # rows that belong together: micro-batches are not cut between them
    in_batch_negatives = False  # whether rows of a batch are compared with one another

    def compile(
        self, *args, micro_batches: int = 1, gradient_cache_rows: int | None = None, jit_compile="auto", **kwargs
    ):
        """As `keras.Model.compile`, without losses and metrics: the method has its own.

        Args:
            micro_batches: int, parts that a batch is worked through in. TensorFlow only.
            gradient_cache_rows: int, rows (of each replica's batch) that go through the network at a time, while all
                rows remain each other's negatives; None = all at once. TensorFlow only.
            jit_compile: "auto" leaves XLA off on TensorFlow, where each new length would be compiled anew.
        Raises:
            ValueError: if `micro_batches` or `gradient_cache_rows` is not a positive int or both are given, if the
                model has no in-batch negatives that `gradient_cache_rows` could keep, or a loss or metrics are given.
            NotImplementedError: if one of them is asked for on a backend other than TensorFlow, or with XLA.
        """
        micro_batches = check_int("micro_batches", micro_batches, 1)
        _refuse(keras.Model.compile, (self, *args), kwargs, ("loss", "loss_weights", "metrics", "weighted_metrics"))
        if gradient_cache_rows is not None:
            check_int("gradient_cache_rows", gradient_cache_rows, 1)
            self._check_gradient_cache(gradient_cache_rows, micro_batches, jit_compile)
        if micro_batches > 1:
            _refuse_other_backends(f"`micro_batches={micro_batches}`")
            if jit_compile is True:
                raise NotImplementedError(
                    f"`micro_batches={micro_batches}` does not work with XLA, which leaves out the check that the "
                    "parts are equal, and then rows: leave `jit_compile` out."
                )
        if jit_compile == "auto" and keras.backend.backend() == "tensorflow":
            jit_compile = False
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.micro_batches = micro_batches
        self.gradient_cache_rows = gradient_cache_rows

    def _check_gradient_cache(self, rows, micro_batches, jit_compile):
        if not self.in_batch_negatives:
            raise ValueError(
                f"`gradient_cache_rows` must be None for {type(self).__name__}; received {rows}. It keeps the "
                "negatives of a large batch, and this model compares no rows with one another: `micro_batches` saves "
                "as much memory, at less work."
            )
        if micro_batches > 1:
            raise ValueError(
                f"`gradient_cache_rows` and `micro_batches` exclude each other; received {rows} and {micro_batches}. "
                "`gradient_cache_rows` alone keeps the negatives of the whole batch."
            )
        _refuse_other_backends(f"`gradient_cache_rows={rows}`")
        if jit_compile is True:
            raise NotImplementedError(
                f"`gradient_cache_rows={rows}` does not work with XLA, which does not join a number of chunks "
                "that it is not told before: leave `jit_compile` out."
            )

    def get_compile_config(self):
        own = {"micro_batches": self.micro_batches, "gradient_cache_rows": self.gradient_cache_rows}
        return {**super().get_compile_config(), **own}

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, shuffle: bool = False, callbacks=None, **kwargs):
        """As `keras.Model.fit`, with two differences.

        Batches come in the order of the data set (`shuffle=False`): it has a seed of its own, and a run that is
        resumed must meet them in the same order. And a loss that is no number ends the training with an error.

        Raises:
            ValueError: before the first step: if the model is not compiled, for targets, for weights of samples or
                classes, for arrays whose rows belong together and would be shuffled, or for what Keras cannot do under
                a `tf.distribute` strategy.
            FloatingPointError: at the first step whose loss is not finite.
        """
        if not self.compiled:
            raise ValueError("The model must be compiled before `fit`: call `compile(optimizer)`.")
        _refuse(keras.Model.fit, (self, x, *args), kwargs, ("y", "sample_weight", "class_weight"))
        if shuffle and self.rows_per_example > 1 and isinstance(x, dict | list | tuple | np.ndarray):
            raise ValueError(
                f"`shuffle` must be False for arrays: {self.rows_per_example} rows that follow one another belong "
                "together. A data set, as `SimilarPairs`, may be shuffled."
            )
        if keras.backend.backend() == "tensorflow":
            check_distribution(self.distribute_strategy, self.optimizer, self.jit_compile, self.steps_per_execution)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = [*(callbacks or [])] if isinstance(callbacks, (list, tuple, type(None))) else [callbacks]
            if not any(isinstance(callback, TerminateOnNonFinite) for callback in callbacks):
                # First in line: nothing is saved after a loss that is no number.
                checkpoint = next((c for c in callbacks if isinstance(c, TrainingCheckpoint)), None)
                callbacks.insert(0, TerminateOnNonFinite(checkpoint))
        return super().fit(x, *args, shuffle=shuffle, callbacks=callbacks, **kwargs)

    def row_outputs(self, x, training):
        """The part of `call` that computes each row by itself: the network. The default is all of it.

        Args:
            x: dict of tensors, any rows of a batch.
            training: bool.
        Returns: nested structure of float tensors with a row for each of `x`. No variables change but those of seeds.
        """
        return self(x, training=training)

    def batch_outputs(self, x, row_outputs, training):
        """The rest of `call`, which may read all rows together and change variables. The default is nothing.

        Args:
            x: dict of tensors, a whole batch.
            row_outputs: what `row_outputs(x)` gave, of all rows.
            training: bool.
        Returns: what `call(x)` returns.
        """
        return row_outputs

    def normalizers(self, x):
        """What the sums of the loss are divided by, to be defined in the subclass.

        Args:
            x: dict of tensors, some rows of a batch.
        Returns: dict of float32 scalars, counts of these rows alone, which add up over the parts of a batch.
        """
        raise NotImplementedError

    def additive_loss(self, x, y_pred, normalizers, training):
        """A part's share of the batch's loss, to be defined in the subclass.

        Args:
            x: dict of tensors, the part's rows.
            y_pred: what `call(x)` returned.
            normalizers: dict, as of `normalizers`, of the whole batch: all parts and replicas.
            training: bool.
        Returns: float32 scalar: the part's sums divided by `normalizers`. Metrics are updated on the way.
        """
        raise NotImplementedError

    def global_normalizers(self, *parts):
        """`normalizers` of the batch of all replicas; at least 1 each, so that nothing is divided by zero.

        Args:
            parts: dicts of tensors, the parts that this replica's batch is worked through in.
        """
        counts = [self.normalizers(part) for part in parts]
        totals = {name: sum(count[name] for count in counts) for name in counts[0]}
        return {name: ops.maximum(sum_over_replicas(total), 1.0) for name, total in totals.items()}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        _refuse_weights(sample_weight)
        return self.additive_loss(x, y_pred, self.global_normalizers(x), training)

    if keras.backend.backend() == "tensorflow":

        def train_step(self, data):
            x = _inputs(data)
            parts = self._parts(x)
            normalizers = self.global_normalizers(*parts)
            if self.gradient_cache_rows is None:
                loss, gradients = self._gradients_of_parts(parts, normalizers)
            else:
                loss, gradients = cached_gradients(self, x, normalizers, self.gradient_cache_rows)
            self.optimizer.apply(whole_batch_gradients(gradients, self.optimizer), self.trainable_variables)
            return self._step_logs(x, loss)

        def _gradients_of_parts(self, parts, normalizers):
            import tensorflow as tf

            variables = self.trainable_variables
            total, gradients = 0.0, None
            for part in parts:
                if gradients is not None:
                    # Without this the parts would run side by side, in the memory of the whole batch.
                    with tf.control_dependencies([total]):
                        part = tf.nest.map_structure(tf.identity, part)
                with tf.GradientTape() as tape:
                    loss = self.additive_loss(part, self(part, training=True), normalizers, training=True)
                    scaled = self.optimizer.scale_loss(loss)
                new = [tf.convert_to_tensor(g) if g is not None else None for g in tape.gradient(scaled, variables)]
                gradients = new if gradients is None else [_add(a, b) for a, b in zip(gradients, new, strict=True)]
                total = total + loss
            return total, gradients

        def test_step(self, data):
            x = _inputs(data)
            loss = self.additive_loss(x, self(x, training=False), self.global_normalizers(x), training=False)
            return self._step_logs(x, loss)

        def _step_logs(self, x, loss):
            # Every replica reports the loss of the whole batch, weighted by its own rows.
            rows = ops.cast(ops.shape(next(iter(x.values())))[0], "float32")
            self._loss_tracker.update_state(sum_over_replicas(loss), sample_weight=rows)
            return self.compute_metrics(x, None, None)

        def _parts(self, x):
            import tensorflow as tf

            if self.micro_batches == 1:
                return [x]
            size = tf.shape(next(iter(x.values())))[0]
            check = tf.debugging.assert_equal(
                size % (self.rows_per_example * self.micro_batches),
                0,
                "`micro_batches` must divide the number of examples (a pair is one) of each replica's batch; use data "
                "with `drop_remainder=True` and a fitting size of the batches.",
            )
            with tf.control_dependencies([check] if check is not None else []):
                rows = size // self.micro_batches
            return [
                {name: value[i * rows : (i + 1) * rows] for name, value in x.items()} for i in range(self.micro_batches)
            ]


def _refuse_other_backends(option):
    if keras.backend.backend() != "tensorflow":
        raise NotImplementedError(f"{option} needs the TensorFlow backend; this is {keras.backend.backend()}.")


def _refuse(function, args, kwargs, names):
    """Raises ValueError for arguments of a Keras method that would be silently ignored."""
    given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    given |= given.pop("kwargs", {})
    ignored = [name for name in names if given.get(name) is not None]
    if ignored:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in ignored)} must be left out: the model computes its losses and metrics "
            f"itself, from the batches alone; received {', '.join(repr(given[name])[:80] for name in ignored)}."
        )


def _inputs(data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if y is not None:
        raise ValueError("The data must hold no targets beside the dict of a batch: the losses are made from it alone.")
    _refuse_weights(sample_weight)
    return x


def _refuse_weights(sample_weight):
    if sample_weight is not None:
        raise ValueError("The data must hold no `sample_weight`: a row weighs what its tokens and pairs weigh.")


def _add(a, b):
    if a is None or b is None:
        return b if a is None else a
    return a + b
