import pickle
import warnings

import numpy as np
import pytest

from simretro.tokenizers import Tokenizer, TruncationWarning, load_vocab, save_vocab


@pytest.fixture(scope="module")
def tokenizer(bert_vocab):
    return Tokenizer(bert_vocab)


def ids(tokenizer, tokens):
    return [tokenizer.vocab[token] for token in tokens.split(" ")]


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("今天加班", "今 天 加 班"),
        ("Hello, WORLD!", "hello , world !"),
        ("café cafe\u0301", "cafe cafe"),  # accents go, composed or not
        ("un\u200bbelievable\u0000 \ufffdnews", "un ##believ ##able news"),  # so do controls
        ("a\tb\nc\u00a0e\u3000i", "a b c e i"),
        ("iPhone X多少钱", "iphone x 多 少 钱"),
        ("世界news", "[UNK] [UNK] news"),
        ("newsz world", "[UNK] world"),  # a word is known as a whole or not at all
        ("don't re-re", "don ' t re - re"),
        ("“今天”", "“ 今 天 ”"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_tokens_and_ids(tokenizer, text, tokens):
    body = tokens.split() if tokens else []
    assert tokenizer.tokenize(text) == ["[CLS]", *body, "[SEP]"]
    token_ids, segment_ids = tokenizer.encode(text)
    assert token_ids == [2, *(tokenizer.vocab[token] for token in body), 3]
    assert segment_ids == [0] * len(token_ids)


def test_cased_vocabulary_keeps_case_and_accents(bert_vocab):
    vocab = {**bert_vocab, "Hello": len(bert_vocab), "café": len(bert_vocab) + 1}
    cased = Tokenizer(vocab, do_lower_case=False)
    assert cased.tokenize("Hello hello café cafe CAFE") == "[CLS] Hello hello café cafe [UNK] [SEP]".split()
    assert Tokenizer(vocab, strip_accents=False).tokenize("HELLO Café") == "[CLS] hello café [SEP]".split()


def test_words_of_any_length_up_to_word_maxlen(bert_vocab):
    assert Tokenizer(bert_vocab).tokenize("s" * 100) == ["[CLS]", "s", *["##s"] * 99, "[SEP]"]
    assert Tokenizer(bert_vocab).tokenize("s" * 101) == ["[CLS]", "[UNK]", "[SEP]"]
    assert Tokenizer(bert_vocab, word_maxlen=3).tokenize("sss ssss") == "[CLS] s ##s ##s [UNK] [SEP]".split()


def test_ideographs_stay_together_if_asked(bert_vocab):
    vocab = {**bert_vocab, "今天": len(bert_vocab)}
    assert Tokenizer(vocab, tokenize_chinese_chars=False).tokenize("今天 今") == "[CLS] 今天 今 [SEP]".split()


def test_typed_special_tokens_are_text_unless_allowed(bert_vocab):
    text = "a[SEP]b [MASK]"
    plain = "[CLS] a [ [UNK] ] b [ [UNK] ] [SEP]".split()
    assert Tokenizer(bert_vocab).tokenize(text) == plain
    special = Tokenizer(bert_vocab, allow_special_tokens=True)
    assert special.tokenize(text) == "[CLS] a [SEP] b [MASK] [SEP]".split()
    for tokenizer in (Tokenizer(bert_vocab), special):
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.tokenize(text) == tokenizer.tokenize(text)
        assert again.encode_ragged([text]) == tokenizer.encode_ragged([text]) == [tokenizer.encode(text)[0][1:-1]]


def test_special_ids(tokenizer, bert_vocab):
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id) == (0, 1, 2)
    assert (tokenizer.sep_token_id, tokenizer.mask_token_id) == (3, 4)
    assert tokenizer.special_ids == [0, 1, 2, 4] and tokenizer.vocab_size == len(bert_vocab)
    small = Tokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4})
    assert small.mask_token_id is None and small.special_ids == [0, 1, 2]


