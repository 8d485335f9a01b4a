import json

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from simretro.tokenizers import SentencePieceTokenizer, Tokenizer, load_tokenizer, save_vocab


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def change_json(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    write_json(path, content)


@pytest.fixture
def google_folder(tmp_path, bert_vocab):
    save_vocab(tmp_path / "vocab.txt", bert_vocab)
    return tmp_path


@pytest.fixture
def full_folder(tmp_path, bert_vocab):
    """vocab.txt, tokenizer.json and tokenizer_config.json."""
    Tokenizer(bert_vocab).save_pretrained(tmp_path / "full")
    return tmp_path / "full"


def test_google_folder(google_folder, bert_vocab):
    tokenizer = load_tokenizer(google_folder)
    assert type(tokenizer) is Tokenizer and tokenizer.fingerprint() == Tokenizer(bert_vocab).fingerprint()
    assert load_tokenizer(str(google_folder), do_lower_case=False).tokenize("HELLO") == ["[CLS]", "[UNK]", "[SEP]"]


def test_google_folder_with_capitals_is_taken_as_cased(tmp_path, bert_vocab):
    vocab = {**bert_vocab, **{t: len(bert_vocab) + i for i, t in enumerate(["Hello", "World", "News"])}}
    save_vocab(tmp_path / "vocab.txt", vocab)
    assert load_tokenizer(tmp_path).tokenize("Hello hello") == ["[CLS]", "Hello", "hello", "[SEP]"]
    assert load_tokenizer(tmp_path, do_lower_case=True).tokenize("Hello") == ["[CLS]", "hello", "[SEP]"]
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": True})
    assert load_tokenizer(tmp_path).tokenize("Hello") == ["[CLS]", "hello", "[SEP]"]


def test_settings_of_the_config_are_read(google_folder, bert_vocab):
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    write_json(google_folder / "tokenizer_config.json", config)
    assert load_tokenizer(google_folder).fingerprint() == Tokenizer(bert_vocab, **config).fingerprint()


def test_special_tokens_are_read_wherever_they_are(tmp_path):
    save_vocab(tmp_path / "vocab.txt", {"<p>": 0, "<u>": 1, "<c>": 2, "<e>": 3, "a": 4})
    write_json(tmp_path / "special_tokens_map.json", {"pad_token": "<p>", "unk_token": "<u>", "cls_token": "<no>"})
    with pytest.raises(ValueError, match=r"vocab\.txt: .*no token '<no>'"):
        load_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"cls_token": {"content": "<c>"}, "sep_token": "<e>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a b")[0] == [2, 4, 1, 3] and tokenizer.mask_token_id is None


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_saved_folder_reads_back(tmp_path, bert_vocab, do_lower_case):
    tokenizer = Tokenizer(bert_vocab, do_lower_case=do_lower_case, tokenize_chinese_chars=False)
    tokenizer.save_pretrained(tmp_path / "deep" / "folder")
    tokenizer.save_pretrained(str(tmp_path / "deep" / "folder"))  # over itself
    names = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    assert names == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    for remove in ("", "vocab.txt", "tokenizer.json"):  # either file is enough
        folder = tmp_path / f"without {remove}"
        tokenizer.save_pretrained(folder)
        if remove:
            (folder / remove).unlink()
        again = load_tokenizer(folder)
        assert again.fingerprint() == tokenizer.fingerprint() and again.vocab == tokenizer.vocab
        assert again.encode("Hello 今天", "Café") == tokenizer.encode("Hello 今天", "Café")


def test_special_tokens_in_text_are_the_callers_choice(full_folder, tmp_path):
    assert 3 not in load_tokenizer(full_folder).encode("a[SEP]")[0][:-1]
    allowed = load_tokenizer(full_folder, allow_special_tokens=True)
    assert allowed.encode("a[SEP]")[0][-2:] == [3, 3]
    allowed.save_pretrained(tmp_path / "again")  # and whoever has made the choice need not make it again
    assert load_tokenizer(tmp_path / "again").encode("a[SEP]")[0][-2:] == [3, 3]


