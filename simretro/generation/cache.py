"""Keys and values of a UniLM, kept from step to step: the source once, then one token a step for every sample."""

from typing import Any

from keras import ops

from simretro.models import Transformer

Tensor = Any  # of the backend
Caches = list[tuple[Tensor, Tensor]]  # keys and values of each block


class TargetDecoder:
    """Several targets of each source, decoded side by side: R = B * rows, those of a source one behind the other.

    Args:
        model: `Transformer`.
        token_ids: int32 (B, S), the sources, right padded.
        lengths: int32 (B,), their tokens.
        allowed: int32 (B,), most tokens of a target of each source.
        rows: int, targets of each source.
        max_new_tokens: int, the largest of `allowed`, or more.
    Attributes:
        first_logits: float32 (R, V), of the first token of each target.
        caches: keys and values of the sources, for the first call of `feed`.
        allowed: int32 (R,).
    """

    def __init__(
        self, model: Transformer, token_ids: Tensor, lengths: Tensor, allowed: Tensor, rows: int, max_new_tokens: int
    ):
        self.model, self.source_length = model, ops.shape(token_ids)[1]
        padding_mask = ops.arange(self.source_length, dtype="int32")[None] < lengths[:, None]
        num_slots = self.source_length + max_new_tokens - 1  # the last token is not fed
        hidden, caches = prefill(model, token_ids, padding_mask, num_slots)
        self.first_logits = ops.repeat(next_logits(model, hidden), rows, axis=0)
        self.caches = [tuple(ops.repeat(x, rows, axis=0) for x in cache) for cache in caches]
        self.allowed = ops.repeat(allowed, rows, axis=0)
        self._lengths = ops.repeat(lengths, rows, axis=0)
        self._source_visible = ops.repeat(padding_mask, rows, axis=0)
        self._slots = ops.arange(max_new_tokens - 1, dtype="int32")[None]

    def feed(self, t: Tensor, last: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
        """Feeds token t - 1 of each target.

        Args:
            t: int32 scalar >= 1.
            last: int32 (R,), these tokens.
            caches: of the tokens before.
        Returns: (logits of token t, float32 (R, V), new caches).
        """
        fed = t - 1
        target_visible = ops.broadcast_to(self._slots <= fed, (ops.shape(last)[0], ops.shape(self._slots)[1]))
        visible = ops.concatenate([self._source_visible, target_visible], axis=1)
        # A finished row goes on being computed; its position stays within the table.
        positions = self._lengths + ops.minimum(fed, self.allowed - 1)
        hidden, caches = step(self.model, last, positions, caches, self.source_length + fed, visible)
        return next_logits(self.model, hidden), caches


def prefill(
    model: Transformer, token_ids: Tensor, padding_mask: Tensor, num_slots: int
) -> tuple[Tensor, Caches]:  # fmt: skip
    """Runs the sources through the model.

    Args:
        model: `Transformer`.
        token_ids: int32 (B, S), right padded.
        padding_mask: bool (B, S).
        num_slots: int >= S, slots of the cache: the source takes the first S, the rest is zero.
    Returns: (hidden states at each source's last token (B, H), caches: list of (keys, values), each
        (B, heads, num_slots, D)).
    """
    batch, length = ops.shape(token_ids)
    config = model.config
    heads = config["num_attention_heads"]
    shape = (batch, heads, num_slots, config["hidden_size"] // heads)
    # Queries are at the source, keys in all slots: slots behind the source are hidden.
    visible = ops.concatenate([padding_mask, ops.zeros((batch, num_slots - length), "bool")], axis=1)
    x = model.embeddings(token_ids)
    caches = []
    for block in model.blocks:
        empty = ops.zeros(shape, x.dtype)
        x, cache = block(x, attention_mask=visible[:, None, None], cache=(empty, empty), cache_index=0)
        caches.append(cache)
    last = ops.sum(ops.cast(padding_mask, "int32"), axis=1) - 1
    flat = ops.reshape(x, (-1, x.shape[-1]))
    return ops.take(flat, ops.arange(batch, dtype="int32") * length + last, axis=0), caches


def step(
    model: Transformer, token_ids: Tensor, positions: Tensor, caches: Caches, slot: Tensor, visible: Tensor
) -> tuple[Tensor, Caches]:
    """Feeds one target token per row.

    Args:
        model: `Transformer`.
        token_ids: int32 (R,).
        positions: int32 (R,), the tokens' positions in source + target.
        caches: as from `prefill`, with R rows.
        slot: int scalar, where the tokens' keys and values go.
        visible: bool (R, num_slots), the slots that the tokens see, their own among them.
    Returns: (hidden states (R, H), new caches).
    """
    positions = positions[:, None]
    x = model.embeddings(token_ids[:, None], ops.ones_like(positions), positions)
    new_caches = []
    for block, cache in zip(model.blocks, caches, strict=True):
        x, cache = block(x, attention_mask=visible[:, None, None], positions=positions, cache=cache, cache_index=slot)
        new_caches.append(cache)
    return x[:, 0], new_caches


def next_logits(model: Transformer, hidden: Tensor) -> Tensor:
    """Vocabulary logits float32 (R, V) of hidden states (R, H)."""
    return model.mlm_head(hidden, model.token_table)
