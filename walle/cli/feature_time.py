"""Times that a person gives: a date, a date with a time, how long ago, or how long after."""

import re
from datetime import datetime

from walle.errors import ConfigError

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_AFTER = re.compile(r"\+(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_time(text: str, now_s: float) -> int:
    """Return milliseconds since the epoch of `90s`, `15m`, `2h`, `3d` (ago), or a date and time of ISO 8601.

    One without a time zone is in that of this machine.

    Raises:
        ConfigError: it is neither.
    """
    if ago := _AGO.fullmatch(text):
        return max(0, int((now_s - float(ago[1]) * _SECONDS[ago[2]]) * 1000))
    try:
        return max(0, int(datetime.fromisoformat(text).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"time {text!r} cannot be read; write how long ago, such as 15m, 2h or 3d, or 2026-11-22T10:00"
        ) from None


def parse_until(text: str) -> tuple[int, bool]:
    """Return (ms, True) of `+30m`, the time after an event, or (ms since the epoch, False) of ms or ISO 8601.

    A time without a time zone is in that of this machine.

    Raises:
        ConfigError: it is none of these.
    """
    if after := _AFTER.fullmatch(text):
        return int(float(after[1]) * _SECONDS[after[2]] * 1000), True
    if text.isascii() and text.isdigit():
        return int(text), False
    try:
        return max(0, int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)), False
    except (ValueError, OverflowError, OSError):
        what = "write how long after the last event, such as +90s, +30m or +2h, 2026-11-22T10:00, or milliseconds"
        raise ConfigError(f"time {text!r} cannot be read; {what} since the epoch") from None
