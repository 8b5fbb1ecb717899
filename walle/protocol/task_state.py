"""State of a task between its runs: its version, and what a new version takes over from an older one (§5.1)."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten


class UpgradePolicy(enum.StrEnum):
    """The first state of a higher version: a copy of the older one, empty, or what `migrate` returns."""

    KEEP = "keep"
    CLEAR = "clear"
    MIGRATE = "migrate"


class FeaturesPolicy(enum.StrEnum):
    """The choice between features of older versions being returned by a higher version's queries, and not."""

    KEEP = "keep"
    CLEAR = "clear"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatePolicy:
    """The [state] table of task.toml, and `state` of a manifest.

    `version` is the version of the state's form, not the task's: versions of a task with the same number share one
    state. Where it grows, `on_upgrade` and `features` say what the new version takes over. Where it is smaller than
    the state's, after a rollback, the task has the state of that version again. docs/adr/0106-state-of-tasks.md has the
    reasons.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `state.version`.
    """

    version: int = 1
    on_upgrade: UpgradePolicy | None = None  # must be given from version 2 on
    features: FeaturesPolicy = FeaturesPolicy.KEEP

    MAX_VERSION: ClassVar = 2**31
    KEYS: ClassVar = ("version", "on_upgrade", "features")

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 1 <= self.version <= self.MAX_VERSION:
            what = f"must be a whole number from 1 to {self.MAX_VERSION}, is {shorten(self.version)}"
            raise ProtocolError("state.version", what)
        if self.version > 1 and self.on_upgrade is None:
            choices = ", ".join(UpgradePolicy)
            raise ProtocolError("state.on_upgrade", f"is missing; version {self.version} needs one of {choices}")

    @property
    def migrates(self) -> bool:
        return self.on_upgrade is UpgradePolicy.MIGRATE

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the policy that a table describes; `to_json` is the inverse. An unknown key is refused."""
        if not isinstance(table, Mapping):
            raise ProtocolError("state", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("state", f"has an unknown key {shorten(key)}; known are {', '.join(cls.KEYS)}")
        values = dict(table)
        for key, choices in (("on_upgrade", UpgradePolicy), ("features", FeaturesPolicy)):
            if key in values:
                if values[key] not in list(choices):
                    what = f"must be one of {', '.join(choices)}; is {shorten(values[key])}"
                    raise ProtocolError(f"state.{key}", what)
                values[key] = choices(values[key])
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = {"version": self.version, "features": str(self.features)}
        return table if self.on_upgrade is None else {**table, "on_upgrade": str(self.on_upgrade)}
