"""The same folders, read and written by transformers and by us. Needs torch and transformers."""

import numpy as np
import pytest

from simretro.checkpoints import CheckpointError, read_checkpoint, write_huggingface

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 19,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 14,
}
CLASSES = {
    "bert": ("BertConfig", "BertForMaskedLM", "BertModel"),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", "RobertaModel"),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", "XLMRobertaModel"),
    "roformer": ("RoFormerConfig", "RoFormerForMaskedLM", "RoFormerModel"),
}


def build(model_type, kind, seed=0, **changes):
    """A transformers model with random weights everywhere, biases and norms included."""
    torch.manual_seed(seed)
    names = CLASSES[model_type]
    config = getattr(transformers, names[0])(**SIZES, **changes)
    model = getattr(transformers, names[kind])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_()
    return model


def hand_picked(model, weights):
    """(their parameter, our array) of one variable of every kind."""
    backbone = getattr(model, model.base_model_prefix, model)
    block = backbone.encoder.layer[1]
    yield backbone.embeddings.word_embeddings.weight, weights["embeddings/token/embeddings"]
    yield backbone.embeddings.token_type_embeddings.weight, weights["embeddings/segment/embeddings"]
    yield backbone.embeddings.LayerNorm.weight, weights["embeddings/norm/gamma"]
    yield block.attention.self.query.weight, weights["block_1/query/kernel"].T
    yield block.attention.self.key.bias, weights["block_1/key/bias"]
    yield block.attention.output.dense.weight, weights["block_1/attention_output/kernel"].T
    yield block.attention.output.LayerNorm.bias, weights["block_1/attention_norm/beta"]
    yield block.intermediate.dense.weight, weights["block_1/intermediate/kernel"].T
    yield block.output.dense.weight, weights["block_1/output/kernel"].T
    yield block.output.LayerNorm.weight, weights["block_1/output_norm/gamma"]


def hand_picked_head(model, weights):
    if hasattr(model, "lm_head"):
        head, dense, norm = model.lm_head, model.lm_head.dense, model.lm_head.layer_norm
    else:
        head = model.cls.predictions
        dense, norm = head.transform.dense, head.transform.LayerNorm
    yield head.bias, weights["mlm_head/bias"]
    yield dense.weight, weights["mlm_head/dense/kernel"].T
    yield norm.weight, weights["mlm_head/norm/gamma"]


def assert_equal_pairs(pairs):
    for theirs, ours in pairs:
        np.testing.assert_array_equal(theirs.detach().float().numpy(), np.asarray(ours, "float32"))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("model_type", CLASSES)
def test_reads_what_transformers_writes(model_type, safe, tmp_path):
    model = build(model_type, 1)
    save(model, tmp_path, safe)
    assert (tmp_path / ("model.safetensors" if safe else "pytorch_model.bin")).is_file()
    checkpoint = read_checkpoint(tmp_path)
    assert_equal_pairs(hand_picked(model, checkpoint.weights))
    assert_equal_pairs(hand_picked_head(model, checkpoint.weights))
    # everything is there: as many numbers as transformers counts, less RoFormer's table of sines
    theirs = sum(p.numel() for name, p in model.named_parameters() if "embed_positions" not in name)
    assert sum(array.size for array in checkpoint.weights.values()) == theirs
    assert "pooler/kernel" not in checkpoint.weights
    offset = 2 if model_type in ("roberta", "xlm-roberta") else 0
    assert (checkpoint.config["model_type"], checkpoint.config["position_offset"]) == (model_type, offset)


def save(model, folder, safe):
    try:
        model.save_pretrained(folder, safe_serialization=safe)
    except TypeError:  # transformers 5 writes safetensors alone
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        model.config.save_pretrained(folder)
    if not safe and not (folder / "pytorch_model.bin").is_file():
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


@pytest.mark.parametrize("model_type", CLASSES)
def test_reads_a_backbone_alone(model_type, tmp_path):
    model = build(model_type, 2)
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert_equal_pairs(hand_picked(model, checkpoint.weights))
    assert ("pooler/kernel" in checkpoint.weights) == (model_type != "roformer")
    assert "mlm_head/bias" not in checkpoint.weights
    if model_type != "roformer":
        assert_equal_pairs([(model.pooler.dense.weight, checkpoint.weights["pooler/kernel"].T)])


