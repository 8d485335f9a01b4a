"""Two devices train a retriever as one does on the whole batch: negatives come from all replicas."""

import numpy as np
import pytest

from tests.methods.two_devices import train


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Weights (so gradients) and all logs agree: with hard and false negatives, and where a device gets no query.

    In `cached` also where the devices have a gradient cache and the one device has none, with a teacher and beginnings
    of the vectors; in `half` in float16, whose loss is scaled.
    """
    one, two = train("mirrored_bi_encoder.py", tmp_path, 1), train("mirrored_bi_encoder.py", tmp_path, 2)
    names = ("loss", "contrastive_loss", "contrastive_accuracy")
    for run in ("shared", "apart", "cached"):
        (logs, weights), (other_logs, other_weights) = one[run], two[run]
        assert set(names) == set(logs) if run != "cached" else set(names) < set(logs) and len(logs) == 1 + 3 * 3
        for name in logs:
            np.testing.assert_allclose(other_logs[name], logs[name], rtol=2e-4, atol=2e-5, err_msg=f"{run} {name}")
        assert weights.keys() == other_weights.keys()
        for name in weights:
            np.testing.assert_allclose(other_weights[name], weights[name], atol=2e-5, err_msg=f"{run} {name}")
        assert run == "cached" or logs["loss"][-1] < logs["loss"][0]
    start, alone, together = (
        np.concatenate([array.ravel() for array in weights.values()])
        for _, weights in (one["start"], one["half"], two["half"])
    )
    # Rounded to float16 at other places, scaled and clipped the same.
    assert np.linalg.norm(together - alone) < 0.05 * np.linalg.norm(alone - start)
