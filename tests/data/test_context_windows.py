"""Pairs of near sentences: in one document and within the window, in batches of one language that can be repeated."""

import gc
import gzip
import json
import tempfile
import warnings
from collections import Counter
from itertools import pairwise

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simretro.data import ContextWindows, Document, context_windows
from simretro.data.context_pairs import ContextPairs, draw_batches, sort_batches
from simretro.data.document_table import TableMaker
from simretro.data.sentences import SentenceSplitter
from simretro.tokenizers import Tokenizer, TruncationWarning
from tests.data.test_fit import Position
from tests.data.test_masked_documents import byte_level, unigram, word_piece
from tests.data.test_masking import rng, within
from tests.data.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(["un", "+believ", "+able"], size=4000)
W = TOKENIZER.vocab["w0"]
NAMES = {
    "token_ids", "encoder_token_ids", "masked_positions", "masked_ids", "language_ids",
    "document_ids", "sentence_positions", "sentence_keys", "sides",
}  # fmt: skip


@pytest.fixture(autouse=True)
def numbers_from_zero(monkeypatch):
    monkeypatch.setattr(context_windows, "_first_document", lambda tables: 0)


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ContextWindows(*args, **options)


def document(sizes, first):
    """A document of sentences of so many words, all of them different, counted from `first`."""
    starts = first + np.cumsum([0, *sizes])
    return Document("", sentences=tuple(" ".join(f"w{w % 4000}" for w in range(*ab)) for ab in pairwise(starts)))


def documents_of(shape, first=0):
    """Documents of so many sentences of so many words each."""
    found = []
    for sizes in shape:
        found.append(document(sizes, first))
        first += sum(sizes)
    return found


def two_languages(seed=0, n=(30, 12), largest=12):
    source = rng(seed)
    return {
        language: documents_of([source.integers(1, largest, source.integers(2, 9)) for _ in range(number)], start)
        for language, number, start in (("en", n[0], 0), ("de", n[1], 2000))
    }


def check_batch(data, batch, maxlen=64, multiple=16):
    """Asserts what is promised of the shapes of a batch, whatever its task; returns whether it is masked."""
    assert set(batch) == NAMES and all(array.dtype == np.int32 for array in batch.values())
    rows, length = batch["token_ids"].shape
    assert all(len(array) == rows for array in batch.values()) and rows % 2 == 0
    assert length % multiple == 0 and length <= -(-maxlen // multiple) * multiple
    assert batch["encoder_token_ids"].shape == (rows, length)
    assert batch["masked_ids"].shape == batch["masked_positions"].shape and batch["masked_ids"].shape[1] % multiple == 0
    for row in batch["token_ids"]:
        end = row.tolist().index(3)
        assert row[0] == 2 and 2 <= end < maxlen and not row[end + 1 :].any()
    assert len(set(batch["language_ids"].tolist())) == 1 and 0 <= batch["language_ids"][0] < len(data.languages)
    restored, ids = batch["encoder_token_ids"].copy(), batch["masked_ids"]
    which, slots = np.nonzero(ids >= 0)
    restored[which, batch["masked_positions"][which, slots]] = ids[which, slots]
    np.testing.assert_array_equal(restored, batch["token_ids"])
    assert not batch["masked_positions"][ids < 0].any()
    masked = bool((batch["sides"] == -1).all())
    if masked:
        for name in ("document_ids", "sentence_positions", "sentence_keys"):
            assert (batch[name] == -1).all()
    else:
        assert batch["sides"].tolist() == [0, 1] * (rows // 2) and (ids == -1).all()
    return masked


def texts_of(batch):
    return [tuple(row[1 : row.tolist().index(3)].tolist()) for row in batch["token_ids"]]


def places(batch):
    """[(document, position)] of the rows."""
    return list(zip(batch["document_ids"].tolist(), batch["sentence_positions"].tolist(), strict=True))


# Pairs


def test_documents_of_other_data_have_other_numbers(monkeypatch):
    """A bank that was filled with training data must not take a document of validation data for one of its own."""
    monkeypatch.undo()
    found = []
    for seed in (0, 0, 1, 2, 3):
        data = quiet(two_languages(seed), TOKENIZER, 4, mlm_share=0)
        batches = [data.batch(epoch, index) for epoch in range(2) for index in range(len(data))]
        ids = {number for batch in batches for number in batch["document_ids"].tolist()}
        assert len(ids) > 30 and 0 <= min(ids) and max(ids) < 2**31
        assert max(ids) - min(ids) < data.tables[0].num_documents + data.tables[1].num_documents
        found.append(ids)
    assert found[0] == found[1]
    for i in range(1, 5):
        assert not any(found[i] & found[k] for k in range(1, i))


def test_a_batch_by_hand():
    texts = {"de": [Document("", sentences=("w1 w2", "w3"))], "en": [Document("", sentences=("w4", "w5 ? w6"))]}
    data = quiet(texts, TOKENIZER, 2, mlm_share=0, length_multiple=1, batches_per_epoch=40)
    assert data.languages == ("de", "en") and data.num_pairs == {"de": 2, "en": 2} and len(data) == 40
    rows = {(0, 0): (W + 1, W + 2), (0, 1): (W + 3,), (1, 0): (W + 4,), (1, 1): (W + 5, 1, W + 6)}
    for index in range(40):
        batch = data[index]
        assert not check_batch(data, batch, multiple=1)
        found = places(batch)
        assert sorted(found) == [(found[0][0], 0)] * 2 + [(found[0][0], 1)] * 2  # both are centres, and contexts
        assert found[0][1] != found[1][1] and batch["language_ids"][0] == found[0][0]
        limit = 2 if index == 1 else 3  # batch 1 has rows that are cut
        assert texts_of(batch) == [rows[place][:limit] for place in found]
        keys = batch["sentence_keys"]
        assert len(set(keys.tolist())) == 2 and keys[0] == keys[[i for i in (2, 3) if found[i] == found[0]][0]]
    assert {data[i]["language_ids"][0] for i in range(40)} == {0, 1}


SHAPES = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=8), min_size=1, max_size=10).filter(
    lambda shape: max(map(len, shape)) >= 2
)


