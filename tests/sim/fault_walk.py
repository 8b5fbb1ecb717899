"""A cloud on a Ray cluster, nodes of which are drained and killed: `python -m tests.sim.fault_walk FOLDER DATABASE`.

Run it in a network namespace of its own, whose loopback interface it brings up. The head has no services; two nodes
may have them. The one that has all is drained, and taken back; then the other one, which has all now, is killed with a
release and uploads under way. The devices play in this process, beside the head. Prints one JSON object.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.sim.cloud_walk import LIMIT_S, CloudWalk
from tests.sim.shop_cloud import until
from tests.sim.two_nodes import loopback_up

SINGLETONS = {"gateway", "releases", "monitor", "identities", "inference-0", "nodes"}
_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
_SERVICES: dict[str, Any] = {"labels": {"role": "services"}}
_LABELS = ("role=services",)


class Walk(CloudWalk):
    """A cluster with the cloud on it."""

    async def begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start a head, one node with the cloud on it, then another node, and wait until that has its processes."""
        from ray.cluster_utils import Cluster

        from walle.actors.wiring import ActorCloud, close_ray, start_ray
        from walle.cloud import CloudConfig

        config = CloudConfig(
            folder=self.folder / "cloud",
            scenarios=("shop",),
            database=self.database,
            uploads=self.database,
            shared_folder=True,
            service_labels=_LABELS,
            inference_labels=_LABELS,
            gateways=1,
            gateway_labels=_LABELS,
            tunnel_servers=1,
            tunnel_server_labels=_LABELS,
        )
        self.cluster = Cluster(initialize_head=True, head_node_args=_NODE)
        undo.callback(self.cluster.shutdown)
        start_ray(self.cluster.address, import_root=Path.cwd())  # connected by the head's Ray: there is no other yet
        undo.callback(close_ray)
        self.first = self.cluster.add_node(**_NODE, **_SERVICES)
        self.cloud = await ActorCloud.start(config, is_detached=True)
        undo.push_async_callback(self.cloud.close)
        self.found(self.cloud.home, self.cloud.address)
        self.log("the cloud runs")
        self.second = self.cluster.add_node(**_NODE, **_SERVICES)
        await until(self.has_members, LIMIT_S)

    async def has_members(self) -> bool:
        """Return whether both nodes have an edge and a tunnel server that devices are sent to."""
        shown = await self.call("GET", "/v1/cloud")
        running = [one["name"] for one in shown["processes"] or [] if one["state"] == "running"]
        return len(set(running) - SINGLETONS) == 4 and len(shown["tunnel_servers"]) == 2

    def actors(self) -> str:
        from walle.actors.process import actor_names, find
        from walle.actors.processes import record_of

        namespace = self.cloud.place.namespace
        records = {name: record_of(find(name, namespace)) for name in sorted(actor_names(namespace))}
        nodes = {self.first.node_id: "first", self.second.node_id: "second"}
        return "\n".join(
            f"{name}: {one['State']} {nodes.get(one['Address']['NodeID'], '?')} {one['NumRestarts']} {one['Pid']}"
            for name, one in records.items()
            if one
        )

    async def nodes_by_name(self) -> dict[str, str]:
        shown = await self.call("GET", "/v1/cloud")
        return {one["name"]: one["node"] for one in shown["processes"] or [] if one["state"] == "running"}

    async def singletons_on(self, node: Any) -> bool:
        found = await self.nodes_by_name()
        return found.keys() >= SINGLETONS and {found[name] for name in SINGLETONS} == {node.node_id}

    def kill(self, node: Any) -> None:
        """Kill every process of a node at once, as when a machine loses its power."""
        raylet = node.all_processes["raylet"][0].process.pid
        for pid in (raylet, *_descendants(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    async def has_uploads(self) -> bool:
        return await self.produced() > 0

    async def drain(self, node: Any) -> None:
        """Return once nothing is left on a node."""
        await self.call("POST", "/v1/cloud/nodes/drain", json={"node": node.node_id, "over_s": 1})

        async def is_done() -> bool:
            return bool((await self.call("GET", "/v1/cloud/nodes"))["remaining"] == 0)

        await until(is_done, LIMIT_S)


def _descendants(pid: int) -> list[int]:
    try:
        lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(word) for line in lines for word in line.split()]
    return [*children, *(one for child in children for one in _descendants(child))]


async def main(folder: Path, database: str) -> dict[str, Any]:
    begin_s = time.monotonic()
    walk = Walk(folder, database)
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as undo:
        await walk.begin(undo)
        playing = await walk.play(undo)
        asking = asyncio.create_task(walk.check_in())
        assert await walk.singletons_on(walk.first)
        found["start_s"] = round(time.monotonic() - begin_s, 1)
        walk.log("two nodes")

        drained_s = time.monotonic()
        await walk.drain(walk.first)
        assert await walk.singletons_on(walk.second)
        await walk.call("POST", "/v1/cloud/nodes/undrain", json={"node": walk.first.node_id})
        await until(walk.has_members, LIMIT_S)
        found["drained_s"] = round(time.monotonic() - drained_s, 1)
        found["drained"] = walk.take_counts()
        walk.log(f"drained, and taken back: {found['drained']}")

        release = await walk.release("v1")
        await walk.follow(release, "v1", "beta")
        await until(walk.has_uploads, LIMIT_S)
        killed_s = time.monotonic()
        await asyncio.to_thread(walk.kill, walk.second)
        walk.log("killed")
        await until(lambda: walk.singletons_on(walk.first), LIMIT_S)
        found["moved_s"] = round(time.monotonic() - killed_s, 1)
        walk.log("moved")
        await walk.follow(release, "v1", "full")
        await until(lambda: walk.all_have("v1"), LIMIT_S)
        found["released_s"] = round(time.monotonic() - killed_s, 1)
        walk.log("released")
        for one in walk.visitors:
            one.finish()
        await asyncio.gather(*playing)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        found |= await walk.settle()
        found["over_share"] = sorted(walk.over_share)
        found["killed"] = walk.take_counts()
        walk.log(json.dumps(found))
    found["total_s"] = round(time.monotonic() - begin_s, 1)
    return found


if __name__ == "__main__":
    signal.alarm(580)
    loopback_up()
    os.environ["XDG_CACHE_HOME"] = f"{sys.argv[1]}/node"
    os.environ["RAY_health_check_period_ms"] = "1000"  # noqa: SIM112 -- a lost node is noticed after 5 s, not 15
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- else Ray's workers get hardly any time on a busy machine
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))) + "\n")
