"""Longer history of events that a task asks for: its bounds in task.toml and in a manifest (§5.1)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPolicy:
    """The [history] table of task.toml: the events that a device keeps for the task. The first bound reached counts.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `history.days`.
    """

    days: int = 7
    rows: int = 10_000
    size_bytes: int = 4 << 20  # `bytes` in the table

    LIMITS: ClassVar[Mapping[str, tuple[str, int]]] = {
        "days": ("days", 366),
        "rows": ("rows", 1_000_000),
        "bytes": ("size_bytes", 256 << 20),
    }
    KEYS: ClassVar = tuple(LIMITS)

    def __post_init__(self) -> None:
        for key, (name, most) in self.LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ProtocolError(f"history.{key}", f"must be a whole number from 1 to {most}, is {shorten(value)}")

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the policy that a table describes; `to_json` is the inverse. An unknown key is refused."""
        if not isinstance(table, Mapping):
            raise ProtocolError("history", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("history", f"has an unknown key {shorten(key)}; known are {', '.join(cls.KEYS)}")
        return cls(**{cls.LIMITS[key][0]: value for key, value in table.items()})

    def to_json(self) -> dict[str, Any]:
        return {key: getattr(self, name) for key, (name, _) in self.LIMITS.items()}
