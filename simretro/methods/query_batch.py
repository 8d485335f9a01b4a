"""What the losses of `BiEncoder` read of a batch, at each length of the vectors."""

from collections.abc import Sequence

from keras import ops

from simretro.arguments import check_int
from simretro.losses import contrastive_loss, known_positives
from simretro.training.distribution import gather_rows


class QueryBatch:
    """The vectors of a batch, those of other replicas among them, and which of them are known to match.

    Args:
        queries: float (B, D).
        passages: float (B, G, D), each query's positive first.
        positive_keys, passage_keys: int (B, K), (B, G), see `QueryPassages`.
        symmetric: bool, see `BiEncoder`.
    """

    def __init__(self, queries, passages, positive_keys, passage_keys, symmetric: bool):
        self.queries, self.passages, self.symmetric = queries, passages, symmetric
        self.all_passages, first = gather_rows(passages)  # (N, G, D): with each query go its passages
        all_keys, _ = gather_rows(passage_keys)
        size = ops.shape(queries)[0]
        self.num_rows = ops.cast(size, "float32")
        self.rows = ops.arange(size, dtype="int32") + first
        self.known = known_positives(positive_keys, ops.reshape(all_keys, (-1,)))
        if symmetric:
            self.all_queries, _ = gather_rows(queries)
            all_positive_keys, _ = gather_rows(positive_keys)
            self.answered = ops.transpose(known_positives(all_positive_keys, passage_keys[:, 0]))  # (B, N)

    def contrastive_loss(self, size: int | None, temperature: float, similarity: str):
        """(loss, accuracy) of the first `size` numbers of the vectors, None = all; means over this replica's rows."""
        queries, passages = self.beginnings(size)
        candidates = ops.reshape(self.all_passages[..., :size], (-1, passages.shape[-1]))
        places = self.rows * passages.shape[1]
        loss, accuracy = contrastive_loss(queries, candidates, temperature, places, self.known, similarity)
        if self.symmetric:
            candidates = self.all_queries[:, :size]
            own = passages[:, 0]
            back, _ = contrastive_loss(own, candidates, temperature, self.rows, self.answered, similarity)
            loss = (loss + back) / 2
        return loss, accuracy

    def beginnings(self, size: int | None):
        """The first `size` numbers, None = all, of (queries, passages) of this replica."""
        return self.queries[:, :size], self.passages[..., :size]


def checked_sizes(
    width: int, sizes: Sequence[int] | None, weights: Sequence[float] | None
) -> tuple[list[int] | None, list[float] | None]:
    """`matryoshka_sizes` and `matryoshka_weights` as lists, which is what JSON gives back; (None, None) without sizes.

    Args:
        width: int, length of the whole vectors.
        sizes, weights: see `BiEncoder`.
    Raises: ValueError for sizes or weights that are out of range, naming the argument.
    """
    if sizes is None:
        if weights is not None:
            raise ValueError(f"`matryoshka_weights` need `matryoshka_sizes`; received {weights} without them.")
        return None, None
    sizes = [check_int("matryoshka_sizes", size, 1) for size in sizes]
    if not sizes or len({*sizes}) != len(sizes) or max(sizes) >= width:
        raise ValueError(
            f"`matryoshka_sizes` must be different sizes below {width}, that of the whole vectors, which always count; "
            f"received {sizes}."
        )
    weights = [1.0] * len(sizes) if weights is None else [float(weight) for weight in weights]
    if len(weights) != len(sizes) or not all(0 <= weight < float("inf") for weight in weights):
        raise ValueError(
            f"`matryoshka_weights` must be {len(sizes)} numbers of at least 0, one for each of `matryoshka_sizes`; "
            f"received {weights}."
        )
    return sizes, weights
