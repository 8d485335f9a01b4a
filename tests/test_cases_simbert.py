"""Public reports about SimBERT and its ports, each as a test of its kind through the public interface.

S1 wrong vector, S2 pair against sentence, S3 reload after vocabulary simplification, S4 position overflow,
S6 similarity loss, S9(e) source copies, batches and scores of `gen_synonyms`.
"""

import re
import warnings

import keras
import numpy as np
import pytest

from simretro.checkpoints import read_checkpoint, write_huggingface, write_simretro, write_tf1
from simretro.generation import generate
from simretro.methods.simbert import SimBERT
from simretro.models import build_transformer_model
from simretro.tokenizers import Tokenizer, load_vocab
from tests.reference import numpy_bert as nb
from tests.reference.harness import build, position_warnings, run, to_numpy
from tests.reference.scripted import scripted_weights

pytestmark = pytest.mark.backends
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = list("今天晚上加班吃了苹果会拉肚子地球是圆的这张纸真难用怎么办好人大小多少")
MIXED = [*SPECIALS, *"iphone x 3 : 30 多 少 钱 微 信 和 支 付 宝 哪 个 好 人".split()]
OPTIONS = {"application": "unilm", "with_pool": "linear", "with_mlm": "linear"}
PAD, UNK, CLS, SEP, MASK = range(5)


def tokenizer_of(tokens):
    assert len(set(tokens)) == len(tokens)
    return Tokenizer({token: i for i, token in enumerate(tokens)})


def config_of(tokens, **overrides):
    return nb.tiny_config(vocab_size=len(tokens), hidden_size=64, embedding_size=64, **overrides)


def simbert_of(tokens, weights, options=(), **overrides):
    """A SimBERT over given weights; `options` are its own, `overrides` those of the configuration."""
    encoder = build(config_of(tokens, **overrides), weights, **OPTIONS)
    return SimBERT(encoder, tokenizer_of(tokens), **dict(options))


def normalised(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def chinese():
    """(config, weights, SimBERT) with a vocabulary of single characters; its weights like to write special tokens."""
    tokens = SPECIALS + CHARACTERS
    config = config_of(tokens)
    weights = nb.random_weights(config, 2)
    weights["mlm_head/bias"][[PAD, UNK, CLS, MASK]] = 6
    return config, weights, simbert_of(tokens, weights)


def sentence_vector(config, weights, text, tokenizer):
    token_ids, segment_ids = tokenizer.encode(text)
    return nb.forward(config, weights, [token_ids], [segment_ids], "unilm")["pooled_linear"][0]


# S1: wrong vector taken as sentence vector
def test_s1_the_vector_is_the_linear_pooler():
    tokens = SPECIALS + CHARACTERS
    config = config_of(tokens)
    weights = nb.random_weights(config, 2)
    weights["pooler/kernel"], weights["pooler/bias"] = 2 * np.eye(64, dtype="float32"), np.ones(64, "float32")
    simbert = simbert_of(tokens, weights)
    texts = ["今天晚上加班", "吃了苹果会拉肚子"]
    token_ids = [simbert.tokenizer.encode(text)[0] for text in texts]
    want = [2 * nb.forward(config, weights, [ids], None, "unilm")["sequence"][0, 0] + 1 for ids in token_ids]
    np.testing.assert_allclose(simbert.encode(texts, normalize=False), want, atol=2e-5)
    np.testing.assert_allclose(simbert.encode(texts), normalised(np.array(want)), atol=1e-5)
    with_tanh = build(config, weights, application="unilm", with_pool=True)
    np.testing.assert_allclose(run(with_tanh, token_ids[:1])["pooled"], np.tanh(want[:1]), atol=1e-5)


def test_s1_encode_of_many_lengths_keeps_order_and_batch(chinese):
    config, weights, simbert = chinese
    texts = ["好", "地球是圆的", "今天晚上加班怎么办", "", "纸", "这张纸真难用", "地球是圆的", "大人小人"]
    want = normalised(np.array([sentence_vector(config, weights, text, simbert.tokenizer) for text in texts]))
    for batch_size in (3, 32):
        vectors = simbert.encode(texts, batch_size=batch_size)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, want, atol=1e-5)
    assert simbert.encode([]).shape == (0, 64)


