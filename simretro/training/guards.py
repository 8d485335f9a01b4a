"""Refusals before the first step, where Keras itself would fail later and less clearly."""

import atexit
import functools
import gc
import sys


def check_distribution(strategy=None, optimizer=None, jit_compile="auto", steps_per_execution: int = 1) -> None:
    """Refuses what Keras cannot do under a `tf.distribute` strategy; a no-op without one.

    With several replicas it also sees to it that a run that ends with an error does not hang, see `collect_at_exit`.

    Args:
        strategy: `tf.distribute.Strategy` or None, usually `model.distribute_strategy`.
        optimizer: Keras optimizer, name or None.
        jit_compile: as for `compile`; "auto" is fine, since Keras turns XLA off under a strategy.
        steps_per_execution: int, as for `compile`.
    Raises: ValueError naming all arguments that have to change.
    """
    # Without a strategy, TensorFlow hands out a default one of a private class.
    if strategy is None or type(strategy).__name__ == "_DefaultDistributionStrategy":
        return
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        collect_at_exit()
    problems = []
    if jit_compile is True and replicas > 1:
        problems.append("`jit_compile` must be False or 'auto'; received True")
    if steps_per_execution > 1 and replicas > 1:
        problems.append(f"`steps_per_execution` must be 1; received {steps_per_execution}")
    # The option sits on the optimizer that a LossScaleOptimizer wraps; it fails on one replica, too.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    accumulation = getattr(optimizer, "gradient_accumulation_steps", None)
    if accumulation:
        problems.append(
            f"`gradient_accumulation_steps` of the optimizer must be None; received {accumulation} "
            "(let the training step split its batch instead: `compile(micro_batches=...)`)"
        )
    if problems:
        raise ValueError(
            f"Keras cannot do this under {type(strategy).__name__} with {replicas} replica(s): {'; '.join(problems)}."
        )


@functools.cache
def collect_at_exit() -> None:
    """Frees the iterators of an interrupted `fit` while Python is still whole.

    A distributed iterator waits, when it is freed, for the thread that fetches its next batch, and that thread for
    Python, if the batch is made by Python code. Where an error has left such an iterator behind, the process would
    wait for ever at its exit, on its devices.
    """
    atexit.register(_forget_last_error)


def _forget_last_error():
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)  # the traceback holds the frames of `fit`
    gc.collect()
