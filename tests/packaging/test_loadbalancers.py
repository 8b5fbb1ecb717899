"""packaging/loadbalancer: checked by the programs themselves; HAProxy before two edges, of which each goes in turn."""

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, until
from walle.cli import event_loop
from walle.cloud import Cloud, CloudConfig
from walle.cloud.edge.edge_gateway import edge_gateway
from walle.cloud.edge.shared_listener import free_port
from walle.protocol import PROFILE_HEADER, Profile

FOLDER = Path(__file__).parents[2] / "packaging" / "loadbalancer"
_PATH = f"{os.environ['PATH']}:/usr/sbin"
HAPROXY = shutil.which("haproxy", path=_PATH)
NGINX = shutil.which("nginx", path=_PATH)
without_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
without_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian: haproxy)")


def _filled(text: str, changes: dict[str, str]) -> str:
    """Return a configuration with what an operator changes in it."""
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def _haproxy_config(folder: Path, server_pem: Path, ca_pem: Path, ports: dict[str, int]) -> Path:
    path = folder / "haproxy.cfg"
    changes = {
        "maxconn 20000": "maxconn 500",  # each takes two open files
        "bind :8470": f"bind 127.0.0.1:{ports['https']}",
        "bind :8471": f"bind 127.0.0.1:{ports['tunnel']}",
        "10.0.0.1:8470": f"127.0.0.1:{ports['node-1']}",
        "10.0.0.2:8470": f"127.0.0.1:{ports['node-2']}",
        "10.0.0.1:7444": f"127.0.0.1:{ports['devices']}",
        "10.0.0.2:7444": f"127.0.0.1:{ports['devices']}",
        "/etc/haproxy/walle.pem": str(server_pem),
        "/etc/haproxy/walle-ca.pem": str(ca_pem),
        "/run/haproxy/admin.sock": str(folder / "admin.sock"),
    }
    path.write_text(_filled((FOLDER / "haproxy.cfg").read_text(), changes))
    return path


def _nginx_config(folder: Path, server_pem: Path, ca_pem: Path, ports: dict[str, int]) -> Path:
    path = folder / "nginx.conf"
    changes = {
        "listen 8470": f"listen 127.0.0.1:{ports['https']}",
        "10.0.0.1:8470": f"127.0.0.1:{ports['node-1']}",
        "10.0.0.2:8470": f"127.0.0.1:{ports['node-2']}",
        "/etc/nginx/walle.pem": str(server_pem),
        "/etc/nginx/walle-ca.pem": str(ca_pem),
    }
    text = _filled((FOLDER / "nginx.conf").read_text(), changes)
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{name}_temp_path {folder}/{name};\n" for name in names)
    user = "user root;\n" if not os.getuid() else ""
    path.write_text(
        f"{user}daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr crit;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{folders}{text}}}\n"
    )
    return path


def _authority(folder: Path) -> tuple[Path, Path]:
    """Return the files of a server's certificate with its key, and of the authority."""
    from walle.cloud import CloudHome

    home = CloudHome(folder / "cloud")
    home.prepare()
    authority = home.authority(("cloud.example",))
    return authority.server_path, authority.ca_path


