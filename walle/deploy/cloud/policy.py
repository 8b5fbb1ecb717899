"""Targeting: the devices that a release is for. Pure. Those that a gray step covers: `walle.deploy.audience`.

A `Policy` is the uniform policy of §6: a release for the devices of certain app versions. Grouping by attributes of
device and user extends `Policy`; callers use only `matches` and `group`.
"""

import dataclasses

from walle.deploy.audience import is_in_range
from walle.errors import DeployError
from walle.protocol import Profile


class PolicyError(DeployError):
    """An invalid rule. `rule` is its name, `text` its value."""

    def __init__(self, rule: str, text: str, why: str) -> None:
        super().__init__(rule, text, why)
        self.rule = rule
        self.text = text
        self.why = why

    def __str__(self) -> str:
        return f"policy.{self.rule}: {self.text[:200]!r} {self.why}"


@dataclasses.dataclass(frozen=True)
class Policy:
    """The devices a release is for: those whose app version is in a PEP 440 range; an empty range takes every device.

    A device whose app version is not a version at all is in no range but the empty one. A pre-release such as
    `10.1rc1` is in a range when its place in the order of versions is.

    Raises:
        PolicyError: a rule is invalid.
    """

    app_version: str = ""

    def __post_init__(self) -> None:
        try:
            is_in_range("1", self.app_version)
        except ValueError as error:
            what = "is not a version range; write for example '>=10,<11'"
            raise PolicyError("app_version", self.app_version, what) from error

    @property
    def takes_all(self) -> bool:
        return not self.app_version

    def matches(self, profile: Profile) -> bool:
        """Return whether the release is for this device."""
        return is_in_range(profile.app_version, self.app_version)

    @staticmethod
    def group(profile: Profile) -> str:
        """Return a key: devices of equal keys match the same policies."""
        return profile.app_version

    def to_plain(self) -> dict[str, str]:
        return dataclasses.asdict(self)
