"""git push: its commands, what is refused, and what of it the repository keeps.

Each ref is judged by itself. The pack is unpacked in a quarantine; what is accepted moves to the repository under its
lock, if its scenario and the token have room for it, and then refs are set.
"""

import contextlib
import dataclasses
import logging
import struct
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

from dulwich.errors import ApplyDeltaError, ChecksumMismatch, FileFormatException, GitProtocolError
from dulwich.object_store import BaseObjectStore
from dulwich.objects import ZERO_SHA, Commit, ObjectID, valid_hexsha
from dulwich.protocol import ReceivableProtocol, extract_capabilities, pkt_line
from dulwich.refs import HEADREF, Ref, check_ref_format
from dulwich.repo import Repo

from walle.access.access import Role
from walle.access.audit import AuditError, AuditStore
from walle.base.daily_quota import DailyQuota
from walle.base.names import is_name
from walle.deploy.git.git_process import GitLimits
from walle.deploy.git.git_repack import pushing
from walle.deploy.git.git_request import GitHttpError, GitRequest
from walle.deploy.git.git_use import (
    GitQuota,
    GitQuotaError,
    forget_garbage,
    garbage_note,
    git_use,
    note_garbage,
    read_owners,
    write_owners,
)
from walle.deploy.git.push_rules import (
    MAY_REWRITE,
    clash_refusal,
    deletion_refusal,
    name_refusal,
    rewrite_refusal,
)
from walle.deploy.git.quarantine import PackError, Quarantine
from walle.deploy.git.repo import (
    TAG_PREFIX,
    TaskRepos,
    has_modules,
    is_module_set,
    modules_in,
    parse_tag,
    peel,
    read_tree,
)
from walle.errors import ConfigError, DeployError
from walle.protocol import printable
from walle.store.disk_space import DiskFullError, is_full
from walle.task.format.bundle import TaskVersion, compile_version
from walle.task.format.compilers import Compile
from walle.task.format.module_set import FindModules, ModuleSet, check_module_set

MAX_PACK_BYTES = 256 * 1024 * 1024
MAX_COMMANDS = 200
_MAX_REASON_CHARS = 1000
_MOVED = "the ref was moved by somebody else meanwhile; fetch and push again"
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


@dataclasses.dataclass(frozen=True)
class PushRules:
    """Bounds of pushes, the log in which they are recorded, the compiler of what is pushed, and its large files."""

    limits: GitLimits
    audit: AuditStore | None
    compile_sources: Compile
    quota: DailyQuota  # counts refs that are set or deleted
    disk: GitQuota
    repos: TaskRepos


@dataclasses.dataclass(frozen=True)
class _Command:
    """A ref update that a push asks for."""

    old: ObjectID
    new: ObjectID
    ref: Ref

    @property
    def name(self) -> str:
        return self.ref.decode("utf-8", "replace")


