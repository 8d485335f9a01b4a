import os
import random
import subprocess
import sys
from collections import Counter

import pytest

import simretro
from simretro.tokenizers import Tokenizer, load_tokenizer, train_wordpiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TIED = [f"{a}{b}{c}{d}" for a, b, c, d in zip("abcdefgh", "hgfedcba", "cdabghef", "fehgbadc", strict=True)] * 2
PRINT_VOCAB = """
import sys
from simretro.tokenizers import train_wordpiece
print(list(train_wordpiece(sys.argv[2:], int(sys.argv[1]), min_count=1).vocab))
"""


def test_specials_then_characters_then_pieces_by_frequency():
    tokenizer = train_wordpiece(["low low low low", "lower lower new new new!"], vocab_size=18, min_count=1)
    # 6 times l ##o, as often ##o ##w: the pair whose ids are smaller is first. Then lo ##w.
    learnt = ["lo", "low"]
    assert list(tokenizer.vocab) == [*SPECIALS, *"!elnorw", "##e", "##o", "##r", "##w", *learnt]
    assert list(tokenizer.vocab.values()) == list(range(18))
    assert tokenizer.tokenize("Lower low!") == ["[CLS]", "low", "##e", "##r", "low", "!", "[SEP]"]


def test_vocabulary_ends_where_the_texts_do():
    tokenizer = train_wordpiece(["low low", "new"], vocab_size=1000, min_count=1)
    assert {"low", "new"} < set(tokenizer.vocab) and tokenizer.vocab_size < 30


def test_pieces_stop_at_vocab_size():
    assert train_wordpiece(TIED, vocab_size=27, min_count=1).vocab_size == 27


def test_rare_pieces_and_characters_get_no_token():
    tokenizer = train_wordpiece(["aba aba aba xy ab¿c", "q"], vocab_size=100, min_count=2)
    assert list(tokenizer.vocab) == [*SPECIALS, "a", "b", "##a", "##b", "ab", "aba"]
    assert tokenizer.tokenize("aba abq abab") == ["[CLS]", "aba", "[UNK]", "aba", "##b", "[SEP]"]


def test_case_and_accents():
    texts = ["Café CAFÉ Café"] * 2
    assert "cafe" in train_wordpiece(texts, 100).vocab
    cased = train_wordpiece(texts, 100, lowercase=False)
    assert {"Café", "CAFÉ"} < set(cased.vocab) and not {"cafe", "café"} & set(cased.vocab)
    assert cased.tokenize("Café") == ["[CLS]", "Café", "[SEP]"]


def test_ideographs_and_punctuation_are_never_joined():
    vocab = train_wordpiece(["今天今天，今天好。good-good"] * 5, 100).vocab
    assert {*"今天好，。-", "good"} <= set(vocab)
    assert not any(len(token) > 1 and set(token) & set("今天好，。-") for token in vocab)


def test_typed_special_tokens_teach_nothing():
    vocab = train_wordpiece(["[MASK] [MASK] [SEP]"] * 3, 100).vocab
    assert list(vocab)[:5] == SPECIALS and "mask" in vocab
    assert Counter(vocab.values()).most_common(1)[0][1] == 1


def test_odd_texts():
    texts = ["", " \n", "a\u2028b\u0085c", "\ud83d", "x" * 101, "un\u200bdo\u0000 undo undo"]
    vocab = train_wordpiece(iter(texts), 100, min_count=1).vocab
    assert {"undo", "a"} <= set(vocab)
    assert "x" not in vocab  # too long a word for the model to read


def test_text_of_the_training_needs_no_unknown_token():
    rng = random.Random(0)
    texts = [" ".join("".join(rng.choices("abcdeéß", k=rng.randint(1, 9))) for _ in range(30)) for _ in range(40)]
    for lowercase in (True, False):
        tokenizer = train_wordpiece(texts, 300, min_count=1, lowercase=lowercase)
        assert tokenizer.vocab_size == 300
        ids, _ = tokenizer.encode_batch(texts)
        assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize(
    "words",
    [
        "के कु सूरज सरज",  # Hindi: vowel signs
        "パパ ハハ がか かか",  # Japanese: voiced and not
        "ปา ป่า ป้า",  # Thai: tones
        "كَتَبَ كُتِبَ كتب",  # Arabic: short vowels
        "한국어 문장",  # Hangul: syllables
        "Über के कु सूरज",  # more marks of Hindi than of German
    ],
)
def test_marks_that_are_no_accents_are_kept(words):
    tokenizer = train_wordpiece([words] * 3, 200)
    ids = [tuple(tokenizer.encode(word)[0]) for word in words.split()]
    assert len(set(ids)) == len(set(words.split()))
    assert [tokenizer.decode(list(one)) for one in ids] == words.lower().split()