def test_simplified_vocabulary_without_mask(tmp_path):
    tokenizer = Tokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4})
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).mask_token_id is None
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["mask_token"] is None


def test_padding_and_truncation_of_the_file_are_not_ours(full_folder):
    backend = Backend.from_file(str(full_folder / "tokenizer.json"))
    backend.enable_padding(length=9)
    backend.enable_truncation(3)
    backend.save(str(full_folder / "tokenizer.json"))
    assert load_tokenizer(full_folder).tokenize("a b c e") == "[CLS] a b c e [SEP]".split()


def test_added_words_are_found_whole(full_folder):
    backend = Backend.from_file(str(full_folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("new word", normalized=True)])
    backend.save(str(full_folder / "tokenizer.json"))
    tokenizer = load_tokenizer(full_folder)
    body = ["a", "new word", "b"]
    assert tokenizer.tokenize("a NEW word b")[1:-1] == body
    assert tokenizer.encode_ragged(["a new word b"]) == [tokenizer.tokens_to_ids(body)]
    tokenizer.save_pretrained(full_folder)
    assert load_tokenizer(full_folder).tokenize("a new word b")[1:-1] == body


def test_added_tokens_outside_the_vocabulary_are_refused(google_folder):
    write_json(google_folder / "added_tokens.json", {"extra": 500})
    with pytest.raises(ValueError, match=r"added_tokens\.json: adds 'extra'"):
        load_tokenizer(google_folder)


def test_files_that_contradict_each_other(full_folder, bert_vocab):
    swapped = {**bert_vocab, "a": bert_vocab["b"], "b": bert_vocab["a"]}
    save_vocab(full_folder / "vocab.txt", swapped)
    with pytest.raises(ValueError, match=r"vocab\.txt and tokenizer\.json differ \('b' is \d+ and \d+\)"):
        load_tokenizer(full_folder)
    save_vocab(full_folder / "vocab.txt", dict(list(bert_vocab.items())[:-1]))
    with pytest.raises(ValueError, match=rf"differ \({len(bert_vocab) - 1} tokens and {len(bert_vocab)}\)"):
        load_tokenizer(full_folder)


def test_config_wins_over_the_normalizer_of_the_file(full_folder):
    change_json(full_folder / "tokenizer_config.json", lambda config: config.update(do_lower_case=False))
    assert load_tokenizer(full_folder).tokenize("Hello hello") == "[CLS] [UNK] hello [SEP]".split()
    assert load_tokenizer(full_folder, do_lower_case=True).tokenize("Hello") == "[CLS] hello [SEP]".split()


def test_unigram_folder(unigram_folder):
    tokenizer = load_tokenizer(unigram_folder)
    assert type(tokenizer) is SentencePieceTokenizer
    assert tokenizer.tokenize("unbelievable news") == "<s> ▁un believ able ▁news </s>".split()
    assert tokenizer.mask_token_id == tokenizer.vocab_size - 1
    with pytest.raises(ValueError, match="`do_lower_case`"):
        load_tokenizer(unigram_folder, do_lower_case=True)


def test_one_separator_where_the_file_says_so(unigram_folder):
    def single(state):
        state["post_processor"]["pair"] = [p for i, p in enumerate(state["post_processor"]["pair"]) if i != 3]

    change_json(unigram_folder / "tokenizer.json", single)
    tokenizer = load_tokenizer(unigram_folder)
    token_ids, segment_ids = tokenizer.encode("un", "news")
    assert tokenizer.ids_to_tokens(token_ids) == "<s> ▁un </s> ▁news </s>".split()
    assert segment_ids == [0, 0, 0, 1, 1]


def test_another_row_layout_is_refused(unigram_folder):
    def without_start(state):
        state["post_processor"]["pair"] = state["post_processor"]["pair"][1:]

    change_json(unigram_folder / "tokenizer.json", without_start)
    with pytest.raises(ValueError, match=r"tokenizer\.json: a pair must be <s> A </s> B </s>"):
        load_tokenizer(unigram_folder)


