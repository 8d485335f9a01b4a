"""Batches far larger than memory whose rows remain each other's negatives. TensorFlow only."""

from keras import ops

from simretro.ops import loop_in_turn


def cached_gradients(model, x, normalizers, chunk_rows: int):
    """Loss of a batch and its gradients, while no more than some rows go through the network at a time.

    All chunks of rows go through the network once without a tape. From their outputs, which are small, come the loss
    of the whole batch and its gradients by the outputs. Then each chunk goes through the network once more, with a
    tape and the same dropout, and hands its part of these gradients on to the weights.

    Args:
        model: `AdditiveLossModel`. The seed states of its layers are moved on as by one pass over the chunks.
        x: dict of tensors, each with the batch's rows.
        normalizers: dict, see `AdditiveLossModel.additive_loss`.
        chunk_rows: int, rows at a time; the last chunk may have fewer.
    Returns: (loss, float32 scalar; gradients of the loss as the optimizer scales it, a tensor or None for each of
        `model.trainable_variables`).
    Reference: Gao et al., 2021, https://arxiv.org/abs/2101.06983
    """
    import tensorflow as tf

    variables = model.trainable_variables
    seeds = [variable for variable in model.non_trainable_variables if variable.name == "seed_generator_state"]
    seeds_before = _values(seeds)
    outputs = _outputs_of_chunks(model, x, chunk_rows)
    flat = tf.nest.flatten(outputs)
    with tf.GradientTape() as tape:
        tape.watch(flat)
        y_pred = model.batch_outputs(x, outputs, training=True)
        loss = model.additive_loss(x, y_pred, normalizers, training=True)
        scaled = model.optimizer.scale_loss(loss)
    found = _dense(tape.gradient(scaled, [*flat, *variables]))
    by_output, by_variable = found[: len(flat)], found[len(flat) :]
    seeds_after = _values(seeds)
    _assign(seeds, seeds_before)
    gradients = _through_chunks(model, x, chunk_rows, by_output, variables, by_variable)
    _assign(seeds, seeds_after)
    return loss, gradients


def _outputs_of_chunks(model, x, chunk_rows):
    """`model.row_outputs(x)`, computed chunk by chunk."""
    import tensorflow as tf

    # One chunk apart tells what the outputs are, which a loop must know before it begins.
    first = model.row_outputs(_rows(x, 0, chunk_rows), training=True)
    size = _num_chunks(x, chunk_rows)
    arrays = tuple(
        tf.TensorArray(t.dtype, size, infer_shape=False, element_shape=[None, *t.shape[1:]]).write(0, t)
        for t in tf.nest.flatten(first)
    )

    def forward(i, arrays):
        outputs = tf.nest.flatten(model.row_outputs(_rows(x, i, chunk_rows), training=True))
        return i + 1, tuple(array.write(i, t) for array, t in zip(arrays, outputs, strict=True))

    _, arrays = loop_in_turn(lambda i, _: i < size, forward, (1, arrays))
    return tf.nest.pack_sequence_as(first, [array.concat() for array in arrays])


def _through_chunks(model, x, chunk_rows, by_output, variables, by_variable):
    """Gradients by the variables: those there are already and those of the chunks' outputs."""
    import tensorflow as tf

    size, reached = _num_chunks(x, chunk_rows), [gradient is not None for gradient in by_variable]
    used = [i for i, gradient in enumerate(by_output) if gradient is not None]
    start = [
        tf.zeros(variable.shape, variable.dtype) if gradient is None else gradient
        for variable, gradient in zip(variables, by_variable, strict=True)
    ]

    def backward(i, sums):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model.row_outputs(_rows(x, i, chunk_rows), training=True))
        upstream = [_rows(by_output[j], i, chunk_rows) for j in used]
        new = _dense(tape.gradient([outputs[j] for j in used], variables, output_gradients=upstream))
        reached[:] = [known or gradient is not None for known, gradient in zip(reached, new, strict=True)]
        return i + 1, tuple(a if b is None else a + b for a, b in zip(sums, new, strict=True))

    _, sums = loop_in_turn(lambda i, _: i < size, backward, (0, tuple(start)))
    return [gradient if known else None for gradient, known in zip(sums, reached, strict=True)]


def _rows(x, i, chunk_rows):
    import tensorflow as tf

    return tf.nest.map_structure(lambda t: t[i * chunk_rows : (i + 1) * chunk_rows], x)


def _num_chunks(x, chunk_rows):
    """At least one: a replica may have got no rows."""
    return ops.maximum((ops.shape(next(iter(x.values())))[0] + chunk_rows - 1) // chunk_rows, 1)


def _dense(gradients):
    import tensorflow as tf

    return [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


def _values(variables):
    return [ops.copy(variable) for variable in variables]


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
