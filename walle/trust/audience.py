"""Audience of a directive: made by the cloud from a release's admission, checked by each device for itself. Pure.

The same functions choose on both sides (docs/adr/0004-trust.md).
"""

import functools
import hashlib
import math
from collections.abc import Iterable

from walle.base.version_range import VersionRangeError, in_range
from walle.protocol import Audience, Directive

_SHARE_BITS = Audience.PLACES.bit_length() - 1  # every value is exact in a float, and the greatest stays below 1


def share(release_id: str, device_id: str) -> float:
    """Return the device's place in the release, in [0, 1); a step of share s covers the places below s.

    It depends only on the device and the release: a device keeps its place, no device leaves when the share grows, no
    list of covered devices is stored, and each release orders devices differently.
    """
    return _place(_digest(release_id, device_id)) / Audience.PLACES


def admitted(
    release_id: str, covered: float, devices: Iterable[str], *, app_version: str, is_open: bool = True
) -> Audience:
    """Return the audience of a candidate: the share `covered` of its release, and named `devices`; nobody if closed.

    Devices that the share covers are not named.
    """
    below = math.ceil(covered * Audience.PLACES) if is_open else 0
    digests = [_digest(release_id, device_id) for device_id in devices] if is_open else []
    named = sorted({digest[: Audience.PREFIX_BYTES] for digest in digests if _place(digest) >= below})
    return Audience(app_version=app_version, below=below, devices=tuple(named))


def exclusion(directive: Directive, device_id: str, app_version: str) -> str:
    """Return why this device is not in the audience of `directive`, empty where it is."""
    audience = directive.audience
    try:
        if audience.app_version and not in_range(app_version, audience.app_version):
            return f"it is for app versions {audience.app_version[:100]}, this app is {app_version[:100]!r}"
        other = next((one for one in audience.but_not if not one or in_range(app_version, one)), None)
    except VersionRangeError:
        return "its range of app versions cannot be read"
    if other is not None:
        return f"it is not for app versions {other[:100] or '(all)'}, this app is {app_version[:100]!r}"
    if audience.below == Audience.PLACES:
        return ""
    digest = _digest(directive.release, device_id)
    if _place(digest) < audience.below or digest[: Audience.PREFIX_BYTES] in audience.devices:
        return ""
    named = f" and {len(audience.devices)} named ones" if audience.devices else ""
    of = f"release {directive.release[:100]!r}, where this one has place {_place(digest) / Audience.PLACES:.6f}"
    return f"it is for devices below place {audience.below / Audience.PLACES:.6g}{named} of {of}"


def is_named(directive: Directive, device_id: str) -> bool:
    """Return whether the directive is for this device by its name, as for those of a beta."""
    names = directive.audience.devices
    return bool(names) and _digest(directive.release, device_id)[: Audience.PREFIX_BYTES] in names


def _digest(release_id: str, device_id: str) -> bytes:
    digest = _begun(release_id).copy()
    digest.update(device_id.encode(errors="surrogatepass"))
    return digest.digest()


@functools.lru_cache(4096)
def _begun(release_id: str) -> "hashlib._Hash":
    """Return the hash after a release's part, which is half of the work for each device."""
    return hashlib.blake2b(f"{release_id}\0".encode(errors="surrogatepass"), digest_size=8)  # type: ignore[return-value]


def _place(digest: bytes) -> int:
    return int.from_bytes(digest) >> (64 - _SHARE_BITS)
