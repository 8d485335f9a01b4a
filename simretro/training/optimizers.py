"""The optimizer of BERT-like training: AdamW with warm-up, and no decay on biases and norms."""

from collections.abc import Sequence

import keras
from keras import ops

from simretro.training.schedules import PiecewiseLinear, WarmupLinearDecay
from simretro.training.state import updates_done

# Names of our variables that hold offsets and gains.
NOT_DECAYED = ("bias", "gamma", "beta")


@keras.saving.register_keras_serializable(package="simretro")
class AdamW(keras.optimizers.AdamW):
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
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.not_decayed = tuple(not_decayed)

    def build(self, variables):
        self.exclude_from_weight_decay(var_list=[v for v in variables if v.name in self.not_decayed])
        super().build(variables)

    def apply(self, grads, trainable_variables=None):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            grads = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() == "tensorflow" and not self.amsgrad:
            self._update_in_place(gradient, variable, learning_rate)
        else:
            super().update_step(gradient, variable, learning_rate)

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

    def _update_in_place(self, gradient, variable, learning_rate):
        import tensorflow as tf

        index = self._get_variable_index(variable)
        rate, beta_1, beta_2, epsilon, updates = (
            tf.cast(value, variable.dtype)
            for value in (learning_rate, self.beta_1, self.beta_2, self.epsilon, self.iterations + 1)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=beta_1**updates,
            beta2_power=beta_2**updates,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "not_decayed": list(self.not_decayed)}


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
    """AdamW with linear warm-up and decay. Under a strategy, call it inside `strategy.scope()`.

    Args:
        optimizer: "adamw"; for another one, give a Keras optimizer to `compile`.
        learning_rate: positive float, the highest value.
        warmup_steps: int >= 0, updates of the linear warm-up. SimBERT used none.
        total_steps: int; the rate falls linearly to 0 there. None keeps it constant after the warm-up.
        weight_decay: float >= 0; 0 turns it off.
        clipnorm: float; clips the gradient of each variable to this norm (Keras' meaning of the word).
        global_clipnorm: float; clips all gradients together to this norm, as BERT's training does (1.0).
        use_ema: bool; averages the weights. `fit` puts the averages into the model when it ends.
        ema_momentum: float in [0, 1], what the average keeps of itself at each update.
        not_decayed: names of variables without decay, see `AdamW`.
    Returns: `AdamW`.
    Raises: ValueError if an argument is out of range.
    """
    if optimizer != "adamw":
        raise ValueError(
            f'`optimizer` must be "adamw"; received {optimizer!r}. For another one, give `compile` a Keras optimizer.'
        )
    if not learning_rate > 0:
        raise ValueError(f"`learning_rate` must be a positive number; received {learning_rate!r}.")
    if warmup_steps < 0:
        raise ValueError(f"`warmup_steps` must be at least 0; received {warmup_steps!r}.")
    if weight_decay < 0:
        raise ValueError(f"`weight_decay` must be at least 0; received {weight_decay!r}.")
    return AdamW(
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
