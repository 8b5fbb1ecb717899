"""The cloud and a fleet as Ray actors: a release to every device, errors between processes, and a process that dies."""

import asyncio
import collections
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray

from tests.sim.processes import MARKER, processes_with, wait_until_gone
from tests.sim.shop_cloud import GATE, device_config, push, until
from walle.actors import process as process_module
from walle.actors import replicas as replicas_module
from walle.actors.inference import InferenceActor
from walle.actors.node import NodeLostError, Remote, ask
from walle.actors.process import spawn
from walle.actors.replicas import Replicas
from walle.actors.wiring import ActorCloud, Fleet, close_ray, start_ray
from walle.base import plain
from walle.client.cloud_client import CloudRefusedError
from walle.client.release_client import ReleaseClient
from walle.cloud import CloudConfig
from walle.deploy.git.repo import RepoError
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.errors import UnknownReleaseError
from walle.deploy.releases.release import TransitionError
from walle.deploy.releases.request import ReleaseRequest
from walle.device import Device
from walle.pipeline.tunnel.client.client import RequestError
from walle.task.run.runner import PHASE_TOPIC

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
FAILING = "def execute(ctx, x):\n    raise ValueError('not on the cloud')\n"
AUTO = '[task]\nname = "count"\n[trigger]\nsequence = ["page_exit"]\n[phases]\nexecute = "auto"\n'
DRIVER = "tests.sim.visits:make_driver"
NAMES = ["d0", "d1", "d2", "d3"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def ray_marker() -> Iterator[str]:
    """A Ray on this machine, all of whose processes bear the marker; none of them is left at the end."""
    marker = f"actors-{os.getpid()}"
    os.environ[MARKER] = marker
    try:
        path = os.environ.get("PYTHONPATH")
        start_ray(import_root=ROOT)
        assert os.environ.get("PYTHONPATH") == path
        yield marker
    finally:
        del os.environ[MARKER]
        close_ray()
    assert wait_until_gone(marker) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud(ray_marker: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ActorCloud]:
    """One cloud for all: its processes take seconds to start."""
    cloud = await ActorCloud.start(CloudConfig(folder=tmp_path_factory.mktemp("actors") / "cloud", scenarios=("shop",)))
    yield cloud
    await cloud.close()


def question(version: str, payload: object) -> bytes:
    """Return a request to run execute of shop/count in the cloud."""
    body = {"task": "shop/count", "version": version, "phase": "execute", "payload": payload, "device": {}}
    return plain.encode(body)


def pids_with(marker: str, name: str) -> list[int]:
    """Return the processes with the marker whose command line has the name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes()
            if marked and name.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def admin(cloud: ActorCloud) -> ReleaseClient:
    return ReleaseClient(cloud.address.url, cloud.home.admin_token)


async def start_release(client: ReleaseClient, *, version: str = "v1", beta: int | list[str] = 1) -> str:
    return (await client.create("shop", "count", version, beta=beta, steps=[1.0], gate=GATE))["id"]


async def until_full(client: ReleaseClient, release_id: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (shown := await client.get(release_id))["state"] != "full":
            assert shown["state"] in ("simulating", "beta", "gray"), shown["reason"]
            await asyncio.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def have_produced(fleet: Fleet, counts: dict[str, int]) -> bool:
    return all(summary.produced > counts[summary.device_id] for summary, _ in await fleet.summaries())


async def until_dead(pids: list[int]) -> None:
    await until(lambda: not any(lives(pid) for pid in pids), LIMIT_S)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_release_reaches_a_fleet_and_a_process_that_dies_is_replaced_without_loss(
    cloud: ActorCloud, tmp_path: Path
) -> None:
    await push(cloud.address.url, cloud.home.admin_token, cloud.home.folder.parent / "work", "v1", {})
    configs = [device_config(cloud.address, cloud.home, tmp_path / name) for name in NAMES]
    fleet = Fleet(configs, per_actor=2, driver=DRIVER, options={"pause_s": 0.02})
    try:
        pids = await fleet.start()
        assert len({*pids, os.getpid()}) == 3
        async with admin(cloud) as client:
            await until_full(client, await start_release(client))
        await until(lambda: have_produced(fleet, dict.fromkeys(NAMES, 20)), LIMIT_S)

        os.kill(pids[0], signal.SIGKILL)
        await until_dead(pids[:1])
        both = await asyncio.gather(fleet.summaries(), fleet.summaries())
        assert fleet.replaced == 1
        for summaries in both:
            assert [summary.device_id for summary, _ in summaries] == NAMES
            assert all(summary.tasks == {"shop/count": "v1"} for summary, _ in summaries)
        at_return = {summary.device_id: summary.produced for summary, _ in both[0]}
        await until(lambda: have_produced(fleet, {name: count + 10 for name, count in at_return.items()}), LIMIT_S)

        await fleet.settle()
        summaries = await fleet.summaries()
        produced = [summary.produced for summary, _ in summaries]
        assert produced == [counts["visits"] for _, counts in summaries]
        assert produced == [summary.stored for summary, _ in summaries]
        stats = await cloud.gateway.stats()
        assert stats.received == sum(produced)
        uploads = await cloud.gateway.uploads("shop/count", 0, 100_000)
        seen = {(upload.device_id, plain.decode(upload.payload)["page"]) for _, upload in uploads}
        assert len(seen) == len(uploads) == sum(produced)
    finally:
        await fleet.close()
    await until_dead(pids)
    with pytest.raises(NodeLostError):
        await fleet.summaries()
    assert fleet.replaced == 1


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_errors_of_a_node_arrive_as_what_they_are(cloud: ActorCloud, tmp_path: Path) -> None:
    releases = Remote(cloud.actors["releases"])
    with pytest.raises(UnknownReleaseError) as unknown:
        await releases.start("none")
    assert unknown.value.release_id == "none"
    with pytest.raises(RepoError) as repo:
        await releases.create(
            ReleaseRequest(scenario="shop", task="count", version="v7", policy=Policy(""), beta=("d0",))
        )
    assert "count" in repo.value.what
    assert repo.value.reason

    files = {"main.py": FAILING, "task.toml": AUTO}
    await push(cloud.address.url, cloud.home.admin_token, cloud.home.folder.parent / "work", "v2", files)
    async with admin(cloud) as client:
        release_id = await start_release(client, version="v2", beta=["escalates"])
        with pytest.raises(CloudRefusedError) as refused:
            await client.start(release_id)
        assert (refused.value.status, refused.value.kind) == (409, "TransitionError")
        with pytest.raises(TransitionError) as transition:
            await releases.start(release_id)
        assert (transition.value.release_id, transition.value.asked) == (release_id, "Start")
        assert transition.value.allowed
        assert "In the other process" in transition.value.__notes__[0]

        async def is_in_beta() -> bool:
            release = await releases.get(release_id)
            assert release.state.value in ("simulating", "beta"), release.reason
            return bool(release.state.value == "beta")

        await until(is_in_beta, LIMIT_S)
    async with Device(device_config(cloud.address, cloud.home, tmp_path / "escalates")) as device:
        with pytest.raises(RequestError, match="ValueError: not on the cloud"):
            await device.tunnel.request(PHASE_TOPIC, question("v2", 1))
        with pytest.raises(RequestError, match="the request of escalates cannot be read"):
            await device.tunnel.request(PHASE_TOPIC, b"")
    async with admin(cloud) as client:
        await client.rollback(release_id)


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_inference_process_is_replaced_and_its_request_answered(
    cloud: ActorCloud, ray_marker: str, tmp_path: Path
) -> None:
    main = "import time\ndef execute(ctx, x):\n    time.sleep(x)\n    return [ctx.place, x]\n"
    files = {"main.py": main, "task.toml": AUTO + "[limits]\ndeadline_ms = 10000\n"}
    await push(cloud.address.url, cloud.home.admin_token, cloud.home.folder.parent / "work", "v3", files)
    async with admin(cloud) as client:
        release_id = await start_release(client, version="v3", beta=["d9"])

        async def is_in_beta() -> bool:
            return bool((await Remote(cloud.actors["releases"]).get(release_id)).stage == "beta")

        await until(is_in_beta, LIMIT_S)
    async with Device(device_config(cloud.address, cloud.home, tmp_path / "d9")) as device:
        assert plain.decode(await device.tunnel.request(PHASE_TOPIC, question("v3", 0))) == ["cloud", 0]
        (pid,) = pids_with(ray_marker, "::InferenceActor")
        asked = asyncio.create_task(device.tunnel.request(PHASE_TOPIC, question("v3", 1.5), 60.0))
        await asyncio.sleep(0.5)  # the request is running
        os.kill(pid, signal.SIGKILL)
        assert plain.decode(await asked) == ["cloud", 1.5]
        (successor,) = pids_with(ray_marker, "::InferenceActor")
        assert successor != pid
        headers = {"Authorization": f"Bearer {cloud.home.admin_token}"}
        async with httpx.AsyncClient(base_url=cloud.address.url, headers=headers) as http:
            inference = (await http.get("/healthz")).json()["inference"]
        assert inference["replicas"] == {"running": 1, "wanted": 1, "lost": 1}


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_a_release_continues_when_an_actor_is_killed_at_each_of_its_transitions(
    cloud: ActorCloud, ray_marker: str, tmp_path: Path
) -> None:
    """Nobody is told of a fault within the cloud, every device gets the version, and what was sent was received."""
    folder, token, url = cloud.home.folder, cloud.home.admin_token, cloud.address.url
    await push(url, token, folder.parent / "work", "v4", {})
    async with admin(cloud) as client:
        for one in await client.list_all():
            if one["state"] in ("beta", "gray"):
                await client.rollback(one["id"])
    names = [f"k{number}" for number in range(4)]
    configs = [device_config(cloud.address, cloud.home, tmp_path / name) for name in names]
    fleet = Fleet(configs, per_actor=4, driver=DRIVER, options={"pause_s": 0.02})
    victims = {
        "simulating": ["ReleaseActor"],
        "beta": ["MonitorActor", "ReleaseActor"],
        "gray 0.5": ["GatewayActor"],
        "gray 1.0": ["IdentityActor", "MonitorActor", "InferenceActor"],
        "full": ["ReleaseActor", "GatewayActor"],
    }
    killed: list[int] = []
    statuses: collections.Counter[int] = collections.Counter()

    async def ask_http(http: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
        """Return the answer of the cloud, asked again while a process of it is started again."""
        while True:
            with contextlib.suppress(httpx.TransportError):  # the gateway itself is started again
                answer = await http.request(method, path, **body)
                statuses[answer.status_code] += 1
                if answer.status_code != 503:
                    return answer.raise_for_status().json()
                assert int(answer.headers["Retry-After"]) >= 1
            await asyncio.sleep(0.05)

    async def check_share(http: httpx.AsyncClient, path: str) -> None:
        having = [one.device_id for one, _ in await fleet.summaries() if one.tasks.get("shop/count") == "v4"]
        if (await ask_http(http, "GET", path))["stage"] == "beta":  # the stage has not changed meanwhile
            assert set(having) <= {"k0"}

    try:
        await fleet.start()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            gate = {**GATE, "hold_s": 2.0}  # a stage that lasts: none is over unseen
            body = {"scenario": "shop", "task": "count", "version": "v4", "beta": ["k0"], "steps": [0.5, 1.0]}
            created = await ask_http(http, "POST", "/v1/releases", json={**body, "gate": gate})
            path = f"/v1/releases/{created['id']}"
            seen: list[str] = []

            async def kill(name: str) -> None:
                await until(lambda: len(pids_with(ray_marker, f"::{name}")) == 1, LIMIT_S)
                (pid,) = pids_with(ray_marker, f"::{name}")
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

            release = {"stage": ""}
            begun_s = time.monotonic()
            while release["stage"] != "full":
                release = await ask_http(http, "GET", path)
                assert time.monotonic() - begun_s < 2 * LIMIT_S, (release, statuses, seen)
                assert release["state"] in ("simulating", "beta", "gray", "full"), release["reason"]
                if release["stage"] not in seen:
                    seen.append(release["stage"])
                    await check_share(http, path)
                    for name in victims[release["stage"]]:
                        await kill(name)
            await until_dead(killed)
            assert len(seen) >= 3  # a stage may go by while a process is started again
            release = await ask_http(http, "GET", path)
            moves = [(one["event"], one["state"]) for one in release["history"]]
            assert [state for _, state in moves] == ["simulating", "beta", "gray", "gray", "full"]
            while (status := await ask_http(http, "GET", "/v1/cloud"))["processes"] is None:
                pass  # Ray did not answer in its time
            restarts = {one["name"]: one["restarts"] for one in status["processes"]}
            kinds = {"releases": "ReleaseActor", "monitor": "MonitorActor", "gateway": "GatewayActor"}
            named = [name for stage in seen for name in victims[stage]]
            for name, kind in kinds.items():
                assert restarts[name] == named.count(kind), (restarts, named)
            ended = {one["name"]: one["last_end"] for one in status["processes"]}
            assert "unexpectedly" in ended["gateway"]
        assert set(statuses) <= {200, 201, 503}

        async def have_it() -> bool:
            return all(summary.tasks == {"shop/count": "v4"} for summary, _ in await fleet.summaries())

        await until(have_it, LIMIT_S)
        await fleet.settle()
        produced = {summary.device_id: summary.produced for summary, _ in await fleet.summaries()}
        assert list(produced) == names
        uploads = await cloud.gateway.uploads("shop/count", 0, 100_000)
        received = collections.Counter(upload.device_id for _, upload in uploads if upload.device_id in produced)
        assert received == produced
        pages = {(one.device_id, plain.decode(one.payload)["page"]) for _, one in uploads if one.device_id in produced}
        assert len(pages) == sum(produced.values())
    finally:
        await fleet.close()


OTHER_RAY = """
import os, ray
from walle.actors.wiring import close_ray, start_ray
address = os.environ["RAY_ADDRESS"]
start_ray()
assert os.environ["RAY_ADDRESS"] == address
print(ray.get_runtime_context().gcs_address, len(ray.nodes()))
close_ray()
"""


@pytest.mark.night
def test_a_ray_that_runs_already_does_not_disturb_the_start_of_another(ray_marker: str, tmp_path: Path) -> None:
    running = ray.get_runtime_context().gcs_address
    folder = Path(tempfile.mkdtemp(prefix="w"))  # a short path
    try:
        env = {**os.environ, "RAY_ADDRESS": running, "TMPDIR": str(folder)}
        started = subprocess.run(
            [sys.executable, "-c", OTHER_RAY],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert started.returncode == 0, started.stderr
        address, nodes = started.stdout.split()
        assert address != running
        assert nodes == "1"
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_a_node_that_died_is_named_as_such(ray_marker: str, tmp_path: Path) -> None:
    here, socket = ray.get_runtime_context().get_node_id(), tmp_path / "absent" / "socket"
    actor = spawn(InferenceActor, CloudConfig(folder=tmp_path / "cloud"), 0, socket, here, "name")
    node = Remote(actor)
    with pytest.raises(FileNotFoundError):
        await ask(actor, "start")
    await ask(actor, "ray_node")
    ray.kill(actor)

    async def is_gone() -> bool:
        try:
            await node.close()
        except NodeLostError as lost:
            return lost.method == "close"
        except AttributeError:  # the node was never made: the process has not ended yet
            return False
        return False

    await until(is_gone, LIMIT_S)


@pytest.mark.asyncio(loop_scope="module")
async def test_replicas_that_find_no_node_are_named_and_end_without_being_asked(
    ray_marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas_module, "_START_S", 0.1)
    monkeypatch.setattr(process_module, "_STOP_S", 600.0)
    config = CloudConfig(folder=tmp_path / "cloud", inference_processes=2, inference_resources=("absent=1",))
    replicas = Replicas(config, tmp_path, ray.get_runtime_context().get_node_id())
    await replicas.start()
    assert "2 of 2 processes of fallback inference wait for a node of Ray with absent=1" in caplog.text
    async with asyncio.timeout(LIMIT_S):
        await replicas.close()


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_a_cloud_that_cannot_start_says_why_and_leaves_no_actor(
    cloud: ActorCloud, ray_marker: str, tmp_path: Path
) -> None:
    def actors() -> list[str]:
        names = ("GatewayActor", "ReleaseActor", "MonitorActor", "InferenceActor")
        return sorted(name for line in processes_with(ray_marker) for name in names if f"::{name}" in line)

    await until(lambda: len(set(actors())) == len(actors()) == 4, LIMIT_S)  # those of `cloud`
    taken = int(cloud.address.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use") as failed:
        await ActorCloud.start(CloudConfig(folder=tmp_path / "cloud", http_port=taken))
    assert failed.value.errno == errno.EADDRINUSE
    await until(lambda: len(actors()) == 4, LIMIT_S)


@pytest.mark.night
@pytest.mark.asyncio(loop_scope="module")
async def test_a_fleet_that_cannot_open_says_why(cloud: ActorCloud, tmp_path: Path) -> None:
    configs = [device_config(cloud.address, cloud.home, tmp_path / "d0")]
    fleet = Fleet(configs, per_actor=1, driver="no_such_module:driver", options={})
    try:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            await fleet.start()
    finally:
        await fleet.close()
