"""A cloud on a Ray cluster, run by its commands: `python -m tests.sim.cloud_commands FOLDER DATABASE [--gateways N]`.

`python -m tests.sim.upgrades` has a database and a namespace for it, and judges what it prints.

Run it in a network namespace of its own, whose loopback interface it brings up. One node of two has the services, or
both have. The cloud is started with `walle cloud up --detach`; while devices upload, a release goes on and check-ins
come, another version of Walle is installed and `walle cloud restart` takes it; then the cloud is ended and started
again. The devices play in this process. Prints one JSON object.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sim.shop_cloud import GATE, push, until
from tests.sim.two_nodes import loopback_up

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0  # time for one command, on a machine that is busy
NAMES = [f"d{number}" for number in range(4)]
NEW_VERSION = "0.2.0"
_STEPS = [0.5, 1.0]
_NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "labels": {"role": "services"},
}
_SITE = """\
# The package beside this file is the one that is imported, not the one that is installed for development.
import sys
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "ScikitBuildRedirectingFinder"]
"""
_CONFIG = """\
[gateways]
on_each_node = {gateways}
labels = ["role=services"]

[tunnel]
servers = 1
server_labels = ["role=services"]

[services]
database = "{database}"
scenarios = ["shop"]
join_devices = 20

[placement]
ray = true
address = "{address}"
labels = ["role=services"]

[cluster]
shared_folder = true
service_labels = ["role=services"]
"""
# In the new version messages have a field more, which what the old version has sent lacks.
_FIELD = r"\1    added_later: int = dataclasses.field(default=7, kw_only=True)\n"
_CHANGES = {
    "__init__.py": (r'__version__ = "[^"]*"', f'__version__ = "{NEW_VERSION}"'),
    "cloud/folder/config.py": (r"(class CloudConfig\(.*?    folder: Path\n)", _FIELD),
    "cloud/edge/edge_gateway.py": (r"(class EdgeAddress:.*?    watch_url: str\n)", _FIELD),
    "cloud/nodes/tunnel_servers.py": (r"(class TunnelReport:.*?    member: RingMember\n)", _FIELD),
}


class Site:
    """Folder on the path of all processes, with the package of the version that is installed now: a copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(_SITE)
        self._install(folder / "old")
        self._new = folder / "new"

    def install_new(self) -> None:
        """Install another version."""
        self._install(self._new, changes=_CHANGES)

    def _install(self, copy: Path, changes: Mapping[str, tuple[str, str]] | None = None) -> None:
        shutil.copytree(ROOT / "walle", copy, ignore=shutil.ignore_patterns("__pycache__", "src"))
        for name, (pattern, text) in (changes or {}).items():
            changed, count = re.subn(pattern, text, (copy / name).read_text(), count=1, flags=re.DOTALL)
            assert count == 1, name
            (copy / name).write_text(changed)
        link = self.folder / "next"
        link.symlink_to(copy)
        link.replace(self.folder / "walle")