@given(SHAPES, SHAPES, st.integers(1, 4), st.integers(2, 6), st.integers(0, 3))
@settings(max_examples=60)
def test_pairs_are_near_and_of_one_document(first, second, window, pairs, epoch):
    sources = {"en": documents_of(first), "de": documents_of(second, 2000)}
    # The ids of a sentence, which no other one has, tell where it stands.
    known = {}
    for number, found in enumerate([*sources["en"], *sources["de"]]):
        for position, ids in enumerate(TOKENIZER.encode_ragged(found.sentences)):
            known[tuple(ids)] = (number, position)
    data = quiet(
        sources, TOKENIZER, pairs, window_sentences=window, mlm_share=0, length_multiple=4, batches_per_epoch=12
    )
    for index in range(len(data)):
        batch = data.batch(epoch, index)
        assert not check_batch(data, batch, multiple=4)
        language = batch["language_ids"][0]
        shape = (first, second)[language]
        num_centres = sum(len(sizes) for sizes in shape if len(sizes) > 1)
        assert len(batch["sides"]) == 2 * min(pairs, num_centres)
        found = places(batch)
        assert (found[0][0] >= len(first)) == language
        if index != 1:
            assert [known[text] for text in texts_of(batch)] == found
        centres, contexts = found[::2], found[1::2]
        assert len(set(centres)) == len(centres)
        for (document_, centre), (other, context) in zip(centres, contexts, strict=True):
            assert document_ == other and 0 < abs(centre - context) <= window
            assert 0 <= context < len((first + second)[document_])


