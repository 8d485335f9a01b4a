"""Losses: tensors in, scalars out; no variables, no model. All are computed in float32 and run on every backend."""

from keras import ops

from simretro.ops import as_tensor, unit_vectors

# Far below any score, and finite in float32, where it is applied.
_HIDDEN_SCORE = -1e9
_KEYS_AT_A_TIME = 8


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
    rows = ops.arange(ops.shape(sentence_vectors)[0], dtype="int32") + row_offset
    is_itself = rows[:, None] == ops.arange(ops.shape(all_vectors)[0], dtype="int32")[None]
    partners = rows + 1 - 2 * (rows % 2)  # row XOR 1
    return contrastive_loss(sentence_vectors, all_vectors, temperature, partners, is_itself)


def contrastive_loss(queries, passages, temperature=0.05, positives=None, left_out=None, similarity="cosine"):
    """InfoNCE: which of all these passages belongs to the query?

    `scores = similarity(q_i, p_j) / temperature`, and the loss of query i is `-log softmax(scores_i)[positives[i]]`
    over the passages that are not left out for it. All but its positive count as negatives.

    For the other direction, which of the queries belongs to the passage, give the positive passages as `queries` and
    the queries as `passages`.

    Args:
        queries: float (Q, D), of any precision.
        passages: float (P, D); those of the whole batch where `queries` are one replica's part of it.
        temperature: float > 0.
        positives: int (Q,), the row of each query's positive in `passages`. None: passages come in groups of P / Q, a
            query's positive first and its hard negatives behind it, so row `i * P / Q`. A replica, whose first query
            has number `o` in the whole batch of groups of `g`, must give `g * (o + i)`.
        left_out: bool (Q, P), True where a passage is no negative of a query, though not its positive either, see
            `known_positives`. The positive always counts. None: nothing is left out.
        similarity: "cosine", or "dot" = the vectors as they are.
    Returns: (loss, accuracy), float32 scalars: means over the Q queries; 0 for none. A tie is no hit.
    Raises: ValueError for another `similarity`, or if groups are known not to fit.
    Reference: van den Oord et al., 2018, https://arxiv.org/abs/1807.03748; with hard negatives Karpukhin et al., 2020,
        https://arxiv.org/abs/2004.04906.
    """
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"`similarity` must be 'cosine' or 'dot'; received {similarity!r}.")
    num_queries, num_passages = ops.shape(queries)[0], ops.shape(passages)[0]
    if positives is None:
        positives = ops.arange(num_queries, dtype="int32") * _group_size(num_queries, num_passages)
    queries, passages = ops.cast(queries, "float32"), ops.cast(passages, "float32")
    if similarity == "cosine":
        queries, passages = unit_vectors(queries), unit_vectors(passages)
    scores = ops.matmul(queries, ops.transpose(passages)) / temperature  # (Q, P)
    is_positive = ops.cast(positives, "int32")[:, None] == ops.arange(num_passages, dtype="int32")[None]
    if left_out is not None:
        scores = ops.where(ops.logical_and(left_out, ops.logical_not(is_positive)), _HIDDEN_SCORE, scores)
    positive_scores = ops.sum(ops.where(is_positive, scores, 0.0), axis=1)
    losses = ops.logsumexp(scores, axis=1) - positive_scores
    # A tie is no hit: vectors that are all the same tell nobody apart.
    best_other = ops.max(ops.where(is_positive, _HIDDEN_SCORE, scores), axis=1, initial=_HIDDEN_SCORE)
    correct = ops.cast(positive_scores > best_other, "float32")
    count = ops.maximum(ops.cast(ops.shape(losses)[0], "float32"), 1.0)  # a replica may have got no rows
    return ops.sum(losses) / count, ops.sum(correct) / count


