"""What all tokenizers share: encoding, truncation, padding, positions in the text, saving."""

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from tokenizers import Tokenizer as Backend

from simretro.arguments import check_int, warn
from simretro.files import atomic_file
from simretro.tokenizers.characters import is_blank, without_surrogates
from simretro.tokenizers.rows import cut_rows, lay_out, longest_first
from simretro.tokenizers.words import WordCache

_TEXTS_AT_ONCE = 4096  # bounds the memory of the Rust library's results, which are larger than the ids
ROLES = ("pad", "unk", "cls", "sep", "mask")
# Encoded for `fingerprint`: case, accents, ideographs, digits, controls, other scripts, runs of spaces.
_PROBES = (
    "The Quick brown FOX's naïve café, re-read: 3.14 (a+b)=c!",
    "今天晚上加班，iPhone X多少钱？カタカナ한국어ไทย",
    "a\u200bb\u00a0c\td\u3000e\ufffdf  ß ﬁ İ ǅ x\u0301 \U0001f600 don't",
)


class TruncationWarning(UserWarning):
    """A text was longer than `maxlen` allows and lost its end."""

    @classmethod
    def teller(cls, maxlen: int, num_rows: int, what: str = "texts") -> Callable[[int, int], None]:
        """A function of (rows that lost something, tokens lost) that warns of them."""
        return lambda cut, lost: warn(f"`maxlen`={maxlen}: {cut} of {num_rows} {what} lost {lost} tokens.", cls)


