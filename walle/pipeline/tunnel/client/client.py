"""The tunnel's client on a device (§5.2): one TLS 1.3 connection for the outbox's uploads, and for requests.

Uploads are sent in the order of their numbers, within the cloud's credit, and stay in the outbox until they are
acknowledged. A new connection continues after the last upload that is durable in the cloud, once the chain values of
both sides agree there; else the side that went back in time reports it; both continue. Small uploads share a frame, so
that they are compressed together. Requests go before uploads, which are written in small pieces and no faster than the
link carries them, so that a request does not wait for the outbox to drain.
Reconnects use exponential backoff with full jitter, so that a fleet that lost its cloud does not reconnect all at once;
a request that waits, or an upload after a long time without one, brings the next attempt forward (`reconnects`).
A cloud that drains sends its devices elsewhere; each moves at a random time, once what it has in flight is answered.
"""

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from walle import protocol
from walle.base.clock import Clock, SystemClock
from walle.base.waiting import first_of
from walle.errors import ConfigError
from walle.pipeline.features.topics import owner
from walle.pipeline.tunnel.client.link import (
    CLOSE_S,
    Link,
    TunnelClosedError,
    TunnelError,
    TunnelRefusedError,
    upload_bytes,
)
from walle.pipeline.tunnel.client.reconnects import Reconnects
from walle.pipeline.tunnel.client.sessions import ResumingContext
from walle.pipeline.tunnel.dictionaries import Dictionary
from walle.pipeline.tunnel.frames import MAX_PAYLOAD_BYTES, Encoder, FrameError
from walle.pipeline.tunnel.slots import PrioritySlots

__all__ = [
    "OutboxSource",
    "RequestError",
    "TunnelClient",
    "TunnelClosedError",
    "TunnelError",
    "TunnelRefusedError",
    "client_context",
]

_LOG = logging.getLogger(__name__)

_BATCH = 64  # uploads read from the outbox at once
_FRAME_BYTES = 32 << 10  # uploads in one frame, before compression; a longer upload has a frame to itself
_SHORT_FRAME_BYTES = 8 << 10  # smaller while requests are likely, which wait for the frame before them
_RECORD_BYTES = 24  # size of an upload's fixed part
_REQUESTS = 8  # requests in flight at once; the cloud takes 16 of a device
_URGENT = 4  # more, of a priority above 0: slow ones of a lower priority do not delay them
_LONGEST_RETRY_S = 3600.0  # bounds the delay that a Refusal or a Drain asks for
_PINGS = 2  # unanswered, before a connection is closed
_MOVE_S = 10.0  # time that a moving device waits for acknowledgements and answers
_REDIRECT_TRIES = 2  # connections in a row that may fail at the address that the cloud named


class RequestError(TunnelError):
    """A request that was not answered, or answered with an error.

    `code` is the cloud's (docs/protocol.md), "expired" also where the device stopped waiting first.
    """

    def __init__(self, topic: str, what: str, code: str = "") -> None:
        super().__init__(f"request {topic!r}: {what}")
        self.topic = topic
        self.what = what
        self.code = code


class OutboxSource(Protocol):
    """The client's interface to an outbox: uploads numbered without gaps, each durable before it is returned."""

    @property
    def epoch(self) -> str:
        """The id under which uploads are numbered now; numbers start at 1 in each."""

    @property
    def mark(self) -> protocol.OutboxMark:
        """The outbox's part of a Hello."""

    @property
    def last_seq(self) -> int:
        """The highest number assigned so far, 0 before the first."""

    async def put(self, topic: str, payload: Any) -> int | None:
        """Store one upload durably; return its number if it is known."""

    async def batch(self, after_seq: int, limit: int) -> list[protocol.Upload]:
        """Return at most `limit` uploads after `after_seq`, oldest first; none if there are none yet."""

    async def forget(self, upto_seq: int) -> None:
        """Remove everything of this epoch up to and with `upto_seq`."""

    async def reconcile(self, acked: int, chain: int) -> bool:
        """Return whether the outbox agrees with a Welcome; start a new epoch if the outbox went back in time."""

    async def wait_for_more(self, after_seq: int) -> None:
        """Return once there is an upload after `after_seq`, or a new epoch begins."""


