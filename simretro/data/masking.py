"""Random masks on source tokens, drawn for a whole batch at once."""

import numpy as np


def choose_masked(units: np.ndarray, rate: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws tokens to mask, whole units only.

    Units come in random order as long as all of them fit into `rate` times the row's tokens; the one that crosses
    this bound is taken with the probability that makes the expected number exact. So the expected share of a row's
    tokens is `rate`, and a row has at most one unit too many; in a row with words of very different lengths, a token of
    a long one is masked more seldom than one of a short one.

    Args:
        units: int (R, S), number of the unit (word) of a token in its row, counted from 0; -1 = never masked.
        rate: float in [0, 1] or one for each row (R,).
        rng: source of randomness.
    Returns: bool (R, S), True = masked.
    """
    num_rows = len(units)
    num_units = int(units.max(initial=-1)) + 1
    if num_units == 0:
        return np.zeros(units.shape, bool)
    rows, columns = np.nonzero(units >= 0)
    cells = rows * num_units + units[rows, columns]
    sizes = np.bincount(cells, minlength=num_rows * num_units).reshape(num_rows, num_units)
    quota = (np.broadcast_to(rate, (num_rows,)) * sizes.sum(1))[:, None]
    order = np.argsort(rng.random(sizes.shape), axis=1)
    ordered = np.take_along_axis(sizes, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    # The share of the unit that is within the quota: 1 for those that fit, 0 behind the one that crosses.
    share = (quota - before) / np.maximum(ordered, 1)
    taken = np.empty(sizes.shape, bool)
    np.put_along_axis(taken, order, rng.random((num_rows, 1)) < share, axis=1)
    masked = np.zeros(units.shape, bool)
    masked[rows, columns] = taken.reshape(-1)[cells]
    return masked


def corrupt(
    token_ids: np.ndarray, masked: np.ndarray, mask_token_id: int, random_ids: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Replaces masked tokens as BERT does: 80 % by the mask token, 10 % by a random one, 10 % stay.

    Args:
        token_ids: int (R, S).
        masked: bool (R, S).
        mask_token_id: int.
        random_ids: int (N,), the ids to draw random tokens from.
        rng: source of randomness.
    Returns: as `token_ids`.
    """
    rows, columns = np.nonzero(masked)
    fate = rng.random(len(rows))
    random = random_ids[rng.integers(len(random_ids), size=len(rows))]
    corrupted = token_ids.copy()
    replacement = np.where(fate < 0.8, mask_token_id, np.where(fate < 0.9, random, token_ids[rows, columns]))
    corrupted[rows, columns] = replacement
    return corrupted


def listed(masked: np.ndarray, token_ids: np.ndarray, width: int, first_position: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and ids of the masked tokens of each row.

    Args:
        masked: bool (R, S).
        token_ids: int (R, S) before the corruption.
        width: int, columns of the result, at least the largest number of masked tokens in a row.
        first_position: position in the row of column 0 of `masked`.
    Returns: int32 (R, width) positions padded with 0, int32 (R, width) ids padded with -1.
    """
    rows, columns = np.nonzero(masked)
    slots = (np.cumsum(masked, axis=1) - 1)[rows, columns]
    positions = np.zeros((len(masked), width), "int32")
    ids = np.full((len(masked), width), -1, "int32")
    positions[rows, slots] = columns + first_position
    ids[rows, slots] = token_ids[rows, columns]
    return positions, ids