def test_accents_go_as_in_bert_unless_asked_otherwise():
    words = "Über für façade Ёлка πρώτα שָׁלוֹם"
    assert "uber" in train_wordpiece([words] * 3, 200).vocab
    kept = train_wordpiece([words] * 3, 200, strip_accents=False)
    assert {"über", "façade", "ёлка"} <= set(kept.vocab)
    stripped = train_wordpiece(["がか"] * 3, 200, strip_accents=True)
    assert "かか" in stripped.vocab
    assert "Uber" in train_wordpiece([words] * 3, 200, lowercase=False, strip_accents=True).vocab
    assert "Über" in train_wordpiece([words] * 3, 200, lowercase=False).vocab


def test_words_too_long_to_be_read_are_told():
    thai = "กขคงจ" * 30
    with pytest.warns(UserWarning, match=r"9\d% of the text is in words of more than 100 characters"):
        vocab = train_wordpiece(["some words of English", thai, thai], 100, min_count=1).vocab
    assert "ก" not in vocab


def test_order_of_the_texts_does_not_matter():
    shuffled = random.Random(1).sample(TIED, len(TIED))
    assert train_wordpiece(TIED, 40).vocab == train_wordpiece(shuffled, 40).vocab
    assert train_wordpiece(TIED, 40).vocab == train_wordpiece([" ".join(shuffled)], 40).vocab


def test_the_same_in_every_process():
    # All pairs are equally frequent: whatever decides between them must not depend on the process.
    seen = {repr(list(train_wordpiece(TIED, 32, min_count=1).vocab)) for _ in range(4)}
    command = [sys.executable, "-c", PRINT_VOCAB, "32", *TIED]
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TOKENIZERS_PARALLELISM": "false"}
        seen.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip())
    assert len(seen) == 1


def test_words_more_frequent_than_one_row_of_them():
    rows = ["ab " * 1500, "cd " * 1300, "ef " * 1024]
    vocab = list(train_wordpiece(rows, 100, min_count=1025).vocab)
    assert vocab[5:] == ["a", "b", "c", "d", "##b", "##d", "ab", "cd"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_it_is_a_tokenizer_like_any_other(tmp_path, lowercase):
    tokenizer = train_wordpiece(["Low lower newest, widest!"] * 3, 60, lowercase=lowercase)
    assert type(tokenizer) is Tokenizer and tokenizer.mask_token_id == 4
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (
        again.fingerprint()
        == tokenizer.fingerprint()
        == Tokenizer(tmp_path / "vocab.txt", do_lower_case=lowercase).fingerprint()
    )


@pytest.mark.parity
def test_hugging_face_reads_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = train_wordpiece(["Low lower newest, widest!"] * 3, 60)
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Lowest, NEWER wide?"
    assert theirs(text)["input_ids"] == tokenizer.encode(text)[0]


@pytest.mark.parametrize("texts", [[], ["", " "], ["\u200b"], ["abc"]])
def test_no_words(texts):
    with pytest.raises(ValueError, match="`texts` must have words.*2 times"):
        train_wordpiece(texts, 100)


def test_vocab_size_without_room_for_the_characters():
    needed = 5 + 3 + 2  # special tokens, a b c, ##b ##c
    with pytest.raises(ValueError, match=f"`vocab_size` must be at least {needed}.*received {needed - 1}"):
        train_wordpiece(["abc abc"], needed - 1)
    assert train_wordpiece(["abc abc"], needed).vocab_size == needed


@pytest.mark.parametrize("name, value", [("vocab_size", 0), ("vocab_size", 8.5), ("min_count", 0)])
def test_values_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        train_wordpiece(["abc abc"], **{name: value})


@pytest.mark.parametrize("texts, message", [("abc", "one str"), (["abc", None], "NoneType None at place 1")])
def test_texts_of_another_type(texts, message):
    with pytest.raises(TypeError, match=f"`texts`.*{message}"):
        train_wordpiece(texts)


def test_it_is_in_the_package():
    assert simretro.train_wordpiece is train_wordpiece
