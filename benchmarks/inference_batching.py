"""Cost of handing a request to fallback inference, with 32 callers, beside two peers in the same run (§7.1).

Every variant gets the bytes of the same tunnel request (an array of 3 KB), decodes them, gives batches to the same
function, which returns one number for each payload, and encodes the answers. The function costs next to nothing, so
that the CPU time is that of the hand-over: of all processes of a variant, the callers' too. Ray's own processes count
for the peers only.

- `vms`: `InferenceNode` with VMs in the VM host of this process.
- `processes`: `InferenceNode` with a replica process at a Unix socket, which has a VM host of its own.
- `processes_tls`: the same as on another node, which is reached by TCP (loopback here) with mutual TLS.
- `ray_actor`: a Ray actor that gathers batches itself, and is called once for each request.
- `ray_serve`: `@serve.batch` of Ray Serve, through its handle; it needs `pip install "ray[serve]"`.

    python benchmarks/inference_batching.py [--rounds 5] [--seconds 2] [--max-batch 16] [--no-peers] [--json]
"""

import argparse
import array
import asyncio
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import ray

from benchmarks.headline import print_headline
from walle.actors.wiring import close_ray, start_ray
from walle.base import plain
from walle.cloud import CloudConfig, CloudHome
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.inference.replica_address import Connection, PeerKey, TlsAddress, connect
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.nodes.inference import InferenceNode
from walle.task.format.bundle import TaskVersion, build_bundle
from walle.task.format.tree import TaskTree
from walle.task.run.runner import PHASE_TOPIC

CALLERS = 32
WARM_S = 0.5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_REPLICA = "--replica"  # FOLDER and SOCKET, or - for TLS

TASK = """\
[task]
name = "rank"
[trigger]
sequence = ["page_exit"]
[phases]
execute = "auto"
[limits]
deadline_ms = 5000
[cloud]
max_batch = MAX_BATCH
batch_ms = 5
queue = 256
"""
MAIN = """\
def execute(ctx, x):
    return float(len(x["feature"]))
def execute_batch(ctx, payloads):
    return [float(len(x["feature"])) for x in payloads]
"""

type Ask = Callable[[], Awaitable[Any]]


def question() -> bytes:
    payload = {"feature": array.array("f", [0.5] * 768)}
    body = {"task": "shop/rank", "version": "v1", "phase": "execute", "payload": payload, "device": {"os": "android"}}
    return plain.encode(body)


def answer_batch(requests: list[bytes]) -> list[bytes]:
    """Do for a peer what the replica's VM does for a batch."""
    payloads = [plain.decode(one)["payload"] for one in requests]
    return [plain.encode(float(len(payload["feature"]))) for payload in payloads]


def cpu_of(pids: Collection[int]) -> float:
    """Return the CPU seconds of processes that live."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total_s += (int(fields[11]) + int(fields[12])) * _TICK_S
    return total_s


def own_processes() -> set[int]:
    """Return this process and its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return own


async def load(ask: Ask, seconds: float, pids: Collection[int]) -> dict[str, float]:
    """Return requests a second, CPU time and latencies of CALLERS that ask one request after the other."""
    latencies: list[float] = []
    end_s = time.perf_counter() + seconds

    async def call() -> None:
        while (begin_s := time.perf_counter()) < end_s:
            await ask()
            latencies.append(time.perf_counter() - begin_s)

    cpu_before_s, begin_s = cpu_of(pids), time.perf_counter()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    wall_s, spent_s = time.perf_counter() - begin_s, cpu_of(pids) - cpu_before_s
    latencies.sort()
    return {
        "requests_s": len(latencies) / wall_s,
        "cpu_us": spent_s / len(latencies) * 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


# --- ours -------------------------------------------------------------------------------------------------------------


class _Release:
    def __init__(self, manifest: str) -> None:
        self.manifest = manifest
        self.request = self
        self.name, self.version = "shop/rank", "v1"


class _Releases:
    def __init__(self, manifest: str) -> None:
        self._manifest = manifest

    async def all(self) -> tuple[_Release, ...]:
        return (_Release(self._manifest),)


def release(folder: Path, max_batch: int) -> str:
    """Put a version into a cloud's folder as its release does; return its manifest's sha256."""
    home = CloudHome(folder)
    home.prepare(("shop",))
    signer = home.trust.scenario_signer("shop")
    assert signer is not None
    files = {"task.toml": TASK.replace("MAX_BATCH", str(max_batch)).encode(), "main.py": MAIN.encode()}
    tree = TaskTree(scenario="shop", task="rank", version="v1", commit="0" * 40, files=files)
    bundle = build_bundle(TaskVersion.parse(tree), signer)
    for blob in (*bundle.blobs.values(), bundle.envelope):
        home.files.put(blob)
    return bundle.sha256


@contextlib.asynccontextmanager
async def node(folder: Path, sha256: str, engine: ProcessEngine | None = None) -> AsyncIterator[Ask]:
    inference = InferenceNode(CloudConfig(folder=folder, inference_vms=1), engine)
    releases: Any = _Releases(sha256)
    await inference.start(releases)
    data = question()

    async def ask() -> bytes:
        return await inference.answer("d0", PHASE_TOPIC, data)

    try:
        yield ask
    finally:
        await inference.close()


@contextlib.asynccontextmanager
async def processes(folder: Path, sha256: str, *, tls: bool = False) -> AsyncIterator[Ask]:
    socket = folder / "socket"
    command = [sys.executable, __file__, _REPLICA, str(folder), "-" if tls else str(socket)]
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    given, said = process.stdin, process.stdout
    assert given is not None
    assert said is not None
    await said.readline()
    try:

        async def reach(_: int) -> Connection:
            if not tls:
                return await asyncio.open_unix_connection(socket)
            key = PeerKey()
            given.write(f"{json.dumps(key.certificate)}\n".encode())
            return await connect(TlsAddress(*json.loads(await said.readline())), key)

        engine = ProcessEngine(1, reach, HomeSource(CloudHome(folder)))
        await engine.start()
        async with node(folder, sha256, engine) as ask:
            yield ask
    finally:
        await process.communicate()


async def serve_replica(folder: str, socket: str) -> None:
    from walle.cloud.inference.replica_server import ReplicaServer

    is_far = socket == "-"
    config = CloudConfig(folder=Path(folder, "absent") if is_far else Path(folder), inference_vms=1)
    server = ReplicaServer(config, cache=Path(folder, "cache") if is_far else None)
    await server.start()
    if not is_far:
        await server.listen(Path(socket))
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):  # the certificate of each connection
        address = await server.listen_tls("127.0.0.1", json.loads(line))
        print(json.dumps([address.host, address.port, address.certificate]), flush=True)
    await server.close()