def test_sentencepiece_model_is_found(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="no SentencePiece model"):
        load_tokenizer(tmp_path)


def test_keras_hub_folder(tmp_path, bert_vocab):
    assets = tmp_path / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    save_vocab(assets / "vocabulary.txt", bert_vocab)
    config = {"lowercase": True, "strip_accents": False, "vocabulary": None}
    write_json(tmp_path / "tokenizer.json", {"class_name": "BertTokenizer", "config": config})
    for folder in (tmp_path, assets):
        tokenizer = load_tokenizer(folder)
        assert tokenizer.fingerprint() == Tokenizer(bert_vocab).fingerprint()
    config["lowercase"] = False
    write_json(tmp_path / "tokenizer.json", {"class_name": "BertTokenizer", "config": config})
    assert load_tokenizer(assets).tokenize("Hello") == ["[CLS]", "[UNK]", "[SEP]"]


def test_keras_hub_roberta_folder(tmp_path, bytelevel_folder):
    assets = tmp_path / "preset" / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    (bytelevel_folder / "vocab.json").rename(assets / "vocabulary.json")
    (bytelevel_folder / "merges.txt").rename(assets / "merges.txt")
    assert load_tokenizer(tmp_path / "preset").tokenize("un news") == "<s> un Ġnews </s>".split()


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "RoFormerTokenizer", "RoFormerTokenizerFast"])
def test_tokenizers_that_need_a_segmenter_are_refused(tmp_path, bert_vocab, name):
    save_vocab(tmp_path / "vocab.txt", {**bert_vocab, "今天": len(bert_vocab), "支付宝": len(bert_vocab) + 1})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": name})
    with pytest.raises(NotImplementedError, match=f"{name} needs a word segmenter"):
        load_tokenizer(tmp_path)


def test_roformer_with_a_character_vocabulary_needs_none(google_folder):
    write_json(google_folder / "tokenizer_config.json", {"tokenizer_class": "RoFormerTokenizer"})
    assert load_tokenizer(google_folder).tokenize("今天") == "[CLS] 今 天 [SEP]".split()


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}: looked for tokenizer\.json, vocab\.txt, sentencepiece"):
        load_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_broken_files_are_named(full_folder, google_folder):
    (full_folder / "tokenizer.json").write_text('{\n"model": ', "utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json:2: no JSON"):
        load_tokenizer(full_folder)
    (full_folder / "tokenizer.json").write_text("[]", "utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json:1: must be a JSON object"):
        load_tokenizer(full_folder)
    write_json(full_folder / "tokenizer.json", {"model": {"type": "WordPiece"}, "pre_tokenizer": {"type": "None"}})
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        load_tokenizer(full_folder)
    (google_folder / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json:1: no JSON"):
        load_tokenizer(google_folder)


def test_other_kinds_are_refused(tmp_path):
    backend = Backend(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer\.json: must hold .*received model WordLevel.*Whitespace"):
        load_tokenizer(tmp_path)


def test_what_reads_typed_special_tokens_stays_so(bert_vocab, tmp_path):
    plain, trusting = (Tokenizer(bert_vocab, allow_special_tokens=allow) for allow in (False, True))
    assert plain.fingerprint() != trusting.fingerprint()
    for name, tokenizer in (("plain", plain), ("trusting", trusting)):
        tokenizer.save_pretrained(tmp_path / name)
        loaded = load_tokenizer(tmp_path / name)
        assert loaded.encode("a [SEP] b") == tokenizer.encode("a [SEP] b")
        assert loaded.fingerprint() == tokenizer.fingerprint()
    assert load_tokenizer(tmp_path / "trusting", allow_special_tokens=False).fingerprint() == plain.fingerprint()


def test_foreign_folders_are_not_trusted_by_what_they_say(bert_vocab, tmp_path):
    Tokenizer(bert_vocab).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "split_special_tokens": False}), "utf-8")
    assert load_tokenizer(tmp_path).encode("[SEP]") == Tokenizer(bert_vocab).encode("[SEP]")
