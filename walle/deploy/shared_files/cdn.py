"""ASGI app that serves the files of a `FileStore` as `/cdn/{sha256}` (§6), whole or in a content coding.

Whole files of a store that has its own addresses (`FileStore.address`) are redirected there for REDIRECT_S seconds.
"""

import asyncio
import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from typing import BinaryIO

from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.file_coding import DCZ, XOR, ZSTD, parse_dictionary
from walle.deploy.shared_files.coded_files import IDENTITY, CodedFile, CodedFiles
from walle.deploy.shared_files.store import FileStore, FileStoreError, FileStoreUnavailableError

_LOG = logging.getLogger(__name__)
CHUNK_BYTES = 256 * 1024
REDIRECT_S = 300
_ZERO_COPY = "http.response.zerocopysend"  # an extension of ASGI, which the gateway's server has without TLS
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROUTE = re.compile(r"(?:/cdn)?/([^/]*)")
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE | re.ASCII)
_NEVER = re.compile(r"q\s*=\s*0(\.0*)?")


class RangeError(ValueError):
    """A range that begins beyond the end of the file."""


def parse_range(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the first byte of one range and the byte after its last, or None where the whole file is the answer.

    Several ranges at once, other units and invalid ranges are answered with the whole file, as RFC 9110 §14.2 allows.

    Raises:
        RangeError: the range is well-formed, and the file has none of it.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < start:
            return None
    if start >= size_bytes:
        raise RangeError(f"begins at {start}, the file has {size_bytes} bytes")
    return start, stop


def cdn_app(store: FileStore, coded_files: CodedFiles | None = None, *, accel_redirect: str = "") -> ASGIApp:
    """Return an ASGI app that answers GET and HEAD of `/cdn/{sha256}` from `store`, mounted there or at the root.

    Who accepts the codings zstd, dcz or walle-xor gets a form of the file in one of them where `coded_files` has one.
    With `accel_redirect`, a prefix such as /stored, whole files are left to nginx, in front of this app alone: the
    answer names PREFIX/ab/abc... in X-Accel-Redirect, the path of the file in the store's folder.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
        if scope["type"] != "http":
            raise FileStoreError(str(scope["type"]), "the file store serves HTTP only")
        await _answer(store, coded_files, accel_redirect.rstrip("/"), scope, send)

    return app


async def _answer(
    store: FileStore, coded_files: CodedFiles | None, accel_redirect: str, scope: Scope, send: Send
) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        allow = [(b"allow", b"GET, HEAD")]
        return await _send_error(send, scope, 405, f"{scope['method']} is not for files; GET or HEAD", allow)
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    match = _ROUTE.fullmatch(path)
    sha256 = match.group(1) if match else ""
    if not _SHA256.fullmatch(sha256):
        return await _send_error(
            send, scope, 404, f"{path[:120]!r} is not the path of a file; ask for /cdn/ and a sha256 in hex"
        )
    request = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        served = await asyncio.to_thread(_open, store, coded_files, sha256, request)
    except FileStoreUnavailableError as error:
        _LOG.error("%s", error)
        extra = [(b"retry-after", b"10")]
        return await _send_error(send, scope, 503, "the cloud's store of files does not answer; try again", extra)
    except FileStoreError:
        return await _send_error(send, scope, 404, f"no file {sha256}; was its version released from this cloud?")
    if isinstance(served, str):
        return await _send_head(send, 302, [(b"location", served.encode()), (b"cache-control", b"no-store")], ends=True)
    if accel_redirect and served.coding == IDENTITY:
        served.file.close()
        headers = [*_lasting(served.etag), (b"content-type", b"application/octet-stream")]
        headers += [
            (b"x-accel-redirect", f"{accel_redirect}/{sha256[:2]}/{sha256}".encode()),
            (b"content-length", b"0"),
        ]
        return await _send_head(send, 200, headers, ends=True)
    with served.file:
        await _send_file(served, request, scope, send)
    return None


def _open(
    store: FileStore, coded_files: CodedFiles | None, sha256: str, request: Mapping[bytes, str]
) -> CodedFile | str:
    """Return the form of a file that its caller gets, or the address of the whole one.

    Raises:
        FileStoreError: the store does not have it.
    """
    codings = _accepted(request.get(b"accept-encoding", ""))
    if coded_files is not None and codings and store.has(sha256):
        dictionary = parse_dictionary(request.get(b"available-dictionary", ""))
        if found := coded_files.find(sha256, codings, dictionary):
            return found
    if url := store.address(sha256, REDIRECT_S):
        return url
    return CodedFile(IDENTITY, store.open(sha256), f'"{sha256}"')


def _accepted(header: str) -> frozenset[str]:
    """Return which of the codings that files have an Accept-Encoding allows."""
    accepted = set()
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in (ZSTD, DCZ, XOR) and not _NEVER.fullmatch(weight.strip()):
            accepted.add(name.strip())
    return frozenset(accepted)


async def _send_file(served: CodedFile, request: Mapping[bytes, str], scope: Scope, send: Send) -> None:
    file, etag = served.file, served.etag
    headers = _lasting(etag)
    if served.coding != IDENTITY:
        headers.append((b"content-encoding", served.coding.encode()))
    if _matches(request.get(b"if-none-match", ""), etag):
        return await _send_head(send, 304, headers, ends=True)
    size_bytes = file.seek(0, os.SEEK_END)
    start, stop, status = 0, size_bytes, 200
    range_header = request.get(b"range", "")
    if range_header and scope["method"] == "GET" and request.get(b"if-range", etag).strip() == etag:
        try:
            part = parse_range(range_header, size_bytes)
        except RangeError as error:
            headers.append((b"content-range", f"bytes */{size_bytes}".encode()))
            extra = [(b"accept-ranges", b"bytes"), headers[-1]]
            return await _send_error(send, scope, 416, f"Range {range_header[:80]!r} {error}", extra)
        if part is not None:
            (start, stop), status = part, 206
            headers.append((b"content-range", f"bytes {start}-{stop - 1}/{size_bytes}".encode()))
    headers.append((b"content-type", b"application/octet-stream"))
    headers.append((b"content-length", str(stop - start).encode()))
    await _send_head(send, status, headers, ends=scope["method"] == "HEAD")
    if scope["method"] == "GET":
        if start < stop and _ZERO_COPY in scope.get("extensions", {}) and _is_on_disk(file):
            await send({"type": _ZERO_COPY, "file": file, "offset": start, "count": stop - start, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await _send_body(file, start, stop, send)
    return None


def _is_on_disk(file: BinaryIO) -> bool:
    """Return whether the kernel can send a file: those of other stores may be no files of this machine."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # a stream without a descriptor
        return False


def _lasting(etag: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a file, which never changes."""
    return [
        (b"etag", etag.encode()),
        (b"cache-control", b"public, max-age=31536000, immutable"),
        (b"vary", b"accept-encoding, available-dictionary"),
        (b"accept-ranges", b"bytes"),
    ]


async def _send_body(file: BinaryIO, start: int, stop: int, send: Send) -> None:
    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    while start < stop:
        chunk = await asyncio.to_thread(read, start, min(CHUNK_BYTES, stop - start))
        if not chunk:
            raise OSError("a stored file was cut short while it was being sent")
        start += len(chunk)
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_head(send: Send, status: int, headers: list[tuple[bytes, bytes]], *, ends: bool) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if ends:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_error(
    send: Send, scope: Scope, status: int, message: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = json.dumps({"error": message}).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False})


def _matches(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags
