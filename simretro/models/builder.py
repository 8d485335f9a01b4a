"""`build_transformer_model`: bert4keras' one entry."""

from dataclasses import replace
from pathlib import Path

from simretro.checkpoints import Checkpoint, read_checkpoint, read_config, slice_vocabulary
from simretro.checkpoints.read import local_folder
from simretro.files import read_whole
from simretro.models.config import capped, fitted_to
from simretro.models.transformer import Transformer
from simretro.models.weights import load_weights
from simretro.ops import activation
from simretro.tokenizers import load_tokenizer


def build_transformer_model(
    config: dict | str | Path | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    application: str = "encoder",
    with_pool: bool | str = False,
    with_mlm: bool | str = False,
    keep_tokens: list[int] | None = None,
    dropout_rate: float | None = None,
    new_parts: tuple[str, ...] = (),
    revision: str | None = None,
    recompute: bool = False,
    dtype: str | None = None,
    name: str | None = None,
) -> Transformer:
    """Builds an encoder, with the weights of a checkpoint if one is named.

    Args:
        config: path of a `bert_config.json`, or its content; None = the checkpoint's own.
        checkpoint: path (a TensorFlow 1 prefix or a folder of any known format), name on the Hugging Face hub, or a
            checkpoint already read; None = new weights.
        application: "encoder", "unilm" or "lm".
        with_pool: False, True (with tanh) or "linear" (SimBERT's sentence vector).
        with_mlm: False, True (probabilities) or "linear" (logits).
        keep_tokens: rows of the original token table to keep, from `load_vocab(simplified=True)`; only for the
            checkpoint that the vocabulary was simplified from.
        dropout_rate: replaces both dropout rates of the config.
        new_parts: names among "pooler" and "mlm_head" that the checkpoint may lack: they get new weights.
        revision: of a checkpoint on the hub.
        recompute: bool; True trains with less memory and a third more work, see `TransformerBlock`.
        dtype: Keras dtype policy, e.g. "mixed_bfloat16".
        name: of the Keras model.
    Returns: `Transformer`, a functional keras.Model; see there for its inputs and outputs.
    Raises:
        ValueError: if neither a config nor a checkpoint is given, or config, vocabulary and weights do not fit.
    """
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = read_checkpoint(checkpoint, revision=revision, config=config)
    if checkpoint is None:
        if config is None:
            raise ValueError("`config` or `checkpoint` must be given; received neither.")
        if keep_tokens is not None:
            raise ValueError("`keep_tokens` selects rows of a checkpoint's table; received it without a `checkpoint`.")
        source = "`config`" if isinstance(config, dict) else str(config)
        config = dict(config) if isinstance(config, dict) else read_config(config)
    else:
        if keep_tokens is not None:
            checkpoint = slice_vocabulary(checkpoint, keep_tokens)
        config = dict(checkpoint.config)
    if dropout_rate is not None:
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"`dropout_rate` must be in [0, 1); received {dropout_rate}.")
        config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = dropout_rate
    _check_activations(config, checkpoint.source if checkpoint is not None else source)
    model = Transformer(config, application, with_pool, with_mlm, recompute, dtype=dtype, name=name)
    if checkpoint is not None:
        load_weights(model, checkpoint.weights, checkpoint.source, new_parts)
    return model


def _check_activations(config, source):
    for key in ("hidden_act", "mlm_hidden_act"):
        try:
            activation(config.get(key, "gelu"))
        except ValueError as error:
            raise ValueError(f"{source}: `{key}` must be an activation; received {config[key]!r}. {error}") from error


def load_pretrained(name_or_path: str | Path, revision: str | None = None, **options) -> tuple:
    """Loads a folder of any known format, or a model of the Hugging Face hub.

    Args:
        name_or_path: see `simretro.checkpoints.read_checkpoint`.
        revision: of a model on the hub.
        options: see `build_transformer_model`.
    Returns: (`Transformer`, tokenizer or None where the folder has none, the `facts` and the `parts` that
        `write_folder` kept). `facts["sentence_encoder"]` says how vectors are made, if the folder does, be it one of
        sentence-transformers.
    """

    def read():
        return with_tokenizer(read_checkpoint(name_or_path, revision=revision))

    checkpoint, tokenizer = read_whole(local_folder(name_or_path), read)
    model = build_transformer_model(checkpoint=checkpoint, **options)
    extras = dict(checkpoint.extras)
    facts = extras.pop("facts", {})
    if extras:
        facts = {**facts, "sentence_encoder": {**facts.get("sentence_encoder", {}), **extras}}
    return model, tokenizer, facts, checkpoint.parts


def with_tokenizer(checkpoint: Checkpoint) -> tuple:
    """(checkpoint, its tokenizer or None), as they go together: see `fitted_to` and `capped`."""
    if checkpoint.tokenizer_folder is None:
        return checkpoint, None
    # Older sentence-transformers folders say so in a file of their own.
    lower_case = {"do_lower_case": True} if checkpoint.extras.get("do_lower_case") else {}
    tokenizer = load_tokenizer(checkpoint.tokenizer_folder, **lower_case)
    config, extras = fitted_to(checkpoint.config, tokenizer), capped(checkpoint.extras, checkpoint.config)
    return replace(checkpoint, config=config, extras=extras), tokenizer
