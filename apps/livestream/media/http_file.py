"""A file over HTTP, read by a decoding thread: limits on time, and resumption at the byte of a loss."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import httpx

from apps.livestream.media.errors import AddressError, ConnectionLostError
from apps.livestream.media.limits import MediaLimits

_CHUNK = 1 << 16


class HttpFile:
    """The body of an HTTP response as a file object. Reads block; `abort` ends them from another thread.

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
        wait: Callable[[float], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect.

        `wait(seconds)` blocks for that time and returns True if the source is being closed.

        Raises:
            AddressError: the server refuses the address.
            ConnectionLostError: it does not answer.
        """
        self.resumed = 0
        self.failure: ConnectionLostError | None = None
        self._url = url
        self._shown = shown
        self._limits = limits
        self._wait = wait
        self._monotonic = monotonic
        self._deadline_s = monotonic() + limits.open_s
        self._client = httpx.Client(
            timeout=httpx.Timeout(limits.stall_s, connect=limits.open_s), follow_redirects=False, trust_env=False
        )
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._buffer = b""
        self._at = 0
        self._aborted = False
        try:
            response = self._connect(0)
        except BaseException:
            self._client.close()
            raise
        length = response.headers.get("content-length", "")
        self.length: int | None = int(length) if length.isdecimal() else None
        self._version = response.headers.get("etag") or response.headers.get("last-modified")
        self._ranges = self.length is not None and response.headers.get("accept-ranges", "").lower() == "bytes"

    @property
    def live(self) -> bool:
        return self.length is None

    def allow(self, seconds: float) -> None:
        """Let reads go on for at most `seconds` from now; a server that sends a byte now and then is lost, too."""
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
            ConnectionLostError: the connection was lost or stalled, and could not be continued. It is kept in
                `failure`, for the demuxer may take it for an end.
        """
        try:
            return self._read(count)
        except ConnectionLostError as error:
            self.failure = error
            raise

    def abort(self) -> None:
        """End a read that is under way in another thread, and refuse further ones."""
        self._aborted = True
        response = self._response
        if response is not None and (stream := response.extensions.get("network_stream")) is not None:
            connection = stream.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._disconnect()
        self._client.close()

    def _read(self, count: int) -> bytes:
        if self.length is not None and self._at >= self.length:
            return b""
        lost = 0
        while not self._buffer:
            if self._aborted:
                raise ConnectionLostError(self._shown, "the source was closed")
            if self._monotonic() > self._deadline_s:
                raise ConnectionLostError(self._shown, "the server sends too slowly: no whole packet in time")
            try:
                if self._response is None:
                    self._connect(self._at)
                self._buffer = next(self._body, b"")
            except (httpx.HTTPError, ConnectionLostError) as error:
                self._disconnect()
                if self._aborted or not self._ranges or lost == self._limits.reconnects:
                    raise ConnectionLostError(self._shown, f"the connection was lost ({_reason(error)})") from error
                pause_s = self._limits.backoff(lost)
                self.allow(pause_s + self._limits.stall_s)
                if self._wait(pause_s):
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
        request = self._client.build_request("GET", self._url, headers=headers)
        try:
            response = self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise ConnectionLostError(self._shown, f"no answer ({_reason(error)}); is the address right?") from error
        except (httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise AddressError(self._shown, f"not an address ({error})") from error
        if response.status_code != (206 if at else 200):
            response.close()
            raise AddressError(self._shown, _refusal(response, at))
        self._response = response
        self._body = response.iter_raw(_CHUNK)
        return response

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
