"""Messages of secure aggregation as bytes: MessagePack lists of a kind and its fields, checked when read.

Each reader refuses another kind, another number of fields, another type and a length out of bounds, before it uses
anything. A reader says how many bytes it takes, so that a hostile body costs a few times that memory at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from walle.errors import PipelineError

NAME_BYTES: Final = 200  # limit of a device's name
VOUCHER_BYTES: Final = 4096  # limit of the evidence that a key is a device's
HEADER_BYTES: Final = 512  # bound of the bytes of a message beside its long fields


class MessageError(PipelineError):
    """A message of secure aggregation that is refused. `kind` is the expected one, `sender` who sent it, if known."""

    def __init__(self, kind: str, reason: str, sender: str = "") -> None:
        of = f" of device {sender!r}" if sender else ""
        super().__init__(f"secure aggregation, message {kind!r}{of}: {reason}")
        self.kind = kind
        self.sender = sender
        self.reason = reason


class RoundAbortedError(PipelineError):
    """A round of secure aggregation that ends without a sum. `stage` is where, `reason` why."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"secure aggregation stopped at {stage!r}: {reason}; no sum was computed")
        self.stage = stage
        self.reason = reason


def packed(kind: str, fields: Sequence[Any]) -> bytes:
    """Return a message as bytes."""
    return bytes(msgpack.packb([kind, *fields], use_bin_type=True))


def unpacked(kind: str, data: bytes, types: Sequence[type], most_bytes: int, sender: str = "") -> list[Any]:
    """Return the fields of a message of this kind.

    Raises:
        MessageError: the bytes are too many, are damaged, have another kind, or fields of other types.
    """
    if len(data) > most_bytes:
        raise MessageError(kind, f"{len(data)} bytes; at most {most_bytes} are read", sender)
    try:
        message = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise MessageError(kind, f"{len(data)} bytes that are not MessagePack: {error}", sender) from error
    if not isinstance(message, list) or not message or message[0] != kind:
        found = message[0] if isinstance(message, list) and message else type(message).__name__
        raise MessageError(kind, f"it is a message {str(found)[:40]!r}", sender)
    fields = message[1:]
    if [type(field) for field in fields] != list(types):
        found = ", ".join(type(field).__name__ for field in fields[: len(types) + 1])
        raise MessageError(kind, f"fields ({found}), not ({', '.join(one.__name__ for one in types)})", sender)
    return fields


def require_size(kind: str, field: str, data: bytes, size: int, sender: str = "") -> None:
    """Raise MessageError unless a field has this many bytes."""
    if len(data) != size:
        raise MessageError(kind, f"{field} has {len(data)} bytes, not {size}", sender)


def bitmap(members: set[int], size: int) -> bytes:
    """Return the bits of a set of numbers below `size`, bit 0 of byte 0 first."""
    bits = bytearray((size + 7) // 8)
    for member in members:
        bits[member >> 3] |= 1 << (member & 7)
    return bytes(bits)


def bitmap_members(kind: str, field: str, bits: bytes, size: int, sender: str = "") -> set[int]:
    """Return the numbers whose bits are set.

    Raises:
        MessageError: the bitmap has another length, or bits at or above `size`.
    """
    require_size(kind, field, bits, (size + 7) // 8, sender)
    members = {at for at in range(8 * len(bits)) if bits[at >> 3] >> (at & 7) & 1}
    if any(member >= size for member in members):
        raise MessageError(kind, f"{field} has bits beyond the {size} clients it may name", sender)
    return members
