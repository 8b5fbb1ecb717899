"""Partitions of the devices, and the sharing of them among the members of a consumer group."""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

PARTITIONS = 64
MAX_LEASE_S = 3600.0  # a lease that ends later is of a member whose clock was ahead: it is not waited for


def partition(device_id: str) -> int:
    """Return the partition of a device, 0 to PARTITIONS - 1."""
    return crc32(device_id.encode()) % PARTITIONS


class Lease(NamedTuple):
    """A partition of a group: the committed position, and the member that reads it until `until_ms`."""

    partition: int
    position: int
    member: str | None
    until_ms: int


def share_partitions(
    leases: Sequence[Lease], members: Collection[str], member: str, busy: Collection[int], now_ms: int
) -> set[int]:
    """Return the partitions that `member` has from now on: its fair share of them.

    It keeps those that it has up to its share and all of `busy`, and takes some without a member or whose lease has
    expired. It never takes one from a live member: that member releases what is above its own share.
    """
    ranked = sorted({*members, member})
    share = PARTITIONS // len(ranked) + (ranked.index(member) < PARTITIONS % len(ranked))
    own = [lease.partition for lease in leases if lease.member == member]
    own.sort(key=lambda number: number not in busy)  # busy ones first
    kept = {number for index, number in enumerate(own) if index < share or number in busy}
    for lease in leases:
        if len(kept) >= share:
            break
        if lease.member is None or (lease.member != member and not is_live(lease.until_ms, now_ms)):
            kept.add(lease.partition)
    return kept


def is_live(until_ms: int, now_ms: int) -> bool:
    """Return whether a lease until `until_ms` holds."""
    return now_ms < until_ms <= now_ms + MAX_LEASE_S * 1000
