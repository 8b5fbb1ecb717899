"""Aggregators by name, and a user's own class in a file."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.errors import ConfigError
from walle.federated.aggregation.adaptive import FedAdam, FedYogi
from walle.federated.aggregation.aggregator import Aggregator
from walle.federated.aggregation.coordinates import CoordinateMedian, TrimmedMean
from walle.federated.aggregation.fedavg import FedAvg
from walle.federated.aggregation.fedbuff import FedBuff
from walle.federated.aggregation.krum import MultiKrum
from walle.federated.aggregation.norm_bound import NormBound

AGGREGATORS: Mapping[str, type[Aggregator]] = {
    "fedavg": FedAvg,
    "fedprox": FedAvg,  # server's half; the device's is `walle.federated.proximal`
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedbuff": FedBuff,
    "norm-bound": NormBound,
    "median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
    "multi-krum": MultiKrum,
}


def make_aggregator(name: str, options: Mapping[str, Any] | None = None, folder: Path = Path()) -> Aggregator:
    """Return the aggregator of a name, or of "file.py:Class", a file of `folder`.

    Raises:
        ConfigError: it is not known, its class is not an Aggregator, or an option is wrong.
    """
    file, _, class_name = name.rpartition(":")
    kind = _own_class(folder / file, class_name) if file else AGGREGATORS.get(name)
    if kind is None:
        raise ConfigError(f"aggregator {name!r} is unknown; known are {', '.join(AGGREGATORS)}, and file.py:Class")
    try:
        return kind(**(options or {}))
    except TypeError as error:
        raise ConfigError(f"aggregator {name!r}: {error}") from error


def _own_class(path: Path, name: str) -> type[Aggregator]:
    try:
        found = runpy.run_path(str(path)).get(name)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, Aggregator):
        raise ConfigError(f"{path} has no class {name!r} that is a walle.federated.aggregation.Aggregator")
    return found
