"""Losses that hand a teacher's judgement of passages on to a retriever."""

from keras import ops

from simretro.losses.scores import HIDDEN_SCORE, comparable


def group_scores(queries, passages, temperature=1.0, similarity="cosine"):
    """Scores of each query with the passages of its own group: `similarity(q_i, p_ij) / temperature`.

    Args:
        queries: float (Q, D), of any precision.
        passages: float (Q, G, D).
        temperature: float > 0.
        similarity: "cosine", or "dot" = the vectors as they are.
    Returns: float32 (Q, G).
    Raises: ValueError for another `similarity`.
    """
    queries, passages = comparable(similarity, queries, passages)
    return ops.matmul(passages, queries[:, :, None])[:, :, 0] / temperature


def distillation_loss(scores, teacher_scores, kind="kl", teacher_temperature=1.0, normalizer=None):
    """How far a student's scores of some passages are from its teacher's.

    With student scores s and teacher scores t / `teacher_temperature`, over the passages of a query that have a
    teacher score:

    - "kl": `KL(softmax(t) || softmax(s))`, the mean over the queries with at least two such passages. Both sides have a
      temperature; the student's is within its scores. No factor makes up for them.
    - "margin_mse": `((s_0 - s_j) - (t_0 - t_j))^2`, the mean over all passages j behind the first, which is the
      positive and needs a teacher score, too.

    Args:
        scores: float (Q, G), the positive first, see `group_scores`.
        teacher_scores: float (Q, G); NaN = none, the place does not count. They carry no gradient.
        kind: "kl" or "margin_mse".
        teacher_temperature: float > 0.
        normalizer: scalar that the summed losses are divided by; None = `count_distilled(teacher_scores, kind)`, at
            least 1. Give that of the whole batch where `scores` are only a part of it.
    Returns: float32 scalar, nats for "kl".
    Raises: ValueError for another `kind`.
    Reference: "kl": Hinton et al., 2015, https://arxiv.org/abs/1503.02531; "margin_mse": Hofstätter et al., 2020,
        https://arxiv.org/abs/2010.02666
    """
    known = _counted(teacher_scores, kind)
    scores = ops.cast(scores, "float32")
    teacher = ops.cast(teacher_scores, "float32")
    # Before anything is computed from it: a NaN that is left out later still has a gradient of NaN.
    teacher = ops.stop_gradient(ops.where(ops.isnan(teacher), 0.0, teacher)) / teacher_temperature
    if kind == "kl":
        log_student, log_teacher = (_log_softmax(ops.where(known, x, HIDDEN_SCORE)) for x in (scores, teacher))
        summed = ops.sum(ops.where(known, ops.exp(log_teacher) * (log_teacher - log_student), 0.0))
    else:
        margins = (scores[:, :1] - scores) - (teacher[:, :1] - teacher)
        summed = ops.sum(ops.where(known, ops.square(margins), 0.0))
    if normalizer is None:
        normalizer = ops.maximum(count_distilled(teacher_scores, kind), 1.0)
    return summed / ops.cast(normalizer, "float32")


def count_distilled(teacher_scores, kind="kl"):
    """What `distillation_loss` is a mean over: queries for "kl", negatives for "margin_mse"; float32 scalar."""
    known = _counted(teacher_scores, kind)
    return ops.sum(ops.cast(ops.any(known, axis=1) if kind == "kl" else known, "float32"))


def _counted(teacher_scores, kind):
    """The places that the loss reads, bool (Q, G)."""
    if kind not in ("kl", "margin_mse"):
        raise ValueError(f"`kind` must be 'kl' or 'margin_mse'; received {kind!r}.")
    known = ops.logical_not(ops.isnan(ops.cast(teacher_scores, "float32")))
    if kind == "kl":
        # One passage alone has the probability 1 on either side.
        return ops.logical_and(known, ops.sum(ops.cast(known, "int32"), axis=1, keepdims=True) > 1)
    is_negative = ops.arange(ops.shape(known)[1], dtype="int32")[None] > 0
    return ops.logical_and(ops.logical_and(known, known[:, :1]), is_negative)


def _log_softmax(x):
    return x - ops.logsumexp(x, axis=1, keepdims=True)