class Operator:
    """An operator's commands, devices, and counts of what was seen."""

    def __init__(self, folder: Path, database: str, gateways: int, nodes: int) -> None:
        self.folder = folder
        self._nodes = nodes
        self.cloud = folder / "cloud"
        self.ca_file = folder / "ca.pem"
        self._database = database
        self._gateways = gateways
        self._began_s = time.monotonic()
        self.environment: dict[str, str] = {}
        self.devices: list[Any] = []
        self.check_ins: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0

    def log(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began_s:5.1f} s: {text}\n")

    async def begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start a cluster of two nodes, of which one or both have the services."""
        from ray.cluster_utils import Cluster

        site = self.site = Site(self.folder)
        os.environ["PYTHONPATH"] = str(site.folder)
        head = _NODE if self._nodes == 2 else {**_NODE, "labels": {}}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        undo.callback(self.cluster.shutdown)
        self.cluster.add_node(**_NODE)
        text = _CONFIG.format(gateways=self._gateways, database=self._database, address=self.cluster.address)
        (self.folder / "walle.toml").write_text(text)
        self.log("two nodes")

    async def walle(self, *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
        """Run a command; return its exit status, what it printed as JSON, and its errors."""
        began_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from walle.cli import main; main()", *map(str, arguments), "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env={**os.environ, **self.environment},
        )
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
        self.log(f"walle {' '.join(map(str, arguments))}: {process.returncode} in {time.monotonic() - began_s:.1f} s")
        if err:
            self.log(err.decode()[-2000:])
        assert process.returncode is not None
        return process.returncode, json.loads(out) if out else {}, err.decode()

    async def up(self) -> tuple[int, dict[str, Any], str]:
        done = await self.walle("cloud", "up", self.cloud, "--config", self.folder / "walle.toml", "--detach")
        if "join_file" in done[1]:
            from walle.cli.join import Join

            self.join = Join.load(Path(done[1]["join_file"]))
            self.token = (self.cloud / "admin.token").read_text().strip()
            self.ca_file.write_text(self.join.ca_pem)
            own = {"WALLE_URL": self.join.url, "WALLE_TOKEN": self.token, "WALLE_CA_FILE": str(self.ca_file)}
            self.environment = own
            self.tls = ssl.create_default_context(cadata=self.join.ca_pem)
        return done

    async def status(self) -> dict[str, Any]:
        while True:
            code, found, said = await self.walle("cloud", "status")
            assert code == 0, said
            if found["processes"] is not None:  # else Ray did not answer in its time
                return found

    async def play(self, undo: contextlib.AsyncExitStack) -> list[Any]:
        """Begin the devices, joined by join.json, and return their visitors."""
        from tests.sim.visits import Visitor
        from walle.device import Device, DeviceConfig

        for name in NAMES:
            config = DeviceConfig(
                device_id=name,
                folder=self.folder / name,
                app_version="10.1",
                attributes={"performance": "low"},
                cloud_url=self.join.url,
                tunnel_host=self.join.tunnel_host,
                tunnel_port=self.join.tunnel_port,
                ca_pem=self.join.ca_pem,
                trusted_keys=self.join.trusted_keys,
                enrolment_token=self.join.enrolment_token,
                vms=1,
                report_interval_s=0.05,
            )
            self.devices.append(await undo.enter_async_context(Device(config)))
        return [Visitor(device, None, 0.05) for device in self.devices]

    async def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the cloud's answer, asked again while the process asked for is away."""
        import httpx

        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            asyncio.timeout(LIMIT_S),
            httpx.AsyncClient(base_url=self.join.url, headers=headers, verify=self.tls) as http,
        ):
            while True:
                answer = await http.request(method, path, timeout=30.0, **body)
                if answer.status_code != 503:
                    return answer.raise_for_status().json()
                await asyncio.sleep(0.1)

    async def release(self, version: str) -> str:
        files = {"note.txt": version}
        await push(self.join.url, self.token, self.folder / "work", version, files, ca=self.ca_file)
        body = {"scenario": "shop", "task": "count", "version": version, "beta": ["d0"], "steps": _STEPS, "gate": GATE}
        created = await self.call("POST", "/v1/releases", json=body)
        return str(created["id"])

    async def state(self, release: str) -> str:
        shown = await self.call("GET", f"/v1/releases/{release}")
        assert shown["state"] not in ("paused", "failed", "rolled_back"), shown
        return str(shown["state"])

    async def has_state(self, release: str, state: str) -> bool:
        return await self.state(release) == state

    async def has_members(self) -> bool:
        shown = await self.call("GET", "/v1/cloud")
        running = [one["name"] for one in shown["processes"] or [] if one["state"] == "running"]
        members = [name for name in running if name.startswith(("edge-", "tunnel-"))]
        return len(shown["tunnel_servers"]) == self._nodes and len(members) == self._nodes * (1 + self._gateways)

    async def check_in(self, *, keeps: bool) -> None:
        """Check in again and again, each time on a new connection, or on one that is kept; count the answers."""
        import httpx

        from tests.sim.device_session import session_headers
        from walle.cloud import CloudHome
        from walle.protocol import PROFILE_HEADER, Profile

        profile = Profile("asking", "10.1", {}, {}).to_header()
        headers = {**session_headers(CloudHome(self.cloud), "asking"), PROFILE_HEADER: profile}
        kind = "kept" if keeps else "new"
        answered_s = time.monotonic()
        async with contextlib.AsyncExitStack() as undo:
            kept = await undo.enter_async_context(
                httpx.AsyncClient(base_url=self.join.url, verify=self.tls, timeout=30.0)
            )
            while True:
                try:
                    async with contextlib.AsyncExitStack() as once:
                        http = kept
                        if not keeps:
                            http = httpx.AsyncClient(base_url=self.join.url, verify=self.tls, timeout=30.0)
                            await once.enter_async_context(http)
                        answer = await http.post("/v1/checkin", headers=headers)
                    self.check_ins[f"{kind}: {answer.status_code}"] += 1
                    self.longest_s = max(self.longest_s, round(time.monotonic() - answered_s, 2))
                    answered_s = time.monotonic()
                except httpx.TransportError as error:
                    self.check_ins[f"{kind}: {error!r}"] += 1
                    self.log(f"a check-in failed: {error!r}")
                await asyncio.sleep(0.05)

    def _http(self) -> Any:
        import httpx

        return httpx.AsyncClient(base_url=self.join.url, verify=self.tls, timeout=30.0)

    def take_counts(self) -> dict[str, Any]:
        """Return the answers to check-ins since the last time, and the longest time without one."""
        found = {"check_ins": dict(self.check_ins), "longest_s": self.longest_s}
        self.check_ins, self.longest_s = collections.Counter(), 0.0
        return found

    async def settle(self) -> dict[str, Any]:
        """Return how many uploads the devices produced, how many the cloud has, and how many of those twice."""
        from walle.base import plain
        from walle.pipeline.ingest.stores import open_uploads

        await asyncio.gather(*(device.settled() for device in self.devices))
        produced = sum([(await device.summary()).produced for device in self.devices])
        async with open_uploads(self._database) as store:
            uploads = await store.query(topic="shop/count", limit=1_000_000)
        distinct = {(one.device_id, plain.decode(one.payload)["page"]) for _, one in uploads}
        return {"produced": produced, "received": len(uploads), "twice": len(uploads) - len(distinct)}

    def left(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return what is left of a cloud that was ended: of its processes, sockets and notes."""
        pids = [one["pid"] for one in status["processes"]]
        ports = {int(self.join.url.rpartition(":")[2]), self.join.tunnel_port}
        ports |= {one["port"] for one in status["tunnel_servers"]}
        cloud_id = (self.cloud / "cloud-id").read_text().strip()
        return {
            "processes": [pid for pid in pids if Path(f"/proc/{pid}").exists()],
            "ports": sorted(ports & _listening()),
            "notes": sorted(path.name for path in (self.cloud / "cluster").glob("*")),
            "sockets": sorted(str(path) for path in Path("/tmp").glob(f"walle-{cloud_id}*")),
        }


def _listening() -> set[int]:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


async def main(folder: Path, database: str, gateways: int, nodes: int, *, is_short: bool) -> dict[str, Any]:
    began_s = time.monotonic()
    operator = Operator(folder, database, gateways, nodes)
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as undo:
        await operator.begin(undo)
        found["cluster_s"] = round(time.monotonic() - began_s, 1)
        up_s = time.monotonic()
        code, _, said = await operator.up()
        assert code == 0, said
        found["up_s"] = round(time.monotonic() - up_s, 1)
        await until(operator.has_members, LIMIT_S)
        visitors = await operator.play(undo)
        playing = [asyncio.create_task(one.run()) for one in visitors]
        asking = [asyncio.create_task(operator.check_in(keeps=keeps)) for keeps in (False, True)]
        release = await operator.release("v1")
        await until(lambda: operator.has_state(release, "beta"), LIMIT_S)
        before = await operator.status()
        found["before"] = operator.take_counts()

        operator.site.install_new()
        restart_s = time.monotonic()
        code, _, said = await operator.walle("cloud", "restart")
        assert code == 0, said
        found["restart_s"] = round(time.monotonic() - restart_s, 1)
        found["restart"] = operator.take_counts()
        after = await operator.status()
        found["processes"] = sorted(one["name"] for one in after["processes"])
        found["same_pids"] = sorted(
            {one["pid"] for one in before["processes"]} & {one["pid"] for one in after["processes"]}
        )
        found["states"] = sorted({one["state"] for one in after["processes"]})
        found["versions"] = [before["versions"], after["versions"]]
        await until(lambda: operator.has_state(release, "full"), LIMIT_S)
        operator.log("full")
        for one in visitors:
            one.finish()
        await asyncio.gather(*playing)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        found["after"] = operator.take_counts()
        found |= await operator.settle()
        for device in operator.devices:
            await device.close()

        code, again, _ = await operator.up()
        found["second_up"] = [code, again.get("running")]
        code, ended, _ = await operator.walle("cloud", "down", operator.cloud, "--address", operator.cluster.address)
        found["down"] = [code, len(ended.get("ended", []))]
        found["left"] = operator.left(after)
        code, _, said = await operator.walle("cloud", "down", operator.cloud, "--address", operator.cluster.address)
        found["second_down"] = [code, json.loads(said.splitlines()[-1])]
        if not is_short:
            code, _, said = await operator.up()
            assert code == 0, said
            found["state_again"] = await operator.state(release)
            found["versions_again"] = (await operator.status())["versions"]
            await operator.walle("cloud", "down", operator.cloud, "--address", operator.cluster.address)
    found["total_s"] = round(time.monotonic() - began_s, 1)
    return found


if __name__ == "__main__":
    signal.alarm(850)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("database")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=2, help="that have the services (default: 2)")
    parser.add_argument("--short", action="store_true", help="do not start the cloud again at the end")
    options = parser.parse_args()
    loopback_up()
    os.environ["XDG_CACHE_HOME"] = f"{options.folder}/node"
    work = main(options.folder, options.database, options.gateways, options.nodes, is_short=options.short)
    sys.stdout.write(json.dumps(asyncio.run(work)) + "\n")