def known_positives(positive_keys, passage_keys):
    """Which passages of a batch are positives of which queries, or are none at all: no query's negatives.

    Texts that are equal, by id or by content, have one key, so that it does not matter where a passage comes from.

    Args:
        positive_keys: int (Q, K), the keys of each query's positives, padded with -1.
        passage_keys: int (P,); negative = an empty place, of which there is no text.
    Returns: bool (Q, P); True also at a query's own positive.
    """
    positive_keys, passage_keys = ops.cast(positive_keys, "int32"), ops.cast(passage_keys, "int32")
    known = (passage_keys < 0)[None]
    width = positive_keys.shape[1]
    step = _KEYS_AT_A_TIME if isinstance(width, int) else None
    for start in range(0, width, step) if step else (0,):  # part by part, so that there is no (Q, P, K)
        part = positive_keys[:, start : start + step] if step else positive_keys
        known = ops.logical_or(known, ops.any(part[:, None] == passage_keys[None, :, None], axis=2))
    return known


def _group_size(num_queries, num_passages):
    if not isinstance(num_queries, int) or not isinstance(num_passages, int):
        return num_passages // ops.maximum(num_queries, 1)
    if num_passages % max(num_queries, 1):
        raise ValueError(
            f"`passages` must come in groups of one size, one for each of the {num_queries} `queries`, unless "
            f"`positives` is given; received {num_passages} passages."
        )
    return num_passages // max(num_queries, 1)


def context_pairs(rows, all_rows=None, row_offset=0, window_sentences=2, mask_same_document=True, negatives="all"):
    """Which sentences of a batch are a sentence's context, and which it is told apart from.

    Context are the sentences of the same document at most `window_sentences` away, from whichever pair of the batch
    they are. The same sentence in another row, known by its place or by its key, is neither context nor negative. Nor
    is a sentence of another language.

    Args:
        rows: dict of int (R,) arrays: `document_ids` (unique over languages), `sentence_positions`, `language_ids`,
            `sides` (0 centre, 1 context, negative = a row that takes no part) and, where known, `sentence_keys`
            (equal for equal texts, negative = unknown).
        all_rows: dict of int (N,) arrays, those of the whole batch where `rows` are one replica's; None = `rows`.
        row_offset: int, index of the first of `rows` within `all_rows`.
        window_sentences: int >= 1.
        mask_same_document: bool; True: a sentence of the same document beyond the window is no negative either.
        negatives: "all": a row is compared with all others, as in the paper; "cross": with those of the other side
            alone, which never have the mode of batch normalization that it has.
    Returns: (positives, visible), bool (R, N): context; all that it is compared with, context included.
    Raises: ValueError for other `negatives`.
    Reference: Wu et al., 2022 (CCP), algorithm 1.
    """
    if negatives not in ("all", "cross"):
        raise ValueError(f"`negatives` must be 'all' or 'cross'; received {negatives!r}.")
    all_rows = rows if all_rows is None else all_rows
    columns = {name: ops.cast(values, "int32")[None] for name, values in all_rows.items()}
    rows = {name: ops.cast(values, "int32")[:, None] for name, values in rows.items()}

    def equal(name):
        return rows[name] == columns[name]

    def both(*conditions):
        return ops.all(ops.stack(conditions), axis=0)

    num_rows, num_columns = ops.shape(rows["sides"])[0], ops.shape(columns["sides"])[1]
    numbers = ops.arange(num_rows, dtype="int32")[:, None] + row_offset
    takes_part = ops.logical_and(rows["sides"] >= 0, columns["sides"] >= 0)
    is_other = numbers != ops.arange(num_columns, dtype="int32")[None]
    distance = ops.abs(rows["sentence_positions"] - columns["sentence_positions"])
    same_document = equal("document_ids")
    repeated = ops.logical_and(same_document, distance == 0)
    if "sentence_keys" in rows:
        repeated = ops.logical_or(repeated, ops.logical_and(equal("sentence_keys"), rows["sentence_keys"] >= 0))
    visible = both(takes_part, is_other, equal("language_ids"), ops.logical_not(repeated))
    if negatives == "cross":
        visible = ops.logical_and(visible, ops.logical_not(equal("sides")))
    positives = both(visible, same_document, distance <= window_sentences)
    if mask_same_document:
        visible = ops.logical_and(visible, ops.logical_or(positives, ops.logical_not(same_document)))
    return positives, visible


