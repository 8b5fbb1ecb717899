"""`git clone`, `git fetch` and `git push` of task repositories over HTTP at /git/{scenario}.git, by role.

The smart HTTP protocol (gitprotocol-http), version 0, which every git client speaks. Each ref of a push is
checked by itself: a branch may move, a version may not, and a version that does not build is refused with the reason,
which git shows beside the tag. Requests are spooled to the disk before git work starts, and answers too: a slow client
occupies neither a thread nor a repository. Packs are unpacked and made by git, in child processes with limits; the
lock of a repository is held only while refs are set.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs

from dulwich.errors import ApplyDeltaError, ChecksumMismatch, FileFormatException, GitProtocolError
from dulwich.objects import ZERO_SHA, Commit, ObjectID, valid_hexsha
from dulwich.protocol import ReceivableProtocol, extract_capabilities, pkt_line
from dulwich.refs import HEADREF, Ref, check_ref_format
from dulwich.repo import Repo

from walle.clock import Clock, SystemClock
from walle.deploy.cloud.access import Identifier, Identity, Role
from walle.deploy.cloud.asgi import ASGIApp, Message, Receive, Scope, Send, address_of
from walle.deploy.cloud.audit import AuditError, AuditStore
from walle.deploy.cloud.bundle import TaskVersion, compile_version
from walle.deploy.cloud.compilers import Compile, compile_apart
from walle.deploy.cloud.disk_space import DiskFullError, DiskSpace, is_full
from walle.deploy.cloud.git_process import GitLimits, GitProcessError, run_git
from walle.deploy.cloud.large_file_store import LargeFileLimits
from walle.deploy.cloud.lfs_http import is_lfs, lfs_app
from walle.deploy.cloud.places import Place, PlaceLostError, Places, PlacesTakenError
from walle.deploy.cloud.push_rules import RefQuota, clash_refusal, deletion_refusal, name_refusal, rewrite_refusal
from walle.deploy.cloud.quarantine import PackError, Quarantine
from walle.deploy.cloud.repo import RepoError, TaskRepos, parse_tag, peel, read_tree
from walle.deploy.cloud.task_config import is_name
from walle.errors import ConfigError, DeployError
from walle.protocol import printable

MAX_REQUEST_BYTES = 256 * 1024 * 1024
MAX_COMMANDS = 200
_SPOOL_BYTES = 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_UNPACK_BYTES = 256 * 1024  # of a gzip body at a time
_READ_THREADS = 4
_PUSH_THREADS = 2  # two pushes are unpacked at a time, each in the memory of its limits
MAX_REQUESTS = 32  # that are spooled or served at once
MAX_REQUESTS_EACH = 8  # of the owner of one token
_UPLOAD_LIMITS = GitLimits(cpu_s=60, wall_s=120.0, file_bytes=1 << 30)
_MAX_REASON_CHARS = 1000
_MOVED = "the ref was moved by somebody else meanwhile; fetch and push again"
_ROUTE = re.compile(r"(?:/git)?/([^/]*)\.git/(info/refs|git-upload-pack|git-receive-pack)")
_NEEDS = {"git-upload-pack": Role.READER, "git-receive-pack": Role.AUTHOR}
_RECEIVE_CAPABILITIES = b"report-status delete-refs quiet ofs-delta object-format=sha1 agent=walle"
_PACK_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    AssertionError,
    EOFError,
    struct.error,
    zlib.error,
    GitProtocolError,
    ChecksumMismatch,
    ApplyDeltaError,
    FileFormatException,
)
_LOG = logging.getLogger(__name__)

type OnPush = Callable[[str, str, str], Awaitable[None]]  # scenario, ref such as refs/tags/ipv/v1, commit


class GitHttpError(DeployError):
    """A request that is answered with an HTTP error. `status` is its code; git shows the message to its user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_RETRY_AFTER_S = {429: 5, 503: 5, 507: 60}


@dataclasses.dataclass(frozen=True)
class _Command:
    """A ref update that a push asks for."""

    old: ObjectID
    new: ObjectID
    ref: Ref

    @property
    def name(self) -> str:
        return self.ref.decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class _Request:
    """A user's request for a repository and a service. `advertises` is the first half of the exchange."""

    scenario: str
    service: str
    advertises: bool
    identity: Identity
    role: Role
    address: str


