import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from simretro.arguments import check_int, plain, warn


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_are_ints(value):
    checked = check_int("n", value, 3)
    assert checked == 3 and type(checked) is int


@pytest.mark.parametrize("value", [2, "3", 3.0, True, None, [3], float("nan")])
def test_all_else_is_named(value):
    with pytest.raises(ValueError, match="`n` must be an int of at least 3, since it is; received ") as error:
        check_int("n", value, 3, "it is")
    assert repr(value) in str(error.value)
    with pytest.raises(ValueError, match="`n` must be an int; received 0.5"):
        check_int("n", 0.5)


def test_numpy_numbers_become_plain_and_all_else_stays():
    given = {"a": np.int64(3), "b": [np.float32(0.5), (np.bool_(True), "x")], "c": None}
    found = plain(given)
    assert found == {"a": 3, "b": [0.5, (True, "x")], "c": None}
    assert [type(value) for value in (found["a"], found["b"][0], found["b"][1][0])] == [int, float, bool]


def test_a_warning_names_the_line_outside_of_the_package():
    inside = {"warn": warn, "__name__": "simretro.somewhere.deep"}
    exec("def first():\n    second()\ndef second():\n    warn('look', FutureWarning)", inside)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        inside["first"]()
    assert [(w.filename, w.category, str(w.message)) for w in told] == [(__file__, FutureWarning, "look")]


def test_importing_it_needs_no_keras():
    code = "import sys, simretro.arguments; assert not {'keras', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
