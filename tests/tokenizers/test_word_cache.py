from concurrent.futures import ThreadPoolExecutor

from simretro.tokenizers import Tokenizer
from simretro.tokenizers.words import WordCache


def lengths_of_words(words):
    return [[len(word)] * len(word) for word in words]  # "ab" -> [2, 2], "-" stands for a word without ids


def make_cache(**options):
    asked = []

    def encode(words):
        asked.extend(words)
        return lengths_of_words(w.strip("-") for w in words)

    return WordCache("[^ ]+", encode, **options), asked


def test_ids_and_lengths():
    cache, _ = make_cache()
    ids, lengths = cache(["ab - c", "", "-", "c ab"])
    assert ids.tolist() == [2, 2, 1, 1, 2, 2] and lengths.tolist() == [3, 0, 0, 3]
    ids, lengths = cache(["", " "])
    assert ids.tolist() == [] and lengths.tolist() == [0, 0]


def test_each_word_is_asked_for_once():
    cache, asked = make_cache()
    cache(["ab c ab", "c"])
    cache(["c abc ab"])
    assert sorted(asked) == ["ab", "abc", "c"]


def test_a_full_memory_is_emptied_and_the_ids_stay_right():
    cache, asked = make_cache(max_words=2)
    for text, expected in (("a bb ccc", [1, 2, 2, 3, 3, 3]), ("bb", [2, 2]), ("bb a", [2, 2, 1]), ("bb", [2, 2])):
        assert cache([text])[0].tolist() == expected
    assert sorted(asked) == ["a", "a", "bb", "bb", "ccc"]


def test_threads_may_share_a_tokenizer(bert_vocab):
    tokenizer = Tokenizer(bert_vocab)
    tokenizer._cached_ids._max_words = 5
    texts = [f"{'s' * (i % 7)} 今天 news{'s' * (i % 5)} {i}" for i in range(200)]
    expected = [tokenizer.encode(text)[0][1:-1] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(tokenizer.encode_ragged, [texts] * 12):
            assert rows == expected


def test_long_words_are_not_kept():
    cache, asked = make_cache()
    long = "x" * 33
    for _ in range(2):
        assert cache([f"a {long} a"])[0].tolist() == [1, *[33] * 33, 1]
    assert sorted(asked) == ["a", long, long] and list(cache._ids) == ["a"]
