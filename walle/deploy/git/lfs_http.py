"""Git LFS of task repositories over HTTP, at /git/{scenario}.git/info/lfs (page 174).

The batch API: a client asks what to do for each file by its sha256 and length, and then sends or gets the bytes at an
address of the same gateway, with the token of its request. Bytes go to the disk as they come, and count once length and
sha256 are right. With the transfer `basic` a file is put whole; with `tus`, which a client names in the batch, an
upload that was cut continues where it ended (the core protocol of tus 1.0.0: HEAD gives the offset, PATCH adds bytes).
https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
https://tus.io/protocols/resumable-upload
"""

import asyncio
import dataclasses
import json
import logging
import re
from collections.abc import Mapping, Sequence
from io import BufferedReader
from typing import Any
from urllib.parse import parse_qs

from walle.access.access import Identifier, Identity, Role
from walle.access.scenario_groups import NotInGroupError
from walle.base.asgi import ASGIApp, NotedSend, Receive, Scope, Send
from walle.deploy.git.git_address import parse_address
from walle.deploy.git.large_file_store import (
    IncomingFile,
    LargeFileBusyError,
    LargeFileError,
    LargeFileLimits,
    LargeFileStore,
    Used,
)
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.deploy.git.slots import Place, PlaceLostError, Places, PlacesTakenError
from walle.deploy.shared_files.cdn import RangeError, parse_range
from walle.errors import DeployError
from walle.store.disk_space import DiskFullError, DiskSpace, is_full

MAX_BATCH_BYTES = 256 << 10
MAX_OBJECTS = 1000  # objects in one batch; git-lfs asks for 100
MAX_TRANSFERS = 32
MAX_TRANSFERS_EACH = 8  # transfers of one token's owner; git-lfs begins as many
_CHUNK_BYTES = 1 << 20
_TYPE = b"application/vnd.git-lfs+json"
_TUS_TYPE = "application/offset+octet-stream"
_TUS_VERSION = "1.0.0"
_TAIL = re.compile(r"info/lfs/objects/(batch|[0-9a-f]{64})")
_RETRY_AFTER_S = 5
_LOG = logging.getLogger(__name__)


