"""Exclusive files over HTTP: people put, list and remove them under /v1/exclusive, a device gets its own from /cen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response

from walle.deploy.cloud.access import Identifier, Identity, Role
from walle.deploy.cloud.api import check_role, identify
from walle.deploy.cloud.audit import Audit
from walle.deploy.cloud.bundle import CONFIG_FILE
from walle.deploy.cloud.disk_space import DiskSpace
from walle.deploy.cloud.exclusive_store import MAX_PAGE, ExclusiveStore
from walle.deploy.cloud.repo import RepoError, TaskRepos
from walle.deploy.cloud.task_config import TaskConfig, TaskConfigError
from walle.deploy.sealing import seal
from walle.errors import DeployError
from walle.identity import DeviceIdentity
from walle.protocol import (
    DEVICE_HEADER,
    MAX_EXCLUSIVE_BYTES,
    MAX_ID_CHARS,
    ExclusiveFile,
    ProtocolError,
    check_sha256,
    seal_info,
)

_VERSIONS = 20  # newest ones, of which one must list the file


class DeviceKey(NamedTuple):
    """The public key of a device, in DER, and its generation."""

    generation: int
    public_key: bytes


class SignedLists(Protocol):
    """Method of `walle.deploy.cloud.release_service.ReleaseService` that the routes call."""

    async def exclusive_files(self, device_id: str, generation: int) -> bytes: ...


type KeyOf = Callable[[str], Awaitable[DeviceKey]]
"""`await key_of(device_id)` returns the key of a device, and raises AccessError where it has none that is valid."""
type IdentifySession = Callable[[bytes | None], DeviceIdentity]
"""`identify_session(header)` returns the device of a session, and raises DeployError where it is not valid."""

Device = Annotated[str, Query(min_length=1, max_length=MAX_ID_CHARS, description="the device's id")]
Authorization = Annotated[str, Header()]


class ExclusiveFileError(DeployError):
    """A file that the tasks of a scenario do not list, or that is larger than they allow. Over HTTP: 422."""


class UnknownFileError(DeployError):
    """A device does not have the file. Over HTTP: 404."""

    status = 404

    def __init__(self, device_id: str, task: str, name: str) -> None:
        super().__init__(device_id, task, name)

    def __str__(self) -> str:
        device_id, task, name = self.args
        return f"device {device_id[:100]!r} has no file {name[:100]!r} of {task[:200]}; list them with: walle file list"


def exclusive_router(
    store: ExclusiveStore,
    repos: TaskRepos,
    key_of: KeyOf,
    access: Identifier,
    *,
    space: DiskSpace,
    audit: Audit,
) -> APIRouter:
    """Return /v1/exclusive, for people. Contents are sealed here: the cloud keeps none that it could read."""
    router = APIRouter(prefix="/v1/exclusive", tags=["exclusive files"])

    def releaser(authorization: str, scenario: str) -> Identity:
        identity = identify(access, authorization)
        check_role(identity, scenario, Role.RELEASER)
        return identity

    @router.put("/{scenario}/{task}/{name}", status_code=204)
    async def put(
        scenario: str, task: str, name: str, request: Request, device: Device, authorization: Authorization = ""
    ) -> None:
        """Give a device a file, the request's body, for a task; this needs the role `releaser` in its scenario.

        One of the newest versions of the task must list the name under [[exclusive]]. The device has the file at its
        next question, without a new version. A file that is there by this name is replaced.
        """
        identity = releaser(authorization, scenario)
        listed = await asyncio.to_thread(_listed, repos, scenario, task, name)
        await key_of(device)  # before a body for nobody is read
        data = await _body(request, min(listed.max_bytes, MAX_EXCLUSIVE_BYTES))
        key = await key_of(device)  # which may have changed since: a body may take minutes
        await asyncio.to_thread(space.check)
        details = {"device": device, "name": name, "size_bytes": len(data)}
        full = f"{scenario}/{task}"
        await audit.record("file.put", who=identity.name, subject=full, details=details)

        def work() -> None:
            sealed = seal(data, key.public_key, seal_info(device, key.generation, full, name))
            store.put(device, key.generation, full, name, sealed, by=identity.name)

        await asyncio.to_thread(work)

    @router.delete("/{scenario}/{task}/{name}", status_code=204)
    async def remove(scenario: str, task: str, name: str, device: Device, authorization: Authorization = "") -> None:
        """Take a file from a device; this needs the role `releaser` in its scenario."""
        identity = releaser(authorization, scenario)
        full, details = f"{scenario}/{task}", {"device": device, "name": name}
        if not await asyncio.to_thread(store.has, device, full, name):  # what cannot be done leaves no record
            raise UnknownFileError(device, full, name)
        await audit.record("file.remove", who=identity.name, subject=full, details=details, must=False)
        if not await asyncio.to_thread(store.remove, device, full, name):
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

        The next page is `after` of the answer, "" at the end.
        """
        check_role(identify(access, authorization), scenario, Role.READER)
        found = await asyncio.to_thread(store.records, scenario, task=task, device_id=device, after=after, limit=limit)
        last = found[-1].device_id if len(found) >= limit else ""
        return {"files": [record.to_plain() for record in found], "after": last}

    return router


def cen_router(store: ExclusiveStore, lists: SignedLists, identify_session: IdentifySession) -> APIRouter:
    """Return /cen, for devices. What is not the asking device's does not exist: 404, also without a session."""
    router = APIRouter(prefix="/cen", tags=["devices"])

    def device_of(request: Request) -> DeviceIdentity:
        session = request.headers.get(DEVICE_HEADER)
        if session is None:
            raise HTTPException(404, "there is nothing at this path")
        return identify_session(session.encode("latin-1"))

    @router.get("/files")
    async def files(request: Request) -> Response:
        """Return the signed list of the device whose session X-Walle-Device is."""
        device = device_of(request)
        data = await lists.exclusive_files(device.device_id, device.generation)
        return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})

    @router.get("/files/{sha256}")
    async def file(sha256: str, request: Request) -> Response:
        """Return a file in that list, sealed to the device's key."""
        device = device_of(request)
        try:
            check_sha256(sha256, "path")
        except ProtocolError:
            raise HTTPException(404, "there is nothing at this path") from None
        sealed = await asyncio.to_thread(store.sealed, device.device_id, device.generation, sha256)
        if sealed is None:
            raise HTTPException(404, "there is nothing at this path")
        return Response(sealed, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    return router


def _listed(repos: TaskRepos, scenario: str, task: str, name: str) -> ExclusiveFile:
    """Return the [[exclusive]] table of a name in the newest version that has one."""
    versions = repos.versions(scenario, task)[-_VERSIONS:]
    for version in reversed(versions):
        try:
            config = TaskConfig.parse(repos.read_file(scenario, task, version, CONFIG_FILE), CONFIG_FILE)
        except (RepoError, TaskConfigError):  # of an older walle
            continue
        for file in config.exclusive:
            if file.name == name:
                return file
    what = f"no version of {scenario}/{task} lists {name[:100]!r}"
    raise ExclusiveFileError(f"{what}; add it to task.toml under [[exclusive]], and push a version")


async def _body(request: Request, max_bytes: int) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise ExclusiveFileError(f"the file is larger than {max_bytes} bytes, its max_bytes in task.toml")
    return bytes(data)
