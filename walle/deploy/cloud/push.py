"""The push answer (§6): the profile comes with the device's business requests, the answer goes with the responses.

`WallePush` adds it to any ASGI app; `Answerer` holds the release table and caches answers by the raw header, so that
an answer to an up-to-date device is one look-up.
"""

import asyncio
import logging
from collections.abc import Callable

from walle.deploy.cloud.asgi import ASGIApp, Message, Receive, Scope, Send
from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.release_table import ReleaseTable
from walle.deploy.cloud.uploaded_attributes import UploadedTables
from walle.errors import DeployError
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Directive,
    Profile,
    ProtocolError,
    directives_to_header,
)

ERROR_HEADER = "X-Walle-Error"

type Headers = tuple[tuple[bytes, bytes], ...]
type IdentifyDevice = Callable[[bytes | None], str]
"""`identify(X-Walle-Device)` returns the id of the device whose session this is, or raises a DeployError."""

_LOG = logging.getLogger(__name__)
_PROFILE = PROFILE_HEADER.lower().encode()
_DEVICE = DEVICE_HEADER.lower().encode()
_TASKS = TASKS_HEADER.lower().encode()
_TRUST = TRUST_HEADER.lower().encode()
_ERROR = ERROR_HEADER.lower().encode()
# No shared cache may give one device's answer to another.
_VARY = (b"vary", f"{PROFILE_HEADER}, {DEVICE_HEADER}".encode())
_ENTRY_OVERHEAD_BYTES = 300
MAX_SEEN = 16_384  # devices between two calls of `Answerer.take_seen`
MAX_SEEN_BYTES = 16 << 20  # of their profiles
_MAX_ERROR_CHARS = 300


