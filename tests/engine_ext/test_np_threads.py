"""Operators on large arrays, without the GIL, while another thread changes their elements and flags."""

import subprocess
import sys
import textwrap

import pytest

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


@pytest.mark.parametrize("name", ["unique", "unique rows", "suppression", "sort", "argsort", "partition"])
def test_a_sort_of_numbers_that_a_thread_changes_keeps_to_its_memory(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SORTS), name], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stderr) == (0, "")