class LfsError(DeployError):
    """A request that is answered with an HTTP error, whose message git-lfs shows. `status` is its code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def is_lfs(path: str) -> bool:
    """Return whether a path is one of Git LFS."""
    return ".git/info/lfs/" in path


_REFUSALS = (LfsError, LargeFileError, PlacesTakenError, PlaceLostError, RepoError, NotInGroupError, DiskFullError)


@dataclasses.dataclass(frozen=True)
class _Room:
    """Bounds of files that come."""

    limits: LargeFileLimits
    space: DiskSpace | None

    def check(self, sha256: str, size_bytes: int, used: Used, held_bytes: int = 0) -> None:
        """Raise LargeFileError or DiskFullError where a file of this length may not come.

        `held_bytes` of it are here already, and in `used`.
        """
        others = Used(used.size_bytes - held_bytes, used.files - 1) if held_bytes else used
        self.limits.check(sha256, size_bytes, others)
        if self.space is not None:
            self.space.check(size_bytes - held_bytes)


def lfs_app(
    repos: TaskRepos, access: Identifier, *, limits: LargeFileLimits | None = None, space: DiskSpace | None = None
) -> ASGIApp:
    """Return an ASGI app for `/git/{scenario}.git/info/lfs`, mounted at /git or at the root.

    A reader of the scenario gets files, and an author puts them, within `limits` and while `space` has room.
    """
    places = Places(MAX_TRANSFERS, MAX_TRANSFERS_EACH)
    room = _Room(limits or LargeFileLimits(), space)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        noted = NotedSend(send)
        try:
            await _serve(repos, access, room, places, scope, receive, noted)
        except (*_REFUSALS, OSError) as error:
            if noted.has_begun or (isinstance(error, OSError) and not is_full(error)):
                raise
            if isinstance(error, OSError):
                error = DiskFullError.of(error, repos.spool)
            # `message` is what git-lfs shows, `error` what walle's own commands do.
            answer = {"message": str(error), "error": str(error)}
            await _send_json(send, _status_of(error), answer, has_body=scope["method"] != "HEAD")

    return app


def _status_of(error: Exception) -> int:
    if isinstance(error, LfsError | PlacesTakenError):
        return error.status
    if isinstance(error, LargeFileBusyError):
        return 423
    if isinstance(error, LargeFileError):
        return 507 if error.is_full else 422
    statuses: dict[type[Exception], int] = {PlaceLostError: 503, RepoError: 404, NotInGroupError: 404}
    return statuses.get(type(error), 507)


async def _serve(
    repos: TaskRepos,
    access: Identifier,
    room: _Room,
    places: Places,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    path = scope["path"]
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    address = parse_address(scope)
    match = None if address is None else _TAIL.fullmatch(address.tail)
    if address is None or match is None:
        raise LfsError(404, f"{path[:120]!r} is not part of Git LFS here; there are objects/batch and objects/SHA256")
    scenario, name = address.scenario, match[1]
    identity = access.identify_header(headers.get(b"authorization", ""))
    if identity is None:
        raise LfsError(401, "a token is needed: any user name, and the token as password")
    role = identity.role(scenario)
    if role < Role.READER:
        raise LfsError(
            403, f"{identity.name} needs the role {Role.READER} in scenario {scenario[:80]!r}, and has {role}"
        )
    address.check_group(identity)
    with repos.open(scenario):  # raises where it does not exist
        store = repos.large_files(scenario)
    method = scope["method"]
    if name == "batch" and method == "POST":
        answer = await _batch(store, identity, scenario, room, headers, scope, await _read(receive))
        return await _send_json(send, 200, answer)
    if name != "batch" and method in ("GET", "PUT"):
        with places.taken(identity.name) as place:
            if method == "GET":
                return await _send_file(store, name, headers, send, place)
            _check_author(identity, scenario)
            await _receive_file(store, name, room, headers, receive, place)
            _LOG.info("large file %s came to %s from %s", name, scenario, identity.name)
            return await _send_json(send, 200, {})
    if name != "batch" and method in ("HEAD", "PATCH"):
        _check_author(identity, scenario)
        if method == "HEAD":
            offset = await asyncio.to_thread(_offset, store, name, identity.name)
            return await _send_offset(send, 200, offset)
        with places.taken(identity.name) as place:
            offset = await _extend_file(store, name, identity.name, room, headers, scope, receive, place)
        _LOG.info("%d bytes of large file %s are in %s from %s", offset, name, scenario, identity.name)
        return await _send_offset(send, 204, offset)
    raise LfsError(405, f"{method} is not for {path[:120]}")


def _check_author(identity: Identity, scenario: str) -> None:
    role = identity.role(scenario)
    if role < Role.AUTHOR:
        raise LfsError(403, f"{identity.name} needs the role {Role.AUTHOR} in scenario {scenario!r}, and has {role}")


async def _batch(
    store: LargeFileStore,
    identity: Identity,
    scenario: str,
    room: _Room,
    headers: Mapping[bytes, str],
    scope: Scope,
    body: bytes,
) -> dict[str, Any]:
    """Return what the client is to do for each file that it names."""
    operation, objects, transfer = _parse_batch(body)
    if operation == "upload":
        _check_author(identity, scenario)
    # Behind a proxy that ends TLS the token must not go back over plain HTTP. Who forges the header gets the answer.
    scheme = "https" if headers.get(b"x-forwarded-proto", "").strip().lower() == "https" else scope["scheme"]
    prefix = f"{scheme}://{headers.get(b'host', '')}{scope['path'].removesuffix('/batch')}"
    header = {"Authorization": headers[b"authorization"]}
    used = await asyncio.to_thread(store.used)

    def plan(sha256: str, size_bytes: int) -> dict[str, Any]:
        nonlocal used
        found = {"oid": sha256, "size": size_bytes}
        # Requests of tus do not say how long the whole file is.
        query = f"?size={size_bytes}" if transfer == "tus" else ""
        action = {"href": f"{prefix}/{sha256}{query}", "header": header}
        held_bytes = store.renew(sha256) if operation == "upload" else store.size_bytes(sha256)
        if held_bytes is not None and held_bytes != size_bytes:
            return found | _error(422, f"the file of this sha256 has {held_bytes} bytes")
        if operation == "download":
            if held_bytes is None:
                return found | _error(404, "it was never pushed here, or only in part")
            return found | {"actions": {"download": action}}
        if held_bytes is not None:
            return found
        partial_bytes = store.partial_bytes(sha256, identity.name) if transfer == "tus" else 0
        try:
            room.check(sha256, size_bytes, used, partial_bytes)
        except (LargeFileError, DiskFullError) as error:
            return found | _error(_status_of(error), str(error))
        used = Used(used.size_bytes + size_bytes - partial_bytes, used.files + (not partial_bytes))
        return found | {"actions": {"upload": action}}

    plans = await asyncio.to_thread(lambda: [plan(*one) for one in objects])
    return {"transfer": transfer, "objects": plans, "hash_algo": "sha256"}


def _parse_batch(body: bytes) -> tuple[str, Sequence[tuple[str, int]], str]:
    """Return the operation of a batch, sha256 and length of its files, and the transfer to use."""
    try:
        plain = json.loads(body)
        operation, listed = plain["operation"], plain["objects"]
        transfers, algorithm = plain.get("transfers", ["basic"]), plain.get("hash_algo", "sha256")
        objects = [(one["oid"], one["size"]) for one in listed]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LfsError(422, f"this is not a batch request of Git LFS: {error!r}"[:300]) from error
    if not isinstance(transfers, list):
        raise LfsError(422, "the transfers of a batch request are a list")
    served = {"upload": ("tus", "basic"), "download": ("basic",)}.get(operation if type(operation) is str else "", ())
    transfer = next((one for one in served if one in transfers), None)
    if transfer is None or algorithm != "sha256":
        what = "only uploads by the transfers basic and tus, and downloads by basic, of files named by sha256,"
        raise LfsError(422, f"{what} are served")
    if len(objects) > MAX_OBJECTS:
        raise LfsError(413, f"a batch names {MAX_OBJECTS} files at most, and this one {len(objects)}")
    for sha256, size_bytes in objects:
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise LfsError(422, f"{str(sha256)[:80]!r} is not a sha256 in lower-case hex")
        if type(size_bytes) is not int or size_bytes < 0:
            raise LfsError(422, f"{sha256}: its size is not a number of bytes")
    return operation, objects, transfer


async def _receive_file(
    store: LargeFileStore,
    sha256: str,
    room: _Room,
    headers: Mapping[bytes, str],
    receive: Receive,
    place: Place,
) -> None:
    size_bytes = _content_length(headers)
    await asyncio.to_thread(lambda: room.check(sha256, size_bytes, store.used()))
    with store.receiving(sha256, size_bytes) as file:
        await _write_body(file, receive, place)
        await _keep(file)


async def _extend_file(
    store: LargeFileStore,
    sha256: str,
    owner: str,
    room: _Room,
    headers: Mapping[bytes, str],
    scope: Scope,
    receive: Receive,
    place: Place,
) -> int:
    """Add the body to an upload of `owner`, and return how many bytes of the file are here then.

    What came before a connection ended stays. The file is kept once it is whole.
    """
    offset, given = headers.get(b"upload-offset", ""), parse_qs(scope.get("query_string", b"").decode("latin-1"))
    size = given.get("size", [""])[0]
    if headers.get(b"content-type", "") != _TUS_TYPE:
        raise LfsError(415, f"a PATCH has the content type {_TUS_TYPE}")
    if not re.fullmatch("[0-9]{1,15}", offset) or not re.fullmatch("[0-9]{1,15}", size):
        raise LfsError(400, "a PATCH has the header Upload-Offset, and the address that the batch request gave")
    length, start, size_bytes = _content_length(headers), int(offset), int(size)
    if start + length > size_bytes:
        raise LfsError(413, f"{start} and {length} bytes are more than the {size_bytes} of the file")
    if store.size_bytes(sha256) is not None:
        raise LfsError(409, "the file is already stored")
    await asyncio.to_thread(lambda: room.check(sha256, size_bytes, store.used(), store.partial_bytes(sha256, owner)))
    with store.resuming(sha256, size_bytes, owner) as file:
        if file.size_bytes != start:
            raise LfsError(
                409,
                f"{file.size_bytes} bytes of the file are stored, and these begin at {start}; ask where to continue",
            )
        await _write_body(file, receive, place)
        if file.size_bytes == size_bytes:
            await _keep(file)
        return file.size_bytes


def _offset(store: LargeFileStore, sha256: str, owner: str) -> int:
    """Return how many bytes of a file are here: all, or those of an upload of `owner` that was cut."""
    size_bytes = store.renew(sha256)
    if size_bytes is not None:
        return size_bytes
    if not store.partial_bytes(sha256, owner):
        return 0
    with store.resuming(sha256, 0, owner) as file:  # raises while another request adds to it
        return file.size_bytes


def _content_length(headers: Mapping[bytes, str]) -> int:
    length = headers.get(b"content-length", "")
    if not re.fullmatch("[0-9]{1,15}", length):
        raise LfsError(411, "the length of the file is needed: send Content-Length")
    return int(length)


async def _write_body(file: IncomingFile, receive: Receive, place: Place) -> None:
    """Write the body of a request to a file as it comes, all that came before the client disconnected too."""
    data, has_more = bytearray(), True
    while has_more:
        async with place.waiting():
            message = await receive()
        is_cut = message["type"] != "http.request"
        data += message.get("body", b"")
        has_more = message.get("more_body", False)
        if data and (len(data) >= _CHUNK_BYTES or is_cut or not has_more):
            await asyncio.to_thread(file.write, bytes(data))
            data.clear()
        if is_cut:
            raise LfsError(400, "the file ended early")


async def _keep(file: IncomingFile) -> None:
    keeping = asyncio.ensure_future(asyncio.to_thread(file.keep))
    try:
        await asyncio.shield(keeping)
    except asyncio.CancelledError:
        await asyncio.wait([keeping])  # the thread uses the file: leave it open until it ends
        raise


async def _send_file(
    store: LargeFileStore, sha256: str, headers: Mapping[bytes, str], send: Send, place: Place
) -> None:
    """Send a file, or its rest from an offset on: git-lfs resumes with Range."""
    try:
        file = store.open(sha256)
    except LargeFileError as error:
        raise LfsError(404, str(error)) from error
    with file:
        size_bytes = file.seek(0, 2)
        start, stop, status = 0, size_bytes, 200
        fields = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"private, no-store")]
        try:
            part = parse_range(headers.get(b"range", ""), size_bytes)
        except RangeError as error:
            raise LfsError(416, f"the range {error}") from error
        if part is not None:
            (start, stop), status = part, 206
            fields.append((b"content-range", f"bytes {start}-{stop - 1}/{size_bytes}".encode()))
        fields.append((b"content-length", str(stop - start).encode()))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        while start < stop:
            chunk = await asyncio.to_thread(_read_at, file, start, min(_CHUNK_BYTES, stop - start))
            if not chunk:
                raise OSError("a stored file was cut short while it was being sent")
            start += len(chunk)
            async with place.waiting():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _read_at(file: BufferedReader, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)


async def _read(receive: Receive) -> bytes:
    """Return the body of a batch request."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise LfsError(400, "the request ended early")
        data += message.get("body", b"")
        if len(data) > MAX_BATCH_BYTES:
            raise LfsError(413, f"a batch request has at most {MAX_BATCH_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(data)


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message}}


async def _send_offset(send: Send, status: int, offset: int) -> None:
    """Answer a request of tus."""
    fields = {"tus-resumable": _TUS_VERSION, "upload-offset": str(offset), "cache-control": "no-store"}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    if status != 204:
        headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_json(send: Send, status: int, plain: Mapping[str, Any], *, has_body: bool = True) -> None:
    body = json.dumps(plain).encode()
    headers = [(b"content-type", _TYPE), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    if status == 401:
        headers += [(b"lfs-authenticate", b'Basic realm="walle"'), (b"www-authenticate", b'Basic realm="walle"')]
    if status in (429, 503):
        headers.append((b"retry-after", str(_RETRY_AFTER_S).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body if has_body else b"", "more_body": False})
