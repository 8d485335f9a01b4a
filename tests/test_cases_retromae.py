"""Public reports about RetroMAE, its ports and peers, each as a test of its kind through the public interface.

R1 who sees whom in the enhanced decoder's mask, R2 whole words of every kind of tokenizer, R3 losses in half precision.
"""

import json

import keras
import numpy as np
import pytest
from keras import ops

from simretro.data import MaskedDocuments
from simretro.methods import RetroMAE
from simretro.models import build_transformer_model
from simretro.tokenizers import Tokenizer, load_tokenizer
from tests.reference import numpy_bert as nb
from tests.reference.harness import to_numpy
from tests.tokenizers.conftest import bert_vocab, bytelevel_folder, unigram_folder  # noqa: F401

pytestmark = pytest.mark.backends
tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs the tape")
PAD, CLS, SEP, MASK = 0, 2, 3, 4


def retromae(dtype=None, **options):
    keras.utils.set_random_seed(1)
    config = nb.tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build_transformer_model(config, application="encoder", with_mlm="linear", dtype=dtype)
    return RetroMAE(encoder, **{"seed": 1, **options})


def rows_of(lengths, width=16):
    """Token ids of rows `[CLS] ... [SEP]`, with which tokens are ordinary and which are no padding."""
    lengths, columns = np.array(lengths)[:, None], np.arange(width)[None]
    token_ids = np.random.default_rng(2).integers(5, 50, (len(lengths), width))
    token_ids = np.where(columns < lengths, token_ids, PAD)
    token_ids[:, 0] = CLS
    token_ids[columns == lengths - 1] = SEP
    return token_ids.astype("int32"), (columns > 0) & (columns < lengths - 1), columns < lengths


# R1: visibility in the enhanced-decoding mask
def test_r1_no_row_misses_the_sentence_and_no_token_sees_itself():
    mae = retromae(decoder_mask_rate=0.5)
    token_ids, target_mask, padding_mask = rows_of([12, 5])
    vectors = np.random.default_rng(3).normal(size=(2, 32)).astype("float32")
    head = mae.encoder.mlm_head
    for variable in [*mae.decoder.trainable_variables, *head.trainable_variables]:
        if variable.path.endswith("kernel"):
            variable.assign(8 * variable)

    def logits(ids, seen):
        hidden = mae.decode(ops.convert_to_tensor(ids), ops.convert_to_tensor(vectors), seen, training=False)
        return to_numpy(head(hidden, mae.encoder.token_table))

    for _ in range(5):
        mask = mae.decoder_mask(ops.convert_to_tensor(target_mask), ops.convert_to_tensor(padding_mask))
        seen = to_numpy(mask)[:, 0]
        assert seen[:, 1:, 0].all()
        assert not np.einsum("bii->bi", seen).any()
        assert not seen.transpose(0, 2, 1)[~padding_mask].any()
        assert 0 < seen[0, 1:11, 1:11].sum() < 90
        before = logits(token_ids, mask)
        for i in range(1, 11):
            changed = token_ids.copy()
            changed[0, i] = token_ids[0, i] % 44 + 6
            moved = np.abs(logits(changed, mask) - before)[0].max(-1)
            assert moved[i] < 1e-6, f"token {i} leaks into its own prediction"
            assert (moved[:12][seen[0, :12, i]] > 1e-5).all()
            assert moved[~seen[0, :, i]].max() < 1e-6


# R2: whole words of every kind of tokenizer


@pytest.fixture(params=["##", "▁", "Ġ"])
def tokenizer(request):
    """A tokenizer that marks the beginnings or the continuations of words in this way."""
    if request.param == "##":
        return Tokenizer(request.getfixturevalue("bert_vocab"))
    return load_tokenizer(request.getfixturevalue({"▁": "unigram_folder", "Ġ": "bytelevel_folder"}[request.param]))


def documents_of(tmp_path):
    path = tmp_path / "documents.txt"
    lines = ["unbelievable news unbelievable news news unbelievable", "news unbelievable news", "unbelievable"]
    path.write_text("\n".join(lines * 6) + "\n", "utf-8")
    return path


def words_in(tokenizer, row):
    """Columns of each word of a row."""
    words = tokenizer.word_ids(row.tolist())
    return [[c for c, word in enumerate(words) if word == number] for number in range(1 + max(w or 0 for w in words))]


def check_masks(tokenizer, token_ids, positions, ids, specials):
    """Checks one kind of mask of a batch; returns bool (B, L), what is masked."""
    masked = np.zeros(token_ids.shape, bool)
    for row in range(len(token_ids)):
        columns = positions[row][ids[row] >= 0]
        assert len(set(columns)) == len(columns)
        np.testing.assert_array_equal(token_ids[row, columns], ids[row][ids[row] >= 0], err_msg="not the original ids")
        masked[row, columns] = True
        assert not masked[row][np.isin(token_ids[row], specials)].any(), "a special token is masked"
        for word in words_in(tokenizer, token_ids[row]):
            assert masked[row, word].all() or not masked[row, word].any(), "a part of a word is masked"
    return masked


