"""The reader of groups: what it accepts, and that every error names file, line, what was found and what to do."""

import codecs
import json
import os
import re
import subprocess
import sys

import pytest

from simretro.data import Group, iter_groups, read_groups
from simretro.data.groups import as_groups

GOOD = '{"text": "how far", "synonyms": ["what distance"]}'


def write(tmp_path, *lines, end="\n", prefix=b""):
    path = tmp_path / "groups.jsonl"
    path.write_bytes(
        prefix + b"".join((line if isinstance(line, bytes) else line.encode()) + end.encode() for line in lines)
    )
    return path


def test_reads_groups_in_order_with_their_places(tmp_path):
    path = write(tmp_path, GOOD, '{"synonyms": ["怎么走", "路线？"], "text": "怎么去", "id": 7}')
    assert read_groups(path) == [
        Group(("how far", "what distance"), str(path), 1),
        Group(("怎么去", "怎么走", "路线？"), str(path), 2),
    ]
    assert read_groups(str(path))[1].place == f"{path}, line 2"


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\x1c"])
def test_lines_end_at_line_feeds_only(tmp_path, separator):
    record = json.dumps({"text": f"a{separator}b", "synonyms": ["c"]}, ensure_ascii=ord(separator) < 32)
    assert [group.texts for group in iter_groups(write(tmp_path, record, GOOD))] == [
        (f"a{separator}b", "c"),
        ("how far", "what distance"),
    ]


def test_accepts_byte_order_mark_windows_line_ends_blank_lines_and_no_last_line_end(tmp_path):
    path = write(tmp_path, GOOD, "", "   ", GOOD, end="\r\n", prefix=codecs.BOM_UTF8)
    assert [group.line for group in iter_groups(path)] == [1, 4]
    path.write_bytes(GOOD.encode())
    assert len(read_groups(path)) == 1


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"text": "a\nb", "synonyms": ["c"]}', [r"JSON", r"line break", r'{"text": "a']),
        ("not json", [r"one whole JSON object", "'not json'"]),
        ('["a", "b"]', [r"must be a JSON object", r'\["a", "b"\]']),
        ('{"synonyms": ["b"]}', [r"has no `text`", r'{"synonyms"']),
        ('{"text": "a"}', [r"has no `synonyms`"]),
        ('{"text": 3, "synonyms": ["b"]}', [r"`text` must be a str", r"received int 3"]),
        ('{"text": "a", "synonyms": "b"}', [r"`synonyms` must be a list", r"received 'b'"]),
        ('{"text": "a", "synonyms": {"b": 1}}', [r"`synonyms` must be a list"]),
        ('{"text": "a", "synonyms": ["b", null]}', [r"each of `synonyms` must be a str", r"NoneType"]),
        ('{"text": "a", "synonyms": []}', [r"at least one text", r"received \[\]", r"leave"]),
        ('{"text": "", "synonyms": ["b"]}', [r"`text` must not be empty", r"received ''"]),
        ('{"text": "a", "synonyms": ["\\u3000 "]}', [r"`synonyms` must not be empty"]),
        ('{"text": "a", "synonyms": ["x\\ud83d"]}', [r"valid Unicode", r"character 1"]),
        (b'{"text": "\xb2\xe9", "synonyms": ["b"]}', [r"not UTF-8", r"byte 10"]),
        (b"\xff\xfe{\x00", [r"not UTF-8"]),
    ],
)
def test_bad_line_is_named(tmp_path, line, words):
    path = write(tmp_path, GOOD, GOOD, line, GOOD)
    with pytest.raises(ValueError) as caught:
        read_groups(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ")
    for word in words:
        assert re.search(word, message), message


def test_groups_before_a_bad_line_are_yielded(tmp_path):
    groups = iter_groups(write(tmp_path, GOOD, "broken"))
    assert next(groups).line == 1
    with pytest.raises(ValueError, match="line 2"):
        next(groups)


@pytest.mark.parametrize("content", [b"", b"\n \n", codecs.BOM_UTF8])
def test_file_without_records_is_refused(tmp_path, content):
    (tmp_path / "empty.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"empty\.jsonl: the file holds no records.*\"synonyms\""):
        read_groups(tmp_path / "empty.jsonl")


def test_reading_needs_no_keras():
    script = "import sys; from simretro.data import iter_groups; assert 'keras' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        read_groups(tmp_path / "nowhere.jsonl")


def test_groups_in_memory_are_checked_like_those_of_a_file():
    assert [group.texts for group in as_groups([["a", "b"], Group(("c", "d"))])] == [("a", "b"), ("c", "d")]
    for groups, message in [
        ([["a", "b"], "cd"], "group 1: must be a `Group` or a list of str; received str 'cd'"),
        ([{"text": "a", "synonyms": ["b"]}], "group 0: .* received dict"),
        ([["a"]], r"group 0: .* at least two texts; received \('a',\)"),
        ([["a", ""]], "group 0: a text must not be empty"),
        ([["a", "b"], Group(("a", " "))], "group 1: a text must not be empty"),
        ([["a", 1]], "group 0: a text must be a str; received int 1"),
        ([3], "group 0: .* received int 3"),
        ([], "at least one group"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(as_groups(groups))