# S2: vector of the pair against vector of the sentence
def test_s2_source_is_isolated_from_target_and_padding(chinese):
    config, weights, simbert = chinese
    tokenizer = simbert.tokenizer
    model = build(config, weights, **OPTIONS)
    a, b, c = "今天晚上加班", "苹果好", "地球是圆的"
    alone = run(model, [tokenizer.encode(a)[0]])["pooled"][0]
    rows = [tokenizer.encode(a, b), tokenizer.encode(a, c), tokenizer.encode(a)]
    length = len(tokenizer.encode(a)[0]) + 10
    token_ids = [ids + [PAD] * (length - len(ids)) for ids, _ in rows]
    segment_ids = [segments + [0] * (length - len(segments)) for _, segments in rows]
    for vector in run(model, token_ids, segment_ids)["pooled"]:
        np.testing.assert_allclose(vector, alone, atol=1e-5)
    np.testing.assert_allclose(simbert.encode([a], normalize=False)[0], alone, atol=1e-5)


def test_s2_target_token_is_unseen_by_earlier_positions(chinese):
    config, weights, simbert = chinese
    model = build(config, weights, **OPTIONS)
    token_ids, segment_ids = simbert.tokenizer.encode("今天晚上", "怎么办好")
    before = run(model, [token_ids], [segment_ids])["mlm_logits"][0]
    for t in np.flatnonzero(segment_ids):
        changed = [*token_ids[:t], 20 if token_ids[t] != 20 else 21, *token_ids[t + 1 :]]
        after = run(model, [changed], [segment_ids])["mlm_logits"][0]
        np.testing.assert_allclose(after[:t], before[:t], atol=1e-5)
        assert np.abs(after[t:] - before[t:]).max(-1).min() > 1e-3


# S3: reload after vocabulary simplification
@pytest.fixture
def simplified(tmp_path):
    """A checkpoint of ten tokens, read with the seven that are worth keeping: (source folder, vocab, keep, model)."""
    vocab_path = tmp_path / "original.txt"
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "的", "##的", "好", "a"]
    vocab_path.write_text("\n".join(lines) + "\n", "utf-8")
    config = nb.tiny_config(vocab_size=10)
    weights = nb.random_weights(config, 1)
    write_tf1(tmp_path / "original", config, weights)
    vocab, keep_tokens = load_vocab(vocab_path, simplified=True, startswith=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    assert list(vocab) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "的", "好", "a"]
    assert list(keep_tokens) == [0, 1, 2, 3, 6, 8, 9]
    model = build_transformer_model(config, tmp_path / "original", keep_tokens=keep_tokens, **OPTIONS)
    # What the sliced model must say: the original's words at the kept places, ids translated.
    truth = nb.forward(config, weights, [[2, 6, 8, 9, 3, 6, 3]], [[0, 0, 0, 0, 0, 1, 1]], "unilm")
    outputs = run(model, [[2, 4, 5, 6, 3, 4, 3]], [[0, 0, 0, 0, 0, 1, 1]])
    np.testing.assert_allclose(outputs["pooled"], truth["pooled_linear"], atol=1e-5)
    np.testing.assert_allclose(outputs["mlm_logits"], truth["mlm_logits"][..., keep_tokens], atol=1e-5)
    assert model.config["vocab_size"] == 7
    return tmp_path / "original", vocab, keep_tokens, model


ROW = [[2, 4, 5, 6, 3, 4, 3]], [[0, 0, 0, 0, 0, 1, 1]]


def save_as(kind, folder, vocab, model):
    if kind == "simbert":
        SimBERT(model, Tokenizer(vocab)).save_pretrained(folder)
        return
    weights = {v.path: to_numpy(v) for v in model.weights}
    {"tf1": write_tf1, "huggingface": write_huggingface}[kind](folder, model.config, weights)
    Tokenizer(vocab).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["simbert", "tf1", "huggingface"])