def chi_square(counts, shares):
    expected = np.sum(counts) * np.asarray(shares)
    return np.sum((counts - expected) ** 2 / expected)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_contexts_are_drawn_uniformly_and_clipped_at_the_ends(window):
    """Chi-square of all contexts of a centre; 5 sentences, so that some windows are clipped on both sides."""
    sources = {"en": documents_of([[1] * 5, [2] * 7])}
    data = quiet(sources, TOKENIZER, 12, window_sentences=window, mlm_share=0, batches_per_epoch=1500)
    counts = Counter()
    for index in range(len(data)):
        found = places(data[index])
        counts.update(zip(found[::2], found[1::2], strict=True))
    statistic, freedom = 0, 0
    for number, size in enumerate((5, 7)):
        for centre in range(size):
            context = [p for p in range(size) if 0 < abs(p - centre) <= window]
            drawn = np.array([counts.pop(((number, centre), (number, p))) for p in context])
            assert drawn.sum() == 1500  # each sentence is a centre as often as any other
            statistic += chi_square(drawn, np.full(len(context), 1 / len(context)))
            freedom += len(context) - 1
    assert not counts
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("exponent", [0, 0.3, 1])
def test_languages_are_drawn_by_their_sizes(exponent):
    sources = {
        language: documents_of([[1] * 10] * number, start)
        for language, number, start in (("en", 100, 0), ("de", 20, 1000), ("fr", 4, 1200))
    }
    data = quiet(sources, TOKENIZER, 8, language_exponent=exponent, batches_per_epoch=6000)
    shares = np.array([1000, 200, 40]) ** exponent
    shares = shares / shares.sum()
    np.testing.assert_allclose(list(data.language_shares.values()), shares)
    plan = data._make_plan(3)
    counts = np.bincount(2 * plan.languages + plan.masked, minlength=6)
    assert chi_square(counts, np.repeat(shares / 2, 2)) < 5 + 5 * np.sqrt(10)
    assert [int(data.batch(3, i)["language_ids"][0]) for i in range(50)] == plan.languages[:50].tolist()


def test_centres_come_once_before_any_comes_again():
    data = quiet({"en": documents_of([[1, 2, 1]] * 21)}, TOKENIZER, 10, mlm_share=0, batches_per_epoch=18)
    seen = []
    for epoch in (0, 1):
        drawn = [places(data.batch(epoch, index))[::2] for index in range(18)]
        assert all(len(set(centres)) == 10 for centres in drawn)
        counts = Counter(centre for centres in drawn for centre in centres)
        assert max(counts.values()) <= 3 and len(counts) == 63  # three passes of six batches, of 63 centres
        seen.append(drawn)
    assert seen[0] != seen[1]


@given(st.integers(0, 30), st.integers(1, 20), st.integers(1, 8), st.integers(1, 5), st.integers(0, 5))
@settings(max_examples=100)
def test_no_batch_has_an_item_twice(num_batches, num_items, size, window, seed):
    drawn = draw_batches(num_batches, num_items, size, rng(seed))
    lengths = rng(seed).integers(1, 50, num_items)
    batches = drawn.ravel()[sort_batches(lengths[drawn], num_items, window, rng(seed))]
    assert drawn.shape == batches.shape == (num_batches, min(size, num_items))
    assert sorted(drawn.ravel().tolist()) == sorted(batches.ravel().tolist())
    for batch in [*drawn, *batches]:
        assert len(set(batch.tolist())) == len(batch) and (batch >= 0).all() and (batch < num_items).all()


def test_batches_are_of_like_length_and_in_random_order():
    sources = two_languages(n=(300, 100), largest=40)
    filled = {}
    for window in (1, 16):
        data = quiet(sources, TOKENIZER, 8, mlm_share=0, length_multiple=4, window_batches=window)
        filled[window] = np.mean([np.mean(batch["token_ids"] != 0) for batch in list(data)[2:]])
    assert filled[16] > 0.67 > 0.57 > filled[1], filled
    widths = [batch["token_ids"].shape[1] for batch in list(data)[2:]]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3


def test_a_row_is_what_the_tokenizer_makes_of_the_sentence(tmp_path):
    sentences = ("unbelievable news", "news unbelievable", "un news", "news news")
    for make in (unigram, byte_level, word_piece):
        (tmp_path / make.__name__).mkdir()
        tokenizer = make(tmp_path / make.__name__)
        data = quiet({"en": [Document("", sentences=sentences)]}, tokenizer, 4, mlm_share=0, length_multiple=1)
        batch = data[0]
        for (_, position), row in zip(places(batch), batch["token_ids"], strict=True):
            ids = tokenizer.encode(sentences[position])[0]
            assert row.tolist() == ids + [tokenizer.pad_token_id] * (len(row) - len(ids))


