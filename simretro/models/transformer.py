"""The encoder: one functional model for BERT, RoBERTa, XLM-R and RoFormer, read as encoder, UniLM or language model."""

import keras
from keras import layers, ops

from simretro.checkpoints import normalize_config
from simretro.layers import MLMHead, PaddingMask, TransformerBlock, TransformerEmbeddings, UniLMMask
from simretro.ops import take_rows

_APPLICATIONS = ("encoder", "unilm", "lm")


@keras.saving.register_keras_serializable(package="simretro")
class Transformer(keras.Model):
    """Functional model from token ids to hidden states, and, on request, sentence vectors and vocabulary scores.

    Inputs (dict): `token_ids` and `segment_ids`, int32 (B, L). Outputs (dict): `sequence` float (B, L, H); `pooled`
    (B, H) if `with_pool`; `mlm_probs` or `mlm_logits` float32 (B, L, V) if `with_mlm`. Take parts by name,
    `model.output["pooled"]`: Keras' flat lists `inputs` and `outputs` are sorted by name.

    Args:
        config: dict with the keys of `bert_config.json`, see `simretro.checkpoints.normalize_config`.
        application: "encoder" (all tokens see one another), "unilm" (`UniLMMask`) or "lm" (left to right).
        with_pool: False, True (dense + tanh on position 0, as for next sentence prediction) or "linear" (without
            tanh: SimBERT's sentence vector).
        with_mlm: False, True (probabilities) or "linear" (logits).
        recompute: bool; True trains with less memory and a third more work, see `TransformerBlock`.
        dtype: Keras dtype policy, e.g. "mixed_bfloat16"; None = the global one.
    Raises: ValueError if a value is none of those named.
    """

    def __init__(
        self,
        config: dict,
        application: str = "encoder",
        with_pool: bool | str = False,
        with_mlm: bool | str = False,
        recompute: bool = False,
        dtype: str | None = None,
        name: str | None = None,
    ):
        _check_choice("application", application, _APPLICATIONS)
        _check_choice("with_pool", with_pool, (False, True, "linear"))
        _check_choice("with_mlm", with_mlm, (False, True, "linear"))
        config = normalize_config(config)
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        embeddings = _embeddings(config, policy)
        blocks = [_block(config, policy, recompute, f"block_{i}") for i in range(config["num_hidden_layers"])]
        masks = _MASKS[application](config)
        pooler = _pooler(config, policy, with_pool) if with_pool else None
        mlm_head = _mlm_head(config, policy) if with_mlm else None

        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
        attention_mask = masks(token_ids, segment_ids)
        x = embeddings(token_ids, segment_ids)
        for block in blocks:
            x = block(x, attention_mask=attention_mask)
        outputs = {"sequence": x}
        if pooler is not None:
            outputs["pooled"] = pooler(x[:, 0])
        if mlm_head is not None:
            logits = mlm_head(x, embeddings.token.embeddings)
            outputs["mlm_logits" if with_mlm == "linear" else "mlm_probs"] = (
                logits if with_mlm == "linear" else ops.softmax(logits)
            )
        super().__init__(
            inputs={"token_ids": token_ids, "segment_ids": segment_ids}, outputs=outputs, name=name or "transformer"
        )
        self.config = config
        self.application = application
        self.with_pool = with_pool
        self.with_mlm = with_mlm
        self.recompute = recompute
        self.policy = policy
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler
        self.mlm_head = mlm_head
        self.masks = masks

    @property
    def token_table(self):
        """Variable (V, E): the token embeddings, which are the output matrix of the MLM head too."""
        return self.embeddings.token.embeddings

    def new_block(self, name: str) -> TransformerBlock:
        """A block of the same kind as the encoder's, built, with new weights."""
        block = _block(self.config, self.policy, self.recompute, name)
        block.build((None, None, self.config["hidden_size"]))
        return block

    def hidden(self, token_ids, segment_ids, training: bool | None = None):
        """Hidden states of the last layer, float (B, L, H): `sequence`, without the heads."""
        x, attention_mask = self._before_last(token_ids, segment_ids, training)
        return self.blocks[-1](x, attention_mask=attention_mask, training=training)

    def hidden_at(self, token_ids, segment_ids, positions, training: bool | None = None):
        """Hidden states of the last layer at some positions; the last block's queries are computed there alone.

        For a vector at [CLS], or for a loss that reads half of the positions, this leaves out most of the last
        block's work. The values are those of `sequence` at the same positions.

        Args:
            token_ids: int32 (B, L).
            segment_ids: int32 (B, L).
            positions: int32 (B, T), each in [0, L).
            training: bool.
        Returns: float (B, T, H).
        """
        x, attention_mask = self._before_last(token_ids, segment_ids, training)
        if attention_mask.shape[2] != 1:  # the mask differs from query to query
            attention_mask = take_rows(attention_mask[:, 0], positions)[:, None]
        return self.blocks[-1](
            take_rows(x, positions),
            attention_mask=attention_mask,
            positions=positions,
            context=x,
            training=training,
        )

    def _before_last(self, token_ids, segment_ids, training):
        """(what the last block reads, attention mask)."""
        attention_mask = self.masks(token_ids, segment_ids)
        x = self.embeddings(token_ids, segment_ids, training=training)
        for block in self.blocks[:-1]:
            x = block(x, attention_mask=attention_mask, training=training)
        return x, attention_mask

    def get_config(self):
        return {
            "config": dict(self.config),
            "application": self.application,
            "with_pool": self.with_pool,
            "with_mlm": self.with_mlm,
            "recompute": self.recompute,
            "dtype": keras.saving.serialize_keras_object(self.policy),
            "name": self.name,
            "frozen": [path for path, layer in _layers_of(self) if not layer.trainable],
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        frozen = config.pop("frozen", [])
        dtype = keras.saving.deserialize_keras_object(config["dtype"], custom_objects=custom_objects)
        model = cls(**{**config, "dtype": dtype})
        for path, layer in list(_layers_of(model)):
            if path in frozen:
                layer.trainable = False
        return model


def _layers_of(layer, path=""):
    """(path, layer) of a layer and all within it."""
    yield path, layer
    for part in layer._layers:
        yield from _layers_of(part, f"{path}/{part.name}" if path else part.name)


class _KeyMask:
    """(token_ids, segment_ids) -> bool (B, 1, 1, L): every query sees every token."""

    def __init__(self, config):
        self.padding = PaddingMask(config["pad_token_id"], name="padding_mask")

    def __call__(self, token_ids, segment_ids):
        return self.padding(token_ids)[:, None, None]


class _OrderedMask(_KeyMask):
    """(token_ids, segment_ids) -> bool (B, 1, L, L), see `UniLMMask`."""

    def __init__(self, config, causal_source=False):
        super().__init__(config)
        self.order = UniLMMask(causal_source, name="attention_mask")

    def __call__(self, token_ids, segment_ids):
        return self.order(segment_ids, self.padding(token_ids))


_MASKS = {
    "encoder": _KeyMask,
    "unilm": _OrderedMask,
    "lm": lambda config: _OrderedMask(config, causal_source=True),
}


def _embeddings(config, policy):
    rotary = config["position_embedding_type"] == "rotary"
    return TransformerEmbeddings(
        config["vocab_size"],
        config["hidden_size"],
        config["embedding_size"],
        None if rotary else config["max_position_embeddings"],
        config["position_offset"],
        config["type_vocab_size"],
        config["hidden_dropout_prob"],
        config["layer_norm_eps"],
        config["initializer_range"],
        dtype=policy,
        name="embeddings",
    )


def _block(config, policy, recompute, name):
    return TransformerBlock(
        config["num_attention_heads"],
        config["intermediate_size"],
        config["hidden_act"],
        config["hidden_dropout_prob"],
        config["attention_probs_dropout_prob"],
        config["layer_norm_eps"],
        config["position_embedding_type"] == "rotary",
        config["initializer_range"],
        recompute,
        dtype=policy,
        name=name,
    )


def _pooler(config, policy, with_pool):
    activation = None if with_pool == "linear" else "tanh"
    initializer = keras.initializers.TruncatedNormal(stddev=config["initializer_range"])
    return layers.Dense(config["hidden_size"], activation, kernel_initializer=initializer, dtype=policy, name="pooler")


def _mlm_head(config, policy):
    return MLMHead(
        config["vocab_size"],
        config["embedding_size"],
        config["mlm_hidden_act"],
        config["mlm_layer_norm_eps"],
        config["initializer_range"],
        dtype=policy,
        name="mlm_head",
    )


def _check_choice(name, value, choices):
    # `1 == True`, so the type is compared too
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise ValueError(f"`{name}` must be one of {choices}; received {value!r}.")
