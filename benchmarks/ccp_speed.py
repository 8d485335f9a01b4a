"""What the memory bank costs: a training step of CCP with a full bank beside the same step without one.

usage: python benchmarks/ccp_speed.py [--size base] [--languages 8]    about 2 minutes

4 layers x 256 (or 12 x 768), 32 pairs, that is 64 rows of 64 tokens without padding, of one of the languages, dropout
0.1, AdamW. Each language has a ring of 32,768 vectors of length 128, which is full before anything is timed; timed is
the step on a batch that is ready, to the updated weights, with the enqueueing of its vectors. The two take turns in
processes of their own, so that what the bank takes of the memory can be told from the peaks, and is compared with what
it should take.
"""

import sys

from common import OURS, SIZES, VOCAB_SIZE, Benchmark, bert_config, options_of, serve, trunk_flops

NO_BANK = "simretro, bank_size=0"
PAIRS, LENGTH, BANK_SIZE, PROJECTION_SIZE = 32, 64, 32768, 128
BYTES_OF_NUMBERS = 2 * 8  # document and key of a sentence


def bank_bytes(languages):
    """Memory of full banks: `languages` rings and the row behind the last one."""
    return (languages * BANK_SIZE + 1) * (4 * PROJECTION_SIZE + BYTES_OF_NUMBERS)


def make_batch(rng, language):
    """A batch of pairs as `ContextWindows` makes them, of a document each, which no other batch has."""
    import numpy as np

    rows = 2 * PAIRS
    columns = {
        "language_ids": np.full(rows, language),
        "document_ids": np.arange(rows) // 2,
        "sentence_positions": np.arange(rows) % 2,
        "sentence_keys": rng.permutation(1 << 20)[:rows],
        "sides": np.arange(rows) % 2,
    }
    token_ids = rng.integers(5, VOCAB_SIZE, (rows, LENGTH))
    nothing = np.zeros((rows, 0))
    tokens = {
        "token_ids": token_ids,
        "encoder_token_ids": token_ids,
        "masked_positions": nothing,
        "masked_ids": nothing,
    }
    return {name: array.astype("int32") for name, array in {**tokens, **columns}.items()}


def simretro(settings):
    import keras
    import numpy as np

    from simretro import CCP, build_transformer_model
    from simretro.training import build_optimizer

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    languages = [f"language {number}" for number in range(settings["languages"])]
    encoder = build_transformer_model(bert_config(settings["size"]), with_mlm="linear")
    ccp = CCP(
        encoder, bank_size=settings["bank_size"], languages=languages, projection_size=PROJECTION_SIZE, warmup_updates=0
    )
    ccp.compile(build_optimizer("adamw", 1e-4, weight_decay=0.01))
    batch = make_batch(rng, language=1)

    def step():
        return float(ccp.train_on_batch(batch, return_dict=True)["loss"])

    def fill():
        """Writes vectors into all rings; returns how many the batch's language has."""
        if ccp.bank is None:
            return 0
        for language in range(len(languages)):
            for start in range(0, BANK_SIZE, 4096):
                ids = np.full(4096, language, "int32")
                documents = 1_000_000 + start + np.arange(4096, dtype="int32")  # not those of the batch
                ccp.bank.enqueue(rng.standard_normal((4096, PROJECTION_SIZE), "float32"), ids, documents)
        return int(keras.ops.convert_to_numpy(ccp.bank.bank_filled)[1])

    return {"fill": fill, "step": step}, ("keras", "tensorflow", "numpy")


def main():
    def add_arguments(parser):
        parser.add_argument("--size", default="small", choices=list(SIZES))
        parser.add_argument("--languages", type=int, default=8, help="rings of the bank")

    options = options_of(__doc__, 6, 5, add_arguments)
    shape = SIZES[options.size]
    said = f"{shape[0]}x{shape[1]}, {PAIRS} pairs, {2 * PAIRS} rows of {LENGTH} tokens, {options.languages} languages"
    with Benchmark(__file__, options, said) as benchmark:
        settings = {"size": options.size, "languages": options.languages}
        benchmark.start(OURS, sys.executable, bank_size=BANK_SIZE, **settings)
        benchmark.start(NO_BANK, sys.executable, bank_size=0, **settings)
        filled = benchmark.values("fill")
        flops = 3 * 2 * PAIRS * trunk_flops(shape, LENGTH, LENGTH)
        benchmark.measure("step", f"step, bank of {filled[OURS]:,}", flops=flops)
        note_memory(benchmark, options.languages)
        benchmark.report()


def note_memory(benchmark, languages):
    sides = benchmark.cases[-1]["sides"]
    computed = (
        f"Bank of {languages} x {BANK_SIZE:,} x {PROJECTION_SIZE}: {bank_bytes(languages) / 2**20:.0f} MiB computed"
    )
    if NO_BANK in sides:
        computed += f", {sides[OURS]['peak_mib'] - sides[NO_BANK]['peak_mib']} MiB between the peaks of the processes"
    benchmark.note(f"{computed}.")


SIDES = {OURS: simretro, NO_BANK: simretro}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