def test_s3_reload_needs_no_keep_tokens_and_refuses_them(simplified, kind, tmp_path):
    _, vocab, keep_tokens, model = simplified
    folder = tmp_path / "small"
    save_as(kind, folder, vocab, model)
    config = read_checkpoint(folder).config
    assert config["vocab_size"] == 7
    again = build_transformer_model(config, folder, **OPTIONS)
    before, after = run(model, *ROW), run(again, *ROW)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)
    with pytest.raises(ValueError, match="`keep_tokens`") as error:
        build_transformer_model(config, folder, keep_tokens=keep_tokens, **OPTIONS)
    assert re.search(r"\b7\b", str(error.value)) and re.search(r"\b(9|10)\b", str(error.value)), "both sizes"
    simbert = SimBERT.from_pretrained(folder)
    assert simbert.tokenizer.encode("的好a") == Tokenizer(vocab).encode("的好a")
    np.testing.assert_allclose(simbert.encode(["的好a"], normalize=False)[0], before["pooled"][0], atol=1e-5)


def test_s3_sizes_out_of_step_are_named(simplified):
    """The original configuration over the small table, and the original vocabulary over the small model."""
    original, vocab, _, model = simplified
    small = original.parent / "small"
    save_as("tf1", small, vocab, model)
    with pytest.raises(ValueError, match=r"(?s)\b10\b.*\b7\b|\b7\b.*\b10\b"):
        build_transformer_model(nb.tiny_config(vocab_size=10), small, **OPTIONS)
    full = dict(zip(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"的好人大小"], range(10), strict=True))
    with pytest.raises(ValueError, match=r"(?s)\b10\b.*\b7\b|\b7\b.*\b10\b"):
        SimBERT(model, Tokenizer(full))