def test_texts_are_cut_into_sentences():
    words = ["dr", ".", "who", "came", "he", "went", "好", "的", "。", "title"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = Tokenizer({token: i for i, token in enumerate(tokens)})
    texts = {"en": [Document("Dr. Who came. He went.", title="Title")], "zh": ["好的。的好。”好。"]}
    data = quiet(texts, tokenizer, 8, mlm_share=0, window_sentences=1, batches_per_epoch=20)
    found = {}
    for batch in data:
        for place, row in zip(places(batch), batch["token_ids"], strict=True):
            found[place] = tokenizer.decode(row)
    assert {place: text.replace(" ", "") for place, text in found.items()} == {
        (0, 0): "title", (0, 1): "dr.whocame.", (0, 2): "hewent.", (1, 0): "好的。", (1, 1): "的好。", (1, 2): "好。",
    }  # fmt: skip
    own = quiet({"en": ["a|b|c"]}, TOKENIZER, 3, mlm_share=0, split=lambda text, language: text.split("|"))
    assert own.num_pairs == {"en": 3}


# Masked text


@pytest.mark.parametrize("share, draws", [(0.3, 1), (0.7, 4), (0, 1), (1, 1)])
def test_tasks_are_drawn(share, draws):
    data = quiet(two_languages(), TOKENIZER, 8, mlm_share=share, batches_per_epoch=1200, batches_per_draw=draws)
    masked = data._make_plan(0).masked
    runs = masked.reshape(-1, draws)
    assert (runs == runs[:, :1]).all() and within(runs[:, 0].sum(), len(runs), share)
    assert [check_batch(data, data[i]) for i in range(40)] == masked[:40].tolist()
    again = data._make_plan(1).masked
    assert share in (0, 1) or (masked != again).any()


def test_masked_rows_are_documents_and_whole_words():
    text = "w1 un+believ+able w2 un+able ? w3 w4 un+believ+able w5"
    sources = {"en": [Document("", sentences=(text, f"w{n} {text}")) for n in range(40)]}
    data = quiet(sources, TOKENIZER, 8, mlm_share=0.8, mask_rate=0.3, mlm_maxlen=64, maxlen=16, batches_per_epoch=60)
    hits = total = 0
    fates = []
    for index in range(60):
        batch = data[index]
        if not check_batch(data, batch):
            assert batch["token_ids"].shape[1] <= 64 and (index == 0 or batch["token_ids"].shape[1] == 16)
            continue
        assert len(batch["token_ids"]) == 16
        for row, positions, ids in zip(batch["token_ids"], batch["masked_positions"], batch["masked_ids"], strict=True):
            chosen = set(positions[ids >= 0].tolist())
            tokens = [next(t for t, i in TOKENIZER.vocab.items() if i == token) for token in row]
            words = [p for p, token in enumerate(tokens) if not token.startswith(("[", "+"))]
            assert all(tokens[p] != "[UNK]" for p in chosen)
            for start in words:
                end = next(p for p in range(start + 1, len(tokens)) if not tokens[p].startswith("+"))
                assert len(chosen & set(range(start, end))) in (0, end - start)
            hits, total = hits + len(chosen), total + sum(token[0] != "[" for token in tokens)
        real = batch["masked_ids"] >= 0
        fates += np.take_along_axis(batch["encoder_token_ids"], batch["masked_positions"], 1)[real].tolist()
        if index > 1:
            lengths = np.sum(batch["token_ids"] != 0, axis=1)
            assert lengths.min() == 31  # both sentences, however short `maxlen` is
    assert abs(hits / total - 0.3) < 0.03
    assert within(fates.count(4), len(fates), 0.8)


def test_masks_alone_need_no_pairs():
    data = quiet({"en": documents_of([[5], [3]] * 20)}, TOKENIZER, 4, mlm_share=1)
    assert len(data) == 5 and all(check_batch(data, batch) for batch in data)


# Repeatable


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in NAMES)


def test_batches_are_a_function_of_seed_epoch_and_index():
    sources = two_languages()
    first, second = (quiet(sources, TOKENIZER, 8, seed=5, batches_per_epoch=12) for _ in range(2))
    for epoch in (2, 0, 1):
        for index in reversed(range(12)):
            assert same(first.batch(epoch, index), second.batch(epoch, index))
    other = quiet(sources, TOKENIZER, 8, seed=6, batches_per_epoch=12)
    assert not same(first.batch(0, 0), first.batch(1, 0)) and not same(first.batch(0, 0), other.batch(0, 0))
    fixed = quiet(sources, TOKENIZER, 8, seed=5, batches_per_epoch=12, fixed=True)
    assert same(fixed.batch(7, 3), first.batch(0, 3))
    # Documents keep their numbers.
    for epoch in range(3):
        for batch in (first.batch(epoch, index) for index in range(2, 12)):
            for (number, position), row in zip(places(batch), texts_of(batch), strict=True):
                if number >= 0:
                    document_ = [*sources["en"], *sources["de"]][number]
                    assert tuple(TOKENIZER.encode_ragged([document_.sentences[position]])[0]) == row


