"""Small tokenizers of every kind, made on the spot."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from simretro.tokenizers import Tokenizer, load_tokenizer

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = "a b c e i n o s t x un ##able ##believ ##s ##x ## hello world news cafe iphone don re".split()
MARKS = list("[](){}<>.,:;!?'\"-/+#$%&@“”，。？")
DIGITS = "0 1 3 5 14 30 000".split()
IDEOGRAPHS = list("今天晚上加班多少钱的微信和支付宝买")


@pytest.fixture(scope="session")
def bert_vocab():
    tokens = BERT_TOKENS + PIECES + MARKS + DIGITS + IDEOGRAPHS
    return {token: token_id for token_id, token in enumerate(tokens)}


XLMR_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
SCORED = [("▁un", -2.0), ("believ", -3.0), ("able", -3.0), ("▁news", -2.0), ("▁", -4.0), ("s", -5.0), ("<", -5.0),
          ("/", -5.0), (">", -5.0), ("今天", -4.0), ("天气", -4.0), ("好", -4.0), ("a", -4.0)]  # fmt: skip


def unigram_backend():
    vocab = [(token, 0.0) for token in XLMR_TOKENS] + SCORED + [("<mask>", 0.0)]
    backend = Backend(models.Unigram(vocab, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in [*XLMR_TOKENS, "<mask>"]])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


@pytest.fixture(scope="session")
def some_tokenizers(bert_vocab, tmp_path_factory):
    """By name; the WordPiece ones know every letter of `abceinostx13` wherever it stands in a word."""
    letters = list("abceinostx13")
    continued = [f"##{letter}" for letter in [*letters, "0", "5"]]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*bert_vocab, *letters, *continued]))}
    folder = tmp_path_factory.mktemp("unigram")
    unigram_backend().save(str(folder / "tokenizer.json"))
    return {
        "uncased": Tokenizer(vocab),
        "cased": Tokenizer({**vocab, "É": len(vocab)}, do_lower_case=False),
        "unigram": load_tokenizer(folder),
    }


@pytest.fixture
def unigram_folder(tmp_path):
    unigram_backend().save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "XLMRobertaTokenizer", "mask_token": {"content": "<mask>", "lstrip": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def bytelevel_folder(tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    merges = []
    for word in ("un", "Ġun", "able", "believ", "Ġnews"):
        left = word[0]
        for right in word[1:]:
            if (left, right) not in merges:
                merges.append((left, right))
            left += right
            vocab.setdefault(left, len(vocab))
    vocab["<mask>"] = len(vocab)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return tmp_path