@pytest.mark.parametrize("write", [write_tf1, write_huggingface, write_simretro])
def test_s3_every_written_folder_gives_the_same_simbert(write, tmp_path, chinese):
    config, weights, simbert = chinese
    if write is write_simretro:
        write(tmp_path / "folder", config, weights, {})
    else:
        write(tmp_path / "folder", config, weights)
    simbert.tokenizer.save_pretrained(tmp_path / "folder")
    read = read_checkpoint(tmp_path / "folder").weights
    assert set(read) == set(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(read[name], value, err_msg=name)
    loaded = SimBERT.from_pretrained(str(tmp_path / "folder"))
    texts = ["今天晚上加班", "好"]
    np.testing.assert_allclose(loaded.encode(texts), simbert.encode(texts), atol=1e-6)


# S4: position overflow
@pytest.fixture(scope="module")
def endless():
    """A SimBERT of 16 positions that never writes an end."""
    tokens = SPECIALS + CHARACTERS
    size = {"max_position_embeddings": 16, "num_hidden_layers": 1}
    table = np.zeros((16, len(tokens)))
    table[:, 5:15] = 0.1
    return simbert_of(tokens, scripted_weights(config_of(tokens, **size), table), **size)


def test_s4_synonyms_stay_within_the_positions(endless):
    text = "今天晚上加班吃了苹果会拉"  # 14 tokens with [CLS] and [SEP], so two remain
    results, caught = position_warnings(lambda: endless.gen_synonyms([text, "好"], n=6, k=6, maxlen=32, seed=0))
    assert len(caught) == 1, f"one warning: {caught}"
    assert all(results) and all(1 <= len(synonym) <= 15 for synonyms in results for synonym in synonyms)
    alone, _ = position_warnings(lambda: endless.gen_synonyms("好", n=6, k=6, maxlen=32, seed=0))
    assert max(map(len, alone)) == max(map(len, results[1])) >= 12, "a long neighbour takes no room from a short text"


def test_s4_texts_longer_than_the_positions(endless):
    for long in ("好" * 40, "今天晚上加班，" * 8):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vectors = endless.encode([long, "好"])
        assert vectors.shape == (2, 64) and np.isfinite(vectors).all()
        assert any("16" in str(w.message) or "truncat" in str(w.message) for w in caught), "a cut is said, not silent"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert isinstance(endless.gen_synonyms(long, n=2, k=2, seed=0), list)


# S6: similarity loss within the model
def training_batch(pairs, mask=False):
    """What the sampler yields: rows a|b and b|a, targets as positions; every length a multiple of eight."""
    rows = [row for a, b in pairs for row in ((a, b), (b, a))]
    batch = {"token_ids": np.full((len(rows), 24), PAD, "int32"), "segment_ids": np.zeros((len(rows), 24), "int32")}
    batch |= {"target_positions": np.zeros((len(rows), 8), "int32"), "target_ids": np.full((len(rows), 8), -1, "int32")}
    if mask:
        batch |= {"masked_positions": np.zeros((len(rows), 8), "int32")}
        batch |= {"masked_ids": np.full((len(rows), 8), -1, "int32")}
    for i, (source, target) in enumerate(rows):
        token_ids, start = [CLS, *source, SEP, *target, SEP], len(source) + 2
        batch["token_ids"][i, : len(token_ids)] = token_ids
        batch["segment_ids"][i, start : len(token_ids)] = 1
        batch["target_positions"][i, : len(target) + 1] = np.arange(start - 1, len(token_ids) - 1)
        batch["target_ids"][i, : len(target) + 1] = token_ids[start:]
        if mask:
            batch["masked_positions"][i, 0], batch["masked_ids"][i, 0] = 1, token_ids[1]
            batch["token_ids"][i, 1] = MASK
    return batch


PAIRS = [([9, 8, 17], [7, 30]), ([21], [22, 23, 24, 25]), ([11, 12], [13, 5])]
LOSS_CONFIG = nb.tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def loss_of(batch, weights, dtype=None, train=False, **options):
    """Loss that a compiled SimBERT reports for one batch."""
    if dtype == "mixed_float16" and keras.backend.backend() == "jax":
        pytest.skip("JAX on CPU has no attention in float16")
    encoder = build(LOSS_CONFIG, weights, dtype=dtype, **OPTIONS)
    simbert = SimBERT(encoder, **options)
    simbert.compile(optimizer=keras.optimizers.SGD(1e-2))
    before = to_numpy(encoder.weights[0])
    logs = (simbert.train_on_batch if train else simbert.test_on_batch)(batch, return_dict=True)
    moved = np.abs(to_numpy(encoder.weights[0]) - before).max()
    assert np.isfinite(moved)
    if dtype != "mixed_float16":  # there the loss scale may begin too high, and the step is left out
        assert (moved > 0) == train
    return float(logs["loss"])


def reference_losses(batch, weights):
    """(seq2seq, similarity, MLM) of a batch by the whole logits in NumPy."""
    outputs = nb.forward(LOSS_CONFIG, weights, batch["token_ids"], batch["segment_ids"], "unilm")
    masked = 0.0
    if "masked_ids" in batch:
        logits = np.take_along_axis(outputs["mlm_logits"], batch["masked_positions"][..., None], 1)
        masked = nb.cross_entropy(logits.reshape(-1, 50), batch["masked_ids"].ravel())[0]
    seq2seq = nb.seq2seq_loss(outputs["mlm_logits"], batch["token_ids"], batch["segment_ids"])
    return seq2seq, nb.similarity_loss(outputs["pooled_linear"])[0], masked


@pytest.fixture(scope="module")
def weights():
    return nb.random_weights(LOSS_CONFIG, 4)


@pytest.mark.parametrize("train", [False, True])
def test_s6_total_loss_is_the_sum_of_the_means(weights, train):
    batch = training_batch(PAIRS)
    seq2seq, similarity, _ = reference_losses(batch, weights)
    assert loss_of(batch, weights, train=train) == pytest.approx(seq2seq + similarity, rel=1e-5)


def test_s6_each_part_has_its_weight(weights):
    batch = training_batch(PAIRS, mask=True)
    seq2seq, similarity, masked = reference_losses(batch, weights)
    assert loss_of(batch, weights, seq2seq_weight=0.0) == pytest.approx(similarity, rel=1e-5)
    assert loss_of(batch, weights, similarity_weight=0.0) == pytest.approx(seq2seq, rel=1e-5)
    want = 2 * seq2seq + 3 * similarity + 0.5 * masked
    got = loss_of(batch, weights, seq2seq_weight=2.0, similarity_weight=3.0, mlm_weight=0.5, train=True)
    assert got == pytest.approx(want, rel=1e-5)


def test_s6_temperature(weights):
    batch = training_batch(PAIRS)
    vectors = nb.forward(LOSS_CONFIG, weights, batch["token_ids"], batch["segment_ids"], "unilm")["pooled_linear"]
    want = nb.similarity_loss(vectors, 0.2)[0]
    assert loss_of(batch, weights, temperature=0.2, seq2seq_weight=0.0) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_s6_collapsed_vectors_cost_ln_5_in_every_precision(weights, dtype):
    pooler = {"pooler/kernel": 0 * weights["pooler/kernel"], "pooler/bias": 0 * weights["pooler/bias"] + 1}
    loss = loss_of(training_batch(PAIRS), weights | pooler, dtype=dtype, seq2seq_weight=0.0)
    assert loss == pytest.approx(np.log(5), abs=1e-3)


@pytest.mark.parametrize("dtype, tolerance", [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)])
def test_s6_low_precision_trains_on_nearly_the_same_loss(weights, dtype, tolerance):
    batch = training_batch(PAIRS)
    want = sum(reference_losses(batch, weights))
    assert loss_of(batch, weights, dtype=dtype, train=True) == pytest.approx(want, rel=tolerance)


