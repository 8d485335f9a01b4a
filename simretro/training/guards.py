"""Refusals before the first step, where Keras itself would fail later and less clearly."""


def check_distribution(strategy=None, optimizer=None, jit_compile="auto", steps_per_execution: int = 1) -> None:
    """Refuses what Keras cannot do under a `tf.distribute` strategy; a no-op without one.

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
