"""Losses over the vocabulary that never hold all logits."""

from keras import ops

from simretro.losses.scores import HIDDEN_SCORE
from simretro.ops import as_tensor, loop_in_turn


def fused_cross_entropy(hidden, table, bias, labels, normalizer=None, chunk_size=1024, training=True):
    """Cross-entropy of `softmax(hidden @ table.T + bias)` without ever holding all logits.

    The rows are worked through in chunks; in training each chunk's gradient is computed while its logits are there,
    so the logits are neither stored nor computed twice, and at most `chunk_size * V` of them exist at a time.

    Args:
        hidden: float (N, E).
        table: float (V, E), the output matrix.
        bias: float (V,).
        labels: int (N,); negative = ignored.
        normalizer: scalar that the summed losses are divided by; None = the number of labels that are not ignored
            (at least 1). Give the count of the whole batch where `hidden` is only a part of it.
        chunk_size: int, rows at a time.
        training: bool; False leaves the gradient out.
    Returns: (loss, num_correct), float32 scalars: summed loss / `normalizer`; labels with the highest logit.
    Raises: ValueError if `chunk_size` is not positive.
    """
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be at least 1; received {chunk_size}.")
    labels = ops.cast(labels, "int32")
    counted = ops.cast(labels >= 0, "float32")
    labels = ops.maximum(labels, 0)
    if normalizer is None:
        normalizer = ops.maximum(ops.sum(counted), 1.0)

    def totals_and_gradient(hidden, table, bias):
        totals, gradients = _fused_cross_entropy(hidden, table, bias, labels, counted, chunk_size)

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return tuple(ops.cast(upstream[0], g.dtype) * g for g in gradients)

        return totals, gradient

    arguments = tuple(map(as_tensor, (hidden, table, bias)))
    if training:
        totals = ops.custom_gradient(totals_and_gradient)(*arguments)
    else:
        totals, _ = _fused_cross_entropy(*arguments, labels, counted, chunk_size, with_gradient=False)
    return totals[0] / ops.cast(normalizer, "float32"), ops.stop_gradient(totals[1])