@given(st.integers(0, 3), st.integers(0, 10))
@settings(max_examples=15)
def test_resumed_pass_is_the_tail_of_the_whole_one(epoch, step):
    sources = two_languages()
    data, other = (quiet(sources, TOKENIZER, 8, batches_per_epoch=10) for _ in range(2))
    other.resume(epoch, step)
    epoch, step = other.state
    tail = list(other)
    assert len(tail) == 10 - step
    assert all(same(batch, data.batch(epoch, index)) for index, batch in enumerate(tail, step))


@pytest.mark.parametrize(
    "shape, options",
    [
        ([[3] * 4] * 20, {}),
        ([[40, 3, 20, 50]] * 20, {}),
        ([[40, 3, 20, 50]] * 20, {"mlm_maxlen": 128}),
        ([[40, 3, 20, 50]] * 20, {"mlm_share": 0}),
        ([[62] * 4] * 20, {"mlm_share": 0}),
        ([[62] * 4] * 20, {"mlm_share": 1}),
        ([[1, 1]] * 20, {"length_multiple": 1}),
        ([[1, 2]] * 20, {"length_multiple": 1, "maxlen": 3}),
        ([[3] * 4] * 20, {"batches_per_epoch": 1}),
        ([[3] * 4] * 20, {"batches_per_epoch": 2}),
        ([[1, 30]], {}),
        ([[1, 30]] * 20, {"batches_per_draw": 4, "batches_per_epoch": 12}),
    ],
)
def test_first_two_batches_share_no_dimension_that_varies(shape, options):
    sources = {"en": documents_of(shape), "de": documents_of([[2, 3, 4]] * 5, 3000)}
    multiple, maxlen = options.get("length_multiple", 16), max(options.get("maxlen", 64), options.get("mlm_maxlen", 0))
    data = quiet(sources, TOKENIZER, 4, **{"batches_per_epoch": 10, **options})
    for epoch in range(6):
        batches = [data.batch(epoch, index) for index in range(len(data))]
        tasks = {check_batch(data, batch, maxlen, multiple) for batch in batches}
        assert len(tasks) == 2 or options or len(shape) == 1 or epoch
        for name in ("token_ids", "encoder_token_ids", "masked_positions", "masked_ids"):
            widths = [batch[name].shape[1] for batch in batches]
            assert widths[0] == max(widths) == data.batch(0, 0)[name].shape[1]
            assert len(widths) == 1 or widths[1] < widths[0] or set(widths) == {widths[0]}


