"""What one replica must know of the others under `tf.distribute`; everywhere else there is one replica.

JAX and torch get whole-batch semantics from their own sharding or run on one device, so these functions are the
identity there.
"""

import keras
from keras import ops


def _replica_context():
    """TensorFlow's replica context where several replicas run in step, else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context


def sum_over_replicas(x):
    """Sum of a tensor over all replicas; it carries no gradient.

    Args:
        x: float tensor of the same shape on each replica.
    """
    context = _replica_context()
    return x if context is None else context.all_reduce("SUM", ops.stop_gradient(x))


def gather_rows(x):
    """The rows of all replicas, and where this replica's rows begin; gradients flow back to their replica.

    Args:
        x: (R, ...) tensor; R may differ from replica to replica.
    Returns: (all rows (N, ...), int32 scalar offset of this replica's first row).
    """
    context = _replica_context()
    if context is None:
        return x, 0
    counts = context.all_gather(ops.reshape(ops.shape(x)[0], (1,)), axis=0)
    offset = (ops.cumsum(counts) - counts)[context.replica_id_in_sync_group]
    return context.all_gather(x, axis=0), offset
