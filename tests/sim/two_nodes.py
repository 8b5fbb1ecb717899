"""A cloud on a Ray cluster of two nodes, one of which is killed: `python -m tests.sim.two_nodes FOLDER`.

Run it in a network namespace of its own, whose loopback interface it brings up. Prints one JSON object.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
LIMIT_S = 120.0
DEADLINE_S = 8.0
TASK = """\
[task]
name = "count"
[trigger]
sequence = ["page_exit"]
[phases]
execute = "auto"
[files]
"resources/big.bin" = "cloud"
[limits]
deadline_ms = 4000
[cloud]
max_batch = 2
replicas = 4
"""
MAIN = """\
import time
def execute(ctx, x):
    time.sleep(x[1])
    return [len(ctx.resource("big.bin")), x[0]]
def execute_batch(ctx, payloads):
    return [execute(ctx, x) for x in payloads]
"""
BIG_BYTES = 700_000


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


async def main(folder: Path) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    from tests.sim.shop_cloud import device_config, push, until
    from walle.actors import replicas
    from walle.actors.node import Remote, ask
    from walle.actors.wiring import ActorCloud, close_ray, start_ray
    from walle.base import plain
    from walle.client.release_client import ReleaseClient
    from walle.cloud import CloudConfig
    from walle.device import Device
    from walle.pipeline.tunnel.client.client import RequestError
    from walle.task.run.runner import PHASE_TOPIC

    begin_s = time.monotonic()
    node: dict[str, Any] = {
        "num_cpus": 1,
        "resources": {"inference": 1},
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node)
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(cluster.shutdown)
        second = cluster.add_node(**node)
        start_ray(cluster.address, import_root=Path.cwd())
        undo.callback(close_ray)
        config = CloudConfig(
            folder=folder / "cloud",
            scenarios=("shop",),
            inference_processes=3,  # there is room for two
            inference_vms=1,
            inference_resources=("inference=1",),
        )
        with mock.patch.object(replicas, "_START_S", 1.0):
            cloud = await ActorCloud.start(config)
        undo.push_async_callback(cloud.close)
        found["start_s"] = time.monotonic() - begin_s

        async def nodes_of_replicas(count: int) -> list[str]:
            """Return the Ray nodes of the first replica processes that answer: others have no node yet."""
            asked = [asyncio.create_task(ask(replica, "ray_node")) for replica in cloud.replicas.actors.values()]
            nodes: list[str] = []
            async with asyncio.timeout(LIMIT_S):
                for one in asyncio.as_completed(asked):
                    nodes.append(await one)
                    if len(nodes) == count:
                        break
            for task in asked:
                task.cancel()
            return sorted(nodes)

        first = ray.get_runtime_context().get_node_id()
        found["spread"] = await nodes_of_replicas(2) == sorted([first, second.node_id])

        await push(cloud.address.url, cloud.home.admin_token, folder / "work", "v1", files())
        async with ReleaseClient(cloud.address.url, cloud.home.admin_token) as client:
            release_id = (await client.create("shop", "count", "v1", beta=["d0"], steps=[1.0]))["id"]

            async def is_in_beta() -> bool:
                return bool((await Remote(cloud.actors["releases"]).get(release_id)).stage == "beta")

            await until(is_in_beta, LIMIT_S)
        device = await undo.enter_async_context(Device(device_config(cloud.address, cloud.home, folder / "d0")))

        async def request(number: int, sleep_s: float) -> str:
            """Return the end of one request: its answer, or the reason of its refusal; "late" after its deadline."""
            body: dict[str, Any] = {"task": "shop/count", "version": "v1", "phase": "execute", "device": {}}
            body["payload"] = [number, sleep_s]
            asked_s = time.monotonic()
            try:
                answer = plain.decode(await device.tunnel.request(PHASE_TOPIC, plain.encode(body), DEADLINE_S))
            except RequestError as error:
                end = f"refused: {error.code or error}"
            else:
                end = "answered" if answer == [BIG_BYTES, number] else f"wrong: {answer}"
            return end if time.monotonic() - asked_s < DEADLINE_S + 2 else f"{end}, late"

        def up(count: int) -> Callable[[], Awaitable[bool]]:
            return lambda: processes_up(cloud.address.url, cloud.home.admin_token, count)

        async def answers() -> bool:
            return await asyncio.gather(*(request(number, 0.05) for number in range(4))) == ["answered"] * 4

        await until(up(2), LIMIT_S)
        await until(answers, LIMIT_S)
        found["ready_s"] = time.monotonic() - begin_s

        asked = [asyncio.create_task(request(number, 0.2)) for number in range(24)]
        await asyncio.sleep(0.5)  # both nodes run batches
        cluster.remove_node(second, allow_graceful=False)
        killed_s = time.monotonic()
        ends = await asyncio.gather(*asked)
        found["in_mid_request"] = {end: ends.count(end) for end in ends}
        found["alone"] = [await request(100, 0)]
        third = cluster.add_node(**{**node, "resources": {"inference": 2}})
        await until(up(3), LIMIT_S)
        found["back_s"] = time.monotonic() - killed_s
        found["spread_again"] = await nodes_of_replicas(3) == sorted([first, third.node_id, third.node_id])
        found["after"] = await asyncio.gather(*(request(number, 0.2) for number in range(6)))
        found["inference"] = await health(cloud.address.url, cloud.home.admin_token)
        found["repeated"] = await repeated(cloud.address.url, cloud.home.admin_token)
        caches = (folder / "node" / "walle" / "inference").glob("*/*")
        found["fetched_bytes"] = sum(path.stat().st_size for path in caches if path.is_file())
    found["total_s"] = time.monotonic() - begin_s
    return found


def files() -> dict[str, str | bytes]:
    return {"task.toml": TASK, "main.py": MAIN, "resources/big.bin": bytes(BIG_BYTES)}


async def health(url: str, token: str) -> dict[str, Any]:
    import httpx

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
        inference: dict[str, Any] = (await http.get("/healthz")).json()["inference"]
    return inference


async def repeated(url: str, token: str) -> float:
    """Return how many requests ran again since their replica was lost."""
    import httpx

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("walle_inference_repeated_total{"))


async def processes_up(url: str, token: str, count: int) -> bool:
    return bool((await health(url, token))["replicas"]["running"] == count)


if __name__ == "__main__":
    signal.alarm(280)
    loopback_up()
    os.environ["XDG_CACHE_HOME"] = f"{sys.argv[1]}/node"
    os.environ["RAY_health_check_period_ms"] = "1000"  # noqa: SIM112 -- a lost node is noticed after 5 s, not 15
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))) + "\n")
