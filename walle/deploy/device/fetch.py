"""Transport of pulls: bytes that are named by their sha256 (§6, "pull the task files using the CDN address").

A `Fetcher` gives the rest of one file from an offset on. It knows nothing of hashes: what it brings is not trusted.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import NamedTuple, Protocol

import httpx

from walle.backoff import retry_after_s
from walle.deploy.file_coding import DCZ, ZSTD, format_dictionary
from walle.errors import DeployError

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class FetchError(DeployError):
    """A pull that the network or the server did not carry out; nothing is said against the file. Worth another try.

    `asked_s` is the pause that the server asked for (Retry-After), 0 for none.
    """

    def __init__(self, url: str, reason: str, *, asked_s: float = 0.0) -> None:
        super().__init__(f"cannot pull {url}: {reason}")
        self.url = url
        self.reason = reason
        self.asked_s = asked_s


class WrongLengthError(FetchError):
    """The server has another number of bytes under this address than the signed metadata promises."""


class HeldPart(NamedTuple):
    """Part of a coded file that is here: its coding and `etag`, and how many bytes."""

    coding: str
    etag: str
    size_bytes: int


class CodedAnswer(NamedTuple):
    """A file as the server sends it. `coding` is "" where it is the file itself; `chunks` begin at byte `offset`."""

    coding: str
    etag: str
    offset: int
    chunks: AsyncGenerator[bytes]


class Fetcher(Protocol):
    """Source from which an agent pulls."""

    def fetch(self, url: str, *, offset: int, size_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the bytes `offset` ≤ i < `size_bytes` of the file at `url`, which has `size_bytes` in all.

        `url` is absolute, or relative ("/cdn/…") to a base address that the fetcher has. Requires offset < size_bytes.

        Raises:
            FetchError: no connection, a time-out, a refusal, a link that dropped half-way.
            WrongLengthError: the file there is longer or shorter than `size_bytes`. No byte beyond it is yielded.
        """

    def fetch_coded(
        self, url: str, *, dictionary: str, held: HeldPart | None, max_bytes: int
    ) -> contextlib.AbstractAsyncContextManager[CodedAnswer]:
        """Ask for the file at `url` in a coding that is smaller, or as it is where the server has none.

        `dictionary` is the sha256 of a file to which a difference may be sent, "" for none. The answer goes on from
        `held` where the server still has those bytes, and begins at 0 otherwise.

        Raises (also from `chunks`):
            FetchError: as `fetch`.
            WrongLengthError: the answer is longer than `max_bytes`; no byte beyond it is yielded.
        """

    async def fetch_small(self, url: str, *, max_bytes: int) -> bytes:
        """Return the file at `url`, whose length is not known before.

        Raises:
            FetchError: as `fetch`.
            WrongLengthError: it is longer than `max_bytes`; no more than these were read.
        """


class HttpFetcher:
    """A `Fetcher` over HTTP, resuming with Range. Relative addresses are taken from the client's `base_url`.

    A server that ignores Range is accepted: bytes that are already here are skipped.
    """

    def __init__(self, client: httpx.AsyncClient, *, timeout: httpx.Timeout = _TIMEOUT) -> None:
        self._client = client
        self._timeout = timeout

    async def fetch(self, url: str, *, offset: int, size_bytes: int) -> AsyncGenerator[bytes]:
        headers = {"Accept-Encoding": "identity"}  # lengths and offsets are those of the file itself
        if offset:
            headers["Range"] = f"bytes={offset}-{size_bytes - 1}"
        position = offset
        with _as_fetch_error(url):
            async with self._client.stream("GET", url, headers=headers, timeout=self._timeout) as response:
                to_skip = _start(response, url, offset, size_bytes)
                async for chunk in response.aiter_raw():
                    skipped = min(to_skip, len(chunk))
                    to_skip -= skipped
                    rest = chunk[skipped:]
                    if position + len(rest) > size_bytes:
                        raise WrongLengthError(url, f"more than the {size_bytes} bytes that are signed")
                    position += len(rest)
                    if rest:
                        yield rest
        if position < size_bytes:  # without a Content-Length, the end may be a dropped link
            raise FetchError(url, f"ended after {position} bytes of {size_bytes}")

    @contextlib.asynccontextmanager
    async def fetch_coded(
        self, url: str, *, dictionary: str, held: HeldPart | None, max_bytes: int
    ) -> AsyncIterator[CodedAnswer]:
        headers = {"Accept-Encoding": ZSTD}
        if dictionary:
            headers |= {"Accept-Encoding": f"{DCZ}, {ZSTD}", "Available-Dictionary": format_dictionary(dictionary)}
        if held is not None:
            headers |= {"Range": f"bytes={held.size_bytes}-", "If-Range": held.etag}
        with _as_fetch_error(url):
            async with self._client.stream("GET", url, headers=headers, timeout=self._timeout) as response:
                if held is not None and _is_all_here(response, held):
                    yield CodedAnswer(held.coding, held.etag, held.size_bytes, _nothing())
                    return
                offset = _coded_start(response, url, held)
                coding = response.headers.get("Content-Encoding", "identity").lower().removeprefix("identity")
                async with contextlib.aclosing(_bounded(response, url, offset, max_bytes)) as chunks:
                    yield CodedAnswer(coding, response.headers.get("ETag", ""), offset, chunks)

    async def fetch_small(self, url: str, *, max_bytes: int) -> bytes:
        data = bytearray()
        headers = {"Accept-Encoding": "identity"}
        with _as_fetch_error(url):
            async with self._client.stream("GET", url, headers=headers, timeout=self._timeout) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refused(url, response)
                async for chunk in response.aiter_raw(16 << 10):
                    data += chunk
                    if len(data) > max_bytes:
                        raise WrongLengthError(url, f"more than {max_bytes} bytes")
        return bytes(data)


