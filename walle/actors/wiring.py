"""Builds a cloud and a fleet out of actors, on a local Ray or on a cluster that is there."""

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import ray

from walle.actors.device import DeviceActor
from walle.actors.gateway import Gateway
from walle.actors.inference import InferenceActor
from walle.actors.node import Remote
from walle.actors.release import ReleaseActor
from walle.actors.rollback import RollbackActor
from walle.cloud import CloudConfig, CloudHome, GatewayAddress
from walle.device import DeviceConfig, DeviceSummary

_OBJECT_STORE_BYTES = 100 << 20  # messages between actors are small; nothing of ours lies in the object store
_STOP_S = 15.0


def start_ray(address: str = "", *, import_root: Path | None = None) -> None:
    """Join the cluster at `address`, or start a Ray on this machine. Actors import from `import_root` too."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(import_root or ""), os.environ.get("PYTHONPATH")]))}
    common: dict[str, Any] = {"runtime_env": {"env_vars": environment}, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, log_to_driver=True, **common)
    else:
        ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=_OBJECT_STORE_BYTES, **common)


def stop_ray() -> None:
    """Leave the cluster; a Ray that `start_ray` started ends with all its processes."""
    ray.shutdown()


def _spawn(kind: type, *arguments: Any) -> Any:
    """Return an actor of `kind` in a process of its own. It reserves no core: actors wait more than they compute."""
    remote: Any = ray.remote(num_cpus=0)
    return remote(kind).remote(*arguments)


@dataclasses.dataclass(frozen=True)
class ActorCloud:
    """A cloud of four actors. `start` makes it, `close` ends it."""

    home: CloudHome
    address: GatewayAddress
    actors: dict[str, Any]

    @classmethod
    async def start(cls, config: CloudConfig) -> Self:
        home = CloudHome(config.folder)
        await asyncio.to_thread(home.prepare, config.scenarios)
        gateway = _spawn(Gateway, config)
        releases = _spawn(ReleaseActor, config)
        monitor = _spawn(RollbackActor, config)
        inference = _spawn(InferenceActor, config)
        await monitor.open.remote(releases)
        await releases.open.remote(gateway, monitor)
        await inference.open.remote(releases)
        address = await gateway.open.remote(releases, monitor, inference)
        actors = {"gateway": gateway, "inference": inference, "releases": releases, "monitor": monitor}
        return cls(home, address, actors)

    @property
    def gateway(self) -> Remote:
        return Remote(self.actors["gateway"])

    async def close(self) -> None:
        """Close the nodes, the gateway first, and end their processes."""
        for actor in self.actors.values():
            await _end(actor)


class Fleet:
    """Devices in actors, `per_actor` of them in each. `driver` and `options` as for `DeviceActor`."""

    def __init__(
        self, configs: Sequence[DeviceConfig], *, per_actor: int, driver: str, options: dict[str, Any]
    ) -> None:
        groups = [configs[start : start + per_actor] for start in range(0, len(configs), per_actor)]
        self.actors: list[Any] = [_spawn(DeviceActor, group, driver, options) for group in groups]

    async def open(self) -> list[int]:
        """Start every device; return the ids of their processes."""
        return list(await asyncio.gather(*(actor.open.remote() for actor in self.actors)))

    async def stop(self) -> None:
        """Let every driver end and everything that was produced reach the cloud."""
        await asyncio.gather(*(actor.stop.remote() for actor in self.actors))

    async def summaries(self) -> list[tuple[DeviceSummary, dict[str, Any]]]:
        groups: list[Any] = await asyncio.gather(*(actor.summaries.remote() for actor in self.actors))
        return [summary for group in groups for summary in group]

    async def close(self) -> None:
        await asyncio.gather(*(_end(actor) for actor in self.actors))


async def _end(actor: Any) -> None:
    """Close what an actor holds, then end its process; one that does not answer is ended all the same."""
    try:
        async with asyncio.timeout(_STOP_S):
            await actor.close.remote()
    except (TimeoutError, ray.exceptions.RayError):
        pass
    finally:
        ray.kill(actor)