# --- peers ------------------------------------------------------------------------------------------------------------


class BatchingActor:
    """Gathers batches of requests that come one by one: up to `max_batch`, or what comes within 5 ms."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._waiting: list[tuple[bytes, asyncio.Future[bytes]]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, data: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append((data, answer))
        if len(self._waiting) >= self._max_batch:
            self._run()
        elif self._timer is None:
            self._timer = loop.call_later(0.005, self._run)
        return await answer

    def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        for (_, answer), result in zip(batch, answer_batch([data for data, _ in batch]), strict=True):
            answer.set_result(result)


def ray_actor(max_batch: int) -> Ask:
    kind: Any = ray.remote(BatchingActor)
    actor, data = kind.options(num_cpus=0, max_concurrency=2 * CALLERS).remote(max_batch), question()

    async def ask() -> Any:
        return await actor.ask.remote(data)

    return ask


def ray_serve(max_batch: int) -> Ask:
    from ray import serve

    @serve.deployment(max_ongoing_requests=4 * CALLERS, ray_actor_options={"num_cpus": 0})
    class Model:
        @serve.batch(max_batch_size=max_batch, batch_wait_timeout_s=0.005)
        async def run(self, requests: list[bytes]) -> list[bytes]:
            return answer_batch(requests)

        async def __call__(self, data: bytes) -> Any:
            return await self.run(data)

    application: Any = Model
    handle, data = serve.run(application.bind(), route_prefix=None), question()

    async def ask() -> Any:
        return await handle.remote(data)

    return ask


# --- all --------------------------------------------------------------------------------------------------------------


async def warm(ask: Ask) -> None:
    assert plain.decode(await ask()) == 768.0
    await load(ask, WARM_S, ())


async def measure(rounds: int, seconds: float, max_batch: int, *, with_peers: bool) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walle-")))
        sha256 = release(folder, max_batch)
        asks: dict[str, Ask] = {
            "vms": await stack.enter_async_context(node(folder, sha256)),
            "processes": await stack.enter_async_context(processes(folder, sha256)),
            "processes_tls": await stack.enter_async_context(processes(folder, sha256, tls=True)),
        }
        for ask in asks.values():
            await warm(ask)
        ours, names = own_processes(), set(asks)
        note = ""
        if with_peers:
            start_ray()
            stack.callback(close_ray)
            asks["ray_actor"] = ray_actor(max_batch)
            try:
                asks["ray_serve"] = ray_serve(max_batch)
            except ImportError as error:
                note = f'ray_serve was not measured: {error}; pip install "ray[serve]"'
        for name, ask in asks.items():
            if name not in names:
                await warm(ask)
        for number in range(rounds):
            for name in list(asks)[:: 1 if number % 2 == 0 else -1]:
                pids = ours if name in names else own_processes()
                found.setdefault(name, []).append(await load(asks[name], seconds, pids))
    medians = {
        name: {key: round(statistics.median(one[key] for one in runs), 2) for key in runs[0]}
        for name, runs in found.items()
    }
    cpu_range = {name: [round(min(one["cpu_us"] for one in runs)), round(max(one["cpu_us"] for one in runs))]
                 for name, runs in found.items()}  # fmt: skip
    return {"callers": CALLERS, "max_batch": max_batch, "ray": ray.__version__, "variants": medians,
            "cpu_us_range": cpu_range, "note": note}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == [_REPLICA]:
        asyncio.run(serve_replica(*sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--no-peers", action="store_true", help="measure walle's own variants only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        measuring = measure(arguments.rounds, arguments.seconds, arguments.max_batch, with_peers=not arguments.no_peers)
        report = asyncio.run(measuring)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{CALLERS} callers, batches of {arguments.max_batch} at most, Ray {ray.__version__}")
    for name, one in report["variants"].items():
        low, high = report["cpu_us_range"][name]
        print(
            f"{name:>13}: {one['requests_s']:8.0f} requests/s, {one['cpu_us']:6.0f} us CPU each ({low} to {high}),"
            f" p50 {one['p50_ms']:6.2f} ms, p99 {one['p99_ms']:6.2f} ms"
        )
    if report["note"]:
        print(report["note"])
    cpu_us = {name: one["cpu_us"] for name, one in report["variants"].items()}
    absent = "not measured (--no-peers)" if arguments.no_peers else "not installed"
    print_headline(
        f"request handed to a replica process, CPU time with {CALLERS} callers",
        unit="µs",
        better="lower",
        ours=cpu_us["processes"],
        peers={
            title: cpu_us.get(name, absent)
            for name, title in (("ray_actor", "Ray actor that batches"), ("ray_serve", "Ray Serve"))
        },
    )


if __name__ == "__main__":
    main()
