import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.tokenizers import load_vocab, save_vocab

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_line_number_is_id_whatever_the_line_holds(tmp_path):
    tokens = [*SPECIALS, "\u2028", "的", "\u0085", "好", "人", "", " ", "\x0b", "\x1c", "\t", "a b"]
    vocab = load_vocab(write(tmp_path / "vocab.txt", "\n".join(tokens) + "\n"))
    assert vocab == {token: token_id for token_id, token in enumerate(tokens)}
    assert (vocab["好"], vocab["人"]) == (7, 8)
    save_vocab(tmp_path / "again.txt", vocab)
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()
    assert load_vocab(tmp_path / "again.txt") == vocab


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "a\r\nb\r\nc\r\n", "a\r\nb\r\nc", "\ufeffa\nb\nc\n"])
def test_line_ends(tmp_path, text):
    assert load_vocab(write(tmp_path / "vocab.txt", text)) == {"a": 0, "b": 1, "c": 2}


def test_carriage_return_may_be_a_token_and_empty_lines_count(tmp_path):
    assert load_vocab(write(tmp_path / "vocab.txt", "a\n\r\nb\n")) == {"a": 0, "\r": 1, "b": 2}
    assert load_vocab(write(tmp_path / "vocab.txt", "a\n\nb\n\r\n")) == {"a": 0, "": 1, "b": 2, "\r": 3}


def test_mixed_line_ends_are_refused_with_the_line(tmp_path):
    with pytest.raises(ValueError, match=r"vocab\.txt:2: ends in \\r\\n"):
        load_vocab(write(tmp_path / "vocab.txt", "a\nb\r\nc\n"))


def test_duplicates_are_refused_with_both_lines(tmp_path):
    with pytest.raises(ValueError, match=r"vocab\.txt.*'b'.*line 2 .*line 4"):
        load_vocab(write(tmp_path / "vocab.txt", "a\nb\nc\nb\n"))
    with pytest.raises(ValueError, match=r"''.*line 2 .*line 4"):
        load_vocab(write(tmp_path / "vocab.txt", "a\n\nc\n\n"))


def test_other_encodings(tmp_path):
    path = write(tmp_path / "vocab.txt", "a\n的\n", "gb18030")
    assert load_vocab(path, encoding="gb18030") == {"a": 0, "的": 1}
    with pytest.raises(ValueError, match=r"vocab\.txt:2: not utf-8.*`encoding`"):
        load_vocab(path)


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"vocab\.txt: an empty"):
        load_vocab(write(tmp_path / "vocab.txt", ""))


def test_simplified_keeps_what_a_chinese_model_sees(tmp_path):
    tokens = "[PAD] [unused1] [UNK] 的 ##的 a ##a [CLS] ！ ##！ ab a- ## [SEP]".split()
    tokens += "[MASK] 中国 ㈠ … …… か ##か 1.5 $ ##$ ##12".split()
    path = write(tmp_path / "vocab.txt", "\n".join(tokens) + "\n")
    vocab, keep_tokens = load_vocab(path, simplified=True, startswith=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    kept = "[PAD] [UNK] [CLS] [SEP] 的 a ##a ！ ab ## ㈠ … か ##か $ ##12".split()
    assert list(vocab) == kept and list(vocab.values()) == list(range(len(kept)))
    assert [tokens[old] for old in keep_tokens] == kept
    vocab, keep_tokens = load_vocab(path, simplified=True)
    assert list(vocab) == kept[4:] and keep_tokens[0] == 3


def test_startswith_must_be_there_and_needs_simplified(tmp_path):
    path = write(tmp_path / "vocab.txt", "a\nb\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: no token '\[PAD\]'.*`startswith`"):
        load_vocab(path, simplified=True, startswith=["[PAD]"])
    with pytest.raises(ValueError, match="`startswith`.*`simplified=True`"):
        load_vocab(path, startswith=["a"])


@pytest.mark.parametrize("vocab", [{"a": 0, "b": 2}, {"a": 1, "b": 2}, {"a": 0, "b": 0}])
def test_ids_with_gaps_are_not_saved(tmp_path, vocab):
    with pytest.raises(ValueError, match="`vocab` must use each id from 0 to 1 once"):
        save_vocab(tmp_path / "vocab.txt", vocab)
    assert not (tmp_path / "vocab.txt").exists()


@pytest.mark.parametrize("tokens", [["a", "b\nc"], ["a", "b\r"], ["a\r", "b\r"], ["\ufeffa", "b"]])
def test_what_would_not_read_back_is_not_saved(tmp_path, tokens):
    with pytest.raises(ValueError, match="would not read back"):
        save_vocab(tmp_path / "vocab.txt", {token: i for i, token in enumerate(tokens)})
    assert not (tmp_path / "vocab.txt").exists()


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"), max_size=6),
        min_size=1,
        unique=True,
    )
)
def test_any_vocabulary_comes_back(tmp_path_factory, tokens):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    save_vocab(path, vocab)
    assert load_vocab(path) == vocab
