"""A cloud on a Ray cluster of machines, whose head is cut off, restarted and lost:
`python -m tests.sim.head_walk [--faults NAME ...] [--ray-defaults]`.

A head without services and two nodes with them are started by `ray start`, as
in docs/how-to/cluster.md, and started again when they end; Ray's head has its state in a Redis. The cloud is started by
`walle cloud up --detach`. Devices play in this process, outside of the machines, and find the cloud by a name that has
the addresses of both nodes. Each fault happens in the middle of a release. Prints one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.sim.cloud_walk import LIMIT_S, CloudWalk
from tests.sim.machines import OUTSIDE, UNSHARE, Machine, Machines, why_no_machines
from tests.sim.redis_server import redis_server, why_no_redis
from tests.sim.shop_cloud import until
from walle.cloud import CloudHome, GatewayAddress

CUT_S = 30.0
# As docs/how-to/cluster.md recommends for every machine; packaging/ has them too.
RAY_SETTINGS = {
    "RAY_health_check_failure_threshold": "12",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
_SERVICES = {"gateway", "releases", "monitor", "identities", "inference-0", "nodes"}
_BIN = Path(sys.executable).parent
_HOST = "cloud.example"
_PORT = 8470
_TUNNEL_PORT = 8471
_RAY_PORT = 6379
_REDIS_PORT = 6400
_PASSWORD = "secret"
_HOLD_S = 6.0  # time of each step of a release: a fault comes before its end
_ASK_S = 40.0  # time for one question to the cloud: longer than an edge holds it
_CONFIG = """\
[gateways]
host = "0.0.0.0"
names = ["{host}"]
port = {port}
on_each_node = 1
labels = ["role=services"]

[tunnel]
port = {tunnel_port}
servers = 1
server_labels = ["role=services"]

[services]
database = "{database}"
scenarios = ["shop"]

[placement]
ray = true
address = "{ray_address}"
labels = ["role=services"]

