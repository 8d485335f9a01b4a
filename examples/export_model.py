"""Hand a model on: write it in the format of another library, with a model card that says how to use it there.

    python examples/export_model.py --model runs/retriever/model --to sentence-transformers --output exports/retriever
    python examples/export_model.py --model runs/retriever/model --to onnx --output exports/onnx

A model with an encoder for queries and one for passages is exported in two calls, --tower query and --tower passage.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from command_line import HelpFormatter, one_line_errors, stop
from simretro import BiEncoder, SentenceEncoder, export
from simretro.checkpoints import read_checkpoint
from simretro.exports import FORMATS


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--model", required=True, help="folder that simretro reads, or hub name")
    parser.add_argument("--to", required=True, choices=FORMATS, help="format")
    parser.add_argument("--output", required=True, type=Path, help="folder")
    parser.add_argument("--tower", choices=["query", "passage"], help="of a model with two encoders")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder if it is there")
    return parser.parse_args(arguments)


def load_model(options):
    """(model, facts of its training, prompts or None for the model's own)."""
    checkpoint = read_checkpoint(options.model)
    facts = dict(checkpoint.extras.get("facts", {}))
    if "bi_encoder" not in facts:
        if options.tower is not None:
            stop(f"--tower: {options.model} has one encoder")
        return SentenceEncoder.from_checkpoint(checkpoint), facts, None
    facts = {name: value for name, value in facts.items() if name not in ("bi_encoder", "passage_encoder")}
    model = BiEncoder.from_pretrained(options.model)
    if options.tower is None:
        if model.passage_encoder is not None:
            stop(f"--tower must be given: {options.model} has an encoder for queries and one for passages")
        return model, facts, None
    encoder, prefix = {
        "query": (model.query_sentence_encoder, model.query_prefix),
        "passage": (model.passage_sentence_encoder, model.passage_prefix),
    }[options.tower]
    name = {"query": "query", "passage": "document"}[options.tower]
    return encoder, facts, {name: prefix} if prefix else {}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Returns the folder."""
    options = parse_arguments(arguments)
    with one_line_errors():
        model, facts, prompts = load_model(options)
        folder = export(model, options.output, options.to, facts, prompts, options.overwrite)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    for file in files:
        print(f"{file.stat().st_size / 1e6:9.2f} MB  {file.relative_to(folder)}")
    print(f"{folder}: {options.to}; README.md there says how it is used")
    return folder


if __name__ == "__main__":
    main()
