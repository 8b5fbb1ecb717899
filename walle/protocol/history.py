"""Longer history of events that a task asks for: its bounds in task.toml and in a manifest (§5.1)."""

import dataclasses
from typing import ClassVar

from walle.protocol.options import OptionTable, number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPolicy(OptionTable):
    """The [history] table of task.toml: the events that a device keeps for the task. The first bound reached counts.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `history.days`.
    """

    SECTION: ClassVar = "history"

    days: int = number(7, 1, 366, "days of events", always_written=True)
    rows: int = number(10_000, 1, 1_000_000, "events", always_written=True)
    size_bytes: int = number(4 << 20, 1, 256 << 20, "bytes of events", key="bytes", always_written=True)
