"""Two devices pre-train as one does on the whole batch."""

import numpy as np
import pytest

from tests.methods.two_devices import train


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Weights (so gradients) and all logs agree, with an uneven short batch, and after a resume."""
    one, two = train("mirrored_retromae.py", tmp_path, 1), train("mirrored_retromae.py", tmp_path, 2)
    (logs, weights), (other_logs, other_weights) = one["whole"], two["whole"]
    parts = ("encoder", "decoder")
    assert set(logs) == {"loss", "bow_loss", *(f"{part}_{what}" for part in parts for what in ("loss", "accuracy"))}
    for name in logs:
        np.testing.assert_allclose(other_logs[name], logs[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert weights.keys() == other_weights.keys() and any("decoder" in name for name in weights)
    for name in weights:
        np.testing.assert_allclose(other_weights[name], weights[name], atol=2e-5, err_msg=name)
    assert logs["loss"][-1] < logs["loss"][0]
    masks = dict(np.load(tmp_path / "masks.npz"))
    assert masks.keys() == {"0-0", "1-0", "0-1", "1-1"}
    for name, mask in masks.items():
        assert 0.45 < mask.mean() < 0.55, "each replica hides half"
        for other in masks.keys() - {name}:
            assert 0.45 < (mask == masks[other]).mean() < 0.6, f"{name} and {other} are drawn apart"
    for run in (one, two):
        whole_logs, whole_weights = run["whole"]
        resumed_logs, resumed_weights = run["resumed"]
        np.testing.assert_array_equal(resumed_logs["loss"], whole_logs["loss"][1:])
        for name in whole_weights:
            np.testing.assert_array_equal(resumed_weights[name], whole_weights[name], err_msg=name)