def context_loss(
    anchors,
    candidates,
    positives,
    visible,
    temperature=0.1,
    bank_vectors=None,
    bank_visible=None,
    exclude_positives=False,
    similarity="cosine",
    normalizer=None,
):
    """Contrastive context prediction: which of all these sentences stands next to this one?

    For an anchor c and each of its positives i, `-log softmax(scores_c)[i]`, where
    `scores = similarity(c, k) / temperature` over the candidates and the bank's vectors that c sees; the mean over all
    such pairs. An anchor without a positive adds nothing.

    Args:
        anchors: float (R, D), of any precision.
        candidates: float (N, D), the rows of the whole batch; the anchors are among them.
        positives: bool (R, N), see `context_pairs`.
        visible: bool (R, N), candidates that an anchor is compared with. Itself is not; a positive always is.
        temperature: float > 0.
        bank_vectors: float (K, D), vectors of former batches, all of them negatives; None = no bank. They are taken as
            they are, so for "cosine" they must have length 1, as a `MemoryBank` stores them.
        bank_visible: bool (R, K), those that an anchor is compared with; None = all.
        exclude_positives: bool. False, the paper: a positive is told apart from the others, too. True: from negatives
            only.
        similarity: "cosine", or "dot" = the vectors as they are.
        normalizer: scalar that the summed losses are divided by; None = the number of positive pairs, at least 1. Give
            that of the whole batch where the anchors are only a part of it.
    Returns: (loss, accuracy), float32 scalars; accuracy: share of the pairs whose positive is closer than every
        negative of the anchor. A tie is no hit.
    Raises: ValueError for another `similarity`.
    Reference: Wu et al., 2022 (CCP), algorithm 1; several positives as in Khosla et al., 2020,
        https://arxiv.org/abs/2004.11362, eq. 2.
    """
    if similarity not in ("cosine", "dot"):
        raise ValueError(f"`similarity` must be 'cosine' or 'dot'; received {similarity!r}.")

    anchors, candidates = ops.cast(anchors, "float32"), ops.cast(candidates, "float32")
    if similarity == "cosine":
        anchors, candidates = unit_vectors(anchors), unit_vectors(candidates)
    scores = ops.matmul(anchors, ops.transpose(candidates)) / temperature  # (R, N)
    is_negative = ops.logical_and(visible, ops.logical_not(positives))
    negative_scores = ops.where(is_negative, scores, _HIDDEN_SCORE)
    if bank_vectors is not None:
        bank_vectors = ops.stop_gradient(ops.cast(bank_vectors, "float32"))
        bank_scores = ops.matmul(anchors, ops.transpose(bank_vectors)) / temperature  # (R, K)
        if bank_visible is not None:
            bank_scores = ops.where(bank_visible, bank_scores, _HIDDEN_SCORE)
        negative_scores = ops.concatenate([negative_scores, bank_scores], axis=1)
    rest = ops.logsumexp(negative_scores, axis=1, keepdims=True)  # (R, 1)
    positive_scores = ops.where(positives, scores, _HIDDEN_SCORE)
    if exclude_positives:
        losses = ops.softplus(ops.where(positives, rest - scores, _HIDDEN_SCORE))
    else:
        losses = ops.logsumexp(ops.concatenate([rest, positive_scores], axis=1), axis=1, keepdims=True) - scores
    weights = ops.cast(positives, "float32")
    count = ops.maximum(ops.sum(weights), 1.0)
    hits = positive_scores > ops.max(negative_scores, axis=1, keepdims=True, initial=_HIDDEN_SCORE)
    accuracy = ops.sum(ops.cast(hits, "float32") * weights) / count
    return ops.sum(losses * weights) / ops.cast(count if normalizer is None else normalizer, "float32"), accuracy


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
        logits = ops.where(counted[:, :, None], logits, _HIDDEN_SCORE)
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
    _, total, *outputs = ops.while_loop(lambda i, *_: i < num_chunks, body, state)
    return [output[:num_rows] for output in outputs], total


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
