"""Keras Hub presets: the backbone's files, and the tokenizer in Keras Hub's own form."""

import base64
import json
import tempfile
from pathlib import Path

from simretro.checkpoints import write_keras_hub
from simretro.checkpoints.config import read_json
from simretro.checkpoints.keras_hub import keras_hub_object
from simretro.models import export_weights
from simretro.tokenizers import save_vocab

_NEEDED = {  # Keras Hub knows these tokens by their names
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    "xlm-roberta": {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
}
_MODELS = {"bert": "WordPiece", "roberta": "BPE", "xlm-roberta": "Unigram"}


def write_preset(folder: Path, encoder, tokenizer) -> None:
    """Adds a preset to a folder that is being written.

    Args:
        folder: path.
        encoder: `Transformer`.
        tokenizer: of `simretro.tokenizers`.
    Raises:
        ValueError: if Keras Hub has no such backbone, or no such tokenizer for it.
        ImportError: for XLM-R without the packages `sentencepiece` and `protobuf`.
    """
    write_keras_hub(folder, encoder.config, export_weights(encoder))
    model_type = encoder.config["model_type"]
    _check_tokenizer(model_type, tokenizer)
    assets = folder / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save_pretrained(scratch)
        files = Path(scratch)
        whole, settings = read_json(files / "tokenizer.json"), read_json(files / "tokenizer_config.json")
    config = _WRITERS[model_type](assets, tokenizer, whole, settings)
    content = keras_hub_object(model_type, "Tokenizer", {"config_file": "tokenizer.json", **config})
    (folder / "tokenizer.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _check_tokenizer(model_type, tokenizer):
    if tokenizer.model_type != _MODELS[model_type]:
        raise ValueError(
            f"Keras Hub gives a {model_type!r} a {_MODELS[model_type]} tokenizer; this model has a "
            f"{tokenizer.model_type} one. Write another format."
        )
    wanted = _NEEDED[model_type]
    found = {role: tokenizer.special_tokens.get(role) for role in wanted}
    if found != wanted:
        raise ValueError(
            f"Keras Hub's tokenizer needs the special tokens {wanted}; this vocabulary has {found}. Write another "
            "format."
        )


def _bert(assets, tokenizer, whole, settings):
    if settings["tokenizer_class"] != "BertTokenizer" or not settings["tokenize_chinese_chars"]:
        raise ValueError("Keras Hub has BERT's tokenizer alone; this one cuts words in another way.")
    save_vocab(assets / "vocabulary.txt", tokenizer.vocab)
    lower_case, accents = settings["do_lower_case"], settings["strip_accents"]
    return {"lowercase": lower_case, "strip_accents": lower_case if accents is None else accents}


def _roberta(assets, tokenizer, whole, settings):
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]]
    (assets / "vocabulary.json").write_text(json.dumps(tokenizer.vocab, ensure_ascii=False), "utf-8")
    (assets / "merges.txt").write_text("".join(f"{line}\n" for line in ["#version: 0.2", *merges]), "utf-8")
    return {}


def _xlm_roberta(assets, tokenizer, whole, settings):
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError("A preset of XLM-R needs `pip install simretro[sentencepiece]`.") from error
    vocab, normalizer = whole["model"]["vocab"], whole.get("normalizer") or {}
    pieces = [piece for piece, _ in vocab]
    if pieces[:4] != ["<s>", "<pad>", "</s>", "<unk>"] or pieces[-1] != "<mask>":
        raise ValueError("Keras Hub needs XLM-R's order: <s>, <pad>, </s>, <unk> first and <mask> last.")
    if normalizer.get("type", "Precompiled") != "Precompiled":
        raise ValueError(f"Keras Hub has XLM-R's normalizer alone; this tokenizer has {normalizer['type']}.")
    model = sentencepiece_model_pb2.ModelProto()
    kinds = model.SentencePiece
    for piece, score, kind in (
        ("<unk>", 0.0, kinds.UNKNOWN),
        ("<s>", 0.0, kinds.CONTROL),
        ("</s>", 0.0, kinds.CONTROL),
        *((piece, score, kinds.NORMAL) for piece, score in vocab[4:-1]),
    ):
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    if normalizer:
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(normalizer["precompiled_charsmap"])
    (assets / "vocabulary.spm").write_bytes(model.SerializeToString())
    return {"proto": None}  # an argument without a default; the file is read later


_WRITERS = {"bert": _bert, "roberta": _roberta, "xlm-roberta": _xlm_roberta}
