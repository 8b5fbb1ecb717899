"""Models that devices share through a real cloud, with every byte that leaves a device."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import random
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.adapt.tuning.points import CLASSES, QUICK, dense, samples
from tests.sim.device_session import session_headers
from tests.sim.recorded_link import RecordedLink, recorded_link
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, device_config, shop_cloud
from walle.adapt.dataset import Dataset
from walle.adapt.tuning.coordinator import MAX_MODEL_BYTES
from walle.adapt.tuning.distillation import Exchange, Statistics, Tuner, model_file
from walle.adapt.tuning.hints import Hints, class_shares
from walle.adapt.tuning.peers import Ensemble
from walle.base.clock import SystemClock
from walle.deploy.agent.fetch import FetchError
from walle.device import Device
from walle.device.credentials import DeviceCredentials
from walle.device.peer_models import PeerModelError, PeerModels
from walle.engine_ext.model import MAGIC

ROOT = Path(__file__).parents[2]
TASK = "shop/count"
STATISTICS = Statistics(1.0, 0.5, 1)


@contextlib.asynccontextmanager
async def fleet(tmp_path: Path, count: int) -> AsyncIterator[tuple[ShopCloud, list[Device], list[RecordedLink]]]:
    """Give a cloud with a task, and devices that reach it through relays."""
    async with contextlib.AsyncExitStack() as stack:
        shop = await stack.enter_async_context(shop_cloud(tmp_path))
        await shop.push("v1")
        links, devices = [], []
        for at in range(count):
            links.append(await stack.enter_async_context(recorded_link(shop.cloud.address)))
            config = device_config(shop.cloud.address, shop.cloud.home, tmp_path / f"d{at}", cloud_url=links[-1].url)
            devices.append(await stack.enter_async_context(Device(config)))
        yield shop, devices, links


def forms(data: Dataset) -> list[bytes]:
    """Return each sample in the forms in which it could leave a device: numbers of three types, and text."""
    found = []
    for row in data.inputs[0]:
        found += [row.astype(dtype).tobytes()[:16] for dtype in ("float32", "float64", "float16")]
        found.append(f"{float(row[0]):.6f}"[:8].encode())
    return found


def end(process: asyncio.subprocess.Process) -> None:
    """End a process that has not ended."""
    if process.returncode is None:
        process.kill()


@pytest.mark.asyncio
async def test_devices_tune_by_peers_and_no_sample_leaves_them(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as (_, devices, links):
        tuners = [Tuner(dense(at, 8 + 4 * at), samples(24, at), QUICK) for at in range(3)]
        hints = [Hints(59.3, 18.0 + at, 0.0, class_shares(one.data.labels.tolist(), CLASSES))
                 for at, one in enumerate(tuners)]  # fmt: skip
        for device, one, hint in zip(devices, tuners, hints, strict=True):
            file = model_file(one.model, one.data)
            assert await device.peer_models.share(TASK, file, hint, loss=1.0, accuracy=0.5) == 1
        before = [one.model.state_dict() for one in tuners]
        runs = [
            asyncio.to_thread(one.run, device.peer_models.exchange(TASK, hint, 2), rounds=2)
            for device, one, hint in zip(devices, tuners, hints, strict=True)
        ]
        await asyncio.gather(*runs)
        for one, state, link in zip(tuners, before, links, strict=True):
            assert any(state[name].tobytes() != array.tobytes() for name, array in one.model.state_dict().items())
            assert one.model.hidden.weight.data.tobytes()[:8] not in link.sent  # tuned by peers after it was sent
        for device, one, link in zip(devices, tuners, links, strict=True):
            file = model_file(one.model, one.data)
            await device.peer_models.share(TASK, file, Hints(summary=(0.0,) * CLASSES), loss=0.1, accuracy=1.0)
            assert file in link.sent  # nothing is encoded or encrypted on this link: samples would be seen
            assert not [form for form in forms(one.data) if form in link.sent]
            assert not [form for form in forms(one.data) if form in link.received]
            await device.peer_models.share(TASK, MAGIC + one.data.inputs[0].tobytes(), hints[0], loss=0.1, accuracy=1.0)
            found = [form for form in forms(one.data) if form in link.sent]
            assert len(found) == len(one.data)  # control: a sample on the link is found


@pytest.mark.night
@pytest.mark.asyncio
async def test_device_processes_tune_by_each_other(tmp_path: Path) -> None:
    """Each device is a process of its own; what leaves it goes through a relay."""
    async with contextlib.AsyncExitStack() as stack:
        shop = await stack.enter_async_context(shop_cloud(tmp_path))
        await shop.push("v1")
        links, processes = [], []
        for at in range(2):
            links.append(await stack.enter_async_context(recorded_link(shop.cloud.address)))
            config = device_config(shop.cloud.address, shop.cloud.home, tmp_path / f"d{at}", cloud_url=links[-1].url)
            path = tmp_path / f"d{at}.pickle"
            path.write_bytes(pickle.dumps(config))
            command = [sys.executable, "-m", "tests.sim.tuning_device", str(path), str(at)]
            processes.append(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE))
            stack.callback(end, processes[-1])
        async with asyncio.timeout(3 * LIMIT_S):
            shown = [json.loads((await one.communicate())[0]) for one in processes]
        for at, (one, link) in enumerate(zip(shown, links, strict=True)):
            assert one["peers"] == [1] * len(one["peers"])
            assert one["changed"]
            assert not [form for form in forms(samples(24, at)) if form in link.sent]


@pytest.mark.asyncio
async def test_peers_are_nearest_first_and_models_that_are_held_are_not_sent_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as (_, devices, links):
        data = samples(4)
        files = [model_file(dense(at), data) for at in range(3)]
        for device, file, longitude in zip(devices, files, (18.0, 40.0, 18.1), strict=True):
            await device.peer_models.share(TASK, file, Hints(59.3, longitude), loss=0.5, accuracy=0.5)
        assert await devices[0].peer_models.peers(TASK, 1) == [files[2]]
        assert await devices[0].peer_models.peers(TASK, 5) == [files[2], files[1]]
        before = len(links[0].received)
        assert await devices[0].peer_models.peers(TASK, 5) == [files[2], files[1]]
        assert len(links[0].received) - before < len(files[1])
        other = model_file(dense(9), data)
        assert await devices[1].peer_models.share(TASK, other, Hints(59.3, 40.0), loss=0.5, accuracy=0.5) == 2
        assert await devices[0].peer_models.peers(TASK, 5) == [files[2], other]
        assert len(Ensemble(await devices[0].peer_models.peers(TASK, 5), data, CLASSES, 1.0)) == 2


@pytest.mark.asyncio
async def test_what_is_not_a_model_of_a_known_task_is_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as (_, devices, _links):
        models = devices[0].peer_models
        with pytest.raises(FetchError, match="422"):
            await models.peers(TASK, 1)
        for task, file, why in (
            ("shop/none", b"x", "404 .*unknown task shop/none"), (TASK, b"", "422 .*0 bytes"),
            (TASK, b"x", "422 .*not a .walle file"),
        ):  # fmt: skip
            with pytest.raises(httpx.HTTPError, match=why):
                await models.share(task, file, Hints(), loss=0.0, accuracy=0.0)
        with pytest.raises(PeerModelError, match="are shared at most"):
            await models.share(TASK, b"x" * (MAX_MODEL_BYTES + 1), Hints(), loss=0.0, accuracy=0.0)


@contextlib.contextmanager
def waiting_exchange(folder: Path, **options: float) -> Iterator[tuple[asyncio.AbstractEventLoop, Exchange]]:
    """Give an exchange with a cloud that does not answer, and the loop of the device, which runs on a thread."""

    async def made() -> Exchange:
        credentials = DeviceCredentials(
            "d0", folder, http, SystemClock(), random.Random(1), token="", on_certificate=lambda *_: None
        )
        await credentials.start()
        return PeerModels(http, credentials).exchange(TASK, Hints(), 1, **options)

    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=LIMIT_S)
        runner.start()
        try:
            yield loop, asyncio.run_coroutine_threadsafe(made(), loop).result(LIMIT_S)
        finally:
            if loop.is_running():
                loop.call_soon_threadsafe(loop.stop)
            runner.join()
            for task in (tasks := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.wait([*tasks, loop.create_task(http.aclose())]))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def test_a_loop_that_stops_ends_an_exchange(tmp_path: Path) -> None:
    errors: list[str] = []

    def call() -> None:
        try:
            exchange(b"x", STATISTICS)
        except PeerModelError as error:
            errors.append(str(error))

    with waiting_exchange(tmp_path) as (loop, exchange):
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        while not asyncio.all_tasks(loop):
            time.sleep(0.01)
        loop.call_soon_threadsafe(loop.stop)
        caller.join(10)
        assert errors == ["the device's event loop has stopped; nothing was exchanged"]
    with pytest.raises(PeerModelError, match="has stopped"):
        exchange(b"x", STATISTICS)


def test_an_exchange_ends_at_its_limit(tmp_path: Path) -> None:
    with waiting_exchange(tmp_path, limit_s=0.2) as (_, exchange), pytest.raises(TimeoutError):
        exchange(b"x", STATISTICS)


@pytest.mark.asyncio
async def test_an_exchange_on_the_loop_of_the_device_is_refused(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as (_, devices, _links):
        exchange = devices[0].peer_models.exchange(TASK, Hints(), 1)
        with pytest.raises(PeerModelError, match="tune in a thread"):
            exchange(b"x", STATISTICS)


@pytest.mark.asyncio
async def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    wrong: list[dict[str, str]] = [
        {"loss": "nan"}, {"accuracy": "2"}, {"latitude": "91"}, {"longitude": "inf"}, {"time_s": "nan"},
        {"summary": "0.5,x"}, {"summary": "1e400"}, {"summary": "2.0"}, {"summary": "0.5," * 1_100},
    ]  # fmt: skip
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        headers = session_headers(shop.cloud.home, "d0")
        async with httpx.AsyncClient(base_url=shop.cloud.address.url, headers=headers) as http:
            for one in [*wrong, {}]:
                given = {"loss": "0.5", "accuracy": "0.5", **one}
                answer = await http.post(f"/v1/tuning/{TASK}", params=given, content=MAGIC)
                assert answer.status_code == (422 if one else 200), one
            assert (await http.get(f"/v1/tuning/{TASK}/peers", params={"count": 65})).status_code == 422
            assert (await http.get(f"/v1/tuning/{TASK}/peers/{'0' * 64}")).status_code == 404