class Losses(keras.Model):
    """A toy of both tasks: embeddings that near sentences share, and that tell masked tokens; it counts what it sees.

    Both losses are in one graph, the one that has no rows is 0.
    """

    def __init__(self, vocab_size):
        super().__init__()
        self.embed = keras.layers.Embedding(vocab_size, 16)
        self.tell = keras.layers.Dense(vocab_size)
        self.embed.build((None, None))
        self.tell.build((None, None, 16))
        self.built = True
        self.counts = self.add_weight(shape=(300, 4), initializer="zeros", trainable=False, name="counts")
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="step")

    def call(self, x):
        return self.embed(x["encoder_token_ids"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        ops = keras.ops
        weights = ops.cast(x["token_ids"] > 0, "float32")[..., None]
        vectors = ops.normalize(ops.sum(y_pred * weights, axis=1) / ops.sum(weights, axis=1))
        near = ops.sum(vectors[0::2] * vectors[1::2], axis=1) * ops.cast(x["sides"][0::2] >= 0, "float32")
        positions, ids = x["masked_positions"], x["masked_ids"]
        hidden = ops.take_along_axis(y_pred, positions[..., None], axis=1)
        logits = self.tell(hidden)
        real = ops.cast(ids >= 0, "float32")
        crossed = keras.losses.sparse_categorical_crossentropy(ops.maximum(ids, 0), logits, from_logits=True)
        masked_loss = ops.sum(crossed * real) / ops.maximum(ops.sum(real), 1.0)
        here = ops.cast(ops.arange(300) == ops.convert_to_tensor(self.step), "float32")
        seen = [
            ops.max(x["sides"]),
            ops.sum(x["encoder_token_ids"]),
            ops.sum(real),
            x["language_ids"][0],
        ]
        row = ops.stack([ops.cast(number, "float32") for number in seen])
        self.counts.assign(ops.convert_to_tensor(self.counts) + here[:, None] * row)
        self.step.assign(ops.convert_to_tensor(self.step) + 1)
        return masked_loss - ops.mean(near)


@pytest.mark.backends
@pytest.mark.parametrize("start", [(0, 0), (2, 3)])
def test_fit_takes_both_tasks(start):
    data = quiet(two_languages(), TOKENIZER, 8, mask_rate=0.3, mlm_maxlen=80, batches_per_epoch=14)
    model, (epoch, step) = Losses(TOKENIZER.vocab_size), start
    model.compile(optimizer="adam")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        callbacks = [Position(data, *start)] if step else []
        log = model.fit(data, initial_epoch=epoch, epochs=epoch + 2, shuffle=False, verbose=0, callbacks=callbacks)
    assert np.isfinite(log.history["loss"]).all()
    wanted = []
    for place in [(epoch, i) for i in range(step, 14)] + [(epoch + 1, i) for i in range(14)]:
        batch = data.batch(*place)
        ids = batch["encoder_token_ids"].sum()
        wanted.append([batch["sides"].max(), ids, (batch["masked_ids"] >= 0).sum(), batch["language_ids"][0]])
    seen = keras.ops.convert_to_numpy(model.counts)
    assert seen[: len(wanted)].tolist() == np.array(wanted).tolist() and not seen[len(wanted) :].any()
    assert {row[0] for row in wanted} == {-1, 1}


# Files


def write_jsonl(path, documents):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"sentences": document.sentences}) + "\n" for document in documents)
    return path


def test_files_give_the_batches_of_the_same_documents(tmp_path):
    sources = two_languages()
    paths = {
        "en": write_jsonl(tmp_path / "docs.jsonl", sources["en"]),
        "de": str(write_jsonl(tmp_path / "docs.jsonl.gz", sources["de"])),
    }
    in_memory = quiet(sources, TOKENIZER, 8)
    mapped = quiet(paths, TOKENIZER, 8)
    cached = quiet(paths, TOKENIZER, 8, cache_dir=tmp_path / "cache")
    folders = sorted((tmp_path / "cache").iterdir())
    times = [file.stat().st_mtime_ns for folder in folders for file in folder.iterdir()]
    again = quiet(paths, TOKENIZER, 8, maxlen=64, cache_dir=tmp_path / "cache")
    assert len(folders) == 2 and times == [f.stat().st_mtime_ns for folder in folders for f in folder.iterdir()]
    for data in (mapped, cached, again):
        assert isinstance(data.tables[0].token_ids.base, np.memmap) and data.facts() == in_memory.facts()
        assert len(data) == len(in_memory)
        assert all(same(data.batch(1, index), in_memory.batch(1, index)) for index in range(len(data)))
    (folders[0] / "token_ids").write_bytes(b"1234" * 10)
    with pytest.warns(UserWarning, match="is damaged and is made again"):
        assert same(ContextWindows(paths, TOKENIZER, 8, cache_dir=tmp_path / "cache")[0], in_memory[0])


def test_a_cache_knows_how_texts_were_cut(tmp_path):
    path = tmp_path / "docs.txt"
    path.write_text("w1. w2. w3.\nw4. w5.\n")
    quiet({"en": path}, TOKENIZER, 2, cache_dir=tmp_path / "cache")
    data = quiet({"de": path}, TOKENIZER, 2, cache_dir=tmp_path / "cache", split=halves)
    assert data.num_pairs == {"de": 4} and len(list((tmp_path / "cache").iterdir())) == 2
    quiet({"en": path}, TOKENIZER, 2, mlm_share=0, cache_dir=tmp_path / "cache")  # words are not marked
    assert len(list((tmp_path / "cache").iterdir())) == 3


