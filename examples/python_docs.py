"""A search collection from the documentation strings of the packages that simretro stands on: no download.

A document is a docstring without its first sentence and without code, markup and tables; the query that it answers is
that first sentence ("Compute the arithmetic mean along the specified axis"). Nothing is imported but parsed, so that no
package starts. With our own requirements: 7,600 documents, 1,250 test queries, BM25 nDCG@10 .55; 11 s on a core.
What is found depends on the versions that are installed.

    collection = load_collection("test")  # a RetrievalCollection; also "train" and "dev"
    texts = load_texts()                  # everything that is worth reading, for pre-training
    print(describe())
"""

import ast
import contextlib
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import inspect
import platform
import re
import statistics
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simretro.evaluation import RetrievalCollection

# Distribution -> what is read of it. TensorFlow: not its generated wrappers, tools and copy of old Keras.
PACKAGES = {
    "numpy": ["numpy"],
    "scipy": ["scipy"],
    "scikit-learn": ["sklearn"],
    "joblib": ["joblib"],
    "h5py": ["h5py"],
    "keras": ["keras"],
    "huggingface-hub": ["huggingface_hub"],
    "tensorflow": [f"tensorflow.python.{name}" for name in ("data", "distribute", "framework", "ops", "training")],
}
STANDARD_LIBRARY = ""  # its modules have no package in front
EXCLUDED = set(
    "site-packages dist-packages test tests testing lib2to3 idlelib externals _external _vendor vendored "
    "array_api_compat array_api_extra".split()
)
SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}  # of the modules
MIN_DOCUMENT_WORDS, MIN_TEXT_WORDS, MIN_QUERY_WORDS, MAX_QUERY_WORDS = 40, 15, 4, 30
SAME_WORDS = 40  # documents that begin with so many same words are variants of one

