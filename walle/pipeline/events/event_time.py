"""Times of an event log, in the formats that its mapping names, as whole milliseconds since the epoch."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)
_PER_MS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}  # units in a ms; negative: units that make up a ms
_ZONE_NAMES = (" UTC", " GMT")  # public logs append these names, and ISO 8601 does not know them


class TimeFormatError(ValueError):
    """A name of a format that is none."""


class EventTime:
    """A reader of times in one of some formats: the first that fits a text is taken.

    A format is `s`, `ms`, `us` or `ns` since the epoch, `iso` (ISO 8601 with any offset, or UTC or GMT after a space;
    without a zone: UTC), or a pattern of `datetime.strptime` such as `%d/%m/%Y %H:%M:%S %z` (without %z: UTC).

    Raises:
        TimeFormatError: a format is none of these, or a pattern that cannot be used.
    """

    def __init__(self, formats: Sequence[str]) -> None:
        self.formats = tuple(formats)
        for name in self.formats:
            if name in _PER_MS or name == "iso":
                continue
            if "%" not in name:
                raise TimeFormatError(f"{name!r} is not s, ms, us, ns, iso or a pattern such as %Y-%m-%d %H:%M:%S")
            _check_pattern(name)

    def read(self, text: str) -> int:
        """Return the time. Raises ValueError, with the formats, if none fits."""
        for name in self.formats:
            try:
                return _read(name, text)
            except (ValueError, OverflowError):
                continue
        tried = " or ".join(map(repr, self.formats))
        raise ValueError(f"{text[:80]!r} is not a time in the format {tried}")


def _check_pattern(pattern: str) -> None:
    written = _EPOCH.strftime(pattern)
    try:
        moment = datetime.strptime(written, pattern)  # noqa: DTZ007 - only whether it can be read
    except ValueError as error:
        raise TimeFormatError(f"{pattern!r} cannot be read by strptime: {error}") from error
    if moment.year != _EPOCH.year:
        raise TimeFormatError(f"{pattern!r} has no year")


def _read(name: str, text: str) -> int:
    if name == "iso":
        for zone in _ZONE_NAMES:
            text = text.removesuffix(zone)
        return _since_epoch(datetime.fromisoformat(text))
    per_ms = _PER_MS.get(name)
    if per_ms is None:
        return _since_epoch(datetime.strptime(text, name))  # noqa: DTZ007 - without a zone it is UTC
    if text.isdecimal():  # whole nanoseconds have more digits than a float
        return int(text) * per_ms if per_ms > 0 else int(text) // -per_ms
    return round(float(text) * per_ms if per_ms > 0 else float(text) / -per_ms)


def _since_epoch(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
