import json

import pytest

from simretro.checkpoints import write_simretro
from simretro.models import build_transformer_model, export_weights

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
