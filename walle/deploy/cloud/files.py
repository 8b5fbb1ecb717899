"""Content-addressed files, and the ASGI app that serves them as `/cdn/{sha256}`.

A file's name is the sha256 of its bytes, so it never changes: any cache may keep it indefinitely, and a device
verifies it by its name. Devices refuse a damaged file; `FileStore.verify` detects it in the store.
"""

import asyncio
import hashlib
import json
import os
import re
from io import BufferedReader
from pathlib import Path

from walle.deploy.cloud.asgi import ASGIApp, Receive, Scope, Send
from walle.durable_file import make_folders, write_file
from walle.errors import DeployError

CHUNK_BYTES = 256 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROUTE = re.compile(r"(?:/cdn)?/([^/]*)")
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE | re.ASCII)


class FileStoreError(DeployError):
    """A file that the store does not hold, or a name that is not a sha256. `sha256` is the requested name."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(f"file {sha256[:80]!r}: {reason}")
        self.sha256 = sha256


class RangeError(ValueError):
    """A range that begins beyond the end of the file."""


class FileStore:
    """A folder of blobs named by their sha256. Several processes may put and read at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folders(folder)

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its sha256; a damaged copy is replaced."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        if path.exists() and self.verify(sha256):
            return sha256
        make_folders(path.parent)
        write_file(path, data, mode=0o644)
        return sha256

    def path(self, sha256: str) -> Path:
        """Return the path of the file, which need not exist.

        Raises:
            FileStoreError: `sha256` is not 64 lower-case hex digits.
        """
        if not _SHA256.fullmatch(sha256):
            raise FileStoreError(sha256, "not a sha256 in lower-case hex")
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).exists()

    def open(self, sha256: str) -> BufferedReader:
        """Return the file, open for reading. Raises FileStoreError where the store does not hold it."""
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError:
            raise FileStoreError(sha256, "the store does not hold it") from None

    def verify(self, sha256: str) -> bool:
        """Return whether the bytes on the disk still have this hash."""
        with self.open(sha256) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256


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


def cdn_app(store: FileStore) -> ASGIApp:
    """Return an ASGI app that answers GET and HEAD of `/cdn/{sha256}` from `store`, mounted there or at the root."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the ASGI signature
        if scope["type"] != "http":
            raise FileStoreError(str(scope["type"]), "the file store speaks HTTP alone")
        await _answer(store, scope, send)

    return app


async def _answer(store: FileStore, scope: Scope, send: Send) -> None:
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
    try:
        file = await asyncio.to_thread(store.open, sha256)
    except FileStoreError:
        return await _send_error(send, scope, 404, f"no file {sha256}; was its version released from this cloud?")
    with file:
        await _send_file(file, sha256, scope, send)
    return None


async def _send_file(file: BufferedReader, sha256: str, scope: Scope, send: Send) -> None:
    request = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    etag = f'"{sha256}"'
    headers = [
        (b"etag", etag.encode()),
        (b"cache-control", b"public, max-age=31536000, immutable"),
        (b"accept-ranges", b"bytes"),
    ]
    if _matches(request.get(b"if-none-match", ""), etag):
        return await _send_head(send, 304, headers, ends=True)
    size_bytes = os.fstat(file.fileno()).st_size
    start, stop, status = 0, size_bytes, 200
    range_header = request.get(b"range", "")
    if range_header and scope["method"] == "GET" and request.get(b"if-range", etag).strip() == etag:
        try:
            part = parse_range(range_header, size_bytes)
        except RangeError as error:
            headers.append((b"content-range", f"bytes */{size_bytes}".encode()))
            return await _send_error(send, scope, 416, f"Range {range_header[:80]!r} {error}", headers[2:])
        if part is not None:
            (start, stop), status = part, 206
            headers.append((b"content-range", f"bytes {start}-{stop - 1}/{size_bytes}".encode()))
    headers.append((b"content-type", b"application/octet-stream"))
    headers.append((b"content-length", str(stop - start).encode()))
    await _send_head(send, status, headers, ends=scope["method"] == "HEAD")
    if scope["method"] == "GET":
        await _send_body(file, start, stop, send)
    return None


async def _send_body(file: BufferedReader, start: int, stop: int, send: Send) -> None:
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
