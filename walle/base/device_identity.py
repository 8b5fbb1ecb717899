"""Identity of a device: its id, and the generation of its key (docs/adr/0030-access-and-recovery.md).

The certificate of a device and its session token have both. An id that is enrolled again, or revoked, has a higher
generation from then on, so that one number for each such id says which keys are refused.
"""

import dataclasses
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

_URI = "urn:walle:device:"
MAX_GENERATION = 1 << 53


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """A device that has proven its key. `generation` counts the keys that this id has had, from 1."""

    device_id: str
    generation: int

    def to_uri(self) -> str:
        """Return the name in a certificate: a URI, because a common name holds 64 characters."""
        return f"{_URI}{self.generation}:{urllib.parse.quote(self.device_id, safe='')}"

    @classmethod
    def from_uri(cls, uri: str) -> Self | None:
        """Return the identity that `to_uri` wrote, None for any other name."""
        generation, colon, quoted = uri.removeprefix(_URI).partition(":")
        if not uri.startswith(_URI) or not colon or not quoted or not generation.isdecimal() or len(generation) > 16:
            return None
        return cls(urllib.parse.unquote(quoted), int(generation))


class CertifiedDevice(NamedTuple):
    """The device that a certificate names, and when the certificate ends, in seconds since the epoch."""

    identity: DeviceIdentity
    expires_s: float


def certified_device(certificate: Mapping[str, Any] | None) -> CertifiedDevice | None:
    """Return the device of a certificate that `ssl.SSLObject.getpeercert` gave, None if it has another name.

    TLS has checked the certificate's authority. A resumed session shows the certificate with which it began, whose
    end TLS does not check again.
    """
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    found = [DeviceIdentity.from_uri(name) for kind, name in names if kind == "URI"]
    if len(found) != 1 or found[0] is None:
        return None
    return CertifiedDevice(found[0], ssl.cert_time_to_seconds(certificate["notAfter"]))


class Revocations:
    """The lowest generation of each device that was revoked or enrolled again. `version` grows with each change."""

    def __init__(self, version: int = 0, lowest: Mapping[str, int] | None = None) -> None:
        self.version = version
        self._lowest = dict(lowest or {})

    def __len__(self) -> int:
        return len(self._lowest)

    @property
    def lowest(self) -> dict[str, int]:
        """The lowest generation by device."""
        return dict(self._lowest)

    def allows(self, identity: DeviceIdentity) -> bool:
        """Return whether this key of the device is not revoked."""
        return identity.generation >= self._lowest.get(identity.device_id, 0)

    def supersede(self, identity: DeviceIdentity) -> None:
        """Refuse the earlier keys of a device that has shown this one: the news of it may be on the way."""
        if identity.generation > 1:
            self.update(0, {identity.device_id: identity.generation})

    def update(self, version: int, lowest: Mapping[str, int]) -> None:
        """Add changes. An older one changes nothing: a generation never becomes valid again."""
        self.version = max(self.version, version)
        for device_id, generation in lowest.items():
            self._lowest[device_id] = max(generation, self._lowest.get(device_id, 0))
