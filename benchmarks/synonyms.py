"""`gen_synonyms`: 100 samples of a 12-token source, 32 new tokens each, top-k 5; beside other decoders of the model.

usage: python benchmarks/synonyms.py --peer-python PEERS/bin/python [--b4k-python B4K/bin/python]     about 9 minutes
       python benchmarks/synonyms.py --peer-python PEERS/bin/python --size base --rounds 3 --runs 2  about 14 minutes,
       of them 5 for bert4torch without a cache (leave it out: --sides "torch cached,bert4torch cached")

simretro           `generate`, keys and values cached, all samples of all sources in one loop; `SimBERT.gen_synonyms`
torch cached       a reference written here: transformers' layers, keys and values in place, draws among the top 5 only
bert4torch cached  bert4torch's AutoRegressiveDecoder with its layers' key/value states. It has this for its decoders
                   only; a base class and a `predict` written here give it to its BERT
bert4torch         as in its SimBERT example: each step runs source and output anew
bert4keras         as in SimBERT's own script: the same, by Keras' `predict`

All have the same random weights, in which special tokens have a bias against them: each sample takes all 32 steps. The
greedy outputs of all are compared. "Re-ranking" encodes the source and 100 sentences of 34 tokens and sorts by cosine;
simretro starts from strings there and drops copies of the source, the others have ids. They take several sources one
after the other: bert4torch knows no n for several, bert4keras no several.
"""

import itertools
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
    stand_in_for_torchvision,
    trunk_flops,
)

SOURCE_LENGTH, NEW_TOKENS, TOP_K, NUM_SOURCES, KEPT = 12, 32, 5, 16, 20
TORCH, CACHED, PLAIN, BERT4KERAS = "torch cached", "bert4torch cached", "bert4torch", "bert4keras"
_FIRST_IDEOGRAPH = 0x4E00


def make_rows(count, length, seed):
    """Lists of ids with [CLS] and [SEP]."""
    words = np.random.default_rng(seed).integers(FIRST_WORD, VOCAB_SIZE, (count, length - 2))
    return [[CLS, *row, SEP] for row in words.tolist()]


SOURCES = make_rows(NUM_SOURCES, SOURCE_LENGTH, seed=1)


def candidates(settings):
    """A source and what could be its samples, all of the length of a full one."""
    return make_rows(settings["samples"] + 1, NEW_TOKENS + 2, seed=2)


def generation_flops(shape, samples):
    """A source once, then a token a step for every sample; the last token is drawn but not fed."""
    total = trunk_flops(shape, SOURCE_LENGTH, SOURCE_LENGTH) + head_flops(shape, 1)
    for step in range(1, NEW_TOKENS):
        total += samples * (trunk_flops(shape, 1, SOURCE_LENGTH + step) + head_flops(shape, 1))
    return total


def ranking_flops(shape, samples):
    return (samples + 1) * trunk_flops(shape, NEW_TOKENS + 2, NEW_TOKENS + 2)


