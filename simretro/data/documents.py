"""Reader of documents to pre-train on: lines or whole text files, JSON lines, folders of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from simretro.arguments import warn
from simretro.data.records import check_text, parse_object
from simretro.lines import iter_lines, read_text, short
from simretro.titles import begins_with_title

_EXAMPLE = '{"_id": "7", "title": "...", "text": "..."}'
_ENDINGS = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
_IDS = ("_id", "id", "docid")


class Document(NamedTuple):
    """A text to pre-train on.

    Args:
        text: str; may be empty.
        title: str or None.
        id: str or None.
        path: file it comes from, None for texts given in memory.
        line: int, line in that file, counted from 1; without a file the document's number, counted from 0.
        sentences: tuple of str where the sentences of the text are known, which `text` then joins with blanks.
    """

    text: str
    title: str | None = None
    id: str | None = None
    path: str | None = None
    line: int | None = None
    sentences: tuple[str, ...] | None = None

    @property
    def place(self) -> str:
        """Where the document comes from, for messages."""
        return f"document {self.line}" if self.path is None else f"{self.path}, line {self.line}"

    @property
    def parts(self) -> tuple[str, ...]:
        """What is to be read, in order: the title, unless the text begins with it, and the sentences or the text."""
        body = (self.text,) if self.sentences is None else self.sentences
        return (self.title, *body) if self.title and not begins_with_title(self.text, self.title) else body

    @property
    def full_text(self) -> str:
        """`parts` in one line of text, as a passage is read: joined by blanks, without white space around them."""
        return " ".join(part.strip() for part in self.parts).strip()


def iter_documents(path: str | Path, text_files: str = "lines") -> Iterator[Document]:
    """Reads documents one by one.

    - `.txt`: a line is a document; with `text_files="whole"` a file is one, which must fit into memory;
    - `.jsonl`: a JSON object a line, with `text` (str) or `sentences` (list of str), and, if there are any, `title`
      and `_id`, `id` or `docid`, as in BEIR's corpora; other keys are ignored;
    - `.txt.gz`, `.jsonl.gz`: the same, packed;
    - a folder: all such files in it and in the folders below, in order of their names; hidden ones and those with
      other endings are left out. In a folder of BEIR's layout the `queries.jsonl` beside a `corpus.jsonl` is left out,
      which a warning tells.

    Files are in UTF-8. Lines end at "\\n" only, blank lines are skipped. A document whose `text` is empty is yielded.

    Args:
        path: file or folder.
        text_files: "lines" or "whole", see above.
    Returns: iterator of Document.
    Raises:
        ValueError: for `text_files`, for a file of another ending or a folder without such files; while reading for
            the first line that is no such record, naming file and line, and at the end if there were no documents.
        OSError: if `path` is missing or cannot be read.
    """
    return iter_files(document_files(path), path, text_files)


def document_files(path: str | Path) -> list[Path]:
    """The files that `iter_documents` reads, which see."""
    path = Path(path)
    if not path.is_dir():
        path.stat()  # raises if there is none
        if not path.name.lower().endswith(_ENDINGS):
            raise ValueError(f"{path}: the name must end in {', '.join(_ENDINGS)}, which tells how to read the file.")
        return [path]
    found = [(file.relative_to(path), file) for file in _walk(path) if file.name.lower().endswith(_ENDINGS)]
    files = [file for name, file in sorted(found) if not any(part.startswith(".") for part in name.parts)]
    # They are no documents, and those of a test set would be seen in pre-training.
    queries = [file for file in files if _is_beir_queries(file)]
    if queries:
        warn(f"{queries[0]} is left out: it lies beside a corpus in BEIR's layout. Name a file to have it read.")
    files = [file for file in files if file not in queries]
    if not files:
        raise ValueError(
            f"{path}: the folder holds no documents; it must have files that end in {', '.join(_ENDINGS)}."
        )
    return files


def _walk(path, above=()):
    """All files below a folder, those in linked folders too; a link to a folder above is not followed."""
    here = path.resolve()
    for entry in path.iterdir():
        if entry.is_file():
            yield entry
        elif entry.is_dir() and entry.resolve() not in (*above, here):
            yield from _walk(entry, (*above, here))


def iter_files(files: Iterable[Path], path: str | Path, text_files: str = "lines") -> Iterator[Document]:
    """Documents of the `files` of `path`; see `iter_documents`."""
    if text_files not in ("lines", "whole"):
        raise ValueError(f'`text_files` must be "lines" or "whole"; received {text_files!r}.')
    return _iter_files(files, path, text_files)


def as_documents(source: Iterable[str | Document]) -> Iterator[Document]:
    """Checks documents given in memory, like those of a file.

    Args:
        source: iterable of str or `Document`.
    Yields: Document.
    Raises: ValueError for something else, and at the end if there were none.
    """
    found = False
    for number, document in enumerate(source):
        found = True
        if isinstance(document, str):
            document = Document(document)
        if not isinstance(document, Document):
            raise ValueError(
                f"document {number}: must be a str or a `Document`; received {type(document).__name__} "
                f"{short(document)}."
            )
        if document.line is None:
            document = document._replace(line=number)
        if isinstance(document.sentences, str):
            raise ValueError(
                f"document {number}: `sentences` must be several str; received one, {short(document.sentences)}."
            )
        if document.sentences is not None:
            document = document._replace(sentences=tuple(document.sentences))  # an iterator is gone through once only
        for part in document.parts:
            check_text(part, document.place, "a text")
        yield document
    if not found:
        raise ValueError("`source` must hold at least one document; received none.")


def _iter_files(files, path, text_files):
    found = False
    for file in files:
        if file.name.lower().endswith((".jsonl", ".jsonl.gz")):
            documents = (_parse(text, str(file), line) for line, text in iter_lines(file))
        elif text_files == "lines":
            documents = (Document(text, path=str(file), line=line) for line, text in iter_lines(file))
        else:
            documents = iter([Document(read_text(file), path=str(file), line=1)])
        for document in documents:
            found = True
            yield document
    if not found:
        raise ValueError(f"{path}: holds no documents; every file in it is empty.")


def _is_beir_queries(file):
    ending = next((ending for ending in (".jsonl", ".jsonl.gz") if file.name == f"queries{ending}"), None)
    return ending is not None and any((file.parent / f"corpus{other}").is_file() for other in (".jsonl", ".jsonl.gz"))


def _parse(text, path, line):
    place = f"{path}, line {line}"
    record = parse_object(text, place, _EXAMPLE)
    body, sentences, title = record.get("text"), record.get("sentences"), record.get("title")
    if (body is None) == (sentences is None):
        has = "has no `text`" if body is None else "has both `text` and `sentences`, which stands in place of it"
        raise ValueError(f"{place}: {has}; received {short(text)}. A record must be as {_EXAMPLE}.")
    if sentences is not None:
        if not isinstance(sentences, list):
            raise ValueError(f"{place}: `sentences` must be a list of str; received {short(sentences)}.")
        sentences = tuple(check_text(sentence, place, "each of `sentences`") for sentence in sentences)
        body = " ".join(sentences)
    check_text(body, place, "`text`")
    if title is not None:
        check_text(title, place, "`title`")
    key = next((key for key in _IDS if record.get(key) is not None), None)
    number = None if key is None else record[key]
    if isinstance(number, bool) or not isinstance(number, str | int | None):
        raise ValueError(f"{place}: `{key}` must be a str or an int; received {short(number)}.")
    return Document(body, title, None if number is None else str(number), path, line, sentences)
