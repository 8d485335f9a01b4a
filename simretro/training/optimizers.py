"""The optimizers of BERT-like training: AdamW or Muon with warm-up, and no decay on biases and norms."""

from collections.abc import Sequence

import keras
from keras import ops

from simretro.training.schedules import PiecewiseLinear, WarmupLinearDecay
from simretro.training.state import updates_done

# Names of our variables that hold offsets and gains.
NOT_DECAYED = ("bias", "gamma", "beta")


class _Corrected:
    """What Keras' optimizers lack for this: see `AdamW`. To be put before one of them."""

    def __init__(self, *, not_decayed, **kwargs):
        super().__init__(**kwargs)
        self.not_decayed = tuple(not_decayed)

    def build(self, variables):
        self.exclude_from_weight_decay(var_list=[v for v in variables if v.name in self.not_decayed])
        super().build(variables)

    def apply(self, grads, trainable_variables=None):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            grads = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        super().apply(grads, trainable_variables)

    def finalize_variable_values(self, var_list):
        if updates_done(self):
            super().finalize_variable_values(var_list)

    def _get_current_learning_rate(self):
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def _update_model_variables_moving_average(self, trainable_variables):
        momentum, steps = self.ema_momentum, self.gradient_accumulation_steps
        if steps:
            is_update = ops.equal((self._iterations + 1) % steps, 0)
            self.ema_momentum = ops.where(is_update, momentum, 1.0)
        try:
            super()._update_model_variables_moving_average(trainable_variables)
        finally:
            self.ema_momentum = momentum

    def get_config(self) -> dict:
        return {**super().get_config(), "not_decayed": list(self.not_decayed)}


