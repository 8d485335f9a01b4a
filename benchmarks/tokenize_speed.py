"""Sentences a second from text to padded int32 rows, beside the Rust library called directly. About half a minute.

usage: python benchmarks/tokenize_speed.py [--vocab vocab.txt] [--sentences 20000] [--runs 5]

`encode_batch` remembers the words that it has seen; "cold" is a tokenizer's first batch of all sentences, "warm" the
following ones. The peer is `tokenizers`' own encode_batch_fast with its own padding, on the same vocabulary; beside it
stands Hugging Face's BertTokenizerFast, where transformers is installed. Without --vocab the words are made up.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import numpy as np
from tokenizers import Tokenizer as Backend

from simretro.tokenizers import Tokenizer, load_vocab

TOKENS_PER_SENTENCE = 20


def make_vocab(words=20000, seed=0):
    """Specials, letters, Latin words and pieces, ideographs: of the size and the make of a multilingual vocabulary."""
    rng = np.random.default_rng(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    made = {"".join(rng.choice(list(letters), rng.integers(2, 9))) for _ in range(words)}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *",.!?，。？", *letters, *(f"##{x}" for x in letters)]
    tokens += [*sorted(made), *(chr(0x4E00 + i) for i in range(6000))]
    return {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}


def make_sentences(vocab, count, chinese, seed=1):
    """Sentences of about 20 tokens; words by Zipf's law, one in ten not in the vocabulary as a whole."""
    rng = np.random.default_rng(seed)
    if chinese:
        known = [token for token in vocab if len(token) == 1 and "\u4e00" <= token <= "\u9fff"]
        space, end, length = "", "。", TOKENS_PER_SENTENCE - 1
    else:
        known = [token for token in vocab if token.isascii() and token.isalpha() and len(token) > 3]
        # Every tenth word falls into two pieces or more.
        known = [word + known[i // 2][:1] if i % 10 == 9 else word for i, word in enumerate(known)]
        space, end, length = " ", ".", TOKENS_PER_SENTENCE - 3
    weights = 1.0 / np.arange(1, len(known) + 1)
    drawn = rng.choice(len(known), (count, length), p=weights / weights.sum())
    return [space.join(known[place] for place in row) + end for row in drawn]


def rust_rows(backend, sentences):
    """What the Rust library does on its own: encode, pad, and the ids as one array."""
    return np.array([encoding.ids for encoding in backend.encode_batch_fast(sentences)], "int32")


def rates(function, count, runs):
    """Sentences a second: of the first call, the median of the others, their least and most."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    rest = sorted(count / seconds for seconds in times[1:])
    return {
        "cold": round(count / times[0]),
        "warm": round(statistics.median(rest)),
        "range": [round(rest[0]), round(rest[-1])],
    }


def compare(vocab, sentences, runs):
    """The rates of each tokenizer, whose ids are checked to be the same, and the tokens of a sentence."""
    ours = Tokenizer(vocab)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peer, theirs = Backend.from_file(f"{folder}/tokenizer.json"), hugging_face(folder)
    peer.enable_padding()
    calls = {"Rust": lambda: rust_rows(peer, sentences), "simretro": lambda: ours.encode_batch(sentences)[0]}
    if theirs:
        calls["BertTokenizerFast"] = lambda: theirs(sentences, padding=True, return_tensors="np")["input_ids"]
    rows = {name: rates(call, len(sentences), runs) for name, call in calls.items()}
    for name, call in calls.items():
        rows[name]["to_rust"] = round(rows[name]["warm"] / rows["Rust"]["warm"], 2)
        np.testing.assert_array_equal(call(), rust_rows(peer, sentences), err_msg=name)
    return rows, float((ours.encode_batch(sentences)[0] != ours.pad_token_id).sum() / len(sentences))


def hugging_face(folder):
    """Hugging Face's class on the same vocabulary, or None."""
    try:
        from transformers import BertTokenizerFast
    except ImportError:
        return None
    return BertTokenizerFast.from_pretrained(folder)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", help="a vocabulary file; default: made-up words")
    parser.add_argument("--sentences", type=int, default=20000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(argv)
    vocab = load_vocab(options.vocab) if options.vocab else make_vocab()
    result = {"task": "tokenize_speed", "load_before": os.getloadavg()[0], "vocab": len(vocab)}
    print("| text | tokens | tokenizer | first batch, 1/s | later, 1/s (range) | to Rust |\n|---|---|---|---|---|---|")
    for kind in ("words", "ideographs"):
        sentences = make_sentences(vocab, options.sentences, chinese=kind == "ideographs")
        rows, tokens = compare(vocab, sentences, options.runs)
        for name, row in rows.items():
            least, most = row["range"]
            later = f"{row['warm']:,} ({least:,}-{most:,})"
            print(f"| {kind} | {tokens:.1f} | {name} | {row['cold']:,} | {later} | {row['to_rust']:.2f} |")
        result[kind] = {"tokens": tokens, **rows}
    result["load_after"] = os.getloadavg()[0]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
