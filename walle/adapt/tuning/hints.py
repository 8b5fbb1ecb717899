"""Hints of a device about its data, as a vector: place, time, and a summary of the data (§5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from walle.errors import ConfigError

_EARTH_KM = 6371.0
_PLACE_KM = 10.0  # places, times and summaries so far apart have vectors about 1 apart
_TIME_S = 6 * 3600.0
_SUMMARY = 0.25
_LARGEST_TIME_S = 1e11
_MAX_SUMMARY = 256


@dataclass(frozen=True, slots=True)
class Hints:
    """Latitude and longitude in degrees, seconds since the epoch, and numbers that summarise the data.

    Vectors of two devices are about 1 apart for 10 km, 6 hours, or a summary that differs by 0.25; what all devices of
    a task leave at 0 does not count. The cloud learns the hints: a device gives those that it may tell.

    Raises:
        ConfigError: a number is out of range.
    """

    latitude: float = 0.0
    longitude: float = 0.0
    time_s: float = 0.0
    summary: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        limits = (("latitude", 90.0), ("longitude", 180.0), ("time_s", _LARGEST_TIME_S))
        for name, limit in limits:
            if not abs(getattr(self, name)) <= limit:
                raise ConfigError(f"{name} {getattr(self, name)}; give a number from {-limit:g} to {limit:g}")
        if len(self.summary) > _MAX_SUMMARY or not all(abs(one) <= 1 for one in self.summary):
            raise ConfigError(f"a summary has at most {_MAX_SUMMARY} numbers, each from -1 to 1")

    def vector(self) -> tuple[float, ...]:
        """Return the vector (4 + numbers of the summary). The place is on a sphere: no meridian parts neighbours."""
        latitude, longitude = math.radians(self.latitude), math.radians(self.longitude)
        radius = _EARTH_KM / _PLACE_KM
        return (
            radius * math.cos(latitude) * math.cos(longitude),
            radius * math.cos(latitude) * math.sin(longitude),
            radius * math.sin(latitude),
            self.time_s / _TIME_S,
            *(one / _SUMMARY for one in self.summary),
        )


def class_shares(labels: Sequence[int], classes: int) -> tuple[float, ...]:
    """Return the share of each class among labels, a summary for `Hints`.

    Raises:
        ConfigError: there are no labels, or one is out of range.
    """
    if not labels or not all(0 <= one < classes for one in labels):
        raise ConfigError(f"{len(labels)} labels; give at least one, each from 0 to {classes - 1}")
    return tuple(labels.count(one) / len(labels) for one in range(classes))
