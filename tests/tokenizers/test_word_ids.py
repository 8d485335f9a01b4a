import pytest

from simretro.tokenizers import Tokenizer, load_tokenizer


def words(tokenizer, tokens):
    return tokenizer.word_ids([tokenizer.vocab[token] for token in tokens.split()])


def test_wordpiece(bert_vocab):
    tokenizer = Tokenizer(bert_vocab)
    tokens = "[CLS] un ##believ ##able news 今 天 [SEP] [MASK] ##s [UNK] a [PAD]"
    assert words(tokenizer, tokens) == [None, 0, 0, 0, 1, 2, 3, None, None, 4, None, 5, None]
    assert tokenizer.word_ids([]) == [] and words(tokenizer, "[PAD]") == [None]


def test_sentencepiece(unigram_folder):
    tokenizer = load_tokenizer(unigram_folder)
    assert words(tokenizer, "<s> ▁un believ able ▁news </s> <pad>") == [None, 0, 0, 0, 1, None, None]
    assert words(tokenizer, "<s> ▁un believ </s> </s> able ▁ s <mask> s") == [None, 0, 0, None, None, 1, 2, 2, None, 3]


def test_sentencepiece_where_no_space_parts_the_words(unigram_folder):
    tokenizer = load_tokenizer(unigram_folder)
    assert words(tokenizer, "<s> ▁ 今天 天气 好 a ▁news 今天 </s>") == [None, 0, 0, 1, 2, 3, 4, 5, None]


def test_byte_level(bytelevel_folder):
    tokenizer = load_tokenizer(bytelevel_folder)
    assert words(tokenizer, "<s> Ġun believ able Ġnews </s>") == [None, 0, 0, 0, 1, None]
    assert words(tokenizer, "<s> un able Ċ Ġun </s>") == [None, 0, 0, 1, 2, None]


def test_real_text_has_the_words_a_reader_sees(bert_vocab, bytelevel_folder):
    text = "unbelievable news unbelievable"
    for tokenizer in (Tokenizer(bert_vocab), load_tokenizer(bytelevel_folder)):
        token_ids = tokenizer.encode(text)[0]
        groups = tokenizer.word_ids(token_ids)
        seen = [tokenizer.decode([i for i, w in zip(token_ids, groups, strict=True) if w == word]) for word in range(3)]
        assert seen == text.split() and max(g for g in groups if g is not None) == 2


def test_unmarked_vocabulary_is_refused(tmp_path, unigram_folder):
    import json

    state = json.loads((unigram_folder / "tokenizer.json").read_text("utf-8"))
    for entry in state["model"]["vocab"]:
        entry[0] = entry[0].replace("▁", "_")
    (unigram_folder / "tokenizer.json").write_text(json.dumps(state), "utf-8")
    with pytest.raises(ValueError, match="does not mark words"):
        load_tokenizer(unigram_folder).word_ids([5, 6])


def test_foreign_id_is_refused(bert_vocab):
    with pytest.raises(ValueError, match="received 10000"):
        Tokenizer(bert_vocab).word_ids([5, 10000])


def test_spellings_of_each_kind(some_tokenizers, bytelevel_folder):
    expected = {
        "uncased": {"[PAD]": "", "[SEP]": "", "un": " un", "##able": "able", "今": " 今", "##a": "a"},
        "cased": {"[MASK]": "", "É": " É"},
        "unigram": {"<s>": "", "<mask>": "", "▁un": " un", "believ": "believ", "今天": " 今天"},
    }
    for name, spelt in expected.items():
        tokenizer = some_tokenizers[name]
        found = tokenizer.spellings()
        assert len(found) == tokenizer.vocab_size
        assert {token: found[tokenizer.vocab[token]] for token in spelt} == spelt
    tokenizer = load_tokenizer(bytelevel_folder)
    spelt = dict(zip(tokenizer.vocab, tokenizer.spellings(), strict=True))
    assert [spelt[token] for token in ("<s>", "Ġun", "un", "able")] == ["", " un", "un", "able"]
