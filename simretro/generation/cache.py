"""Keys and values of a UniLM, kept from step to step: the source once, then one token a step for every sample."""

from keras import ops


def prefill(model, token_ids, padding_mask, num_slots):
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


def step(model, token_ids, positions, caches, slot, visible):
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


def next_logits(model, hidden):
    """Vocabulary logits float32 (R, V) of hidden states (R, H)."""
    return model.mlm_head(hidden, model.token_table)
