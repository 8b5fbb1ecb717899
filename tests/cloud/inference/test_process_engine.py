"""Replicas in processes of their own: batches over their sockets, and processes that are killed, or hang."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.inference_versions import home_in, released, request
from tests.sim.shop_cloud import until
from walle.base import plain
from walle.base.clock import SystemClock
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference import InferenceError, InferenceLateError, NoRoomError, ReplicaLostError
from walle.cloud.inference import process_engine as process_engine_module
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.inference.replica_address import Connection, PeerKey, TlsAddress, connect
from walle.cloud.inference.replica_server import ReplicaServer
from walle.cloud.inference.scheduler import Scheduler
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.inference.watch import InferenceWatch

ROOT = Path(__file__).parents[3]
BATCHES = "[cloud]\nmax_batch = 4\nreplicas = 8\n[limits]\ndeadline_ms = 5000\noutput_kb = 4096\n"
MAIN = """\
import time
def execute(ctx, x):
    if isinstance(x, dict) and "error" in x:
        raise ValueError(x["error"])
    if isinstance(x, dict) and "sleep" in x:
        time.sleep(x["sleep"])
    return x
def execute_batch(ctx, payloads):
    return [execute(ctx, x) for x in payloads]
"""


class Replicas:
    """Processes with replicas, started by the test, in a folder whose path is short; with `tls` as on other nodes."""

    def __init__(self, home: CloudHome, folder: Path, *, tls: bool = False) -> None:
        self.home = home
        self.folder = folder
        self.tls = tls
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    def socket(self, number: int) -> Path:
        return self.folder / str(number)

    async def connect(self, number: int) -> Connection:
        if not self.tls:
            return await asyncio.open_unix_connection(self.socket(number))
        key, process = PeerKey(), self.processes[number]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(key.certificate)}\n".encode())
        return await connect(TlsAddress(*json.loads(await process.stdout.readline())), key)

    async def start(self, number: int) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.sim.replica_process"),
            *(str(self.home.folder), str(number), "-" if self.tls else str(self.socket(number)), "1"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"
        self.processes[number] = process  # `connect` talks to it from now on

    def signal(self, number: int, what: int) -> None:
        os.kill(self.processes[number].pid, what)

    async def end(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


@contextlib.asynccontextmanager
async def engine_of(tmp_path: Path, count: int, *, tls: bool = False) -> AsyncIterator[tuple[ProcessEngine, Replicas]]:
    replicas = Replicas(home_in(tmp_path), tmp_path, tls=tls)
    engine = ProcessEngine(count, replicas.connect, HomeSource(replicas.home))
    try:
        await asyncio.gather(*(replicas.start(number) for number in range(count)))
        await engine.start()
        await until(lambda: engine.capacity == count)
        yield engine, replicas
    finally:
        await engine.close()
        await replicas.end()


def decoded(answers: list[bytes | Exception]) -> list[Any]:
    return [plain.decode(one) if isinstance(one, bytes) else one for one in answers]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_batches_cross_with_their_results_and_errors(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 1) as (engine, _):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        large = bytes(range(256)) * 4000
        assert decoded(await engine.run(version, [request(one) for one in (1, None, large)])) == [1, None, large]
        good, bad, late = await engine.run(
            version, [request(1), request({"error": "this one"}), request(2, due_s=time.monotonic() - 1)]
        )
        assert (good, type(bad), type(late)) == (plain.encode(1), InferenceError, InferenceLateError)
        assert "ValueError: this one" in str(bad)
        assert "main.py:4 in execute" in str(bad)
        (refused,) = await engine.run(version, [request(1, phase="postprocess")])
        assert "does not allow 'postprocess' on the cloud" in str(refused)
        state = engine.state()
        assert (state.up, len(state.processes), state.loaded_vms, state.lost) == (1, 1, 1, 0)
        assert state.loaded_bytes > 0


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_version_without_execute_batch_is_known_after_its_first_batch(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 1) as (engine, _):
        version = released(home_in(tmp_path), "def execute(ctx, x): return x\n", BATCHES)
        assert decoded(await engine.run(version, [request(1), request(2)])) == [1, 2]
        assert version.max_batch == 1


@pytest.mark.vm_host
@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [*at_night(False), True])
async def test_a_replica_killed_in_mid_batch_loses_nothing_and_answers_nothing_twice(
    tmp_path: Path, *, tls: bool
) -> None:
    async with engine_of(tmp_path, 2, tls=tls) as (engine, replicas):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        scheduler = Scheduler(engine, SystemClock())
        for _ in range(2):  # both have the version loaded
            await asyncio.gather(*(scheduler.answer(version, request({"sleep": 0.1})) for _ in range(2)))
        due_s = time.monotonic() + 20
        asked = [
            asyncio.create_task(scheduler.answer(version, request({"sleep": 0.2, "n": n}, due_s=due_s)))
            for n in range(12)
        ]
        await until(lambda: scheduler.running == 2)
        replicas.signal(0, signal.SIGKILL)
        answers = [plain.decode(one)["n"] for one in await asyncio.gather(*asked)]
        assert answers == list(range(12))
        assert 1 <= scheduler.counts.repeated <= 4
        assert scheduler.counts.latency_s.buckets()[-1] == ("+Inf", 16.0)
        state = engine.state()
        assert (state.up, state.lost) == (1, 1)
        await replicas.start(0)  # Ray would start it again
        await until(lambda: engine.capacity == 2)
        assert plain.decode(await scheduler.answer(version, request(5))) == 5
        await scheduler.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_without_any_replica_requests_fail_in_time(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 1) as (engine, replicas):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        scheduler = Scheduler(engine, SystemClock())
        begin_s = time.monotonic()
        asked = asyncio.create_task(scheduler.answer(version, request({"sleep": 3}, due_s=begin_s + 0.8)))
        await until(lambda: scheduler.running == 1)
        replicas.signal(0, signal.SIGKILL)
        with pytest.raises(InferenceLateError, match="could not run before its deadline"):
            await asked
        assert 0.7 < time.monotonic() - begin_s < 1.5
        assert engine.capacity == 0
        with pytest.raises(ReplicaLostError, match="no process of fallback inference can be reached"):
            await engine.run(version, [request(1)])
        await scheduler.close()


@pytest.mark.asyncio
async def test_a_load_in_a_process_that_ends_at_that_moment_fails(tmp_path: Path) -> None:
    replicas = Replicas(home_in(tmp_path), tmp_path)
    engine = ProcessEngine(1, replicas.connect, HomeSource(replicas.home))
    version = released(replicas.home, MAIN)
    (link,) = engine._links
    link.vms = 1
    loading = asyncio.create_task(engine.load(version, may_unload=False))
    await asyncio.sleep(0)  # the process is chosen
    engine._drop(link)
    with pytest.raises(ReplicaLostError, match="can be reached"):
        async with asyncio.timeout(5):
            await loading


@pytest.mark.vm_host
@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [False, *at_night(True)])
async def test_a_replica_that_hangs_is_left_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tls: bool
) -> None:
    monkeypatch.setattr(process_engine_module, "_PING_S", 0.05)
    monkeypatch.setattr(process_engine_module, "_SILENT_S", 0.5)
    monkeypatch.setattr(process_engine_module, "_HELLO_S", 0.5)
    async with engine_of(tmp_path, 2, tls=tls) as (engine, replicas):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        scheduler = Scheduler(engine, SystemClock())
        replicas.signal(1, signal.SIGSTOP)
        try:
            asked = [asyncio.create_task(scheduler.answer(version, request(n))) for n in range(8)]
            assert [plain.decode(one) for one in await asyncio.gather(*asked)] == list(range(8))
            await until(lambda: engine.capacity == 1)
        finally:
            replicas.signal(1, signal.SIGCONT)
        await until(lambda: engine.capacity == 2)
        await scheduler.close()


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_replica_that_hangs_gets_no_request_that_another_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine_module, "_PING_S", 0.05)
    monkeypatch.setattr(process_engine_module, "_SUSPECT_S", 0.1)
    async with engine_of(tmp_path, 2) as (engine, replicas):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        await asyncio.gather(*(engine.run(version, [request({"sleep": 0.1})]) for _ in range(2)))
        replicas.signal(0, signal.SIGSTOP)
        try:
            await until(lambda: engine._links[0].quiet_s >= 0.1)
            for n in range(4):  # one after the other: the first process looks as free as the second
                async with asyncio.timeout(5):
                    assert decoded(await engine.run(version, [request(n)])) == [n]
            assert engine.capacity == 2
        finally:
            replicas.signal(0, signal.SIGCONT)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_replica_is_not_silent_while_this_process_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine_module, "_PING_S", 0.1)
    monkeypatch.setattr(process_engine_module, "_SILENT_S", 0.5)
    async with engine_of(tmp_path, 1) as (engine, _):
        for _ in range(3):
            time.sleep(0.8)  # noqa: ASYNC251 -- the event loop does nothing meanwhile
            await asyncio.sleep(0.2)
        assert engine.state().lost == 0
        assert engine.capacity == 1


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_cancelled_request_is_stopped_in_its_process(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 1) as (engine, _):
        version = released(home_in(tmp_path), MAIN, BATCHES)
        scheduler = Scheduler(engine, SystemClock())
        assert plain.decode(await scheduler.answer(version, request(1))) == 1
        asked = asyncio.create_task(scheduler.answer(version, request({"sleep": 4})))
        await until(lambda: scheduler.running == 1)
        asked.cancel()
        begin_s = time.monotonic()
        assert plain.decode(await scheduler.answer(version, request(2))) == 2
        assert time.monotonic() - begin_s < 2
        await scheduler.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_versions_are_loaded_in_each_process_and_in_one_that_joins_later(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    version = released(home, MAIN, BATCHES)
    other = released(home, MAIN, BATCHES, name="other")
    config = CloudConfig(folder=tmp_path, inference_vms=1)

    async def reach(number: int) -> Connection:
        return await asyncio.open_unix_connection(tmp_path / f"{number}.sock")

    async with contextlib.AsyncExitStack() as undo:

        async def serve(number: int) -> ReplicaServer:  # server in this process: quicker, and the same to the engine
            server = ReplicaServer(config, number)
            undo.push_async_callback(server.close)
            await server.start()
            await server.listen(tmp_path / f"{number}.sock")
            return server

        servers = [await serve(number) for number in range(2)]
        engine = ProcessEngine(2, reach, HomeSource(home))
        undo.push_async_callback(engine.close)
        await engine.start()
        await until(lambda: engine.capacity == 2)
        assert not engine.is_loaded(version)
        await engine.load(version, may_unload=True)
        assert engine.is_loaded(version)
        assert [[one.name for one in process.loaded] for process in engine.state().processes] == [["shop/rank v1"]] * 2
        assert decoded(await engine.run(version, [request(1)])) == [1]
        with pytest.raises(NoRoomError, match="shop/other v1 is not loaded in advance"):  # each process has one VM
            await engine.load(other, may_unload=False)
        engine.keep([other, version])
        await servers[0].close()
        await until(lambda: not engine.state().processes[0].is_up)
        await serve(0)
        await until(lambda: bool(engine.state().processes[0].loaded))
        assert [one.name for one in engine.state().processes[0].loaded] == ["shop/rank v1"]  # the one asked for last


@pytest.mark.asyncio
async def test_the_reason_why_a_process_cannot_be_reached_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_engine_module, "_BACKOFF_MAX_S", 0.001)
    monkeypatch.setattr(process_engine_module, "_HELLO_S", 0.01)
    tries = 0

    async def reach(_: int) -> Connection:
        nonlocal tries
        tries += 1
        raise OSError("the cache's folder cannot be made")

    engine = ProcessEngine(1, reach, HomeSource(home_in(tmp_path)))
    await engine.start()
    await until(lambda: tries > 2 * process_engine_module._WARN_AFTER)
    await engine.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ['replica process 1 cannot be reached: OSError("the cache\'s folder cannot be made")']


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_version_that_poisons_a_replica_costs_an_interpreter_which_is_counted(tmp_path: Path) -> None:
    poison = """\
import string

def execute(ctx, x):
    string.Template.__new__ = lambda *args, **options: None
    return x
"""
    honest = """\
import string

def execute(ctx, x):
    return string.Template("$a").substitute(a=x)
"""
    async with engine_of(tmp_path, 1) as (engine, replicas):  # one VM
        hostile = released(replicas.home, poison, name="hostile")
        others = [released(replicas.home, honest, name=f"honest-{number}") for number in range(2)]
        assert decoded(await engine.run(hostile, [request(1)])) == [1]
        for version in others:
            assert decoded(await engine.run(version, [request(2)])) == ["2"]
        await until(lambda: bool(engine.state().discarded))
        assert engine.state().discarded == {"shop/hostile v1": 1}
        watch = InferenceWatch(Scheduler(engine, SystemClock()), engine)
        samples = [sample for metric in watch.metrics() for sample in metric.samples if "discarded" in sample.name]
        assert [(sample.labels, sample.value) for sample in samples] == [({"version": "shop/hostile v1"}, 1)]
        replicas.signal(0, signal.SIGKILL)
        await until(lambda: engine.state().up == 0)
        assert engine.state().discarded == {"shop/hostile v1": 1}  # a counter does not go back
