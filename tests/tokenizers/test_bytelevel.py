import pickle

import pytest

from simretro.tokenizers import ByteLevelTokenizer, load_tokenizer


@pytest.fixture
def tokenizer(bytelevel_folder):
    return load_tokenizer(bytelevel_folder)


def test_tokens(tokenizer):
    assert type(tokenizer) is ByteLevelTokenizer
    assert tokenizer.tokenize("unbelievable news") == "<s> un believ able Ġnews </s>".split()
    assert tokenizer.tokenize("é") == ["<s>", "Ã", "©", "</s>"]
    assert tokenizer.special_ids == [0, 1, 3, tokenizer.mask_token_id]


def test_pair(tokenizer):
    token_ids, segment_ids = tokenizer.encode("un", "able")
    assert tokenizer.ids_to_tokens(token_ids) == "<s> un </s> </s> able </s>".split()
    assert segment_ids == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("text", ["unbelievable news", "今天 café\n\t\U0001f600!", "  two  spaces", "don't"])
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)[0]) == text.strip(" ")


def test_decode_takes_half_a_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("é")[0][:2]) == "\ufffd"


def test_typed_special_tokens_are_text_unless_allowed(bytelevel_folder, tokenizer):
    assert tokenizer.tokenize("</s>") == ["<s>", "<", "/", "s", ">", "</s>"]
    allowed = load_tokenizer(bytelevel_folder, allow_special_tokens=True)
    assert allowed.encode("</s>")[0] == [0, 2, 2] and allowed.encode_ragged(["</s>"]) == [[2]]


def test_rematch(tokenizer):
    text = "un é news"
    assert tokenizer.rematch(text, tokenizer.tokenize(text))[:2] == [[], [0, 1]]
    positions = {p for found in tokenizer.rematch(text, tokenizer.tokenize(text)) for p in found}
    assert positions == {0, 1, 3, 5, 6, 7, 8}


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert type(again) is ByteLevelTokenizer and again.vocab == tokenizer.vocab
    assert again.fingerprint() == tokenizer.fingerprint() == pickle.loads(pickle.dumps(tokenizer)).fingerprint()
    assert again.encode("unbelievable", "news é") == tokenizer.encode("unbelievable", "news é")


def test_merges_are_part_of_the_fingerprint(bytelevel_folder, tokenizer):
    path = bytelevel_folder / "merges.txt"
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[:-1]) + "\n", "utf-8")
    assert load_tokenizer(bytelevel_folder).fingerprint() != tokenizer.fingerprint()


def test_broken_files_are_named(bytelevel_folder):
    (bytelevel_folder / "merges.txt").write_text("#version: 0.2\nno merge at all\n", "utf-8")
    with pytest.raises(ValueError, match=r"merges\.txt: no byte-level BPE"):
        load_tokenizer(bytelevel_folder)


def test_missing_special_token_is_named(bytelevel_folder):
    text = (bytelevel_folder / "vocab.json").read_text("utf-8").replace('"</s>"', '"<end>"')
    (bytelevel_folder / "vocab.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"vocab\.json: no token '</s>'"):
        load_tokenizer(bytelevel_folder)
