"""packaging/loadbalancer: checked by the programs themselves; HAProxy before two edges, of which each goes in turn."""

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import ssl
import subprocess
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
from walle.cloud.edge_gateway import edge_gateway
from walle.cloud.shared_listener import free_port
from walle.protocol import PROFILE_HEADER, Profile

FOLDER = Path(__file__).parents[2] / "packaging" / "loadbalancer"
_PATH = f"{os.environ['PATH']}:/usr/sbin"
HAPROXY = shutil.which("haproxy", path=_PATH)
NGINX = shutil.which("nginx", path=_PATH)
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


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    assert NGINX is not None
    server_pem, ca_pem = _authority(tmp_path)
    changes = {"/etc/nginx/walle.pem": str(server_pem), "/etc/nginx/walle-ca.pem": str(ca_pem)}
    included = _filled((FOLDER / "nginx.conf").read_text(), changes)
    path = tmp_path / "nginx.conf"

    def check(text: str) -> subprocess.CompletedProcess[str]:
        path.write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{text}}}\n")
        command = [NGINX, "-t", "-p", str(tmp_path), "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    said = check(included)
    assert said.returncode == 0, said.stderr
    assert "[warn]" not in said.stderr, said.stderr
    assert check(included.replace("non_idempotent", "idempotent")).returncode != 0


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
        sockets = self._folder / f"sockets-{name}"
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
async def _haproxy(path: Path) -> AsyncIterator[None]:
    assert HAPROXY is not None
    process = await asyncio.create_subprocess_exec(HAPROXY, "-f", str(path), "-db")
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


@without_haproxy
@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_check_ins_through_haproxy_are_all_answered_while_an_edge_is_killed_and_another_drained(
    tmp_path: Path,
) -> None:
    names = ("https", "tunnel", "node-1", "node-2", "devices")
    ports = {name: free_port("127.0.0.1", 0) for name in names}
    answered = Counter[str]()
    is_over = False
    async with contextlib.AsyncExitStack() as undo:
        config = CloudConfig(
            folder=tmp_path / "cloud", scenarios=("shop",), gateways=1, https=True, trusted_proxies=("127.0.0.1",)
        )
        cloud = await undo.enter_async_context(Cloud(config))
        edges = _Edges(cloud, tmp_path, ports)
        undo.callback(edges.kill)
        for name in ("node-1", "node-2"):
            await edges.start(name)
        authority = tmp_path / "cloud" / "authority"
        path = _haproxy_config(tmp_path, authority / "server.pem", cloud.home.authority_certificate, ports)
        await undo.enter_async_context(_haproxy(path))

        async def are(**states: str) -> bool:
            shown = await _states(tmp_path)
            return all(shown.get(name.replace("_", "-"), "").startswith(state) for name, state in states.items())

        await until(lambda: are(node_1="UP", node_2="UP"))
        headers = {**session_headers(cloud.home, "d0"), PROFILE_HEADER: Profile("d0", "10.1", {}, {}).to_header()}
        tls = ssl.create_default_context(cadata=cloud.address.ca_pem)
        url = f"https://127.0.0.1:{ports['https']}"

        async def check_in(*, is_kept: bool) -> None:
            limits = httpx.Limits(max_keepalive_connections=1 if is_kept else 0)
            async with httpx.AsyncClient(base_url=url, verify=tls, limits=limits, timeout=LIMIT_S) as http:
                while not is_over:
                    answer = await http.post("/v1/checkin", headers=headers)
                    assert answer.status_code == 204, (answer.status_code, answer.text)
                    answered["kept" if is_kept else "new"] += 1
                    await asyncio.sleep(0.002)

        async def more(count: int = 25) -> None:
            before = answered.copy()
            await until(lambda: all(answered[kind] >= before[kind] + count for kind in ("kept", "new")))

        async with asyncio.TaskGroup() as clients:
            for number in range(6):
                clients.create_task(check_in(is_kept=number % 2 == 0))
            await more()
            killed = edges.processes["node-1"]
            killed.kill()
            await more()
            await until(lambda: are(node_1="DOWN", node_2="UP"))
            await edges.start("node-1")
            await until(lambda: are(node_1="UP", node_2="UP"))
            drained = edges.processes["node-2"]
            drained.terminate()
            await until(lambda: are(node_1="UP", node_2="DOWN"))
            assert drained.is_alive()  # it is left because it says so, not because it has gone
            await more()
            drained.kill()  # as the machine that is replaced: nobody depends on it
            await more()
            is_over = True
        print(f"check-ins answered: {dict(answered)}")  # noqa: T201