def receive_push(
    repos: TaskRepos, rules: PushRules, request: GitRequest, body: IO[bytes], answer: IO[bytes]
) -> list[tuple[str, str]]:
    """Run a push; write the report to `answer`, and return the refs that were set, with their commits."""
    protocol = ReceivableProtocol(body.read, answer.write)
    commands, reports = _read_commands(protocol)
    if not commands:
        return []
    updated = []
    with contextlib.ExitStack() as undo:
        repo = undo.enter_context(repos.open(request.scenario))
        repository = Path(repo.path)
        refusals = {command.ref: _refuse_early(repo, command, request) for command in commands}
        adding = [command for command in commands if command.new != ZERO_SHA and not refusals[command.ref]]
        unpacked = "ok"
        is_rewritten = False
        if adding and (why := _over_quota(repository, request, rules)):
            refusals.update({command.ref: why for command in adding})
            adding = []
        if adding:
            quarantine = undo.enter_context(Quarantine(repository, rules.limits))
            try:
                quarantine.unpack(body, MAX_PACK_BYTES)
            except PackError as error:
                _LOG.warning(
                    "push by %s to %s: the pack is refused: %s", request.identity.name, request.scenario, error
                )
                unpacked = _one_line(str(error))
            undo.enter_context(pushing(repository))
            readable = adding if unpacked == "ok" else []  # what was refused may be larger than memory
            modules = _Modules(repo, quarantine.store, request.scenario, readable)
            # Sets come before the tasks that may name them.
            commands.sort(key=lambda command: not modules.is_set(command))
            adding.sort(key=lambda command: not modules.is_set(command))
            for command in adding:
                refusals[command.ref] = (
                    _refuse_objects(quarantine, command, request, rules, modules)
                    if unpacked == "ok"
                    else f"the pack could not be read: {unpacked}"
                )
            accepted = [command for command in adding if not refusals[command.ref]]
            if accepted:
                is_rewritten = any(_rewrites(quarantine, command, request) for command in accepted)
                quarantine.sync()
        report = [b"unpack " + unpacked.encode()]
        with repos.writing(request.scenario) as repo:
            is_noted = garbage_note(repository) is not None
            if not all(refusals.values()):
                note_garbage(repository)  # until this has ended, also by SIGKILL
            is_kept = bool(adding and accepted)
            if is_kept and (why := _keep(quarantine, repository, request, rules)):
                refusals.update({command.ref: why for command in accepted})
                is_kept = False
            present = {ref.decode("utf-8", "replace") for ref in repo.refs.allkeys()}
            for command in commands:
                why = refusals[command.ref]
                if not why and command in adding:
                    why = modules.refusal(command, repo, present)
                refusal = refusals[command.ref] = why or _apply(repo, present, command, request, rules)
                if refusal:
                    report.append(b"ng " + command.ref + b" " + _one_line(refusal).encode())
                    continue
                report.append(b"ok " + command.ref)
                if command.new != ZERO_SHA:
                    updated.append((command.name, peel(repo.object_store, command.new, command.name).id.decode()))
            is_deleted = any(command.new == ZERO_SHA and not refusals[command.ref] for command in commands)
            is_refused = is_kept and any(refusals[command.ref] for command in adding)
            if not (is_noted or is_deleted or is_rewritten or is_refused):
                forget_garbage(repository)
    if reports:
        answer.write(b"".join(pkt_line(line + b"\n") for line in report) + pkt_line(None))
    return updated


class _Modules:
    """Sets of shared modules of a push and of its repository, which tasks of the push may name."""

    def __init__(self, repo: Repo, store: BaseObjectStore, scenario: str, adding: Sequence[_Command]) -> None:
        tags = [command for command in adding if command.ref.startswith(TAG_PREFIX)]
        self._sets = {command.ref for command in tags if is_module_set(store, command.new)}
        self._store = store
        self._scenario = scenario
        self._find = modules_in(repo, scenario)
        self._pushed: dict[Ref, ObjectID] = {}
        self._needed: dict[Ref, list[Ref]] = {}

    def is_set(self, command: _Command) -> bool:
        """Return whether a command makes a version of a set."""
        return command.ref in self._sets

    def add(self, command: _Command) -> None:
        """Note a set that was checked and that the push may bring."""
        self._pushed[command.ref] = command.new

    def finder(self, command: _Command) -> FindModules:
        """Return a function that finds the sets that a version names, also those noted before."""

        def find(name: str, version: str) -> ModuleSet:
            ref = Ref(TAG_PREFIX + f"{name}/{version}".encode())
            if ref not in self._pushed:
                return self._find(name, version)
            self._needed.setdefault(command.ref, []).append(ref)
            return ModuleSet.parse(read_tree(self._store, self._pushed[ref], self._scenario, name, version))

        return find

    def refusal(self, command: _Command, repo: Repo, present: Collection[str]) -> str:
        """Return the reason to refuse a version for the refs that are `present` in `repo` now; empty if none."""
        if not command.ref.startswith(TAG_PREFIX):
            return ""
        for ref in self._needed.get(command.ref, ()):
            if repo.refs.read_ref(ref) != self._pushed[ref]:  # another push may have brought another one meanwhile
                return f"it names modules of {ref.removeprefix(TAG_PREFIX).decode()}, which this push did not bring"
        name = command.name.removeprefix("refs/tags/").partition("/")[0]
        other = next((ref for ref in present if ref.startswith(f"refs/tags/{name}/")), "")
        if other and has_modules(repo, name, other.rpartition("/")[2]) is not self.is_set(command):
            kind = "a task" if self.is_set(command) else "a set of shared modules"
            return f"{name} has versions as {kind}, and one name is never both; choose another"
        return ""


