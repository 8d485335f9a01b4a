"""One training step of SimBERT, beside plain transformers + torch and bert4torch.

usage: python benchmarks/simbert_train.py --peer-python PEERS/bin/python [--size base]    about 4 minutes (base: 5)

A batch has no padding: pairs of sentences of 30 and 31 tokens in rows of 64, as `SimilarPairs` lays them out. The model
has dropout 0.1, AdamW with weight decay, the losses are the cross-entropy of the second sentence and that of the
partner among the batch's sentences. Timed is all from the batch in memory to the updated weights. All libraries start
from the same weights, and without dropout their losses are the same, which is checked before the first step.
`recompute` keeps the inputs of the blocks alone for the backward pass.
"""

import sys

import numpy as np
from common import (
    CLS,
    FIRST_WORD,
    OURS,
    SEP,
    SIZES,
    VOCAB_SIZE,
    Benchmark,
    bert4torch_model,
    bert_config,
    head_flops,
    options_of,
    serve,
    trunk_flops,
)

LEAN = "simretro, recompute"
ROWS, LENGTH = {"small": 128, "base": 16}, 64
LEARNING_RATE, WEIGHT_DECAY, TEMPERATURE = 2e-6, 0.01, 1 / 30


def make_batch(rows, seed=0):
    """What an item of `SimilarPairs` holds."""
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(FIRST_WORD, VOCAB_SIZE, (rows // 2, (LENGTH - 3 + i) // 2)) for i in (0, 1))
    cls, sep = np.full((rows // 2, 1), CLS), np.full((rows // 2, 1), SEP)
    orders = [[cls, a, sep, b, sep] for a, b in ((first, second), (second, first))]
    token_ids = np.stack([np.concatenate(order, axis=1) for order in orders], axis=1).reshape(rows, LENGTH)
    starts = np.tile([first.shape[1] + 2, second.shape[1] + 2], rows // 2)[:, None]
    positions = starts - 1 + np.arange(LENGTH // 2)
    is_target = positions < LENGTH - 1
    positions = np.where(is_target, positions, 0)
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.arange(LENGTH) >= starts,
        "target_positions": positions,
        "target_ids": np.where(is_target, np.take_along_axis(token_ids, positions + 1, axis=1), -1),
    }
    return {name: values.astype("int32") for name, values in batch.items()}


def step_flops(shape, rows):
    """Forward pass and twice as much backward; logits of the target half of each row."""
    hidden = shape[1]
    one_row = trunk_flops(shape, LENGTH, LENGTH) + head_flops(shape, LENGTH // 2) + 2 * hidden**2
    return 3 * (rows * one_row + 2 * rows**2 * hidden)


def simretro(settings):
    import keras

    from simretro import SimBERT, build_transformer_model
    from simretro.training import build_optimizer

    keras.utils.set_random_seed(0)
    config = bert_config(settings["size"])
    encoder = build_transformer_model(
        config, application="unilm", with_pool="linear", with_mlm="linear", recompute=settings["recompute"]
    )
    simbert = SimBERT(encoder, temperature=TEMPERATURE, chunk_size=256 if settings["recompute"] else 1024)
    simbert.compile(build_optimizer("adamw", LEARNING_RATE, weight_decay=WEIGHT_DECAY))
    if settings["side"] == OURS:
        simbert.save_pretrained(f"{settings['folder']}/huggingface", format="huggingface")
    batch = make_batch(settings["rows"])

    def losses():
        simbert.reset_metrics()
        logs = simbert.test_on_batch(batch, return_dict=True)
        return [float(logs[name]) for name in ("seq2seq_loss", "similarity_loss")]

    def step():
        return float(simbert.train_on_batch(batch, return_dict=True)["loss"])

    return {"losses": losses, "step": step}, ("keras", "tensorflow", "numpy")


def transformers(settings):
    import torch
    from transformers import BertForPreTraining

    torch.set_num_threads(settings["threads"])
    net = BertForPreTraining.from_pretrained(f"{settings['folder']}/huggingface")

    def forward(token_ids, segment_ids):
        order = segment_ids.cumsum(1)
        visible = (order[:, None] <= order[:, :, None]).long()
        hidden = net.bert(token_ids, visible, segment_ids).last_hidden_state
        return net.bert.pooler.dense(hidden[:, 0]), net.cls.predictions(hidden)

    return torch_calls(settings, net, forward), ("transformers", "torch")


def bert4torch(settings):
    import torch

    torch.set_num_threads(settings["threads"])
    net = bert4torch_model(settings)
    return torch_calls(settings, net, lambda *inputs: net(list(inputs))[1:]), ("bert4torch", "torch")


def torch_calls(settings, net, forward):
    """The step as one writes it in torch, around `forward(token_ids, segment_ids)` -> (vectors, logits)."""
    import torch
    from torch.nn import functional

    batch = {name: torch.from_numpy(values).long() for name, values in make_batch(settings["rows"]).items()}
    token_ids, segment_ids = batch["token_ids"], batch["segment_ids"]
    labels = torch.where(segment_ids == 1, token_ids, -100)[:, 1:].flatten()
    partners = torch.arange(len(token_ids)) ^ 1
    itself = torch.eye(len(token_ids), dtype=torch.bool)
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def both_losses():
        vectors, logits = forward(token_ids, segment_ids)
        seq2seq = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels)
        vectors = functional.normalize(vectors, dim=-1)
        cosines = (vectors @ vectors.T).masked_fill(itself, -1e9)
        return seq2seq, functional.cross_entropy(cosines / TEMPERATURE, partners)

    def losses():
        net.eval()
        with torch.no_grad():
            return [loss.item() for loss in both_losses()]

    def step():
        net.train()
        optimizer.zero_grad()
        loss = sum(both_losses())
        loss.backward()
        optimizer.step()
        return loss.item()

    return {"losses": losses, "step": step}


def main():
    def add_arguments(parser):
        parser.add_argument("--size", choices=list(SIZES), default="small", help="4x256 or 12x768")
        parser.add_argument("--rows", type=int, help="default 128, of the base model 16")

    options = options_of(__doc__, 4, 3, add_arguments)
    rows = options.rows or (8 if options.quick else ROWS[options.size])
    shape = SIZES[options.size]
    name = f"{shape[0]}x{shape[1]}, vocabulary {VOCAB_SIZE:,}, {rows} rows of {LENGTH} tokens"
    with Benchmark(__file__, options, name) as benchmark:
        benchmark.start(OURS, sys.executable, size=options.size, rows=rows, recompute=False)
        benchmark.start(LEAN, sys.executable, size=options.size, rows=rows, recompute=True)
        for side in ("transformers", "bert4torch"):
            benchmark.start(side, options.peer_python, size=options.size, rows=rows)
        losses = benchmark.values("losses")
        for side, found in losses.items():
            np.testing.assert_allclose(found, losses[OURS], rtol=1e-4, err_msg=f"losses of {side}")
        told = [" and ".join(f"{loss:.4f}" for loss in found) + f" ({side})" for side, found in losses.items()]
        benchmark.note(f"Losses (seq2seq, similarity) before training, without dropout: {', '.join(told)}.")
        benchmark.measure("step", "training step", flops=step_flops(shape, rows))
        benchmark.report()


SIDES = {OURS: simretro, LEAN: simretro, "transformers": transformers, "bert4torch": bert4torch}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
