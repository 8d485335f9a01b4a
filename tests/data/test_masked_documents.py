"""Windows of documents and their masks: nothing is lost, nothing special is masked, and all can be repeated."""

import json
import warnings

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from simretro.data import Document, MaskedDocuments
from simretro.tokenizers import Tokenizer, load_tokenizer
from tests.data.test_fit import Position
from tests.data.test_masking import within
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(["un", "+believ", "+able", "."], size=1000)
W = TOKENIZER.vocab["w0"]


def rng(seed=0):
    return np.random.default_rng(seed)


# Batches


def text_of(rng_, length):
    return " ".join(f"w{i}" for i in rng_.integers(0, 1000, length))


def many_documents(n=150, largest=90, seed=0):
    source = rng(seed)
    return [text_of(source, source.integers(1, largest)) for _ in range(n)]


ALL = {"decoder_mask_rate": 0.5, "with_word_ids": True}


def check_batch(batch, maxlen, multiple=16):
    """Asserts what is promised of a batch; returns its texts as lists of ids."""
    token_ids = batch["token_ids"]
    assert all(a.dtype == np.int32 and a.shape[1] % multiple == 0 for a in batch.values())
    assert token_ids.shape[1] <= -(-maxlen // multiple) * multiple
    texts = []
    for row, encoder in zip(token_ids, batch["encoder_token_ids"], strict=True):
        end = row.tolist().index(3)
        assert row[0] == 2 and end < maxlen and not row[end + 1 :].any() and not np.isin(row[1:end], [0, 2, 3, 4]).any()
        assert np.array_equal(encoder[[0, *range(end, len(row))]], row[[0, *range(end, len(row))]])
        texts.append(row[1:end].tolist())
    for name, masked in (("masked", "encoder_token_ids"), ("decoder", "decoder_token_ids")):
        positions, ids = batch[f"{name}_positions"], batch[f"{name}_ids"]
        real = ids >= 0
        assert np.all(positions[~real] == 0) and np.all(ids[~real] == -1) and np.all(ids[real] >= 5)
        np.testing.assert_array_equal(np.take_along_axis(token_ids, positions, 1)[real], ids[real])
        restored = batch[masked].copy()
        rows, slots = np.nonzero(real)
        restored[rows, positions[rows, slots]] = ids[rows, slots]
        np.testing.assert_array_equal(restored, token_ids)
        assert np.all(np.diff(positions)[real[:, 1:]] > 0)
    hidden = np.take_along_axis(batch["decoder_token_ids"], batch["decoder_positions"], 1)[batch["decoder_ids"] >= 0]
    assert np.all(hidden == 4)
    return texts


def test_a_batch_by_hand():
    data = MaskedDocuments(["w1 ? un+believ+able w2", "w3"], TOKENIZER, mask_rate=0.9, length_multiple=1, **ALL)
    v = TOKENIZER.vocab
    batch = data[0]
    row = int(np.argmax(batch["token_ids"][:, 3] == v["un"]))
    assert batch["token_ids"][row].tolist() == [2, v["w1"], 1, v["un"], v["+believ"], v["+able"], v["w2"], 3]
    assert batch["token_ids"][1 - row].tolist() == [2, v["w3"], 3, 0, 0, 0, 0, 0]
    assert batch["word_ids"][row].tolist() == [-1, 0, 1, 2, 2, 2, 3, -1]
    assert batch["word_ids"][1 - row].tolist() == [-1, 0, -1, -1, -1, -1, -1, -1]
    assert set(batch) == {
        "token_ids", "encoder_token_ids", "masked_positions", "masked_ids",
        "decoder_token_ids", "decoder_positions", "decoder_ids", "word_ids",
    }  # fmt: skip
    assert len(MaskedDocuments(["w1 w2"], TOKENIZER)[0]) == 4


@given(
    st.lists(st.integers(1, 12) | st.integers(1, 150), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(3, 40),
    st.booleans(),
    st.sampled_from([1, 8]),
)
@settings(max_examples=60)
def test_an_epoch_has_every_token_once(sizes, rows, maxlen, concatenate, multiple):
    documents = [" ".join(f"w{(7 * n + i) % 1000}" for i in range(size)) for n, size in enumerate(sizes)]
    settings = {"concatenate": concatenate, "length_multiple": multiple, **ALL}
    data = MaskedDocuments(documents, TOKENIZER, rows, maxlen, **settings)
    expected = np.sort(np.concatenate(TOKENIZER.encode_ragged(documents)))
    assert len(data) == -(-data.num_examples // rows)
    for epoch in (0, 1):
        batches = [data.batch(epoch, index) for index in range(len(data))]
        texts = [text for batch in batches for text in check_batch(batch, maxlen, multiple)]
        assert len(texts) == data.num_examples and [len(b["token_ids"]) for b in batches[:-1]] == [rows] * (
            len(data) - 1
        )
        np.testing.assert_array_equal(np.sort(np.concatenate(texts)), expected)


def test_over_epochs_every_token_is_seen_though_some_are_dropped():
    documents = [" ".join(f"w{100 * n + i}" for i in range(100)) for n in range(10)]
    data = MaskedDocuments(documents, TOKENIZER, 7, 32, drop_remainder=True, short_rate=0.5, length_multiple=8)
    seen = np.zeros(1000, int)
    for epoch in range(30):
        batches = [data.batch(epoch, index) for index in range(len(data))]
        assert all(len(batch["token_ids"]) == 7 for batch in batches) and len(batches) == data.num_examples // 7
        ids = np.concatenate([batch["token_ids"].ravel() for batch in batches])
        seen += np.bincount(ids[ids >= W] - W, minlength=1000)
    assert seen.min() > 8 and seen.max() <= 30


@pytest.mark.parametrize(
    "documents, settings",
    [
        (many_documents(), {}),
        (many_documents(largest=300), {"short_rate": 0.3}),
        (many_documents(40, 2000), {}),
        (many_documents(largest=20), {"concatenate": True}),
        ([text_of(rng(n), 30) for n in range(60)], {}),
        ([text_of(rng(n), 3 if n else 60) for n in range(60)], {}),
        (many_documents(3, 5000), {}),
        (many_documents(9), {}),
        (many_documents(17), {}),
        (many_documents(5), {}),
    ],
)
def test_first_two_batches_share_no_dimension_that_varies(documents, settings):
    data = MaskedDocuments(documents, TOKENIZER, 8, 64, **settings, **ALL)
    shapes = [
        [{name: array.shape[1] for name, array in data.batch(epoch, index).items()} for index in range(len(data))]
        for epoch in range(6)
    ]
    assert len({shapes_[0]["token_ids"] for shapes_ in shapes}) == 1
    for first, *others in shapes:
        assert all(first[name] >= other[name] for other in others for name in first)
        for name in first:
            if others and others[0][name] == first[name]:
                assert all(width[name] == first[name] for epoch in shapes for width in epoch)
    if not shapes[0][1:]:  # one batch an epoch: the same shape in all
        assert all(epoch == shapes[0] for epoch in shapes)


def test_batches_are_sorted_by_length_and_shuffled():
    documents = many_documents(900, 120)
    data = MaskedDocuments(documents, TOKENIZER, 8, length_multiple=8)
    filled = np.mean([np.mean(batch["token_ids"] != 0) for batch in list(data)[2:]])
    unsorted = MaskedDocuments(documents, TOKENIZER, 8, length_multiple=8, window_batches=1)
    assert filled > 0.85 > np.mean([np.mean(batch["token_ids"] != 0) for batch in list(unsorted)[2:]])
    widths = [batch["token_ids"].shape[1] for batch in list(data)[2:-1]]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3 and len(set(widths)) > 4


def test_batches_are_a_function_of_seed_epoch_and_index():
    documents = many_documents(80, 200)
    first, second = (MaskedDocuments(documents, TOKENIZER, 8, seed=5, **ALL) for _ in range(2))
    for epoch in (2, 0, 1):
        for index in reversed(range(len(second))):
            other = second.batch(epoch, index)
            for name, array in first.batch(epoch, index).items():
                np.testing.assert_array_equal(array, other[name])
    third = MaskedDocuments(documents, TOKENIZER, 8, seed=6)
    assert not np.array_equal(first.batch(0, 0)["token_ids"], first.batch(1, 0)["token_ids"])
    assert not np.array_equal(first.batch(0, 0)["token_ids"], third.batch(0, 0)["token_ids"])
    # The encoder's mask does not depend on whether there is a decoder.
    plain = MaskedDocuments(documents, TOKENIZER, 8, seed=5)
    np.testing.assert_array_equal(plain[3]["encoder_token_ids"], first[3]["encoder_token_ids"])


@given(st.integers(0, 3), st.integers(0, 10))
@settings(max_examples=20)
def test_resumed_pass_is_the_tail_of_the_whole_one(epoch, step):
    documents = many_documents(75)
    data, other = (MaskedDocuments(documents, TOKENIZER, 8) for _ in range(2))
    assert len(data) == 10
    other.resume(epoch, step)
    epoch, step = other.state
    assert step < 10
    tail = list(other)
    assert len(tail) == 10 - step
    for index, batch in enumerate(tail, step):
        for name, array in data.batch(epoch, index).items():
            np.testing.assert_array_equal(batch[name], array)


class Sums(keras.Model):
    """Learns nothing, and notes the sum of each batch's encoder ids, on the device."""

    def __init__(self):
        super().__init__()
        self.seen = self.add_weight(shape=(200,), initializer="zeros", trainable=False, name="seen")
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="step")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return keras.ops.convert_to_tensor(self.scale)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        here = keras.ops.arange(200) == keras.ops.convert_to_tensor(self.step)
        total = keras.ops.sum(keras.ops.cast(x["encoder_token_ids"], "float32"))
        if training:
            self.seen.assign(keras.ops.convert_to_tensor(self.seen) + keras.ops.cast(here, "float32") * total)
            self.step.assign(keras.ops.convert_to_tensor(self.step) + 1)
        return y_pred * 0.0


@pytest.mark.backends
@pytest.mark.parametrize("start", [(0, 0), (2, 3)])
def test_fit_takes_all_lengths_epoch_by_epoch(start):
    data = MaskedDocuments(many_documents(70, 100), TOKENIZER, 8, 64)
    model, (epoch, step) = Sums(), start
    model.compile(optimizer="sgd")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The model does not have any trainable weights")
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        callbacks = [Position(data, *start)] if step else []
        model.fit(data, initial_epoch=epoch, epochs=epoch + 2, shuffle=False, verbose=0, callbacks=callbacks)
    places = [(epoch, i) for i in range(step, len(data))] + [(epoch + 1, i) for i in range(len(data))]
    wanted = [data.batch(*place)["encoder_token_ids"].sum() for place in places]
    seen = keras.ops.convert_to_numpy(model.seen)
    assert seen[: len(wanted)].tolist() == wanted and not seen[len(wanted) :].any()
    fixed = MaskedDocuments(many_documents(20), TOKENIZER, 8, fixed=True)
    np.testing.assert_array_equal(fixed.batch(3, 1)["encoder_token_ids"], fixed.batch(0, 1)["encoder_token_ids"])


# Masks


def test_rates_and_eighty_ten_ten():
    data = MaskedDocuments([text_of(rng(n), 60) for n in range(400)], TOKENIZER, mask_rate=0.3, **ALL)
    hits = both = decoder_hits = 0
    fates = []
    for batch in data:
        check_batch(batch, 128)
        encoder = np.zeros(batch["token_ids"].shape, bool)
        decoder = np.zeros_like(encoder)
        for mask, name in ((encoder, "masked"), (decoder, "decoder")):
            rows, slots = np.nonzero(batch[f"{name}_ids"] >= 0)
            mask[rows, batch[f"{name}_positions"][rows, slots]] = True
        assert np.all(encoder.sum(1) == 18) and np.all(decoder.sum(1) == 30)  # the budget, for words of one token
        assert np.all(batch["decoder_token_ids"][decoder] == 4)
        hits, decoder_hits, both = hits + encoder.sum(), decoder_hits + decoder.sum(), both + (encoder & decoder).sum()
        fates.append(np.stack([batch["token_ids"][encoder], batch["encoder_token_ids"][encoder]]))
    assert (hits, decoder_hits) == (400 * 18, 400 * 30)
    assert within(both, 400 * 60, 0.3 * 0.5)  # drawn apart from each other
    old, new = np.concatenate(fates, axis=1)
    assert within(np.sum(new == 4), hits, 0.8) and within(np.sum(new == old), hits, 0.1 + 0.1 / 1004)
    random = new[(new != 4) & (new != old)]
    assert within(len(random), hits, 0.1) and random.min() >= 5 and len(set(random.tolist())) > 200


@given(
    st.lists(st.sampled_from(["w1", "un+believ+able", "?", "un+able"]), min_size=1, max_size=30), st.floats(0.05, 0.95)
)
@settings(max_examples=60)
def test_words_are_masked_whole(words, rate):
    data = MaskedDocuments([" ".join(words)], TOKENIZER, maxlen=20, mask_rate=rate, **ALL)
    for epoch in range(3):
        batch = data.batch(epoch, 0)
        check_batch(batch, 20)
        for name in ("masked", "decoder"):
            share = rate if name == "masked" else 0.5
            for row, positions, ids, token_ids in zip(
                batch["word_ids"], batch[f"{name}_positions"], batch[f"{name}_ids"], batch["token_ids"], strict=True
            ):
                chosen = positions[ids >= 0]
                assert np.array_equal(np.sort(chosen), np.flatnonzero(np.isin(row, row[chosen]) & (row >= 0)))
                assert len(chosen) < share * np.sum(token_ids >= 5) + 3  # less than a word beyond the budget


def unigram(folder):
    scored = [("▁un", -2.0), ("believ", -3.0), ("able", -3.0), ("▁news", -2.0), ("▁", -9.0)]
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    backend = Backend(models.Unigram([*((t, 0.0) for t in specials), *scored, ("<mask>", 0.0)], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return saved(backend, specials, folder)


def byte_level(folder, mark="Ġ"):
    pieces = ["un", "believ", "able", f"{mark}news", f"{mark}un"]
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = {t: i for i, t in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    vocab = {t: i for i, t in enumerate(t for t in vocab if mark or not t.startswith(("Ġ", "Ċ", "ĉ", "č")))}
    merges = []
    for piece in pieces:
        for end in range(2, len(piece) + 1):
            if (piece[: end - 1], piece[end - 1]) not in merges:
                merges.append((piece[: end - 1], piece[end - 1]))
            vocab.setdefault(piece[:end], len(vocab))
    vocab["<mask>"] = len(vocab)
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return saved(backend, specials, folder)


def saved(backend, specials, folder):
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in [*specials, "<mask>"]])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    return load_tokenizer(folder)


def word_piece(folder):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##believ", "##able", "news"]
    return Tokenizer({token: i for i, token in enumerate(tokens)})


@pytest.mark.parametrize("make", [unigram, byte_level, word_piece])
def test_words_of_every_kind_of_tokenizer(make, tmp_path):
    tokenizer = make(tmp_path)
    data = MaskedDocuments(["unbelievable news"], tokenizer, mask_rate=0.5, **ALL)
    seen = set()
    for epoch in range(60):
        batch = data.batch(epoch, 0)
        ids = batch["masked_ids"][0]
        seen.add("".join(tokenizer.ids_to_tokens(ids[ids >= 0])).strip("▁Ġ").replace("##", ""))
        assert batch["word_ids"][0][:6].tolist() == [-1, 0, 0, 0, 1, -1]
    # Half of four tokens: the word of three or none of it, and the word of one.
    assert seen <= {"", "unbelievable", "news", "unbelievable▁news", "unbelievableĠnews", "unbelievablenews"}
    assert {"unbelievable", "news"} <= seen


def test_vocabulary_that_does_not_mark_words(tmp_path):
    tokenizer = byte_level(tmp_path, mark="")
    with pytest.raises(ValueError, match=r"`whole_word` needs words: .*does not mark words.*`whole_word=False`"):
        MaskedDocuments(["unbelievable"], tokenizer)
    data = MaskedDocuments(["unbelievable"], tokenizer, whole_word=False, with_word_ids=True)
    assert data[0]["word_ids"][0][:5].tolist() == [-1, 0, 1, 2, -1]


def test_segmenter_of_chinese_words():
    ideographs = "今天气很好我们去公园"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "。", *ideographs]
    tokenizer = Tokenizer({token: i for i, token in enumerate(tokens)})
    words = {"今天": 2, "天气": 2, "很": 1, "好": 1, "我们": 2, "去": 1, "公园": 2, "。": 1}

    def segment(text):  # the longest known word, from left to right
        while text:
            size = 2 if text[:2] in words else 1
            yield text[:size]
            text = text[size:]

    data = MaskedDocuments(["今天很好。", "我们去公园。"], tokenizer, segment=segment, with_word_ids=True)
    rows = sorted(row[1:8].tolist() for row in data[0]["word_ids"])
    assert rows == [[0, 0, 1, 2, 2, 3, -1], [0, 0, 1, 2, 3, -1, -1]]


# What cannot be used


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"rows_per_batch": 0}, "`rows_per_batch` must be an int of at least 1.*received 0"),
        ({"rows_per_batch": 8.0}, "`rows_per_batch`.*received 8.0"),
        ({"maxlen": 2}, r"`maxlen`.*at least 3, since it counts \[CLS\] and \[SEP\]; received 2"),
        ({"seed": -1}, "`seed`.*received -1"),
        ({"mask_rate": 1.0}, r"`mask_rate` must be in \[0, 1\); received 1.0"),
        ({"decoder_mask_rate": 0.0}, r"`decoder_mask_rate` must be None or in \(0, 1\]; received 0.0"),
        ({"short_rate": 1.5}, r"`short_rate`.*received 1.5"),
        ({"length_multiple": 0}, "`length_multiple`"),
        ({"window_batches": True}, "`window_batches`.*received True"),
        ({"cache_dir": "cache"}, "`cache_dir` must be None for documents in memory"),
        ({"drop_remainder": True}, "`rows_per_batch` must be at most the number of examples, 2, .* received 32"),
    ],
)
def test_bad_setting_is_named(setting, message):
    with pytest.raises(ValueError, match=message):
        MaskedDocuments(["w1", "w2"], TOKENIZER, **setting)


