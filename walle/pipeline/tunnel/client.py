"""The tunnel's client on a device (§5.2): one TLS 1.3 connection for the outbox's uploads, and for requests.

Uploads are sent in the order of their numbers, at most the cloud's window ahead of its acknowledgements, and stay in
the outbox until they are acknowledged. A new connection continues after the last upload that is durable in the cloud,
once the chain values of both sides agree there; else the side that went back in time reports it, and both go on.
Uploads are written in small pieces, and requests before them, so that a request does not wait for the outbox to drain.
Reconnects use exponential backoff with full jitter, so that a fleet that lost its cloud does not reconnect all at once.
"""

import asyncio
import collections
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from walle import protocol
from walle.clock import Clock, SystemClock
from walle.errors import ConfigError, PipelineError
from walle.pipeline.tunnel import sockets
from walle.pipeline.tunnel.frames import MAX_PAYLOAD_BYTES, Decoder, Encoder, FrameError

_LOG = logging.getLogger(__name__)

_BATCH = 64  # uploads read from the outbox, and written to the socket, at once
_WRITE_BYTES = 16 << 10  # of uploads at once, and unsent in the kernel: a request waits behind no more
_REQUESTS = 8  # in flight at once; the cloud takes 16 of a device
_CLOSE_S = 2.0  # for the last bytes of a connection to leave
_LONGEST_RETRY_S = 3600.0  # bounds the delay that a Refusal asks for
_PINGS = 2  # unanswered, before a connection is closed


class TunnelError(PipelineError):
    """The tunnel cannot continue, and connecting again unchanged would fail again."""


class TunnelClosedError(TunnelError):
    """The connection or the client was closed before the operation ended."""


class TunnelRefusedError(TunnelError):
    """The cloud refused this device: a wrong credential or protocol, or another device of the same name."""

    def __init__(self, refusal: protocol.Refusal) -> None:
        super().__init__(f"the cloud refused the tunnel ({refusal.code}): {refusal.message}")
        self.code = refusal.code
        self.message = refusal.message
        self.retry_s = refusal.retry_s