class Answerer:
    """Computes response headers from profile headers. One event loop; `swap` takes effect at the next call.

    An answer of more than `max_answer_bytes` is cut to the first directives that fit; the answer to the device's next
    profile has the rest.
    """

    def __init__(
        self,
        table: ReleaseTable | None = None,
        *,
        cache_bytes: int = 64 << 20,
        max_answer_bytes: int = 8192,
        recent_devices: int = 4096,
    ) -> None:
        self.table = table or ReleaseTable()
        self.stamp = _stamp(self.table)  # for every answer to a profile
        self._uploaded = UploadedTables()
        self.repeated = 0  # profiles answered from the cache
        self.fresh = 0  # profiles that were parsed
        self.broken = 0
        self.foreign = 0  # profiles of another device than the one that sent them
        self.answered = 0  # fresh profiles whose answer held directives
        self._cache: dict[bytes, tuple[Headers, str]] = {}  # with the device's id
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes
        self._max_answer_bytes = max_answer_bytes
        self._encoded: dict[tuple[int, ...], Headers] = {}  # identities of the table's directives → their encoding
        self._recent: dict[str, Profile] = {}
        self._recent_devices = recent_devices
        self._seen: dict[str, bytes] = {}
        self._seen_bytes = 0
        self._has_seen = asyncio.Event()
        self.unseen = 0  # profiles that `take_seen` does not have, because too many came since

    def swap(self, table: ReleaseTable) -> None:
        """Set the table for answers; one that is older than the current table is ignored."""
        if table.generation < self.table.generation:
            return
        self.stamp = _stamp(table)
        if table.rows == self.table.rows:  # only a later timestamp: the cached answers hold
            self.table = ReleaseTable(table.generation, tuple(self.table.rows.values()), table.timestamp)
            return
        self.table = table
        self._encoded.clear()
        self._forget()

    def swap_uploaded(self, uploaded: UploadedTables) -> None:
        """Set the uploaded attributes for answers. A cached answer holds for those of before: all are forgotten."""
        self._uploaded = uploaded
        self._forget()

    def _forget(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0

    def headers(self, raw: bytes, sender: str) -> Headers:
        """Return the response headers for a raw profile header; none where the device is up to date.

        An invalid profile, or one of another device than the `sender`, gets an X-Walle-Error header with the reason.
        """
        known = self._cache.get(raw)
        if known is not None:
            headers, device_id = known
            if device_id != sender:
                return self._refuse_foreign(device_id, sender)
            self.repeated += 1
            if self._seen.get(device_id) != raw:
                self._note(device_id, raw)
            return headers
        try:
            profile = Profile.from_header(raw.decode("utf-8"))
        except (ProtocolError, UnicodeDecodeError) as error:
            self.broken += 1
            return ((_ERROR, _header_text(str(error))),)
        if profile.device_id != sender:
            return self._refuse_foreign(profile.device_id, sender)
        self.fresh += 1
        directives = self.table.answer(self._uploaded.join(profile))
        answer = self._encode(directives) if directives else ()
        self.answered += bool(answer)
        self._remember(raw, answer, profile)
        self._note(profile.device_id, raw)
        return answer

    def _refuse_foreign(self, device_id: str, sender: str) -> Headers:
        self.foreign += 1
        return (
            (_ERROR, _header_text(f"the profile is of device {device_id[:100]!r}, the session of {sender[:100]!r}")),
        )

    async def wait_seen(self) -> None:
        """Return once a device has sent a profile since the last `take_seen`."""
        await self._has_seen.wait()

    def take_seen(self) -> dict[str, bytes]:
        """Return the latest raw profile of each device that sent one since the last call."""
        seen, self._seen, self._seen_bytes = self._seen, {}, 0
        self._has_seen.clear()
        return seen

    def _note(self, device_id: str, raw: bytes) -> None:
        """Take note of a device that sent a profile, within bounds: nobody may call `take_seen`."""
        size_bytes = self._seen_bytes + len(raw) - len(self._seen.get(device_id, b""))
        if size_bytes > MAX_SEEN_BYTES or (device_id not in self._seen and len(self._seen) >= MAX_SEEN):
            self.unseen += 1
            return
        self._seen[device_id] = raw
        self._seen_bytes = size_bytes
        self._has_seen.set()

    def recent(self, count: int, policy: Policy, task: str = "") -> tuple[str, ...]:
        """Return up to `count` devices of the policy, ordered by the last change of their profile, newest first.

        Devices for which a more specific release of the task is are left out: they would not get this one.
        """
        found: list[str] = []
        row = self.table.rows.get(task)
        before = [entry.policy for entry in row.entries if entry.policy.tier > policy.tier] if row is not None else []
        for device_id, profile in reversed(self._recent.items()):
            if len(found) == count:
                break
            joined = self._uploaded.join(profile)
            if policy.matches(joined) and not any(other.matches(joined) for other in before):
                found.append(device_id)
        return tuple(found)

    def _encode(self, directives: tuple[Directive, ...]) -> Headers:
        key = tuple(map(id, directives))
        known = self._encoded.get(key)
        if known is None:
            count = len(directives)
            text = directives_to_header(directives)
            while len(text) > self._max_answer_bytes and count > 1:
                count = max(1, min(count - 1, count * self._max_answer_bytes // len(text)))
                text = directives_to_header(directives[:count])
            known = ((_TASKS, text.encode()), _VARY)
            if len(self._encoded) >= 1024:
                self._encoded.clear()
            self._encoded[key] = known
        return known

    def _remember(self, raw: bytes, answer: Headers, profile: Profile) -> None:
        size_bytes = len(raw) + _ENTRY_OVERHEAD_BYTES  # answers are shared between entries
        while self._cache and self._cached_bytes + size_bytes > self._cache_bytes:
            oldest = next(iter(self._cache))
            del self._cache[oldest]
            self._cached_bytes -= len(oldest) + _ENTRY_OVERHEAD_BYTES
        self._cache[raw] = answer, profile.device_id
        self._cached_bytes += size_bytes
        self._recent.pop(profile.device_id, None)
        self._recent[profile.device_id] = profile
        if len(self._recent) > self._recent_devices:
            del self._recent[next(iter(self._recent))]


class WallePush:
    """ASGI middleware: any app's responses carry the push answer to requests that carry a profile.

    It only adds headers to the start of a response: bodies still stream, websockets and lifespan pass through, and an
    invalid profile, or one without the session of its device, does not change the app's answer.
    """

    def __init__(self, app: ASGIApp, answerer: Answerer, identify: IdentifyDevice) -> None:
        self.app = app
        self.answerer = answerer
        self.identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extra = self._extra(scope) if scope["type"] == "http" else ()
        if not extra:
            await self.app(scope, receive, send)
            return

        async def send_with_answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self.app(scope, receive, send_with_answer)

    def _extra(self, scope: Scope) -> Headers:
        profile = session = None
        for name, value in scope["headers"]:
            if name == _PROFILE:
                profile = value
            elif name == _DEVICE:
                session = value
        if profile is None:
            return ()
        try:
            return self.answerer.headers(profile, self.identify(session)) + self.answerer.stamp
        except DeployError as error:
            return ((_ERROR, _header_text(str(error))),)
        except Exception:  # noqa: BLE001 - an error here must not fail the business request
            _LOG.exception("a profile could not be answered")
            return ((_ERROR, b"the profile could not be answered"),)


def _stamp(table: ReleaseTable) -> Headers:
    return ((_TRUST, table.timestamp.encode()),) if table.timestamp else ()


def _header_text(text: str) -> bytes:
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_MAX_ERROR_CHARS]).encode()
