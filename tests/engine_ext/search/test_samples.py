"""Profiled samples: wrong times are refused by row and column; rows without a time are left out."""

import math

import numpy as np
import pytest

from walle.engine_ext.errors import ShapeError
from walle.engine_ext.search.samples import SampleError, checked_samples, relative_errors

LAYERS = [[64, 3, 56, 1, 3], [32, 16, 28, 1, 1], [8, 8, 7, 2, 3]]


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        ([[1, 2], [3, 4]], ShapeError, r"\(2, 2\)"),
        ([[], [], []], ShapeError, "primitives"),
        ([1.0, 2.0, 3.0], ShapeError, r"\(3,\)"),
        ([[1, 2], [3, 0], [5, 6]], SampleError, r"row 1, column 1 \(b\) of times is 0"),
        ([[1, 2], [3, 4], [-5, 6]], SampleError, r"row 2, column 0 \(a\) of times is -5"),
        ([[1, math.inf], [3, 4], [5, 6]], SampleError, "row 0, column 1"),
        ([[1, 2, 3]] * 3, ShapeError, "3 columns"),
        ([[math.nan] * 2] * 3, SampleError, "no time is defined"),
    ],
)
def test_wrong_times_are_refused(times: list[list[float]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_samples(LAYERS, times, ("a", "b"))


def test_undefined_times_are_masked_and_empty_rows_left_out() -> None:
    samples = checked_samples(LAYERS, [[1.0, math.nan], [math.nan, math.nan], [math.e, 1.0]])
    assert np.asarray(samples.layers).tolist() == [LAYERS[0], LAYERS[2]]
    assert np.asarray(samples.log_times).tolist() == [[0, 0], [pytest.approx(1), 0]]
    assert np.asarray(samples.defined).tolist() == [[1, 0], [1, 1]]


def test_relative_errors_leave_out_undefined_times() -> None:
    found = np.asarray(relative_errors([[11.0, 5.0], [math.nan, 2.0]], [[10.0, math.nan], [3.0, 4.0]]))
    assert found.tolist() == pytest.approx([0.1, 0.5])