[cluster]
shared_folder = true
service_labels = ["role=services"]
detach = true
"""


class RayMachine:
    """Ray on a machine, which is started again whenever it ends, as systemd does it."""

    def __init__(self, machine: Machine, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.machine = machine
        self._env = env
        self.starts = 0
        self._command = [str(_BIN / "ray"), "start", f"--node-ip-address={machine.address}", *arguments]
        self._command += ["--num-cpus=2", "--object-store-memory=80000000", "--include-log-monitor=false", "--block"]
        self._command += [f"--temp-dir={machine.folder}/ray"]
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._keep_running())

    async def _keep_running(self) -> None:
        while True:
            self.starts += 1
            process = self.machine.start(*self._command, log=self.machine.folder / "ray.log", env=self._env)
            await asyncio.to_thread(process.wait)
            await asyncio.to_thread(self.machine.kill)  # systemd ends what is left of a unit
            await asyncio.sleep(1.0)

    async def lose_power(self) -> None:
        """End everything at once; nothing starts again before `start`."""
        if self._running is not None:
            self._running.cancel()
        await asyncio.to_thread(self.machine.kill)


class HeadWalk(CloudWalk):
    """A head and two nodes for services, with the cloud on them."""

    def __init__(self, folder: Path, database: str, machines: Machines) -> None:
        super().__init__(folder, database)
        head, *nodes = machines.all
        self._ray_address = f"{head.address}:{_RAY_PORT}"
        external = {"RAY_REDIS_ADDRESS": f"{OUTSIDE}:{_REDIS_PORT}"}
        heading = ["--head", f"--port={_RAY_PORT}", "--include-dashboard=false"]
        self.head = RayMachine(head, *heading, f"--redis-password={_PASSWORD}", env=external)
        self._other_head = RayMachine(head, *heading)
        joining = ["--labels=role=services", f"--address={self._ray_address}"]
        self.nodes = {one.name: RayMachine(one, *joining) for one in nodes}

    async def begin(self) -> None:
        """Start Ray on all machines, then the cloud from one of the nodes."""
        for one in (self.head, *self.nodes.values()):
            one.start()
        await self.until_ray(3)
        self.log("Ray runs")
        await self.start_cloud()
        home = CloudHome(self.folder / "cloud", database=self.database)
        ca_pem = home.authority_certificate.read_text()
        self.found(home, GatewayAddress(f"https://{_HOST}:{_PORT}", _HOST, _TUNNEL_PORT, ca_pem))
        await until(self.is_whole, LIMIT_S)
        self.log("the cloud runs")

    async def until_ray(self, nodes: int) -> None:
        """Return once Ray has a given number of live nodes."""
        code = f"import ray; ray.init({self._ray_address!r}, logging_level='ERROR');"
        code += "print('alive', sum(one['Alive'] for one in ray.nodes()))"
        machine = next(iter(self.nodes.values())).machine
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                    said = await asyncio.to_thread(machine.run, sys.executable, "-c", code, limit_s=60.0)
                    if f"alive {nodes}" in said:
                        return
                await asyncio.sleep(0.5)

    async def start_cloud(self) -> None:
        """Run `walle cloud up --detach` on the first node."""
        file = self.folder / "walle.toml"
        file.write_text(
            _CONFIG.format(
                host=_HOST,
                port=_PORT,
                tunnel_port=_TUNNEL_PORT,
                database=self.database,
                ray_address=self._ray_address,
            )
        )
        machine = next(iter(self.nodes.values())).machine
        command = [str(_BIN / "walle"), "cloud", "up", str(self.folder / "cloud"), "--config", str(file), "--json"]
        await asyncio.to_thread(machine.run, *command, limit_s=LIMIT_S)

    async def ask(self, path: str) -> dict[str, Any] | None:
        """Return what the cloud answers to one question, None where it does not answer it now."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(base_url=self.address.url, headers=headers, verify=self.tls) as http:
            try:
                answer = await http.get(path, timeout=_ASK_S)
            except httpx.TransportError:
                return None
        return answer.json() if answer.status_code == httpx.codes.OK else None

    async def processes(self) -> dict[str, dict[str, Any]]:
        """Return the processes that run, by name; none where the cloud or Ray's head does not answer now."""
        shown = await self.ask("/v1/cloud") or {}
        return {one["name"]: one for one in shown.get("processes") or [] if one["state"] == "running"}

    async def is_whole(self) -> bool:
        """Return whether every process runs: the services, and an edge and a tunnel server on each node."""
        shown = await self.ask("/v1/cloud") or {}
        running = {one["name"] for one in shown.get("processes") or [] if one["state"] == "running"}
        return running >= _SERVICES and len(running - _SERVICES) == 4 and len(shown["tunnel_servers"]) == 2

    async def machine_of(self, name: str) -> RayMachine:
        """Return the machine on which a process runs."""
        while (shown := await self.call("GET", "/v1/cloud"))["processes"] is None:
            pass  # Ray did not answer in its time
        node = next(one["node"] for one in shown["processes"] if one["name"] == name)
        return self.nodes[next(one["host"] for one in shown["nodes"] if one["id"] == node)]

    async def during(self, version: str, fault: Callable[[dict[str, Any]], Awaitable[None]]) -> dict[str, Any]:
        """Release a version, let a fault happen while only the beta device has it, and return what was seen.

        `fault` returns once it is over, and notes what it sees; then the release is to end, and all must run again.
        """
        found: dict[str, Any] = {}
        release = await self.release(version, _HOLD_S)
        await self.follow(release, version, "beta")
        self.take_counts()
        before = await self.processes()
        starts = [one.starts for one in self.nodes.values()]
        stored, _ = await self.received()
        began_s, began_at_s = time.monotonic(), time.time()
        done = asyncio.Event()
        status: dict[str, Any] = {"asked": 0, "answered": 0, "longest_s": 0.0}

        async def watch() -> None:
            """Ask for the state of the cloud each second, as a monitoring system does it; do not wait for answers."""

            async def once() -> None:
                asked_s = time.monotonic()
                answer = await self.ask("/v1/cloud")
                status["answered"] += answer is not None
                status["longest_s"] = max(status["longest_s"], round(time.monotonic() - asked_s, 1))

            async with asyncio.TaskGroup() as asking:
                while not done.is_set():
                    status["asked"] += 1
                    asking.create_task(once())
                    await asyncio.sleep(1.0)

        async def end() -> float:
            await self.follow(release, version, "full")
            return round(time.monotonic() - began_s, 1)

        watching, ending = asyncio.create_task(watch()), asyncio.create_task(end())
        await fault(found)
        found["fault_s"] = round(time.monotonic() - began_s, 1)
        found["stored_meanwhile"] = (await self.received())[0] - stored
        found["full_s"] = await ending
        history = (await self.call("GET", f"/v1/releases/{release}"))["history"]
        steps = [round(one["at_s"] - began_at_s, 1) for one in history if one["event"] == "GateAccepted"]
        found["steps_s"] = steps
        found["steps_meanwhile"] = sum(0 < at_s < found["fault_s"] for at_s in steps)
        self.log(f"full after {found['full_s']} s")
        await until(self.is_whole, LIMIT_S)
        found["whole_s"] = round(time.monotonic() - began_s, 1)
        await until(lambda: self.all_have(version), LIMIT_S)
        done.set()
        await watching
        after = await self.processes()
        found["kept"] = sorted(name for name, one in before.items() if after.get(name, {}).get("pid") == one["pid"])
        found["restarted_nodes"] = sum(one.starts for one in self.nodes.values()) - sum(starts)
        found["status"] = status
        return {**found, **self.take_counts()}

    # --- the faults ---------------------------------------------------------------------------------------------------

    async def cut_head(self) -> dict[str, Any]:
        """Cut the head off for CUT_S."""

        async def fault(_: dict[str, Any]) -> None:
            await asyncio.to_thread(self.head.machine.cut)
            await asyncio.sleep(CUT_S)
            await asyncio.to_thread(self.head.machine.mend)

        return await self.during("v1", fault)

    async def restart_head(self) -> dict[str, Any]:
        """Kill all processes of the head; the machine starts again with its state in Redis. Then kill an actor."""

        async def fault(found: dict[str, Any]) -> None:
            began_s = time.monotonic()
            await self.head.lose_power()
            self.head.start()

            async def answers() -> bool:
                return bool(await self.processes())

            await asyncio.sleep(1.0)
            await until(answers, LIMIT_S)
            found["head_s"] = round(time.monotonic() - began_s, 1)
            self.log("the head answers again")
            killed = (await self.processes())["releases"]
            machine = (await self.machine_of("releases")).machine
            killed_s = time.monotonic()
            await asyncio.to_thread(machine.run, "kill", "-9", str(killed["pid"]))

            async def is_again() -> bool:
                one = (await self.processes()).get("releases", killed)
                return bool(one["pid"] != killed["pid"])

            await until(is_again, LIMIT_S)
            found["actor_s"] = round(time.monotonic() - killed_s, 1)

        return await self.during("v2", fault)

    async def lose_head(self) -> dict[str, Any]:
        """Kill the head, and start another one that knows nothing of the cluster; then start the cloud again."""

        async def fault(found: dict[str, Any]) -> None:
            began_s = time.monotonic()
            await self.head.lose_power()
            self.head = self._other_head
            self.head.start()
            await asyncio.sleep(1.0)
            await self.until_ray(3)
            found["ray_s"] = round(time.monotonic() - began_s, 1)
            self.log("another cluster runs")
            await self.start_cloud()
            found["up_s"] = round(time.monotonic() - began_s, 1)

        return await self.during("v3", fault)

    async def cut_node(self) -> dict[str, Any]:
        """Cut the node with the release service off, until Ray has started a successor; then connect it again."""

        async def fault(found: dict[str, Any]) -> None:
            began_s = time.monotonic()
            cut = await self.machine_of("releases")
            found["leases"] = await self._fences()
            await asyncio.to_thread(cut.machine.cut)

            async def is_elsewhere() -> bool:
                shown = await self.ask("/v1/cloud") or {}
                hosts = {one["id"]: one["host"] for one in shown.get("nodes") or []}
                found = {one["name"]: hosts.get(one["node"]) for one in shown.get("processes") or []}
                return found.get("releases") not in (None, cut.machine.name) and await self._acts()

            await until(is_elsewhere, LIMIT_S)
            found["moved_s"] = round(time.monotonic() - began_s, 1)
            self.log("the release service acts elsewhere")
            found["leases_after"] = await self._fences()
            await asyncio.to_thread(cut.machine.mend)

        return await self.during("v4", fault)

    async def _acts(self) -> bool:
        return await self.ask("/v1/releases") is not None

    async def _fences(self) -> dict[str, int]:
        shown = await self.call("GET", "/v1/cloud")
        return {one["name"]: one["fence"] for one in shown["leases"]}

    def keep_logs(self, folder: Path) -> None:
        for one in (self.head, *self.nodes.values()):
            shutil.copy(one.machine.folder / "ray.log", folder / f"{one.machine.name}.log")
            for session in (one.machine.folder / "ray").glob("session_2*"):
                shutil.copytree(session / "logs", folder / one.machine.name / session.name)


