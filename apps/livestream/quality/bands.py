"""Scores over the share of seconds that goes to the cloud.

From an evaluation in which every second was sent: each has the device's evidence and the cloud's look. A second that is
nearer to the threshold, by log-odds, is sent earlier.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from apps.livestream.quality import scores
from apps.livestream.task_files import TASKS

SETTINGS = TASKS / "highlight" / "resources" / "settings.json"
SHARES = (0.0, 0.05, 0.12, 0.25, 0.5, 1.0)  # 12 % is the paper's (§7.1)

type Model = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """A second's evidence by kind, and its label."""

    values: Mapping[str, float]
    label: bool

    def log_odds(self, model: Model) -> float:
        """Return the log-odds of a highlight; a look that the cloud did not take counts 0."""
        weighed = sum(weight * self.values.get(kind, 0.0) for kind, weight in model["weights"].items())
        return float(model["bias"] + weighed)


@dataclasses.dataclass(frozen=True, slots=True)
class Band:
    """Scores if a share of the seconds is decided by the cloud; `passed` is the share of these that are highlights."""

    share: float
    passed: float | None
    precision: float
    recall: float
    f1: float


def models_of() -> tuple[Model, Model]:
    """Return the models of device and cloud in the highlight task's settings."""
    settings = json.loads(SETTINGS.read_bytes())
    return settings["device"], settings["cloud"]


def bands(seconds: Sequence[Evidence], device: Model, cloud: Model, *, shares: Sequence[float] = SHARES) -> list[Band]:
    """Return the scores for shares of the seconds that are decided by the cloud, the least sure ones first."""
    edge = math.log(device["threshold"] / (1 - device["threshold"]))
    passes = math.log(cloud["threshold"] / (1 - cloud["threshold"]))
    by_distance = sorted(seconds, key=lambda one: abs(one.log_odds(device) - edge))
    found = []
    for share in shares:
        count = round(share * len(by_distance))
        sent = [one.log_odds(cloud) >= passes for one in by_distance[:count]]
        kept = [one.log_odds(device) >= edge for one in by_distance[count:]]
        counted = scores.count([one.label for one in by_distance], sent + kept)
        passed = round(sum(sent) / count, 3) if count else None
        measures = [round(value, 3) for value in (counted.precision, counted.recall, counted.f1)]
        found.append(Band(share, passed, *measures))
    return found