class BaseTokenizer:
    """Text to ids and back, over a tokenizer of the Rust library `tokenizers`.

    Rows are `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, by whatever names the model calls these tokens; models of
    RoBERTa's family put two separators between A and B. Segment ids are 0 for `[CLS] A [SEP]` and 1 behind it.

    Not for construction; see `Tokenizer`, `SentencePieceTokenizer`, `ByteLevelTokenizer` and `load_tokenizer`.
    """

    model_type: ClassVar[str]  # of the Rust library's model: "WordPiece", "Unigram" or "BPE"

    def _setup(
        self, state: str, special_tokens: dict[str, str], separators: int, allow_special_tokens: bool, source: str
    ) -> None:
        self._state = state  # the Rust library's JSON, all of it; the backend that is made of it may know less
        self.separators = separators
        self.allow_special_tokens = allow_special_tokens
        whole = json.loads(state)
        # With `allow_special_tokens` off the backend sees plain text in a typed `[SEP]`.
        self._backend = Backend.from_str(state if allow_special_tokens else self._plain_state(whole, special_tokens))
        self._backend.encode_special_tokens = not allow_special_tokens
        self.vocab = self._read_vocab()
        self._tokens: dict[int, str] = {token_id: token for token, token_id in self.vocab.items()}
        for role in ("pad", "unk", "cls", "sep"):
            if special_tokens[role] not in self.vocab:
                raise ValueError(
                    f"{source}: no token {special_tokens[role]!r} in the vocabulary, which is needed as "
                    f"`{role}_token`; name the token that plays this part or add it."
                )
        # The mask token may be missing: a simplified vocabulary has none.
        self.special_tokens = {role: token for role, token in special_tokens.items() if token in self.vocab}
        pattern = None if allow_special_tokens else self._word_pattern(whole)
        self._cached_ids = WordCache(pattern, self._backend_ids) if pattern else None

    def __reduce__(self):
        return rebuild, (
            type(self),
            self._state,
            self.special_tokens,
            self.separators,
            self.allow_special_tokens,
        )

    # What a kind of tokenizer may say about itself.

    def _plain_state(self, whole: dict, special_tokens: dict[str, str]) -> str:
        """The JSON of a backend to which a typed special token is plain text."""
        return self._state

    def _read_vocab(self) -> dict[str, int]:
        return dict(sorted(self._backend.get_vocab(with_added_tokens=True).items(), key=operator.itemgetter(1)))

    def _word_pattern(self, whole: dict) -> str | None:
        """A regular expression for `WordCache`, or None where a text is not tokenised word by word."""
        return None

    def _starts_word(self, ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _join(self, tokens: list[str]) -> str:
        raise NotImplementedError

    # The vocabulary.

    @property
    def vocab_size(self) -> int:
        """Rows a token table needs: the largest id and one."""
        return max(self._tokens) + 1

    @property
    def pad_token_id(self) -> int:
        """Id of the token behind the end of a row."""
        return self.vocab[self.special_tokens["pad"]]

    @property
    def unk_token_id(self) -> int:
        """Id for what the vocabulary lacks."""
        return self.vocab[self.special_tokens["unk"]]

    @property
    def cls_token_id(self) -> int:
        """Id of the first token of a row."""
        return self.vocab[self.special_tokens["cls"]]

    @property
    def sep_token_id(self) -> int:
        """Id of the token that ends A and B."""
        return self.vocab[self.special_tokens["sep"]]

    @property
    def mask_token_id(self) -> int | None:
        """Id of the mask token; None if the vocabulary has none."""
        return self.vocab[self.special_tokens["mask"]] if "mask" in self.special_tokens else None

    @property
    def special_ids(self) -> list[int]:
        """Ids that are never masked or generated: pad, unk, cls, mask. Not sep, which ends a generated text."""
        return sorted({self.vocab[token] for role, token in self.special_tokens.items() if role != "sep"})

    def token_to_id(self, token: str) -> int:
        """Id of a token; that of the unknown token if the vocabulary lacks it."""
        return self.vocab.get(token, self.unk_token_id)

    def id_to_token(self, token_id: int) -> str:
        """Token of an id; raises ValueError for an id that the vocabulary lacks."""
        token = self._tokens.get(int(token_id))
        if token is None:
            raise ValueError(f"`token_id` must be below {self.vocab_size}, the vocabulary's size; received {token_id}.")
        return token

    def tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens, see `token_to_id`."""
        return [self.token_to_id(token) for token in tokens]

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids, see `id_to_token`."""
        return [self.id_to_token(token_id) for token_id in ids]

    def spellings(self) -> list[str]:
        """The text of each token by itself, in the order of the ids.

        Returns: list of `vocab_size` str; behind a blank where the token begins a word, empty for special tokens and
            for ids that no token has.
        Raises: ValueError if the vocabulary does not mark where words begin.
        """
        special = set(self.special_tokens.values())
        spelt = [""] * self.vocab_size
        for token_id, token in self._tokens.items():
            if token not in special:
                begins = self._starts_word(np.array([token_id]))[0]
                spelt[token_id] = (" " if begins else "") + self._join([token])
        return spelt

    # Text to ids.

    def tokenize(self, text: str, maxlen: int | None = None, max_length: int | None = None) -> list[str]:
        """The tokens of `[CLS] text [SEP]`.

        Args:
            text: str.
            maxlen: int; at most so many tokens, the two specials included. `max_length` is another name for it.
        Returns: list of str.
        """
        return self.ids_to_tokens(self._encode(text, None, _one_name(maxlen, max_length))[0])

    def encode(
        self, first: str, second: str | None = None, maxlen: int | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids of one text or of a pair.

        Args:
            first: str.
            second: str or None.
            maxlen: int; at most so many ids, specials included. What is too long loses its end, the longer of the two
                texts first; the specials stay. `max_length` is another name for it.
        Returns: (token_ids, segment_ids), two lists of int.
        Raises: ValueError for both names of `maxlen`, or one too small for the specials; TypeError for no str.
        """
        return self._encode(first, second, _one_name(maxlen, max_length))

    def encode_batch(
        self,
        first: Sequence[str],
        second: Sequence[str] | None = None,
        maxlen: int | None = None,
        pad_to_multiple_of: int = 1,
        max_length: int | None = None,
        on_truncation: Callable[[int, int], None] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Padded ids of many texts or pairs; each row is what `encode` gives.

        Args:
            first: N str.
            second: N str or None.
            maxlen: int, see `encode`; of the ids, not of the padding.
            pad_to_multiple_of: int; the length of the rows is rounded up to a multiple of it.
            max_length: another name for `maxlen`.
            on_truncation: called with the number of rows that lost something and that of the tokens lost, in place of
                the warning; for those who encode part by part and warn once.
        Returns: (token_ids, segment_ids), int32 (N, L); L is that of the longest row; padded with the pad id and 0.
        Raises: as `encode`, and ValueError if `first` and `second` differ in length.
        """
        maxlen = _one_name(maxlen, max_length)
        pad_to_multiple_of = check_int("pad_to_multiple_of", pad_to_multiple_of, 1)
        parts = [self._flat_ids(_checked_texts("first", first))]
        if second is not None:
            parts.append(self._flat_ids(_checked_texts("second", second)))
            if len(parts[0][1]) != len(parts[1][1]):
                raise ValueError(
                    "`first` and `second` must have one text a row each; "
                    f"received {len(parts[0][1])} and {len(parts[1][1])}."
                )
        kept = self._kept_lengths([lengths for _, lengths in parts], maxlen, on_truncation)
        cut = [cut_rows(ids, lengths, keep) for (ids, lengths), keep in zip(parts, kept, strict=True)]
        specials = self.cls_token_id, self.sep_token_id, self.pad_token_id
        return lay_out(cut, kept, specials, self.separators, pad_to_multiple_of)

    def encode_ragged(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
        """Ids of many texts, neither padded nor truncated; without `[CLS]` and `[SEP]` unless asked for.

        Args:
            texts: N str.
            add_special_tokens: bool; True gives `[CLS] text [SEP]`.
        Returns: N lists of int.
        """
        ids, lengths = self._flat_ids(_checked_texts("texts", texts))
        flat, ends = ids.tolist(), np.cumsum(lengths).tolist()
        rows = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return [[self.cls_token_id, *row, self.sep_token_id] for row in rows] if add_special_tokens else rows

    def _encode(self, first: str, second: str | None, maxlen: int | None) -> tuple[list[int], list[int]]:
        rows = [self._backend_ids(_checked_texts("first", [first]))[0]]
        if second is not None:
            rows.append(self._backend_ids(_checked_texts("second", [second]))[0])
        kept = self._kept_lengths([np.array([len(row)]) for row in rows], maxlen)
        rows = [row[: int(keep[0])] for row, keep in zip(rows, kept, strict=True)]
        token_ids = [self.cls_token_id, *rows[0], self.sep_token_id]
        segment_ids = [0] * len(token_ids)
        if second is not None:
            behind = [self.sep_token_id] * (self.separators - 1) + rows[1] + [self.sep_token_id]
            token_ids += behind
            segment_ids += [1] * len(behind)
        return token_ids, segment_ids

    def _flat_ids(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts in a row, int32, and the number of ids of each."""
        read = self._cached_ids or self._uncached_ids
        parts = [read(texts[start : start + _TEXTS_AT_ONCE]) for start in range(0, len(texts), _TEXTS_AT_ONCE)]
        if not parts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _uncached_ids(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = self._backend_ids(texts)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    def _backend_ids(self, texts: list[str]) -> list[list[int]]:
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # how the Rust library says that a str is no valid Unicode
            encodings = self._backend.encode_batch_fast(list(map(without_surrogates, texts)), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _kept_lengths(
        self, lengths: list[np.ndarray], maxlen: int | None, on_truncation: Callable[[int, int], None] | None = None
    ) -> list[np.ndarray]:
        """How many ids of each text stay, (N,) for A and for B; warns if not all do."""
        if maxlen is None:
            return lengths
        specials = 2 if len(lengths) == 1 else 2 + self.separators
        budget = check_int("maxlen", maxlen) - specials
        if budget < 0:
            raise ValueError(f"`maxlen` must leave room for {specials} special tokens; received {maxlen}.")
        kept = [np.minimum(lengths[0], budget)] if len(lengths) == 1 else longest_first(*lengths, budget)
        lost = sum(lengths) - sum(kept)
        if lost.any():
            what = "texts" if len(lengths) == 1 else "pairs"
            tell = on_truncation or TruncationWarning.teller(maxlen, len(lost), what)
            tell(int(np.count_nonzero(lost)), int(lost.sum()))
        return kept

    # Ids to text, positions and words.

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Readable text of a row of ids.

        Args:
            ids: ints, a list or an array of one dimension. One that the vocabulary lacks is read as the unknown token.
            skip_special_tokens: bool; True leaves out pad, unk, cls, sep and mask.
        Returns: str.
        """
        unknown = self.special_tokens["unk"]
        tokens = [self._tokens.get(token_id, unknown) for token_id in _id_array(ids).tolist()]
        if skip_special_tokens:
            special = set(self.special_tokens.values())
            tokens = [token for token in tokens if token not in special]
        return self._join(tokens)

    def decode_batch(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """Readable texts of rows of ids, see `decode`."""
        return [self.decode(row, skip_special_tokens) for row in rows]

    def rematch(self, text: str, tokens: Sequence[str]) -> list[list[int]]:
        """Finds the tokens of a text in it.

        Args:
            text: str.
            tokens: list of str, from `tokenize(text)`; some may be left out.
        Returns: one list a token, the positions of its characters in `text`; empty for `[CLS]` and the like. Spaces
            and characters that the tokenizer drops (controls, accents) belong to no token.
        Raises: ValueError if a token does not come from the text.
        """
        encoding = self._backend.encode(without_surrogates(text), add_special_tokens=False)
        found, offsets = self.ids_to_tokens(encoding.ids), encoding.offsets
        seen = [self._is_seen(character) for character in text]
        special = set(self.special_tokens.values())
        mapping: list[list[int]] = []
        place = 0
        for token in tokens:
            try:
                at = found.index(token, place)
            except ValueError:
                if token not in special:
                    raise ValueError(f"`tokens` must be those of `text`; {token!r} is not, at this place.") from None
                mapping.append([])
            else:
                mapping.append([position for position in range(*offsets[at]) if seen[position]])
                place = at + 1
        return mapping

    def _is_seen(self, character: str) -> bool:
        normalizer = self._backend.normalizer
        shown = character if normalizer is None else normalizer.normalize_str(without_surrogates(character))
        return bool(shown) and not is_blank(shown)

    def word_ids(self, token_ids: Iterable[int]) -> list[int | None]:
        """Groups tokens into words, for whole-word masking.

        Args:
            token_ids: ints, one row.
        Returns: for each token the number of its word, counted from 0, or None for pad, unk, cls, sep and mask.
        Raises: ValueError for an id that the vocabulary lacks, or if this vocabulary does not mark words.
        """
        ids = _id_array(token_ids)
        self.ids_to_tokens(ids.tolist())  # raises on a foreign id
        special = np.isin(ids, [*self.special_ids, self.sep_token_id])
        behind_special = np.concatenate([[True], special[:-1]])
        starts = (behind_special | self._starts_word(ids)) & ~special if len(ids) else special
        words = np.cumsum(starts) - 1
        return [None if is_special else int(word) for word, is_special in zip(words, special, strict=True)]

    # Files.

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the files from which `load_tokenizer` and Hugging Face's AutoTokenizer read the same tokenizer.

        Args:
            folder: made if missing; other files in it stay.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self._config(), **{f"{role}_token": self.special_tokens.get(role) for role in ROLES}}
        # Hugging Face's word for it: a special token that a user types is split like any other text.
        config["split_special_tokens"] = not self.allow_special_tokens
        if self.allow_special_tokens:
            # That word stands in foreign folders, too, whose users did not mean to trust the texts: so our own.
            config["allow_special_tokens"] = True
        for name, text in (
            ("tokenizer.json", self._state),
            ("tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2) + "\n"),
        ):
            with atomic_file(folder / name, "w") as file:
                file.write(text)

    def _config(self) -> dict:
        return {"tokenizer_class": "PreTrainedTokenizerFast"}

    def fingerprint(self) -> str:
        """A hex number of what decides the ids; equal after saving and loading, and in every process."""
        model = json.loads(self._state)["model"]
        facts = [
            self.model_type,
            list(self.vocab.items()),
            # Beside the vocabulary, what a Unigram (scores) and a BPE (merges) decide by.
            model["vocab"] if self.model_type == "Unigram" else None,
            [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])],
            sorted(self.special_tokens.items()),
            self.separators,
            # Not the library's JSON for the rest, whose spelling changes with its version, but what it does.
            [self._backend_ids([probe])[0] for probe in _PROBES],
        ]
        if self.allow_special_tokens:
            facts.append("special tokens in texts")  # appended, so that all others keep their fingerprints
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def rebuild(
    cls: type[BaseTokenizer],
    state: str,
    special_tokens: dict[str, str],
    separators: int,
    allow_special_tokens: bool,
    source: str = "",
) -> BaseTokenizer:
    """Makes a tokenizer of a class from the Rust library's JSON, whatever its constructor takes."""
    tokenizer = cls.__new__(cls)
    tokenizer._setup(state, special_tokens, separators, allow_special_tokens, source)
    return tokenizer


def has_added_words(whole: dict) -> bool:
    """True if a tokenizer.json names tokens that are searched for in the whole text, and may contain a space."""
    return any(not token["special"] for token in whole.get("added_tokens", []))


def _one_name(maxlen: int | None, max_length: int | None) -> int | None:
    if maxlen is not None and max_length is not None:
        raise ValueError(f"`maxlen` and `max_length` are one thing; received both, {maxlen} and {max_length}.")
    return max_length if maxlen is None else maxlen


def _checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes):
        raise TypeError(f"`{name}` must be a list of str; received one {type(texts).__name__}; put it into a list.")
    texts = list(texts)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`{name}` must hold str; received {type(text).__name__} {text!r} at place {place}.")
    return texts


def _id_array(ids: Iterable[int]) -> np.ndarray:
    array = np.asarray(ids if hasattr(ids, "__array__") else list(ids))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"`ids` must be one row of int; received shape {array.shape}, dtype {array.dtype}.")
    return array.astype(np.int64)