@contextlib.contextmanager
def _as_fetch_error(url: str) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise FetchError(url, f"{type(error).__name__}: {error}") from error


def _refused(url: str, response: httpx.Response) -> FetchError:
    asked_s = retry_after_s(response.headers.get("Retry-After"), time.time())
    return FetchError(url, f"the server answered {response.status_code}", asked_s=asked_s)


async def _bounded(response: httpx.Response, url: str, offset: int, max_bytes: int) -> AsyncGenerator[bytes]:
    position = offset
    with _as_fetch_error(url):
        async for chunk in response.aiter_raw():
            position += len(chunk)
            if position > max_bytes:
                raise WrongLengthError(url, f"more than {max_bytes} bytes")
            yield chunk


async def _nothing() -> AsyncGenerator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


def _is_all_here(response: httpx.Response, held: HeldPart) -> bool:
    """Return whether an answer to a range says that the file ends where what is held ends."""
    is_beyond = response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE
    return is_beyond and response.headers.get("Content-Range", "") == f"bytes */{held.size_bytes}"


def _coded_start(response: httpx.Response, url: str, held: HeldPart | None) -> int:
    """Return the place in the coded file at which an answer begins."""
    if response.status_code == httpx.codes.OK:
        return 0
    content_range = response.headers.get("Content-Range", "")
    if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise WrongLengthError(url, "what is here of it is longer")
    if held is None or response.status_code != httpx.codes.PARTIAL_CONTENT:
        raise _refused(url, response)
    if not content_range.startswith(f"bytes {held.size_bytes}-") or response.headers.get("ETag") != held.etag:
        raise FetchError(url, f"asked for bytes from {held.size_bytes}, the server sent {content_range[:80]!r}")
    return held.size_bytes


def _start(response: httpx.Response, url: str, offset: int, size_bytes: int) -> int:
    """Return how many bytes of the body come before `offset`, for an answer that carries the file."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise FetchError(url, f"the server sent it {encoding}-encoded, though asked not to")
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        content_range = response.headers.get("Content-Range", "")
        unit, _, span = content_range.partition(" ")
        first, _, total = span.partition("/")
        if unit != "bytes" or first.partition("-")[0] != str(offset):
            raise FetchError(url, f"asked for bytes from {offset}, the server sent {content_range[:80]!r}")
        if total not in ("*", str(size_bytes)):
            raise WrongLengthError(url, f"{total[:20]} bytes there, {size_bytes} are signed")
        return 0
    if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise WrongLengthError(url, f"it has no byte {offset}, {size_bytes} bytes are signed")
    if response.status_code != httpx.codes.OK:
        raise _refused(url, response)
    length = response.headers.get("Content-Length", str(size_bytes))
    if length != str(size_bytes):
        raise WrongLengthError(url, f"{length[:20]} bytes there, {size_bytes} are signed")
    return offset
