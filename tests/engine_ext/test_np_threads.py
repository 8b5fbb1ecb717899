"""Operators on large arrays, without the GIL, while another thread changes their elements and flags."""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.night.cases import at_night
from walle import np as wnp
from walle.engine_ext.errors import DTypeError

COUNT = (1 << 20) + 7  # elements: as many as operators compute without the GIL

# Sorts of numbers that another thread turns from falling to rising and back.
SORTS = """
import sys, threading, time
import numpy as np
from walle import np as wnp
from walle.engine_ext import _core

COUNT = 1 << 18
rising = np.arange(COUNT, dtype="float32")
falling = rising[::-1].copy()
shared = falling.copy()
boxes = np.zeros((1, COUNT, 4), "float32")
suppression = [boxes, shared.reshape(1, 1, COUNT), np.array([1]), np.array([0.5], "float32")]
operators = {
    "unique": lambda: _core.evaluate("Unique", [shared], {}, 4),
    "unique rows": lambda: _core.evaluate("Unique", [shared.reshape(-1, 2)], {"axis": 0}, 4),
    "suppression": lambda: _core.evaluate("NonMaxSuppression", suppression, {}),
    "sort": lambda: wnp.sort(shared),
    "argsort": lambda: wnp.argsort(shared),
    "partition": lambda: wnp.partition(shared, 9),
}
done = threading.Event()


def turn():
    while not done.is_set():
        shared[:] = rising
        shared[:] = falling


thread = threading.Thread(target=turn)
thread.start()
try:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        operators[sys.argv[1]]()
finally:
    done.set()
    thread.join()
"""


@pytest.mark.parametrize("name", [*at_night("unique", "suppression", "argsort", "partition"), "unique rows", "sort"])
def test_a_sort_of_numbers_that_a_thread_changes_keeps_to_its_memory(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SORTS), name], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.fixture(scope="module")
def places() -> Any:
    return wnp.asarray((np.arange(COUNT) * 7919 % COUNT).astype("int64"))


@pytest.fixture(scope="module")
def mask() -> Any:
    return wnp.asarray(np.arange(COUNT) % 2 == 0)


class Changes:
    """A thread that fills an array with ones and twos, and now and then makes the latest view of it read-only."""

    def __init__(self) -> None:
        self.array = wnp.ones((COUNT,), "int64")
        self.latest = self.array[...]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def view(self) -> Any:
        self.latest = self.array[...]
        return self.latest

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            if self._done.is_set():
                return
            self.array[...] = 2
            self.array[::3] = 1
            self.array.fill(1)
            if number % 32 == 0:  # a sort in place must be able to end between two of them
                self.latest.setflags(write=False)
            gc.collect(0)


@pytest.fixture
def changes() -> Iterator[Changes]:
    thread = Changes()
    yield thread
    thread.close()


def set_all(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


# Each returns numbers that are 1 or 2 (or what is named beside it) whichever elements the other thread has changed.
OPERATORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "copy": lambda x, places, mask: x.copy(),
    "astype": lambda x, places, mask: x.astype("float32"),
    "tobytes": lambda x, places, mask: np.frombuffer(x.tobytes(), "int64"),
    "strided copy": lambda x, places, mask: x[:-7].reshape(1024, -1).T.copy(),
    "tolist": lambda x, places, mask: np.array(x[:40_000].reshape(-1, 2).tolist()),
    "pickle": lambda x, places, mask: np.frombuffer(x.__reduce__()[1][0], "int64"),
    "mask": lambda x, places, mask: x[mask],
    "own mask": lambda x, places, mask: x[x == 1],
    "take": lambda x, places, mask: x[places],
    "take by the array": lambda x, places, mask: wnp.arange(3)[x],
    "pairs of indices": lambda x, places, mask: x[:9].reshape(3, 3)[x, x],
    "broadcast indices": lambda x, places, mask: x[:900].reshape(30, 30)[x[:1100, None], x[:1100]],
    "set by mask": lambda x, places, mask: set_all(x, mask, x[mask]),
    "set by places": lambda x, places, mask: set_all(x, places, x),
    "set to overlap": lambda x, places, mask: set_all(x, slice(1, None), x[:-1]),
    "set to reverse": lambda x, places, mask: set_all(x, slice(None), x[::-1]),
    "fill": lambda x, places, mask: x.fill(2) or x,
    "concatenate": lambda x, places, mask: wnp.concatenate([x, x[::-1]]),
    "concatenate to out": lambda x, places, mask: wnp.concatenate([x[1:], x[:1]], out=x),
    "repeat": lambda x, places, mask: wnp.repeat(x, 2),
    "array of rows": lambda x, places, mask: wnp.asarray([x, x]),
    "where": lambda x, places, mask: wnp.where(mask, x, x[::-1]),
    "clip": lambda x, places, mask: wnp.clip(x, 1, 2),
    "maximum to out": lambda x, places, mask: wnp.maximum(x, x[::-1], out=x),
    "in place": lambda x, places, mask: x.__imul__(1),
    "sort in place": lambda x, places, mask: x.sort() or x,
    "unique": lambda x, places, mask: wnp.unique(x),
    "nonzero": lambda x, places, mask: wnp.nonzero(x - 1)[0] * 0 + 1,
    "bincount": lambda x, places, mask: np.flatnonzero(np.asarray(wnp.bincount(x))),
    "any": lambda x, places, mask: (x > 0).all() + 0,
    "outer maximum": lambda x, places, mask: wnp.maximum(x[:1100, None], x[:1100]),
}


@pytest.mark.parametrize("name", list(OPERATORS))
def test_an_operator_keeps_to_an_array_that_a_thread_changes(
    name: str, changes: Changes, places: Any, mask: Any
) -> None:
    end, results = time.monotonic() + 0.25, 0
    while time.monotonic() < end + (0 if results else 10):
        x = changes.view()
        try:
            result = np.asarray(OPERATORS[name](x, places, mask))
        except DTypeError as error:
            if "read-only" not in str(error):
                raise
            continue  # the array was not written yet
        results += 1
        assert set(np.unique(result).tolist()) <= {1, 2}
    assert results > 0
