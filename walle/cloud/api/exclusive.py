"""Exclusive files over HTTP: people put, list and remove them under /v1/exclusive, a device gets its own from /cen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response

from walle.access.access import Identifier, Identity, Role
from walle.access.audit import Audit
from walle.base.device_identity import DeviceIdentity
from walle.cloud.api.releases import check_role, identify
from walle.deploy.exclusive_files.groups import GroupFile, GroupFiles, GroupPart
from walle.deploy.exclusive_files.store import MAX_PAGE, ExclusiveStore
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import MAX_RULE_CHARS
from walle.errors import DeployError
from walle.protocol import (
    DEVICE_HEADER,
    MAX_EXCLUSIVE_BYTES,
    MAX_ID_CHARS,
    PROFILE_HEADER,
    ExclusiveFile,
    Profile,
    ProtocolError,
    SealedFile,
    check_sha256,
    seal_info,
)
from walle.store.disk_space import DiskSpace
from walle.store.threads import StoreThreads
from walle.task.format.bundle import CONFIG_FILE
from walle.task.format.config import TaskConfig, TaskConfigError
from walle.trust.sealing import seal

_THREADS = StoreThreads("exclusive files")
_VERSIONS = 20  # newest ones, of which one must list the file


class DeviceKey(NamedTuple):
    """The public key of a device, in DER, and its generation."""

    generation: int
    public_key: bytes


class SignedLists(Protocol):
    """Method of `walle.deploy.releases.service.ReleaseService` that the routes call."""

    async def exclusive_files(self, device_id: str, generation: int, groups: GroupPart) -> bytes: ...


type KeyOf = Callable[[str], Awaitable[DeviceKey]]
"""`await key_of(device_id)` returns the key of a device, and raises AccessError where it has none that is valid."""
type TypedPolicy = Callable[[Policy], Awaitable[Policy]]
"""`await typed_policy(policy)` returns the policy once its rule was found to be valid, and raises RuleError."""
type Join = Callable[[Profile], Profile]
"""`join(profile)` returns a profile with what was uploaded of it."""
type IdentifySession = Callable[[bytes | None], DeviceIdentity]
"""`identify_session(header)` returns the device of a session, and raises DeployError where it is not valid."""

Device = Annotated[str, Query(max_length=MAX_ID_CHARS, description="the device's id; or a group is given")]
Rule = Annotated[str, Query(max_length=MAX_RULE_CHARS, description="of a group: CEL over declared attributes")]
AppVersion = Annotated[str, Query(max_length=1000, description="of a group: PEP 440 range such as '>=10,<11'")]
Authorization = Annotated[str, Header()]


class ExclusiveFileError(DeployError):
    """A file that the tasks of a scenario do not list, or that is larger than they allow. Over HTTP: 422."""


class UnknownGroupFileError(DeployError):
    """A rule has no file of this name. Over HTTP: 404."""

    status = 404

    def __str__(self) -> str:
        task, name = self.args
        what = f"{task[:200]} has no file {name[:100]!r} for this rule"
        return f"{what}; list the files, with their rules as they were put: walle device-file list"


class UnknownFileError(DeployError):
    """A device does not have the file. Over HTTP: 404."""

    status = 404

    def __init__(self, device_id: str, task: str, name: str) -> None:
        super().__init__(device_id, task, name)

    def __str__(self) -> str:
        device_id, task, name = self.args
        return f"device {device_id[:100]!r} has no file {name[:100]!r} of {task[:200]}; list: walle device-file list"


def exclusive_router(
    store: ExclusiveStore,
    groups: GroupFiles,
    repos: TaskRepos,
    key_of: KeyOf,
    access: Identifier,
    *,
    typed_policy: TypedPolicy,
    space: DiskSpace,
    audit: Audit,
) -> APIRouter:
    """Return /v1/exclusive, for people. Contents are sealed here: the cloud keeps none that it could read."""
    router = APIRouter(prefix="/v1/exclusive", tags=["exclusive files"])

    async def _group(device: str, rule: str, app_version: str) -> Policy | None:
        """Return the policy of a group, None for a device."""
        _check_either(device, rule, app_version)
        return None if device else await typed_policy(Policy(app_version, rule))

    def releaser(authorization: str, scenario: str) -> Identity:
        identity = identify(access, authorization)
        check_role(identity, scenario, Role.RELEASER)
        return identity

    @router.put("/{scenario}/{task}/{name}", status_code=204)
    async def put(
        scenario: str,
        task: str,
        name: str,
        request: Request,
        *,
        device: Device = "",
        rule: Rule = "",
        app_version: AppVersion = "",
        authorization: Authorization = "",
    ) -> None:
        """Give a device, or the devices of a rule, a file; this needs the role `releaser` in the task's scenario.

        The file is the request's body. A device has the newest file of its groups, unless one was put for it. One of
        the newest versions of the task must list the name under [[exclusive]]. The device has the file at its next
        question, without a new version. A file that is there by this name, for the device or this rule, is replaced.
        """
        identity = releaser(authorization, scenario)
        policy = await _group(device, rule, app_version)
        listed = await asyncio.to_thread(_listed, repos, scenario, task, name)
        if policy is None:
            await key_of(device)  # checked before a body for nobody is read
        data = await _body(request, min(listed.max_bytes, MAX_EXCLUSIVE_BYTES))
        full = f"{scenario}/{task}"
        await asyncio.to_thread(space.check)
        details: dict[str, Any] = {"device": device, "name": name, "size_bytes": len(data)}
        if policy is not None:
            details = {"policy": policy.to_plain(), "name": name, "size_bytes": len(data)}
            await audit.record("file.put", who=identity.name, subject=full, details=details)
            await _THREADS.run(groups.put, full, name, policy, data, by=identity.name)
            return
        key = await key_of(device)  # asked again: a body may take minutes, and the key may have changed
        await audit.record("file.put", who=identity.name, subject=full, details=details)

        def work() -> None:
            sealed = seal(data, key.public_key, seal_info(device, key.generation, full, name))
            store.put(device, key.generation, full, name, sealed, by=identity.name)

        await _THREADS.run(work)

    @router.delete("/{scenario}/{task}/{name}", status_code=204)
    async def remove(
        scenario: str,
        task: str,
        name: str,
        *,
        device: Device = "",
        rule: Rule = "",
        app_version: AppVersion = "",
        authorization: Authorization = "",
    ) -> None:
        """Take a file from a device, or from the devices of a rule; this needs the role `releaser` in its scenario."""
        identity = releaser(authorization, scenario)
        full = f"{scenario}/{task}"
        details: dict[str, Any] = {"device": device, "name": name}
        _check_either(device, rule, app_version)
        if not device:
            policy = Policy(app_version, rule.strip())
            if not await _THREADS.run(groups.has, full, name, policy):
                raise UnknownGroupFileError(full, name)
            details = {"policy": policy.to_plain(), "name": name}
            await audit.record("file.remove", who=identity.name, subject=full, details=details, must=False)
            if not await _THREADS.run(groups.remove, full, name, policy):
                raise UnknownGroupFileError(full, name)
            return
        if not await _THREADS.run(store.has, device, full, name):  # what cannot be done leaves no record
            raise UnknownFileError(device, full, name)
        await audit.record("file.remove", who=identity.name, subject=full, details=details, must=False)
        if not await _THREADS.run(store.remove, device, full, name):
            raise UnknownFileError(device, full, name)

    @router.get("/{scenario}")
    async def list_files(
        scenario: str,
        *,
        task: Annotated[str, Query(max_length=MAX_ID_CHARS, description="without the scenario")] = "",
        device: Annotated[str, Query(max_length=MAX_ID_CHARS)] = "",
        after: Annotated[str, Query(max_length=MAX_ID_CHARS, description="a device's id")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        authorization: Authorization = "",
    ) -> dict[str, Any]:
        """List which devices have which files, without contents; this needs the role `reader` in the scenario.

        The next page is `after` of the answer, "" at the end. `groups` are the files of rules, on the first page.
        """
        check_role(identify(access, authorization), scenario, Role.READER)
        found = await _THREADS.run(store.records, scenario, task=task, device_id=device, after=after, limit=limit)
        last = found[-1].device_id if len(found) >= limit else ""
        of_groups = [] if after or device else await _THREADS.run(groups.files, scenario, task=task)
        return {
            "files": [record.to_plain() for record in found],
            "groups": [file.to_plain() for file in of_groups],
            "after": last,
        }

    return router


def cen_router(
    store: ExclusiveStore,
    groups: GroupFiles,
    lists: SignedLists,
    identify_session: IdentifySession,
    key_of: KeyOf,
    join: Join,
) -> APIRouter:
    """Return /cen, for devices. What is not the asking device's does not exist: 404, also without a session.

    Groups are those of the profile that comes with the request; without one a device has its own files alone.
    """
    router = APIRouter(prefix="/cen", tags=["devices"])

    def device_of(request: Request) -> DeviceIdentity:
        session = request.headers.get(DEVICE_HEADER)
        if session is None:
            raise HTTPException(404, "this path does not exist")
        return identify_session(session.encode("latin-1"))

    async def groups_of(request: Request, device: DeviceIdentity) -> tuple[DeviceKey, list[GroupFile]] | None:
        """Return the device's key and the files of its groups; None without any."""
        header = request.headers.get(PROFILE_HEADER)
        if header is None:
            return None
        profile = Profile.from_header(header.encode("latin-1").decode("utf-8", "replace"))
        if profile.device_id != device.device_id:
            raise ExclusiveFileError("the profile is of another device than the session")
        files = await _THREADS.run(lambda: groups.of(join(profile)))
        if not files:
            return None
        key = await key_of(device.device_id)
        return (key, files) if key.generation == device.generation else None

    @router.get("/files")
    async def files(request: Request) -> Response:
        """Return the signed list of the device whose session X-Walle-Device is."""
        device = device_of(request)
        found = await groups_of(request, device)
        serial = await _THREADS.run(groups.serial)
        entries: tuple[SealedFile, ...] = ()
        if found is not None:
            key, files = found
            entries = await _THREADS.run(groups.part, device.device_id, key.generation, key.public_key, files)
        part = GroupPart(serial, entries)
        data = await lists.exclusive_files(device.device_id, device.generation, part)
        return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})

    @router.get("/files/{sha256}")
    async def file(sha256: str, request: Request) -> Response:
        """Return a file in that list, sealed to the device's key."""
        device = device_of(request)
        try:
            check_sha256(sha256, "path")
        except ProtocolError:
            raise HTTPException(404, "this path does not exist") from None
        sealed = await _THREADS.run(store.sealed, device.device_id, device.generation, sha256)
        if sealed is None and (found := await groups_of(request, device)) is not None:
            key, of = found
            sealed = await _THREADS.run(groups.sealed, device.device_id, key.generation, key.public_key, of, sha256)
        if sealed is None:
            raise HTTPException(404, "this path does not exist")
        return Response(sealed, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    return router


def _listed(repos: TaskRepos, scenario: str, task: str, name: str) -> ExclusiveFile:
    """Return the [[exclusive]] table of a name in the newest version that has one."""
    versions = repos.versions(scenario, task)[-_VERSIONS:]
    unread = ""
    for version in reversed(versions):
        try:
            config = TaskConfig.parse(repos.read_file(scenario, task, version, CONFIG_FILE), CONFIG_FILE)
        except (RepoError, TaskConfigError) as error:  # an older walle made it
            unread = unread or f"; {version} cannot be read: {error}"
            continue
        for file in config.exclusive:
            if file.name == name:
                return file
    what = f"no version of {scenario}/{task} lists {name[:100]!r}"
    raise ExclusiveFileError(f"{what}; add it to task.toml under [[exclusive]], and push a version{unread}")


def _check_either(device: str, rule: str, app_version: str) -> None:
    """Raise ExclusiveFileError unless a device is given, or a group, and not both."""
    if bool(device) == bool(rule.strip() or app_version):
        raise ExclusiveFileError("give the id of a device, or a rule or app versions of a group: one of both")


async def _body(request: Request, max_bytes: int) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise ExclusiveFileError(f"the file is larger than {max_bytes} bytes, its max_bytes in task.toml")
    return bytes(data)