def test_missing_tokens_are_named():
    tokenizer = ToyTokenizer()
    tokenizer.mask_token_id = None
    with pytest.raises(ValueError, match=r"`mask_token_id`.*startswith"):
        MaskedDocuments(["w1"], tokenizer)
    tokenizer.sep_token_id = None
    with pytest.raises(ValueError, match="`sep_token_id`"):
        MaskedDocuments(["w1"], tokenizer)


def test_facts_tell_other_data():
    data = MaskedDocuments(["w1 w2", "w3"], TOKENIZER)
    assert data.is_of(ToyTokenizer(["un", "+believ", "+able", "."], size=1000)) and not data.is_of(ToyTokenizer())
    assert json.loads(json.dumps(data.facts())) == MaskedDocuments(["w3 w2", "w1"], TOKENIZER).facts() == data.facts()
    for changed in ({"seed": 1}, {"mask_rate": 0.2}, {"concatenate": True}, {"whole_word": False}):
        assert MaskedDocuments(["w1 w2", "w3"], TOKENIZER, **changed).facts() != data.facts()
    assert MaskedDocuments(["w1 w2 w3", "w3"], TOKENIZER).facts() != data.facts()


def test_positions_out_of_range():
    data = MaskedDocuments(many_documents(20), TOKENIZER, 8)
    for epoch, step in ((-1, 0), (0, -1), (0, 4)):
        with pytest.raises(ValueError, match=rf"`step` in \[0, 3\].*received epoch {epoch}, step {step}"):
            data.resume(epoch, step)
    with pytest.raises(IndexError, match=r"\[0, 3\); received 3"):
        data[3]


