"""The pairs of a file; what is done with them is tested where it is used, in `test_pretrain_ccp`."""

import gzip
import re

import pytest

from cross_lingual import read_pairs
from simretro.evaluation import TextPair

LINES = "en\tA dog.\tde\tEin Hund.\r\n\nen\t A cat. \tfr\tUn chat.\nen\tA\u2028cow.\tde\tEine Kuh."


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("packed", [False, True])
def test_reads_pairs(mark, packed, tmp_path):
    path = tmp_path / f"pairs.tsv{'.gz' * packed}"
    content = (mark + LINES).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    assert read_pairs(path) == {
        "en-de": TextPair("en", "de", ["A dog.", "A\u2028cow."], ["Ein Hund.", "Eine Kuh."]),
        "en-fr": TextPair("en", "fr", ["A cat."], ["Un chat."]),
    }


@pytest.mark.parametrize("content, message", [
    (b"en\tA dog.\tde\tEin Hund.\nen\tA\xff\tde\tb\n", "pairs.tsv, line 2: is not UTF-8"),
    ("en\tA\tde\tB\n".encode("utf-16"), "pairs.tsv, line 1: is not UTF-8"),
    (b"\nen\tA dog.\tde\n", "pairs.tsv, line 2: must have four columns.*received 3"),
    (b"en\tA dog.\tde\t \n", "pairs.tsv, line 1: must have four columns"),
    (b"en\tA\tde\tB\tC\n", "received 5"), (b"\n \n", "pairs.tsv: holds no pairs"),
])  # fmt: skip
def test_bad_lines_are_named(content, message, tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_pairs(tmp_path / "pairs.tsv")
    assert re.search(r"\A\S*pairs\.tsv", str(caught.value))