@pytest.mark.parametrize("token", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
def test_missing_special_token_names_file_and_token(tmp_path, token):
    tokens = [t for t in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"] if t != token]
    vocab = {t: i for i, t in enumerate(tokens)}
    save_vocab(tmp_path / "vocab.txt", vocab)
    with pytest.raises(ValueError, match=rf"vocab\.txt: no token '\[{token[1:-1]}\]'"):
        Tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=rf"`vocab`: no token '\[{token[1:-1]}\]'"):
        Tokenizer(vocab)


def test_vocabulary_with_a_gap_is_refused(bert_vocab):
    with pytest.raises(ValueError, match="`vocab` must use each id"):
        Tokenizer({**bert_vocab, "zz": 999})


def test_odd_lines_keep_their_ids(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "的", "\u0085", "好", "人", ""]
    (tmp_path / "vocab.txt").write_bytes("".join(f"{t}\n" for t in tokens).encode())
    tokenizer = Tokenizer(tmp_path / "vocab.txt")
    assert tokenizer.encode("好人的")[0] == [2, 7, 8, 5, 3]
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_vocab(tmp_path / "saved" / "vocab.txt") == tokenizer.vocab
    assert tokenizer.decode([4, 7, 6, 9, 8]).replace("\u2028", "").replace("\u0085", "") == "好人"


def test_tokens_and_ids_map_both_ways(tokenizer):
    assert tokenizer.tokens_to_ids(["[CLS]", "a", "nowhere"]) == [2, tokenizer.token_to_id("a"), 1]
    assert tokenizer.ids_to_tokens([2, 1]) == ["[CLS]", "[UNK]"]
    for bad in (tokenizer.vocab_size, -1):
        with pytest.raises(ValueError, match=rf"`token_id`.*{tokenizer.vocab_size}.*received {bad}"):
            tokenizer.id_to_token(bad)


def test_pair_and_segments(tokenizer):
    token_ids, segment_ids = tokenizer.encode("今天", "a b")
    assert token_ids == ids(tokenizer, "[CLS] 今 天 [SEP] a b [SEP]")
    assert segment_ids == [0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.encode("", "")[0] == [2, 3, 3]


def test_long_text_is_cut_by_tokens_and_says_so(tokenizer):
    for name in ("maxlen", "max_length"):
        with pytest.warns(TruncationWarning, match="`maxlen`=32: 1 of 1 texts lost 70 tokens") as caught:
            token_ids, segment_ids = tokenizer.encode("买" * 100, **{name: 32})
        assert len(token_ids) == len(segment_ids) == 32 and token_ids[-1] == 3 and token_ids[0] == 2
        assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(TruncationWarning) as caught:
        assert tokenizer.tokenize("买" * 100, maxlen=4) == "[CLS] 买 买 [SEP]".split()
    assert caught[0].filename == __file__


def test_a_batch_is_told_once(tokenizer):
    with pytest.warns(TruncationWarning, match="2 of 3 texts lost 5 tokens") as caught:
        token_ids, _ = tokenizer.encode_batch(["a b c", "a b", "a b c e i n"], maxlen=4)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert token_ids.tolist() == [ids(tokenizer, f"[CLS] {t} [SEP]") for t in ("a b", "a b", "a b")]


def test_what_fits_is_not_told(tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tokenizer.encode("a b", maxlen=4)[0]) == 4
        assert len(tokenizer.encode("a b", "c", maxlen=6)[0]) == 6
        assert tokenizer.encode_batch(["a", "a b"], ["a b", ""], maxlen=6)[0].shape == (2, 6)


@pytest.mark.parametrize(
    "first, second, maxlen, kept",  # the longer first; both: half each, an odd one to the longer, then to the second
    [(5, 2, 9, (4, 2)), (2, 5, 9, (2, 4)), (5, 5, 9, (3, 3)), (5, 4, 8, (3, 2)), (4, 5, 8, (2, 3)), (5, 5, 8, (2, 3)),
     (9, 1, 5, (1, 1)), (3, 0, 5, (2, 0)), (0, 3, 3, (0, 0)), (6, 3, 9, (3, 3)), (6, 3, 8, (3, 2))],
)  # fmt: skip
def test_pairs_lose_the_longer_end_first(tokenizer, first, second, maxlen, kept):
    with pytest.warns(TruncationWarning, match="pairs"):
        token_ids, segment_ids = tokenizer.encode("今 " * first, "天 " * second, maxlen=maxlen)
    expected = ["[CLS]", *["今"] * kept[0], "[SEP]", *["天"] * kept[1], "[SEP]"]
    assert tokenizer.ids_to_tokens(token_ids) == expected
    assert segment_ids == [0] * (kept[0] + 2) + [1] * (kept[1] + 1)


def test_arguments_of_encode(tokenizer):
    with pytest.raises(ValueError, match="`maxlen` and `max_length`.*both, 4 and 5"):
        tokenizer.encode("a", maxlen=4, max_length=5)
    with pytest.raises(TypeError, match="max_len"):
        tokenizer.encode("a", max_len=4)
    with pytest.raises(ValueError, match="`maxlen` must leave room for 2 .* received 1"):
        tokenizer.encode("a", maxlen=1)
    with pytest.raises(ValueError, match="room for 3 .* received 2"):
        tokenizer.encode_batch(["a"], ["b"], maxlen=2)
    for bad in (None, 3, b"a", ["a"]):
        with pytest.raises(TypeError, match="`first` must hold str"):
            tokenizer.encode(bad)
    with pytest.raises(TypeError, match="`second` must hold str; received int 3"):
        tokenizer.encode("a", 3)


def test_arguments_of_encode_batch(tokenizer):
    with pytest.raises(TypeError, match="`first` must be a list of str; received one str"):
        tokenizer.encode_batch("a b")
    with pytest.raises(TypeError, match="`texts` must hold str; received float nan at place 1"):
        tokenizer.encode_ragged(["a", float("nan")])
    with pytest.raises(TypeError, match="`first` must hold str; received tuple"):
        tokenizer.encode_batch([("a", "b")])
    with pytest.raises(ValueError, match="`first` and `second`.*received 2 and 1"):
        tokenizer.encode_batch(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="`pad_to_multiple_of` must be an int of at least 1; received 0"):
        tokenizer.encode_batch(["a"], pad_to_multiple_of=0)


def test_batch_is_padded_int32(tokenizer):
    token_ids, segment_ids = tokenizer.encode_batch(["今天", "a"], ["a b c", ""])
    assert token_ids.dtype == segment_ids.dtype == np.int32
    assert token_ids.tolist() == [
        ids(tokenizer, "[CLS] 今 天 [SEP] a b c [SEP]"),
        ids(tokenizer, "[CLS] a [SEP] [SEP] [PAD] [PAD] [PAD] [PAD]"),
    ]
    assert segment_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0]]
    wide, wide_segments = tokenizer.encode_batch(["今天", "a"], ["a b c", ""], pad_to_multiple_of=5)
    assert wide.shape == wide_segments.shape == (2, 10) and (wide[:, 8:] == 0).all() and not wide_segments[:, 8:].any()
    np.testing.assert_array_equal(wide[:, :8], token_ids)