def _fused_cross_entropy(hidden, table, bias, labels, counted, chunk_size, with_gradient=True):
    """Returns ([summed loss, number correct], gradients of the summed loss by hidden, table and bias)."""
    num_rows, width = ops.shape(hidden)
    chunk_size = max(1, min(chunk_size, (2**31 - 1) // table.shape[0]))  # a place among the logits is an int32
    matrix = ops.cast(table, hidden.dtype)
    larger = max if isinstance(num_rows, int) else ops.maximum
    num_chunks = larger((num_rows + chunk_size - 1) // chunk_size, 1)
    # Equal chunks: the least padding. At least one row: a replica may have got none.
    chunk_rows = larger((num_rows + num_chunks - 1) // num_chunks, 1)
    padding = num_chunks * chunk_rows - num_rows
    rows, targets, weights = (_pad_rows(x, padding) for x in (hidden, labels, counted))
    bias = ops.cast(bias, "float32")

    def body(i, totals, d_rows, d_table, d_bias):
        start = i * chunk_rows
        x = ops.slice(rows, (start, 0), (chunk_rows, width))
        target = ops.slice(targets, (start,), (chunk_rows,))
        weight = ops.slice(weights, (start,), (chunk_rows,))
        logits = ops.cast(ops.matmul(x, ops.transpose(matrix)), "float32") + bias
        flat = ops.arange(chunk_rows, dtype="int32") * ops.shape(logits)[1] + target
        target_logits = ops.take(ops.reshape(logits, (-1,)), flat)
        peak = ops.max(logits, axis=1, keepdims=True)
        exponentials = ops.exp(logits - peak)
        sums = ops.sum(exponentials, axis=1)
        loss = ops.sum(weight * (ops.log(sums) + peak[:, 0] - target_logits))
        correct = ops.sum(weight * ops.cast(target_logits >= peak[:, 0], "float32"))
        totals = totals + ops.stack([loss, correct])
        if with_gradient:
            # softmax = exponentials / sums; the division is by row and so is done on the narrow side of the products.
            scale = (weight / sums)[:, None]
            exponentials = ops.cast(exponentials, x.dtype)
            scaled = ops.cast(ops.cast(x, "float32") * scale, x.dtype)
            d_x = ops.cast(ops.matmul(exponentials, matrix), "float32") * scale
            d_rows = ops.slice_update(d_rows, (start, 0), d_x)
            d_table = d_table + ops.cast(ops.matmul(ops.transpose(exponentials), scaled), "float32")
            d_bias = d_bias + ops.matmul(ops.transpose(scale), ops.cast(exponentials, "float32"))[0]
        return i + 1, totals, d_rows, d_table, d_bias

    d_rows, d_table, d_bias = ops.zeros((1, 1)), ops.zeros((1, 1)), ops.zeros_like(bias)
    if with_gradient:
        # The gradient by a logit is softmax - one_hot(label); the second part touches one row of the table per label.
        # The sums begin with it: behind the loop it would be one more array of the table's size, and so the difference.
        weighted = ops.cast(rows, "float32") * weights[:, None]
        d_rows = ops.zeros(ops.shape(rows), "float32")
        d_table = -ops.segment_sum(weighted, targets, num_segments=table.shape[0])
        d_bias = -ops.segment_sum(weights, targets, num_segments=table.shape[0])
    state = ops.convert_to_tensor(0, "int32"), ops.zeros((2,), "float32"), d_rows, d_table, d_bias
    _, totals, d_rows, d_table, d_bias = loop_in_turn(lambda i, *_: i < num_chunks, body, state)
    if not with_gradient:
        return totals, None
    d_rows = d_rows - ops.cast(ops.take(matrix, targets, axis=0), "float32") * weights[:, None]
    return totals, (ops.cast(d_rows[:num_rows], hidden.dtype), ops.cast(d_table, table.dtype), d_bias)


def max_pooled_logits(hidden, table, bias, mask, chunk_size=1024):
    """Largest logit of each vocabulary entry over the positions of a row, without ever holding all logits.

    Args:
        hidden: float (B, L, E).
        table: float (V, E), the output matrix.
        bias: float (V,).
        mask: bool (B, L); False = a position that does not count.
        chunk_size: int, positions at a time, at least those of one row.
    Returns: float32 (B, V); a row without positions that count has the bias alone.
    Raises: ValueError if `chunk_size` is not positive.
    Reference: Liu et al., 2022 (DupMAE), https://arxiv.org/abs/2211.08769, section 3.2.
    """
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be at least 1; received {chunk_size}.")
    counted = ops.cast(mask, "bool")

    def pooled_and_gradient(hidden, table, bias):
        pooled, places = _max_over_positions(hidden, table, counted, chunk_size)

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            d_hidden, d_table = _max_gradients(upstream, places, hidden, table, chunk_size)
            return d_hidden, d_table, ops.cast(ops.sum(upstream, axis=0), bias.dtype)

        return pooled + ops.cast(bias, "float32"), gradient

    return ops.custom_gradient(pooled_and_gradient)(*map(as_tensor, (hidden, table, bias)))


def _max_over_positions(hidden, table, counted, chunk_size):
    """Returns the products' maxima over the positions, float32 (B, V), and their positions, int32 (B, V); -1: none."""
    matrix = ops.transpose(ops.cast(table, hidden.dtype))

    def compute(hidden, counted):
        logits = ops.cast(ops.matmul(hidden, matrix), "float32")  # (rows, L, V)
        logits = ops.where(counted[:, :, None], logits, HIDDEN_SCORE)
        found = ops.any(counted, axis=1)[:, None]
        pooled = ops.where(found, ops.max(logits, axis=1), 0.0)
        return (pooled, ops.where(found, ops.cast(ops.argmax(logits, axis=1), "int32"), -1)), 0.0

    shapes = [(table.shape[0],), (table.shape[0],)]
    return _in_chunks(compute, (hidden, counted), shapes, ("float32", "int32"), 0.0, chunk_size)[0]


def _max_gradients(upstream, places, hidden, table, chunk_size):
    """Gradients by `hidden` and `table` of maxima that stood at `places`."""
    matrix = ops.cast(table, hidden.dtype)
    positions = ops.arange(ops.shape(hidden)[1], dtype="int32")[:, None]

    def compute(hidden, upstream, places):
        d_logits = ops.where(places[:, None] == positions, ops.cast(upstream, matrix.dtype)[:, None], 0.0)
        d_logits = ops.cast(d_logits, matrix.dtype)  # (rows, L, V)
        flat, flat_hidden = (ops.reshape(x, (-1, x.shape[-1])) for x in (d_logits, hidden))
        return (ops.matmul(d_logits, matrix),), ops.cast(ops.matmul(ops.transpose(flat), flat_hidden), "float32")

    total = ops.zeros(table.shape, "float32")
    inputs, shapes = (hidden, upstream, places), [ops.shape(hidden)[1:]]
    (d_hidden,), d_table = _in_chunks(compute, inputs, shapes, (hidden.dtype,), total, chunk_size)
    return d_hidden, ops.cast(d_table, table.dtype)


def _in_chunks(compute, inputs, shapes, dtypes, total, chunk_size):
    """Applies `compute` to a few rows at a time; the first input is (B, L, ...), and B * L its positions.

    Args:
        compute: rows of the inputs -> (outputs for these rows, what they add to `total`).
        inputs: tensors with B rows.
        shapes, dtypes: of a row of each output.
        total: scalar or tensor, what the sum starts with.
        chunk_size: positions at a time; at least one row.
    Returns: (outputs with B rows, total).
    """
    num_rows, length = ops.shape(inputs[0])[:2]
    larger = max if isinstance(num_rows, int) and isinstance(length, int) else ops.maximum
    num_chunks = larger((num_rows * length + chunk_size - 1) // chunk_size, 1)
    chunk_rows = larger((num_rows + num_chunks - 1) // num_chunks, 1)
    num_chunks = larger((num_rows + chunk_rows - 1) // chunk_rows, 1)
    padding = num_chunks * chunk_rows - num_rows
    inputs = [_pad_rows(x, padding) for x in inputs]
    outputs = [ops.zeros((num_rows + padding, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def body(i, total, *outputs):
        start = i * chunk_rows
        rows = [ops.slice(x, (start, *[0] * (len(x.shape) - 1)), (chunk_rows, *ops.shape(x)[1:])) for x in inputs]
        new, addition = compute(*rows)
        outputs = [
            ops.slice_update(output, (start, *[0] * (len(output.shape) - 1)), part)
            for output, part in zip(outputs, new, strict=True)
        ]
        return (i + 1, total + addition, *outputs)

    state = (ops.convert_to_tensor(0, "int32"), ops.convert_to_tensor(total, "float32"), *outputs)
    _, total, *outputs = loop_in_turn(lambda i, *_: i < num_chunks, body, state)
    return [output[:num_rows] for output in outputs], total


def _pad_rows(x, padding):
    if isinstance(padding, int) and padding == 0:
        return x
    return ops.concatenate([x, ops.zeros((padding, *ops.shape(x)[1:]), x.dtype)], axis=0)


def bag_of_words_loss(pooled_logits, token_ids, counted, target="normalized"):
    """Cross-entropy of a vocabulary distribution against the tokens of a row, whatever their order.

    Args:
        pooled_logits: float (B, V), see `max_pooled_logits`.
        token_ids: int (B, L), the unmasked tokens.
        counted: bool (B, L), True = ordinary token.
        target: "normalized": a token weighs as often as it occurs, and the weights of a row add up to 1. "reference":
            as the published code has it, every distinct token weighs 1 / (tokens of the row), however often it occurs.
    Returns: float32 (B,), nats; 0 for a row without ordinary tokens.
    Raises: ValueError for another `target`.
    Reference: Liu et al., 2022 (DupMAE), https://arxiv.org/abs/2211.08769, section 3.2.
    """
    if target not in ("normalized", "reference"):
        raise ValueError(f"`target` must be 'normalized' or 'reference'; received {target!r}.")
    logits = ops.cast(pooled_logits, "float32")
    token_ids, counted = ops.cast(token_ids, "int32"), ops.cast(counted, "bool")
    size = ops.maximum(ops.sum(ops.cast(counted, "float32"), axis=1, keepdims=True), 1.0)
    if target == "reference":
        places = ops.arange(ops.shape(token_ids)[1], dtype="int32")
        is_earlier = ops.logical_and(places[None] < places[:, None], counted[:, None])  # (B, L, earlier)
        is_same = token_ids[:, :, None] == token_ids[:, None]
        counted = ops.logical_and(counted, ops.logical_not(ops.any(ops.logical_and(is_earlier, is_same), axis=2)))
    weights = ops.cast(counted, "float32") / size
    token_logits = ops.take_along_axis(logits, token_ids, axis=1)
    return ops.sum(weights, axis=1) * ops.logsumexp(logits, axis=1) - ops.sum(weights * token_logits, axis=1)
