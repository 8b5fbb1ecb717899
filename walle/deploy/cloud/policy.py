"""Targeting: the devices that a release is for, and those of them that a gray step covers. Pure.

A `Policy` is the uniform policy of §6: a release for the devices of certain app versions. Grouping by attributes of
device and user extends `Policy`; callers use only `matches` and `group`.
"""

import dataclasses
import functools
import hashlib

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from walle.errors import DeployError
from walle.protocol import Profile

_SHARE_BITS = 53  # every value is exact in a float, and the greatest stays below 1


class PolicyError(DeployError):
    """An invalid rule. `rule` is its name, `text` its value."""

    def __init__(self, rule: str, text: str, why: str) -> None:
        super().__init__(rule, text, why)
        self.rule = rule
        self.text = text
        self.why = why

    def __str__(self) -> str:
        return f"policy.{self.rule}: {self.text[:200]!r} {self.why}"


@functools.lru_cache(maxsize=1024)
def _specifiers(text: str) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier as error:
        raise PolicyError("app_version", text, "is not a version range; write for example '>=10,<11'") from error


@functools.lru_cache(maxsize=1024)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


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
        _specifiers(self.app_version)

    @property
    def takes_all(self) -> bool:
        return not self.app_version

    def matches(self, profile: Profile) -> bool:
        """Return whether the release is for this device."""
        if not self.app_version:
            return True
        version = _version(profile.app_version)
        return version is not None and _specifiers(self.app_version).contains(version, prereleases=True)

    @staticmethod
    def group(profile: Profile) -> str:
        """Return a key: devices of equal keys match the same policies."""
        return profile.app_version

    def to_plain(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def share(release_id: str, device_id: str) -> float:
    """Return the device's place in the release, in [0, 1); a step of share s covers the places below s.

    It depends only on the device and the release: a device keeps its place, no device leaves when the share grows, no
    list of covered devices is stored, and each release orders devices differently.
    """
    digest = hashlib.blake2b(f"{release_id}\0{device_id}".encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> (64 - _SHARE_BITS)) / (1 << _SHARE_BITS)