def test_s6_swapping_the_members_of_every_pair_changes_nothing(weights):
    swapped = training_batch([(b, a) for a, b in PAIRS])
    assert loss_of(swapped, weights) == pytest.approx(loss_of(training_batch(PAIRS), weights), rel=1e-5)


# S9 (e): copies of the source, batches, scores
def copying_simbert(text, faithful):
    """A SimBERT that writes `text` back, each token with probability `faithful`, otherwise another character."""
    source = tokenizer_of(MIXED).encode(text)[0]
    config = config_of(MIXED, num_hidden_layers=1)
    table = np.zeros((config["max_position_embeddings"], len(MIXED)))
    table[:, SEP] = 1
    for i, token in enumerate(source[1:]):
        row = table[len(source) - 1 + i]
        row[SEP], row[-4:] = 0, (1 - faithful) / 4
        row[token] += faithful
    return simbert_of(MIXED, scripted_weights(config, table), num_hidden_layers=1), source


@pytest.mark.parametrize("text", ["iPhone X多少钱", "3:30", "微信 和支付宝"])
def test_s9_copies_of_the_source_are_dropped_by_their_ids(text):
    simbert, source = copying_simbert(text, 0.8)
    tokenizer = simbert.tokenizer
    (written,) = generate(simbert.encoder, [source], 12, SEP, n=60, top_k=5, seed=1)
    copies = sum(tokens == source[1:-1] for tokens in written)
    assert 5 < copies < 55, "this model writes the source itself, and other things"
    synonyms = simbert.gen_synonyms(text, n=60, k=60, seed=1)
    assert synonyms and len(set(synonyms)) == len(synonyms)
    assert source not in [tokenizer.encode(synonym)[0] for synonym in synonyms]


def test_s9_a_model_that_only_copies_has_no_synonyms():
    simbert, _ = copying_simbert("iPhone X多少钱", 1.0)
    assert simbert.gen_synonyms("iPhone X多少钱", n=5, k=5, seed=0) == []
    assert simbert.gen_synonyms("iPhone X多少钱", n=5, k=5, with_scores=True, seed=0) == []


TEXTS = ["今天晚上加班", "好人", "地球是圆的吃了"]