def halves(text, language):
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def test_temporary_files_go(tmp_path, monkeypatch):
    path, folder = tmp_path / "docs.txt", tmp_path / "temporary"
    path.write_text("w1|w2|w3\n")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = quiet({"en": path}, TOKENIZER, 2, split=lambda text, language: text.split("|"))
    assert len(data[0]["sides"]) == 4 and len(list(folder.iterdir())) == 1
    with pytest.raises(ValueError, match="no pairs"):
        quiet({"en": path, "de": path}, TOKENIZER, 2, split=lambda text, language: [text])
    del data
    gc.collect()
    assert list(folder.iterdir()) == []


# What cannot be used


PAIR = Document("", sentences=("w1", "w2"))


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"pairs_per_batch": 1}, "`pairs_per_batch` must be an int of at least 2, since one pair has no negatives"),
        ({"maxlen": 2}, r"`maxlen`.*at least 3, since it counts \[CLS\] and \[SEP\]; received 2"),
        ({"mlm_maxlen": 2}, "`mlm_maxlen`.*received 2"),
        ({"window_sentences": 0}, "`window_sentences`.*a sentence is not its own context; received 0"),
        ({"mlm_share": 1.5}, r"`mlm_share` must be in \[0, 1\]; received 1.5"),
        ({"mask_rate": 0}, r"`mask_rate` must be in \(0, 1\); received 0"),
        ({"seed": -1}, "`seed`.*received -1"),
        ({"language_exponent": 3}, r"`language_exponent` must be in \[0, 1\].*received 3"),
        ({"batches_per_epoch": 0}, "`batches_per_epoch`.*received 0"),
        ({"batches_per_epoch": 9, "batches_per_draw": 4}, "must be a multiple of `batches_per_draw`, 4,.*received 9"),
        ({"length_multiple": 0}, "`length_multiple`"),
        ({"window_batches": True}, "`window_batches`.*received True"),
        ({"cache_dir": "cache"}, "`sources`, 'en': `cache_dir` must be None for documents in memory"),
        ({"segment": {"zh": str.split}}, r"`segment` must be for languages of `sources`, \['en'\]; received .*'zh'"),
        ({"sources": {"en": __file__}}, r"`sources`, 'en': .*test_context_windows\.py: the name must end in"),
        ({"sources": {}}, r"`sources` must be a dict .*received \{\}"),
        ({"sources": [PAIR]}, "`sources` must be a dict"),
        ({"sources": {7: [PAIR]}}, "`sources` must have codes of languages as its keys.*received 7"),
        ({"sources": {"en": [PAIR], "de": []}}, "`sources`, 'de': .*at least one document; received none"),
        ({"sources": {"en": [PAIR], "de": [""]}}, "`sources`, 'de': .*no document has any text"),
        ({"sources": {"en": [PAIR], "de": ["w1", 5]}}, "`sources`, 'de': document 1: must be a str or a `Document`"),
        ({"sources": {"en": [PAIR], "de": [Document("", sentences=("w1",))] * 3 + [Document("", sentences=("w2",))]}},
         "`sources`, 'de': no document has two sentences.*received 2 documents of one sentence"),
    ],
)  # fmt: skip
def test_bad_setting_is_named(setting, message):
    sources = setting.pop("sources", {"en": [PAIR]})
    with pytest.raises(ValueError, match=message):
        quiet(sources, TOKENIZER, **setting)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl"):
        quiet({"en": tmp_path / "nothing.jsonl"}, TOKENIZER)
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "One. Two."}\n{"text": 5}\n')
    with pytest.raises(ValueError, match=r"`sources`, 'en': .*docs\.jsonl, line 2: `text` must be a str"):
        quiet({"en": path}, TOKENIZER)
    path.write_text("")
    with pytest.raises(ValueError, match=r"`sources`, 'en': .*docs\.jsonl: holds no documents"):
        quiet({"en": path}, TOKENIZER)


def test_missing_tokens_are_named():
    tokenizer = ToyTokenizer()
    tokenizer.mask_token_id = None
    with pytest.raises(ValueError, match="`mask_token_id` since `mlm_share` is 0.5; received None.*`mlm_share=0`"):
        quiet({"en": [PAIR]}, tokenizer)
    assert quiet({"en": [PAIR]}, tokenizer, mlm_share=0)[0]["token_ids"].shape[0] == 4
    tokenizer.sep_token_id = None
    with pytest.raises(ValueError, match="`sep_token_id`"):
        quiet({"en": [PAIR]}, tokenizer, mlm_share=0)


