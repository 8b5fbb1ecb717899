"""A cloud on a Ray cluster, nodes of which are drained and killed: `python -m tests.sim.fault_walk FOLDER DATABASE`.

Run it in a network namespace of its own, whose loopback interface it brings up. The head has no services; two nodes
may have them. The one that has all is drained, and taken back; then the other one, which has all now, is killed with a
release and uploads under way. The devices play in this process, beside the head. Prints one JSON object.
"""

import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.sim.shop_cloud import GATE, device_config, push, until
from tests.sim.two_nodes import loopback_up

LIMIT_S = 90.0
NAMES = [f"d{number}" for number in range(4)]
SINGLETONS = {"gateway", "releases", "monitor", "identities", "inference-0", "nodes"}
NO_ANSWER = "no answer"
_STEPS = [0.5, 1.0]
_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
_SERVICES: dict[str, Any] = {"labels": {"role": "services"}}
_LABELS = ("role=services",)


class Walk:
    """A cluster with the cloud on it, devices, and counts of what was seen."""

    def __init__(self, folder: Path, database: str) -> None:
        from walle.cloud import CloudConfig

        self._folder = folder
        self._config = CloudConfig(
            folder=folder / "cloud",
            scenarios=("shop",),
            database=database,
            uploads=database,
            shared_folder=True,
            service_labels=_LABELS,
            inference_labels=_LABELS,
            gateways=1,
            gateway_labels=_LABELS,
            tunnel_servers=1,
            tunnel_server_labels=_LABELS,
        )
        self.devices: list[Any] = []
        self.over_share: set[str] = set()
        self.check_ins: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0  # without an answer to a check-in
        self._began_s = time.monotonic()

    def log(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began_s:5.1f} s: {text}\n")

    async def begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start a head, one node with the cloud on it, then another node, and wait until that has its processes."""
        from ray.cluster_utils import Cluster

        from walle.actors.wiring import ActorCloud, close_ray, start_ray

        self.cluster = Cluster(initialize_head=True, head_node_args=_NODE)
        undo.callback(self.cluster.shutdown)
        start_ray(self.cluster.address, import_root=Path.cwd())  # by the head's Ray, while there is no other
        undo.callback(close_ray)
        self.first = self.cluster.add_node(**_NODE, **_SERVICES)
        self.cloud = await ActorCloud.start(self._config, is_detached=True)
        undo.push_async_callback(self.cloud.close)
        self.url, self.token = self.cloud.address.url, self.cloud.home.admin_token
        self.log("the cloud runs")
        self.second = self.cluster.add_node(**_NODE, **_SERVICES)
        await until(self.has_members, LIMIT_S)

    async def has_members(self) -> bool:
        """Return whether both nodes have an edge and a tunnel server that devices are sent to."""
        shown = await self.call("GET", "/v1/cloud")
        running = [one["name"] for one in shown["processes"] if one["state"] == "running"]
        return len(set(running) - SINGLETONS) == 4 and len(shown["tunnel_servers"]) == 2

    async def play(self, undo: contextlib.AsyncExitStack) -> list[Any]:
        """Begin the devices, and return their visitors."""
        from tests.sim.visits import Visitor
        from walle.device import Device

        for name in NAMES:
            config = device_config(self.cloud.address, self.cloud.home, self._folder / name)
            self.devices.append(await undo.enter_async_context(Device(config)))
        return [Visitor(device, None, 0.05) for device in self.devices]

    async def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the answer of the cloud, asked again while the process asked for is away."""
        import httpx

        headers = {"Authorization": f"Bearer {self.token}"}
        seen = ""
        try:
            async with asyncio.timeout(LIMIT_S), httpx.AsyncClient(base_url=self.url, headers=headers) as http:
                while True:
                    try:
                        answer = await http.request(method, path, timeout=30.0, **body)
                        if answer.status_code != 503:
                            return answer.raise_for_status().json()
                        seen = answer.text
                    except httpx.TransportError as error:
                        seen = repr(error)
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{method} {path}: {seen}\n{self.actors()}") from error

    def actors(self) -> str:
        """Return what Ray says of the actors, for a failure of the test."""
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
        return {one["name"]: one["node"] for one in shown["processes"] if one["state"] == "running"}

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

    async def release(self, version: str) -> str:
        await push(self.url, self.token, self._folder / "work", version, {"note.txt": version})
        body = {"scenario": "shop", "task": "count", "version": version, "beta": ["d0"], "steps": _STEPS, "gate": GATE}
        created = await self.call("POST", "/v1/releases", json=body)
        await self.call("POST", f"/v1/releases/{created['id']}/start")
        return str(created["id"])

    async def having(self, version: str) -> set[str]:
        summaries = [await device.summary() for device in self.devices]
        return {one.device_id for one in summaries if one.tasks.get("shop/count") == version}

    async def follow(self, release: str, version: str, *states: str) -> None:
        """Return once the release is in one of the states; note devices that have it before their step."""
        from walle.deploy.audience import share

        async with asyncio.timeout(LIMIT_S):
            while True:
                have = await self.having(version)  # before the step is asked: it only grows
                shown = await self.call("GET", f"/v1/releases/{release}")
                assert shown["state"] not in ("paused", "failed", "rolled_back"), shown
                step = {"beta": 0.0, "full": 1.0}.get(shown["state"], float(shown.get("share", 1.0)))
                self.over_share |= {name for name in have - {"d0"} if share(release, name) >= step}
                if shown["state"] in states:
                    return
                await asyncio.sleep(0.1)

    async def check_in(self) -> None:
        """Check in again and again as a device, each time on a new connection; count the answers."""
        import httpx

        from tests.sim.device_session import session_headers
        from walle.protocol import PROFILE_HEADER, Profile

        headers = {
            **session_headers(self.cloud.home, "asking"),
            PROFILE_HEADER: Profile("asking", "10.1", {}, {}).to_header(),
        }
        answered_s = time.monotonic()
        while True:
            try:
                async with httpx.AsyncClient(base_url=self.url, timeout=30.0) as http:
                    self.check_ins[str((await http.post("/v1/checkin", headers=headers)).status_code)] += 1
                now_s = time.monotonic()
                self.longest_s = max(self.longest_s, round(now_s - answered_s, 2))
                answered_s = now_s
            except httpx.TransportError as error:
                self.check_ins[f"{NO_ANSWER}: {type(error).__name__}"] += 1
            await asyncio.sleep(0.05)

    def take_counts(self) -> dict[str, Any]:
        """Return the answers to check-ins since the last time, and the longest time without one."""
        found = {"check_ins": dict(self.check_ins), "longest_s": self.longest_s}
        self.check_ins, self.longest_s = collections.Counter(), 0.0
        return found

    async def has_uploads(self) -> bool:
        return any([(await device.summary()).produced > 0 for device in self.devices])

    async def drain(self, node: Any) -> None:
        """Return once nothing is left on a node."""
        await self.call("POST", "/v1/cloud/nodes/drain", json={"node": node.node_id, "over_s": 1})

        async def is_done() -> bool:
            return bool((await self.call("GET", "/v1/cloud/nodes"))["remaining"] == 0)

        await until(is_done, LIMIT_S)

    async def settle(self) -> dict[str, Any]:
        """Return how many uploads the devices produced, how many the cloud has, and how many of those twice."""
        from walle import plain

        await asyncio.gather(*(device.settled() for device in self.devices))
        produced = sum([(await device.summary()).produced for device in self.devices])
        uploads = await self.cloud.place.peer("gateway").uploads("shop/count", 0, 1_000_000)
        distinct = {(one.device_id, plain.decode(one.payload)["page"]) for _, one in uploads}
        return {"produced": produced, "received": len(uploads), "twice": len(uploads) - len(distinct)}


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
        visitors = await walk.play(undo)
        playing = [asyncio.create_task(one.run()) for one in visitors]
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

        async def have_it() -> bool:
            return await walk.having("v1") == set(NAMES)

        await until(have_it, LIMIT_S)
        found["released_s"] = round(time.monotonic() - killed_s, 1)
        walk.log("released")
        for one in visitors:
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
    signal.alarm(280)
    loopback_up()
    os.environ["XDG_CACHE_HOME"] = f"{sys.argv[1]}/node"
    os.environ["RAY_health_check_period_ms"] = "1000"  # noqa: SIM112 -- a lost node is noticed after 5 s, not 15
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))) + "\n")
