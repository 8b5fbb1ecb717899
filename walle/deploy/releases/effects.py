"""External effects of the release service, as injected calls."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.gate.step import Step
from walle.deploy.policies.attribute_schema import Schema
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.signatures import SigningState
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import Directive
from walle.task.format.bundle import Bundle, TaskVersion
from walle.task.format.config import TaskConfig
from walle.task.format.large_file import LargeFile


class Judge(Protocol):
    """Methods of `walle.deploy.monitor.service.MonitorService` that the service calls."""

    async def watch(self, step: Step) -> None: ...

    async def unwatch(self, release_id: str) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """External effects of the release service, as injected calls. Every call may be repeated.

    `check_version`, `read_config` and `read_version` take scenario, task and version, and raise RepoError where it
    does not exist; `read_schema` returns the declared attributes of devices; `simulate` takes the version's own events,
    None without any, the files that they may name, and the policy whose groups of devices it is for; `put` stores one
    blob or large file that devices fetch, `put_cloud_file` one that they do not; `code_files` makes smaller forms of a
    bundle's files, for
    devices that have the versions with these manifests (sha256); `publish` swaps the table in all gateways; `stamp`
    returns the signed timestamp of a table; `build` raises SignatureAwaitedError while too few keys have signed a
    version, `signing` and `add_signatures` as `Signatures.state` and `add` do; `recent_devices` returns at most a given
    number of ids of recently seen devices of a policy that would get the task by it; `exclusive_files` returns the
    signed list of a device's exclusive files. A call that raises is retried, except during a simulation, where it fails
    the release.
    """

    check_version: Callable[[str, str, str], Awaitable[None]]
    read_config: Callable[[str, str, str], Awaitable[TaskConfig]]
    read_schema: Callable[[], Awaitable[Schema]]
    read_version: Callable[[str, str, str], Awaitable[TaskVersion]]
    build: Callable[[TaskVersion], Awaitable[Bundle]]
    put: Callable[[bytes | LargeFile], Awaitable[str]]
    put_cloud_file: Callable[[bytes | LargeFile], Awaitable[str]]
    code_files: Callable[[Bundle, Sequence[str]], Awaitable[None]]
    simulate: Callable[[Bundle, bytes | None, Mapping[str, bytes], Policy], Awaitable[SimulationResult]]
    publish: Callable[[ReleaseTable], Awaitable[None]]
    recent_devices: Callable[[int, Policy, str], Awaitable[tuple[str, ...]]]
    sign: Callable[[Directive], Directive]
    stamp: Callable[[ReleaseTable], Awaitable[str]]
    read: Callable[[str], Awaitable[bytes]]  # a blob that `put` stored, by its sha256
    signing: Callable[[TaskVersion], Awaitable[SigningState]]
    add_signatures: Callable[[TaskVersion, Mapping[str, bytes]], Awaitable[SigningState]]
    judge: Judge
    exclusive_files: Callable[[str, int, GroupPart], Awaitable[bytes]]
