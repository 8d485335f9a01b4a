"""Pages of several languages: what is read of them, what is left out, and how they are divided."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import libreoffice_help
from libreoffice_help import aligned_paragraphs, documents_of, load_pages, main, parse_page, parse_tree, split_pages

MENU = '<header><p id="logo">A menu</p></header><div class="x"><p id="par_menu">Not read</p></div>'


def page_of(paragraphs):
    body = "\n".join(f'<p id="{key}" class="paragraph" dir="auto">{text}</p>' for key, text in paragraphs.items())
    return f'<html><body>{MENU}<div id="DisplayArea" itemscope="true">{body}</div><p id="bm">Behind</p></body></html>'


@pytest.mark.parametrize(
    "html, text",
    [
        ("Two\n  lines\u00a0here", "Two lines here"),
        ('A <a href="x">link</a>, <span class="emph">bold</span> &amp; <img src="y">image', "A link, bold & image"),
        ("Soft\u00adhyphen and \u200bzero width", "Softhyphen and zero width"),
        ('Press <span id="s" class="switchinline"><span hidden="true" id="MACx" class="MAC"><span>Command</span></span>'
         '<span hidden="true" id="defaultx"><span class="keycode">Ctrl</span></span></span>+A.', "Press Ctrl+A."),
        ('See <span class="switchinline"> <span id="WINx">C:</span> <span id="UNIXx">home</span> </span>.', "See C:."),
        ('Nothing<span class="switchinline"> </span> else', "Nothing else"),
        ('An open <span class="emph">span', "An open span"),
        ("1 + 2 = 3", None),
        ("", None),
    ],
)  # fmt: skip
def test_text_of_a_paragraph(html, text):
    assert parse_page(page_of({"par_1": html})) == ({} if text is None else {"par_1": text})


def test_paragraphs_of_a_page():
    html = f"""<body>{MENU}<div id="DisplayArea">
      <h1 id="hd_1">Heading</h1><p>No id</p><div><p id="par_2">First</p></div>
      <p id="par_3" class="code">print(x)</p><div class="bascode"><pre>Sub Main</pre></div>
      <table><tr><td><p id="FilterName_x">A filter</p></td><td><p id="par_4" class="intable">Cell</p></td></tr></table>
      <p id="par_5">Not closed<p id="par_6">Next</p><p id="par_2">Again</p>
      </div><div><p id="par_7">Behind</p></div></body>"""
    wanted = {"hd_1": "Heading", "par_2": "First", "par_4": "Cell", "par_5": "Not closed", "par_6": "Next"}
    assert parse_page(html) == wanted
    assert parse_page("<p id='par_1'>Another kind of page</p>") == {}


HELP = {
    "en": {
        "swriter/a.html": {"p1": "The first page.", "p2": "Save", "p3": "It has three paragraphs.", "p4": "OK then"},
        "swriter/b.html": {"p1": "The second page.", "p2": "save", "p3": "A repeated one was left out."},
        "swriter/c.html": {"p1": "The third page.", "p2": "Not translated.", "p3": "One more.", "p4": "And more."},
    },
    "ja": {
        "swriter/a.html": {"p1": "最初のページ。", "p2": "保存", "p3": "三つの段落。", "p4": "OK"},
        "swriter/b.html": {"p1": "二番目。", "p2": "保存する", "p3": "保存"},
        "swriter/c.html": {"p1": "三番目。", "p2": "Not translated.", "p3": "もう一つ。", "p4": "もっと。"},
    },
}


def write_tree(folder, language):
    for name, paragraphs in HELP[language].items():
        path = folder / "usr/share/libreoffice/help" / language / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page_of(paragraphs), encoding="utf-8")
    (folder / "usr/share/libreoffice/help" / language / "noscript.html").write_text(page_of({"p": "Not a page"}))
    return folder


@pytest.fixture
def cache(tmp_path):
    """A cache folder of languages that have been read."""
    for language in HELP:
        pages = parse_tree(write_tree(tmp_path / "trees" / language, language))
        with gzip.open(tmp_path / f"{language}.jsonl.gz", "wt", encoding="utf-8") as file:
            for name, page in pages.items():
                file.write(json.dumps({"doc": name, "paragraphs": list(page.items())}) + "\n")
    return tmp_path


def test_a_tree_is_read(tmp_path):
    assert parse_tree(write_tree(tmp_path, "en")) == HELP["en"]
    assert parse_tree(tmp_path / "nothing") == {}


def test_repeated_and_untranslated_paragraphs_are_left_out(cache):
    pages = load_pages(["en", "ja"], cache)
    assert {name: list(page) for name, page in pages["en"].items()} == {
        "swriter/a.html": ["p1", "p2", "p3", "p4"], "swriter/b.html": ["p1", "p3"],
        "swriter/c.html": ["p1", "p2", "p3", "p4"],
    }  # fmt: skip
    assert {name: list(page) for name, page in pages["ja"].items()} == {
        "swriter/a.html": ["p1", "p2", "p3"], "swriter/b.html": ["p1"], "swriter/c.html": ["p1", "p3", "p4"],
    }  # fmt: skip
    assert load_pages(["ja"], cache) == {"ja": pages["ja"]}


def test_pages_are_divided(cache):
    pages = load_pages(["en", "ja"], cache)
    training, held_out = split_pages(pages)  # a and c have three paragraphs in both; half of them is held out
    assert len(held_out) == 1 and held_out[0] in ("swriter/a.html", "swriter/c.html")
    assert not set(training["en"]) & set(training["ja"]) and training["en"] and training["ja"]
    assert {*training["en"], *training["ja"], *held_out} == set(HELP["en"])
    assert split_pages(pages) == (training, held_out)
    comparable, _ = split_pages(pages, comparable=True)
    assert comparable["en"] == comparable["ja"] and set(comparable["en"]) == {*training["en"], *training["ja"]}
    many = {
        language: {f"{n}.html": dict.fromkeys(map(str, range(1 + n % 7)), "x") for n in range(300)}
        for language in "abc"
    }
    training, held_out = split_pages(many, 40, seed=3)
    sizes = [sum(len(many["a"][name]) for name in own) for own in training.values()]
    assert len(held_out) == 40 and max(sizes) - min(sizes) <= 7 and min(len(many["a"][name]) for name in held_out) >= 3
    assert split_pages(many, 40, seed=4)[1] != held_out


def test_documents_and_aligned_paragraphs(cache):
    pages = load_pages(["en", "ja"], cache)
    documents = documents_of(pages["ja"], ["swriter/c.html"])
    assert [(d.id, d.text) for d in documents] == [("swriter/c.html", "三番目。\n\nもう一つ。\n\nもっと。")]
    assert len(documents_of(pages["en"])) == 3
    english, japanese = aligned_paragraphs(pages, "en", "ja", HELP["en"], min_characters=10)
    assert list(zip(english, japanese, strict=True)) == [
        ("The first page.", "最初のページ。"),
        ("It has three paragraphs.", "三つの段落。"),
        ("The second page.", "二番目。"),
        ("The third page.", "三番目。"),
    ]
    assert len(aligned_paragraphs(pages, "ja", "en", HELP["en"], num_pairs=2, min_characters=1)[0]) == 2


def test_main_writes_documents(cache, tmp_path, capsys):
    counts = main(["--languages", "en", "ja", "--cache", str(cache), "--output", str(tmp_path / "out" / "help")])
    assert counts == {"en": 10, "ja": 7} and "ja: 7 paragraphs on 3 pages" in capsys.readouterr().out
    records = [json.loads(line) for line in (tmp_path / "out/help/ja.jsonl").read_text("utf-8").splitlines()]
    assert records and all(set(record) == {"id", "text"} for record in records)


# The system's tools


def test_a_package_in_the_cache_is_opened(tmp_path, monkeypatch):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    monkeypatch.chdir(tmp_path)
    for language, name in (("en", "en-us"), ("ja", "ja")):
        tree = write_tree(tmp_path / language, language)
        (tree / "DEBIAN").mkdir()
        control = (
            f"Package: libreoffice-help-{name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: x\n"
        )
        (tree / "DEBIAN/control").write_text(control)
        Path("cache").mkdir(exist_ok=True)
        package = f"cache/libreoffice-help-{name}_1_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), package], check=True, capture_output=True)
    pages = load_pages(["en", "ja"], "cache")  # a relative path
    assert pages["ja"]["swriter/b.html"] == {"p1": "二番目。"}
    for package in Path("cache").glob("*.deb"):
        package.unlink()
    assert load_pages(["en", "ja"], "cache") == pages  # what was read is kept
    Path("cache/libreoffice-help-de_1_all.deb").write_bytes(b"damaged")
    with pytest.raises(OSError, match=r"`dpkg-deb .*failed: .*remove .*libreoffice-help-de_1_all\.deb"):
        load_pages(["de"], "cache")


def test_without_the_tools_one_line_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"apt-get is not on this machine.*put libreoffice-help-en-us_\*\.deb"):
        load_pages(["en"], tmp_path / "cache")
    with pytest.raises(SystemExit):
        main(["--cache", str(tmp_path / "cache")])
    assert capsys.readouterr().err.splitlines()[-1].count("apt-get is not on this machine") == 1
    tool = tmp_path / "apt-get"
    tool.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('E: Unable to locate package ' + sys.argv[-1])\n")
    os.chmod(tool, 0o755)
    with pytest.raises(OSError, match="Unable to locate package libreoffice-help-en-us. Run this on Debian .*update`"):
        load_pages(["de"], tmp_path / "cache")
    tool.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(OSError, match="apt-get left no package libreoffice-help-en-us behind"):
        load_pages(["de"], tmp_path / "cache")


def test_languages_are_named():
    assert len(libreoffice_help.LANGUAGES) >= 4 and set(libreoffice_help.LANGUAGES) >= {"en", "zh-CN"}
