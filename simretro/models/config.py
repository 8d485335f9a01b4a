"""What follows from a configuration."""

from simretro.arguments import check_int

_MOST_PADDED_ROWS = 127


def max_tokens(config: dict) -> int | None:
    """Longest sequence that the position table of a normalised config allows; None = no limit (rotary)."""
    if config["position_embedding_type"] == "rotary":
        return None
    return config["max_position_embeddings"] - config["position_offset"]


def check_maxlen(config: dict, maxlen: int | None, name: str = "maxlen") -> None:
    """Raises ValueError for no int, or if texts so long are longer than the position table; None is always fine."""
    limit = max_tokens(config)
    if maxlen is not None:
        check_int(name, maxlen, 1)
    if maxlen is not None and limit is not None and maxlen > limit:
        raise ValueError(f"`{name}` must be at most {limit}, the positions of the encoder; received {maxlen}.")


def fitted_to(config: dict, tokenizer) -> dict:
    """The config of an encoder that was read with its tokenizer.

    Where no position depends on the pad id, as in BERT, the tokenizer's counts: BERTs with the vocabulary of XLM-R are
    published whose config has the pad id of another one.
    """
    if tokenizer is None or config["model_type"] not in ("bert", "roformer"):
        return config
    return {**config, "pad_token_id": tokenizer.pad_token_id}


def capped(extras: dict, config: dict) -> dict:
    """What a folder says of its vectors, with a `maxlen` that the encoder has positions for."""
    limit = max_tokens(config)
    if limit is None or extras.get("maxlen") is None:
        return extras
    return {**extras, "maxlen": min(extras["maxlen"], limit)}


def check_vocabulary(config: dict, tokenizer) -> None:
    """Raises ValueError, naming both sizes, if tokenizer and token table are not of one vocabulary.

    A table may have up to 127 rows more than there are tokens: many published ones are padded.
    """
    rows, tokens = config["vocab_size"], tokenizer.vocab_size
    spare = rows - tokens
    if spare < 0 or spare > _MOST_PADDED_ROWS:
        raise ValueError(
            f"`tokenizer` has {tokens} tokens, but the token table of the encoder has {rows} rows. Are vocabulary and "
            "weights of one model, and was the checkpoint loaded with the `keep_tokens` of this vocabulary?"
        )
    if tokenizer.pad_token_id != config["pad_token_id"]:
        raise ValueError(
            f"`tokenizer` pads with id {tokenizer.pad_token_id}, but the config of the encoder has `pad_token_id` "
            f"{config['pad_token_id']}: padding would be read as text. Are they of one model?"
        )
