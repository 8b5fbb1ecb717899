"""Destination of a task's output: the [output] table of task.toml, and `output` of a manifest (§5.1)."""

import dataclasses
from enum import StrEnum
from typing import ClassVar

from walle.protocol.options import OptionTable, choice


class Destination(StrEnum):
    """The furthest place that the output of a task's runs gets to."""

    CLOUD = "cloud"  # stored on the device and uploaded
    DEVICE = "device"  # stored on the device, where tasks may query it
    APP = "app"  # given to the app's open result streams alone: neither stored nor uploaded


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy(OptionTable):
    """The [output] table of task.toml: where what the task returns goes. What it puts says so itself.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, `output.destination`.
    """

    SECTION: ClassVar = "output"

    destination: Destination = choice(
        Destination.CLOUD,
        Destination,
        '`"cloud"`: stored on the device, and uploaded; `"device"`: stored, for queries of this task and of those that'
        ' [read](#reads) it, never uploaded; `"app"`: neither',
        always_written=True,
    )