class RequestError(TunnelError):
    """A request that was not answered, or answered with an error."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(f"request {topic!r}: {what}")
        self.topic = topic
        self.what = what


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


def client_context(ca_path: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificate authority in the PEM file `ca_path` and no other.

    Raises:
        ConfigError: the file is missing or holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(ca_path)
    except OSError as error:  # ssl.SSLError is one
        what = f"the tunnel's certificate authority {ca_path} cannot be read ({error}); copy the cloud's ca.pem there"
        raise ConfigError(what) from error
    return context


class TunnelClient:
    """A tunnel client; `run` uploads a device's outbox to the cloud.

    `on_ack(seq, latency_s)` is called for each upload that this connection sent and the cloud acknowledged. The state
    is in `.connected`, `.last_error` and `.connections`.

    Args:
        token: the credential of this device, which the cloud's `authenticate` knows.
        keepalive_s: silence after which a Ping is sent; after twice that, and two Pings, the connection is closed.
        connect_s: timeout for TCP, TLS and the cloud's Welcome together.
        backoff_s, backoff_max_s: attempt n follows after a random time up to backoff_s * 2**n, at most backoff_max_s.
    """

    def __init__(
        self,
        outbox: OutboxSource,
        *,
        device_id: str,
        token: str,
        host: str,
        port: int,
        ssl_context: ssl.SSLContext,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        keepalive_s: float = 20.0,
        connect_s: float = 10.0,
        backoff_s: float = 0.5,
        backoff_max_s: float = 60.0,
        on_ack: Callable[[int, float], None] | None = None,
    ) -> None:
        self.connections = 0
        self.last_error: Exception | None = None
        self._outbox = outbox
        self._device_id = device_id
        self._token = token
        self._address = (host, port)
        self._ssl_context = ssl_context
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._keepalive_s = keepalive_s
        self._connect_s = connect_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._on_ack = on_ack
        self._encoder = Encoder()
        self._link: _Link | None = None
        self._acked = 0
        self._acked_epoch = outbox.epoch
        self._request_slots = asyncio.Semaphore(_REQUESTS)
        self._next_request = 0
        self._running = False
        self._over = False  # closed, or `run` ended
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()  # replaced at each change

    @property
    def connected(self) -> bool:
        """True after the cloud's Welcome, while the connection is open."""
        return self._link is not None

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
                acked, retry_s, began_s = self._acked, 0.0, self._clock.monotonic()
                try:
                    await self._one_connection()
                except (OSError, TunnelClosedError) as error:
                    self.last_error = error
                    _LOG.info("tunnel of %s: %s", self._device_id, error or type(error).__name__)
                except TunnelRefusedError as error:
                    self.last_error = error
                    if error.retry_s < 0:
                        raise
                    _LOG.info("tunnel of %s: %s", self._device_id, error)
                    retry_s = min(error.retry_s, _LONGEST_RETRY_S)
                # A Welcome alone does not reset the backoff: it would make a storm on a cloud that closes at once.
                worked = self._acked > acked or self._clock.monotonic() - began_s > self._backoff_max_s
                failures = 0 if worked else failures + 1
                spread_s = min(self._backoff_max_s, self._backoff_s * 2.0 ** min(failures, 30))
                await self._pause(retry_s + self._rng.uniform(0.0, spread_s))
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
            if self._outbox.epoch != epoch:  # which has the unsent uploads under new numbers
                epoch, goal = self._outbox.epoch, self._outbox.last_seq
                continue
            if goal == 0:
                return
            await self._change(f"uploads after {self._acked} of {goal} are not acknowledged")

    async def request(self, topic: str, payload: bytes, timeout: float = 30.0) -> bytes:  # noqa: ASYNC109 - part of the message
        """Return the cloud's answer. Blocks until there is a connection; is not repeated on the next one.

        Raises:
            RequestError: the cloud answered with an error, or not within `timeout` seconds.
            TunnelClosedError: the connection dropped after the request was sent, or the client was closed.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise RequestError(topic, f"{len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} can be sent")
        try:
            async with asyncio.timeout(timeout), self._request_slots:
                while (link := self._link) is None or link.ended:
                    await self._change(f"request {topic!r} was not sent")
                self._next_request += 1
                request = protocol.Request(self._next_request, topic, payload)
                response = await link.ask(request, self._encoder.encode(request))
        except TimeoutError:
            state = "the tunnel is up" if self.connected else f"the tunnel is down; last error: {self.last_error}"
            raise RequestError(topic, f"no answer within {timeout} s ({state})") from None
        if response.error:
            raise RequestError(topic, response.error)
        return response.payload

    # --- internals ----------------------------------------------------------------------------------------------------

    async def _one_connection(self) -> None:
        link = _Link(self._clock)
        try:
            await _first(self._stop.wait(), self._serve(link))
            await link.close()
        finally:
            link.abort()
            self._link = None
            self._pulse()

    async def _serve(self, link: "_Link") -> None:
        """Connect, and upload until the link ends; raise the reason of its end."""
        try:
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, *self._address, ssl=self._ssl_context, ssl_shutdown_timeout=_CLOSE_S
                )
                mark = self._outbox.mark
                hello = protocol.Hello(
                    self._device_id,
                    mark.epoch,
                    self._token,
                    acked=mark.acked,
                    acked_chain=mark.acked_chain,
                    origins=protocol.origins_to_text(mark.origins),
                )
                link.epoch = mark.epoch
                link.write(self._encoder.encode(hello))
                welcome = await link.welcome()
        except TimeoutError:
            host, port = self._address
            raise TunnelClosedError(f"no Welcome from {host}:{port} within {self._connect_s} s") from None
        self._check_epoch(link)
        if not await self._outbox.reconcile(welcome.acked, welcome.chain):
            raise TunnelClosedError(
                f"the cloud has other uploads than the outbox up to {welcome.acked} of epoch {link.epoch}:"
                " one of them was restored from an older copy; connecting again with new numbers"
            )
        if self._acked_epoch != link.epoch:
            self._acked_epoch, self._acked = link.epoch, 0
        self.connections += 1
        link.acked = welcome.acked
        link.ack_came.set()
        self._link = link
        self._pulse()
        await _first(link.over(), self._upload(link, welcome.window), self._forget(link), self._keep_alive(link))

    def _check_epoch(self, link: "_Link") -> None:
        """Raise TunnelClosedError if the outbox has a new epoch, which this connection's Hello did not name."""
        if self._outbox.epoch != link.epoch:
            raise TunnelClosedError(f"the outbox has left epoch {link.epoch}; connecting again with its new one")

    async def _upload(self, link: "_Link", window: int) -> None:
        sent = link.acked
        while True:
            await link.writable.wait()
            sent = max(sent, link.acked)  # acknowledgements of an earlier connection's uploads may come
            room = link.acked + window - sent
            if room <= 0:
                await link.room()
                continue
            uploads = await self._outbox.batch(sent, min(room, _BATCH))
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
            for seqs, data in self._small_writes(uploads):
                await link.writable_for_uploads()
                link.send(seqs, data)
                sent = seqs[-1]

    def _small_writes(self, uploads: list[protocol.Upload]) -> Iterator[tuple[list[int], bytes]]:
        """Return the frames of uploads, with their numbers, in pieces of about _WRITE_BYTES."""
        seqs: list[int] = []
        frames: list[bytes] = []
        size_bytes = 0
        for upload in uploads:
            frame = self._encoder.encode(upload)
            seqs.append(upload.seq)
            frames.append(frame)
            size_bytes += len(frame)
            if size_bytes >= _WRITE_BYTES:
                yield seqs, b"".join(frames)
                seqs, frames, size_bytes = [], [], 0
        if seqs:
            yield seqs, b"".join(frames)

    async def _forget(self, link: "_Link") -> None:
        while True:
            await link.ack_came.wait()
            link.ack_came.clear()
            acked, latencies = link.acked, link.take_latencies()
            self._check_epoch(link)
            await self._outbox.forget(acked)
            if acked > self._acked:
                self._acked = acked
                self._pulse()
            if self._on_ack is not None:
                for seq, latency_s in latencies:
                    self._on_ack(seq, latency_s)

    async def _keep_alive(self, link: "_Link") -> None:
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

    async def _pause(self, seconds: float) -> None:
        if not self._stop.is_set():
            await _first(self._stop.wait(), self._clock.sleep(seconds))

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, undone: str) -> None:
        """Return at the next change of the client's state."""
        if self._over or self._stop.is_set():
            raise TunnelClosedError(f"{undone}: the tunnel client was closed") from self.last_error
        await self._changed.wait()


