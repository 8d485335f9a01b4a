"""Losses of sentence vectors: which other one belongs to this one?"""

from keras import ops

from simretro.losses.scores import HIDDEN_SCORE, comparable

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
    queries, passages = comparable(similarity, queries, passages)
    num_queries, num_passages = ops.shape(queries)[0], ops.shape(passages)[0]
    if positives is None:
        positives = ops.arange(num_queries, dtype="int32") * _group_size(num_queries, num_passages)
    scores = ops.matmul(queries, ops.transpose(passages)) / temperature  # (Q, P)
    is_positive = ops.cast(positives, "int32")[:, None] == ops.arange(num_passages, dtype="int32")[None]
    if left_out is not None:
        scores = ops.where(ops.logical_and(left_out, ops.logical_not(is_positive)), HIDDEN_SCORE, scores)
    positive_scores = ops.sum(ops.where(is_positive, scores, 0.0), axis=1)
    losses = ops.logsumexp(scores, axis=1) - positive_scores
    # A tie is no hit: vectors that are all the same tell nobody apart.
    best_other = ops.max(ops.where(is_positive, HIDDEN_SCORE, scores), axis=1, initial=HIDDEN_SCORE)
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