def test_empty_batch(tokenizer):
    for result in (*tokenizer.encode_batch([]), *tokenizer.encode_batch([], [], maxlen=8)):
        assert result.shape == (0, 0) and result.dtype == np.int32
    assert tokenizer.encode_ragged([]) == [] and tokenizer.decode_batch([]) == []


def test_padding_uses_the_pad_id_of_the_vocabulary():
    tokenizer = Tokenizer({"a": 0, "[SEP]": 1, "[CLS]": 2, "[UNK]": 3, "[PAD]": 4})
    assert tokenizer.encode_batch(["a a", ""])[0].tolist() == [[2, 0, 0, 1], [2, 1, 4, 4]]


def test_ragged(tokenizer):
    assert tokenizer.encode_ragged(["今天", "", "a"]) == [ids(tokenizer, "今 天"), [], ids(tokenizer, "a")]
    assert tokenizer.encode_ragged(["今", ""], add_special_tokens=True) == [ids(tokenizer, "[CLS] 今 [SEP]"), [2, 3]]


def test_lone_surrogates_are_dropped_like_other_rubbish(tokenizer):
    assert tokenizer.encode("a\ud83db")[0] == tokenizer.encode("a\ufffdb")[0]
    assert tokenizer.encode_batch(["a \ud83d b", "c"])[0].tolist() == tokenizer.encode_batch(["a b", "c"])[0].tolist()
    assert tokenizer.rematch("\ud83da b", ["a", "b"]) == [[1], [3]]