def _over_quota(repository: Path, request: GitRequest, rules: PushRules, more_bytes: int = 0) -> str:
    """Return the reason to refuse a push for the space that it takes; empty if none."""
    try:
        rules.disk.check(request.scenario, request.identity.name, git_use(repository), more_bytes)
    except GitQuotaError as error:
        return str(error)
    return ""


def _keep(quarantine: Quarantine, repository: Path, request: GitRequest, rules: PushRules) -> str:
    """Move the objects of a push to the repository, whose lock the caller holds; return the reason to refuse them."""
    files = list(quarantine.packs.iterdir())
    if why := _over_quota(repository, request, rules, sum(file.stat().st_size for file in files)):
        return why
    owners = dict.fromkeys((file.stem for file in files), request.identity.name)
    write_owners(repository, {**owners, **read_owners(repository)})
    quarantine.adopt()
    return ""


def _rewrites(quarantine: Quarantine, command: _Command, request: GitRequest) -> bool:
    """Return whether a branch loses commits, which only some roles may do."""
    is_moved = command.old != ZERO_SHA and command.name.startswith("refs/heads/") and request.role >= MAY_REWRITE
    try:
        return is_moved and not quarantine.is_descendant(command.old, command.new)
    except PackError as error:  # a repack then looks whether there is anything to remove
        _LOG.warning("push by %s to %s: %s", request.identity.name, request.scenario, error)
        return True


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


def _refuse_early(repo: Repo, command: _Command, request: GitRequest) -> str:
    """Return the reason to refuse a command by name, role or the ref's current value; empty if none."""
    if not check_ref_format(command.ref) or "\ufffd" in command.name:
        return "not a name that git allows in UTF-8"
    if not command.ref.startswith(b"refs/"):  # a file of the repository beside its refs
        return "only branches and tags TASK/vN are accepted"
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
        return "only branches and tags TASK/vN are accepted"
    elif command.new != ZERO_SHA and (why := name_refusal(name)):
        return why
    elif not request.identity.may_push(request.scenario, name):
        return f"{request.identity.name} may not push to this branch; ask for a token whose branches have it"
    if present != command.old:
        return _MOVED
    if kind == "heads" and command.new == ZERO_SHA:
        return deletion_refusal(request.role)
    return ""


def _apply(repo: Repo, present: set[str], command: _Command, request: GitRequest, rules: PushRules) -> str:
    """Set or delete the ref; return the error, empty on success. The caller holds the repository's lock.

    `present` are the refs of the repository. What cannot be done is refused before it is recorded.
    """
    try:
        if (repo.refs.read_ref(command.ref) or ZERO_SHA) != command.old:
            return _MOVED
        if command.old == ZERO_SHA and (why := clash_refusal(command.name, present)):
            return why
        if rules.quota.take(request.identity.name):
            return (
                f"this token has changed {rules.quota.most} refs, the most in a day; push fewer, or wait until tomorrow"
            )
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


def _record(audit: AuditStore | None, request: GitRequest, command: _Command) -> None:
    """Write a change of a ref into the audit log. Raises AuditError where it cannot be: the ref is not changed then."""
    if audit is not None:
        details = {"ref": command.name, "old": command.old.decode(), "new": command.new.decode()}
        audit.append(
            "ref.set", who=request.identity.name, subject=request.scenario, address=request.address, details=details
        )


def _refuse_objects(
    quarantine: Quarantine, command: _Command, request: GitRequest, rules: PushRules, modules: _Modules
) -> str:
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
        if modules.is_set(command):
            found = ModuleSet.parse(tree)
            check_module_set(found, rules.compile_sources)
            modules.add(command)
        else:
            parsed = TaskVersion.parse(tree, modules.finder(command))
            compile_version(parsed, compile_sources=rules.compile_sources)
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