def test_s9_lists_keep_their_order_and_seed(chinese):
    _, _, simbert = chinese
    results = simbert.gen_synonyms(TEXTS, n=5, k=20, seed=3, maxlen=12)
    assert len(results) == 3 and all(1 <= len(synonyms) <= 5 for synonyms in results)
    assert simbert.gen_synonyms(TEXTS, n=5, k=20, seed=3, maxlen=12) == results
    assert simbert.gen_synonyms(TEXTS, n=5, k=20, seed=4, maxlen=12) != results
    assert simbert.gen_synonyms(TEXTS, n=5, k=2, seed=3, maxlen=12) == [synonyms[:2] for synonyms in results]
    for synonyms in results:
        assert all(0 < len(s) <= 12 and set(s) <= set(CHARACTERS) for s in synonyms), "no special token is written"
    assert simbert.gen_synonyms([]) == []


def test_s9_each_text_gets_its_own_synonyms(chinese):
    _, _, simbert = chinese
    options = {"n": 1, "k": 1, "top_k": 1, "maxlen": 12}
    together = simbert.gen_synonyms(TEXTS, **options)
    assert together[1] == simbert.gen_synonyms(TEXTS[1], **options)
    assert len({synonym for synonyms in together for synonym in synonyms}) == 3


def test_s9_scores_are_cosines_in_descending_order(chinese):
    config, weights, simbert = chinese
    scored = simbert.gen_synonyms(TEXTS, n=5, k=8, with_scores=True, seed=3, maxlen=12)
    assert [[t for t, _ in pairs] for pairs in scored] == simbert.gen_synonyms(TEXTS, n=5, k=8, seed=3, maxlen=12)
    for text, pairs in zip(TEXTS, scored, strict=True):
        scores = [score for _, score in pairs]
        assert scores == sorted(scores, reverse=True) and all(isinstance(score, float) for score in scores)
        vectors = [sentence_vector(config, weights, t, simbert.tokenizer) for t in [text, *(t for t, _ in pairs)]]
        vectors = normalised(np.array(vectors))
        np.testing.assert_allclose(scores, vectors[1:] @ vectors[0], atol=1e-4)


def test_s9_one_text_and_a_list_of_one_agree(chinese):
    _, _, simbert = chinese
    (listed,) = simbert.gen_synonyms(TEXTS[:1], n=5, seed=3, maxlen=12)
    alone = simbert.gen_synonyms(TEXTS[0], n=5, seed=3, maxlen=12)
    assert alone == listed and all(isinstance(synonym, str) for synonym in alone)


def test_s9_a_saved_simbert_writes_the_same(chinese, tmp_path):
    _, _, simbert = chinese
    simbert.save_pretrained(tmp_path / "simbert")
    loaded = SimBERT.from_pretrained(str(tmp_path / "simbert"))
    options = {"n": 5, "seed": 3, "maxlen": 12}
    assert loaded.gen_synonyms(TEXTS, **options) == simbert.gen_synonyms(TEXTS, **options)
    np.testing.assert_allclose(loaded.encode(TEXTS), simbert.encode(TEXTS), atol=1e-6)


def test_most_similar_ranks_by_cosine_and_gives_at_most_what_there_is(chinese):
    config, weights, simbert = chinese
    texts = [*TEXTS, "苹果", "纸"]
    vectors = normalised(np.array([sentence_vector(config, weights, text, simbert.tokenizer) for text in texts]))
    simbert.build_index(texts, kind="exact")
    found = simbert.most_similar(texts, topn=50)
    for vector, neighbours in zip(vectors, found, strict=True):
        cosines = vectors @ vector
        order = np.argsort(-cosines)
        assert [text for text, _ in neighbours] == [texts[i] for i in order]
        np.testing.assert_allclose([score for _, score in neighbours], cosines[order], atol=1e-5)
    alone = simbert.most_similar(texts[1], topn=2)  # encoded alone: the last bits may differ
    assert [text for text, _ in alone] == [text for text, _ in found[1][:2]]
    np.testing.assert_allclose([score for _, score in alone], [score for _, score in found[1][:2]], atol=1e-5)
