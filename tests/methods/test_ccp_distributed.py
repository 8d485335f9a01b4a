"""Two devices pre-train as one does on the whole batch: one bank, one batch's statistics, negatives of both."""

import numpy as np
import pytest

from tests.methods.two_devices import train

STATE = ("bank/vectors", "bank/pointer", "bank/filled", "moving_mean", "moving_variance", "phase", "updates")


@pytest.mark.distributed
def test_two_devices_equal_one(tmp_path):
    """Variables (so gradients) and all logs agree, with a torn pair in a short batch, and after a resume."""
    one, two = train("mirrored_ccp.py", tmp_path, 1), train("mirrored_ccp.py", tmp_path, 2)
    one["cached"] = one["together"]  # a gradient cache on two devices, none on one
    for name in ("together", "by_target", "cached"):
        (logs, variables), (other_logs, other_variables) = one[name], two[name]
        assert set(logs) == {
            *("loss", "mlm_loss", "mlm_accuracy", "context_loss", "context_accuracy", "context_chance"),
            *(f"gaps_{gap}" for gap in ("mode_gap", "mode_distance", "bank_gap", "bank_drift")),
        }
        for key in logs:
            np.testing.assert_allclose(other_logs[key], logs[key], rtol=2e-4, atol=2e-5, err_msg=f"{name} {key}")
        assert np.isfinite(logs["gaps_bank_drift"][-1])
        # No entry "name@1": both replicas have the same copy of everything, bank and statistics included.
        assert variables.keys() == other_variables.keys()
        for part in STATE:
            assert any(key.endswith(part) for key in variables), part
        for key in variables:
            np.testing.assert_allclose(other_variables[key], variables[key], atol=5e-5, err_msg=f"{name} {key}")
        filled = next(array for key, array in variables.items() if key.endswith("bank/filled"))
        assert filled.sum() > 10
    resumed, whole = two["resumed"], two["together"]
    assert resumed[0]["loss"] == whole[0]["loss"][1:] and resumed[1].keys() == whole[1].keys()
    for name, array in whole[1].items():
        np.testing.assert_array_equal(resumed[1][name], array, err_msg=name)
    apart = {key.rpartition("/")[2] for key in two["apart"][1] if key.endswith("@1")}
    assert {"vectors@1", "moving_mean@1"} <= apart and "phase@1" not in apart
    logs, variables = two["in_parts"]
    assert np.isfinite(logs["loss"]).all() and not any(key.endswith("@1") for key in variables)
