"""Destination of a task's output: the [output] table of task.toml, and `output` of a manifest (§5.1)."""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten


class Destination(StrEnum):
    """The furthest place that the output of a task's runs gets to."""

    CLOUD = "cloud"  # stored on the device and uploaded
    DEVICE = "device"  # stored on the device, where tasks may query it
    APP = "app"  # given to the app's open result streams alone: neither stored nor uploaded


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """The [output] table of task.toml: where what the task returns goes. What it puts says so itself."""

    destination: Destination = Destination.CLOUD

    KEYS: ClassVar = ("destination",)

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the policy that a table describes; `to_json` is the inverse. An unknown key is refused.

        Raises:
            ProtocolError: the table is wrong; `where` is the path of the field.
        """
        if not isinstance(table, Mapping):
            raise ProtocolError("output", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("output", f"has an unknown key {shorten(key)}; the only one is destination")
        if "destination" not in table:
            return cls()
        try:
            return cls(destination=Destination(table["destination"]))
        except ValueError as error:
            what = f"must be one of {', '.join(Destination)}, is {shorten(table['destination'])}"
            raise ProtocolError("output.destination", what) from error

    def to_json(self) -> dict[str, str]:
        return {key: str(getattr(self, key)) for key in self.KEYS}