def client_context(ca_path: Path) -> ResumingContext:
    """Return a TLS context that trusts the CA in the PEM file `ca_path` and no other.

    It is for one device, whose certificate it gets by `show`, and resumes its TLS sessions.

    Raises:
        ConfigError: the file is missing or holds no certificate.
    """
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(ca_path)
    except OSError as error:  # ssl.SSLError is one
        what = f"the certificate of the cloud's CA, {ca_path}, cannot be read ({error}); copy the cloud's ca.pem there"
        raise ConfigError(what) from error
    return context


class TunnelClient:
    """A tunnel client; `run` uploads a device's outbox to the cloud.

    `on_ack(seq, latency_s)` is called for each upload that this connection sent and the cloud acknowledged. The state
    is in `.connected`, `.last_error`, `.connections` and `.probes`.

    Args:
        ssl_context: shows the certificate of this device; `client_context` makes it.
        keepalive_s: silence after which a Ping is sent; after twice that, and two Pings, the connection is closed.
        connect_s: timeout for TCP, TLS and the cloud's Welcome together.
        backoff_s, backoff_max_s: attempt n follows after a random time up to backoff_s * 2**n, at most backoff_max_s;
            earlier while work waits.
        coalesce_s: time that small uploads wait for others while earlier ones are in flight.
    """

    def __init__(
        self,
        outbox: OutboxSource,
        *,
        device_id: str,
        host: str,
        port: int,
        ssl_context: ssl.SSLContext,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        keepalive_s: float = 20.0,
        connect_s: float = 10.0,
        backoff_s: float = 0.5,
        backoff_max_s: float = 60.0,
        coalesce_s: float = 0.005,
        on_ack: Callable[[int, float], None] | None = None,
    ) -> None:
        self.connections = 0
        self.last_error: Exception | None = None
        self._outbox = outbox
        self._device_id = device_id
        self._address = (host, port)
        self._ssl_context = ssl_context
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._keepalive_s = keepalive_s
        self._connect_s = connect_s
        self._backoff_max_s = backoff_max_s
        self._reconnects = Reconnects(self._clock, self._rng, backoff_s=backoff_s, backoff_max_s=backoff_max_s)
        self._coalesce_s = coalesce_s
        self._on_ack = on_ack
        self._redirect: tuple[str, int] | None = None  # the address that the cloud named
        self._redirect_failures = 0
        self._dictionaries: Mapping[str, Dictionary] = {}  # by the owner of the topic
        self._dictionaries_refused = False
        self._encoder = Encoder()
        self._link: Link | None = None
        self._earlier_probes = 0  # probes that earlier connections sent
        self._acked = 0
        self._acked_epoch = outbox.epoch
        self._request_slots = PrioritySlots(_REQUESTS)
        self._urgent_slots = PrioritySlots(_URGENT)
        self._next_request = 0
        self._running = False
        self._over = False  # closed, or `run` ended
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()  # replaced at each change

    @property
    def connected(self) -> bool:
        """True after the cloud's Welcome, while the connection is open."""
        return self._link is not None

    @property
    def probes(self) -> int:
        """The Pings so far that followed a frame, so that its loss shows earlier."""
        return self._earlier_probes + (self._link.tail.count if self._link is not None else 0)

    async def run(self) -> None:
        """Connect, upload, reconnect; return after `close`.

        Raises:
            TunnelRefusedError: the cloud refused this device permanently.
            PipelineError: raised by the outbox.
        """
        if self._running or self._over:
            raise TunnelError("a tunnel client runs once; make another")
        self._running = True
        failures = 0
        try:
            while not self._stop.is_set():
                acked, retry_s, began_s, is_moving = self._acked, 0.0, self._clock.monotonic(), False
                try:
                    is_moving = await self._one_connection()
                except (OSError, TunnelClosedError) as error:
                    self.last_error = error
                    _LOG.info("tunnel of %s: %s", self._device_id, error or type(error).__name__)
                except TunnelRefusedError as error:
                    self.last_error = error
                    retry_s = self._after_refusal(error)
                    is_moving = error.code == "elsewhere"
                    _LOG.info("tunnel of %s: %s", self._device_id, error)
                # A Welcome alone does not reset the backoff: it would make a storm on a cloud that closes at once.
                worked = self._acked > acked or self._clock.monotonic() - began_s > self._backoff_max_s
                failures = 0 if worked else failures + 1
                if is_moving and failures <= 1:
                    continue  # the device has waited already, or comes to the right server now
                self._reconnects.begin(failures, retry_s)
                await self._pause()
        finally:
            self._running = False
            self._over = True
            self._pulse()

    async def close(self) -> None:
        """Disconnect and end `run`. Unacknowledged uploads stay in the outbox; requests raise TunnelClosedError."""
        self._stop.set()
        while self._running:
            await self._changed.wait()
        self._over = True
        self._pulse()

    def use_dictionaries(self, by_owner: Mapping[str, Dictionary]) -> None:
        """Compress the uploads of these tasks with their dictionaries, as far as the cloud has them.

        `walle.pipeline.features.topics.owner` names the task of a topic.

        The connection is renewed if it has not offered one of them.
        """
        self._dictionaries = dict(by_owner)
        if self._link is not None:
            self._check_offer(self._link)

    def reconnect(self) -> None:
        """Leave the present connection for another, once what is in flight is acknowledged and answered."""
        if self._link is not None:
            self._link.leaving.set()

    async def send(self, topic: str, payload: Any) -> int | None:
        """Put one upload into the outbox and return its number, if known; it is durable once this returns."""
        return await self._outbox.put(topic, payload)

    async def drained(self) -> None:
        """Return once the cloud has acknowledged everything that is in the outbox at the call.

        Raises:
            TunnelClosedError: the client was closed, or `run` ended, before that.
        """
        epoch, goal = self._outbox.epoch, self._outbox.last_seq
        while self._acked < goal or self._acked_epoch != epoch:
            if self._outbox.epoch != epoch:  # a new epoch has the unsent uploads under new numbers
                epoch, goal = self._outbox.epoch, self._outbox.last_seq
                continue
            if goal == 0:
                return
            await self._change(f"uploads after {self._acked} of {goal} are not acknowledged")

    async def request(
        self,
        topic: str,
        payload: bytes,
        timeout: float = 30.0,  # noqa: ASYNC109 - part of the message
        *,
        priority: int = 0,
        connect_timeout: float | None = None,
    ) -> bytes:
        """Return the cloud's answer. Blocks until there is a connection; is not repeated on the next one.

        It waits for a connection for `connect_timeout` seconds at most, if that is given, however many other requests
        wait for one. Requests of a higher
        `priority` (-100 to 100) are sent and started first. The cloud knows `timeout`, and stops the request then or
        when this call is cancelled.

        Raises:
            RequestError: the cloud answered with an error, or not within `timeout` seconds; there was no connection
                within `connect_timeout`; or the topic or the payload does not fit into a frame.
            TunnelClosedError: the connection dropped after the request was sent, or the client was closed.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise RequestError(topic, f"{len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} can be sent")
        if priority not in protocol.PRIORITIES:
            raise RequestError(topic, f"priority {priority} is not from -100 to 100")
        due_s = self._clock.monotonic() + timeout
        slots = self._urgent_slots if priority > 0 else self._request_slots
        try:
            async with asyncio.timeout(timeout), self._link_and_slot(topic, connect_timeout, slots, priority) as link:
                self._next_request += 1
                request = protocol.Request(self._next_request, topic, payload, priority)
                response = await link.ask(request, self._encoder.encode, due_s)
        except TimeoutError:
            state = "the tunnel is up" if self.connected else f"the tunnel is down; last error: {self.last_error}"
            raise RequestError(topic, f"no answer within {timeout} s ({state})", "expired") from None
        except FrameError as error:
            raise RequestError(topic[:80], f"cannot be sent: {error}") from error
        if response.error:
            raise RequestError(topic, response.error, response.code)
        return response.payload

    # --- internals ----------------------------------------------------------------------------------------------------

    def _offer(self) -> list[Dictionary]:
        """Return the dictionaries that a Hello names, each once."""
        if self._dictionaries_refused:
            return []
        by_digest = {dictionary.digest: dictionary for dictionary in self._dictionaries.values()}
        return list(by_digest.values())[: protocol.MAX_DICTIONARIES]

    def _check_offer(self, link: Link) -> None:
        """Leave a connection whose Hello did not offer one of the present dictionaries."""
        if not link.offered.issuperset(dictionary.digest for dictionary in self._offer()):
            link.leaving.set()

    def _after_refusal(self, error: TunnelRefusedError) -> float:
        """Return the delay until the next connection; raise the error if there should be none."""
        if error.code == "dictionary":
            self._dictionaries_refused = True
        if error.host:
            self._redirect, self._redirect_failures = (error.host, error.port), 0
        elif error.retry_s < 0 and self._redirect is not None:  # the configured address may know this device
            self._redirect = None
        elif error.retry_s < 0:
            raise error
        return min(max(error.retry_s, 0.0), _LONGEST_RETRY_S)

    async def _one_connection(self) -> bool:
        """Connect, and upload until the connection ends. Return whether the client is to connect again at once."""
        link = Link(self._clock)
        try:
            await first_of(self._stop.wait(), self._serve(link))
            await link.close()
            return link.is_leaving
        finally:
            link.abort()
            self._earlier_probes += link.tail.count
            self._link = None
            self._pulse()

    async def _serve(self, link: Link) -> None:
        """Connect, and upload until the link ends or the device moves; raise the reason of its end."""
        if self._redirect is not None and self._redirect_failures >= _REDIRECT_TRIES:
            self._redirect = None
        host, port = self._redirect or self._address
        self._redirect_failures += 1  # a Welcome resets the count
        offer = self._offer()
        try:
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, host, port, ssl=self._ssl_context, ssl_shutdown_timeout=CLOSE_S
                )
                mark = self._outbox.mark
                hello = protocol.Hello(
                    self._device_id,
                    mark.epoch,
                    "",
                    acked=mark.acked,
                    acked_chain=mark.acked_chain,
                    origins=protocol.origins_to_text(mark.origins),
                    dictionaries=",".join(dictionary.digest for dictionary in offer),
                )
                link.epoch = mark.epoch
                hello_s = self._clock.monotonic()
                link.write(self._encoder.encode(hello))
                welcome = await link.welcome()
        except TimeoutError:
            raise TunnelClosedError(f"no Welcome from {host}:{port} within {self._connect_s} s") from None
        self._redirect_failures = 0
        self._check_epoch(link)
        if not await self._outbox.reconcile(welcome.acked, welcome.chain):
            raise TunnelClosedError(
                f"the cloud has other uploads than the outbox up to {welcome.acked} of epoch {link.epoch}:"
                " one of them was restored from an older copy; connecting again with new numbers"
            )
        if self._acked_epoch != link.epoch:
            self._acked_epoch, self._acked = link.epoch, 0
        self.connections += 1
        link.accept(welcome, offer)
        link.round_trip.note(link.heard_s - hello_s, link.heard_s)
        self._check_offer(link)  # others may have come since the Hello
        link.ack_came.set()
        self._link = link
        self._pulse()
        works = (
            self._upload(link),
            self._forget(link),
            self._keep_alive(link),
            link.probe_tails(self._encoder.encode),
            self._move(link),
        )
        await first_of(link.over(), *works)

    def _check_epoch(self, link: Link) -> None:
        """Raise TunnelClosedError if the outbox has a new epoch, which this connection's Hello did not name."""
        if self._outbox.epoch != link.epoch:
            raise TunnelClosedError(f"the outbox has left epoch {link.epoch}; connecting again with its new one")

    async def _move(self, link: Link) -> None:
        """Return once this device may leave the connection, after it was asked to."""
        await link.leaving.wait()
        if (drain := link.drain) is not None:
            after_s = drain.after_s + self._rng.uniform(0.0, max(0.0, drain.spread_s))
            await self._clock.sleep(min(max(0.0, after_s), _LONGEST_RETRY_S))
            if drain.host:
                self._redirect, self._redirect_failures = (drain.host, drain.port), 0
        link.leave()
        _LOG.info("tunnel of %s: moving to %s", self._device_id, self._redirect or "a new connection")
        await first_of(self._clock.sleep(_MOVE_S), self._settled(link))

    async def _settled(self, link: Link) -> None:
        while not link.is_idle:
            await link.room()

    async def _upload(self, link: Link) -> None:
        sent, waited = link.acked, False
        while not self._is_over(link):
            await link.writable.wait()
            sent = max(sent, link.acked)  # acknowledgements of an earlier connection's uploads may come
            uploads = await self._outbox.batch(sent, _BATCH)
            self._check_epoch(link)
            if not uploads:
                await self._outbox.wait_for_more(sent)
                continue
            uploads = [upload for upload in uploads if upload.seq > link.acked]
            if uploads and uploads[0].seq > max(sent, link.acked) + 1:
                raise TunnelClosedError(
                    f"the cloud has uploads of epoch {link.epoch} up to {max(sent, link.acked)}, and the outbox begins"
                    f" at {uploads[0].seq}; connecting again reports the uploads between as lost"
                )
            if link.in_flight_bytes and not waited and self._coalesce_s > 0 and self._is_little(uploads):
                waited = True
                await self._clock.sleep(self._coalesce_s)
                continue
            waited = False
            for group in self._frames(uploads, _SHORT_FRAME_BYTES if link.expects_requests else _FRAME_BYTES):
                while not link.allows(group[0]):
                    await link.room()
                await link.writable_for_uploads()
                self._check_epoch(link)  # the outbox may have started a new one meanwhile
                if self._is_over(link):
                    break
                unacked = [upload for upload in group if upload.seq > link.acked]  # an Ack may have come meanwhile
                if not unacked:  # sent now, they would count as in flight until the end: their Ack has come already
                    continue
                allowed = self._allowed(link, unacked)
                link.send(allowed, self._encode_uploads(link, allowed))
                sent = allowed[-1].seq
                if len(allowed) < len(unacked):
                    break
        await link.over()

    def _is_over(self, link: Link) -> bool:
        """Return whether no further upload may go over this link."""
        return link.is_leaving or link.ended

    def _is_little(self, uploads: list[protocol.Upload]) -> bool:
        return len(uploads) < _BATCH and sum(map(upload_bytes, uploads)) < _FRAME_BYTES

    def _frames(self, uploads: list[protocol.Upload], most_bytes: int) -> Iterator[list[protocol.Upload]]:
        """Divide uploads into those that share a frame: few bytes, and the same dictionary."""
        group: list[protocol.Upload] = []
        group_dictionary: Dictionary | None = None
        size_bytes = 0
        for upload in uploads:
            added_bytes = upload_bytes(upload) + _RECORD_BYTES
            dictionary = self._dictionary_of(upload)
            if group and (size_bytes + added_bytes > most_bytes or dictionary is not group_dictionary):
                yield group
                group, size_bytes = [], 0
            group_dictionary = dictionary
            group.append(upload)
            size_bytes += added_bytes
        if group:
            yield group

    def _allowed(self, link: Link, group: list[protocol.Upload]) -> list[protocol.Upload]:
        """Return the first uploads of a group, as many as the credit allows, one at least."""
        left_bytes = link.credit_bytes
        count = 0
        for upload in group:
            left_bytes -= upload_bytes(upload)
            if count and (left_bytes < 0 or upload.seq > link.acked + link.window):
                break
            count += 1
        return group[:count]

    def _dictionary_of(self, upload: protocol.Upload) -> Dictionary | None:
        return self._dictionaries.get(owner(upload.topic)) if self._dictionaries else None

    def _encode_uploads(self, link: Link, uploads: list[protocol.Upload]) -> bytes:
        frame = uploads[0] if len(uploads) == 1 else protocol.UploadBatch(tuple(uploads))
        dictionary = self._dictionary_of(uploads[0])
        number = link.numbers.get(dictionary.digest, 0) if dictionary is not None else 0
        agreed = dictionary if number else None
        return self._encoder.encode(frame, version=link.version, number=number, dictionary=agreed)

    async def _forget(self, link: Link) -> None:
        while True:
            await link.ack_came.wait()
            link.ack_came.clear()
            acked, latencies = link.acked, link.take_latencies()
            self._check_epoch(link)
            if acked > self._outbox.last_seq:
                made = self._outbox.last_seq
                raise TunnelClosedError(f"the cloud acknowledged upload {acked}; the outbox has made {made}")
            await self._outbox.forget(acked)
            if acked > self._acked:
                self._acked = acked
                self._pulse()
            if self._on_ack is not None:
                for seq, latency_s in latencies:
                    self._on_ack(seq, latency_s)

    async def _keep_alive(self, link: Link) -> None:
        silent_checks = 0
        while True:
            await self._clock.sleep(self._keepalive_s / 2)
            silent_s = self._clock.monotonic() - link.heard_s
            silent_checks = silent_checks + 1 if silent_s >= self._keepalive_s else 0
            # Checks are counted, since time alone also passes while this process is suspended, without any Ping sent.
            if silent_checks > _PINGS:
                raise TunnelClosedError(f"the cloud has been silent for {silent_s:.1f} s")
            if silent_checks and link.writable.is_set():
                link.write(self._encoder.encode(protocol.Ping(int(link.heard_s))))

    async def _pause(self) -> None:
        """Return when the next attempt is due, which may be brought forward meanwhile, or at `close`."""
        reconnects = self._reconnects
        if not self._stop.is_set() and not reconnects.was_hurried.is_set():
            waits = self._watch_uploads(), reconnects.was_hurried.wait()
            await first_of(self._stop.wait(), self._clock.sleep(reconnects.left_s), *waits)
        if not self._stop.is_set() and reconnects.was_hurried.is_set():
            await first_of(self._stop.wait(), self._clock.sleep(reconnects.left_s))

    async def _watch_uploads(self) -> None:
        while True:
            last_seq = self._outbox.last_seq
            self._reconnects.note_uploads(last_seq)
            await self._outbox.wait_for_more(last_seq)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def _link_and_slot(
        self, topic: str, connect_timeout: float | None, slots: PrioritySlots, priority: int
    ) -> AsyncIterator[Link]:
        """Give the connection and hold a slot in the block. A request without a connection holds none, nor needs one.

        Raises:
            RequestError: as `_link_for`.
        """
        while True:
            link = await self._link_for(topic, connect_timeout)
            async with slots.slot(priority):
                if link is self._free_link:  # still, after the wait for the slot
                    yield link
                    return

    @property
    def _free_link(self) -> Link | None:
        """The connection, if it takes requests."""
        link = self._link
        return None if link is None or link.ended or link.is_leaving else link

    async def _link_for(self, topic: str, connect_timeout: float | None) -> Link:
        """Return the connection, once there is one that takes requests.

        Raises:
            RequestError: there was none within `connect_timeout` seconds.
        """
        try:
            async with asyncio.timeout(connect_timeout):
                if (link := self._free_link) is not None:
                    return link
                with self._reconnects.waiting():
                    while (link := self._free_link) is None:
                        await self._change(f"request {topic!r} was not sent")
        except TimeoutError:
            error = f"no connection within {connect_timeout} s; last error: {self.last_error}"
            raise RequestError(topic, error, "expired") from None
        return link

    async def _change(self, undone: str) -> None:
        """Return at the next change of the client's state."""
        if self._over or self._stop.is_set():
            raise TunnelClosedError(f"{undone}: the tunnel client was closed") from self.last_error
        await self._changed.wait()