@dataclasses.dataclass(frozen=True)
class _PushRules:
    """Bounds of pushes, the log in which they are recorded, the compiler of what is pushed, and its large files."""

    limits: GitLimits
    audit: AuditStore | None
    compile_sources: Compile
    quota: RefQuota
    repos: TaskRepos


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
) -> ASGIApp:
    """Return an ASGI app for `/git/{scenario}.git`, with Git LFS, mounted there or at the root.

    `on_push` is awaited for each ref that a push has set, before the push is answered. It is not called if the process
    ends between the two: a caller that needs every version must read `TaskRepos.versions` at start. `limits` are those
    of unpacking a push. While `space` is low, pushes are refused. `audit` gets a record of each ref before it changes.
    `compile_sources` compiles what is pushed.
    """
    reading = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="walle-git")
    writing = ThreadPoolExecutor(_PUSH_THREADS, thread_name_prefix="walle-git-push")
    pushes: set[asyncio.Task[None]] = set()
    places = Places(MAX_REQUESTS, MAX_REQUESTS_EACH)
    rules = _PushRules(limits or GitLimits(), audit, compile_sources, RefQuota(clock or SystemClock()), repos)
    large_files = lfs_app(repos, access, limits=large_file_limits, space=space)
    receive_push = functools.partial(_receive, repos, rules)

    async def serve(request: _Request, body: IO[bytes], answer: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        if request.advertises:
            await loop.run_in_executor(reading, _advertise, repos, request, answer)
        elif request.service == "git-upload-pack":
            await loop.run_in_executor(reading, _upload, repos, request.scenario, body, answer)
        else:
            updated = await loop.run_in_executor(writing, receive_push, request, body, answer)
            for ref, commit in updated:
                _LOG.info("push to %s: %s is %s", request.scenario, ref, commit)
                if on_push is None:
                    continue
                try:
                    await on_push(request.scenario, ref, commit)
                except Exception:  # noqa: BLE001 - the push is done; an error of its listener does not undo it
                    _LOG.exception("listener failed on the push of %s to %s", ref, request.scenario)

    async def spool_and_serve(scope: Scope, receive: Receive, send: Send, request: _Request, place: Place) -> None:
        spool = tempfile.SpooledTemporaryFile
        with spool(_SPOOL_BYTES, dir=str(repos.spool)) as body, spool(_SPOOL_BYTES, dir=str(repos.spool)) as answer:
            if request.service == "git-receive-pack" and space is not None:
                space.check()
            async with place.waiting():
                if not await _spool(scope, receive, body):
                    return  # the client disconnected before the end of its request
            # A push that has begun is finished, and `on_push` called, even if the client disconnects.
            task = asyncio.create_task(serve(request, body, answer))
            pushes.add(task)
            task.add_done_callback(pushes.discard)
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.wait([task])  # the thread reads the spools: keep them open until it ends
                raise
            kind = "advertisement" if request.advertises else "result"
            async with place.waiting():
                await _send_file(send, f"application/x-{request.service}-{kind}", answer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise GitHttpError(500, f"task repositories speak HTTP, not {scope['type']}")
        if is_lfs(scope["path"]):
            return await large_files(scope, receive, send)
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            request = _judge(scope, access)
            with places.taken(request.identity.name) as place:
                await spool_and_serve(scope, receive, send_noted, request, place)
        except GitHttpError as error:
            await _send_error(send, error)
        except PlacesTakenError as error:
            await _send_error(send, GitHttpError(429 if error.own else 503, str(error)))
        except PlaceLostError as error:
            if has_begun:
                _LOG.warning("git: an answer is broken off, since its client was slow and others waited")
                raise
            await _send_error(send, GitHttpError(503, str(error)))
        except RepoError as error:
            await _send_error(send, GitHttpError(404, str(error)))
        except DiskFullError as error:
            await _send_error(send, GitHttpError(507, str(error)))
        except OSError as error:
            if not is_full(error):
                raise
            await _send_error(send, GitHttpError(507, str(DiskFullError.of(error, repos.spool))))

    return app


def _judge(scope: Scope, access: Identifier) -> _Request:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    match = _ROUTE.fullmatch(path)
    if match is None:
        raise GitHttpError(404, f"{path[:120]!r} is not part of a task repository; clone /git/SCENARIO.git")
    scenario, tail = match.groups()
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
    return _Request(scenario, service, advertises, identity, role, address_of(scope))


async def _spool(scope: Scope, receive: Receive, body: IO[bytes]) -> bool:
    """Write the request's body to `body`, unpacked; return False if the client disconnected before its end."""
    encoding = dict(scope["headers"]).get(b"content-encoding", b"identity")
    if encoding not in (b"identity", b"gzip", b"x-gzip"):
        raise GitHttpError(415, f"content encoding {encoding[:40]!r} is not understood; send gzip or none")
    unpacker = zlib.decompressobj(wbits=31) if encoding != b"identity" else None
    size_bytes = received_bytes = 0
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
                    f"more than {MAX_REQUEST_BYTES >> 20} MiB in one request; large files go by Git LFS",
                )
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


def _advertise(repos: TaskRepos, request: _Request, answer: IO[bytes]) -> None:
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


def _upload(repos: TaskRepos, scenario: str, body: IO[bytes], answer: IO[bytes]) -> None:
    with repos.open(scenario) as repo:
        _upload_pack(repo, stdin=body, stdout=answer)


def _upload_pack(repo: Repo, *options: str, stdin: IO[bytes] | bytes = b"", stdout: IO[bytes] | None = None) -> bytes:
    """Run git's own upload-pack. Raises GitHttpError where the request cannot be answered."""
    try:
        arguments = ("upload-pack", "--stateless-rpc", "--strict", *options, repo.path)
        said = run_git(Path(repo.path), *arguments, limits=_UPLOAD_LIMITS, stdin=stdin, stdout=stdout)
    except GitProcessError as error:
        raise GitHttpError(400, f"this fetch cannot be answered: {error.why}") from error
    if stdout is not None:
        stdout.seek(0, os.SEEK_END)  # git wrote behind the back of this object
    return said


def _receive(
    repos: TaskRepos, rules: _PushRules, request: _Request, body: IO[bytes], answer: IO[bytes]
) -> list[tuple[str, str]]:
    """Run a push; write the report to `answer`, and return the refs that were set, with their commits."""
    protocol = ReceivableProtocol(body.read, answer.write)
    commands, reports = _read_commands(protocol)
    if not commands:
        return []
    updated = []
    with contextlib.ExitStack() as undo:
        repo = undo.enter_context(repos.open(request.scenario))
        refusals = {command.ref: _refuse_early(repo, command, request) for command in commands}
        unpacked = "ok"
        if any(command.new != ZERO_SHA and not refusals[command.ref] for command in commands):
            quarantine = undo.enter_context(Quarantine(Path(repo.path), rules.limits))
            try:
                quarantine.unpack(body, MAX_REQUEST_BYTES)
            except PackError as error:
                _LOG.warning(
                    "push by %s to %s: the pack is refused: %s", request.identity.name, request.scenario, error
                )
                unpacked = _one_line(str(error))
            for command in commands:
                if command.new != ZERO_SHA and not refusals[command.ref]:
                    refusals[command.ref] = (
                        _refuse_objects(quarantine, command, request, rules)
                        if unpacked == "ok"
                        else f"the pack could not be read: {unpacked}"
                    )
            if any(command.new != ZERO_SHA and not refusals[command.ref] for command in commands):
                quarantine.adopt()
        report = [b"unpack " + unpacked.encode()]
        with repos.writing(request.scenario) as repo:
            present = {ref.decode("utf-8", "replace") for ref in repo.refs.allkeys()}
            for command in commands:
                refusal = refusals[command.ref] or _apply(repo, present, command, request, rules)
                if refusal:
                    report.append(b"ng " + command.ref + b" " + _one_line(refusal).encode())
                    continue
                report.append(b"ok " + command.ref)
                if command.new != ZERO_SHA:
                    updated.append((command.name, peel(repo.object_store, command.new, command.name).id.decode()))
    if reports:
        answer.write(b"".join(pkt_line(line + b"\n") for line in report) + pkt_line(None))
    return updated


def _read_commands(protocol: ReceivableProtocol) -> tuple[list[_Command], bool]:
    commands: list[_Command] = []
    capabilities: Sequence[bytes] = ()
    try:
        while line := protocol.read_pkt_line():
            if line.startswith(b"shallow "):  # the client lacks its parents; ours are checked after unpacking
                continue
            if not commands:
                line, capabilities = extract_capabilities(line)
            old, new, ref = line.rstrip(b"\n").split(b" ")
            if not valid_hexsha(old) or not valid_hexsha(new):
                raise GitHttpError(400, f"{line[:120]!r} names no objects")
            commands.append(_Command(ObjectID(old), ObjectID(new), Ref(ref)))
            if len(commands) > MAX_COMMANDS:
                raise GitHttpError(400, f"more than {MAX_COMMANDS} refs in one push; push them in parts")
    except _PACK_ERRORS as error:
        raise GitHttpError(400, f"this push cannot be read: {error}") from error
    if len({command.ref for command in commands}) != len(commands):
        raise GitHttpError(400, "a ref is named twice in one push")
    return commands, b"report-status" in capabilities


def _refuse_early(repo: Repo, command: _Command, request: _Request) -> str:
    """Return the reason to refuse a command by name, role or the ref's current value; empty if none."""
    if not check_ref_format(command.ref) or "\ufffd" in command.name:
        return "not a name that git allows in UTF-8"
    if not command.ref.startswith(b"refs/"):  # a file of the repository beside its refs
        return "only branches and tags TASK/vN are kept here"
    kind, _, name = command.name.removeprefix("refs/").partition("/")
    present = repo.refs.read_ref(command.ref) or ZERO_SHA
    if kind == "tags":
        version = parse_tag(name)
        if version is None:
            return f"a version's tag is TASK/vN, such as {name if is_name(name) else 'ipv'}/v1; other tags are not kept"
        if request.role < Role.RELEASER:
            return f"versions are made by the role {Role.RELEASER}, and this token has {request.role}"
        if present != ZERO_SHA:
            verb = "deleted" if command.new == ZERO_SHA else "moved"
            return f"a version is never {verb}; tag the next one"
    elif kind != "heads":
        return "only branches and tags TASK/vN are kept here"
    elif command.new != ZERO_SHA and (why := name_refusal(name)):
        return why
    elif not request.identity.may_push(request.scenario, name):
        return f"{request.identity.name} may not push to this branch; ask for a token whose branches have it"
    if present != command.old:
        return _MOVED
    if kind == "heads" and command.new == ZERO_SHA:
        return deletion_refusal(request.role)
    return ""


def _apply(repo: Repo, present: set[str], command: _Command, request: _Request, rules: _PushRules) -> str:
    """Set or delete the ref; return the error, empty on success. The caller holds the repository's lock.

    `present` are the refs of the repository. What cannot be done is refused before it is recorded.
    """
    try:
        if (repo.refs.read_ref(command.ref) or ZERO_SHA) != command.old:
            return _MOVED
        if command.old == ZERO_SHA and (why := clash_refusal(command.name, present)):
            return why
        if why := rules.quota.take(request.identity.name):
            return why
        _record(rules.audit, request, command)
        if command.new == ZERO_SHA:
            if not repo.refs.remove_if_equals(command.ref, command.old):
                return _MOVED
            present.discard(command.name)
            return ""
        if not repo.refs.set_if_equals(command.ref, command.old, command.new):
            return _MOVED
        present.add(command.name)
        _adopt_head(repo, command.ref)
    except AuditError as error:
        return str(error)
    except OSError as error:
        if is_full(error):
            return f"could not be written: {DiskFullError.of(error, Path(repo.path))}"
        return f"could not be written: {error.strerror or error}; is another branch or tag a folder of this name?"
    return ""


def _record(audit: AuditStore | None, request: _Request, command: _Command) -> None:
    """Write a change of a ref into the audit log. Raises AuditError where it cannot be: the ref is not changed then."""
    if audit is not None:
        details = {"ref": command.name, "old": command.old.decode(), "new": command.new.decode()}
        audit.append(
            "ref.set", who=request.identity.name, subject=request.scenario, address=request.address, details=details
        )


def _refuse_objects(quarantine: Quarantine, command: _Command, request: _Request, rules: _PushRules) -> str:
    """Return the reason to refuse what the ref is to point at; empty if none."""
    store = quarantine.store
    try:
        quarantine.check_connected(command.new)
        if command.ref.startswith(b"refs/heads/"):
            if not isinstance(store[command.new], Commit):
                return "a branch must point at a commit"
            if command.old == ZERO_SHA:
                return ""
            return rewrite_refusal(request.role, lambda: quarantine.is_descendant(command.old, command.new))
        task, _, version = command.name.removeprefix("refs/tags/").partition("/")
        large_files = rules.repos.large_files(request.scenario)
        tree = read_tree(store, command.new, request.scenario, task, version, large_files)
        compile_version(TaskVersion.parse(tree), compile_sources=rules.compile_sources)
    except (DeployError, ConfigError) as error:  # the latter where no process can be started to compile it
        return str(error)
    except (KeyError, FileFormatException, AssertionError) as error:
        return f"its objects cannot be read: {error}"
    return ""


def _adopt_head(repo: Repo, ref: Ref) -> None:
    """Set HEAD, which a clone checks out, to the first branch if its branch does not exist."""
    if ref.startswith(b"refs/heads/") and repo.refs.follow(HEADREF)[1] is None:
        repo.refs.set_symbolic_ref(HEADREF, ref)


def _one_line(text: str) -> str:
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return printable(line[:_MAX_REASON_CHARS])[:_MAX_REASON_CHARS]  # some of it is a task's; git shows it on a terminal


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
    while chunk := answer.read(_CHUNK_BYTES):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
