"""Transport of pulls: bytes that are named by their sha256 (§6, "pull the task files using the CDN address").

A `Fetcher` gives the rest of one file from an offset on. It knows nothing of hashes: what it brings is not trusted.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import httpx

from walle.base.backoff import retry_after_s
from walle.base.file_coding import format_dictionary
from walle.errors import DeployError

_REDIRECTS = (302, 303, 307)
_NO_AUTH = httpx.Auth()
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class FetchError(DeployError):
    """A pull that the network or the server did not carry out; the file itself may be good. Worth another try.

    `status` is the server's, where it answered that it does not give the file; else 0. `asked_s` is the pause that the
    server asked for (Retry-After), 0 for none.
    """

    def __init__(self, url: str, reason: str, *, status: int = 0, asked_s: float = 0.0) -> None:
        super().__init__(f"cannot pull {url}: {reason}")
        self.url = url
        self.reason = reason
        self.status = status
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
        self, url: str, *, codings: Sequence[str], dictionary: str, held: HeldPart | None, max_bytes: int
    ) -> contextlib.AbstractAsyncContextManager[CodedAnswer]:
        """Ask for the file at `url` in one of `codings` that is smaller, or as it is where the server has none.

        `dictionary` is the sha256 of a file to which a difference may be sent, "" for none. The answer continues from
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

    A server that ignores Range is accepted: bytes that are already here are skipped. One redirect is followed, to
    another store of files that the server names: with the request's own headers alone, so that nothing by which this
    device is known to its cloud (headers and cookies of the client) goes there.
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
            async with self._get(url, headers) as response:
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
        if position < size_bytes:  # a missing Content-Length hides that the link was dropped
            raise FetchError(url, f"ended after {position} bytes of {size_bytes}")

    @contextlib.asynccontextmanager
    async def fetch_coded(
        self, url: str, *, codings: Sequence[str], dictionary: str, held: HeldPart | None, max_bytes: int
    ) -> AsyncIterator[CodedAnswer]:
        headers = {"Accept-Encoding": ", ".join(codings)}
        if dictionary:
            headers["Available-Dictionary"] = format_dictionary(dictionary)
        if held is not None:
            headers |= {"Range": f"bytes={held.size_bytes}-", "If-Range": held.etag}
        with _as_fetch_error(url):
            async with self._get(url, headers) as response:
                if held is not None and _is_all_here(response, held):
                    yield CodedAnswer(held.coding, held.etag, held.size_bytes, _nothing())
                    return
                offset = _coded_start(response, url, held)
                coding = response.headers.get("Content-Encoding", "identity").lower().removeprefix("identity")
                async with contextlib.aclosing(_bounded(response, url, offset, max_bytes)) as chunks:
                    yield CodedAnswer(coding, response.headers.get("ETag", ""), offset, chunks)

    @contextlib.asynccontextmanager
    async def _get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        async with self._client.stream(
            "GET", url, headers=headers, timeout=self._timeout, follow_redirects=False
        ) as answer:
            if answer.status_code not in _REDIRECTS:
                yield answer
                return
            target = _target(answer, url)
        # It has whole files alone: a part of a coded form cannot continue there.
        kept = {"Accept-Encoding": "identity"} | ({} if "If-Range" in headers else _only_range(headers))
        request = httpx.Request("GET", target, headers=kept, extensions={"timeout": self._timeout.as_dict()})
        # Without `auth`, the client would add its own.
        answer = await self._client.send(request, stream=True, follow_redirects=False, auth=_NO_AUTH)
        async with contextlib.aclosing(answer):
            yield answer

    async def fetch_small(self, url: str, *, max_bytes: int, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the file at `url`; `headers` go to this address alone, as no redirect is followed."""
        data = bytearray()
        headers = {**(headers or {}), "Accept-Encoding": "identity"}
        with _as_fetch_error(url):
            async with self._client.stream(
                "GET", url, headers=headers, timeout=self._timeout, follow_redirects=False
            ) as response:
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
    status = response.status_code
    return FetchError(url, f"the server answered {status}", status=status, asked_s=asked_s)


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


def _target(answer: httpx.Response, url: str) -> httpx.URL:
    """Return where an answer redirects to.

    Over HTTPS the cloud may name any host, over HTTPS again. Over plain HTTP, where anybody on the way can answer, it
    may name other ports of its own host: else a device could be made to ask servers in its own network.
    """
    source, location = answer.request.url, answer.headers.get("Location", "")
    target = source.join(location)
    has_port = target.port is None or 0 < target.port < 65536
    if not location or not target.host or target.userinfo or not has_port:
        raise FetchError(url, f"the server redirects to {location[:200]!r}, which is not an address of a file")
    is_secure = (source.scheme, target.scheme) == ("https", "https")
    if not is_secure and (source.scheme != "http" or target.scheme != "http" or target.host != source.host):
        what = f"the server redirects to {target.scheme[:20]}://{target.host[:200]}"
        raise FetchError(url, f"{what}; only HTTPS leads to other hosts, and only to HTTPS")
    return target


def _only_range(headers: Mapping[str, str]) -> dict[str, str]:
    return {"Range": headers["Range"]} if "Range" in headers else {}


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
        raise WrongLengthError(url, "the part that is stored here is longer")
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
