import pytest

from simretro import BiEncoder, RetroMAE, build_transformer_model
from simretro.training.facts import check_settings, model_facts

CONFIG = {
    "vocab_size": 20,
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
}


def retromae(config=CONFIG, recompute=False, dtype=None, **settings):
    return RetroMAE(build_transformer_model(config, with_mlm="linear", recompute=recompute, dtype=dtype), **settings)


def test_a_method_tells_its_settings_and_the_config_of_its_encoder():
    facts = model_facts(retromae(decoder_mask_rate=0.75))
    assert facts["decoding"] == "enhanced" and facts["decoder_mask_rate"] == 0.75 and facts["pooling"] == "cls"
    assert facts["encoder.config['hidden_size']"] == 8
    sizes = model_facts(BiEncoder(build_transformer_model(CONFIG), matryoshka_sizes=(2, 4)))["matryoshka_sizes"]
    assert sizes == [2, 4], "as JSON gives it back"


def test_what_changes_the_computation_alone_does_not_count():
    plain, other = retromae(), retromae(recompute=True, dtype="mixed_bfloat16", chunk_size=3, seed=5, name="other")
    assert model_facts(plain) == model_facts(other)
    check_settings(model_facts(plain), model_facts(other), "here")
    other = retromae({**CONFIG, "hidden_dropout_prob": 0.5}, query_norm=True)
    different = r"`query_norm`: False there, True here, .*hidden_dropout_prob'\]`: 0.1 there, 0.5 here"
    with pytest.raises(ValueError, match=different):
        check_settings(model_facts(plain), model_facts(other), "here")
