"""Entries of a task's state, its top-level keys: times of their last write, expiry, and eviction at a bound (ADR 21).

An entry is written by a run after which its encoding differs, so that a value that is changed in place counts. Time is
that of the stream: the latest event that triggered a run whose state was stored, and an event that is more than JUMP_MS
before it sets it back, as it does for timers. All is computed from the stored state and the trigger, never from the
wall clock: a run that is repeated after a crash decides as the first one did.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Self

import msgpack

from walle.base import plain
from walle.base.clock import JUMP_MS
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

    An entry of a state that was stored without times is not in `written_ms`. `entries` are those of the state's data,
    as `split` returns them: a run is compared with them.
    """

    now_ms: int
    written_ms: Mapping[str, int]
    entries: Mapping[str, bytes] = dataclasses.field(repr=False, compare=False)

    def encode(self) -> bytes:
        """Return the times encoded: places of the entries in the state, and their ages."""
        places = {key: place for place, key in enumerate(self.entries)}
        ages_ms = [self.now_ms - ms for ms in self.written_ms.values()]
        return plain.encode([self.now_ms, [places[key] for key in self.written_ms], ages_ms])

    @classmethod
    def decode(cls, encoded: bytes, data: bytes) -> Self:
        """Return the times that `encode` encoded, of a state with this data.

        Raises:
            TypeError, ValueError: the bytes are not such times.
        """
        now_ms, places, ages_ms = plain.decode(encoded, strict=True)
        if not all(type(number) is int for number in (now_ms, *places, *ages_ms)):
            raise TypeError("times of a state's entries are not whole numbers")
        entries = split(data)
        keys = list(entries)
        if not all(0 <= place < len(keys) for place in places):
            raise ValueError("times of a state's entries name entries that it does not have")
        written_ms = {keys[place]: now_ms - age_ms for place, age_ms in zip(places, ages_ms, strict=True)}
        return cls(now_ms, written_ms, entries)


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
    if times is None:
        times, is_new = EntryTimes(ts_ms, {}, split(before)), True
    else:
        is_new = len(times.written_ms) < len(times.entries)
    now_ms = _now_ms(times, ts_ms)
    is_back = now_ms < times.now_ms
    gone = _expired(policy, times.written_ms, now_ms)
    if data == before and not (is_new or is_back or gone) and len(data) <= policy.max_bytes:
        return None
    old, new = dict(times.entries), split(data)
    for key in gone:
        del old[key]
    written_ms = dict(times.written_ms)
    for key in written_ms.keys() - new.keys():
        del written_ms[key]
    if is_back:
        written_ms = {key: min(ms, now_ms) for key, ms in written_ms.items()}
    writes = {key: now_ms for key, entry in new.items() if old.get(key) != entry}
    for key in writes:
        written_ms.pop(key, None)
    if is_new:
        written_ms |= {key: now_ms for key in new if key not in written_ms and key not in writes}
    written_ms |= writes
    return _within(policy, data, EntryTimes(now_ms, written_ms, new))


def after_upgrade(policy: StatePolicy, before: bytes, times: EntryTimes | None, data: bytes) -> Settled:
    """Return the first state of a higher version, made from the one `before`; entries that are equal keep their times.

    Raises:
        EntryTooLargeError: as `after_run`.
    """
    old, new = split(before), split(data)
    known = {} if times is None else times.written_ms
    written_ms = {key: ms for key, ms in known.items() if key in new and new[key] == old.get(key)}
    return _within(policy, data, EntryTimes(0 if times is None else times.now_ms, written_ms, new))


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


def _within(policy: StatePolicy, data: bytes, times: EntryTimes) -> Settled:
    """Return the state within its bound, without its oldest entries where the policy is to evict them."""
    if not policy.evicts or len(data) <= policy.max_bytes:
        return Settled(data, times, 0)
    entries, written_ms = dict(times.entries), dict(times.written_ms)
    for key, entry in entries.items():
        if 1 + len(entry) > policy.max_bytes:
            raise EntryTooLargeError(key, len(entry))
    order = [*written_ms, *(key for key in entries if key not in written_ms)]
    size_bytes, evicted = sum(map(len, entries.values())), 0
    while len(_head(len(entries))) + size_bytes > policy.max_bytes:
        key = order[evicted]
        size_bytes -= len(entries.pop(key))
        written_ms.pop(key, None)
        evicted += 1
    data = _head(len(entries)) + b"".join(entries.values())
    return Settled(data, EntryTimes(times.now_ms, written_ms, entries), evicted)


def _head(count: int) -> bytes:
    """Return the head of a map of `count` entries."""
    head: bytes = msgpack.Packer().pack_map_header(count)
    return head
