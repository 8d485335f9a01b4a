import gc
import json
import warnings
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from simretro.models import SentenceEncoder, build_transformer_model, export_weights, load_weights, write_folder
from simretro.models import sentence_encoder as sentence_encoder_module
from simretro.models.builder import load_pretrained
from simretro.models.sentence_encoder import batches_by_length
from simretro.tokenizers import Tokenizer, TruncationWarning

pytestmark = pytest.mark.backends

LETTERS = [chr(97 + i) for i in range(26)]
VOCAB = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS])}
CONFIG = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 32, "max_position_embeddings": 70}
LONG = " ".join("abcdefghij" * 6)  # 60 words


def make(pooling="cls", with_pool=False, **options):
    keras.utils.set_random_seed(0)
    encoder = build_transformer_model(CONFIG, with_pool=with_pool)
    for variable in encoder.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(4 * ops.convert_to_numpy(variable))
    return SentenceEncoder(encoder, Tokenizer(VOCAB), pooling, **options)


@pytest.mark.parametrize(
    "pooling, with_pool", [("cls", False), ("mean", False), ("pooler", "linear"), ("pooler", True)]
)
def test_vectors_are_those_of_the_text_alone(pooling, with_pool):
    """Whatever stands beside it in a batch, whatever the batch size; order kept; "" is finite (R8)."""
    encoder = make(pooling, with_pool, normalize=False)
    texts = ["h", LONG, "", "a b c", "z"]
    expected = []
    for text in texts:
        token_ids = np.array([encoder.tokenizer.encode(text)[0]], "int32")
        outputs = encoder.encoder({"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)})
        sequence = ops.convert_to_numpy(outputs["sequence"])[0]
        pooled = ops.convert_to_numpy(outputs["pooled"])[0] if with_pool else None
        expected.append({"cls": sequence[0], "mean": sequence.mean(0), "pooler": pooled}[pooling])
    for batch_size in (1, 2, 32):
        vectors = encoder.encode(texts, batch_size)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    unit = encoder.encode(iter(texts), normalize=True, show_progress=False)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    assert encoder.encode([]).shape == (0, 16)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_inner_layers_states(pooling, tmp_path):
    encoder = make("pooler", True, normalize=False, maxlen=20)
    first = encoder.at_layer(1, pooling)
    inner = encoder.encoder
    for text in ("a b c", "h"):
        ids = ops.convert_to_tensor([encoder.tokenizer.encode(text)[0]], "int32")
        mask = inner.masks(ids, ops.zeros_like(ids))
        states = ops.convert_to_numpy(inner.blocks[0](inner.embeddings(ids, ops.zeros_like(ids)), attention_mask=mask))
        expected = states[0, 0] if pooling == "cls" else states[0].mean(0)
        np.testing.assert_allclose(first.encode([text])[0], expected, atol=1e-5)
    last = encoder.at_layer(2, pooling)
    same = SentenceEncoder(inner, encoder.tokenizer, pooling, normalize=False)
    np.testing.assert_allclose(last.encode(["a b c"]), same.encode(["a b c"]), atol=1e-6)
    assert (first.pooling, first.normalize, first.maxlen) == (pooling, False, 20)
    first.save_pretrained(tmp_path / "first")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "first")
    np.testing.assert_array_equal(loaded.encode(["a b c"]), first.encode(["a b c"]))
    before = first.encode(["a b"])
    inner.blocks[0].query.bias.assign(np.full(16, 3.0, "float32"))
    np.testing.assert_array_equal(first.encode(["a b"]), before, err_msg="a copy")


@pytest.mark.parametrize("layer, pooling, message", [
    (0, "mean", "`layer`.*at least 1.*received 0"), (3, "mean", "`layer` must be at most 2.*received 3"),
    (1.5, "mean", "`layer`"), (1, "pooler", "`pooling='pooler'` needs"),
])  # fmt: skip
def test_a_layer_that_is_not_there_is_refused(layer, pooling, message):
    with pytest.raises(ValueError, match=message):
        make().at_layer(layer, pooling)


def test_a_cut_is_said_and_stays_within_the_positions():
    encoder = make(maxlen=6)
    with pytest.warns(TruncationWarning, match="`maxlen`=6: 1 of 2 texts"):
        vectors = encoder.encode([LONG, "a b"])
    np.testing.assert_allclose(vectors[0], encoder.encode(["a b c d"])[0], atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(make().encode([LONG + " " + LONG])).all()  # 70 positions, no multiple of 8


def test_cuts_are_told_once_with_their_sum_at_the_line_of_the_caller(monkeypatch):
    monkeypatch.setattr(sentence_encoder_module, "_WINDOW", 2)
    encoder = make(maxlen=6)
    with pytest.warns(TruncationWarning) as told:
        encoder.encode([LONG, "a b", LONG, "a", LONG])
    cuts = [warning for warning in told if warning.category is TruncationWarning]
    assert [str(cut.message) for cut in cuts] == ["`maxlen`=6: 3 of 5 texts lost 168 tokens."]
    assert cuts[0].filename == __file__


def test_saved_folder_says_how_vectors_are_made(tmp_path):
    encoder = make("pooler", "linear", normalize=False, maxlen=12)
    encoder.save_pretrained(tmp_path / "model", {"note": 1})
    loaded = SentenceEncoder.from_pretrained(tmp_path / "model")
    assert loaded.settings() == encoder.settings() and loaded.fingerprint() == encoder.fingerprint()
    np.testing.assert_allclose(loaded.encode(["a b", "c"]), encoder.encode(["a b", "c"]), atol=1e-6)
    mean = SentenceEncoder.from_pretrained(tmp_path / "model", pooling="mean", normalize=True)
    assert mean.fingerprint() != encoder.fingerprint() and mean.pooling == "mean"


def test_fingerprint_changes_with_all_that_a_vector_depends_on():
    encoder = make()
    marks = {encoder.fingerprint(), make("mean").fingerprint(), make(maxlen=9).fingerprint()}
    encoder.encoder.blocks[0].query.bias.assign(np.ones(16))
    marks.add(encoder.fingerprint())
    encoder.encoder.config["hidden_act"] = "relu"  # the same weights, other vectors
    assert len(marks | {encoder.fingerprint()}) == 5


@pytest.mark.parametrize(
    "key, value",
    [
        ("num_attention_heads", 4), ("layer_norm_eps", 1e-3), ("position_embedding_type", "rotary"),
        ("position_offset", 2), ("pad_token_id", 1),
    ],
)  # fmt: skip
def test_fingerprint_names_what_the_weights_do_not_show(key, value):
    encoder = make()
    before = encoder.fingerprint()
    encoder.encoder.config[key] = value
    assert encoder.fingerprint() != before


def test_fingerprint_names_the_vocabulary():
    encoder = make()
    swapped = Tokenizer({**VOCAB, "a": VOCAB["b"], "b": VOCAB["a"]})
    assert SentenceEncoder(encoder.encoder, swapped).fingerprint() != encoder.fingerprint()


def test_weights_that_are_no_numbers_are_refused_and_none_is_assigned():
    encoder = make().encoder
    weights = {name: array + 1 for name, array in export_weights(encoder).items()}
    before = export_weights(encoder)
    weights["block_0/query/kernel"][0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity.*block_0/query/kernel|block_0/query/kernel.*NaN or infinity"):
        load_weights(encoder, weights, "model")
    for name, array in export_weights(encoder).items():
        np.testing.assert_array_equal(array, before[name])


def sentence_folder(tmp_path, tokenizer=None, **files):
    """A folder of sentence-transformers, with some of its files replaced: {name without ending: content}."""
    encoder = make("mean").encoder
    folder = tmp_path / "model"
    facts = {"sentence_encoder": {"pooling": "mean", "normalize": True, "maxlen": 12}}
    write_folder(folder, encoder, tokenizer or Tokenizer(VOCAB), facts, "sentence-transformers")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_a_tokenizer_that_pads_with_another_id_than_the_config_of_a_bert(tmp_path):
    """As multilingual E5: a BERT with the vocabulary of XLM-R."""
    shifted = Tokenizer({**VOCAB, "[PAD]": 1, "[UNK]": 0})
    folder = sentence_folder(tmp_path, shifted)
    encoder = SentenceEncoder.from_pretrained(folder)
    assert encoder.encoder.config["pad_token_id"] == 1
    np.testing.assert_allclose(encoder.encode(["a", "a b c d e"])[0], encoder.encode(["a"])[0], atol=1e-6)


def test_a_limit_beyond_the_positions_is_cut(tmp_path):
    folder = sentence_folder(tmp_path, sentence_bert_config={"max_seq_length": 72})
    assert SentenceEncoder.from_pretrained(folder).maxlen == 70


def test_a_default_prompt_is_told(tmp_path):
    content = {"prompts": {"passage": "p "}, "default_prompt_name": "passage"}
    folder = sentence_folder(tmp_path, config_sentence_transformers=content)
    with pytest.warns(UserWarning, match="puts 'p ' before each text"):
        SentenceEncoder.from_pretrained(folder)


def test_old_folders_that_lower_the_case_do_so_in_every_way_of_reading(tmp_path):
    cased = Tokenizer({**VOCAB, "A": 30, "B": 31}, do_lower_case=False)
    encoder = build_transformer_model({**CONFIG, "vocab_size": 32})
    settings = {"pooling": "mean", "normalize": True, "maxlen": 12}
    folder = tmp_path / "model"
    write_folder(folder, encoder, cased, {"sentence_encoder": settings}, "sentence-transformers")
    content = {"max_seq_length": 12, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(content), "utf-8")
    for tokenizer in (SentenceEncoder.from_pretrained(folder).tokenizer, load_pretrained(folder)[1]):
        assert tokenizer.tokenize("A b") == ["[CLS]", "a", "b", "[SEP]"]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="`pooling`.*'max'"):
        make("max")
    with pytest.raises(ValueError, match="`with_pool`"):
        make("pooler")
    with pytest.raises(ValueError, match="`maxlen`.*70.*71"):
        make(maxlen=71)
    with pytest.raises(ValueError, match="29 tokens.*30 rows|30.*29|`tokenizer`"):
        SentenceEncoder(make().encoder, Tokenizer({**VOCAB, "extra": 30}))
    with pytest.raises(TypeError, match="one str"):
        make().encode("a")
    for value in (0, 2.0, "2", True):
        with pytest.raises(ValueError, match=f"`batch_size` must be an int of at least 1; received {value!r}"):
            make().encode(["a"], batch_size=value)
    for value in (0, 6.0, "6", True):
        with pytest.raises(ValueError, match=f"`maxlen` must be an int of at least 1; received {value!r}"):
            make(maxlen=value)


def test_batches_hold_alike_lengths_and_tokens():
    lengths = np.array([3, 40, 9, 8, 17, 1])
    batches = list(batches_by_length(lengths, 48))
    assert sorted(np.concatenate([chosen for chosen, _ in batches])) == list(range(6))
    for chosen, width in batches:
        assert width % 8 == 0 and lengths[chosen].max() <= width < lengths[chosen].max() + 8
        assert len(chosen) == 1 or len(chosen) * width <= 48


def test_compiled_functions_follow_the_weights_and_leave_with_the_model():
    encoder = make()
    before = encoder.encode(["a b"])
    encoder.encoder.blocks[0].query.bias.assign(np.full(16, 3.0))
    assert np.abs(encoder.encode(["a b"]) - before).max() > 1e-4
    alive = weakref.ref(encoder.encoder)
    del encoder
    keras.backend.clear_session()
    gc.collect()
    assert alive() is None
