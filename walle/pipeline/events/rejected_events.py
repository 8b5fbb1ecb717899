"""Record of live events that could not be read, of bounded size: `rejected.jsonl` in a device's folder.

Each line is a JSON object: `time_ms`, `where`, `reason`, `size_bytes` and the event's first characters as `text`. Where
one call had more than MAX_OF_CALL of them, a line with `more` says how many are counted only.
"""

import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from walle.pipeline.events.event_batch import RejectedEvent

FILE = "rejected.jsonl"
_OLDER = "rejected.1.jsonl"  # the file before it
MAX_BYTES = 256 << 10  # limit of each of the two files
MAX_OF_CALL = 40  # recorded events of one call: less than MAX_BYTES with the escapes of JSON
MAX_REASON_CHARS = 500

_LOG = logging.getLogger(__name__)


class RejectedEvents:
    """The record in `folder`; `count` are the events that were set aside since it was made."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.count = 0
        self._folder = folder

    def add(self, rejected: Sequence[RejectedEvent], time_s: float) -> None:
        """Count the events and record the first ones. A file that cannot be written is logged."""
        if not rejected:
            return
        self.count += len(rejected)
        first = rejected[0]
        _LOG.warning(
            "%d live events could not be read and are set aside, the first (%s): %s",
            len(rejected),
            first.where,
            first.reason,
        )
        time_ms = int(time_s * 1000)
        rows: list[dict[str, Any]] = [
            {
                "time_ms": time_ms,
                "where": one.where,
                "reason": one.reason[:MAX_REASON_CHARS],
                "size_bytes": one.size_bytes,
                "text": one.text,
            }
            for one in rejected[:MAX_OF_CALL]
        ]
        if len(rejected) > MAX_OF_CALL:
            rows.append({"time_ms": time_ms, "more": len(rejected) - MAX_OF_CALL})
        try:
            self._write("".join(f"{json.dumps(row)}\n" for row in rows))
        except OSError as error:
            _LOG.warning("%s cannot be written (%s); make room on its disk", self._folder / FILE, error.strerror)

    def _write(self, lines: str) -> None:
        path = self._folder / FILE
        if path.exists() and path.stat().st_size + len(lines) > MAX_BYTES:
            path.replace(self._folder / _OLDER)
        with path.open("a", encoding="ascii") as file:
            file.write(lines)


def recorded(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield what is recorded in a device's folder, oldest first. A line that a crash cut is left out.

    Raises:
        OSError: a file cannot be read.
    """
    for name in (_OLDER, FILE):
        path = folder / name
        if not path.exists():
            continue
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row