DROPPED_SECTIONS = {"see also", "references", "reference", "example", "examples", "usage", "demo"}
KEPT_DIRECTIVES = {"note", "warning", "tip", "important", "attention", "caution", "hint"}
LONG_STRING = re.compile(rb'"""[^"]{200}|\'\'\'[^\']{200}')  # a file without one has no docstring of use
DIRECTIVE = re.compile(r"\.\. +([\w:-]+):: *(.*)")
GOOGLE_SECTION = re.compile(r"(?:# )?([A-Z][A-Za-z]+(?: [A-Za-z]+)?) ?:")
SIGNATURE = re.compile(r"[\w.]*\w\(.*\)(?: *->.*)?", re.DOTALL)
SENTENCE = re.compile(r"(.+?(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)[.!?])(?=\s+[A-Z\"'(`]|$)\s*(.*)", re.DOTALL)
# Name, type and description of a parameter: the type goes.
NUMPY_FIELD = re.compile(r"(\*{0,2}\w[\w, *]*?) : \S.*")
GOOGLE_FIELD = re.compile(r"(\*{0,2}`?\w+`?) ?\([^()]*(?:\([^()]*\)[^()]*)*\):")
LETTER = re.compile(r"[^\W\d_]")
WORD = re.compile(r"[^\W\d_]+")
# In this order, where the text has the first string: markup goes, what a reader would see stays.
INLINE = [
    (needed, re.compile(pattern), replacement)
    for needed, pattern, replacement in (
        (":math:", r":math:`[^`]*`", " "),
        (":`", r":[A-Za-z][\w:+-]*:`([^`<]*?)(?:\s*<[^`>]*>)?`", r"\1"),  # roles
        ("`", r"(?<!`)`([^`<]+?)\s*<[^`>]*>`_*", r"\1"),  # links
        (":", r":(?:param|arg|keyword|raises?|ivar|cvar) ([^:]*):", r"\1:"),
        (":", r":(?:returns?|rtype|type [^:]*):", " "),
        ("](", r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
        ("]_", r"\[[\w#*]+\]_", " "),  # footnotes
        ("://", r"<?https?://[^\s>)]+>?", " "),
        ("<", r"</?[A-Za-z]+ ?/?>", " "),
        ("%", r"%\(\w+\)s", " "),  # places of a template
        ("{", r"\$?\{\w+\}", " "),
        ("`", r"`+_*", ""),
        ("~", r"(?<!\w)~(?=[A-Za-z])", ""),  # short form of a role's target
        ("*", r"(?<![\w*])\*{1,3}(?=[\w\"'])|(?<=[\w.\"'])\*{1,3}(?![\w*])", ""),
        ("\\", r"\\([*_|])", r"\1"),
        ("", r"\s+", " "),
        ("", r" (?=[.,;:)](?:\s|$))|(?<=\() ", ""),
    )
]


@dataclass(frozen=True)
class Docstring:
    """What is worth reading of one documentation string.

    Attributes:
        package: the dotted name under which its folder was given.
        name: dotted name, e.g. `json.decoder.JSONDecoder.decode`.
        module: the module that it stands in; all of a module are in the same split.
        summary: the first sentence without its full stop; "" if there is none to ask with.
        body: the rest; everything if there is no summary.
    """

    package: str
    name: str
    module: str
    summary: str
    body: str


def installed_folders() -> dict[str, Path]:
    """Dotted name of each installed package of `PACKAGES`, and of the standard library -> its folder."""
    folders = {STANDARD_LIBRARY: Path(sysconfig.get_path("stdlib"))}
    for name in (name for names in PACKAGES.values() for name in names):
        top, *inner = name.split(".")
        spec = importlib.util.find_spec(top)  # finds a package of the top without importing it
        for place in (spec and spec.submodule_search_locations) or ():
            if (folder := Path(place, *inner)).is_dir():
                folders[name] = folder
    return folders


def read_docstrings(folders: Mapping[str, str | Path] | None = None) -> list[Docstring]:
    """Reads all documentation strings, and the topics of Python's `help`, cut into sections.

    Args:
        folders: dotted name -> folder of Python files; None = `installed_folders()`.
    Returns: in order of `folders`, of the files' names and of the lines; the second reading comes from memory.
    Raises: ValueError if there are none.
    """
    return list(_read(_as_key(folders)))


def load_collection(
    split: str = "test", folders: Mapping[str, str | Path] | None = None, seed: int = 0
) -> RetrievalCollection:
    """The documents, and the queries of a split. Every query has one relevant document, which has its name.

    Of docstrings with the same first sentence, or that go on with the same words, only the first one is a document.

    Args:
        split: "train", "dev" or "test"; each module is in one of them, whatever else is installed.
        folders: see `read_docstrings`.
        seed: int, of the split.
    Raises: ValueError for an unknown split or one without queries.
    """
    if split not in SHARES:
        raise ValueError(f"`split` must be one of {sorted(SHARES)}; received {split!r}.")
    kept = _documents(_as_key(folders))
    queries = {doc.name: doc.summary for doc in kept if split_of(doc.module, seed) == split}
    if not queries:
        raise ValueError(f"`folders`: no query of {len(kept)} is in the split {split!r}; name more packages.")
    return RetrievalCollection({doc.name: doc.body for doc in kept}, queries, {name: {name: 1} for name in queries})


def load_texts(folders: Mapping[str, str | Path] | None = None) -> list[str]:
    """Texts to pre-train on: the documents first, then those too short or without a query, and the topics.

    The sentences that are queries are not in them, as they are not in the documents.

    Args:
        folders: see `read_docstrings`.
    """
    texts: dict[str, str] = {}
    for doc in (*_documents(_as_key(folders)), *read_docstrings(folders)):
        if _num_words(doc.body) >= MIN_TEXT_WORDS:
            texts.setdefault(_key(doc.body, SAME_WORDS), doc.body)
    return list(texts.values())


def split_of(module: str, seed: int = 0) -> str:
    """The split of a module: by a hash of its name, so that it stays when other modules come and go."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{module}".encode()).digest()[:8]) / 2**64
    for split, share in SHARES.items():
        number -= share
        if number < 0:
            return split
    return split  # rounding


def describe(folders: Mapping[str, str | Path] | None = None, seed: int = 0) -> str:
    """What was found: packages with versions, and how much of each."""
    docstrings, texts = read_docstrings(folders), load_texts(folders)
    kept, lines = _documents(_as_key(folders)), []
    found, documents = (Counter(doc.package for doc in part) for part in (docstrings, kept))
    for package in found:
        shown = f"Python {platform.python_version()}" if package == STANDARD_LIBRARY else package
        distribution = next((name for name, packages in PACKAGES.items() if package in packages), None)
        if distribution:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # tensorflow-cpu and its like
                shown += f" {importlib.metadata.version(distribution)}"
        lines.append(f"{shown}: {found[package]} docstrings, {documents[package]} documents")
    splits = Counter(split_of(doc.module, seed) for doc in kept)
    shares = ", ".join(f"{splits[split]} {split}" for split in SHARES)
    summary, body = (
        statistics.median(_num_words(getattr(doc, part)) for doc in kept) if kept else 0 for part in ("summary", "body")
    )
    lines.append(f"{len(kept)} documents, median {body:.0f} words; queries: {shares}, median {summary:.0f} words")
    lines.append(f"{len(texts)} texts to pre-train on, {sum(map(_num_words, texts)):,} words")
    return "\n".join(lines)


def _as_key(folders: Mapping[str, str | Path] | None) -> tuple[tuple[str, str], ...]:
    folders = installed_folders() if folders is None else folders
    return tuple((name, str(folder)) for name, folder in folders.items())


@functools.lru_cache(maxsize=4)
def _documents(folders: tuple[tuple[str, str], ...]) -> tuple[Docstring, ...]:
    """Those with a query and a document, without variants of one that came before."""
    kept, seen = [], set()
    for doc in _read(folders):
        summary, body = _key(doc.summary), _key(doc.body)
        keys = {("summary", summary), ("body", _key(doc.body, SAME_WORDS))}
        if doc.summary and _num_words(doc.body) >= MIN_DOCUMENT_WORDS and summary not in body and not keys & seen:
            seen |= keys
            kept.append(doc)
    return tuple(kept)


def _key(text: str, num_words: int | None = None) -> str:
    """What is left of a text without case, digits and punctuation: "Conv1D" and "Conv2D" are the same."""
    return " ".join(WORD.findall(text.lower())[:num_words])


def _num_words(text: str) -> int:
    return len(text.split())


@functools.lru_cache(maxsize=4)
def _read(folders: tuple[tuple[str, str], ...]) -> tuple[Docstring, ...]:
    found: dict[str, Docstring] = {}
    collecting = gc.isenabled()
    gc.disable()  # syntax trees are many objects and no garbage: a third of the time
    try:
        for package, folder in folders:
            for path in _python_files(Path(folder)):
                parts = path.relative_to(folder).with_suffix("").parts
                module = ".".join(filter(None, (package, *parts[: -1 if parts[-1] == "__init__" else None])))
                for name, summary, body in _read_file(path, module):
                    found.setdefault(name, Docstring(package, name, module, summary, body))
    finally:
        if collecting:
            gc.enable()
    if not found:
        raise ValueError(f"`folders` must hold Python files with docstrings; received {dict(folders)}.")
    return tuple(found.values())


def _python_files(folder: Path) -> list[Path]:
    """Sorted; without tests, copies of other packages and generated wrappers."""
    files = [path for path in folder.rglob("*.py") if not path.name.startswith(("gen_", "test_"))]
    return sorted(path for path in files if not EXCLUDED & set(path.relative_to(folder).parts))


def _read_file(path: Path, module: str) -> Iterator[tuple[str, str, str]]:
    """Yields (name, summary, body)."""
    source, is_topics = path.read_bytes(), path.parts[-2:] == ("pydoc_data", "topics.py")
    if not is_topics and not LONG_STRING.search(source):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes that are not ours
            tree = ast.parse(source, str(path))
    except (SyntaxError, ValueError) as error:
        warnings.warn(f"{path} is left out: {error}", stacklevel=2)
        return
    if is_topics:
        yield from ((f"{module}.{name}", "", clean_text(text)) for name, text in _topic_sections(tree))
        return
    for name, docstring in _docstrings(tree, module):
        if _num_words(docstring) >= MIN_TEXT_WORDS:
            yield name, *split_summary(inspect.cleandoc(docstring))


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yields (dotted name, docstring as it is) of a module or class and of what it defines."""
    if docstring := ast.get_docstring(node, clean=False):
        yield name, docstring
    todo = list(reversed(node.body))
    while todo:
        child = todo.pop()
        if isinstance(child, ast.ClassDef):
            yield from _docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(child, clean=False):
                yield f"{name}.{child.name}", docstring
        elif isinstance(child, ast.If | ast.Try):
            todo += reversed([*child.body, *child.orelse])
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            yield from _added_docstring(child.value, name)


def _added_docstring(call: ast.Call, module: str) -> Iterator[tuple[str, str]]:
    """NumPy and SciPy document what is written in C by `add_newdoc("place", "object", ("method", "docstring"))`."""
    if getattr(call.func, "id", None) != "add_newdoc":
        return
    nodes = [part for arg in call.args for part in (arg.elts if isinstance(arg, ast.Tuple) else [arg])]
    values = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if len(values) == len(nodes) >= 2:
        yield ".".join([module, *values[:-1]]), values[-1]


def _topic_sections(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (topic and number, text) of each section of the help topics, a dict of long texts."""
    topics = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    for topic, text in topics.items():
        lines, sections = text.split("\n"), [[]]
        for line, following in pairwise([*lines, ""]):
            if _is_rule(following) and line.strip():
                sections.append([])
            sections[-1].append(line)
        for number, section in enumerate(sections):
            yield f"{topic}.{number}", "\n".join(section)


def split_summary(docstring: str) -> tuple[str, str]:
    """The first sentence without its full stop ("" if nobody would ask like that) and the cleaned rest.

    Args:
        docstring: str, without the indentation of the code.
    """
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    while paragraphs and (SIGNATURE.fullmatch(paragraphs[0].strip()) or paragraphs[0].rstrip().endswith("\n--")):
        paragraphs.pop(0)  # of a function in C
    if not paragraphs:
        return "", ""
    rest = "\n\n".join(paragraphs[1:])
    sentence = SENTENCE.fullmatch(paragraphs[0].strip())
    first, more = sentence.groups() if sentence else (paragraphs[0], "")
    summary = _inline(first).rstrip(".")
    words = [word for word in WORD.findall(summary) if len(word) > 1]
    is_plain = summary[:1].isalpha() and not re.search(r"[=|{}\\]|::|>>>|--|%", summary)
    if is_plain and MIN_QUERY_WORDS <= len(words) and _num_words(summary) <= MAX_QUERY_WORDS:
        return summary, clean_text(f"{more}\n\n{rest}")
    return "", clean_text("\n\n".join(paragraphs))


def clean_text(docstring: str) -> str:
    """The prose of a docstring on one line: no code, tables, rules, roles, types of parameters, nor others' summaries.

    Args:
        docstring: str, in NumPy's, Google's or Sphinx' manner.
    """
    return _inline("\n".join(_prose_lines(docstring)))


def _prose_lines(docstring: str) -> Iterator[str]:
    is_fenced = is_doctest = in_dropped_section = False
    dropped_from = None  # a block is dropped whose lines are indented further than this
    for line, following in pairwise([*docstring.expandtabs().splitlines(), ""]):
        text = line.strip()
        is_fence = text.startswith("```")
        is_fenced ^= is_fence
        is_doctest = text != "" and (is_doctest or text.startswith(">>>"))
        if not text or is_fence or is_fenced or is_doctest:
            continue
        indent = len(line) - len(line.lstrip())
        if dropped_from is not None and indent > dropped_from:
            continue
        dropped_from = None
        if _is_rule(following):
            in_dropped_section = text.lower().rstrip(":") in DROPPED_SECTIONS
            continue
        if in_dropped_section or _is_rule(text):
            continue
        heading, directive = GOOGLE_SECTION.fullmatch(text), DIRECTIVE.match(text)
        if heading or text.startswith(".. "):
            is_kept = directive and directive[1].lower() in KEPT_DIRECTIVES
            if heading[1].lower() in DROPPED_SECTIONS if heading else not is_kept:
                dropped_from = indent
            text = directive[2] if is_kept else ""
        if text.endswith("::"):
            dropped_from, text = indent, text[:-1]
        text = _without_type(text).removeprefix("* ").removeprefix("- ")
        if 2 * len(LETTER.findall(text)) >= len(text.replace(" ", "")) > 0:  # not a row of numbers or of a frame
            yield text


def _is_rule(line: str) -> bool:
    line = line.strip()
    return len(line) > 2 and line[0] in "-=~^*#" and line == line[0] * len(line)


def _without_type(text: str) -> str:
    """The name, or name and description, of a parameter that stands with its type; other lines as they are."""
    if " : " in text:
        return NUMPY_FIELD.sub(r"\1:", text)
    return GOOGLE_FIELD.sub(r"\1:", text) if "):" in text else text


def _inline(text: str) -> str:
    for needed, pattern, replacement in INLINE:
        if needed in text:
            text = pattern.sub(replacement, text)
    return text.strip()


if __name__ == "__main__":
    print(describe())