FAULTS: dict[str, Callable[[HeadWalk], Awaitable[dict[str, Any]]]] = {
    "cut-head": HeadWalk.cut_head,
    "restart-head": HeadWalk.restart_head,
    "lose-head": HeadWalk.lose_head,
    "cut-node": HeadWalk.cut_node,
}


async def main(
    folder: Path, database: str, faults: list[str], settings: dict[str, str], logs: Path | None
) -> dict[str, Any]:
    begin_s = time.monotonic()
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as undo:
        # With a token, as the how-to says: whoever reaches Ray's ports runs code there.
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Ray's workers would have a niceness of 15, and hardly any time beside other work on this machine.
        env = {**settings, **auth, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        machines = undo.enter_context(Machines(3, env, {_HOST: [1, 2]}))
        undo.enter_context(redis_server(OUTSIDE, _REDIS_PORT, _PASSWORD))
        walk = HeadWalk(folder, database, machines)
        if logs is not None:
            undo.callback(walk.keep_logs, logs)
        await walk.begin()
        found["start_s"] = round(time.monotonic() - begin_s, 1)
        playing = await walk.play(undo)
        asking = asyncio.create_task(walk.check_in())
        for name in faults:
            walk.log(name)
            found[name] = await FAULTS[name](walk)
            walk.log(json.dumps(found[name]))
        for one in walk.visitors:
            one.finish()
        await asyncio.gather(*playing)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        found |= await walk.settle()
        found["over_share"] = sorted(walk.over_share)
    found["total_s"] = round(time.monotonic() - begin_s, 1)
    return found


def run_apart(arguments: list[str], database: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this program in namespaces of its own; return how it ended, with what it printed."""
    command = [*UNSHARE, sys.executable, "-m", "tests.sim.head_walk", "--inside", str(folder), database, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options)


def _with_a_database(arguments: list[str]) -> int:
    from tests.sim.postgres_server import postgres_server

    with tempfile.TemporaryDirectory(prefix="walle-walk-") as folder, postgres_server() as postgres:
        database = postgres.make_database()
        postgres.folder.chmod(0o711)  # root of the namespace is like any user outside: it enters as others do
        run = run_apart(arguments, database, Path(folder))
    if run.returncode == 0:
        sys.stdout.write(json.dumps(json.loads(run.stdout.splitlines()[-1]), indent=1) + "\n")
    return run.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Faults of the head of a cluster")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--ray-defaults", action="store_true", help="without the settings that are recommended")
    parser.add_argument("--logs", type=Path, help="folder that gets Ray's logs")
    parser.add_argument("--inside", nargs=2, metavar=("FOLDER", "DATABASE"), help="the namespaces are there")
    given = parser.parse_args()
    if given.inside is None:
        if why := why_no_machines() or why_no_redis():
            sys.exit(f"the walk cannot run here: {why}")
        sys.exit(_with_a_database(sys.argv[1:]))
    inside = Path(given.inside[0])
    os.environ["XDG_CACHE_HOME"] = f"{inside}/node"
    used = {} if given.ray_defaults else RAY_SETTINGS
    seen = asyncio.run(main(inside, given.inside[1], given.faults, used, given.logs))
    sys.stdout.write(json.dumps(seen) + "\n")
