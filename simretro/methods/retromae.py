"""RetroMAE and DupMAE: a sentence vector from which a weak decoder must be able to rebuild the sentence."""

from typing import ClassVar

import keras
from keras import ops

from simretro.arguments import check_int
from simretro.layers import DecoderMask
from simretro.losses import bag_of_words_loss, max_pooled_logits
from simretro.methods.encoder_method import EncoderMethod, array_of, count_labels, said_pooling
from simretro.models import SentenceEncoder
from simretro.models.pooling import masked_mean, vectors_and_states
from simretro.models.weights import export_part, load_part
from simretro.ops import take_rows

_DECODINGS = ("enhanced", "basic", None)
_BOW_TARGETS = ("normalized", "reference")
_BOW_SOURCES = ("tokens", "vector", None)
_POOLINGS = ("cls", "mean")


@keras.saving.register_keras_serializable(package="simretro")
class RetroMAE(EncoderMethod):
    """Pre-training for retrieval: the encoder reads a masked sentence, a one-layer decoder rebuilds it from its vector.

    The loss is the encoder's MLM (mean over the masked tokens), plus the decoder's cross-entropy (mean over what it
    predicts), plus `bow_weight` times that of the bag of words (mean over the sentences). The decoder:

    - "enhanced" predicts every ordinary token. Its queries are the sentence vector and a position, its keys and values
      the unmasked tokens, of which each row sees a random sample that never holds its own token (`DecoderMask`).
    - "basic" predicts the masked tokens of a second, harder mask, from the sentence vector followed by these tokens.
    - None: there is no decoder. With `bow_weight` 0 that is plain MLM, which teaches the vector nothing; with
      `bow_weight` the sentence's bag of words is read off its vector, which is cheaper than a decoder.

    With a decoder and a `bow_weight`, this is DupMAE (its published code has 0.1), where the bag of words is read off
    the other tokens' states. The sentence vector is the last state of [CLS], as in the papers, or the mean of all
    tokens' states; it is not normalised.

    The batches of `simretro.data.MaskedDocuments` have what `call` reads; "basic" needs its `decoder_mask_rate`, a mask
    pool its `with_word_ids`. Metrics: `encoder_loss`, `encoder_accuracy`, `decoder_loss`, `decoder_accuracy`,
    `bow_loss`.

    Args:
        encoder: `Transformer` with `application="encoder"` and `with_mlm="linear"`. Its embeddings and MLM head serve
            the decoder, too.
        tokenizer: of `simretro.tokenizers`; needed for everything but training.
        decoding: "enhanced", "basic" or None.
        decoder_mask_rate: float in [0, 1], share of the tokens hidden from a row of the enhanced decoder.
        query_norm: bool, for the enhanced decoder. False: queries are the vector plus a row of the position table, as
            in RetroMAE's first code. True: that goes through the segment vector, norm and dropout of the embeddings, as
            in DupMAE's and BGE's code. The two are no continuation of one another.
        mask_pool_size: int, see `DecoderMask`; None draws each token for itself.
        bow_weight: float, 0 = no bag of words.
        bow_source: what the bag of words is read off. "tokens": the states of all tokens but [CLS], of each word of the
            vocabulary the largest logit. "vector": the sentence vector. None: the latter without a decoder, else the
            former.
        bow_target: "normalized" or "reference", see `bag_of_words_loss`.
        pooling: "cls" or "mean", what the decoder is given and `encode` returns. Take what the retriever is to have: a
            folder that says how its vectors are pooled is pre-trained so.
        maxlen: int, longest text in tokens for encoding; None = what the positions allow.
        chunk_size: int, positions whose vocabulary logits exist at a time.
        seed: int, of the decoder's masks.
    Raises: ValueError if the encoder lacks a part or a value is out of range.
    Reference: Xiao et al., 2022, https://arxiv.org/abs/2205.12035; DupMAE: Liu et al., 2022,
        https://arxiv.org/abs/2211.08769; the bag of words of the vector: Ma et al., 2024,
        https://arxiv.org/abs/2401.11248.
    """

    facts_name = "retromae"
    encoder_options: ClassVar = {"with_mlm": "linear"}
    settings_names = ("decoding", "decoder_mask_rate", "query_norm", "mask_pool_size")
    settings_names += ("bow_weight", "bow_source", "bow_target", "pooling", "maxlen")
    folder_format = "sentence-transformers"

    def __init__(
        self,
        encoder,
        tokenizer=None,
        decoding: str | None = "enhanced",
        decoder_mask_rate: float = 0.5,
        query_norm: bool = False,
        mask_pool_size: int | None = None,
        bow_weight: float = 0.0,
        bow_source: str | None = None,
        bow_target: str = "normalized",
        pooling: str = "cls",
        maxlen: int | None = None,
        chunk_size: int = 1024,
        seed: int | None = None,
        name: str = "retromae",
    ):
        if (encoder.application, encoder.with_mlm) != ("encoder", "linear"):
            raise ValueError(
                "`encoder` must be built with `application='encoder'` and `with_mlm='linear'`; "
                f"received {encoder.application!r} and {encoder.with_mlm!r}."
            )
        for argument, value, choices in (
            ("decoding", decoding, _DECODINGS),
            ("bow_source", bow_source, _BOW_SOURCES),
            ("bow_target", bow_target, _BOW_TARGETS),
            ("pooling", pooling, _POOLINGS),
        ):
            if value not in choices:
                raise ValueError(f"`{argument}` must be one of {choices}; received {value!r}.")
        if not 0 <= bow_weight < float("inf"):
            raise ValueError(f"`bow_weight` must not be negative; received {bow_weight}.")
        if not 0 <= decoder_mask_rate <= 1:
            raise ValueError(f"`decoder_mask_rate` must be in [0, 1]; received {decoder_mask_rate}.")
        if mask_pool_size is not None:
            check_int("mask_pool_size", mask_pool_size, 1)
        config = encoder.config
        if query_norm and config["embedding_size"] != config["hidden_size"]:
            raise ValueError(
                "`query_norm` sends the sentence vector through the norm of the embeddings, so `embedding_size` must "
                f"be `hidden_size`; received an encoder with {config['embedding_size']} and {config['hidden_size']}."
            )
        accuracies = ("encoder", "decoder") if decoding else ("encoder",)
        losses = (*accuracies, "bow") if bow_weight else accuracies
        super().__init__(encoder, tokenizer, maxlen, chunk_size, losses, accuracies, name)
        self.decoding = decoding
        self.decoder_mask_rate = decoder_mask_rate
        self.query_norm = query_norm
        self.mask_pool_size = mask_pool_size
        self.bow_weight = bow_weight
        self.bow_source = bow_source
        self.bow_target = bow_target
        self.pooling = pooling
        self.decoder = self.decoder_mask = None
        if decoding == "enhanced":
            self.decoder_mask = DecoderMask(decoder_mask_rate, mask_pool_size, seed, name="decoder_mask")
        if decoding:
            self.decoder = encoder.new_block("decoder")
        self.built = True  # all variables are there

    # Training

    def call(self, x, training=None):
        """What the losses read.

        Args:
            x: dict of int32 arrays, see `MaskedDocuments`: `token_ids`, `encoder_token_ids` (B, L), `masked_positions`
                (B, M); "basic": `decoder_token_ids` (B, L), `decoder_positions` (B, D); with a pool `word_ids` (B, L).
            training: bool.
        Returns: dict of `sentence_vectors` float (B, H), and hidden states in the space of the token table: `encoder`
            (B, M, E), `decoder` (B, L, E) or, "basic", (B, D, E), and `states`, (B, L, E) or (B, E), for the bag of
                words.
        """
        outputs = self._encode_masked(x, training)
        if self.decoding == "enhanced":
            outputs["decoder"] = self._rebuild_all(x, outputs["sentence_vectors"], training)
        elif self.decoding == "basic":
            outputs["decoder"] = self._rebuild_masked(x, outputs["sentence_vectors"], training)
        return outputs

    def _encode_masked(self, x, training):
        token_ids, positions = _of(x, "encoder_token_ids"), _of(x, "masked_positions")
        transform = self.encoder.mlm_head.transform
        if not self.bow_weight or self._reads_bow_off_vector:
            vectors, masked = vectors_and_states(self.encoder, token_ids, self.pooling, positions, training)
            outputs = {"sentence_vectors": vectors, "encoder": transform(masked)}
            return outputs | {"states": transform(vectors)} if self.bow_weight else outputs
        hidden = self.encoder.hidden(token_ids, ops.zeros_like(token_ids), training=training)
        vectors = masked_mean(hidden, self._tokens(token_ids)) if self.pooling == "mean" else hidden[:, 0]
        states = transform(hidden)
        return {"sentence_vectors": vectors, "states": states, "encoder": take_rows(states, positions)}

    def _rebuild_all(self, x, sentence_vectors, training):
        token_ids = _of(x, "token_ids")
        word_ids = None if self.mask_pool_size is None else _of(x, "word_ids", "give the data `with_word_ids=True`")
        attention_mask = self.decoder_mask(self._targets(token_ids), self._tokens(token_ids), word_ids)
        return self.encoder.mlm_head.transform(self.decode(token_ids, sentence_vectors, attention_mask, training))

    def decode(self, token_ids, sentence_vectors, attention_mask, training=None):
        """The enhanced decoder.

        Args:
            token_ids: int32 (B, L), unmasked, [CLS] first.
            sentence_vectors: float (B, H).
            attention_mask: bool (B, 1, L, L), see `DecoderMask`.
            training: bool.
        Returns: float (B, L, H); the state at `i` is for predicting token `i`.
        """
        embeddings = self.encoder.embeddings
        length = ops.shape(token_ids)[1]
        vectors = ops.cast(sentence_vectors, self.decoder.compute_dtype)[:, None]  # (B, 1, H)
        queries = ops.repeat(vectors, length, axis=1)
        if self.query_norm:
            queries = embeddings.finish(queries, training=training)
        else:
            positions = embeddings.position_vectors(length)
            if positions is not None:
                queries = queries + positions[None]
        context = embeddings(token_ids, training=training)
        context = ops.concatenate([vectors, context[:, 1:]], axis=1)
        return self.decoder(queries, attention_mask=attention_mask, context=context, training=training)

    def _rebuild_masked(self, x, sentence_vectors, training):
        """Basic decoding, eq. 2: [vector, masked token 1 + position 1, ...]."""
        advice = "give the data a `decoder_mask_rate`"
        token_ids, positions = _of(x, "decoder_token_ids", advice), _of(x, "decoder_positions", advice)
        context = self.encoder.embeddings(token_ids, training=training)
        vectors = ops.cast(sentence_vectors, context.dtype)[:, None]
        context = ops.concatenate([vectors, context[:, 1:]], axis=1)
        hidden = self.decoder(
            take_rows(context, positions),
            attention_mask=self._tokens(token_ids)[:, None, None],
            positions=positions,
            context=context,
            training=training,
        )
        return self.encoder.mlm_head.transform(hidden)

    def _tokens(self, token_ids):
        return token_ids != self.encoder.config["pad_token_id"]

    def _targets(self, token_ids):
        """bool (B, L), True for ordinary tokens: all but the first, the last and padding."""
        tokens = self._tokens(token_ids)
        followed = ops.concatenate([tokens[:, 1:], ops.zeros_like(tokens[:, :1])], axis=1)
        first = ops.arange(ops.shape(token_ids)[1], dtype="int32") == 0
        return ops.logical_and(ops.logical_and(tokens, followed), ops.logical_not(first)[None])

    def _decoder_labels(self, x):
        if self.decoding == "basic":
            return _of(x, "decoder_ids", "give the data a `decoder_mask_rate`")
        token_ids = _of(x, "token_ids")
        return ops.where(self._targets(token_ids), token_ids, -1)

    def normalizers(self, x):
        counts = {"encoder": count_labels(_of(x, "masked_ids"))}
        if self.decoding:
            counts["decoder"] = count_labels(self._decoder_labels(x))
        if self.bow_weight:
            counts["bow"] = ops.cast(ops.shape(_of(x, "token_ids"))[0], "float32")
        return counts

    def additive_loss(self, x, y_pred, normalizers, training):
        loss = self._vocabulary_loss("encoder", y_pred["encoder"], x["masked_ids"], normalizers, training)
        if self.decoding:
            labels = self._decoder_labels(x)
            loss += self._vocabulary_loss("decoder", y_pred["decoder"], labels, normalizers, training)
        if self.bow_weight:
            loss += self.bow_weight * self._bow_loss(x, y_pred["states"], normalizers)
        return loss

    @property
    def _reads_bow_off_vector(self):
        return (self.bow_source or ("tokens" if self.decoding else "vector")) == "vector"

    def _bow_loss(self, x, states, normalizers):
        head, table = self.encoder.mlm_head, self.encoder.token_table
        if self._reads_bow_off_vector:
            logits = head.logits(states, table)
        else:
            others = ops.arange(ops.shape(states)[1], dtype="int32") > 0  # without [CLS]
            counted = ops.logical_and(self._tokens(x["token_ids"]), others)
            logits = max_pooled_logits(states, table, head.bias, counted, self.chunk_size)
        losses = bag_of_words_loss(logits, x["token_ids"], self._targets(x["token_ids"]), self.bow_target)
        rows = ops.cast(ops.shape(states)[0], "float32")
        self._track("bow", ops.sum(losses) / ops.maximum(rows, 1.0), rows)
        return ops.sum(losses) / normalizers["bow"]

    def _check_batch(self, name, batch):
        needed = {"basic": ("decoder_ids", "decoder_mask_rate=0.5"), "enhanced": ("token_ids", "")}.get(self.decoding)
        if self.decoding == "enhanced" and self.mask_pool_size is not None:
            needed = ("word_ids", "with_word_ids=True")
        if needed and needed[0] not in batch:
            raise ValueError(f"The batches of `{name}` lack `{needed[0]}`: give the data `{needed[1]}`.")

    # Use

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder, read as `pooling` says; vectors are not normalised."""
        return self._pretrained_encoder(self.pooling, normalize=False)

    # Files

    @classmethod
    def _saved_settings(cls, facts):
        """An encoder that says how its vectors are pooled is trained so."""
        return said_pooling(facts, _POOLINGS) | super()._saved_settings(facts)

    def _kept_parts(self):
        return {} if self.decoder is None else {"decoder": export_part(self.decoder)}

    def _load_parts(self, parts, saved, source):
        if self.decoder is not None and "decoder" in parts:
            self._refuse_other_kind("decoder", ("decoding", "query_norm"), saved, source)
            load_part(self.decoder, parts["decoder"], source)


def _of(x, key, advice="batches must be those of `simretro.data.MaskedDocuments`"):
    return array_of(x, key, advice)
