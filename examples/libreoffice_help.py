"""Documents of several languages that are translations of each other: LibreOffice's help, from Debian's packages.

The packages `libreoffice-help-*` hold the same pages in some thirty languages, each paragraph with an id that is the
same in all of them (MPL-2.0). They are fetched with `apt-get download` and opened with `dpkg-deb`, without root, into a
cache folder, once. A page is a document to pre-train on; paragraphs of held-out pages are what to evaluate with.
The eight languages below, of LibreOffice 7.4: 28 MB, 16,800 (ja) to 36,500 (en) paragraphs each; a minute on one core.

    python examples/libreoffice_help.py --languages en de fr es --output runs/help   # a jsonl of documents a language

    pages = load_pages(["en", "de", "ja"])                  # {language: {page: {id: paragraph}}}
    training, held_out = split_pages(pages)                 # {language: pages of its own}, pages for evaluation
    documents = documents_of(pages["ja"], training["ja"])   # for ContextWindows
    english, japanese = aligned_paragraphs(pages, "en", "ja", held_out)
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from command_line import HelpFormatter, one_line_errors
from simretro.data import Document
from simretro.files import atomic_file

LANGUAGES = ("en", "de", "fr", "es", "ru", "ja", "zh-CN", "tr")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "simretro" / "libreoffice-help"
# A paragraph without any character of its language's script was not translated.
SCRIPTS = {
    "ar": "؀-ۿ", "bg": "Ѐ-ӿ", "bn": "ঀ-৿", "el": "Ͱ-Ͽ", "he": "֐-׿", "hi": "ऀ-ॿ", "ja": "぀-ヿ一-鿿",
    "ka": "Ⴀ-ჿ", "km": "ក-៿", "ko": "가-힣", "ru": "Ѐ-ӿ", "uk": "Ѐ-ӿ", "zh-CN": "一-鿿", "zh-TW": "一-鿿",
}  # fmt: skip
CODE = {"code", "codeintable", "smathcode"}
PARAGRAPHS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")

Pages = dict[str, dict[str, str]]  # page -> id of a paragraph -> its text, in order


def load_pages(languages: Sequence[str] = LANGUAGES, cache: str | Path = CACHE) -> dict[str, Pages]:
    """The translated paragraphs of each language, fetched where the cache folder does not have them.

    Left out are, in all languages, paragraphs whose English text stands on an earlier page, too; in each language
    paragraphs that repeat an earlier one, or that were not translated.

    Args:
        languages: codes, as `pt-BR`; English is fetched in any case, to know what was not translated.
        cache: folder.
    Returns: for each language its pages, in the order of their names.
    Raises:
        OSError: if the packages can neither be found in the cache nor fetched.
        ValueError: if a package has no pages.
    """
    raw = {language: _read_pages(language, Path(cache)) for language in dict.fromkeys(["en", *languages])}
    english = {text.casefold() for page in raw["en"].values() for text in page.values()}
    first_ones = _without_repeats(raw["en"])
    found = {}
    for language in languages:
        if language == "en":
            found["en"] = first_ones
            continue
        script = SCRIPTS.get(language) and re.compile(f"[{SCRIPTS[language]}]")
        found[language] = _without_repeats(
            {
                name: {
                    key: text
                    for key, text in page.items()
                    if key in first_ones.get(name, ()) and text.casefold() not in english
                    and (not script or script.search(text))
                }
                for name, page in raw[language].items()
            }
        )  # fmt: skip
    return found


def split_pages(
    pages: Mapping[str, Pages], num_held_out: int = 400, comparable: bool = False, seed: int = 0
) -> tuple[dict[str, list[str]], list[str]]:
    """Pages to train on, and pages for the evaluation, which no language is trained on.

    Args:
        pages: from `load_pages`.
        num_held_out: int, as many pages that have three paragraphs in each language, at most half of these.
        comparable: bool; False: each page is given to one language, so that no text is seen in two; True: all languages
            have the same pages. Nothing tells which paragraphs belong together in either case.
        seed: int.
    Returns: (for each language its pages, held-out pages).
    """
    names = sorted(
        {name for own in pages.values() for name in own},
        key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).hexdigest(),
    )
    rich = [name for name in names if all(len(own.get(name, ())) >= 3 for own in pages.values())]
    held_out = rich[: min(num_held_out, len(rich) // 2)]
    rest = [name for name in names if name not in set(held_out)]
    if comparable:
        return {language: [name for name in rest if name in own] for language, own in pages.items()}, held_out
    training, sizes = {language: [] for language in pages}, dict.fromkeys(pages, 0)
    for name in rest:  # to the language that has the fewest paragraphs so far
        language = min((language for language, own in pages.items() if name in own), key=sizes.get)
        training[language].append(name)
        sizes[language] += len(pages[language][name])
    return training, held_out


def documents_of(pages: Pages, names: Iterable[str] | None = None) -> list[Document]:
    """A document for each page, its paragraphs divided by blank lines.

    Args:
        pages: of one language.
        names: which ones; None: all.
    """
    return [Document("\n\n".join(pages[name].values()), id=name) for name in (pages if names is None else names)]


def aligned_paragraphs(
    pages: Mapping[str, Pages],
    first: str,
    second: str,
    names: Iterable[str],
    num_pairs: int = 1000,
    min_characters: int = 20,
    seed: int = 0,
) -> tuple[list[str], list[str]]:
    """Paragraphs of two languages that are translations of each other.

    Args:
        pages: from `load_pages`.
        first, second: languages.
        names: pages to take them from.
        num_pairs: int, at most so many, drawn from all.
        min_characters: int; pairs whose first text is shorter are left out, headings for the most part.
        seed: int.
    Returns: two lists of the same length.
    """
    keys = [
        (name, key)
        for name in names
        for key, text in pages[first].get(name, {}).items()
        if len(text) >= min_characters and key in pages[second].get(name, {})
    ]
    keys.sort(key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).hexdigest())
    chosen = sorted(keys[:num_pairs])
    return [pages[first][name][key] for name, key in chosen], [pages[second][name][key] for name, key in chosen]


def _without_repeats(pages):
    seen, kept = set(), {}
    for name in sorted(pages):
        page = {}
        for key, text in pages[name].items():
            folded = text.casefold()
            if folded not in seen:
                seen.add(folded)
                page[key] = text
        if page:
            kept[name] = page
    return kept


# From the package to paragraphs


def _read_pages(language: str, cache: Path) -> Pages:
    """All paragraphs of a language, from the file in the cache folder, which is made if there is none."""
    path = cache / f"{language}.jsonl.gz"
    if not path.is_file():
        with tempfile.TemporaryDirectory(prefix="libreoffice-help-") as folder:
            _extract(_package(language, cache), folder)
            pages = parse_tree(folder)
        if not pages:
            raise ValueError(f"the package of {language!r} holds no pages; choose a language that has been translated.")
        with atomic_file(path) as file, gzip.open(file, "wt", encoding="utf-8") as packed:
            for name, page in pages.items():
                packed.write(json.dumps({"doc": name, "paragraphs": list(page.items())}, ensure_ascii=False) + "\n")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {record["doc"]: dict(record["paragraphs"]) for record in map(json.loads, file)}


def _package(language: str, cache: Path) -> Path:
    """The package of a language in the cache folder, fetched if it is not there."""
    name = f"libreoffice-help-{'en-us' if language == 'en' else language.lower()}"
    cache.mkdir(parents=True, exist_ok=True)
    if not any(cache.glob(f"{name}_*.deb")):
        print(f"fetching {name}", file=sys.stderr)
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name]
        advice = f"Run this on Debian or Ubuntu, after `apt-get update`, or put {name}_*.deb into {cache}."
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as folder:
            _run(command, folder, advice)
            for package in Path(folder).glob("*.deb"):
                package.rename(cache / package.name)
    packages = sorted(cache.glob(f"{name}_*.deb"))
    if not packages:
        raise OSError(f"apt-get left no package {name} behind. Put {name}_*.deb into {cache}.")
    return packages[-1]


def _extract(package: Path, folder: str) -> None:
    advice = f"Install dpkg; if the file is damaged, remove {package}."
    _run(["dpkg-deb", "--extract", str(package.resolve()), folder], folder, advice)


def _run(command, folder, advice):
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not on this machine. {advice}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise OSError(f"`{' '.join(command)}` failed: {reason}. {advice}")


def parse_tree(folder: str | Path) -> Pages:
    """The paragraphs of all pages below `<folder>/usr/share/libreoffice/help/<language>/text`."""
    pages = {}
    for root in sorted(Path(folder).glob("usr/share/libreoffice/help/*/text")):
        for path in sorted(root.rglob("*.html")):
            page = parse_page(path.read_text("utf-8"))
            if page:
                pages[path.relative_to(root).as_posix()] = page
    return pages


def parse_page(html: str) -> dict[str, str]:
    """The paragraphs and headings of a page that have an id and a letter, in order.

    Code, and tables of file filters, are left out. Where the text depends on system or application, the one for all
    others is taken, or the first if there is none.
    """
    parser = _PageParser()
    start = html.find('<div id="DisplayArea"')  # before it are menus
    parser.feed(html[start:] if start >= 0 else "")
    parser.close()
    return parser.paragraphs


class _Span(NamedTuple):
    """What stands between two tags: texts, and the texts of spans with their ids."""

    identifier: str | None
    is_switch: bool
    parts: list[tuple[str | None, str]]

    def text(self) -> str:
        if not self.is_switch:
            return "".join(text for _, text in self.parts)
        variants = [(identifier, text) for identifier, text in self.parts if identifier is not None]
        default = [text for identifier, text in variants if identifier.startswith("default")]
        return [*default, *(text for _, text in variants), ""][0]


class _PageParser(HTMLParser):
    """Collects the paragraphs of a page that begins with its content area."""

    def __init__(self):
        super().__init__()
        self.paragraphs = {}
        self.depth, self.ended = 0, False  # of `div`, in the content area
        self.spans = []  # the paragraph that is open, and the spans in it

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        identifier, names = attributes.get("id") or "", (attributes.get("class") or "").split()
        if tag == "div" and not self.ended:
            self.depth += 1
        elif tag == "span" and self.spans:
            self.spans.append(_Span(identifier, "switchinline" in names, []))
        elif self.depth and tag in PARAGRAPHS:
            self._finish()
            if identifier and not CODE & set(names) and not re.match("(MediaType|FilterName|APIName)_", identifier):
                self.spans = [_Span(identifier, False, [])]
        elif tag in ("br", "img"):
            self.handle_data(" ")

    def handle_endtag(self, tag):
        if tag == "span" and len(self.spans) > 1:
            closed = self.spans.pop()
            self.spans[-1].parts.append((closed.identifier, closed.text()))
        elif tag == "div" and self.depth:
            self.depth -= 1
            self.ended = not self.depth
        elif tag in PARAGRAPHS:
            self._finish()

    def handle_data(self, data):
        if self.spans:
            self.spans[-1].parts.append((None, data))

    def close(self):
        super().close()
        self._finish()

    def _finish(self):
        while len(self.spans) > 1:
            self.handle_endtag("span")
        for paragraph in self.spans:
            text = " ".join(INVISIBLE.sub("", paragraph.text()).split())
            if any(character.isalpha() for character in text):
                self.paragraphs.setdefault(paragraph.identifier, text)
        self.spans = []


def main(arguments: Sequence[str] | None = None) -> dict[str, int]:
    """Writes the documents of each language; returns how many paragraphs each has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), help="codes, as pt-BR")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the packages and what is read of them")
    parser.add_argument("--output", type=Path, help="folder for a file of documents for each language")
    parser.add_argument("--comparable", action="store_true", help="give all languages the same pages")
    options = parser.parse_args(arguments)
    with one_line_errors():
        pages = load_pages(options.languages, options.cache)
        training, held_out = split_pages(pages, comparable=options.comparable)
        for language, names in training.items() if options.output else ():
            options.output.mkdir(parents=True, exist_ok=True)
            with atomic_file(options.output / f"{language}.jsonl") as file:
                for document in documents_of(pages[language], names):
                    record = {"id": document.id, "text": document.text}
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    counts = {language: sum(map(len, own.values())) for language, own in pages.items()}
    for language, count in counts.items():
        pairs = len(aligned_paragraphs(pages, "en", language, held_out, 10**9)[0]) if "en" in pages else 0
        print(f"{language}: {count} paragraphs on {len(pages[language])} pages, {len(training[language])} to train on, "
              f"{pairs} held-out paragraphs paired with English ones")  # fmt: skip
    return counts


if __name__ == "__main__":
    main()
