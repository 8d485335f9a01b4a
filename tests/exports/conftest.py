"""Tiny sentence encoders of every kind, with random weights everywhere, and vectors computed without any runtime."""

import json

import keras
import numpy as np
import pytest
from keras import ops
from tokenizers import pre_tokenizers

from simretro.models import SentenceEncoder, build_transformer_model
from simretro.models.pooling import new_projection
from simretro.tokenizers import SentencePieceTokenizer, Tokenizer, load_tokenizer

LETTERS = [chr(97 + i) for i in range(26)]
TEXTS = ["a b c", "", "Zz, é 你好!", "k l m n o p q r s t", "b"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FAIRSEQ = {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 34}
KINDS = {
    "bert": {"hidden_act": "gelu_tanh"},
    "exact bert": {"type_vocab_size": 0},
    "roberta": {"model_type": "roberta", **FAIRSEQ},
    "xlm-roberta": {"model_type": "xlm-roberta", **FAIRSEQ},
    "roformer": {"model_type": "roformer", "embedding_size": 12, "hidden_act": "relu"},
}


def bert_tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), ",", "你"]
    return Tokenizer({token: i for i, token in enumerate(tokens)})


def byte_level_tokenizer(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, "ab", "\u0120a", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\na b\n\u0120 a\n", "utf-8")
    return load_tokenizer(folder)


def unigram_tokenizer(folder):
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    path = folder / "sentencepiece.bpe"
    sentences = [" ".join([*LETTERS, "ab cd é 你好 , !"])] * 3
    options = {"model_type": "unigram", "hard_vocab_limit": False, "character_coverage": 1.0, "minloglevel": 2}
    trainer.train(sentence_iterator=iter(sentences), model_prefix=str(path), vocab_size=60, **options)
    return SentencePieceTokenizer(f"{path}.model")


def make_encoder(kind="bert", folder=None, with_pool=False, projection=None, seed=0, **options):
    """A `SentenceEncoder`; `projection` is the length of its vectors."""
    settings = KINDS[kind]
    makers = {"roberta": byte_level_tokenizer, "xlm-roberta": unigram_tokenizer}
    maker = makers.get(settings.get("model_type"))
    tokenizer = maker(folder) if maker else bert_tokenizer()
    config = {**SIZES, "max_position_embeddings": 32, "vocab_size": tokenizer.vocab_size, **settings}
    encoder = build_transformer_model(config, with_pool=with_pool)
    random = np.random.default_rng(seed)
    for variable in encoder.trainable_variables:
        variable.assign(random.normal(variable.path.endswith("gamma"), 0.3, variable.shape).astype("float32"))
    layer = None if projection is None else new_projection(encoder, projection)
    return SentenceEncoder(encoder, tokenizer, projection=layer, **options)


def one_by_one(encoder, texts=TEXTS, normalize=None):
    """The vectors, one text at a time and not padded, from the outputs of the Keras model."""
    vectors = []
    for text in texts:
        token_ids = np.array([encoder.tokenizer.encode(text, maxlen=encoder.maxlen)[0]], "int32")
        outputs = encoder.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)})
        outputs = {name: ops.convert_to_numpy(output)[0] for name, output in outputs.items()}
        sequence = outputs["sequence"]
        vector = {"cls": sequence[0], "mean": sequence.mean(0), "pooler": outputs.get("pooled")}[encoder.pooling]
        if encoder.projection is not None:
            vector = vector @ ops.convert_to_numpy(encoder.projection.kernel)
        vectors.append(vector)
    vectors = np.stack(vectors)
    normalize = encoder.normalize if normalize is None else normalize
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors


@pytest.fixture(autouse=True)
def same_start():
    keras.utils.set_random_seed(0)
