"""The normalised config of a backbone: the keys of `bert_config.json`, complete and checked."""

import json
from collections.abc import Mapping
from pathlib import Path

from simretro.arguments import plain
from simretro.checkpoints.checkpoint import CheckpointError

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "roformer")
_LEAST = {  # integers and the smallest value that makes sense
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "max_position_embeddings": 1,
    "type_vocab_size": 0,
    "embedding_size": 1,
    "position_offset": 0,
    "pad_token_id": 0,
}
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def read_json(path: str | Path, kind: type = dict):
    """Reads a JSON file.

    Args:
        path: the file.
        kind: `dict` or `list`, what the file must hold.
    Raises: CheckpointError naming the file, and the line where the JSON breaks.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist.") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}, line {error.lineno}: no valid JSON ({error.msg}).") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, kind):
        raise CheckpointError(f"{path} must hold a JSON {kind.__name__}; received {type(content).__name__}.")
    return content


def checked_facts(facts: Mapping | None) -> dict:
    """Facts to be written with a model; raises TypeError or ValueError for what is no JSON: NaN and infinity, too."""
    try:
        facts = plain(dict(facts or {}))
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`facts` must be JSON values, in which NaN and infinity are None: {error}.") from error
    return facts


def read_config(path: str | Path) -> dict:
    """The normalised config of a `bert_config.json` or of a Hugging Face `config.json`."""
    return normalize_config(read_json(path), source=str(path))


def normalize_config(config: Mapping, source: str = "`config`") -> dict:
    """Completes and checks the config of a backbone; keys that say nothing about it are left out.

    Beside the keys of `bert_config.json` there are:

    - `position_embedding_type`: "absolute" (a table) or "rotary" (RoFormer).
    - `position_offset`: the row of the position table that the first token takes; `max_position_embeddings` counts
      all rows. RoBERTa and XLM-R: `pad_token_id + 1`.
    - `mlm_layer_norm_eps`, `mlm_hidden_act`: of the MLM head, where they differ from the backbone's
      (the head of RoBERTa and XLM-R always takes the exact GELU).

    Args:
        config: the keys as a file has them; null counts as absent. A normalised config stays as it is.
        source: str, named in errors.
    Returns: dict.
    Raises: CheckpointError naming every key that is missing, wrong, or asks for what is not supported.
    """
    given = {key: value for key, value in config.items() if value is not None}
    model_type = given.get("model_type", "bert")
    if model_type not in MODEL_TYPES:
        raise CheckpointError(f"{source}: `model_type` must be one of {MODEL_TYPES}; received {model_type!r}.")
    missing = [key for key in _REQUIRED if key not in given]
    if missing:
        raise CheckpointError(f"{source} lacks {', '.join(f'`{key}`' for key in missing)}. Is it a `bert_config.json`?")
    full = {**_defaults(given, model_type), **{key: plain(given[key]) for key in _keys() if key in given}}
    full["model_type"] = model_type
    if model_type == "roformer":
        full["position_embedding_type"] = "rotary"
    problems = [*_wrong_values(full), *_unsupported(given, full)]
    if problems:
        raise CheckpointError(f"{source}: {' '.join(problems)}")
    return {key: full[key] for key in _keys()}


def _keys():
    return (
        "model_type",
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "embedding_size", "initializer_range"),
        *("position_embedding_type", "position_offset", "pad_token_id", "mlm_layer_norm_eps", "mlm_hidden_act"),
    )


def _defaults(given, model_type):
    from_fairseq = model_type in ("roberta", "xlm-roberta")
    pad_token_id = given.get("pad_token_id", 1 if from_fairseq else 0)
    hidden_act = given.get("hidden_act", "gelu")
    layer_norm_eps = given.get("layer_norm_eps", 1e-12)
    hidden_size = given["hidden_size"]
    return {
        "intermediate_size": 4 * hidden_size if _is_int(hidden_size) else None,
        "hidden_act": hidden_act,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": layer_norm_eps,
        "embedding_size": hidden_size,
        "initializer_range": 0.02,
        "position_embedding_type": "absolute",
        "position_offset": pad_token_id + 1 if from_fairseq and _is_int(pad_token_id) else 0,
        "pad_token_id": pad_token_id,
        "mlm_layer_norm_eps": layer_norm_eps,
        "mlm_hidden_act": "gelu" if from_fairseq else hidden_act,
    }


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong_values(full):
    for key, least in _LEAST.items():
        if not _is_int(full[key]) or full[key] < least:
            yield f"`{key}` must be an integer of at least {least}; received {full[key]!r}."
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if not _is_number(full[key]) or not 0 <= full[key] < 1:
            yield f"`{key}` must be a number in [0, 1); received {full[key]!r}."
    for key in ("layer_norm_eps", "mlm_layer_norm_eps", "initializer_range"):
        if not _is_number(full[key]) or full[key] <= 0:
            yield f"`{key}` must be a number above 0; received {full[key]!r}."
    for key in ("hidden_act", "mlm_hidden_act"):
        if not isinstance(full[key], str):
            yield f"`{key}` must be the name of an activation; received {full[key]!r}."
    yield from _wrong_sizes(full)


def _wrong_sizes(full):
    """Integers that do not go together; those that are wrong by themselves have been named."""
    names = ("hidden_size", "num_attention_heads", "max_position_embeddings", "position_offset")
    hidden_size, heads, rows, offset = (full[name] for name in names)
    if not all(_is_int(full[name]) and full[name] >= _LEAST[name] for name in names):
        return
    rotary = full["position_embedding_type"] == "rotary"
    if hidden_size % heads:
        yield f"`hidden_size` must be a multiple of `num_attention_heads`; received {hidden_size} and {heads}."
    elif rotary and hidden_size // heads % 2:
        yield (
            "`hidden_size` / `num_attention_heads` must be even for rotary positions, which turn pairs of numbers; "
            f"received {hidden_size} and {heads}."
        )
    if not rotary and rows <= offset:
        yield (
            "`max_position_embeddings` must be above `position_offset`, the row of the first token; "
            f"received {rows} and {offset}."
        )


def _unsupported(given, full):
    """What would be computed differently, and so must not be passed over."""
    kinds = ("absolute", "rotary")
    if full["position_embedding_type"] not in kinds:
        yield f"`position_embedding_type` must be one of {kinds}; received {full['position_embedding_type']!r}."
    if given.get("rotary_value"):
        yield "`rotary_value` must be false: rotating the values is not supported."
    if given.get("use_bias") is False:
        yield "`use_bias` must be true: backbones without biases are not supported."
    for key in ("attention_head_size", "attention_key_size"):
        if key in given and given[key] * full["num_attention_heads"] != full["hidden_size"]:
            yield f"`{key}` must be `hidden_size` / `num_attention_heads`; received {given[key]!r}."
