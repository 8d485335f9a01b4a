import json

import keras
import numpy as np
import pytest

from simretro.checkpoints import write_simretro
from simretro.models import build_transformer_model, export_weights
from simretro.models.weights import load_weights, named_variables, quick_checksum

CONFIG = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 8, "max_position_embeddings": 8}


@pytest.mark.parametrize("key", ["hidden_act", "mlm_hidden_act"])
def test_an_unknown_activation_is_named_with_its_file(key, tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({**CONFIG, key: "swoosh"}), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"bert_config\.json: `{key}` must be an activation; received 'swoosh'"):
        build_transformer_model(path)
    with pytest.raises(ValueError, match=f"`config`: `{key}`.*'swoosh'"):
        build_transformer_model({**CONFIG, key: "swoosh"})
    write_simretro(tmp_path / "model", {**CONFIG, key: "swoosh"}, export_weights(build_transformer_model(CONFIG)))
    with pytest.raises(ValueError, match=rf"model\.safetensors: `{key}`.*'swoosh'"):
        build_transformer_model(checkpoint=tmp_path / "model")


def test_frozen_parts_stay_frozen_in_copies():
    model = build_transformer_model(CONFIG)
    model.embeddings.trainable = False
    model.blocks[0].query.trainable = False
    kept = {name for name, variable in named_variables(model).items() if variable.trainable}
    assert "block_0/key/kernel" in kept and not any(name.startswith(("embeddings", "block_0/query")) for name in kept)
    again = type(model).from_config(model.get_config())
    assert {name for name, variable in named_variables(again).items() if variable.trainable} == kept
    assert len(again.trainable_variables) == len(kept) == len(model.trainable_variables)
    again.embeddings.trainable = again.blocks[0].query.trainable = True
    assert len(again.trainable_variables) == len(model.weights)
    model.trainable = False
    assert not type(model).from_config(model.get_config()).trainable_variables


def test_quick_checksum_notices_weights_that_are_replaced_or_trained_in_part():
    """New networks have the same biases and gains, and a first stage often trains the token table alone."""
    one, other = build_transformer_model(CONFIG), build_transformer_model(CONFIG)
    checksums = {quick_checksum(one), quick_checksum(other)}
    assert len(checksums) == 2 and quick_checksum(one) in checksums
    load_weights(one, export_weights(other), "other")
    assert quick_checksum(one) == quick_checksum(other)
    table = named_variables(one)["embeddings/token/embeddings"]
    for variable in (table, named_variables(one)["block_0/query/kernel"]):
        before = quick_checksum(one)
        variable.assign(variable + keras.ops.full(variable.shape, 1e-3))
        assert quick_checksum(one) != before


def test_quick_checksum_notices_rows_of_a_table():
    model = build_transformer_model({**CONFIG, "vocab_size": 5000})
    table = named_variables(model)["embeddings/token/embeddings"]
    values, before = np.array(table), quick_checksum(model)
    noticed = 0
    for start in range(0, 5000, 100):
        changed = values.copy()
        changed[start : start + 100 : 2] += 1e-3  # fifty tokens of a batch
        table.assign(changed)
        noticed += quick_checksum(model) != before
    assert noticed >= 45
