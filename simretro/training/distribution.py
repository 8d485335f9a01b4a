"""What one replica must know of the others under `tf.distribute`; everywhere else there is one replica.

JAX and torch get whole-batch semantics from their own sharding or run on one device, so these functions are the
identity there.
"""

from typing import Any

import keras
from keras import ops

from simretro.ops import replica_context

Tensor = Any  # of the backend


def sum_over_replicas(x: Tensor) -> Tensor:
    """Sum of a tensor over all replicas; it carries no gradient.

    Args:
        x: float tensor of the same shape on each replica.
    """
    context = replica_context()
    return x if context is None else context.all_reduce("SUM", ops.stop_gradient(x))


def gather_rows(x: Tensor) -> tuple[Tensor, Tensor | int]:
    """The rows of all replicas, and where this replica's rows begin; gradients flow back to their replica.

    Args:
        x: (R, ...) tensor; R may differ from replica to replica.
    Returns: (all rows (N, ...), int32 scalar offset of this replica's first row).
    """
    context = replica_context()
    if context is None:
        return x, 0
    counts = context.all_gather(ops.reshape(ops.shape(x)[0], (1,)), axis=0)
    offset = (ops.cumsum(counts) - counts)[context.replica_id_in_sync_group]
    return context.all_gather(x, axis=0), offset


def whole_batch_gradients(gradients: list, optimizer: keras.optimizers.Optimizer) -> list:
    """This replica's share of the whole batch's gradients, clipped as the optimizer says.

    Keras clips the gradients of each replica and sums afterwards, so that a clipped run on two devices is another run
    than on one. Here the sum is clipped, and each replica hands the optimizer an equal share of it, which is too short
    to be clipped again. A `LossScaleOptimizer` leaves out a step if the gradients of the first replica overflow, and
    asks no other: it gets such shares in any case, which are finite everywhere or nowhere.

    Args:
        gradients: list of tensors or None, of the replica's part of an additive loss.
        optimizer: Keras optimizer.
    Returns: list, `gradients` itself where there is one replica, or nothing to be done.
    """
    context = replica_context()
    if context is None:
        return gradients
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # a LossScaleOptimizer leaves the clipping to this one
    clips = [name for name in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(inner, name, None)]
    if not clips and inner is optimizer:
        return gradients
    sums = context.all_reduce("SUM", [gradient for gradient in gradients if gradient is not None])
    if clips:
        limit = optimizer.scale_loss(getattr(inner, clips[0]))  # the gradients still have the scale of the loss
        sums = _clip(sums, clips[0], limit)
    sums, shares = iter(sums), context.num_replicas_in_sync
    return [None if gradient is None else next(sums) / shares for gradient in gradients]


def _clip(gradients, name, limit):
    if name == "clipvalue":
        # What is not finite stays so, or a step that overflowed would count as one that did not.
        return [ops.where(ops.isfinite(g), ops.clip(g, -limit, limit), g) for g in gradients]
    norms = [ops.sqrt(ops.sum(ops.square(gradient))) for gradient in gradients]
    if name == "global_clipnorm":
        norms = [ops.sqrt(sum(ops.square(norm) for norm in norms))] * len(norms)
    return [gradient * (limit / ops.maximum(norm, limit)) for gradient, norm in zip(gradients, norms, strict=True)]
