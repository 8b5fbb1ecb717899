"""Draws of a release table: for each release under way, the share of devices that it covers; all of a decision at once.

What a draw means is `walle.trust.audience.share`, which devices compute too; the native core does the same for many
releases in one call (docs/adr/0008-targeting.md).
"""

import math
import struct
from collections.abc import Sequence

from walle.deploy.releases.release import Admission
from walle.engine_ext import _core
from walle.protocol import Audience
from walle.trust.audience import share

MAX_IN_GROUP = 255


def group_of(numbers: Sequence[int]) -> bytes:
    """Return draws of one task as `ReleaseDraws.first` takes them: the first that covers a device counts."""
    assert len(numbers) <= MAX_IN_GROUP
    last = len(numbers) - 1
    return struct.pack(f"={len(numbers)}I", *(number << 1 | (at == last) for at, number in enumerate(numbers)))


class ReleaseDraws:
    """Draws by their numbers, 0 for the first of `admissions`: the names of releases and whom these admit."""

    def __init__(self, admissions: Sequence[tuple[str, Admission]]) -> None:
        self._admissions = tuple(admissions)
        names = [name.encode(errors="surrogatepass") for name, _ in admissions]
        below = [min(math.ceil(one.share * Audience.PLACES), Audience.PLACES) for _, one in admissions]
        self._places = _core.Places(names, below)
        self._named = frozenset().union(*(one.devices for _, one in admissions))

    def first(self, device_id: str, groups: bytes) -> bytes:
        """Return for each group, as a byte, which of its draws first covers the device; their count where none does."""
        if device_id in self._named:
            return self.first_one_by_one(device_id, groups)
        try:
            raw = device_id.encode()
        except UnicodeEncodeError:
            raw = device_id.encode(errors="surrogatepass")
        return self._places.first(raw, groups)

    def first_one_by_one(self, device_id: str, groups: bytes) -> bytes:
        """Return what `first` returns, by `share`, for named devices too."""
        found = bytearray()
        at, is_covered = 0, False
        for number in struct.unpack(f"={len(groups) // 4}I", groups):
            is_covered = is_covered or self._covers(number >> 1, device_id)
            at += not is_covered
            if number & 1:
                found.append(at)
                at, is_covered = 0, False
        return bytes(found)

    def _covers(self, number: int, device_id: str) -> bool:
        name, admission = self._admissions[number]
        return covers(admission, name, device_id)


def covers(admission: Admission, release_id: str, device_id: str) -> bool:
    """Return whether a release under way is for a device of its policy."""
    if admission.share >= 1 or device_id in admission.devices:
        return True
    return admission.share > 0 and share(release_id, device_id) < admission.share