def test_few_short_and_empty_documents(tmp_path):
    data = MaskedDocuments(["w1", "w2 w3"], TOKENIZER, 32)  # fewer than a batch, one of a single token
    assert len(data) == 1 and len(data[0]["token_ids"]) == 2 and data.num_documents == 2
    with pytest.warns(UserWarning, match="1 documents were left out, the first at document 1") as caught:
        data = MaskedDocuments(["?", "", "w1"], TOKENIZER)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert set(np.concatenate([data.batch(e, 0)["masked_ids"].ravel() for e in range(30)])) == {-1, W + 1}
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": ""}\n{"text": "nothing"}\n')
    with pytest.raises(
        ValueError, match=r"corpus\.jsonl: no document has any text: 2 were read, the first at .* line 1"
    ):
        MaskedDocuments(path, TOKENIZER)
    path.write_text("")
    with pytest.raises(ValueError, match=r"corpus\.jsonl: holds no documents"):
        MaskedDocuments(path, TOKENIZER)


def test_title_and_sentences_are_read():
    v = TOKENIZER.vocab
    data = MaskedDocuments([Document("w2 w3", "w1"), Document("", sentences=("w4", "w5"))], TOKENIZER)
    rows = sorted(row[1:5].tolist() for row in data[0]["token_ids"])
    assert rows == sorted([[v["w1"], v["w2"], v["w3"], 3], [v["w4"], v["w5"], 3, 0]])


def test_pad_id_need_not_be_zero():
    tokenizer = ToyTokenizer()
    tokenizer.pad_token_id, tokenizer.unk_token_id = 1, 0
    batch = MaskedDocuments(["w1", "w2 w3"], tokenizer, with_word_ids=True)[0]
    assert set(batch["token_ids"][:, -1]) == {1} and set(batch["word_ids"][:, -1]) == {-1}
