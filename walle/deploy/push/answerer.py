"""The push answer (§6): the profile comes with the device's business requests, the answer goes with the responses.

`WallePush` adds it to any ASGI app; `Answerer` holds the release table and caches profiles by the raw header, and
decisions by the digests in it, so that an answer to an up-to-date device is one look-up.
"""

import asyncio
import collections
import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from walle.base.asgi import ANSWERED, ASGIApp, Message, Receive, Scope, Send
from walle.deploy.fleet.device_changes import MAX_SIGHTING_BYTES
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.uploaded_attributes import UploadedTables
from walle.deploy.push.known_parts import KnownParts
from walle.deploy.push.profile_parser import parse_short
from walle.deploy.push.pull_budget import PullBudget
from walle.deploy.releases.decision import NOTHING, Decision, Due, Place, cut
from walle.deploy.releases.table import MAX_GROUPS, ReleaseTable
from walle.errors import DeployError
from walle.protocol import (
    DEVICE_HEADER,
    HAVE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Attribute,
    Directive,
    Profile,
    ProtocolError,
    TaskPart,
    canonical_json,
    part_digest,
    parts_from_header,
)
from walle.protocol.traces import TRACE_HEADER

ERROR_HEADER = "X-Walle-Error"

type Headers = tuple[tuple[bytes, bytes], ...]
type IdentifyDevice = Callable[[bytes | None], str]
"""`identify(X-Walle-Device)` returns the id of the device whose session this is, or raises a DeployError."""

_LOG = logging.getLogger(__name__)
_PROFILE = PROFILE_HEADER.lower().encode()
_DEVICE = DEVICE_HEADER.lower().encode()
_HAVE = HAVE_HEADER.lower().encode()
_TASKS = TASKS_HEADER.lower().encode()
_TRUST = TRUST_HEADER.lower().encode()
_TRACE = TRACE_HEADER.lower().encode()
_ERROR = ERROR_HEADER.lower().encode()
# No shared cache may give one device's answer to another.
_VARY = (b"vary", f"{PROFILE_HEADER}, {DEVICE_HEADER}".encode())
_ENTRY_OVERHEAD_BYTES = 1500
_FRAME_BYTES = 20  # rest of a full profile: ,"t":{},"x":}
MAX_DECIDED = 1 << 18  # decisions on parts and on whole profiles, and the directives in them, for all groups of devices
_DIRECTIVE_BYTES = 120  # size of a directive in a decision
_NO_TASKS = TaskPart()
MAX_SEEN = 16_384  # devices between two calls of `Answerer.take_seen`
MAX_SEEN_BYTES = 32 << 20  # size of their profiles: 2,700 devices with 348 tasks
_MAX_ERROR_CHARS = 300


class _Sent:
    """A profile that was sent: `matching` are the policies that take devices of it, as bits of the table.

    A short one has `parts`, and is of whatever device sends it. A full one has `profile`, of its device.
    """

    profile: Profile | None = None
    decision = NOTHING
    policies = -1  # policies for which `decision` was made
    sender: str | None = None  # the one device that has sent it, since then; None for several
    parts: tuple[str, ...] = ()
    place = ""
    size_bytes = 0  # size in the cache, with the decision

    def __init__(self, raw: bytes, app_version: str, attributes: Mapping[str, Attribute], matching: int) -> None:
        self.raw = raw
        self.app_version = app_version
        self.attributes = attributes
        self.matching = matching

    def of_device(self, device_id: str) -> Profile:
        """Return the profile of a device that sent this, without tasks."""
        return Profile(device_id, self.app_version, self.attributes)


class _Decided(NamedTuple):
    decision: Decision
    sender: str | None  # the one device that has named the part, None for several


type _Group = list[dict[str, _Decided]]
"""The decisions of one group of devices: for each part, by its digest."""