def simretro(settings):
    import keras

    from simretro import SimBERT, Tokenizer, build_transformer_model
    from simretro.generation import generate

    keras.utils.set_random_seed(0)
    config = bert_config(settings["size"])
    model = build_transformer_model(config, application="unilm", with_pool="linear", with_mlm="linear")
    model.token_table.assign(4 * model.token_table)  # else next to all tokens are as probable
    model.mlm_head.bias.assign(-100.0 * (np.arange(VOCAB_SIZE) < FIRST_WORD))
    words = [chr(_FIRST_IDEOGRAPH + i) for i in range(VOCAB_SIZE - FIRST_WORD)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    simbert = SimBERT(model, Tokenizer({token: i for i, token in enumerate(tokens)}))
    simbert.save_pretrained(f"{settings['folder']}/huggingface", format="huggingface")
    if settings["with_tf1"]:
        simbert.save_pretrained(f"{settings['folder']}/tf1", format="tf1")
    texts = ["".join(tokens[i] for i in ids[1:-1]) for ids in candidates(settings)]
    source = "".join(tokens[i] for i in SOURCES[0][1:-1])
    seeds, n = itertools.count(), settings["samples"]

    def samples(sources):
        return count(generate(model, sources, NEW_TOKENS, SEP, n, TOP_K, seed=next(seeds)))

    def rank():
        vectors = simbert.encode(texts)
        return np.argsort(-(vectors[1:] @ vectors[0]))[:KEPT].tolist()

    calls = {
        "greedy": lambda: [rows[0] for rows in generate(model, SOURCES[:3], NEW_TOKENS, SEP, temperature=0)],
        "one": lambda: samples(SOURCES[:1]),
        "rank": rank,
        # [CLS] and [SEP] are of the candidate; its [SEP] takes a step.
        "both": lambda: len(simbert.gen_synonyms(source, n, KEPT, maxlen=NEW_TOKENS + 1, seed=next(seeds))),
        "many": lambda: samples(SOURCES),
    }
    return calls, ("keras", "tensorflow", "numpy")


def count(outputs):
    """How many tokens the samples (of each source) have, on average."""
    return float(np.mean([len(row) for rows in outputs for row in rows]))


def torch_cached(settings):
    import torch
    from torch.nn.functional import normalize, scaled_dot_product_attention
    from transformers import BertForPreTraining

    torch.set_num_threads(settings["threads"])
    torch.set_grad_enabled(False)
    net = BertForPreTraining.from_pretrained(f"{settings['folder']}/huggingface").eval()
    num_layers, hidden_size, _, heads = SIZES[settings["size"]]
    n = settings["samples"]

    def forward(token_ids, segment, caches, start):
        """Runs tokens whose first has position `start`; returns the hidden states of the last one."""
        end = start + token_ids.shape[1]
        segment_ids = torch.full_like(token_ids, segment)
        x = net.bert.embeddings(token_ids, segment_ids, torch.arange(start, end)[None])
        for layer, cache in zip(net.bert.encoder.layer, caches, strict=True):
            attention = layer.attention.self
            query, key, value = (
                project(x).unflatten(-1, (heads, -1)).transpose(1, 2)
                for project in (attention.query, attention.key, attention.value)
            )
            cache[0, :, :, start:end], cache[1, :, :, start:end] = key, value
            context = scaled_dot_product_attention(query, *cache[:, :, :, :end])
            x = layer.attention.output(context.transpose(1, 2).flatten(2), x)
            x = layer.output(layer.intermediate(x), x)
        return x[:, -1]

    def sample(source, n, top_k):
        room = (2, 1, heads, SOURCE_LENGTH + NEW_TOKENS, hidden_size // heads)
        caches = [torch.zeros(room) for _ in range(num_layers)]
        hidden = forward(torch.tensor([source]), 0, caches, 0).expand(n, -1)
        caches = [cache.repeat(1, n, 1, 1, 1) for cache in caches]
        outputs = []
        for step in range(NEW_TOKENS):
            if step:
                hidden = forward(outputs[-1], 1, caches, len(source) + step - 1)
            logits, ids = net.cls.predictions(hidden).topk(top_k)
            outputs.append(ids.gather(1, torch.multinomial(logits.softmax(-1), 1)))
        return torch.cat(outputs, 1)

    def rank(rows):
        vectors = net.bert.pooler.dense(net.bert(rows).last_hidden_state[:, 0])
        vectors = normalize(vectors, dim=-1)
        return (vectors[1:] @ vectors[0]).argsort(descending=True)[:KEPT].tolist()

    return torch_calls(settings, lambda ids: sample(ids, 1, 1), lambda ids: sample(ids, n, TOP_K), rank, "transformers")


def torch_calls(settings, greedy, sample, rank, library):
    """The calls of a library on torch, from `greedy(source)`, `sample(source)` -> ids (n, 32) and `rank(ids)`."""
    import torch

    fixed = torch.tensor(candidates(settings))

    def both():
        outputs = sample(SOURCES[0])
        source = torch.tensor([SOURCES[0] + [0] * (fixed.shape[1] - SOURCE_LENGTH)])
        cls, sep = (torch.full((len(outputs), 1), token_id) for token_id in (CLS, SEP))
        return len(rank(torch.cat([source, torch.cat([cls, outputs, sep], 1)])))

    calls = {
        "greedy": lambda: [greedy(ids)[0].tolist() for ids in SOURCES[:3]],
        "one": lambda: count([sample(SOURCES[0])]),
        "rank": lambda: rank(fixed),
        "both": both,
        "many": lambda: count([sample(ids) for ids in SOURCES]),
    }
    return calls, (library, "torch")


def bert4torch(settings, cached=False):
    import torch

    torch.set_num_threads(settings["threads"])
    torch.set_grad_enabled(False)
    base = None
    if cached:
        stand_in_for_torchvision()
        from bert4torch.models.base.modeling_transformer import PreTrainedModelForDecoder
        from bert4torch.models.bert.modeling_bert import BERT

        base = type("BERTWithStates", (PreTrainedModelForDecoder, BERT), {})
    model = bert4torch_model(settings, base).eval()
    from bert4torch.generation import AutoRegressiveDecoder

    class Plain(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps("logits")
        def predict(self, inputs, output_ids, states):
            token_ids, segment_ids = (
                torch.cat(pair, 1) for pair in zip(inputs, (output_ids, torch.ones_like(output_ids)), strict=True)
            )
            return model.predict([token_ids, segment_ids])[-1][:, -1]

    class Cached(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps("logits", use_states=True)
        def predict(self, inputs, output_ids, states):
            if self.step:
                inputs = [output_ids[:, -1:], torch.ones_like(output_ids[:, -1:])]
            if self.step == 1:  # until now there was one row
                states = [tuple(x.repeat(len(output_ids), 1, 1, 1) for x in pair) for pair in states]
            outputs, kept = model.predict(inputs, use_states=True, past_key_values=states)
            return outputs[-1][:, -1], kept["past_key_values"]

    def decoder(**options):
        kind = Cached if cached else Plain
        return kind(eos_token_id=SEP, max_new_tokens=NEW_TOKENS, device="cpu", **options)

    def run(source, **options):
        return torch.stack(decoder(**options).random_sample([source, [0] * len(source)]))

    def rank(rows):
        vectors = torch.nn.functional.normalize(model.predict([rows, torch.zeros_like(rows)])[1], dim=-1)
        return (vectors[1:] @ vectors[0]).argsort(descending=True)[:KEPT].tolist()

    calls, distributions = torch_calls(
        settings,
        lambda ids: run(ids, n=1, do_sample=False),
        lambda ids: run(ids, n=settings["samples"], top_k=TOP_K),
        rank,
        "bert4torch",
    )
    if not cached:
        calls = {name: calls[name] for name in ("greedy", "one")}
    return calls, distributions


def bert4keras(settings):
    import tensorflow as tf

    tf.keras.Model  # noqa: B018 - loaded now, or bert4keras' import of it has no end
    from bert4keras.models import build_transformer_model
    from bert4keras.snippets import AutoRegressiveDecoder

    folder = f"{settings['folder']}/tf1"
    bert = build_transformer_model(
        f"{folder}/bert_config.json",
        f"{folder}/bert_model.ckpt",
        with_pool="linear",
        application="unilm",
        return_keras_model=False,
    )
    seq2seq = tf.keras.Model(bert.model.inputs, bert.model.outputs[1])

    class Synonyms(AutoRegressiveDecoder):
        @AutoRegressiveDecoder.wraps("probas")
        def predict(self, inputs, output_ids, states):
            token_ids, segment_ids = (
                np.concatenate(pair, 1) for pair in zip(inputs, (output_ids, np.ones_like(output_ids)), strict=True)
            )
            return self.last_token(seq2seq).predict([token_ids, segment_ids], verbose=0)

    def run(source, n, top_k):
        outputs = Synonyms(start_id=None, end_id=SEP, maxlen=NEW_TOKENS).random_sample(
            [source, [0] * len(source)], n, top_k
        )
        return [row.tolist() for row in outputs]

    calls = {
        "greedy": lambda: [run(ids, 1, 1)[0] for ids in SOURCES[:3]],
        "one": lambda: count([run(SOURCES[0], settings["samples"], TOP_K)]),
    }
    return calls, ("bert4keras", "tensorflow")


def main():
    def add_arguments(parser):
        parser.add_argument("--b4k-python", help="interpreter with bert4keras 0.11.5 on TensorFlow 2.15")
        parser.add_argument("--size", choices=list(SIZES), default="small", help="4x256 or 12x768")
        parser.add_argument("--samples", type=int, default=100, help="of each source")

    options = options_of(__doc__, 4, 3, add_arguments)
    if options.quick:
        options.samples = 4
    shape, n = SIZES[options.size], options.samples
    name = f"{shape[0]}x{shape[1]}, vocabulary {VOCAB_SIZE:,}, source {SOURCE_LENGTH} tokens, n={n}, {NEW_TOKENS} new"
    with Benchmark(__file__, options, f"{name}, top-k {TOP_K}") as benchmark:
        settings = {"size": options.size, "samples": n, "with_tf1": bool(options.b4k_python)}
        benchmark.start(OURS, sys.executable, **settings)
        for side in (TORCH, CACHED, PLAIN):
            benchmark.start(side, options.peer_python, **settings)
        benchmark.start(BERT4KERAS, options.b4k_python, **settings)
        check(benchmark)
        flops, few = generation_flops(shape, n), (PLAIN, BERT4KERAS)
        complete(benchmark.measure("one", "one source, samples alone", "s", flops=flops, few=few), NEW_TOKENS)
        benchmark.measure("rank", f"re-ranking of {n}", "s", flops=ranking_flops(shape, n))
        found = benchmark.measure("both", "one source, both", "s", flops=flops + ranking_flops(shape, n))
        complete(found, min(n, KEPT))
        if options.size == "small":
            label = f"{NUM_SOURCES} sources, samples alone"
            found = benchmark.measure("many", label, "s", flops=NUM_SOURCES * flops, few=(TORCH, CACHED))
            complete(found, NEW_TOKENS)
        benchmark.report()


def check(benchmark):
    """All decoders give the same tokens where nothing is drawn."""
    greedy = {side: sum(outputs, []) for side, outputs in benchmark.values("greedy").items()}
    same = {side: sum(a == b for a, b in zip(ids, greedy[OURS], strict=True)) for side, ids in greedy.items()}
    told = ", ".join(f"{same} ({side})" for side, same in same.items() if side != OURS)
    benchmark.note(f"Greedy outputs of three sources, tokens of {same[OURS]} that are simretro's: {told}.")
    if min(same.values()) < same[OURS] / 2:  # rounding may turn an output off its way, but not most of them
        raise RuntimeError("The decoders do not compute the same.")


def complete(values, expected):
    """Nothing was cut short: all samples have all tokens, as many sentences as asked for were ranked."""
    for side, value in values.items():
        if value != expected:
            raise RuntimeError(f"{side} has not done all of the work: {value} instead of {expected}.")


SIDES = {
    OURS: simretro,
    TORCH: torch_cached,
    CACHED: lambda settings: bert4torch(settings, cached=True),
    PLAIN: bert4torch,
    BERT4KERAS: bert4keras,
}

if __name__ == "__main__":
    if not serve(SIDES):
        main()
