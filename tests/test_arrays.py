import numpy as np
import pytest

from simretro.arrays import unit_rows


def test_rows_have_length_one_whatever_their_size():
    vectors = np.array([[3, 4], [0, 0], [3e300, -4e300], [3e-310, 4e-310], [0, -2]])
    expected = [[0.6, 0.8], [0, 0], [0.6, -0.8], [0.6, 0.8], [0, -1]]
    np.testing.assert_allclose(unit_rows(vectors, "float64"), expected, rtol=1e-12)
    assert unit_rows(vectors).dtype == np.float32 and unit_rows(vectors, "float64").dtype == np.float64


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_normalise(shape):
    assert unit_rows(np.zeros(shape)).shape == shape


def test_the_argument_stays_as_it_is():
    vectors = np.array([[3.0, 4.0]])
    unit_rows(vectors, "float64")
    assert vectors.tolist() == [[3.0, 4.0]]