class Answerer:
    """Computes response headers from profile headers. One event loop; `swap` takes effect at the next call.

    Short profiles are answered by the digests of their parts, which devices with the same versions have in common; a
    part that is not in `parts_bytes` of known ones is asked for. An answer of more than `max_answer_bytes` is cut
    (`walle.deploy.releases.decision.cut`); a device with a short profile sends the place where the next one continues,
    for others that is random. Pulls are within the `budget`, if there is one. With a `trace_ratio` devices are asked
    for the times of that share of their installs and runs.
    """

    def __init__(
        self,
        table: ReleaseTable | None = None,
        *,
        cache_bytes: int = 64 << 20,
        parts_bytes: int = 64 << 20,
        max_answer_bytes: int = 8192,
        recent_devices: int = 4096,
        budget: PullBudget | None = None,
        random_source: random.Random | None = None,
        trace_ratio: float = 0.0,
    ) -> None:
        self.table = table or ReleaseTable()
        self._trace_ratio = trace_ratio
        self.stamp = self._stamp()  # for every answer to a profile
        self.on_directives: Callable[[str, Sequence[Directive]], None] | None = None  # device and directives it gets
        self._uploaded = UploadedTables()
        self.repeated = 0  # profiles of which the same header was answered before
        self.fresh = 0  # profiles that were parsed
        self.broken = 0
        self.foreign = 0  # profiles of another device than the one that sent them
        self.asked = 0  # short profiles with parts that were not known
        self.answered = 0  # fresh profiles whose answer held directives
        self.budget = budget
        self._random = random_source or random.Random()
        # Ordered: the first key of a dict is found by a search through what was deleted before it.
        self._cache: collections.OrderedDict[bytes, _Sent] = collections.OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes
        self._parts = KnownParts(parts_bytes)
        self._groups: dict[tuple[int, int], _Group] = {}  # by policies and count of parts
        self._decided = 0  # decisions in all groups, and joined ones
        self._joined: dict[tuple[int, tuple[str, ...]], _Decided] = {}  # joined decisions for all parts of a profile
        self._max_answer_bytes = max_answer_bytes
        self._encoded: dict[tuple[int, ...], Headers] = {}  # identities of the table's directives → their encoding
        self._texts: dict[int, str] = {}  # identity of a directive → its JSON
        self._recent: collections.OrderedDict[str, _Sent] = collections.OrderedDict()
        self._recent_devices = recent_devices
        self._seen: dict[str, _Sent] = {}
        self._seen_bytes = 0
        self._has_seen = asyncio.Event()
        self.unseen = 0  # profiles that `take_seen` does not have, because too many came since

    def swap(self, table: ReleaseTable) -> None:
        """Set the table for answers; one that is older than the current table is ignored."""
        if table.generation < self.table.generation:
            return
        if table.rows == self.table.rows:  # only a later timestamp: the cached answers hold
            self.table = self.table.restamped(table.generation, table.timestamp)
            self.stamp = self._stamp()
            return
        self.table = table
        self.stamp = self._stamp()
        self._cache.clear()
        self._cached_bytes = 0
        self._forget_groups()
        self._encoded.clear()
        self._texts.clear()

    def _stamp(self) -> Headers:
        trust = ((_TRUST, self.table.timestamp.encode()),) if self.table.timestamp else ()
        return (*trust, (_TRACE, str(self._trace_ratio).encode())) if self._trace_ratio else trust

    def forget(self) -> None:
        """Take the next table whatever its generation is; until then the present one is still answered."""
        self.table = self.table.restamped(-1, self.table.timestamp)

    def swap_uploaded(self, uploaded: UploadedTables) -> None:
        """Set the uploaded attributes for answers, from the next call on."""
        self._uploaded = uploaded

    def join_uploaded(self, profile: Profile) -> Profile:
        """Return a profile with what was uploaded of it."""
        return self._uploaded.join(profile)

    def headers(self, raw: bytes, sender: str, have: bytes | None = None) -> Headers:
        """Return the response headers for a raw profile header; none where the device is up to date.

        `have` is X-Walle-Have of the same request. A header that cannot be read, or the profile of another device than
        the `sender`, gets an X-Walle-Error header with the reason.
        """
        sent = self._cache.get(raw)
        is_fresh = sent is None
        if sent is None:
            try:
                sent = self._read(raw)
            except ProtocolError as error:
                self.broken += 1
                return ((_ERROR, _header_text(str(error))),)
        if sent.profile is not None and sent.profile.device_id != sender:
            return self._refuse_foreign(sent.profile.device_id, sender)
        if is_fresh:
            self.fresh += 1
            self._remember(sent)
        else:
            self.repeated += 1
        if self._seen.get(sender) is not sent:
            self._note(sender, sent)
        if self._recent.get(sender) is not sent:
            self._set_recent(sender, sent)
        unknown: list[int] = []
        policies = sent.matching & self.table.index.by_device(sender)
        if policies & self.table.index.uploaded:
            policies = self.table.index.by_uploaded(self._uploaded.join(sent.of_device(sender)), policies)
        if policies == sent.policies:
            decision = sent.decision
            if sent.sender is not None and sent.sender != sender:
                self._share(sent, policies, sender)
        elif sent.profile is not None:
            decision = self._decide_full(sent, sent.profile, policies)
        else:
            try:
                decision, unknown = self._decide_short(sent, policies, sender, have)
            except ProtocolError as error:
                self.broken += 1
                return ((_ERROR, _header_text(str(error))),)
        if decision is NOTHING and not unknown:
            return ()
        due = decision.due(sender, self.table.draws)
        if not (due.urgent or due.ordinary or unknown):
            return ()
        answer = self._answer(due, sent, sender, unknown)
        self.answered += is_fresh and bool(answer)
        return answer

    def _read(self, raw: bytes) -> _Sent:
        by_attributes = self.table.index.by_attributes
        short = parse_short(raw)
        if short is not None:
            sent = _Sent(raw, short.a, short.x, by_attributes(short.a, short.x))
            sent.parts = short.p
            if short.n:
                sent.place = short.n
            return sent
        try:
            profile = Profile.from_header(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ProtocolError(PROFILE_HEADER, str(error)) from error
        sent = _Sent(
            raw, profile.app_version, profile.attributes, by_attributes(profile.app_version, profile.attributes)
        )
        sent.profile = profile
        return sent

    def _refuse_foreign(self, device_id: str, sender: str) -> Headers:
        self.foreign += 1
        return (
            (_ERROR, _header_text(f"the profile is of device {device_id[:100]!r}, the session of {sender[:100]!r}")),
        )

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _decide_full(self, sent: _Sent, profile: Profile, policies: int) -> Decision:
        (steps,) = self.table.steps(policies, 1)
        return self._settle(sent, policies, Decision.of(steps, profile.tasks, {}))

    def _decide_short(self, sent: _Sent, policies: int, sender: str, have: bytes | None) -> tuple[Decision, list[int]]:
        """Return the decision on the parts that are known, and the numbers of the others. Raises ProtocolError."""
        key = policies, sent.parts
        joined = self._joined.get(key)
        if joined is not None and (joined.sender is None or joined.sender == sender):
            return self._settle(sent, policies, *joined), []
        count = len(sent.parts)
        group = self._groups.get((policies, count))
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._forget_groups()
            group = self._groups[policies, count] = [{} for _ in range(count)]
        found: list[Decision] = []
        unknown: list[int] = []
        for number, (digest, decided) in enumerate(zip(sent.parts, group, strict=True)):
            known = decided.get(digest)
            if known is None:
                unknown.append(number)
                continue
            if known.sender != sender and known.sender is not None:
                self._parts.get(digest, sender)  # the part is kept longer now
                decided[digest] = _Decided(known.decision, None)
            if known.decision is not NOTHING:
                found.append(known.decision)
        if unknown:
            unknown = self._decide_parts(sent, policies, sender, have, group, unknown, found)
        decision = Decision.joined(found) if found else NOTHING
        if unknown:
            self.asked += 1
        else:
            self._count(decision)
            self._joined[key] = made = _Decided(decision, sender if joined is None else None)
            self._settle(sent, policies, *made)
        return decision, unknown

    def _settle(self, sent: _Sent, policies: int, decision: Decision, sender: str | None = None) -> Decision:
        """Set the decision on a profile, and return it; its size counts in the cache."""
        sent.policies, sent.decision, sent.sender = policies, decision, sender
        if self._cache.get(sent.raw) is sent:
            self._cached_bytes -= sent.size_bytes
            del self._cache[sent.raw]
            self._remember(sent)
        return decision

    def _count(self, decision: Decision) -> None:
        """Count a decision that is about to be kept; where there are too many, forget all others."""
        size = 1 + decision.size
        if self._decided + size > MAX_DECIDED:
            self._forget_groups()
        self._decided += size

    def _share(self, sent: _Sent, policies: int, sender: str) -> None:
        """Keep the parts of a profile longer from now on, since several devices have it."""
        self._decide_short(sent, policies, sender, None)
        sent.sender = None

    def _decide_parts(
        self,
        sent: _Sent,
        policies: int,
        sender: str,
        have: bytes | None,
        group: _Group,
        missing: list[int],
        found: list[Decision],
    ) -> list[int]:
        """Add the decisions on these parts to `found`; return the numbers of those that are not known."""
        if have is not None:
            named = {sent.parts[number] for number in missing}
            for data in parts_from_header(have):
                if part_digest(data) in named:
                    self._parts.add(data, sender)
        plans = self.table.steps(policies, len(sent.parts))
        unknown = []
        for number in missing:
            digest = sent.parts[number]
            part = self._parts.get(digest, sender) if digest else _NO_TASKS
            if part is None:
                unknown.append(number)
                continue
            decision = Decision.of(plans[number], part.tasks, part.refused)
            self._count(decision)
            group[number][digest] = _Decided(decision, sender if digest else None)
            if decision is not NOTHING:
                found.append(decision)
        return unknown

    def _forget_groups(self) -> None:
        self._groups.clear()
        self._joined.clear()
        self._decided = 0

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, due: Due, sent: _Sent, sender: str, unknown: list[int]) -> Headers:
        wait_s = 0
        if sent.profile is None:
            place = Place.from_text(sent.place) if sent.place else Place()
            chosen, following = cut(due, place, self._size, self._max_answer_bytes)
            chosen, wait_s = self._admitted(chosen, due, sender)
            if self.on_directives is not None:
                self.on_directives(sender, chosen)
            if following is not None or unknown or wait_s:
                fields = [f'"place":{json.dumps(following.to_text())}'] if following is not None else []
                fields.append(f'"tasks":[{",".join(map(self._text, chosen))}]')
                fields += [f'"unknown":{unknown}'] if unknown else []
                fields += [f'"wait_s":{wait_s}'] if wait_s else []
                return (_TASKS, f"{{{','.join(fields)}}}".encode()), _VARY
        else:
            chosen, following = cut(due, Place(), self._size, self._max_answer_bytes)
            if following is not None:  # an older device cannot say where the last answer ended
                first, then = (self._random.choice(one).task if one else "" for one in due)
                place = Place(first, then, self._random.random() < 0.5)
                chosen, _ = cut(due, place, self._size, self._max_answer_bytes)
            chosen, _ = self._admitted(chosen, due, sender)
            if self.on_directives is not None:
                self.on_directives(sender, chosen)
        return self._encode(chosen) if chosen else ()

    def _admitted(self, chosen: list[Directive], due: Due, sender: str) -> tuple[list[Directive], int]:
        """Return the directives of an answer that the pull budget admits, and after how many seconds it has others."""
        if self.budget is None or not due.ordinary:
            return chosen, 0
        urgent = frozenset(map(id, due.urgent))
        ordinary, wait_s = self.budget.admit(sender, tuple(one for one in chosen if id(one) not in urgent))
        return [*(one for one in chosen if id(one) in urgent), *ordinary], wait_s

    def _encode(self, directives: Sequence[Directive]) -> Headers:
        key = tuple(map(id, directives))
        known = self._encoded.get(key)
        if known is None:
            known = ((_TASKS, f"[{','.join(map(self._text, directives))}]".encode()), _VARY)
            if len(self._encoded) >= 1024:
                self._encoded.clear()
            self._encoded[key] = known
        return known

    def _text(self, directive: Directive) -> str:
        text = self._texts.get(id(directive))
        if text is None:
            text = self._texts[id(directive)] = canonical_json(directive.to_json()).decode()
        return text

    def _size(self, directive: Directive) -> int:
        return len(self._text(directive)) + 1

    def _remember(self, sent: _Sent) -> None:
        sent.size_bytes = len(sent.raw) + _ENTRY_OVERHEAD_BYTES + _DIRECTIVE_BYTES * sent.decision.size
        while self._cache and self._cached_bytes + sent.size_bytes > self._cache_bytes:
            self._cached_bytes -= self._cache.popitem(last=False)[1].size_bytes
        self._cache[sent.raw] = sent
        self._cached_bytes += sent.size_bytes

    # --- devices that were seen ---------------------------------------------------------------------------------------

    def note_elsewhere(self, device_id: str, raw: bytes) -> bool:
        """Take note of a device that sent this full profile to another gateway; return whether it is one of it."""
        try:
            sent = self._read(raw)
        except ProtocolError:
            return False
        if sent.profile is None or sent.profile.device_id != device_id:
            return False
        self._note(device_id, sent)
        self._set_recent(device_id, sent)
        return True

    def recent_profile(self, device_id: str) -> Profile | None:
        """Return what a device last reported about itself, without its tasks; None if it is not a recent one."""
        sent = self._recent.get(device_id)
        return None if sent is None else sent.of_device(device_id)

    def _set_recent(self, device_id: str, sent: _Sent) -> None:
        self._recent[device_id] = sent
        self._recent.move_to_end(device_id)
        if len(self._recent) > self._recent_devices:
            self._recent.popitem(last=False)

    async def wait_seen(self) -> None:
        """Return once a device has sent a profile since the last `take_seen`."""
        await self._has_seen.wait()

    def take_seen(self) -> dict[str, bytes]:
        """Return the latest profile of each device that sent one since the last call, as a full profile's header.

        That of a device with a short profile has those of its tasks that are known, as many as fit in
        MAX_SIGHTING_BYTES, which is more than a device may send.
        """
        seen, self._seen, self._seen_bytes = self._seen, {}, 0
        self._has_seen.clear()
        texts: dict[str, str] = {}  # texts of parts: thousands of devices share a few, in lists that differ
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

    def _full_header(self, device_id: str, sent: _Sent, texts: dict[str, str]) -> bytes:
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

    def _note(self, device_id: str, sent: _Sent) -> None:
        """Take note of a device that sent a profile, within bounds: nobody may call `take_seen`."""
        before = self._seen.get(device_id)
        size_bytes = self._seen_bytes + len(sent.raw) - (len(before.raw) if before is not None else 0)
        if size_bytes > MAX_SEEN_BYTES or (before is None and len(self._seen) >= MAX_SEEN):
            self.unseen += 1
            return
        self._seen[device_id] = sent
        self._seen_bytes = size_bytes
        self._has_seen.set()

    def recent(self, count: int, policy: Policy, task: str = "") -> tuple[str, ...]:
        """Return up to `count` devices of the policy, ordered by the last change of their profile, newest first.

        Devices for which a more specific release of the task is are left out: they would not get this one.
        """
        found: list[str] = []
        row = self.table.rows.get(task)
        before = [entry.policy for entry in row.entries if entry.policy.tier > policy.tier] if row is not None else []
        for device_id, sent in reversed(self._recent.items()):
            if len(found) == count:
                break
            profile = self._uploaded.join(sent.of_device(device_id))
            if policy.matches(profile) and not any(other.matches(profile) for other in before):
                found.append(device_id)
        return tuple(found)


