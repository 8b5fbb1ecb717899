"""Task folders for VM tests."""

import textwrap
import time
from pathlib import Path

from walle.engine_ext import _core

# A sleep that no deadline ends, which a task has no ordinary way to.
DEEP_SLEEP = """
import json

def sleep(seconds):
    json.dumps.__globals__["__builtins__"]["__import__"]("time").sleep(seconds)
"""


def write_task(folder: Path, main: str, **modules: str) -> Path:
    """Write `main.py` and further modules (`a__b` is a/b.py), and return the folder."""
    for name, source in {"main": main, **modules}.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return folder


def wait_for_abandoned(most_s: float = 10.0) -> None:
    """Return once no VM of an earlier test is abandoned: their interpreters count as destroyed when they end."""
    until = time.monotonic() + most_s
    while _core.vm_abandoned() > 0 and time.monotonic() < until:
        time.sleep(0.02)
