"""Task folders for VM tests."""

import textwrap
from pathlib import Path

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
