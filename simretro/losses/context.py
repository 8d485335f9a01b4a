"""The loss of contrastive context prediction: which sentences stand near this one?"""

from keras import ops

from simretro.losses.scores import HIDDEN_SCORE, comparable


def context_pairs(rows, all_rows=None, row_offset=0, window_sentences=2, mask_same_document=True, negatives="all"):
    """Which sentences of a batch are a sentence's context, and which it is told apart from.

    Context are the sentences of the same document at most `window_sentences` away, from whichever pair of the batch
    they are. The same sentence in another row, known by its place or by its key, is neither context nor negative. Nor
    is a sentence of another language. A text that is in the context is no negative where it stands elsewhere.

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
    if "sentence_keys" in rows:
        in_context = _columns_with_text_of(positives, columns["sentence_keys"][0])
        visible = ops.logical_and(visible, ops.logical_or(positives, ops.logical_not(in_context)))
    if mask_same_document:
        visible = ops.logical_and(visible, ops.logical_or(positives, ops.logical_not(same_document)))
    return positives, visible


def _columns_with_text_of(chosen, keys):
    """bool (R, N): the columns with the key of one that is `chosen`, bool (R, N), in the row; `keys` int (N,)."""
    places = ops.arange(ops.shape(keys)[0], dtype="int32")
    same = ops.logical_and(keys[:, None] == keys[None], (keys >= 0)[:, None])
    first = ops.where(keys >= 0, ops.cast(ops.argmax(same, axis=1), "int32"), places)  # stands for all with its key
    counts = ops.segment_sum(ops.transpose(ops.cast(chosen, "float32")), first, num_segments=ops.shape(keys)[0])
    return ops.transpose(ops.take(counts, first, axis=0)) > 0


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
    anchors, candidates = comparable(similarity, anchors, candidates)
    scores = ops.matmul(anchors, ops.transpose(candidates)) / temperature  # (R, N)
    is_negative = ops.logical_and(visible, ops.logical_not(positives))
    negatives = [ops.where(is_negative, scores, HIDDEN_SCORE)]
    if bank_vectors is not None:
        bank_vectors = ops.stop_gradient(ops.cast(bank_vectors, "float32"))
        bank_scores = ops.matmul(anchors, ops.transpose(bank_vectors)) / temperature  # (R, K)
        if bank_visible is not None:
            bank_scores = ops.where(bank_visible, bank_scores, HIDDEN_SCORE)
        negatives.append(bank_scores)
    # Summed in two steps: a bank is far wider than a batch, and would be copied to stand beside it.
    rest = ops.logsumexp(ops.stack([ops.logsumexp(part, axis=1) for part in negatives], axis=1), axis=1, keepdims=True)
    best = ops.stack([ops.max(part, axis=1, initial=HIDDEN_SCORE) for part in negatives], axis=1)
    positive_scores = ops.where(positives, scores, HIDDEN_SCORE)
    if exclude_positives:
        losses = ops.softplus(ops.where(positives, rest - scores, HIDDEN_SCORE))
    else:
        losses = ops.logsumexp(ops.concatenate([rest, positive_scores], axis=1), axis=1, keepdims=True) - scores
    weights = ops.cast(positives, "float32")
    count = ops.maximum(ops.sum(weights), 1.0)
    hits = positive_scores > ops.max(best, axis=1, keepdims=True, initial=HIDDEN_SCORE)
    accuracy = ops.sum(ops.cast(hits, "float32") * weights) / count
    return ops.sum(losses * weights) / ops.cast(count if normalizer is None else normalizer, "float32"), accuracy
