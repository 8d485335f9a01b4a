"""Weights averaged over the updates (EMA): put into the model for a moment, exactly and reversibly."""

from contextlib import contextmanager

import keras

from simretro.training.state import as_array, strategy_scope, updates_done


@contextmanager
def averaged_weights(model: keras.Model):
    """Within the block the model has its averaged weights, afterwards its own again, bit by bit.

    Nothing changes if the optimizer keeps no averages (`use_ema=True`) or has not made its first update.

    Args:
        model: compiled `keras.Model`.
    """
    exchanged = exchange_averages(model)
    try:
        yield
    finally:
        if exchanged:
            exchange_averages(model)


def exchange_averages(model: keras.Model) -> bool:
    """Exchanges the weights of the model and their averages; a second call undoes the first.

    `keras.callbacks.SwapEMAWeights` adds and subtracts instead, so on TensorFlow it rounds the weights each time.

    Args:
        model: compiled `keras.Model`.
    Returns: bool; False, and nothing done, if there are no averages.
    """
    # The option sits on the optimizer that a LossScaleOptimizer wraps.
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    # Before the first update the averages are zeros.
    if not getattr(optimizer, "use_ema", False) or not optimizer.built or updates_done(optimizer) == 0:
        return False
    # Keras has no public name for these two lists; its own SwapEMAWeights reads them, too.
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    with strategy_scope(model):
        for variable, average in pairs:
            if average is not None:
                kept = as_array(variable).copy()  # torch hands out its own memory
                variable.assign(average)
                average.assign(kept)
    return True
