"""Interfaces between the nodes of a cloud: asynchronous calls with plain values or frozen dataclasses."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from walle.access.identity.interface import Identities
from walle.cloud.api.devices import Devices
from walle.cloud.api.exclusive import SignedLists
from walle.cloud.api.releases import Outcomes, Releases, WatchedPart
from walle.cloud.api.signatures import SignedVersions
from walle.cloud.api.targeting import TargetedDevices
from walle.deploy.fleet.device_group import TargetedGroups
from walle.deploy.gate.gate import Verdict
from walle.deploy.gate.step import Step
from walle.deploy.monitor.service import ReportsTaken
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import OutcomeBatch

if TYPE_CHECKING:
    from walle.cloud.inference.request import PhaseRequest  # the request's package imports this module


type WatchedParts = Mapping[str, WatchedPart]
"""Parts of a gateway by their names in /healthz."""


class GatewayPeer(Protocol):
    """Methods of a gateway that the release node calls."""

    async def publish(self, table: ReleaseTable) -> None: ...
    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]: ...


class MonitorPeer(Outcomes, Devices, TargetedDevices, Protocol):
    """Methods of the monitor that the gateway and the release node call."""

    async def watch(self, step: Step) -> None: ...
    async def unwatch(self, release_id: str) -> None: ...
    async def groups(self, policy: Policy, seen_within_s: float) -> TargetedGroups: ...
    async def note_profiles(self, profiles: Mapping[str, bytes]) -> None: ...


class ReportsPeer(Protocol):
    """Methods of the monitor that edge gateways call."""

    async def take_reports(self, batches: Sequence[OutcomeBatch]) -> ReportsTaken: ...
    async def take(self, batch: OutcomeBatch) -> int | None: ...


class ReleasesPeer(Releases, SignedVersions, SignedLists, Protocol):
    """Methods of the release service that the gateway, the monitor and fallback inference call."""

    async def verdict(self, release_id: str, stage: str, verdict: Verdict, reason: str, cause: str = "") -> None: ...
    async def publish_again(self) -> None: ...
    async def backlog(self) -> tuple[int, int]: ...
    async def set_gates(self) -> None: ...


class IdentityPeer(Identities, Protocol):
    """Methods of the identity service that the gateway calls."""


class InferencePeer(WatchedPart, Protocol):
    """Methods of fallback inference that the gateway calls: for its tunnel, /healthz and /metrics, and its tables."""

    async def run(self, request: "PhaseRequest") -> bytes: ...
    async def cold(self, manifests: Sequence[str]) -> frozenset[str]: ...
    async def load(self, manifest: str) -> None: ...
    async def keep(self, manifests: Sequence[str]) -> None: ...


class KeeperPeer(Protocol):
    """Methods of the keeper of nodes that the gateway calls; each returns `walle.cloud.nodes.node_plan.progress`."""

    async def drain(self, node: str, over_s: float) -> dict[str, Any]: ...
    async def undrain(self, node: str) -> dict[str, Any]: ...
    async def restart(self, node: str) -> dict[str, Any]: ...
    async def progress(self) -> dict[str, Any]: ...