def _object(fields: Mapping[str, Attribute]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class WallePush:
    """ASGI middleware: any app's responses carry the push answer to requests that carry a profile.

    It only adds headers to the start of a response: bodies still stream, websockets and lifespan pass through, and an
    invalid profile, or one without the session of its device, does not change the app's answer. Paths that begin with
    `except_under` get none: who asks there sends a profile for another purpose. Nor do requests that have it already
    (ANSWERED in the scope).
    """

    def __init__(
        self, app: ASGIApp, answerer: Answerer, identify: IdentifyDevice, *, except_under: str | None = None
    ) -> None:
        self.app = app
        self.answerer = answerer
        self.identify = identify
        self._except_under = except_under

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extra = self._extra(scope) if scope["type"] == "http" and not scope.get(ANSWERED) else ()
        if not extra:
            await self.app(scope, receive, send)
            return

        async def send_with_answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self.app(scope, receive, send_with_answer)

    def _extra(self, scope: Scope) -> Headers:
        profile = session = have = None
        for name, value in scope["headers"]:
            if name == _PROFILE:
                profile = value
            elif name == _DEVICE:
                session = value
            elif name == _HAVE:
                have = value
        if profile is None or (self._except_under is not None and scope["path"].startswith(self._except_under)):
            return ()
        try:
            return self.answerer.headers(profile, self.identify(session), have) + self.answerer.stamp
        except DeployError as error:
            return ((_ERROR, _header_text(str(error))),)
        except Exception:  # noqa: BLE001 - an error here must not fail the business request
            _LOG.exception("a profile could not be answered")
            return ((_ERROR, b"the profile could not be answered"),)


def _header_text(text: str) -> bytes:
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_MAX_ERROR_CHARS]).encode()
