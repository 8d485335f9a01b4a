import json
import pickle
import sys

import numpy as np
import pytest

from simretro.tokenizers import SentencePieceTokenizer, load_tokenizer

TEXT = """the quick brown fox jumps over the lazy dog. The news are unbelievable, he said.
How much is an iPhone? What do you believe? unbelievable news for believers and dogs.
今天天气很好，我们去公园吧。今天晚上加班吗？微信和支付宝哪个好？
Größe und Maße, naïve café, ｆｕｌｌ ｗｉｄｔｈ １２３, ﬁne ﬂow, ½ ① ㈱"""


def train(folder, **options):
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    (folder / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    settings = dict(model_type="unigram", vocab_size=150, hard_vocab_limit=False, minloglevel=2) | options
    trainer.train(input=str(folder / "text.txt"), model_prefix=str(folder / "sentencepiece.bpe"), **settings)
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return train(tmp_path_factory.mktemp("xlmr"))


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return SentencePieceTokenizer(model_folder / "sentencepiece.bpe.model")


@pytest.fixture(scope="module")
def processor(model_folder):
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(model_folder / "sentencepiece.bpe.model"))


def test_ids_are_those_of_the_file_and_one(tokenizer, processor):
    size = processor.get_piece_size()
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.ids_to_tokens([0, 1, 2, 3, size + 1]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert tokenizer.ids_to_tokens(range(4, size + 1)) == [processor.id_to_piece(i) for i in range(3, size)]
    assert (tokenizer.cls_token_id, tokenizer.pad_token_id, tokenizer.sep_token_id) == (0, 1, 2)
    assert tokenizer.special_ids == [0, 1, 3, size + 1]


ODD_TEXTS = ["  two  spaces ", "a\u3000b\tc\nd", "ｔｈｅ ﬁsh", "e\u0301 é", "unknown ☃☃", "한국어 ไทย", "", " ", "▁the"]


@pytest.mark.parametrize("text", [*TEXT.splitlines(), *ODD_TEXTS])
def test_same_pieces_as_sentencepiece(tokenizer, processor, text):
    expected = [3 if i == 0 else i + 1 for i in processor.encode(text)]
    token_ids, segment_ids = tokenizer.encode(text)
    assert token_ids == [0, *expected, 2] and segment_ids == [0] * len(token_ids)


def test_pair_has_two_separators_and_the_second_is_no_source(tokenizer):
    token_ids, segment_ids = tokenizer.encode("the dog", "news")
    a, b = tokenizer.encode_ragged(["the dog", "news"])
    assert token_ids == [0, *a, 2, 2, *b, 2]
    assert segment_ids == [0] * (len(a) + 2) + [1] * (len(b) + 2)
    assert token_ids[: len(a) + 2] == tokenizer.encode("the dog")[0]
    batch, segments = tokenizer.encode_batch(["the dog", ""], ["news", "news"])
    assert batch[0].tolist() == token_ids and segments[0].tolist() == segment_ids
    assert batch[1].tolist() == [0, 2, 2, *b, 2] + [1] * len(a)
    assert segments[1].tolist() == [0, 0] + [1] * (len(b) + 2) + [0] * len(a)
    with pytest.raises(ValueError, match="room for 4"):
        tokenizer.encode("a", "b", maxlen=3)
    with pytest.warns(UserWarning, match="`maxlen`=6"):
        assert len(tokenizer.encode("the dog", "news and dogs", maxlen=6)[0]) == 6


def test_typed_special_tokens_are_text_unless_allowed(model_folder, unigram_folder):
    special_ids = {0, 1, 2, 3}
    path = model_folder / "sentencepiece.bpe.model"
    for plain in (SentencePieceTokenizer(path), load_tokenizer(unigram_folder)):
        for text in ("a</s>", "</s>", "<s>a <pad> <mask>"):
            body = plain.encode(text)[0][1:-1]
            assert not (special_ids - {3} | {plain.mask_token_id}) & set(body) and len(body) > 2
            assert plain.encode_ragged([text]) == [body]
    allowed = SentencePieceTokenizer(path, allow_special_tokens=True)
    for tokenizer in (allowed, pickle.loads(pickle.dumps(allowed))):
        assert tokenizer.encode("</s><mask>")[0] == [0, 2, tokenizer.mask_token_id, 2]
        assert tokenizer.encode_ragged(["the</s>"])[0][-1] == 2
    assert allowed.fingerprint() != SentencePieceTokenizer(path).fingerprint()


def test_decode(tokenizer):
    for text in ("the quick brown fox", "今天天气很好", "he said. What?"):
        assert tokenizer.decode(tokenizer.encode(text)[0]) == text
    assert tokenizer.decode([0, 1, 2, 3, 10**6]) == ""
    assert tokenizer.decode([0, *tokenizer.encode_ragged(["news"])[0], 2], skip_special_tokens=False) == "<s> news</s>"


def test_rematch_covers_what_is_seen(tokenizer):
    text = " the  ﬁsh, 今天e\u0301 ☃!"
    mapping = tokenizer.rematch(text, tokenizer.tokenize(text))
    assert mapping[0] == mapping[-1] == []
    covered = {position for positions in mapping for position in positions}
    assert covered == {i for i, ch in enumerate(text) if ch not in " \u0301"}  # the accent went into the letter


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is SentencePieceTokenizer and again.vocab == tokenizer.vocab
    assert again.fingerprint() == tokenizer.fingerprint() == pickle.loads(pickle.dumps(tokenizer)).fingerprint()
    for text in TEXT.splitlines():
        assert again.encode(text, "the") == tokenizer.encode(text, "the")


def test_scores_are_part_of_the_fingerprint(unigram_folder):
    before = load_tokenizer(unigram_folder).fingerprint()
    state = json.loads((unigram_folder / "tokenizer.json").read_text("utf-8"))
    state["model"]["vocab"][5][1] -= 0.5
    (unigram_folder / "tokenizer.json").write_text(json.dumps(state), "utf-8")
    assert load_tokenizer(unigram_folder).fingerprint() != before


def test_fast_path_is_the_slow_path(tokenizer):
    texts = [*TEXT.splitlines(), "  a  b ", "", " ", "☃ ▁ x", "e\u0301 \u0301e"] * 3
    assert tokenizer._cached_ids is not None
    assert tokenizer.encode_ragged(texts) == [tokenizer.encode(text)[0][1:-1] for text in texts]
    token_ids, _ = tokenizer.encode_batch(texts, pad_to_multiple_of=8)
    assert token_ids.dtype == np.int32 and token_ids.shape[1] % 8 == 0 and (token_ids[6, 2:] == 1).all()


def test_without_the_package_the_extra_is_named(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"sentencepiece\.bpe\.model.*simretro\[sentencepiece\]"):
        SentencePieceTokenizer(model_folder / "sentencepiece.bpe.model")


def test_foreign_files_are_refused(tmp_path, model_folder):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\xff no model")
    with pytest.raises(ValueError, match=r"sentencepiece\.bpe\.model: no SentencePiece model"):
        SentencePieceTokenizer(tmp_path / "sentencepiece.bpe.model")
    with pytest.raises(FileNotFoundError):
        SentencePieceTokenizer(tmp_path / "nowhere.model")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model_type": "bpe"}, "must be a Unigram model"),
        ({"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}, r"<unk>, <s>, </s>.*'<pad>'"),
        ({"user_defined_symbols": ["<sep>"]}, "'<sep>'"),
        ({"add_dummy_prefix": False}, "dummy prefix"),
    ],
)
def test_models_of_another_layout_are_refused(tmp_path, options, message):
    train(tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer(tmp_path / "sentencepiece.bpe.model")
