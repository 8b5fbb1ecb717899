"""`git clone`, `git fetch` and `git push` of task repositories over HTTP at /git/{scenario}.git, by role.

The smart HTTP protocol (gitprotocol-http), version 0, which every git client speaks. Each ref of a push is
checked by itself: a branch may move, a version may not, and a version that does not build is refused with the reason,
which git shows beside the tag. Requests are spooled to the disk before git work starts, and answers too: a slow client
occupies neither a thread nor a repository. What is spooled is bounded for each token and in all. Packs are unpacked and
made by git, in child processes with limits; the lock of a repository is held only while objects are moved in and refs
are set.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs

from dulwich.objects import ZERO_SHA
from dulwich.protocol import pkt_line
from dulwich.refs import HEADREF, Ref
from dulwich.repo import Repo

from walle.access.access import Identifier, Role
from walle.access.audit import AuditStore
from walle.access.scenario_groups import NotInGroupError
from walle.base.asgi import ASGIApp, NotedSend, Receive, Scope, Send, address_of
from walle.base.clock import Clock, SystemClock
from walle.base.daily_quota import DailyQuota
from walle.deploy.git.git_address import parse_address
from walle.deploy.git.git_process import GitLimits, GitProcessError, run_git
from walle.deploy.git.git_push import MAX_PACK_BYTES, PushRules, receive_push
from walle.deploy.git.git_request import GitHttpError, GitRequest
from walle.deploy.git.git_use import GitQuota, git_use
from walle.deploy.git.large_file_store import LargeFileLimits
from walle.deploy.git.lfs_http import is_lfs, lfs_app
from walle.deploy.git.push_rules import MAX_REFS_A_DAY
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.deploy.git.slots import Place, PlaceLostError, Places, PlacesTakenError
from walle.deploy.git.spool_budget import SpoolBudget, SpoolFullError, SpoolShare
from walle.store.disk_space import DiskFullError, DiskSpace, free_bytes, is_full
from walle.task.format.compilers import Compile, compile_apart

MAX_REQUEST_BYTES = MAX_PACK_BYTES
MAX_ANSWER_BYTES = 1 << 30
SPOOLED_BYTES = 2 << 30  # bytes of all answers that wait for their clients; the same again for requests that come
SPOOLED_ANSWERS_EACH = 128 << 20  # bytes for one token, or one answer
SPOOLED_REQUESTS_EACH = 2 * MAX_REQUEST_BYTES
_SPARE_BYTES = 8 << 20  # bytes that an answer may have beyond the objects of its repository
_SLOWEST_BYTES_S = 16 * 1024  # average rate at which a client must read an answer
_SLOW_GRACE_S = 60.0  # time after which the rate counts
_SPOOL_BYTES = 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_UNPACK_BYTES = 256 * 1024  # piece of a gzip body that is unpacked at a time
_READ_THREADS = 4
_PUSH_THREADS = 2  # two pushes are unpacked at a time, each in the memory of its limits
MAX_REQUESTS = 32  # requests that are spooled or served at once
MAX_REQUESTS_EACH = 8  # requests for the owner of one token
_UPLOAD_LIMITS = GitLimits(cpu_s=60, wall_s=120.0, file_bytes=MAX_ANSWER_BYTES)
_RECEIVE_CAPABILITIES = b"report-status delete-refs quiet ofs-delta object-format=sha1 agent=walle"
_TAILS = ("info/refs", "git-upload-pack", "git-receive-pack")
_NEEDS = {"git-upload-pack": Role.READER, "git-receive-pack": Role.AUTHOR}
_LOG = logging.getLogger(__name__)

type OnPush = Callable[[str, str, str], Awaitable[None]]  # scenario, ref such as refs/tags/ipv/v1, commit


class _OversizedError(GitHttpError):
    """An answer of more bytes than its share of the spool."""


class _SlowClientError(Exception):
    """A client that reads an answer too slowly, which has begun."""


_RETRY_AFTER_S = {429: 5, 503: 5, 507: 60}


def git_app(
    repos: TaskRepos,
    access: Identifier,
    on_push: OnPush | None = None,
    *,
    limits: GitLimits | None = None,
    space: DiskSpace | None = None,
    audit: AuditStore | None = None,
    compile_sources: Compile = compile_apart,
    clock: Clock | None = None,
    large_file_limits: LargeFileLimits | None = None,
    quota: GitQuota | None = None,
    answers: SpoolBudget | None = None,
) -> ASGIApp:
    """Return an ASGI app for `/git/{scenario}.git`, with Git LFS, mounted there or at the root.

    A scenario in a group has the address `/git/{group}/{scenario}.git` too.

    `on_push` is awaited for each ref that a push has set, before the push is answered. It is not called if the process
    ends between the two: a caller that needs every version must read `TaskRepos.versions` at start. `limits` are those
    of unpacking a push. While `space` is low, pushes are refused. `audit` gets a record of each ref before it changes.
    `compile_sources` compiles what is pushed. `quota` bounds what a scenario and a token keep, `answers` what waits on
    the disk for clients to read it.
    """
    reading = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="walle-git")
    writing = ThreadPoolExecutor(_PUSH_THREADS, thread_name_prefix="walle-git-push")
    pushes: set[asyncio.Task[None]] = set()
    places = Places(MAX_REQUESTS, MAX_REQUESTS_EACH)
    bodies = SpoolBudget(SPOOLED_BYTES, SPOOLED_REQUESTS_EACH)
    spooled = answers or SpoolBudget(SPOOLED_BYTES, SPOOLED_ANSWERS_EACH)
    refs = DailyQuota(clock or SystemClock(), MAX_REFS_A_DAY)
    rules = PushRules(limits or GitLimits(), audit, compile_sources, refs, quota or GitQuota(), repos)
    large_files = lfs_app(repos, access, limits=large_file_limits, space=space)
    push = functools.partial(receive_push, repos, rules)
    writing_bytes = 0  # bytes that the answers being written may take

    async def serve(request: GitRequest, body: IO[bytes], answer: IO[bytes], most_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        if request.advertises:
            await loop.run_in_executor(reading, _advertise, repos, request, answer)
        elif request.service == "git-upload-pack":
            await loop.run_in_executor(reading, _upload, repos, request.scenario, body, answer, most_bytes)
        else:
            updated = await loop.run_in_executor(writing, push, request, body, answer)
            for ref, commit in updated:
                _LOG.info("push to %s: %s is %s", request.scenario, ref, commit)
                if on_push is None:
                    continue
                try:
                    await on_push(request.scenario, ref, commit)
                except Exception:  # noqa: BLE001 - the push is done; an error of its listener does not undo it
                    _LOG.exception("listener failed on the push of %s to %s", ref, request.scenario)

    async def finish(request: GitRequest, body: IO[bytes], answer: IO[bytes], most_bytes: int) -> None:
        """Serve, also where the client disconnects: a push that has begun is finished, and `on_push` called."""
        task = asyncio.create_task(serve(request, body, answer, most_bytes))
        pushes.add(task)
        task.add_done_callback(pushes.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])  # the thread reads the spools: keep them open until it ends
            raise

    async def write(request: GitRequest, body: IO[bytes], answer: IO[bytes], most_bytes: int) -> None:
        """Write the answer of a fetch, of as many bytes as the disk has room for beside those that others may write.

        Raises:
            DiskFullError: it has more than that.
        """
        nonlocal writing_bytes
        room_bytes = most_bytes if space is None else space.room_bytes(writing_bytes + 1) - writing_bytes
        granted_bytes = min(most_bytes, room_bytes)
        writing_bytes += granted_bytes
        try:
            await finish(request, body, answer, granted_bytes)
        except _OversizedError:
            if granted_bytes < most_bytes:
                raise DiskFullError(str(repos.spool), free_bytes(repos.spool)) from None
            raise
        finally:
            writing_bytes -= granted_bytes

    async def fetch(request: GitRequest, body: IO[bytes], answer: IO[bytes]) -> SpoolShare:
        """Write the answer of a fetch, which is seldom larger than the repository; return its share of the spool."""
        size_bytes = await asyncio.to_thread(_size_bytes, repos, request.scenario)
        likely_bytes = min(size_bytes + _SPARE_BYTES, MAX_ANSWER_BYTES)
        for most_bytes in (likely_bytes, MAX_ANSWER_BYTES):
            share = await spooled.take(request.identity.name, most_bytes)
            try:
                await write(request, body, answer, most_bytes)
            except _OversizedError:
                share.shrink(0)
                if most_bytes == MAX_ANSWER_BYTES:
                    raise
                body.seek(0)
                answer.seek(0)
                answer.truncate()
            except BaseException:
                share.shrink(0)
                raise
            else:
                share.shrink(answer.tell())
                break
        return share

    async def spool_and_serve(scope: Scope, receive: Receive, send: Send, request: GitRequest, place: Place) -> None:
        with contextlib.ExitStack() as undo:
            spool = functools.partial(tempfile.SpooledTemporaryFile, _SPOOL_BYTES, dir=str(repos.spool))
            body, answer = undo.enter_context(spool()), undo.enter_context(spool())
            if request.service == "git-receive-pack" and space is not None:
                space.check()
            share = undo.enter_context(await bodies.take(request.identity.name, 0))
            async with place.waiting():
                if not await _spool(scope, receive, body, share, space):
                    return  # the client disconnected before the end of its request
            if request.service == "git-upload-pack" and not request.advertises:
                undo.enter_context(await fetch(request, body, answer))
            else:
                await finish(request, body, answer, MAX_ANSWER_BYTES)
            kind = "advertisement" if request.advertises else "result"
            async with place.waiting():
                await _send_file(send, f"application/x-{request.service}-{kind}", answer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise GitHttpError(500, f"task repositories speak HTTP, not {scope['type']}")
        if is_lfs(scope["path"]):
            return await large_files(scope, receive, send)
        noted = NotedSend(send)
        try:
            request = _judge(scope, access)
            with places.taken(request.identity.name) as place:
                await spool_and_serve(scope, receive, noted, request, place)
        except GitHttpError as error:
            await _send_error(send, error)
        except PlacesTakenError as error:
            await _send_error(send, GitHttpError(error.status, str(error)))
        except PlaceLostError as error:
            if noted.has_begun:
                _LOG.warning("git: an answer was ended, since its client was slow and others waited")
                raise
            await _send_error(send, GitHttpError(503, str(error)))
        except SpoolFullError as error:
            await _send_error(send, GitHttpError(429 if error.own else 503, str(error)))
        except (RepoError, NotInGroupError) as error:
            await _send_error(send, GitHttpError(404, str(error)))
        except DiskFullError as error:
            await _send_error(send, GitHttpError(507, str(error)))
        except OSError as error:
            if not is_full(error):
                raise
            await _send_error(send, GitHttpError(507, str(DiskFullError.of(error, repos.spool))))

    return app


def _judge(scope: Scope, access: Identifier) -> GitRequest:
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    address = parse_address(scope)
    if address is None or address.tail not in _TAILS:
        raise GitHttpError(404, f"{scope['path'][:120]!r} is not part of a task repository; clone /git/SCENARIO.git")
    scenario, tail = address.scenario, address.tail
    advertises = tail == "info/refs"
    if scope["method"] != ("GET" if advertises else "POST"):
        raise GitHttpError(405, f"{scope['method']} is not for {tail}")
    service = parse_qs(scope["query_string"].decode("latin-1")).get("service", [""])[0] if advertises else tail
    if service not in _NEEDS:
        raise GitHttpError(403, "only the smart HTTP protocol is served; use git 1.6.6 or newer")
    if not advertises and headers.get(b"content-type") != f"application/x-{service}-request":
        raise GitHttpError(415, f"the content type of {tail} is application/x-{service}-request")
    identity = access.identify_header(headers.get(b"authorization", ""))
    if identity is None:
        raise GitHttpError(401, "a token is needed: any user name, and the token as password")
    role = identity.role(scenario)
    if role < _NEEDS[service]:
        raise GitHttpError(
            403, f"{identity.name} needs the role {_NEEDS[service]} in scenario {scenario[:80]!r}, and has {role}"
        )
    address.check_group(identity)
    return GitRequest(scenario, service, advertises, identity, role, address_of(scope))


async def _spool(
    scope: Scope, receive: Receive, body: IO[bytes], share: SpoolShare, space: DiskSpace | None = None
) -> bool:
    """Write the request's body to `body`, unpacked; return False if the client disconnected before its end.

    Raises:
        DiskFullError: it is larger than what is kept in memory, and the disk has less than its reserve, of which all
            requests at once use at most half before they look again.
    """
    encoding = dict(scope["headers"]).get(b"content-encoding", b"identity")
    if encoding not in (b"identity", b"gzip", b"x-gzip"):
        raise GitHttpError(415, f"content encoding {encoding[:40]!r} is not supported; send gzip or none")
    unpacker = zlib.decompressobj(wbits=31) if encoding != b"identity" else None
    size_bytes = received_bytes = 0
    checked_bytes = _SPOOL_BYTES
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return False
        data = message.get("body", b"")
        received_bytes += len(data)
        for part in [data] if unpacker is None else _unpacked(unpacker, data):
            size_bytes += len(part)
            if max(size_bytes, received_bytes) > MAX_REQUEST_BYTES:
                raise GitHttpError(
                    413,
                    f"more than {MAX_REQUEST_BYTES >> 20} MiB in one request; push large files with Git LFS",
                )
            share.grow(size_bytes)
            if space is not None and size_bytes > checked_bytes:
                space.check()
                checked_bytes = size_bytes + _SPOOL_BYTES - _UNPACK_BYTES
            body.write(part)
            if len(part) == _UNPACK_BYTES:
                await asyncio.sleep(0)  # 64 KiB may unpack to 64 MiB, and others wait for this event loop
        if not message.get("more_body", False):
            break
    if unpacker is not None and not unpacker.eof:
        raise GitHttpError(400, "the gzip body is cut short")
    body.seek(0)
    return True


def _unpacked(unpacker: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    """Yield what the next data of a gzip body unpacks to, up to _UNPACK_BYTES at a time."""
    part_bytes = _UNPACK_BYTES
    while part_bytes == _UNPACK_BYTES:  # else all that there is
        try:
            part = unpacker.decompress(data, _UNPACK_BYTES)
        except zlib.error as error:
            raise GitHttpError(400, f"the body is not gzip: {error}") from error
        data, part_bytes = unpacker.unconsumed_tail, len(part)
        yield part


def _advertise(repos: TaskRepos, request: GitRequest, answer: IO[bytes]) -> None:
    answer.write(pkt_line(f"# service={request.service}\n".encode()) + pkt_line(None))
    with repos.open(request.scenario) as repo:
        if request.service == "git-upload-pack":
            answer.write(_upload_pack(repo, "--advertise-refs"))
            return
        refs = sorted((ref, sha) for ref, sha in repo.get_refs().items() if ref != HEADREF)
        for index, (ref, sha) in enumerate(refs or [(Ref(b"capabilities^{}"), ZERO_SHA)]):
            capabilities = b"" if index else b"\0" + _RECEIVE_CAPABILITIES
            answer.write(pkt_line(sha + b" " + ref + capabilities + b"\n"))
        answer.write(pkt_line(None))


def _size_bytes(repos: TaskRepos, scenario: str) -> int:
    with repos.open(scenario) as repo:
        return git_use(Path(repo.path)).size_bytes


def _upload(repos: TaskRepos, scenario: str, body: IO[bytes], answer: IO[bytes], most_bytes: int) -> None:
    with repos.open(scenario) as repo:
        _upload_pack(repo, stdin=body, stdout=answer, limits=dataclasses.replace(_UPLOAD_LIMITS, file_bytes=most_bytes))


def _upload_pack(
    repo: Repo,
    *options: str,
    stdin: IO[bytes] | bytes = b"",
    stdout: IO[bytes] | None = None,
    limits: GitLimits = _UPLOAD_LIMITS,
) -> bytes:
    """Run git's own upload-pack. Raises GitHttpError where the request cannot be answered."""
    try:
        arguments = ("upload-pack", "--stateless-rpc", "--strict", *options, repo.path)
        said = run_git(Path(repo.path), *arguments, limits=limits, stdin=stdin, stdout=stdout)
    except GitProcessError as error:
        kind = _OversizedError if error.is_oversized else GitHttpError
        raise kind(400, f"this fetch cannot be answered: {error.why}") from error
    if stdout is not None:
        stdout.seek(0, os.SEEK_END)  # git wrote behind the back of this object
    return said


async def _send_error(send: Send, error: GitHttpError) -> None:
    body = f"{error}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if error.status in _RETRY_AFTER_S:
        headers.append((b"retry-after", str(_RETRY_AFTER_S[error.status]).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="walle", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_file(send: Send, content_type: str, answer: IO[bytes]) -> None:
    size_bytes = answer.tell()
    answer.seek(0)
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(size_bytes).encode()),
        (b"cache-control", b"no-cache, max-age=0, must-revalidate"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    loop, sent_bytes = asyncio.get_running_loop(), 0
    end_s = loop.time() + _SLOW_GRACE_S
    try:
        async with asyncio.timeout_at(end_s) as reading:
            while chunk := answer.read(_CHUNK_BYTES):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                sent_bytes += len(chunk)
                reading.reschedule(end_s + sent_bytes / _SLOWEST_BYTES_S)
    except TimeoutError:
        if not reading.expired():
            raise
        raise _SlowClientError from None
    await send({"type": "http.response.body", "body": b"", "more_body": False})
