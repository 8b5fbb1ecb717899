"""Parts of the figures of tuning that do not train: data of the devices, and intervals."""

from __future__ import annotations

import math

import pytest

from benchmarks.mistify_parts import tuning
from walle import np


def test_devices_and_the_test_share_no_sample_and_classes_are_uneven() -> None:
    labels = np.asarray([place % 10 for place in range(5000)])
    test, others, parts = tuning._split(labels, 3)
    places = [place for part in parts for place in part.tolist()]
    assert len(places) == len(set(places)) == 8 * 150
    assert set(places) <= set(others.tolist())
    assert not set(others.tolist()) & set(test.tolist())
    counts = [sum(int(labels[place]) == 0 for place in part.tolist()) for part in parts]
    assert max(counts) > 2 * min(counts)
    again = tuning._split(labels, 3)[2]
    assert [part.tolist() for part in again] == [part.tolist() for part in parts]


def test_an_interval_is_of_students_distribution() -> None:
    mean, half = tuning.interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.30 / math.sqrt(3))
    assert tuning.interval([1.0]) == (1.0, math.inf)
