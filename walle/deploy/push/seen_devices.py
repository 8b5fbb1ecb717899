"""Devices that a gateway has seen: the latest ones with their profiles, and those to list since the last time."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from walle.deploy.fleet.device_changes import MAX_SIGHTING_BYTES
from walle.deploy.push.known_parts import KnownParts
from walle.deploy.push.known_profiles import KnownProfile
from walle.protocol import Attribute, Profile

MAX_SEEN = 16_384  # devices between two calls of `SeenDevices.take`
MAX_SEEN_BYTES = 32 << 20  # size of their profiles, of 2,700 devices with 348 tasks
_FRAME_BYTES = 20  # punctuation of a full profile: ,"t":{},"x":}


class SeenDevices:
    """The latest `most_recent` devices, and within bounds those that sent a profile since the last `take`.

    `parts` are the tasks of devices with short profiles. `seen(device_id)` and `recent(device_id)` return the profile
    with which a device was noted, None for another device: where both are the one that it sends now, `note` does
    nothing.
    """

    def __init__(self, parts: KnownParts, most_recent: int) -> None:
        self.unseen = 0  # profiles that `take` does not have, because too many came since
        self._parts = parts
        self._recent: OrderedDict[str, KnownProfile] = OrderedDict()
        self._most_recent = most_recent
        self._seen: dict[str, KnownProfile] = {}
        # Of every request, which a method around them would slow down.
        self.seen = self._seen.get
        self.recent = self._recent.get
        self._seen_bytes = 0
        self._has_seen = asyncio.Event()

    def note(self, device_id: str, sent: KnownProfile) -> None:
        """Take note of a device that sent a profile, within bounds: nobody may call `take`."""
        if self._seen.get(device_id) is not sent:
            self._add(device_id, sent)
        if self._recent.get(device_id) is not sent:
            self._recent[device_id] = sent
            self._recent.move_to_end(device_id)
            if len(self._recent) > self._most_recent:
                self._recent.popitem(last=False)

    def _add(self, device_id: str, sent: KnownProfile) -> None:
        before = self._seen.get(device_id)
        size_bytes = self._seen_bytes + len(sent.raw) - (len(before.raw) if before is not None else 0)
        if size_bytes > MAX_SEEN_BYTES or (before is None and len(self._seen) >= MAX_SEEN):
            self.unseen += 1
            return
        self._seen[device_id] = sent
        self._seen_bytes = size_bytes
        self._has_seen.set()

    def profile(self, device_id: str) -> Profile | None:
        """Return what a device last reported about itself, without its tasks; None if it is not a recent one."""
        sent = self._recent.get(device_id)
        return None if sent is None else sent.of_device(device_id)

    def profiles(self) -> Iterator[Profile]:
        """Return the profiles of the latest devices, without tasks, by their last change, the newest first."""
        return (sent.of_device(device_id) for device_id, sent in reversed(self._recent.items()))

    async def wait(self) -> None:
        """Return once a device has sent a profile since the last `take`."""
        await self._has_seen.wait()

    def take(self) -> dict[str, bytes]:
        """Return the latest profile of each device that sent one since the last call, as a full profile's header.

        That of a device with a short profile has those of its tasks that are known, as many as fit in
        MAX_SIGHTING_BYTES, which is more than a device may send.
        """
        seen, self._seen, self._seen_bytes = self._seen, {}, 0
        self.seen = self._seen.get
        self._has_seen.clear()
        texts: dict[str, str] = {}  # texts of parts: thousands of devices share a few parts, each in another list
        found: dict[str, bytes] = {}
        size_bytes = 0
        for device_id, sent in seen.items():
            header = sent.raw if sent.profile is not None else self._full_header(device_id, sent, texts)
            size_bytes += len(header)
            if size_bytes > MAX_SEEN_BYTES:
                self.unseen += len(seen) - len(found)
                break
            found[device_id] = header
        return found

    def _full_header(self, device_id: str, sent: KnownProfile, texts: dict[str, str]) -> bytes:
        head = _object({"a": sent.app_version, "d": device_id})[:-1]
        attributes = _object(sent.attributes)
        tasks: list[str] = []
        room = MAX_SIGHTING_BYTES - len(head) - len(attributes) - _FRAME_BYTES
        for digest in sent.parts:
            text = texts.get(digest)
            if text is None:
                part = self._parts.peek(digest) if digest else None
                text = texts[digest] = _object(part.tasks)[1:-1] if part is not None else ""
            if text and len(text) < room:
                tasks.append(text)
                room -= len(text) + 1
        return f'{head},"t":{{{",".join(tasks)}}},"x":{attributes}}}'.encode(errors="replace")


def _object(fields: Mapping[str, Attribute]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
