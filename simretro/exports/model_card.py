"""The model card of an export: what the vectors are, how they are had in this format, what is known of the training."""

import json
from collections.abc import Mapping
from pathlib import Path

from simretro.exports.saved_model import INPUT, OUTPUT

_LIBRARIES = {
    "huggingface": "transformers",
    "sentence-transformers": "sentence-transformers",
    "keras-hub": "keras-hub",
    "onnx": "onnx",
    "saved-model": "tensorflow",
    "tf1": "bert4keras",
}
_POOLINGS = {
    "cls": "the state of the first token",
    "mean": "the mean of the states of all tokens, the special ones included",
    "pooler": "a dense layer on the state of the first token",
}
_TORCH_POOLINGS = {
    "cls": "hidden[:, 0]",
    "mean": "(hidden * mask).sum(1) / mask.sum(1)",
    "pooler": "output.pooler_output",
    "linear pooler": "model.pooler.dense(hidden[:, 0])  # without its tanh",
}
_KERAS_POOLINGS = {
    "cls": "hidden[:, 0]",
    "mean": "keras.ops.sum(hidden * mask, 1) / keras.ops.sum(mask, 1)",
    "pooler": 'output["pooled_output"]',
    "linear pooler": 'keras.ops.arctanh(output["pooled_output"])  # without its tanh',
}
_KERAS_CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}


def write_model_card(folder: Path, to: str, encoder, facts: Mapping, prompts: Mapping[str, str]) -> None:
    """Adds `README.md` to an export.

    Args:
        folder: being written.
        to: the format.
        encoder: `SentenceEncoder`.
        facts: JSON values, what is known of the training.
        prompts: {name: what is put before a text}.
    """
    front = ["---", f"library_name: {_LIBRARIES[to]}", "pipeline_tag: sentence-similarity", "tags:"]
    front += [f"- {tag}" for tag in ("sentence-similarity", "feature-extraction", "simretro")] + ["---"]
    lines, remark = _USAGES[to](encoder)
    usage = "\n".join(["```python", *lines, "```"])
    parts = ["\n".join(front), "# Sentence encoder", _table(encoder, facts, prompts), "## Use", usage, remark]
    if facts:
        told = json.dumps(dict(facts), indent=2, ensure_ascii=False, allow_nan=False)
        parts += ["## Training", f"What is known of it:\n\n```json\n{told}\n```"]
    text = "\n\n".join(part for part in parts if part)
    (folder / "README.md").write_text(f"{text}\n\nWritten by simretro.\n", "utf-8")


def _table(encoder, facts, prompts):
    config = encoder.encoder.config
    linear = ", without tanh" if _pooling(encoder) == "linear pooler" else ""
    rows = {
        "encoder": f"{config['model_type']}, {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}",
        "vector": f"{encoder.dimension} numbers, float32",
        "pooling": f"`{encoder.pooling}`: {_POOLINGS[encoder.pooling]}{linear}",
        "projection": None if encoder.projection is None else "a linear layer behind the pooling",
        "length 1": "yes" if encoder.normalize else "no",
        "compare by": facts.get("similarity", "cosine" if encoder.normalize else None),
        "longest text": f"{encoder.maxlen} tokens, the special ones included; longer ones are cut",
        **{f"prefix, {name}": f"`{json.dumps(prompt, ensure_ascii=False)}`" for name, prompt in prompts.items()},
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value)])


def _pooling(encoder):
    linear = encoder.pooling == "pooler" and encoder.encoder.with_pool == "linear"
    return "linear pooler" if linear else encoder.pooling


# The code of each format: its lines, and a remark.


def _tokenized(encoder, framework):
    return [
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "batch = tokenizer(",
        f'    texts, padding=True, truncation=True, max_length={encoder.maxlen}, return_tensors="{framework}"',
        ")",
    ]


