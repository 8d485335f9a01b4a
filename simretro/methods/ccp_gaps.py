"""Does CCP's loss fall for the wrong reason? What the head and the bank show of it."""

from collections.abc import Iterable, Mapping

import numpy as np
from keras import ops

from simretro.arrays import unit_rows
from simretro.losses import context_loss, context_pairs
from simretro.methods.ccp import CCP, pair_rows


def ccp_gaps(ccp: CCP, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Differences that should be small, and are not where batch normalization or a stale bank gives answers away.

    ```python
    held_out = [data.batch(0, index) for index in range(8)]  # `data` with `mlm_share=0` and `fixed=True`
    gaps = PeriodicEvaluation(lambda: ccp_gaps(ccp, held_out), name="ccp")
    ```

    Measured without dropout; nothing of the model changes. The vectors are those of the head:

    - `mode_gap`: loss of the pairs when all are normalised by the running statistics, minus the loss when each side is
      by its batch's; negatives are those of the batch. Far above 0: the loss is low because the rows of a batch betray
      one another, which retrieval, with its running statistics, cannot use;
    - `mode_distance`: mean of 1 - cos between the vectors of a row in these two modes. 0 = the statistics agree;
    - `bank_gap`: mean cosine of a row with the negatives in its batch, minus that with the bank's vectors which it
      sees; rows in the modes that the next step would have. Above about 0.05 and growing: what comes in one batch can
      be recognised, or the bank is stale;
    - `bank_drift`: mean of 1 - cos between a row in running mode and the bank's vector of the same sentence, which the
      model of that time made. NaN where the bank has none of the sentences.

    The first two are there if the head normalises batches, the other two if there is a bank.

    Args:
        ccp: the model.
        batches: of `ContextWindows`, a few; those without pairs are passed over.
    Returns: {name: float}, means over all rows that have the numbers, of `mode_gap` over all pairs.
    Raises: ValueError if no batch has a pair.
    """
    totals: dict[str, list[tuple[float, int]]] = {}
    for batch in batches:
        rows = {name: ops.convert_to_numpy(column) for name, column in pair_rows(batch).items()}
        if rows["sides"].max(initial=-1) < 0:
            continue
        for name, (value, count) in _gaps_of_batch(ccp, batch, rows).items():
            totals.setdefault(name, []).append((value, count))
    if not totals:
        raise ValueError("`batches` must hold pairs, in a batch at least; received none. Do all have masked text only?")
    return {name: _mean(parts) for name, parts in totals.items()}


def _mean(parts):
    count = sum(count for _, count in parts)
    return sum(value * count for value, count in parts if count) / count if count else float("nan")


def _gaps_of_batch(ccp, batch, rows):
    """{name: (mean, how many it is the mean of)}."""
    positives, visible = (
        ops.convert_to_numpy(mask)
        for mask in context_pairs(
            rows, window_sentences=ccp.window_sentences, mask_same_document=ccp.mask_same_document,
            negatives=ccp.negatives,
        )
    )  # fmt: skip
    arrays = {name: array for name, array in batch.items() if not name.startswith("masked_")}
    vectors = ccp.row_outputs({name: ops.convert_to_tensor(array) for name, array in arrays.items()}, False)["vectors"]
    running = ops.convert_to_numpy(ccp.head(vectors, training=False))
    gaps, as_trained = {}, running
    if ccp.head.norm is not None:
        in_batch = _in_batch_mode(ccp.head, vectors, rows["sides"])
        by_batch = rows["sides"] >= 0
        losses = [_loss(ccp, side, positives, visible) for side in (running, in_batch)]
        gaps["mode_gap"] = losses[0] - losses[1], int(positives.sum())
        distances = 1 - _cosines_of_rows(in_batch, running)[by_batch]
        gaps["mode_distance"] = float(distances.mean()), len(distances)
        if ccp.head.norm.alternating:
            by_batch = rows["sides"] == int(_array(ccp.head.norm.phase))
        as_trained = np.where(by_batch[:, None], in_batch, running)
    if ccp.bank is not None:
        gaps |= _bank_gaps(ccp, rows, visible & ~positives, as_trained, running)
    return gaps


def _in_batch_mode(head, vectors, sides):
    """The head's vectors when each side has the statistics of its own rows; (R, P).

    Ordinary batch normalization has those of all rows. Rows of neither side keep the running ones.
    """
    norm = head.norm.layer
    hidden = ops.convert_to_numpy(head.hidden(vectors))
    mean = np.tile(_array(norm.moving_mean), (len(hidden), 1))
    variance = np.tile(_array(norm.moving_variance), (len(hidden), 1))
    for chosen in (sides == 0, sides == 1) if head.norm.alternating else (sides >= 0,):
        if chosen.any():
            mean[chosen], variance[chosen] = hidden[chosen].mean(axis=0), hidden[chosen].var(axis=0)
    hidden = (hidden - mean) / np.sqrt(variance + norm.epsilon)
    hidden = hidden * _array(norm.gamma) + _array(norm.beta)
    return ops.convert_to_numpy(head.projection(ops.relu(ops.convert_to_tensor(hidden.astype("float32")))))


def _loss(ccp, vectors, positives, visible):
    options = {"exclude_positives": ccp.exclude_positives, "similarity": ccp.similarity}
    return float(context_loss(vectors, vectors, positives, visible, ccp.temperature, **options)[0])


def _bank_gaps(ccp, rows, is_negative, as_trained, running):
    places = [rows[name] for name in ("language_ids", "document_ids", "sentence_keys")]
    bank_vectors, seen = (ops.convert_to_numpy(array) for array in ccp.bank(*places))
    bank_vectors = unit_rows(bank_vectors, "float64")
    units = unit_rows(as_trained, "float64")
    has_both = is_negative.any(axis=1) & seen.any(axis=1)
    gap = 0.0
    if has_both.any():
        within = _masked_mean(units[has_both] @ units.T, is_negative[has_both])
        gap = float((within - _masked_mean(units[has_both] @ bank_vectors.T, seen[has_both])).mean())
    same = _same_sentences(ccp.bank, rows)
    cosines = (unit_rows(running, "float64") @ bank_vectors.T)[same]
    return {
        "bank_gap": (gap, int(has_both.sum())),
        "bank_drift": (float(1 - cosines.mean()) if len(cosines) else 0.0, len(cosines)),
    }


def _same_sentences(bank, rows):
    """bool (R, `bank_size`): the slots, of the ring that `bank` reads for these rows, that hold a row's own text."""
    ring = int(np.clip(rows["language_ids"].max(initial=0), 0, bank.num_rings - 1))
    slots = slice(ring * bank.bank_size, (ring + 1) * bank.bank_size)
    keys = _array(bank.bank_sentence_keys)[slots]
    is_filled = np.arange(bank.bank_size) < _array(bank.bank_filled)[ring]
    return (rows["sentence_keys"][:, None] == keys) & is_filled & (rows["sentence_keys"] >= 0)[:, None]


def _masked_mean(values, mask):
    return (values * mask).sum(axis=1) / mask.sum(axis=1)


def _cosines_of_rows(left, right):
    return np.einsum("ij,ij->i", unit_rows(left, "float64"), unit_rows(right, "float64"))


def _array(variable):
    return ops.convert_to_numpy(ops.convert_to_tensor(variable))
