"""A file over HTTP, read by a decoding thread: limits on time, and resumption at the byte of a loss."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from apps.livestream.media.errors import AddressError, ConnectionLostError, MediaError
from apps.livestream.media.limits import MediaLimits
from apps.livestream.media.stop import StopSignal

_MAX_DIGITS = 18  # digits of a length


class HttpFile:
    """The body of an HTTP response as a file object. Reads block; `stop` ends them.

    A server that has a length and takes ranges gives a file: it can seek, and a lost connection is continued at the
    same byte, at most `limits.reconnects` times without a byte between. One without a length gives a live stream.
    Redirects are not followed: the address that a person gave is the only one that is fetched.
    """

    def __init__(
        self,
        url: str,
        shown: str,
        limits: MediaLimits,
        *,
        stop: StopSignal,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect.

        Raises:
            AddressError: the server refuses the address.
            ConnectionLostError: it does not answer.
        """
        self.resumed = 0
        self.failure: MediaError | None = None
        self._url = url
        self._shown = shown
        self._limits = limits
        self._stop = stop
        self._monotonic = monotonic
        self._deadline_s = monotonic() + limits.open_s
        self._client = httpx.Client(
            timeout=httpx.Timeout(min(limits.stall_s, limits.open_s), connect=limits.open_s), follow_redirects=False
        )
        self._response: httpx.Response | None = None
        self._connection: socket.socket | None = None
        self._body: Iterator[bytes] = iter(())
        self._buffer = b""
        self._at = 0
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._client.close)
        self._stack.callback(self._disconnect)
        self._stack.enter_context(stop.waking(self._wake))
        try:
            response = self._connect(0)
        except BaseException:
            self._stack.close()
            raise
        length = response.headers.get("content-length", "")
        self.length: int | None = int(length) if length.isdecimal() and len(length) <= _MAX_DIGITS else None
        self._version = response.headers.get("etag") or response.headers.get("last-modified")
        self._ranges = self.length is not None and response.headers.get("accept-ranges", "").lower() == "bytes"

    @property
    def live(self) -> bool:
        return self.length is None

    def allow(self, seconds: float) -> None:
        """Let reads continue for at most `seconds` from now; a server that sends a byte now and then is lost, too."""
        self._deadline_s = self._monotonic() + seconds

    def seekable(self) -> bool:
        return self._ranges

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        assert self.length is not None
        at = offset + (0, self._at, self.length)[whence]
        if at < 0:
            raise OSError(f"{self._shown}: seek before the beginning")
        if at != self._at:
            skip = at - self._at
            if 0 <= skip <= len(self._buffer):
                self._buffer = self._buffer[skip:]
            else:
                self._disconnect()
            self._at = at
        return at

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes, none at the end of the body.

        Raises:
            ConnectionLostError: the connection was lost or stalled, and could not be continued.
            AddressError: the file changed meanwhile. Both are kept in `failure`: a demuxer takes them for an end.
        """
        if self.failure is not None:
            raise self.failure
        try:
            return self._read(count)
        except MediaError as error:
            self.failure = error
            raise

    def _wake(self) -> None:
        """End a read that is under way in another thread."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stack.close()

    def _read(self, count: int) -> bytes:
        if self.length is not None and self._at >= self.length:
            return b""
        lost = 0
        while not self._buffer:
            if self._stop.is_set():
                raise ConnectionLostError(self._shown, "the source was closed")
            if self._monotonic() > self._deadline_s:
                raise ConnectionLostError(self._shown, "the server sends too slowly: no whole packet in time")
            try:
                if self._response is None:
                    self._connect(self._at)
                self._buffer = next(self._body, b"")
            except (httpx.HTTPError, ConnectionLostError) as error:
                self._disconnect()
                if self._stop.is_set() or not self._ranges or lost == self._limits.reconnects:
                    raise ConnectionLostError(self._shown, f"the connection was lost ({_reason(error)})") from error
                pause_s = self._limits.backoff(lost)
                self.allow(pause_s + self._limits.stall_s)
                if self._stop.wait(pause_s):
                    raise ConnectionLostError(self._shown, "the source was closed") from error
                lost += 1
                self.resumed += 1
                continue
            if not self._buffer:
                return b""
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._at += len(taken)
        return taken

    def _connect(self, at: int) -> httpx.Response:
        headers = {"accept-encoding": "identity"}
        if at:
            headers["range"] = f"bytes={at}-"
            if self._version and not self._version.startswith("W/"):
                headers["if-range"] = self._version
        request = self._client.build_request("GET", self._url, headers=headers, extensions={"trace": self._trace})
        try:
            response = self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise ConnectionLostError(self._shown, f"no answer ({_reason(error)}); is the address right?") from error
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise AddressError(self._shown, f"not an address ({error})") from error
        if response.status_code != (206 if at else 200):
            response.close()
            raise AddressError(self._shown, _refusal(response, at))
        given = response.headers.get("content-range", "").lower()
        if at and not (given.startswith(f"bytes {at}-") and given.endswith((f"/{self.length}", "/*"))):
            response.close()
            raise AddressError(
                self._shown,
                f"asked for the bytes from {at} on, the server sends others ({given[:80]!r}); copy it",
            )
        self._response = response
        self._body = response.iter_raw()  # bytes as they arrive: gathered chunks would delay a slow stream
        return response

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Take the socket of a new connection, of httpcore's event, to wake a read before there is a response."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connection = info["return_value"].get_extra_info("socket")
            if self._stop.is_set():
                self._wake()

    def _disconnect(self) -> None:
        self._buffer = b""
        self._body = iter(())
        if self._response is not None:
            self._response.close()
            self._response = None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(response: httpx.Response, at: int) -> str:
    status = f"{response.status_code} {response.reason_phrase}".strip()
    if response.is_redirect:
        target = response.headers.get("location", "")[:200]
        return (
            f"the server redirects ({status}) to {target!r}, which is not followed; give that address if you trust it"
        )
    if at and response.status_code == 200:
        return f"the file changed while it was read, at byte {at}; read it again"
    return f"the server answers {status}"
