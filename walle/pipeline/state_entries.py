"""Entries of a task's state, its top-level keys: times of their last write, expiry, and eviction at a bound (ADR 219).

An entry is written by a run after which its encoding differs, so that a value that is changed in place counts. Time is
that of the stream: the latest event that triggered a run whose state was stored, and an event that is more than JUMP_MS
before it sets it back, as it does for timers. All is computed from the stored state and the trigger, never from the
wall clock: a run that is repeated after a crash decides as the first one did.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Self

import msgpack

from walle import plain
from walle.pipeline.timers import JUMP_MS
from walle.protocol import StatePolicy
from walle.protocol.fields import shorten

_MAX_NAMED = 3  # largest entries in an error


class EntryTooLargeError(ValueError):
    """An entry that is larger than the state may be. Carries `key` and `size_bytes`."""

    def __init__(self, key: str, size_bytes: int) -> None:
        super().__init__(f"entry {shorten(key)} has {size_bytes} bytes alone")
        self.key = key
        self.size_bytes = size_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class EntryTimes:
    """The time of each entry's last write, in the order of these writes, and the time of the stream at the latest.

    An entry of a state that was stored without times is not in `written_ms`.
    """

    now_ms: int
    written_ms: Mapping[str, int]

    def encode(self, data: bytes) -> bytes:
        """Return the times encoded, for a state with these bytes: places of its entries, and their ages."""
        places = {key: place for place, key in enumerate(split(data))}
        ages_ms = [self.now_ms - ms for ms in self.written_ms.values()]
        return plain.encode([self.now_ms, [places[key] for key in self.written_ms], ages_ms])

    @classmethod
    def decode(cls, encoded: bytes, data: bytes) -> Self:
        """Return the times that `encode` encoded. Raises ValueError or TypeError where it did not."""
        now_ms, places, ages_ms = plain.decode(encoded, strict=True)
        if not all(type(number) is int for number in (now_ms, *places, *ages_ms)):
            raise TypeError("times of a state's entries are not whole numbers")
        keys = list(split(data))
        if not all(0 <= place < len(keys) for place in places):
            raise ValueError("times of a state's entries name entries that it does not have")
        return cls(now_ms, {keys[place]: now_ms - age_ms for place, age_ms in zip(places, ages_ms, strict=True)})


class Settled(NamedTuple):
    """A state after a run or an upgrade: its bytes, the times of its entries, and how many were evicted."""

    data: bytes
    times: EntryTimes
    evicted: int


def split(data: bytes) -> dict[str, bytes]:
    """Return the entries of an encoded state, in its order: key → encoded key and value."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    entries: dict[str, bytes] = {}
    count = unpacker.read_map_header()
    begin = unpacker.tell()
    for _ in range(count):
        key = unpacker.unpack()
        unpacker.skip()
        end = unpacker.tell()
        entries[key] = data[begin:end]
        begin = end
    return entries


def entry_count(data: bytes) -> int:
    """Return the number of entries of an encoded state."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:5])  # the head of a map
    count: int = unpacker.read_map_header()
    return count


def largest(data: bytes) -> str:
    """Return the largest entries as text, with their bytes."""
    ordered = sorted(split(data).items(), key=lambda entry: -len(entry[1]))[:_MAX_NAMED]
    return ", ".join(f"{shorten(key)} ({len(entry)})" for key, entry in ordered)


def expired(policy: StatePolicy, times: EntryTimes | None, ts_ms: int) -> list[str]:
    """Return the entries that a run on an event of this time does not find any more."""
    if times is None or not policy.has_ttl:
        return []
    return _expired(policy, times.written_ms, _now_ms(times, ts_ms))


def after_run(policy: StatePolicy, before: bytes, times: EntryTimes | None, data: bytes, ts_ms: int) -> Settled | None:
    """Return the state that a run on an event of this time leaves, None if it is the one `before`.

    `data` is what the task left, encoded. An entry that has no time yet gets that of this run.

    Raises:
        EntryTooLargeError: one entry does not fit, so that eviction could not help.
    """
    now_ms = ts_ms if times is None else _now_ms(times, ts_ms)
    gone = [] if times is None else _expired(policy, times.written_ms, now_ms)
    is_timed = times is not None and len(times.written_ms) == entry_count(before) and now_ms >= times.now_ms
    if is_timed and data == before and not gone and len(data) <= policy.max_bytes:
        return None
    old, new = split(before), split(data)
    for key in gone:
        del old[key]
    known = {} if times is None else times.written_ms
    kept = {key for key, entry in old.items() if new.get(key) == entry}
    written_ms = {key: min(ms, now_ms) for key, ms in known.items() if key in kept}
    untimed = [key for key in new if key in kept and key not in written_ms]
    written_ms |= dict.fromkeys(untimed, now_ms)
    written_ms |= dict.fromkeys((key for key in new if key not in kept), now_ms)
    return _within(policy, new, data, EntryTimes(now_ms, written_ms))


def after_upgrade(policy: StatePolicy, before: bytes, times: EntryTimes | None, data: bytes) -> Settled:
    """Return the first state of a higher version, made from the one `before`; entries that are equal keep their times.

    Raises:
        EntryTooLargeError: as `after_run`.
    """
    old, new = split(before), split(data)
    known = {} if times is None else times.written_ms
    written_ms = {key: ms for key, ms in known.items() if key in new and new[key] == old.get(key)}
    return _within(policy, new, data, EntryTimes(0 if times is None else times.now_ms, written_ms))


def _now_ms(times: EntryTimes, ts_ms: int) -> int:
    """Return the time of the stream at a run on an event of this time."""
    is_late = times.now_ms - JUMP_MS <= ts_ms < times.now_ms
    return times.now_ms if is_late else ts_ms


def _expired(policy: StatePolicy, written_ms: Mapping[str, int], now_ms: int) -> list[str]:
    if not policy.has_ttl:
        return []
    if not policy.prefix_ttl_s:
        last_ms = now_ms - 1000 * policy.ttl_s
        return [key for key, ms in written_ms.items() if ms <= last_ms]
    return [key for key, ms in written_ms.items() if (ttl_s := policy.ttl_of(key)) and now_ms - ms >= 1000 * ttl_s]


def _within(policy: StatePolicy, entries: dict[str, bytes], data: bytes, times: EntryTimes) -> Settled:
    """Return the state within its bound, without its oldest entries where the policy is to evict them."""
    if not policy.evicts or len(data) <= policy.max_bytes:
        return Settled(data, times, 0)
    for key, entry in entries.items():
        if 1 + len(entry) > policy.max_bytes:
            raise EntryTooLargeError(key, len(entry))
    written_ms = dict(times.written_ms)
    order = [*written_ms, *(key for key in entries if key not in written_ms)]
    size_bytes, evicted = sum(map(len, entries.values())), 0
    while len(_head(len(entries))) + size_bytes > policy.max_bytes:
        key = order[evicted]
        size_bytes -= len(entries.pop(key))
        written_ms.pop(key, None)
        evicted += 1
    data = _head(len(entries)) + b"".join(entries.values())
    return Settled(data, EntryTimes(times.now_ms, written_ms), evicted)


def _head(count: int) -> bytes:
    """Return the head of a map of `count` entries."""
    head: bytes = msgpack.Packer().pack_map_header(count)
    return head
