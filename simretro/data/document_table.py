"""Documents as flat arrays of token ids, in memory or mapped from files that are written once."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from simretro.data.boundaries import behind_full_stops, full_stop_tables, mark_words, split_sentences
from simretro.data.documents import Document, as_documents, document_files, iter_files
from simretro.data.sentences import SentenceSplitter
from simretro.data.table import FileColumn, MemoryColumn, map_column
from simretro.data.table_folder import cached_table, name_of, read_facts, temporary_table, write_facts
from simretro.files import file_facts

_CHARACTERS_AT_A_TIME = 1 << 22
_FORMAT = 1
_COLUMNS = {"token_ids": "int32", "document_starts": "int64", "sentence_starts": "int64", "word_starts": "bool"}


@dataclass(frozen=True)
class DocumentTable:
    """Token ids of all documents, one after the other; each has at least one.

    Args:
        token_ids: int32 (tokens,).
        document_starts: int64 (documents + 1,), where a document begins in `token_ids`.
        sentence_starts: int64 (sentences,), where a sentence begins, ascending; each document begins with one.
        word_starts: bool (tokens,), True where a word begins; None where each token counts as a word.
        largest_word: int, most tokens of a word.
        notes: what has to be told about the documents, for warnings.
    """

    token_ids: np.ndarray
    document_starts: np.ndarray
    sentence_starts: np.ndarray
    word_starts: np.ndarray | None
    largest_word: int
    notes: list[str] = field(default_factory=list)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1


@dataclass(frozen=True)
class TableMaker:
    """Tokenises documents.

    Args:
        tokenizer: has `encode_ragged`, `vocab` and `vocab_size`; for whole words also what `mark_words` needs.
        segment: callable text -> words, or None: by the tokenizer.
        whole_word: bool; False: each token counts as a word.
        split: `SentenceSplitter`; sentences are then as it cuts them, or as a document gives them, each tokenised as if
            it stood alone. None: they are parts of the running text, cut where that is safe for all tokenizers.
        unique: bool; True leaves out documents with the text of an earlier one.
    """

    tokenizer: object
    segment: Callable[[str], Iterable[str]] | None = None
    whole_word: bool = True
    split: SentenceSplitter | None = None
    unique: bool = False

    def make(self, documents: Iterable[Document], name: str) -> DocumentTable:
        """Table of documents, in memory; `name` is theirs in the error that is raised if none has a token."""
        return _Builder(self, lambda _, dtype: MemoryColumn(dtype)).build(documents, name)

    def write(self, path: str | Path, text_files: str, folder: Path) -> DocumentTable:
        """Table of the documents of `path`, in files in `folder`."""
        return self._write(document_files(path), path, text_files, folder)

    def cached(self, path: str | Path, text_files: str, cache_dir: str | Path) -> DocumentTable:
        """As `write`, in a folder below `cache_dir` that is used again for the same documents and the same words."""
        files = document_files(path)
        key = [(str(file.relative_to(path)), *file_facts(file)) for file in files]
        key += [_FORMAT, self.tokenizer.fingerprint(), text_files, name_of(self.segment), self.whole_word]
        key += [self.split and self.split.fingerprint(), self.unique]
        return cached_table(cache_dir, path, key, lambda folder: self._write(files, path, text_files, folder), _read)

    def _write(self, files, path, text_files, folder):
        with ExitStack() as opened:

            def column(name, dtype):
                return opened.enter_context(closing(FileColumn(folder / name, dtype)))

            table = _Builder(self, column).build(iter_files(files, path, text_files), path)
        write_facts(folder, {"format": _FORMAT, "largest_word": table.largest_word, "notes": table.notes})
        return table


def open_table(
    source: str | Path | Iterable[str | Document],
    maker: TableMaker,
    text_files: str,
    cache_dir: str | Path | None,
    owner: object,
) -> DocumentTable:
    """The table of a file or folder, mapped, or of documents in memory.

    Args:
        source: path, or iterable of str or `Document`.
        maker: TableMaker.
        text_files: "lines" or "whole", see `iter_documents`.
        cache_dir: where the token ids of files are kept; None: in a temporary folder.
        owner: the temporary folder goes with this object.
    Raises: ValueError for a `cache_dir` without a file, and for a bad document.
    """
    if not isinstance(source, str | Path):
        if cache_dir is not None:
            raise ValueError("`cache_dir` must be None for documents in memory; give the path of their file.")
        return maker.make(as_documents(source), "`source`")
    if cache_dir is not None:
        return maker.cached(source, text_files, cache_dir)
    return temporary_table("simretro-documents-", owner, lambda folder: maker.write(source, text_files, folder))


def _read(folder, check=True) -> DocumentTable:
    facts = read_facts(folder, check)
    columns = {
        name: np.asarray(map_column(folder / name, dtype)) if name in facts["files"] else None
        for name, dtype in _COLUMNS.items()
    }
    return DocumentTable(**columns, largest_word=facts["largest_word"], notes=facts["notes"])


class _Builder:
    def __init__(self, maker, column):
        self.maker = maker
        self.token_ids = column("token_ids", _COLUMNS["token_ids"])
        self.document_ends = column("document_starts", _COLUMNS["document_starts"])
        self.sentence_starts = column("sentence_starts", _COLUMNS["sentence_starts"])
        self.words = column("word_starts", _COLUMNS["word_starts"]) if maker.whole_word else None
        self.full_stops = None if maker.split else full_stop_tables(maker.tokenizer)
        self.num_tokens = self.num_left_out = self.num_unsegmented = self.num_repeated = 0
        self.first_left_out = self.first_repeated = None
        self.known_texts = set()
        self.largest_word = 1

    def build(self, documents, name):
        self.document_ends.append(np.zeros(1, "int64"))
        for chunk in _chunks(self._unique(documents) if self.maker.unique else documents):
            self._add(chunk)
        if not self.num_tokens:
            raise ValueError(
                f"{name}: no document has any text: {self.num_left_out} were read, the first at {self.first_left_out}."
            )
        return DocumentTable(
            token_ids=np.asarray(self.token_ids.finish()),
            document_starts=np.asarray(self.document_ends.finish()),
            sentence_starts=np.asarray(self.sentence_starts.finish()),
            word_starts=np.asarray(self.words.finish()) if self.words else None,
            largest_word=self.largest_word,
            notes=self._notes(),
        )

    def _unique(self, documents):
        for document in documents:
            text = "\n".join(document.parts)
            key = hashlib.blake2b(text.encode(), digest_size=8).digest()
            if text and key in self.known_texts:
                self.num_repeated += 1
                self.first_repeated = self.first_repeated or document.place
            else:
                self.known_texts.add(key)
                yield document

    def _add(self, chunk):
        parts = [_sentences(document, self.maker.split) for document in chunk]
        texts = list(chain.from_iterable(parts))
        ids = self.maker.tokenizer.encode_ragged(texts)
        counts = np.fromiter(map(len, ids), "int64", len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), "int32", int(counts.sum()))
        owners = np.repeat(np.arange(len(chunk)), list(map(len, parts)))
        sizes = np.bincount(owners, weights=counts, minlength=len(chunk)).astype("int64")
        self._note_left_out(chunk, sizes)
        begins = behind_full_stops(tokens, *self.full_stops) if self.full_stops else np.zeros(len(tokens), bool)
        begins[(np.cumsum(counts) - counts)[counts > 0]] = True
        self.token_ids.append(tokens)
        self.document_ends.append(self.num_tokens + np.cumsum(sizes[sizes > 0]))
        self.sentence_starts.append(self.num_tokens + np.flatnonzero(begins))
        self.num_tokens += len(tokens)
        if self.words:
            starts, num_unsegmented = mark_words(texts, ids, self.maker.tokenizer, self.maker.segment)
            self.words.append(starts)
            self.num_unsegmented += num_unsegmented
            lengths = np.diff(np.append(np.flatnonzero(starts), len(starts)))
            self.largest_word = max(self.largest_word, int(lengths.max(initial=1)))

    def _note_left_out(self, chunk, sizes):
        left_out = np.flatnonzero(sizes == 0)
        if len(left_out) and self.first_left_out is None:
            self.first_left_out = chunk[left_out[0]].place
        self.num_left_out += len(left_out)

    def _notes(self):
        notes = []
        if self.num_left_out:
            notes.append(
                f"{self.num_left_out} documents were left out, the first at {self.first_left_out}: they are empty, or "
                "the tokenizer gives them no ids."
            )
        if self.num_repeated:
            notes.append(
                f"{self.num_repeated} documents were left out, the first at {self.first_repeated}: an earlier document "
                "has the same text."
            )
        if self.num_unsegmented:
            notes.append(
                f"{self.num_unsegmented} sentences are masked token by token: the words of `segment` are not tokenised "
                "as they are within the text."
            )
        return notes


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk, size = [], 0
    for document in documents:
        chunk.append(document)
        size += len(document.text) + 1
        if size >= _CHARACTERS_AT_A_TIME:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _sentences(document, split):
    """The sentences of a document, see `TableMaker`."""
    if document.sentences is None:
        parts = list(chain.from_iterable(map(split or split_sentences, document.parts)))
    else:
        parts = list(document.parts)
    if split:
        return parts
    # One behind another begins with white space, which some tokenizers need to see.
    return [part if number == 0 or part[:1].isspace() else f" {part}" for number, part in enumerate(parts)]
