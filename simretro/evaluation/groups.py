"""Retrieval within groups of paraphrases, where sharing characters is not enough."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from simretro.evaluation.rows import is_sparse, text_list, unit_rows

_SCORES_PER_BLOCK = 1 << 22  # float32, 16 MB
# Cosines closer than this are equal: float32 products of the same vectors differ so much between machines.
_TIE = 1e-6


@dataclass(frozen=True)
class GroupRetrieval:
    """Result of `group_retrieval`.

    Attributes:
        recall_at_1, recall_at_5: float, share of the counted queries whose first positive has at most this rank.
        mrr: float, mean of 1 / rank of the first positive, over all ranks.
        num_queries: int, queries counted: those that have a positive.
        num_skipped: int, texts that have none and are no query; as candidates they stay.
        query_ids: int64 (num_queries,), place of each counted query among the texts.
        ranks: int64 (num_queries,), rank of its first positive, from 1. For intervals, e.g.
            `bootstrap_interval(np.mean, result.ranks == 1)`.
    All three numbers are NaN where no query is counted.
    """

    recall_at_1: float
    recall_at_5: float
    mrr: float
    num_queries: int
    num_skipped: int
    query_ids: np.ndarray
    ranks: np.ndarray


def group_retrieval(
    vectors, group_ids: Sequence[Hashable], texts: Sequence[str], max_overlap: float = 0.5, ties: str = "pessimistic"
) -> GroupRetrieval:  # fmt: skip
    """Each text in turn looks for a member of its own group among all the other texts, by cosine.

    A member counts as a positive if it holds at most `max_overlap` of the query's character bigrams (`bigram_overlap`).
    Members that hold more are taken out of the query's candidates: they neither count nor compete. So is the query
    itself, and so is every text of another group that also stands, letter by letter, in the query's group: no encoder
    can tell the two apart. Further positives do not compete with the first one.

    Args:
        vectors: numbers (N, d), or a SciPy sparse matrix; normalised here. A zero vector has the cosine 0 with all.
        group_ids: N hashables.
        texts: N strings.
        max_overlap: float in [0, 1]; 1 counts every member of the group.
        ties: "pessimistic" = a competitor with the cosine of the positive (up to 1e-6) is ahead of it, so a model that
            maps all texts to one vector gets nothing; "optimistic" = it is behind.
    Returns: a `GroupRetrieval`. A permutation of the texts changes nothing but the order of its arrays.
    Raises: TypeError for one str as texts; ValueError for different lengths, a value out of range or vectors that are
        not finite.
    """
    texts, group_ids = text_list(texts), list(group_ids)
    if len(texts) != len(group_ids):
        raise ValueError(f"`group_ids` must be as many as `texts`; received {len(group_ids)} ids, {len(texts)} texts.")
    if not 0 <= max_overlap <= 1:
        raise ValueError(f"`max_overlap` must lie in [0, 1]; received {max_overlap}.")
    if ties not in ("pessimistic", "optimistic"):
        raise ValueError(f'`ties` must be "pessimistic" or "optimistic"; received {ties!r}.')
    vectors = unit_rows(vectors, len(texts))
    members, related = _members_and_related(group_ids, texts)
    positives = _positives(group_ids, texts, members, max_overlap)
    query_ids = np.array(sorted(positives), "int64")
    ranks = np.empty(len(query_ids), "int64")
    step = max(1, _SCORES_PER_BLOCK // max(1, len(texts)))
    for start in range(0, len(query_ids), step):
        chosen = query_ids[start : start + step]
        scores = _similarities(vectors, chosen)
        best = np.empty(len(chosen), "float32")
        for row, query in enumerate(chosen.tolist()):
            best[row] = scores[row, positives[query]].max()
            scores[row, related[group_ids[query]]] = -np.inf  # these do not compete
        ahead = scores >= (best - _TIE)[:, None] if ties == "pessimistic" else scores > (best + _TIE)[:, None]
        ranks[start : start + step] = 1 + np.count_nonzero(ahead, axis=1)

    def mean(values):
        return float(np.mean(values)) if len(values) else float("nan")

    return GroupRetrieval(
        recall_at_1=mean(ranks <= 1), recall_at_5=mean(ranks <= 5), mrr=mean(1 / ranks),
        num_queries=len(ranks), num_skipped=len(texts) - len(ranks), query_ids=query_ids, ranks=ranks,
    )  # fmt: skip


def bigram_overlap(query: str, other: str) -> float:
    """Share of the query's distinct character bigrams that the other text holds too, in [0, 1].

    Case is ignored, white space counts as a character. The one bigram of a text of one character is that character;
    an empty query shares all it has: 1.0.
    """
    return _share(_bigrams(query), _bigrams(other))


def _bigrams(text):
    text = text.casefold()
    return {text[i : i + 2] for i in range(max(1, len(text) - 1))} if text else set()


def _share(bigrams, others):
    return len(bigrams & others) / len(bigrams) if bigrams else 1.0


def _members_and_related(group_ids, texts):
    """For each group its members, and these with all texts elsewhere that equal one of them; arrays of places."""
    members, same_text = {}, {}
    for place, (group, text) in enumerate(zip(group_ids, texts, strict=True)):
        members.setdefault(group, []).append(place)
        same_text.setdefault(text, []).append(place)
    related = {
        group: np.array([p for text in {texts[place] for place in places} for p in same_text[text]], "int64")
        for group, places in members.items()
    }
    return members, related


def _positives(group_ids, texts, members, max_overlap):
    """For each text with positives the places of these."""
    bigrams = [_bigrams(text) for text in texts]
    positives = {}
    for query, group in enumerate(group_ids):
        found = [
            other
            for other in members[group]
            if other != query and _share(bigrams[query], bigrams[other]) <= max_overlap
        ]
        if found:
            positives[query] = found
    return positives


def _similarities(vectors, chosen):
    """float32 (len(chosen), N), a new array."""
    if is_sparse(vectors):
        return (vectors[chosen] @ vectors.T).toarray()
    return vectors[chosen] @ vectors.T
