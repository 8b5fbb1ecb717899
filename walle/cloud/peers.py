"""What the nodes of a cloud ask of each other: asynchronous calls with plain values or frozen dataclasses."""

from typing import Protocol

from walle.deploy.cloud.api import Outcomes, Releases
from walle.deploy.cloud.monitor import Gate, Verdict
from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.release_table import ReleaseTable


class Gateway(Protocol):
    """What the release node asks of a gateway."""

    async def publish(self, table: ReleaseTable) -> None: ...
    async def recent_devices(self, count: int, policy: Policy) -> tuple[str, ...]: ...


class Monitor(Outcomes, Protocol):
    """What the gateway and the release node ask of the monitor."""

    async def watch(self, release_id: str, stage: str, gate: Gate) -> None: ...
    async def unwatch(self, release_id: str) -> None: ...


class Judged(Releases, Protocol):
    """What the gateway, the monitor and fallback inference ask of the releases."""

    async def verdict(self, release_id: str, stage: str, verdict: Verdict, reason: str) -> None: ...


class Inference(Protocol):
    """What the gateway's tunnel asks of fallback inference."""

    async def answer(self, device_id: str, topic: str, payload: bytes) -> bytes: ...
