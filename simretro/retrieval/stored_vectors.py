"""Vectors as they are kept on disk: float32, float16, int8 or one bit a number, and what they stand for."""

from collections.abc import Sequence

import numpy as np

DTYPES = ("float32", "float16", "int8", "binary")
_STORED = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}
_CODES_PER_BLOCK = 1 << 16
_FLAT = 0.01  # a range below this share of the usual one says nothing
_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype="uint8")[:, None], axis=1).sum(axis=1, dtype="uint8")


def stored_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of the file, little-endian."""
    return np.dtype(_STORED[dtype])


def stored_width(dtype: str, dimension: int) -> int:
    """Columns of the file: numbers, or bytes of eight bits each."""
    return -(-dimension // 8) if dtype == "binary" else dimension


def calibrate(vectors: np.ndarray) -> np.ndarray:
    """What int8 codes mean, from a sample of vectors: their range, cut into 255 equal steps for each dimension.

    Of a dimension that does not vary in the sample, as if it were dead or the sample one text, the range is unknown:
    there a step is as large as in most other dimensions, or as the largest number of the sample asks for.

    Args:
        vectors: float32 (M, d), M >= 1.
    Returns: float32 (2, d), the smallest number of each dimension and the size of a step, above 0.
    """
    low, high = vectors.min(axis=0).astype("float64"), vectors.max(axis=0).astype("float64")
    step = (high - low) / 255
    flat = step <= _FLAT * np.median(step)
    usual = 2 * np.abs(vectors).max() / 255 if flat.all() else np.median(step[~flat])
    step[flat] = usual or 1.0
    low[flat] = (low + high)[flat] / 2 - 128 * step[flat]
    return np.stack([low, step]).astype("float32")


def to_codes(vectors: np.ndarray, dtype: str, calibration: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """Vectors as they are stored.

    Args:
        vectors: float32 (N, d), finite.
        dtype: one of `DTYPES`.
        calibration: see `calibrate`; for int8.
    Returns: (array (N, `stored_width`), how many numbers were beyond the calibration and have been clipped).
    Raises: ValueError for a number that float16 cannot hold.
    """
    if dtype == "binary":
        return np.packbits(vectors > 0, axis=1), 0
    if dtype == "int8":
        low, step = calibration.astype("float64")
        codes = np.rint((vectors - low) / step) - 128
        clipped = int(np.count_nonzero((codes < -128) | (codes > 127)))
        return np.clip(codes, -128, 127).astype("int8"), clipped
    with np.errstate(over="ignore"):
        codes = vectors.astype(stored_dtype(dtype))
    if not np.isfinite(codes).all():
        raise ValueError(
            f'`dtype` must be "float32" for vectors with numbers as large as {np.abs(vectors).max():.6g}; received '
            f"{dtype!r}."
        )
    return codes, 0


def from_codes(codes: np.ndarray, dtype: str, dimension: int, calibration: np.ndarray | None = None) -> np.ndarray:
    """The vectors that stored ones stand for, float32 (N, d); a bit is a number of plus or minus `d ** -0.5`."""
    if dtype == "binary":
        signs = np.unpackbits(codes, axis=1, count=dimension).astype("float32")
        return (2 * signs - 1) * np.float32(dimension**-0.5)
    if dtype == "int8":
        low, step = calibration
        vectors = codes.astype("float32")
        vectors += 128
        vectors *= step
        vectors += low
        return vectors
    return codes.astype("float32", copy=False)


def scale_of(longest: float) -> float:
    """What `StoredRows` must divide by for rows of this length; a power of 2, which changes no digit of a float32."""
    return 1.0 if longest <= 1.0001 else float(2.0 ** np.ceil(np.log2(longest)))


class StoredRows:
    """The rows of all shards as one array, decoded where they are read: what `exact_search` takes for its vectors.

    Shard `s` of `S` holds the rows `s`, `s + S`, `s + 2 S`, ...

    Args:
        parts: of each shard an array (n, `stored_width`), mapped or in memory.
        dtype: one of `DTYPES`.
        dimension: int, d.
        calibrations: of each shard, see `calibrate`; None for other kinds than int8.
        scale: float, what is read is divided by it, so that no row is longer than 1; see `scale_of`.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        dtype: str,
        dimension: int,
        calibrations: Sequence[np.ndarray | None],
        scale: float = 1.0,
    ):
        self.parts, self.dtype, self.calibrations, self.scale = list(parts), dtype, list(calibrations), scale
        self.shape = sum(map(len, self.parts)), dimension

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """float32 (R, d) of a slice without a step, or of an array of row numbers."""
        return self._gather(rows, self.shape[1], "float32", self._decoded)

    def codes(self, rows: slice | np.ndarray) -> np.ndarray:
        """As they are stored, (R, `stored_width`)."""
        part = self.parts[0]
        return self._gather(
            rows, part.shape[1], part.dtype, lambda shard, chosen: np.asarray(self.parts[shard][chosen])
        )

    def _decoded(self, shard, chosen):
        codes = np.asarray(self.parts[shard][chosen])
        vectors = from_codes(codes, self.dtype, self.shape[1], self.calibrations[shard])
        return vectors if self.scale == 1 else vectors / np.float32(self.scale)

    def _gather(self, rows, width, dtype, read):
        count = len(self.parts)
        if count == 1:
            return read(0, rows)
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            found = np.empty((stop - start, width), dtype)
            for shard in range(count):
                own = slice(-((shard - start) // count), -((shard - stop) // count))
                found[(shard - start) % count :: count] = read(shard, own)
            return found
        found = np.empty((len(rows), width), dtype)
        for shard in range(count):
            chosen = rows % count == shard
            found[chosen] = read(shard, rows[chosen] // count)
        return found


def hamming_search(rows: StoredRows, queries: np.ndarray, topn: int) -> np.ndarray:
    """The rows that differ from each query in the fewest bits.

    Args:
        rows: of the kind "binary".
        queries: uint8 (Q, `stored_width`), bits of the queries.
        topn: int, 1 <= topn <= N.
    Returns: int64 (Q, topn), by ascending distance, equal ones by ascending row.
    """
    count, query_words = len(rows), _words(queries)
    best = [np.empty(0, "int64") for _ in queries]  # distance * N + row
    for start in range(0, count, _CODES_PER_BLOCK):
        block = np.ascontiguousarray(_words(rows.codes(slice(start, start + _CODES_PER_BLOCK))).T)  # (W, R)
        places = np.arange(start, start + block.shape[1])
        for number, words in enumerate(query_words):
            distances = np.zeros(block.shape[1], "int64")
            for word, column in zip(words, block, strict=True):
                distances += _count_bits(column ^ word)
            keys = distances * count + places
            if len(best[number]) == topn:
                keys = keys[keys < best[number].max()]
            keys = np.concatenate([best[number], keys])
            best[number] = np.partition(keys, topn - 1)[:topn] if len(keys) > topn else keys
    return np.stack([np.sort(keys) for keys in best]) % count if len(queries) else np.zeros((0, topn), "int64")


def _words(codes):
    """Bytes (N, b) as uint64 (N, ceil(b / 8)), filled up with zeros."""
    missing = -codes.shape[1] % 8
    if missing:
        codes = np.pad(codes, ((0, 0), (0, missing)))
    return np.ascontiguousarray(codes).view("uint64")


def _count_bits(words):
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    return _BITS_OF_BYTE[words.view("uint8").reshape(-1, 8)].sum(axis=1, dtype="int64")  # NumPy 1