@pytest.mark.parametrize(
    "tokens, text",
    [
        ("iphone x 多 少 钱", "iphone x多少钱"),
        ("1 , 000", "1,000"),
        ("3 : 30", "3:30"),
        ("3 . 14", "3.14"),
        ("微 信 和 支 付 宝", "微信和支付宝"),
        ("un ##believ ##able news , world !", "unbelievable news, world!"),
        ("hello ( world ) . a", "hello (world). a"),
        ("don ' t", "don't"),
        ("a / b - c", "a/b-c"),
        ("今 天 ， hello 。 a", "今天，hello。a"),
        ("今 , 天", "今,天"),
        ('hello " a b " , c', 'hello "a b", c'),
        ("hello “ a ” c", "hello “a” c"),
        ("$ 5 & # a , b", "$5 & #a, b"),
        ("## x", "x"),
        ("##s x", "s x"),
        ("##s", "s"),
        ("##", ""),
        ("今 ##s 天", "今s天"),
        ("[CLS] a [MASK] [UNK] b [SEP] [PAD]", "a b"),
        ("[CLS] ##s 今 [SEP]", "s今"),
    ],
)
def test_decode(tokenizer, tokens, text):
    assert tokenizer.decode(ids(tokenizer, tokens)) == text
    assert tokenizer.decode(np.array(ids(tokenizer, tokens), "int32")) == text


def test_decode_shows_special_tokens_if_asked(tokenizer):
    token_ids = ids(tokenizer, "[CLS] 今 [UNK] ##s a [SEP] [PAD]")
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "[CLS] 今 [UNK] s a [SEP] [PAD]"
    assert tokenizer.decode_batch([token_ids, []], skip_special_tokens=True) == ["今s a", ""]


def test_decode_takes_any_ids_but_only_ids(tokenizer):
    assert tokenizer.decode([5, 10**6, -1, 6]) == "a b"  # what a padded table may generate
    assert tokenizer.decode(np.zeros(0)) == ""
    with pytest.raises(ValueError, match="`ids` must be one row of int; received shape \\(1, 2\\)"):
        tokenizer.decode([[5, 6]])
    with pytest.raises(ValueError, match="dtype float64"):
        tokenizer.decode([5.5])


@pytest.mark.parametrize(
    "text, mapping",
    [
        ("今天a", [[], [0], [1], [2], []]),
        ("  Unbelievable news", [[], [2, 3], [4, 5, 6, 7, 8, 9], [10, 11, 12, 13], [15, 16, 17, 18], []]),
        ("u\u200bn ca\u0301fe", [[], [0, 2], [4, 5, 7, 8], []]),
        ("世界 a", [[], [0], [1], [3], []]),  # unknown, but there
    ],
)
def test_rematch(tokenizer, text, mapping):
    assert tokenizer.rematch(text, tokenizer.tokenize(text)) == mapping
    assert tokenizer.rematch(text, tokenizer.tokenize(text)[1:-1]) == mapping[1:-1]


def test_rematch_with_tokens_left_out_and_foreign_ones(tokenizer):
    assert tokenizer.rematch("a b a c", ["[CLS]", "b", "c", "[SEP]"]) == [[], [2], [6], []]
    with pytest.raises(ValueError, match="`tokens` must be those of `text`; 'e'"):
        tokenizer.rematch("a b", ["a", "e"])


def test_fingerprint_says_what_decides_the_ids(bert_vocab):
    tokenizer = Tokenizer(bert_vocab)
    assert len(tokenizer.fingerprint()) == 64 and int(tokenizer.fingerprint(), 16)
    assert tokenizer.fingerprint() == Tokenizer(dict(reversed(bert_vocab.items()))).fingerprint()
    assert tokenizer.fingerprint() == pickle.loads(pickle.dumps(tokenizer)).fingerprint()
    swapped = {**bert_vocab, "a": bert_vocab["b"], "b": bert_vocab["a"]}
    others = [Tokenizer(swapped), Tokenizer(bert_vocab, do_lower_case=False), Tokenizer(bert_vocab, mask_token="a")]
    others += [Tokenizer(bert_vocab, strip_accents=False), Tokenizer(bert_vocab, tokenize_chinese_chars=False)]
    assert len({t.fingerprint() for t in [tokenizer, *others]}) == 6