def test_reads_pretraining_model_with_next_sentence_head(tmp_path):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES))
    save(model, tmp_path, safe=False)
    checkpoint = read_checkpoint(tmp_path)
    assert {"pooler/kernel", "mlm_head/bias"} < set(checkpoint.weights)
    assert_equal_pairs(hand_picked(model, checkpoint.weights))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reads_half_precision(dtype, safe, tmp_path):
    model = build("bert", 1).to(getattr(torch, dtype))
    save(model, tmp_path, safe)
    checkpoint = read_checkpoint(tmp_path)
    assert {str(array.dtype) for array in checkpoint.weights.values()} == {dtype}
    assert_equal_pairs(hand_picked(model, checkpoint.weights))


def test_reads_factorised_roformer(tmp_path):
    model = build("roformer", 1, embedding_size=4)
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert_equal_pairs(
        [(model.roformer.embeddings_project.weight, checkpoint.weights["embeddings/projection/kernel"].T)]
    )
    assert checkpoint.weights["mlm_head/dense/kernel"].shape == (8, 4)


def test_refuses_untied_output_table(tmp_path):
    model = build("bert", 1, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"cls\.predictions\.decoder\.weight differs"):
        read_checkpoint(tmp_path)


def test_executes_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    build("bert", 1).config.save_pretrained(tmp_path)
    torch.save({"bert.pooler.dense.bias": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read"):
        read_checkpoint(tmp_path)
    assert not (tmp_path / "trapped").exists()


def test_truncated_torch_file(tmp_path):
    save(build("bert", 1), tmp_path, safe=False)
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read"):
        read_checkpoint(tmp_path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(CheckpointError, match="must hold a state dict"):
        read_checkpoint(tmp_path)


def load(model_type, kind, folder):
    model, info = getattr(transformers, CLASSES[model_type][kind]).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info.get("error_msgs")
    return model.eval(), set(info["unexpected_keys"])


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("model_type", CLASSES)
def test_transformers_loads_what_we_write(model_type, pooler, make_config, make_weights, tmp_path):
    config = make_config(**SIZES, model_type=model_type)
    if model_type in ("roberta", "xlm-roberta"):
        config |= {"pad_token_id": 1, "position_offset": 2, "type_vocab_size": 1}
    if model_type == "roformer":
        config |= {"position_embedding_type": "rotary", "embedding_size": 6}
    weights = make_weights(config, pooler=pooler)
    write_huggingface(tmp_path, config, weights)
    model, unexpected = load(model_type, 1, tmp_path)
    assert_equal_pairs(hand_picked(model, weights))
    assert_equal_pairs(hand_picked_head(model, weights))
    assert {name for name in unexpected if "pooler" not in name} == set()
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    if model_type == "roformer":
        fresh = transformers.RoFormerModel(model.config).encoder.embed_positions.weight
        torch.testing.assert_close(model.roformer.encoder.embed_positions.weight, fresh, rtol=0, atol=1e-7)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta"])
def test_transformers_loads_our_encoder_with_nothing_left_over(model_type, make_config, make_weights, tmp_path):
    config = make_config(**SIZES, model_type=model_type)
    if model_type != "bert":
        config |= {"pad_token_id": 1, "position_offset": 2}
    weights = make_weights(config, mlm_head=False)
    write_huggingface(tmp_path, config, weights)
    model, unexpected = load(model_type, 2, tmp_path)
    assert unexpected == set()
    assert_equal_pairs(hand_picked(model, weights))


@pytest.mark.parametrize("model_type", CLASSES)
def test_same_outputs_after_a_round_trip_through_us(model_type, tmp_path):
    model = build(model_type, 1)
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    write_huggingface(tmp_path / "ours", checkpoint.config, checkpoint.weights)
    again, unexpected = load(model_type, 1, tmp_path / "ours")
    assert unexpected == set()
    token_ids = torch.tensor([[3, 5, 7, 2, 11], [3, 18, 2, 1, 1]])
    with torch.no_grad():
        torch.testing.assert_close(again(token_ids).logits, model(token_ids).logits, rtol=0, atol=1e-6)


def test_position_offset_of_keras_hub_gives_the_same_outputs(make_config, make_weights, tmp_path):
    # position 0 of a table without an offset is row 2 of transformers' table
    config = make_config(**SIZES, model_type="roberta", pad_token_id=1, type_vocab_size=0)
    weights = make_weights(config)
    write_huggingface(tmp_path, config, weights)
    model, _ = load("roberta", 1, tmp_path)
    with torch.no_grad():
        embedded = model.roberta.embeddings(torch.tensor([[3, 5, 7]]))
    x = weights["embeddings/token/embeddings"][[3, 5, 7]] + weights["embeddings/position/embeddings"][:3]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config["layer_norm_eps"])
    x = x * weights["embeddings/norm/gamma"] + weights["embeddings/norm/beta"]
    np.testing.assert_allclose(embedded[0], x, atol=1e-5)