def _huggingface(encoder):
    lines = [
        "import torch",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        "model = AutoModel.from_pretrained(folder).eval()",
        *_tokenized(encoder, "pt"),
        "with torch.no_grad():",
        "    output = model(**batch)",
        '    hidden, mask = output.last_hidden_state, batch["attention_mask"][:, :, None]',
        f"    vectors = {_TORCH_POOLINGS[_pooling(encoder)]}",
    ]
    return lines + ["    vectors = torch.nn.functional.normalize(vectors)"] * encoder.normalize, ""


def _sentence_transformers(encoder):
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        "model = SentenceTransformer(folder)",
        "vectors = model.encode(texts)",
    ]
    return lines, "With prefixes: `model.encode_query(queries)` and `model.encode_document(passages)`."


def _keras_hub(encoder):
    model_type = encoder.encoder.config["model_type"]
    name, bert = _KERAS_CLASSES[model_type], model_type == "bert"
    first, last = ("cls", "sep") if bert else ("start", "end")
    segments = ', "segment_ids": keras.ops.zeros_like(token_ids)' if bert else ""
    lines = [
        "import keras, keras_hub",
        "",
        f"backbone = keras_hub.models.{name}Backbone.from_preset(folder)",
        f"tokenizer = keras_hub.models.{name}Tokenizer.from_preset(folder)",
        "packer = keras_hub.layers.MultiSegmentPacker(",
        f"    {encoder.maxlen}, tokenizer.{first}_token_id, tokenizer.{last}_token_id, "
        "pad_value=tokenizer.pad_token_id",
        ")",
        "token_ids, _ = packer(tokenizer(texts))",
        "tokens = token_ids != tokenizer.pad_token_id",
        f'output = backbone({{"token_ids": token_ids, "padding_mask": tokens{segments}}})',
        'hidden = output["sequence_output"]' if bert else "hidden = output",
        'mask = keras.ops.cast(tokens, "float32")[:, :, None]',
        f"vectors = {_KERAS_POOLINGS[_pooling(encoder)]}",
    ]
    remark = "Keras Hub's tokenizer folds more than BERT's: it reads ß as ss and full-width letters as plain ones."
    return lines + ["vectors = keras.ops.normalize(vectors)"] * encoder.normalize, remark if bert else ""


def _onnx(encoder):
    lines = [
        "import onnxruntime",
        "from transformers import AutoTokenizer",
        "",
        'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")',
        *_tokenized(encoder, "np"),
        "names = [entry.name for entry in session.get_inputs()]",
        'inputs = {name: batch[name].astype("int64") for name in names}',
        '[vectors] = session.run(["sentence_embedding"], inputs)',
    ]
    return lines, (
        "Inputs are int64 (batch, length); padding goes behind the tokens. The other output is `last_hidden_state`."
    )


def _saved_model(encoder):
    tokenizer = encoder.tokenizer
    tokens = (tokenizer.special_tokens[role] for role in ("cls", "sep", "pad"))
    cls, sep, pad = (f"`{token}` ({tokenizer.vocab[token]})" for token in tokens)
    lines = [
        "import tensorflow as tf",
        "from transformers import AutoTokenizer",
        "",
        'encode = tf.saved_model.load(folder).signatures["serving_default"]',
        *_tokenized(encoder, "np"),
        f'vectors = encode({INPUT}=tf.constant(batch["input_ids"], tf.int32))["{OUTPUT}"]',
    ]
    return lines, (
        f"The signature takes ids, not text: `{INPUT}` int32 (batch, length). A row is {cls}, the tokens, {sep}, then "
        f"padding, {pad}; at most {encoder.maxlen} ids. What is padding is told by its id, there is no mask to give. "
        f"`{OUTPUT}` is float32 (batch, {encoder.dimension}). The tokenizer's files lie beside the model."
    )


def _tf1(encoder):
    lines = [
        "from bert4keras.models import build_transformer_model",
        "",
        'model = build_transformer_model(f"{folder}/bert_config.json", f"{folder}/bert_model.ckpt")',
    ]
    return lines, ""


_USAGES = {
    "huggingface": _huggingface,
    "sentence-transformers": _sentence_transformers,
    "keras-hub": _keras_hub,
    "onnx": _onnx,
    "saved-model": _saved_model,
    "tf1": _tf1,
}
