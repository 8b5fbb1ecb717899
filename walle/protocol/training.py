"""Training of a task on its device, in the background: when it runs, and what it may use (§4.2)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from walle.protocol.fields import shorten
from walle.protocol.options import OptionTable, number, option
from walle.protocol.push import Attribute

_MAX_CONDITIONS = 16


def _check_when(value: object) -> str:
    if value is None:
        return "is missing: give attributes of the device, such as when = { charging = true }, or {} for always"
    if not isinstance(value, Mapping) or len(value) > _MAX_CONDITIONS:
        kind = f"a table of {_MAX_CONDITIONS} attributes at most, such as {{ charging = true }}"
        return f"must be {kind}, is {shorten(value)}"
    for name, wanted in value.items():
        if not isinstance(name, str) or not name or type(wanted) not in (str, bool, int):
            return f"must have a text, a whole number, true or false for {shorten(name)}, has {shorten(wanted)}"
    return ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPolicy(OptionTable):
    """The [training] table of task.toml, and `training` of a manifest: the device calls the task's `train(ctx)`.

    One call is one step, which is stored as a whole or not at all. Calls follow one another while the device has the
    attributes `when`, so that they take `cpu_percent` of a core, until `train` returns a false value; then after
    `rest_s` again.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `training.cpu_percent`.
    """

    SECTION: ClassVar = "training"
    MAX_BYTES: ClassVar = 16 << 20  # each step writes all of it

    when: Mapping[str, Attribute] = option(
        None,
        "the attributes that the device must have, such as `{ charging = true, idle = true }`; `{}`: always",
        _check_when,
        shown_default="needed",
        always_written=True,
        to_json=lambda value: dict(value or {}),
    )
    cpu_percent: int = number(25, 1, 100, "share of one core")
    step_ms: int = number(2_000, 1, 60_000, "time limit of one step")
    memory_mb: int = number(64, 1, 1_024, "memory limit of `train`, which has a VM beside that of the other phases")
    version: int = number(1, 1, 2**31, "version of the checkpoint's form; with another one training begins again")
    max_bytes: int = number(1 << 20, 1 << 10, MAX_BYTES, "bound on the encoded checkpoint; 1,024 to 16,777,216")
    rest_s: int = number(3_600, 1, 31 * 24 * 3600, "seconds after a step that wants no other, or failed")

    def is_met(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether a device with these attributes may train now."""
        return all(name in attributes and attributes[name] == wanted for name, wanted in self.when.items())