@without_haproxy
def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    assert HAPROXY is not None
    ports = dict.fromkeys(("https", "tunnel", "node-1", "node-2", "devices"), 8470)
    path = _haproxy_config(tmp_path, *_authority(tmp_path), ports)
    said = subprocess.run([HAPROXY, "-c", "-f", path], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "[WARNING]" not in said.stderr, said.stderr
    path.write_text(path.read_text().replace("httpchk", "httpcheck"))
    assert subprocess.run([HAPROXY, "-c", "-f", path], capture_output=True, check=False).returncode != 0


@without_nginx
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    assert NGINX is not None
    ports = dict.fromkeys(("https", "node-1", "node-2"), 8470)
    path = _nginx_config(tmp_path, *_authority(tmp_path), ports)

    def check() -> subprocess.CompletedProcess[str]:
        command = [NGINX, "-t", "-p", str(tmp_path), "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    said = check()
    assert said.returncode == 0, said.stderr
    assert "[warn]" not in said.stderr, said.stderr
    path.write_text(path.read_text().replace("non_idempotent", "idempotent"))
    assert check().returncode != 0


def _run_edge(config: CloudConfig, url: str, sockets: str, ready: Any) -> None:
    """Run an edge in this process until SIGTERM, then drain it."""

    async def find() -> str:
        return url

    async def run() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        async with edge_gateway(config, find, Path(sockets)) as edge:
            ready.set()
            await stopping.wait()
            await edge.drain(LIMIT_S)

    event_loop.run(run())  # uvloop's where that is installed, as in actors


class _Edges:
    """Edges as processes, each alone on its port, as those of two machines."""

    def __init__(self, cloud: Cloud, folder: Path, ports: dict[str, int]) -> None:
        self._cloud = cloud
        self._folder = folder
        self._ports = ports
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.packaging.test_loadbalancers"])
        self.processes: dict[str, Any] = {}

    async def start(self, name: str) -> None:
        sockets = self._folder / name
        sockets.mkdir(mode=0o700, exist_ok=True)
        ready = self._context.Event()
        config = CloudConfig(
            folder=self._cloud.home.folder,
            http_port=self._ports[name],
            gateways=1,
            https=True,
            trusted_proxies=("127.0.0.1",),
        )
        arguments = (config, self._cloud.address.inner_url, str(sockets), ready)
        edge = self.processes[name] = self._context.Process(target=_run_edge, args=arguments)
        edge.start()
        await until(lambda: ready.is_set() or not edge.is_alive())
        assert edge.is_alive()

    def kill(self) -> None:
        for edge in self.processes.values():
            edge.kill()


@contextlib.asynccontextmanager
async def _running(*command: str | Path) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*map(str, command))
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _states(folder: Path) -> dict[str, str]:
    """Return what HAPROXY says of the edges, by name."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(folder / "admin.sock"))
    except OSError:
        return {}
    writer.write(b"show stat\n")
    rows = [line.split(",") for line in (await reader.read()).decode().splitlines()]
    writer.close()
    return {row[1]: row[rows[0].index("status")] for row in rows if row[0] == "edges"}


class _Devices:
    """Devices that check in through a load balancer again and again, half of them on new connections."""

    def __init__(self, cloud: Cloud, port: int) -> None:
        self.answered = Counter[str]()
        self.is_over = False
        profile = Profile("d0", "10.1", {}, {}).to_header()
        self._headers = {**session_headers(cloud.home, "d0"), PROFILE_HEADER: profile}
        self._tls = ssl.create_default_context(cadata=cloud.address.ca_pem)
        self._url = f"https://127.0.0.1:{port}"

    async def check_in(self, *, is_kept: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if is_kept else 0)
        async with httpx.AsyncClient(base_url=self._url, verify=self._tls, limits=limits, timeout=LIMIT_S) as http:
            while not self.is_over:
                answer = await http.post("/v1/checkin", headers=self._headers)
                assert answer.status_code == 204, (answer.status_code, answer.text)
                self.answered["kept" if is_kept else "new"] += 1
                await asyncio.sleep(0.002)

    async def more(self, count: int = 25) -> None:
        """Return once further ones of both kinds are answered."""
        before = self.answered.copy()
        await until(lambda: all(self.answered[kind] >= before[kind] + count for kind in ("kept", "new")))


@contextlib.asynccontextmanager
async def _two_nodes(folder: Path, ports: dict[str, int]) -> AsyncIterator[tuple[Cloud, _Edges]]:
    """Run a cloud and an edge for each of two nodes."""
    config = CloudConfig(
        folder=folder / "cloud",
        scenarios=("shop",),
        gateways=1,
        https=True,
        tunnel_names=("cloud.example", "127.0.0.1"),
        trusted_proxies=("127.0.0.1",),
    )
    async with Cloud(config) as cloud:
        with tempfile.TemporaryDirectory(prefix="walle-") as sockets:  # a short path: sockets take 107 bytes
            edges = _Edges(cloud, Path(sockets), ports)
            try:
                for name in ("node-1", "node-2"):
                    await edges.start(name)
                yield cloud, edges
            finally:
                edges.kill()


def _ports() -> dict[str, int]:
    return {name: free_port("127.0.0.1", 0) for name in ("https", "tunnel", "node-1", "node-2", "devices")}


@pytest.mark.night
@without_haproxy
@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_check_ins_through_haproxy_are_all_answered_while_an_edge_is_killed_and_another_drained(
    tmp_path: Path,
) -> None:
    assert HAPROXY is not None
    ports = _ports()
    authority = tmp_path / "cloud" / "authority"

    async def are(**states: str) -> bool:
        shown = await _states(tmp_path)
        return all(shown.get(name.replace("_", "-"), "").startswith(state) for name, state in states.items())

    async with contextlib.AsyncExitStack() as undo:
        cloud, edges = await undo.enter_async_context(_two_nodes(tmp_path, ports))
        path = _haproxy_config(tmp_path, authority / "server.pem", cloud.home.authority_certificate, ports)
        await undo.enter_async_context(_running(HAPROXY, "-f", path, "-db"))
        await until(lambda: are(node_1="UP", node_2="UP"))
        devices = _Devices(cloud, ports["https"])
        async with asyncio.TaskGroup() as clients:
            for number in range(6):
                clients.create_task(devices.check_in(is_kept=number % 2 == 0))
            await devices.more()
            edges.processes["node-1"].kill()
            await devices.more()
            await until(lambda: are(node_1="DOWN", node_2="UP"))
            await edges.start("node-1")
            await until(lambda: are(node_1="UP", node_2="UP"))
            drained = edges.processes["node-2"]
            drained.terminate()
            await until(lambda: are(node_1="UP", node_2="DOWN"))
            assert drained.is_alive()  # a stopping edge leaves because it says so, not because it has gone
            await devices.more()
            drained.kill()  # the machine is replaced: nobody depends on the edge
            await devices.more()
            devices.is_over = True
    print(f"check-ins answered: {dict(devices.answered)}")  # noqa: T201


@without_nginx
@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_check_ins_through_nginx_are_all_answered_while_an_edge_is_killed_and_comes_back(tmp_path: Path) -> None:
    assert NGINX is not None
    ports = _ports()
    authority = tmp_path / "cloud" / "authority"
    async with contextlib.AsyncExitStack() as undo:
        cloud, edges = await undo.enter_async_context(_two_nodes(tmp_path, ports))
        path = _nginx_config(tmp_path, authority / "server.pem", cloud.home.authority_certificate, ports)
        await undo.enter_async_context(_running(NGINX, "-p", tmp_path, "-c", path))

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", ports["https"])
            except OSError:
                return False
            writer.close()
            return True

        await until(listens)
        devices = _Devices(cloud, ports["https"])
        async with asyncio.TaskGroup() as clients:
            for number in range(6):
                clients.create_task(devices.check_in(is_kept=number % 2 == 0))
            await devices.more()
            edges.processes["node-1"].kill()
            await devices.more()
            await edges.start("node-1")
            await asyncio.sleep(2.5)  # nginx leaves it alone for 2 s
            await devices.more()
            edges.processes["node-2"].kill()
            await devices.more()
            devices.is_over = True
    print(f"check-ins answered: {dict(devices.answered)}")  # noqa: T201