def test_words_are_marked_only_for_masks(tmp_path):
    tokenizer = byte_level(tmp_path, mark="")
    sources = {"en": [Document("", sentences=("unbelievable", "able"))]}
    with pytest.raises(ValueError, match=r"`whole_word` needs words: .*`whole_word=False`"):
        quiet(sources, tokenizer)
    assert len(quiet(sources, tokenizer, mlm_share=0)) and len(quiet(sources, tokenizer, whole_word=False))


def test_what_is_left_out_is_told_once():
    single = Document("", sentences=("w9",))
    sources = {"en": [*documents_of([[1, 1]] * 9), single, single, PAIR, PAIR, Document("")], "de": [PAIR]}
    with pytest.warns(UserWarning) as caught:
        data = ContextWindows(sources, TOKENIZER, 4, mlm_share=0)
    assert [str(warning.message) for warning in caught] == [
        "'en': 1 documents were left out, the first at document 13: they are empty, or the tokenizer gives them no "
        "ids.",
        "'en': 2 documents were left out, the first at document 10: an earlier document has the same text.",
        "1 documents have one sentence only, so they are in no pair: {'en': 1}.",
        "some languages have fewer pairs than `pairs_per_batch`, so their batches have as many: {'de': 2}.",
        "all pairs of ['de'] are of one document: no negatives are of another one.",
    ]
    assert all(warning.filename == __file__ for warning in caught)
    assert data.num_pairs == {"en": 20, "de": 2}
    assert {len(batch["sides"]) for batch in data} == {8, 4}


def test_long_sentences_are_cut_which_is_told():
    with pytest.warns(TruncationWarning, match="3 of 6 sentences have more than 8 tokens .*: {'en': 3}"):
        data = ContextWindows({"en": documents_of([[6, 7], [6, 80], [6, 9]])}, TOKENIZER, 4, 8, mlm_share=0)
    assert {len(text) for index in range(len(data)) for text in texts_of(data.batch(0, index))} == {6}


def test_equal_sentences_have_equal_keys():
    documents = [Document("", sentences=(f"w{n}", "w50 w51", f"w{n + 10}")) for n in range(4)]
    data = quiet({"en": documents, "de": documents[:1]}, TOKENIZER, 8, mlm_share=0, batches_per_epoch=9)
    keys = {}
    for batch in data:
        for text, key in zip(texts_of(batch), batch["sentence_keys"].tolist(), strict=True):
            assert keys.setdefault(text, key) == key >= 0
    assert len(set(keys.values())) == len(keys) == 9


def test_facts_tell_other_data():
    sources = two_languages()
    data = quiet(sources, TOKENIZER, 8)
    assert json.loads(json.dumps(data.facts())) == data.facts() == quiet(two_languages(), TOKENIZER, 8).facts()
    assert data.is_of(ToyTokenizer(["un", "+believ", "+able"], size=4000)) and not data.is_of(ToyTokenizer())
    for changed in ({"seed": 1}, {"mlm_share": 0.2}, {"window_sentences": 3}, {"whole_word": False}):
        assert quiet(sources, TOKENIZER, 8, **changed).facts() != data.facts()
    turned = dict(reversed(sources.items()))  # the languages have other numbers
    assert quiet(turned, TOKENIZER, 8).facts() != data.facts()


def test_pairs_of_a_table_by_hand():
    maker = TableMaker(TOKENIZER, None, False, SentenceSplitter("en"))
    table = maker.make(documents_of([[2, 1, 3], [4], [1, 1]]), "`source`")
    pairs = ContextPairs(table, 1, 2)
    assert (pairs.num_centres, pairs.num_single, pairs.num_cut, pairs.longest) == (5, 1, 1, 2)
    centres = pairs.centres(np.arange(5))
    assert centres.tolist() == [0, 1, 2, 4, 5]
    assert pairs.documents_of(centres).tolist() == [0, 0, 0, 2, 2] and pairs.positions(centres).tolist() == [
        0,
        1,
        2,
        0,
        1,
    ]
    assert [part.tolist() for part in pairs.tokens(np.arange(6))] == [[0, 2, 3, 6, 10, 11], [2, 1, 2, 2, 1, 1]]
    seen = {tuple(pairs.contexts(centres, rng(seed)).tolist()) for seed in range(50)}
    assert seen == {(1, 0, 1, 5, 4), (1, 2, 1, 5, 4)}
