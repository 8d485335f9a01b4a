"""One rule for titles, wherever documents become texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simretro.data import Document
from simretro.titles import begins_with_title, with_title


@pytest.mark.parametrize("title, text, whole", [
    ("Win", "Winter is coming", "Win Winter is coming"), ("Win", "win. The story", "win. The story"),
    ("A  b", "a\nb c", "a\nb c"), ("", " text ", "text"), ("Title", "", "Title"), ("Title", "title", "title"),
    ("longer than the text", "longer", "longer than the text longer"), ("", "", ""), (" ", "w1", "w1"),
    ("A wing", "w1", "A wing w1"), ("a wing .", "A  wing . w1 w2", "A  wing . w1 w2"), ("Wing", "wing", "wing"),
    ("Wing", "wing: w1", "wing: w1"), ("w1 w2", "w1", "w1 w2 w1"), (" A wing ", " w1 w2\n", "A wing w1 w2"),
    ("Why?", "why?Because", "why?Because"),  # where the title ends a word ends
    ("苹果", "苹果是水果", "苹果是水果"), ("苹果", "苹果", "苹果"), ("苹果", "水果", "苹果 水果"),
    ("りんご", "りんごは果物", "りんごは果物"), ("苹果 手机", "苹果 手机是", "苹果 手机是"),
    ("सेब", "सेब फल है", "सेब फल है"), ("सेब", "सेबों का फल", "सेब सेबों का फल"),  # the word goes on with a mark
    ("की", "कीमत", "की कीमत"), ("Cafe", "Cafe\u0301 noir", "Cafe Cafe\u0301 noir"),
])  # fmt: skip
def test_title_stands_before_the_text_once(title, text, whole):
    assert with_title(title, text) == whole
    assert Document(text, title).full_text == whole
    assert begins_with_title(text, title) is (whole == text.strip())


TEXTS = st.text(st.sampled_from("aB ß\t\n.?\u0301苹क" + "ि"), max_size=8)


@given(TEXTS, TEXTS)
def test_documents_and_collections_have_one_text(title, text):
    assert Document(text, title).full_text == with_title(title, text)
    assert with_title(title, f"{title.strip()} {text.strip()}") == f"{title.strip()} {text.strip()}".strip()