def test_r2_words_are_masked_as_a_whole(tokenizer, tmp_path):
    data = MaskedDocuments(
        documents_of(tmp_path), tokenizer, 6, 32, mask_rate=0.3, decoder_mask_rate=0.5, with_word_ids=True
    )
    specials = [*tokenizer.special_ids, tokenizer.sep_token_id]
    shares, replaced, split_words = [], [], 0
    for epoch in range(30):
        for index in range(len(data)):
            batch = data.batch(epoch, index)
            token_ids = batch["token_ids"]
            real = ~np.isin(token_ids, specials)
            np.testing.assert_array_equal(batch["word_ids"] >= 0, real)
            for row, numbers in zip(token_ids, batch["word_ids"], strict=True):
                words = words_in(tokenizer, row)
                assert all(len(set(numbers[word])) == 1 for word in words)
                assert len({numbers[word[0]] for word in words}) == len(words)
                split_words += sum(len(word) > 1 for word in words)
            masked = check_masks(tokenizer, token_ids, batch["masked_positions"], batch["masked_ids"], specials)
            np.testing.assert_array_equal(batch["encoder_token_ids"][~masked], token_ids[~masked])
            replaced.append(batch["encoder_token_ids"][masked] == tokenizer.mask_token_id)
            hidden = check_masks(tokenizer, token_ids, batch["decoder_positions"], batch["decoder_ids"], specials)
            want = np.where(hidden, tokenizer.mask_token_id, token_ids)
            np.testing.assert_array_equal(batch["decoder_token_ids"], want)
            shares.append([masked.sum(), hidden.sum(), real.sum()])
    assert split_words > 500, "the words of this text have several tokens"
    masked, hidden, ordinary = np.sum(shares, axis=0)
    assert masked / ordinary == pytest.approx(0.3, abs=0.04)
    assert hidden / ordinary == pytest.approx(0.5, abs=0.04)
    assert np.concatenate(replaced).mean() == pytest.approx(0.8, abs=0.05)


def test_r2_a_vocabulary_that_marks_no_words_is_refused(unigram_folder, tmp_path):  # noqa: F811
    file = unigram_folder / "tokenizer.json"
    state = json.loads(file.read_text("utf-8"))
    for entry in state["model"]["vocab"]:
        entry[0] = entry[0].replace("▁", "_")
    file.write_text(json.dumps(state), "utf-8")
    with pytest.raises(ValueError, match="does not mark words"):
        MaskedDocuments(documents_of(tmp_path), load_tokenizer(unigram_folder), 4, 32).batch(0, 0)


# R3: loss 0 or NaN in float16
@pytest.mark.parametrize("options", [{}, {"query_norm": True}, {"bow_weight": 0.1}])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_r3_half_precision_gives_the_loss_of_float32(dtype, options):
    """Lengths 3 and 12: the rows of padding may see next to nothing."""
    if dtype == "mixed_float16" and keras.backend.backend() == "jax":
        pytest.skip("JAX's attention on the CPU does not take float16")
    losses = []
    for policy in (None, dtype):
        mae = retromae(policy, **options)
        mae.compile("sgd", run_eagerly=not mae.bow_weight)
        losses.append(mae.evaluate(r3_batch(), batch_size=2, return_dict=True, verbose=0)["loss"])
    assert np.isfinite(losses[1]) and losses[1] == pytest.approx(losses[0], abs=1e-2) and losses[0] > 1


@tensorflow_only
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_r3_half_precision_has_gradients(dtype):
    """Also beside a row that is padding alone, and so sees nothing at all."""
    import tensorflow as tf

    mae = retromae(dtype, bow_weight=0.1)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = mae.compute_loss(batch, None, mae(batch, training=True), None, True)
        return loss, tape.gradient(loss, mae.trainable_variables)

    empty = {name: np.zeros((1, 16), "int32") for name in r3_batch()} | {"masked_ids": np.full((1, 16), -1, "int32")}
    batch = {name: tf.constant(np.concatenate([array, empty[name]])) for name, array in r3_batch().items()}
    loss, gradients = step(batch)
    assert np.isfinite(float(loss))
    for variable, gradient in zip(mae.trainable_variables, gradients, strict=True):
        gradient = np.asarray(tf.convert_to_tensor(gradient), "float32")
        assert np.isfinite(gradient).all(), variable.path
        assert np.abs(gradient).max() > 0 or variable.path.endswith("key/bias"), variable.path


def r3_batch():
    token_ids, _, _ = rows_of([3, 12])
    positions, ids = np.zeros((2, 16), "int32"), np.full((2, 16), -1, "int32")
    corrupted = token_ids.copy()
    for row, columns in enumerate([[1], [2, 5, 9]]):
        positions[row, : len(columns)], ids[row, : len(columns)] = columns, token_ids[row, columns]
        corrupted[row, columns] = MASK
    batch = {"token_ids": token_ids, "encoder_token_ids": corrupted}
    return {**batch, "masked_positions": positions, "masked_ids": ids}
