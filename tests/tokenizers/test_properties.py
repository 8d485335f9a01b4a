"""What must hold for any text: over letters, ideographs, marks, controls and characters of all planes."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.tokenizers import TruncationWarning

KNOWN = "abceinostx  今天微信,.!?'-()[]\"/1305"
ODD = "\u0301\u0308\u200b\u3000\u00a0\u2028\u0085\t\n\r\x00\ufffd\ud83d\x1c世㐀\U00020000豈éßİΣǅﬁ한がカﾊ，。“”￥$½☃▁Ġ#"
texts = st.text(st.one_of(st.sampled_from(KNOWN + ODD), st.characters()), max_size=30)
known_texts = st.text(st.sampled_from(KNOWN), max_size=30)


each_tokenizer = pytest.mark.parametrize("name", ["uncased", "cased", "unigram"])


@each_tokenizer
@given(rows=st.lists(st.tuples(texts, texts), max_size=5), maxlen=st.none() | st.integers(4, 20))
def test_a_batch_is_its_rows(some_tokenizers, name, rows, maxlen):
    tokenizer = some_tokenizers[name]
    first, second = [a for a, _ in rows], [b for _, b in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        for columns in ([first], [first, second]):
            token_ids, segment_ids = tokenizer.encode_batch(*columns, maxlen=maxlen)
            for place, row in enumerate(zip(*columns, strict=True)):
                expected_ids, expected_segments = tokenizer.encode(*row, maxlen=maxlen)
                padding = token_ids.shape[1] - len(expected_ids)
                assert token_ids[place].tolist() == expected_ids + [tokenizer.pad_token_id] * padding
                assert segment_ids[place].tolist() == expected_segments + [0] * padding
    assert tokenizer.encode_ragged(first) == [tokenizer.encode(text)[0][1:-1] for text in first]


@each_tokenizer
@given(first=texts, second=st.none() | texts, maxlen=st.integers(4, 20))
def test_truncation_keeps_the_bound_the_specials_and_the_beginning(some_tokenizers, name, first, second, maxlen):
    tokenizer = some_tokenizers[name]
    whole, _ = tokenizer.encode(first, second)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        token_ids, segment_ids = tokenizer.encode(first, second, max_length=maxlen)
    assert len(token_ids) == len(segment_ids) == min(len(whole), maxlen)
    assert len(caught) == (len(whole) > maxlen)
    sep = tokenizer.sep_token_id
    assert token_ids[0] == tokenizer.cls_token_id and token_ids[-1] == sep
    assert token_ids.count(sep) == whole.count(sep) == (1 if second is None else 1 + tokenizer.separators)
    border = token_ids.index(sep)
    assert segment_ids == [0] * (border + 1) + [1] * (len(token_ids) - border - 1)
    assert token_ids[:border] == whole[:border]


@pytest.mark.parametrize("name", ["uncased", "cased"])
@given(text=known_texts)
def test_decoded_text_has_the_same_ids(some_tokenizers, name, text):
    tokenizer = some_tokenizers[name]
    token_ids = tokenizer.encode(text)[0]
    assert tokenizer.unk_token_id not in token_ids
    decoded = tokenizer.decode(token_ids)
    assert tokenizer.encode(decoded)[0] == token_ids
    assert tokenizer.decode(tokenizer.encode(decoded)[0]) == decoded
    assert decoded == decoded.strip() and "  " not in decoded


@each_tokenizer
@given(ids=st.lists(st.integers(-3, 200), max_size=20), skip=st.booleans())
def test_decode_takes_any_ids(some_tokenizers, name, ids, skip):
    tokenizer = some_tokenizers[name]
    assert isinstance(tokenizer.decode(ids, skip_special_tokens=skip), str)


@each_tokenizer
@given(text=texts)
def test_rematch_covers_the_text(some_tokenizers, name, text):
    tokenizer = some_tokenizers[name]
    tokens = tokenizer.tokenize(text)
    mapping = tokenizer.rematch(text, tokens)
    assert len(mapping) == len(tokens) and mapping[0] == mapping[-1] == []
    positions = [position for found in mapping for position in found]
    assert positions == sorted(positions)
    # Covered is what leaves a token when it stands alone; what lies bare is blank or dropped.
    bare = [text[i] for i in set(range(len(text))) - set(positions)]
    assert all(tokenizer.encode(character)[0][1:-1] in ([], tokenizer.tokens_to_ids(["▁"])) for character in bare)


@each_tokenizer
@given(text=texts)
def test_words_are_numbered_in_order_and_specials_are_none(some_tokenizers, name, text):
    tokenizer = some_tokenizers[name]
    token_ids = tokenizer.encode(text)[0]
    words = tokenizer.word_ids(token_ids)
    never = {*tokenizer.special_ids, tokenizer.sep_token_id}
    assert [word is None for word in words] == [token_id in never for token_id in token_ids]
    numbers = [word for word in words if word is not None]
    assert sorted(set(numbers)) == list(range(len(set(numbers)))) and numbers == sorted(numbers)


@each_tokenizer
@given(text=texts)
def test_typed_specials_never_become_special(some_tokenizers, name, text):
    tokenizer = some_tokenizers[name]
    special = {*tokenizer.special_ids, tokenizer.sep_token_id} - {tokenizer.unk_token_id}
    typed = text.join(tokenizer.special_tokens.values())
    assert not special & set(tokenizer.encode(typed)[0][1:-1])
    assert not special & set(tokenizer.encode_ragged([typed])[0])
