"""Adaptation algorithms, each an executor (§4.2); `find_algorithm` returns one by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from walle.adapt.executor import AdaptationExecutor
from walle.errors import ConfigError

ALGORITHMS = {"morphnet": "MorphNet", "chamnet": "ChamNet", "slimmable": "Slimmable"}


def find_algorithm(name: str, folder: Path) -> AdaptationExecutor:
    """Return a new executor: a name of `ALGORITHMS`, or "file.py:Class" for one's own.

    Raises:
        ConfigError: there is none of that name.
    """
    if name in ALGORITHMS:
        found = getattr(import_module(f"walle.adapt.algorithms.{name}"), ALGORITHMS[name])
    else:
        from walle.adapt.source import read_name

        found = read_name(name, folder, f"algorithm {name!r}; there are {', '.join(ALGORITHMS)} and FILE.py:CLASS")
    if not (isinstance(found, type) and issubclass(found, AdaptationExecutor)):
        raise ConfigError(f"algorithm {name!r} is not an AdaptationExecutor")
    return found()
