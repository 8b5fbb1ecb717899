"""Sources of what the dashboard shows: the gateway's parts and peers, as interfaces."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from walle.access.access import Identity, Role
from walle.cloud.api.devices import Devices, KeyStates
from walle.cloud.api.releases import Outcomes, Releases, WatchedPart
from walle.cloud.api.targeting import Targeting
from walle.cloud.dashboard.metric_series import MetricSeries
from walle.cloud.dashboard.sessions import Session
from walle.deploy.git.task_history import TaskHistory


class Features(Protocol):
    """Methods of `walle.cloud.api.feature_samples.FeatureSamples` that the pages call."""

    async def latest(
        self, identity: Identity, *, task: str, device: str, version: str = "", count: int
    ) -> tuple[list[dict[str, Any]], int]: ...
    async def since(
        self, identity: Identity, *, task: str, device: str, version: str = "", after: int
    ) -> tuple[list[dict[str, Any]], int]: ...
    async def losses(self, device_id: str) -> list[dict[str, Any]]: ...


class Connection(Protocol):
    """A device's connection to this gateway's tunnel: `walle.pipeline.ingest.service.DeviceConnection`."""

    @property
    def since_s(self) -> float | None: ...
    @property
    def silent(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class DashboardSources:
    """All that pages read. `parts` are those that /healthz and /metrics show, `series` their numbers of an hour."""

    releases: Releases
    outcomes: Outcomes
    devices: Devices
    key_states: KeyStates
    targeting: Targeting
    history: TaskHistory
    features: Features
    connection: Callable[[str], Awaitable[Connection]]
    parts: Callable[[], Mapping[str, WatchedPart]]
    series: Callable[[], MetricSeries]


async def readable_scenarios(sources: DashboardSources, session: Session) -> list[str]:
    """Return the scenarios of which a session may read."""
    scenarios = await asyncio.to_thread(sources.history.scenarios)
    return [one for one in scenarios if session.may(one, Role.READER)]