class _Link(asyncio.Protocol):
    """One connection: decodes frames, and wakes the calls that wait for them."""

    def __init__(self, clock: Clock) -> None:
        self.acked = 0
        self.epoch = ""  # of the Hello
        self.heard_s = clock.monotonic()
        self.writable = asyncio.Event()
        self.writable.set()
        self.ack_came = asyncio.Event()
        self._clock = clock
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._welcome: protocol.Welcome | None = None
        self._error: Exception | None = None
        self._moved = asyncio.Event()  # a Welcome or an Ack came, or the link ended
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._in_flight: collections.deque[tuple[int, float]] = collections.deque()  # at most a window of them
        self._latencies: list[tuple[int, float]] = []
        self._answers: dict[int, asyncio.Future[protocol.Response]] = {}
        self._waiting_requests = 0  # until they may be written

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # What is written waits in the transport and in the kernel; the limits keep both short.
        self._transport.set_write_buffer_limits(_WRITE_BYTES)
        connection = transport.get_extra_info("socket")
        sockets.bound_unsent(connection, _WRITE_BYTES)
        sockets.recover_fast(connection)
        sockets.send_past_losses(connection)
        self.heard_s = self._clock.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._end(exc or TunnelClosedError("the cloud disconnected"))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._ended.is_set():
            return
        self.heard_s = self._clock.monotonic()
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self._end(TunnelClosedError(f"the cloud sent an invalid frame: {error}"))

    def _on_frame(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Ack():
                if frame.seq > self.acked:
                    self.acked = frame.seq
                    while self._in_flight and self._in_flight[0][0] <= frame.seq:
                        seq, sent_s = self._in_flight.popleft()
                        self._latencies.append((seq, self.heard_s - sent_s))
                    self.ack_came.set()
                    self._moved.set()
            case protocol.Response():
                answer = self._answers.pop(frame.request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            case protocol.Welcome() if self._welcome is None:
                self._welcome = frame
                self._moved.set()
            case protocol.Refusal():
                self._end(TunnelRefusedError(frame))
            case protocol.Pong():
                pass  # it only shows that the cloud is there
            case _:
                self._end(TunnelClosedError(f"the cloud sent a {type(frame).__name__} out of turn"))

    def _end(self, error: Exception) -> None:
        if self._error is None:  # the first reason is the true one
            self._error = error
        self._ended.set()
        self._moved.set()
        self.writable.set()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(TunnelClosedError(f"the tunnel dropped before the answer came: {error}"))

    # --- the client's calls ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._ended.is_set():
            self._transport.write(data)

    def send(self, seqs: list[int], data: bytes) -> None:
        """Write uploads, and record when."""
        now_s = self._clock.monotonic()
        self._in_flight.extend((seq, now_s) for seq in seqs)
        self.write(data)

    async def writable_for_uploads(self) -> None:
        """Return once uploads may be written: after the requests that wait."""
        while True:
            await self.writable.wait()
            if not self._waiting_requests or self.ended:
                return
            await asyncio.sleep(0)

    def take_latencies(self) -> list[tuple[int, float]]:
        taken, self._latencies = self._latencies, []
        return taken

    async def welcome(self) -> protocol.Welcome:
        while self._welcome is None:
            if self._error is not None:
                raise self._error
            await self._moved.wait()
            self._moved.clear()
        return self._welcome

    async def room(self) -> None:
        """Return when an acknowledgement has made room, or the link has ended."""
        self._moved.clear()
        await self._moved.wait()

    async def over(self) -> None:
        """Block until the link has ended, and raise the reason."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def ask(self, request: protocol.Request, data: bytes) -> protocol.Response:
        self._waiting_requests += 1
        try:
            while not self.writable.is_set():
                await self.writable.wait()
        finally:
            self._waiting_requests -= 1
        if self._error is not None:
            raise TunnelClosedError(f"request {request.topic!r} was not sent: {self._error}")
        answer: asyncio.Future[protocol.Response] = asyncio.get_running_loop().create_future()
        self._answers[request.request_id] = answer
        try:
            self.write(data)
            return await answer
        finally:
            self._answers.pop(request.request_id, None)

    async def close(self) -> None:
        """Send what is written and disconnect; wait for that at most _CLOSE_S."""
        self._end(TunnelClosedError("the tunnel client disconnected"))
        if self._transport is not None:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._lost.wait()

    def abort(self) -> None:
        """Drop the connection at once, if it is open."""
        self._end(TunnelClosedError("the tunnel client disconnected"))
        if self._transport is not None and not self._lost.is_set():
            self._transport.abort()


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends; cancel and await the others; raise the error of the one that ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
