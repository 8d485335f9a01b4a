"""Contrastive batches larger than memory: `compile(gradient_cache_rows=...)`, memory and time for each example.

usage: python benchmarks/gradient_cache.py [--plain]    about 8 minutes

`BiEncoder`, 4 layers x 256, vocabulary 13,584, a query of 32 tokens and its passage of 128 without padding, dropout
0.1, AdamW. 1,024 rows in one step of which 64 at a time go through the network, so that each query has 1,023 negatives,
beside the same rows in 16 steps of 64, in which it has 63. The cache runs the encoder forward twice and backward once,
so a third more work. Each side is a process of its own, since a process keeps its highest memory. `--plain` adds the
1,024 rows in one step without the cache, which takes about as much memory as 16 batches of 64.
"""

import sys

from common import CLS, FIRST_WORD, OURS, SEP, SIZES, VOCAB_SIZE, Benchmark, bert_config, options_of, serve, trunk_flops

QUERY, PASSAGE, ROWS, CHUNK = 32, 128, 1024, 64
STEPS, PLAIN = "simretro, small batches", "simretro, no cache"
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01


def flops_of(rows):
    """Forward pass and twice as much backward; what the cache computes again and the scores are not counted."""
    return 3 * rows * sum(trunk_flops(SIZES["small"], length, length) for length in (QUERY, PASSAGE))


def simretro(settings):
    import keras
    import numpy as np

    from simretro import BiEncoder, build_transformer_model
    from simretro.training import build_optimizer

    keras.utils.set_random_seed(0)
    model = BiEncoder(build_transformer_model(bert_config("small")))
    optimizer = build_optimizer("adamw", LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    model.compile(optimizer, gradient_cache_rows=settings["gradient_cache_rows"])
    rng, rows, size = np.random.default_rng(0), settings["rows"], settings["rows_per_step"]

    def token_ids(*shape):
        ids = rng.integers(FIRST_WORD, VOCAB_SIZE, shape, dtype="int32")
        ids[..., 0], ids[..., -1] = CLS, SEP
        return ids

    keys = np.arange(rows, dtype="int32")[:, None]
    data = {"query_token_ids": token_ids(rows, QUERY), "passage_token_ids": token_ids(rows, 1, PASSAGE)}
    data |= {"passage_keys": keys, "positive_keys": keys}
    batches = [{name: array[i : i + size] for name, array in data.items()} for i in range(0, rows, size)]

    def train():
        return [float(model.train_on_batch(batch, return_dict=True)["loss"]) for batch in batches][-1]

    return {"rows": train}, ("keras", "tensorflow", "numpy")


def main():
    def add_arguments(parser):
        parser.add_argument("--plain", action="store_true", help="also one step without the cache: some 14 GiB")

    options = options_of(__doc__, 3, 1, add_arguments)
    rows, chunk = (32, 8) if options.quick else (ROWS, CHUNK)
    shape = f"4x256, {rows} queries of {QUERY} tokens and passages of {PASSAGE}, {chunk} rows at a time"
    with Benchmark(__file__, options, shape) as benchmark:
        benchmark.start(OURS, sys.executable, rows=rows, rows_per_step=rows, gradient_cache_rows=chunk)
        benchmark.start(STEPS, sys.executable, rows=rows, rows_per_step=chunk, gradient_cache_rows=None)
        if options.plain:
            benchmark.start(PLAIN, sys.executable, rows=rows, rows_per_step=rows, gradient_cache_rows=None)
        losses = benchmark.measure("rows", f"{rows} rows, time of one", count=rows, flops=flops_of(rows))
        peaks = {side: measured["peak_mib"] for side, measured in benchmark.cases[-1]["sides"].items()}
        if STEPS in peaks:
            benchmark.note(f"Memory with the cache to that of batches of {chunk}: {peaks[OURS] / peaks[STEPS]:.2f}.")
        benchmark.note(f"Loss of the last step: {', '.join(f'{x:.2f} ({side})' for side, x in losses.items())}.")
        benchmark.report()


SIDES = {OURS: simretro, STEPS: simretro, PLAIN: simretro}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