@keras.saving.register_keras_serializable(package="simretro")
class AdamW(_Corrected, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` that still knows after saving which variables it does not decay.

    Keras forgets `exclude_from_weight_decay` in `get_config`, so a reloaded optimizer would decay everything; and its
    `var_names` are searched in the whole path on TensorFlow, so "beta" would also spare "alphabeta/kernel".

    On TensorFlow each variable is updated by one operation in place, where Keras makes about fifteen and several copies
    of the variable: half the time, and less memory by the size of the largest tables. The gradient of a table that is
    looked up lists rows there, one that is read twice two times: they are summed first. Keras squares each by itself,
    in the second moment and in the norm that is clipped.

    With `gradient_accumulation_steps` schedules are asked with the number of updates, and averages (`use_ema`) move
    with the updates; Keras counts the batches in both. Averages of no update are not put into the model: they are
    zeros.

    Args:
        learning_rate: float or `LearningRateSchedule`.
        weight_decay: float, the decoupled decay: each update takes off `learning_rate * weight_decay` of the weight.
        not_decayed: names; a variable of that name (the last part of its path) does not decay.
        **kwargs: as `keras.optimizers.AdamW`.
    """

    def __init__(self, learning_rate=0.001, weight_decay=0.01, not_decayed: Sequence[str] = NOT_DECAYED, **kwargs):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, not_decayed=not_decayed, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() == "tensorflow" and not self.amsgrad:
            index = self._get_variable_index(variable)
            moments = self._momentums[index], self._velocities[index]
            _adam_in_place(self, gradient, variable, learning_rate, moments, (self.beta_1, self.beta_2))
        else:
            super().update_step(gradient, variable, learning_rate)


@keras.saving.register_keras_serializable(package="simretro")
class Muon(_Corrected, keras.optimizers.Muon):
    """`keras.optimizers.Muon`, corrected as `AdamW` is: each matrix moves alike far in all its directions.

    The update of a matrix is its momentum with all singular values made about equal, times `0.2 sqrt(larger side)`, so
    that rates are those of AdamW. Embeddings, biases and norms are AdamW's. From new weights it needs a fraction of
    AdamW's updates, each of which costs some twenty products of each matrix: take batches of a thousand tokens or more.
    As in the published code these products are in bfloat16; Keras has them in float32.

    Args: as of `AdamW`; **kwargs: as `keras.optimizers.Muon`.
    Reference: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/; the rate: Liu et al., 2025,
        https://arxiv.org/abs/2502.16982.
    """

    def __init__(self, learning_rate=0.001, weight_decay=0.01, not_decayed: Sequence[str] = NOT_DECAYED, **kwargs):
        kwargs.setdefault("adam_weight_decay", weight_decay)
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, not_decayed=not_decayed, **kwargs)

    def zeropower_via_newtonschulz5(self, x, steps):
        # Before the precision is lowered: the norm of a large matrix is a sum of many small squares.
        x = x / (ops.norm(x) + 1e-7)
        return ops.cast(super().zeropower_via_newtonschulz5(ops.cast(x, "bfloat16"), steps), x.dtype)

    def _adamw_update_step(self, gradient, variable, learning_rate, m, v):
        if keras.backend.backend() == "tensorflow":
            _adam_in_place(self, gradient, variable, learning_rate, (m, v), (self.adam_beta_1, self.adam_beta_2))
        else:
            super()._adamw_update_step(gradient, variable, learning_rate, m, v)


def _adam_in_place(optimizer, gradient, variable, learning_rate, moments, betas):
    import tensorflow as tf

    first, second = moments
    rate, beta_1, beta_2, epsilon, updates = (
        tf.cast(value, variable.dtype) for value in (learning_rate, *betas, optimizer.epsilon, optimizer.iterations + 1)
    )
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=first.value.handle,
        v=second.value.handle,
        beta1_power=beta_1**updates,
        beta2_power=beta_2**updates,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=tf.cast(gradient, variable.dtype),
    )


_OPTIMIZERS = {"adamw": AdamW, "muon": Muon}
OPTIMIZER_NAMES = tuple(_OPTIMIZERS)


def build_optimizer(
    optimizer: str = "adamw",
    learning_rate: float = 1e-4,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    weight_decay: float = 0.01,
    clipnorm: float | None = None,
    global_clipnorm: float | None = None,
    use_ema: bool = False,
    ema_momentum: float = 0.999,
    not_decayed: Sequence[str] = NOT_DECAYED,
) -> keras.optimizers.Optimizer:
    """AdamW or Muon with linear warm-up and decay. Under a strategy, call it inside `strategy.scope()`.

    Args:
        optimizer: "adamw", or, for new weights, "muon"; for another one, give a Keras optimizer to `compile`.
        learning_rate: positive float, the highest value.
        warmup_steps: int >= 0, updates of the linear warm-up. SimBERT used none.
        total_steps: int; the rate falls linearly to 0 there. None keeps it constant after the warm-up.
        weight_decay: float >= 0; 0 turns it off.
        clipnorm: float; clips the gradient of each variable to this norm (Keras' meaning of the word).
        global_clipnorm: float; clips all gradients together to this norm, as BERT's training does (1.0).
        use_ema: bool; averages the weights. `fit` puts the averages into the model when it ends.
        ema_momentum: float in [0, 1], what the average keeps of itself at each update.
        not_decayed: names of variables without decay, see `AdamW`.
    Returns: `AdamW` or `Muon`.
    Raises: ValueError if an argument is out of range.
    """
    if optimizer not in OPTIMIZER_NAMES:
        raise ValueError(
            f"`optimizer` must be one of {OPTIMIZER_NAMES}; received {optimizer!r}. For another one, give `compile` a "
            "Keras optimizer."
        )
    if not learning_rate > 0:
        raise ValueError(f"`learning_rate` must be a positive number; received {learning_rate!r}.")
    if warmup_steps < 0:
        raise ValueError(f"`warmup_steps` must be at least 0; received {warmup_steps!r}.")
    if weight_decay < 0:
        raise ValueError(f"`weight_decay` must be at least 0; received {weight_decay!r}.")
    return _OPTIMIZERS[optimizer](
        learning_rate=_schedule(learning_rate, warmup_steps, total_steps),
        weight_decay=weight_decay,
        not_decayed=not_decayed,
        clipnorm=clipnorm,
        global_clipnorm=global_clipnorm,
        use_ema=use_ema,
        ema_momentum=ema_momentum,
    )


def _schedule(learning_rate, warmup_steps, total_steps):
    if total_steps is not None:
        return WarmupLinearDecay(learning_rate, warmup_steps, total_steps)
    if warmup_steps:
        return PiecewiseLinear(learning_rate, {warmup_steps: 1.0})
    return float(learning_rate)
