"""Losses: tensors in, scalars out; no variables, no model. All are computed in float32 and run on every backend."""

from keras import ops

from simretro.ops import unit_vectors

# Far below any score, and finite in float32, where it is applied.
_HIDDEN_SCORE = -1e9


def in_batch_similarity_loss(sentence_vectors, temperature=1 / 30, all_vectors=None, row_offset=0):
    """SimBERT's similarity loss: which of the other rows of the batch is this row's partner?

    Rows `2i` and `2i + 1` are a pair. `scores = cos(v_k, v_j) / temperature` without `j = k`, and the loss of row k is
    `-log softmax(scores_k)[k XOR 1]`; every row that is not the partner counts as a negative.

    Args:
        sentence_vectors: float (R, H), of any precision and length; they are normalised here.
        temperature: float > 0; SimBERT's scale 30 is temperature 1/30.
        all_vectors: float (N, H), the rows of the whole batch where `sentence_vectors` is one replica's part of it;
            None = `sentence_vectors` itself.
        row_offset: int, index of `sentence_vectors[0]` within `all_vectors`.
    Returns: (loss, accuracy), float32 scalars: means over the R rows.
    Raises: ValueError if the number of rows is known to be odd.
    Reference: Su, 2020, https://kexue.fm/archives/7427
    """
    all_vectors = sentence_vectors if all_vectors is None else all_vectors
    if isinstance(all_vectors.shape[0], int) and all_vectors.shape[0] % 2:
        raise ValueError(
            "`sentence_vectors` must have an even number of rows, two for each pair; "
            f"received shape {tuple(all_vectors.shape)}."
        )
    candidates = unit_vectors(all_vectors)
    scores = ops.matmul(unit_vectors(sentence_vectors), ops.transpose(candidates)) / temperature  # (R, N)
    rows = ops.arange(ops.shape(scores)[0], dtype="int32") + row_offset
    columns = ops.arange(ops.shape(scores)[1], dtype="int32")
    scores = ops.where(rows[:, None] == columns[None], _HIDDEN_SCORE, scores)
    partners = rows + 1 - 2 * (rows % 2)  # row XOR 1
    is_partner = partners[:, None] == columns[None]
    partner_scores = ops.sum(ops.where(is_partner, scores, 0.0), axis=1)
    losses = ops.logsumexp(scores, axis=1) - partner_scores
    # A tie is no hit: vectors that are all the same tell nobody apart.
    best_other = ops.max(ops.where(is_partner, _HIDDEN_SCORE, scores), axis=1, initial=_HIDDEN_SCORE)
    correct = ops.cast(partner_scores > best_other, "float32")
    count = ops.maximum(ops.cast(ops.shape(losses)[0], "float32"), 1.0)  # a replica may have got no rows
    return ops.sum(losses) / count, ops.sum(correct) / count


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

    arguments = tuple(ops.convert_to_tensor(x) for x in (hidden, table, bias))
    if training:
        totals = ops.custom_gradient(totals_and_gradient)(*arguments)
    else:
        totals, _ = _fused_cross_entropy(*arguments, labels, counted, chunk_size, with_gradient=False)
    return totals[0] / ops.cast(normalizer, "float32"), ops.stop_gradient(totals[1])


def _fused_cross_entropy(hidden, table, bias, labels, counted, chunk_size, with_gradient=True):
    """Returns ([summed loss, number correct], gradients of the summed loss by hidden, table and bias)."""
    num_rows, width = ops.shape(hidden)
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

    state = (
        ops.convert_to_tensor(0, "int32"),
        ops.zeros((2,), "float32"),
        ops.zeros(ops.shape(rows) if with_gradient else (1, 1), "float32"),
        ops.zeros(ops.shape(table) if with_gradient else (1, 1), "float32"),
        ops.zeros_like(bias),
    )
    _, totals, d_rows, d_table, d_bias = ops.while_loop(lambda i, *_: i < num_chunks, body, state)
    if not with_gradient:
        return totals, None
    # The gradient by a logit is softmax - one_hot(label); the second part touches one row of the table per label.
    d_rows = d_rows - ops.cast(ops.take(matrix, targets, axis=0), "float32") * weights[:, None]
    weighted = ops.cast(rows, "float32") * weights[:, None]
    d_table = d_table - ops.segment_sum(weighted, targets, num_segments=table.shape[0])
    d_bias = d_bias - ops.segment_sum(weights, targets, num_segments=table.shape[0])
    return totals, (ops.cast(d_rows[:num_rows], hidden.dtype), ops.cast(d_table, table.dtype), d_bias)


def _pad_rows(x, padding):
    if isinstance(padding, int) and padding == 0:
        return x
    return ops.concatenate([x, ops.zeros((padding, *x.shape[1:]), x.dtype)], axis=0)
