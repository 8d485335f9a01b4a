"""A program that encodes a corpus and stops in the midst of a block, to be killed there; NumPy alone.

python killed_encoding.py SOURCE FOLDER DTYPE [--stop-in-block N]
"""

import argparse
import sys
import zlib

import numpy as np

from simretro.retrieval import encode_corpus


def encode(texts):
    return np.stack([np.random.default_rng(zlib.crc32(text.encode())).standard_normal(12) for text in texts])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("folder")
    parser.add_argument("dtype")
    parser.add_argument("--stop-in-block", type=int)
    options = parser.parse_args()
    blocks = 0

    def counting(texts):
        nonlocal blocks
        blocks += 1
        if blocks == options.stop_in_block:
            print("encoding", flush=True)
            sys.stdin.read()  # until it is killed
        return encode(texts)

    encode_corpus(counting, options.source, options.folder, options.dtype, block_size=7)


if __name__ == "__main__":
    main()
