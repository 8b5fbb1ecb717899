"""Task parts (§6): a device's tasks in groups by the hash of their names, each known to the cloud by its digest.

A profile names its parts by digest, which are the same for every device with the same versions. A part that a gateway
does not know is sent once, in X-Walle-Have. So neither side's cost depends on the number of devices, and few variants
of a part exist although many releases are under way at once.
"""

import base64
import binascii
import dataclasses
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Self

from walle.protocol.fields import ProtocolError, canonical_json, parse_object, take_map

HAVE_HEADER = "X-Walle-Have"
MAX_HAVE_HEADER_BYTES = 6144  # proxies take 8 KB of a header, and the profile is beside it
MAX_HAVE_BYTES = 1 << 18  # unpacked
MAX_PARTS = 64
TASKS_OF_A_PART = 12  # mean tasks of a part, at most, while a device has fewer than MAX_PARTS times as many
_DIGEST_BYTES = 12
DIGEST_CHARS = 16
_PERSON = b"walle task part"


@dataclasses.dataclass(frozen=True)
class TaskPart:
    """Active versions of some tasks, and `refused`: for a task, the directive that its device will not carry out.

    A directive is named by its epoch and serial, such as `0.17`.
    """

    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        fields = {"r": dict(self.refused), "t": dict(self.tasks)}
        return canonical_json({key: value for key, value in fields.items() if value})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a part. Raises ProtocolError."""
        value = parse_object(data, HAVE_HEADER)
        for key in ("r", "t"):
            value.setdefault(key, {})
        return cls(take_map(value, "t", (str,), HAVE_HEADER), take_map(value, "r", (str,), HAVE_HEADER))


def part_digest(data: bytes) -> str:
    """Return the digest of a part's bytes: 96 bits of BLAKE2b, in URL-safe base64."""
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES, person=_PERSON).digest()
    return base64.urlsafe_b64encode(digest).decode()


def part_number(task: str, count: int) -> int:
    """Return the number of the part, of `count` (a power of two), that a task is in."""
    return hashlib.blake2b(task.encode(errors="replace"), digest_size=1, person=_PERSON).digest()[0] % count


def parts_of(tasks: Mapping[str, str], refused: Mapping[str, str]) -> list[bytes]:
    """Return the parts of a device's tasks in order, each as bytes; an empty one has none."""
    count = 1
    names = tasks.keys() | refused.keys()
    while count < MAX_PARTS and len(names) > count * TASKS_OF_A_PART:
        count *= 2
    parts: list[tuple[dict[str, str], dict[str, str]]] = [({}, {}) for _ in range(count)]
    for at, what in enumerate((tasks, refused)):
        for task, value in what.items():
            parts[part_number(task, count)][at][task] = value
    return [TaskPart(*part).to_bytes() if any(part) else b"" for part in parts]


def parts_to_header(parts: Sequence[bytes]) -> str:
    """Return X-Walle-Have with the first of these parts that fit: their bytes in lines, deflated, in base64."""
    count = len(parts)
    while count:
        header = base64.urlsafe_b64encode(zlib.compress(b"\n".join(parts[:count]), 9)).decode()
        if len(header) <= MAX_HAVE_HEADER_BYTES:
            return header
        count = max(min(count - 1, count * MAX_HAVE_HEADER_BYTES // len(header)), 0)
    return ""


def parts_from_header(header: bytes) -> list[bytes]:
    """Return the parts of X-Walle-Have, not yet parsed. Raises ProtocolError, also where it unpacks to too much."""
    if len(header) > MAX_HAVE_HEADER_BYTES:
        raise ProtocolError(HAVE_HEADER, f"{len(header)} bytes, more than {MAX_HAVE_HEADER_BYTES}")
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(base64.urlsafe_b64decode(header), MAX_HAVE_BYTES)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ProtocolError(HAVE_HEADER, f"is not deflated text in base64 ({error})") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ProtocolError(HAVE_HEADER, f"is cut short, or unpacks to more than {MAX_HAVE_BYTES} bytes")
    return data.split(b"\n", MAX_PARTS)
