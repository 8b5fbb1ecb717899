"""Targeting: the devices that a release is for. Pure. Those that a gray step covers: `walle.trust.audience`.

A `Policy` is one of the three of §6: uniform (app versions, or every device), customised (a rule over attributes of
device and user), or device-specific (ids). Where several releases of a task are for a device, the most specific one
goes first, and of two alike the newer one: see `Policy.tier`.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Self

from walle.base.version_range import VersionRangeError, check_range, in_range
from walle.deploy.policies.attribute_schema import UPLOADED, Columns, ColumnType, Schema
from walle.deploy.policies.rule import Rule, RuleError, column_types, compile_rule
from walle.errors import DeployError
from walle.protocol import MAX_ID_CHARS, Profile

MAX_POLICY_DEVICES = 1000


class PolicyError(DeployError):
    """An invalid rule. `rule` is its name, `text` its value."""

    def __init__(self, rule: str, text: str, why: str) -> None:
        super().__init__(rule, text, why)
        self.rule = rule
        self.text = text
        self.why = why

    def __str__(self) -> str:
        return f"policy.{self.rule}: {self.text[:200]!r} {self.why}"


class Tier(enum.IntEnum):
    """Kind of a policy; of the releases that are for a device, those of a higher tier go first."""

    UNIFORM = 0
    CUSTOMISED = 1
    DEVICE_SPECIFIC = 2

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The devices a release is for: those for which everything that is given holds; every device if nothing is.

    `app_version` is a PEP 440 range. A device whose app version is not a version at all is in no range. A pre-release
    such as `10.1rc1` is in a range when its place in the order of versions is. `rule` is a CEL expression over
    attributes (`walle.deploy.policies.rule`); `columns` are those that it names with their types, which `typed` fills
    in once, so that a later change of the declared attributes changes no release. `devices` are ids.

    Raises:
        PolicyError: the range or the list is invalid. The rule is checked by `typed`.
    """

    app_version: str = ""
    rule: str = ""
    columns: Columns = ()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            check_range(self.app_version)
        except VersionRangeError as error:
            what = "is not a version range; write for example '>=10,<11'"
            raise PolicyError("app_version", self.app_version, what) from error
        if len(self.devices) > MAX_POLICY_DEVICES:
            what = f"are too many; {MAX_POLICY_DEVICES} is the limit. Name more devices by an attribute and a rule"
            raise PolicyError("devices", f"{len(self.devices)} ids", what)
        for device_id in self.devices:
            if not 0 < len(device_id) <= MAX_ID_CHARS:
                raise PolicyError("devices", device_id, f"is not the id of a device: 1 to {MAX_ID_CHARS} characters")

    @property
    def takes_all(self) -> bool:
        return not (self.app_version or self.rule or self.devices)

    @property
    def tier(self) -> Tier:
        if self.devices:
            return Tier.DEVICE_SPECIFIC
        return Tier.CUSTOMISED if self.rule else Tier.UNIFORM

    def typed(self, schema: Schema) -> Self:
        """Return the policy with the columns of its rule, and each of its devices once, in order.

        So a release for the same devices is of the same policy, however they are listed.

        Raises:
            RuleError: the rule is invalid, or names an attribute that the schema does not declare.
        """
        rule = self.rule.strip()
        columns = column_types(rule, schema) if rule else ()
        return dataclasses.replace(self, rule=rule, columns=columns, devices=tuple(sorted(set(self.devices))))

    @property
    def needs_uploaded(self) -> bool:
        """Return whether the rule asks for uploaded attributes."""
        return any(name.startswith(UPLOADED) for name, _ in self.columns)

    def compiled(self) -> Rule:
        """Return the compiled rule. Raises RuleError where it is not valid for `columns`."""
        return compile_rule(self.rule, self.columns)

    def matches(self, profile: Profile) -> bool:
        """Return whether the release is for this device. A rule that is not valid any more takes no device."""
        if self.devices and profile.device_id not in self.devices:
            return False
        if self.app_version and not in_range(profile.app_version, self.app_version):
            return False
        try:
            return not self.rule or self.compiled().matches(profile)
        except RuleError:
            return False

    def to_plain(self) -> dict[str, Any]:
        """Return the policy as JSON-ready values, `app_version` and what else is given."""
        plain: dict[str, Any] = {"app_version": self.app_version}
        if self.rule:
            plain |= {"rule": self.rule, "columns": {name: kind.value for name, kind in self.columns}}
        if self.devices:
            plain["devices"] = list(self.devices)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the policy of `to_plain`; one of an older walle has an `app_version` only."""
        columns = tuple((name, ColumnType(kind)) for name, kind in plain.get("columns", {}).items())
        return cls(plain.get("app_version", ""), plain.get("rule", ""), columns, tuple(plain.get("devices", ())))
