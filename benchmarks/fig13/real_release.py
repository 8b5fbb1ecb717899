"""The same release by real HTTP: a `walle cloud up` process, git, its gate, and a fleet of `RealDevices`."""

import asyncio
import dataclasses
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks.fig13.cloud import NAME, NEW, OLD, TASK
from benchmarks.fig13.fleet import Fleet, device_id
from benchmarks.fig13.http_pool import HttpPool
from benchmarks.fig13.real_devices import RealDevices, Traffic
from benchmarks.fig13.simulation import Plan, newcomers
from loadtest.cloud_process import CloudError, CloudProcess
from loadtest.device_sessions import device_sessions
from walle.cli import event_loop
from walle.protocol import DEVICE_HEADER

_CONNECTIONS = 64
_APP = "benchmarks.gateway_push:make_hello"  # answers the business requests that carry the profiles
_LOOK_S = 0.1  # pause between two looks at the release
_MODEL_BYTES = 50_000  # size of a version's model, which each device pulls


@dataclasses.dataclass(frozen=True)
class RealRun:
    """Record of a release, in simulated seconds; CPU time is the cloud's, in real seconds."""

    release_id: str
    stages: list[tuple[str, float]]  # names of stages, each with the time at which it was first seen
    reason: str
    installed_s: NDArray[np.float32]
    left_s: NDArray[np.float32]
    traffic: Traffic
    late_ms: dict[str, float]
    most_waiting: int
    cpu_s: float
    wall_s: float
    peak_mib: float


def _files(version: str) -> dict[str, bytes]:
    model = np.random.default_rng(int(version[1:])).bytes(_MODEL_BYTES)
    shared = '[files]\n"resources/weights.bin" = "shared"\n'
    return {
        "task.toml": f'[task]\nname = "{TASK}"\n[trigger]\nsequence = ["page_exit"]\n{shared}'.encode(),
        "main.py": f"def execute(ctx, x):\n    return {version!r}\n".encode(),
        "resources/weights.bin": model,
    }


def play(fleet: Fleet, plan: Plan, speed: float, folder: Path) -> RealRun:
    """Start a cloud in `folder`, give each device v1, and release v2 to them by `plan`, at `speed`.

    The fleet's time begins when the release is at its first step; its simulation in the cloud is over by then.

    Raises:
        CloudError: the cloud does not do what a release needs.
    """
    with CloudProcess.start(folder, f"--business-app={_APP}") as cloud:
        cloud.push(TASK, OLD, _files(OLD))
        first = cloud.start_release(TASK, OLD, beta=0, steps=[1.0], gate={"trial_runs": 1000})
        cloud.wait_release(first, ["gray 1.0"])
        _report_runs(cloud, first)
        cloud.wait_release(first, ["full"])
        cloud.push(TASK, NEW, _files(NEW))
        release_id = cloud.start_release(
            TASK,
            NEW,
            beta=[device_id(int(one)) for one in newcomers(fleet, 0.0, plan.beta)] or 0,
            steps=list(plan.steps),
            gate={**plan.gate.to_plain(), "settle_s": plan.gate.settle_s / speed},
        )
        cloud.wait_release(release_id, ["beta", f"gray {plan.steps[0]}"])
        sessions = device_sessions(cloud.folder, map(device_id, range(fleet.count)))
        found = event_loop.run(_play(fleet, plan, speed, cloud, release_id, sessions))
        cloud.stop()
    return found


def _report_runs(cloud: CloudProcess, release_id: str) -> None:
    """Let a device report enough good runs of v1 to end its trial."""
    host, port = cloud.address
    named = {"task": NAME, "version": OLD, "release": release_id, "error": ""}
    kinds = ({"kind": "installed", "ok": 0, "failed": 0}, {"kind": "run", "ok": 1000, "failed": 0})
    report = {"device_id": "first", "batch_id": "b", "outcomes": [{**named, **kind} for kind in kinds]}
    headers = {DEVICE_HEADER: device_sessions(cloud.folder, ["first"])[0]}
    httpx.post(f"http://{host}:{port}/v1/outcomes", json=report, headers=headers).raise_for_status()


async def _play(
    fleet: Fleet, plan: Plan, speed: float, cloud: CloudProcess, release_id: str, sessions: list[str]
) -> RealRun:
    host, port = cloud.address
    pool = HttpPool(host, port, _CONNECTIONS)
    devices = RealDevices(
        fleet,
        sessions,
        pool,
        release_id=release_id,
        speed=speed,
        new_rate=plan.new_rate,
        old_rate=plan.old_rate,
        horizon_s=plan.horizon_s,
    )
    stages: list[tuple[str, float]] = []

    async def look() -> str:
        while True:
            found = await asyncio.to_thread(cloud.release, release_id)
            if not stages or stages[-1][0] != found["stage"]:
                stages.append((found["stage"], max(devices.now_s, 0.0) if stages else 0.0))
            if is_over.is_set():
                return str(found["reason"])
            await asyncio.sleep(_LOOK_S)

    is_over = asyncio.Event()
    looking = asyncio.create_task(look())
    before_s, began_s = cloud.cpu_s(), asyncio.get_running_loop().time()
    await devices.play()
    wall_s, cpu_s = asyncio.get_running_loop().time() - began_s, cloud.cpu_s() - before_s
    is_over.set()
    reason = await looking
    pool.close()
    if pool.errors:
        raise CloudError(f"{pool.errors} connections could not be made")
    return RealRun(
        release_id,
        stages,
        reason,
        devices.installed_s,
        devices.left_s,
        devices.traffic,
        devices.late_ms(),
        devices.most_waiting,
        cpu_s,
        wall_s,
        cloud.peak_mib(),
    )


def simulated_plan(plan: Plan, run: RealRun, speed: float) -> Plan:
    """Return the plan by which the simulation plays the same release: its id, and the delays of a faster clock."""
    return dataclasses.replace(plan, release_id=run.release_id, simulation_s=0.0, publish_s=0.1 * speed, tick_s=speed)


def coverage_gap(a: NDArray[np.float32], b: NDArray[np.float32], horizon_s: float) -> float:
    """Return the largest difference of the shares of devices that two ways had covered by a time, at any time."""
    times = np.arange(0.0, horizon_s, 1.0)
    shares = [np.searchsorted(np.sort(one), times, side="right") / len(one) for one in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())
