"""The demo on one machine: push, simulation, release in steps, runs on an event stream, upload, rollback, counts."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console

from apps.ipv.attributes import device_attributes
from apps.ipv.demo import report
from apps.ipv.demo.push import write_task
from apps.ipv.demo.recommend import encoded_visit, fetch_carts, recommend
from apps.ipv.demo.record import DemoRecord, Sample, percentile
from apps.ipv.demo.view import View, report_table
from apps.ipv.ranking import EncodedVisit
from apps.task_repo import TaskRepo
from walle.actors.wiring import ActorCloud, Fleet, close_ray, start_ray
from walle.base import plain
from walle.client.release_client import ReleaseClient
from walle.cloud import CloudConfig
from walle.deploy.releases.stage_text import stage_text, state_text
from walle.device import DeviceConfig, DeviceSummary
from walle.errors import ConfigError, WalleError
from walle.pipeline.events.event_log import EventLog
from walle.trust.audience import share

SCENARIO = "shop"
TASK = "shop/ipv"
BETA_DEVICES = 2
STEPS = (0.25, 0.5, 1.0)
# A demo's devices report within seconds, not weeks: a failure rate of 1 % is good, 10 % bad; about 50 good runs decide.
GATE = {"p_good": 0.01, "p_bad": 0.10, "alpha": 0.01, "beta": 0.01, "trial_runs": 1_000}
_SPEED = 120.0  # times real time: about four page visits a second on each device
_LOG_SPEED = 2000.0  # real logs pause for hours
_SAMPLE_S = 0.4
_RELEASE_LIMIT_S = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a demo; see `walle demo --help`."""

    devices: int
    events: Path | None
    mapping: Path | None
    seed: int
    out: Path
    address: str
    root: Path
    as_json: bool


def main(options: Options) -> int:
    """Run the demo; return 0 if everything held, 1 if not, 130 after Ctrl-C. No process is left behind."""
    console = Console(stderr=options.as_json, emoji=False)
    folder = Path(tempfile.mkdtemp(prefix="walle-demo-"))
    interrupts: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    def raise_if_interrupted() -> None:
        if interrupts:  # a callback in which KeyboardInterrupt is raised swallows it
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        # It takes seconds. Not with a spinner: its thread would take a Ctrl-C that is held back while Ray starts.
        console.print(
            f"joining the Ray at {options.address}" if options.address else "starting Ray on this machine", markup=False
        )
        start_ray(options.address, import_root=options.root)
        raise_if_interrupted()
        record = asyncio.run(_interruptible(_Demo(options, folder, console).run()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130
    finally:
        close_ray()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, before)
    paths = report.write(record, options.out)
    if options.as_json:
        sys.stdout.write(json.dumps(record.to_json(), indent=1) + "\n")
    else:
        console.print(report_table(record))
        console.print("report:", *(str(path) for path in paths), highlight=False, soft_wrap=True, markup=False)
    return 0 if record.all_hold else 1


async def _interruptible[T](work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; SIGINT and SIGTERM cancel it, so that it stops what it started in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


class DemoStalledError(WalleError):
    """A release made no progress."""


class _Demo:
    """One run. Times are seconds since the fleet was up."""

    def __init__(self, options: Options, folder: Path, console: Console) -> None:
        self._options = options
        self._folder = folder
        self._console = console
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        self._record = DemoRecord(devices=options.devices, seed=options.seed, machine=machine)
        self._view = View(self._record, console)
        self._ids = [f"device-{number:03d}" for number in range(options.devices)]
        self._started_s = time.monotonic()
        self._release: dict[str, Any] = {}
        self._sampled = asyncio.Event()
        self._sampling = asyncio.Lock()
        self._summaries: list[tuple[DeviceSummary, dict[str, Any]]] = []

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._started_s

    async def run(self) -> DemoRecord:
        options = self._options
        config = CloudConfig(
            folder=self._folder / "cloud", scenarios=(SCENARIO,), business_app="apps.ipv.shop:create_shop"
        )
        with self._console.status("starting the cloud") if not options.as_json else contextlib.nullcontext():
            driver_options = await asyncio.to_thread(self._driver_options)
            self._cloud = await ActorCloud.start(config)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._cloud.close)
            address = self._cloud.address
            token = self._cloud.home.admin_token
            self._releases = await undo.enter_async_context(ReleaseClient(address.url, token))
            configs = [self._device_config(device_id) for device_id in self._ids]
            driver = "apps.ipv.demo.driver:make_driver"
            self._fleet = Fleet(
                configs, per_actor=5, driver=driver, options={**driver_options, "shop_url": address.url}
            )
            undo.push_async_callback(self._fleet.close)
            with self._console.status("starting the devices") if not options.as_json else contextlib.nullcontext():
                await self._fleet.start()
            self._started_s = time.monotonic()
            self._record.mark(0.0, f"{options.devices} devices up, their users shopping")
            with self._view:
                await self._play(TaskRepo(self._folder / "work", address.url, SCENARIO, token))
        return self._record

    async def _play(self, repo: "TaskRepo") -> None:
        sampling = asyncio.create_task(self._sample_periodically())
        story = asyncio.create_task(self._tell(repo))
        try:
            await asyncio.wait([sampling, story], return_when=asyncio.FIRST_COMPLETED)
            for task in (sampling, story):  # raises the reason if the fleet cannot be sampled
                if task.done():
                    task.result()
        finally:
            for task in (sampling, story):
                task.cancel()
            await asyncio.gather(sampling, story, return_exceptions=True)
        await self._judge(*story.result())

    async def _tell(self, repo: "TaskRepo") -> tuple[dict[str, Any], dict[str, Any]]:
        """Ship v1, then v2 which fails; return both releases as they ended."""
        await asyncio.to_thread(repo.push, "ipv", "v1", write_task)
        self._record.mark(self._now_s, "git push of ipv/v1")
        first = await self._ship("v1", until={"full"})
        await self._until_all_on("v1")
        covered_s = self._now_s
        self._record.mark(covered_s, "v1 active on every device")
        await asyncio.to_thread(repo.push, "ipv", "v2", functools.partial(write_task, broken=True))
        self._record.mark(self._now_s, "git push of ipv/v2, which fails on some inputs")
        second = await self._ship("v2", until={"rolled_back", "full"})
        rolled_back_s = self._now_s
        await self._until_all_on("v1")
        back_s = self._now_s
        self._record.mark(back_s, "every device on v1 again")
        await self._fleet.settle()
        await self._sample()
        self._record.figures["time to full coverage"] = f"{covered_s - first['start_s']:.1f} s"
        self._record.figures["time to roll back"] = (
            f"{rolled_back_s - second['start_s']:.1f} s from release to verdict, "
            f"{back_s - rolled_back_s:.1f} s from verdict to every device"
        )
        return first, second

    # --- releases -----------------------------------------------------------------------------------------------------

    async def _ship(self, version: str, until: set[str]) -> dict[str, Any]:
        """Create and start a release, follow it to one of the states, and return it with its history."""
        start_s = self._now_s
        created = await self._releases.create(
            SCENARIO,
            "ipv",
            version,
            policy={"app_version": ">=10"},
            beta=BETA_DEVICES,
            steps=STEPS,
            gate=GATE,
        )
        release_id = created["id"]
        stage = ""
        async with self._in_time(f"the release of {version}"):
            while True:
                self._release = {**await self._releases.get(release_id)}
                if self._release["stage"] != stage:
                    stage = self._release["stage"]
                    reason = f": {self._release['reason']}" if self._release["reason"] else ""
                    self._record.mark(self._now_s, f"{version} {stage_text(stage)}{reason[:160]}")
                    self._view.update()
                if self._release["state"] in until:
                    return {**self._release, "start_s": start_s}
                if self._release["state"] in ("failed", "rolled_back"):
                    raise WalleError(f"{version} is {state_text(self._release['state'])}: {self._release['reason']}")
                await asyncio.sleep(0.1)

    async def _until_all_on(self, version: str) -> None:
        since_s = self._now_s
        async with self._in_time(f"{version} on every device"):
            while not self._record.has_all_on(version, since_s):
                self._sampled.clear()
                await self._sampled.wait()

    @contextlib.asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_RELEASE_LIMIT_S):
                yield
        except TimeoutError:
            release, totals = self._release, self._release.get("totals", {})
            stage = stage_text(release.get("stage", ""))
            raise DemoStalledError(
                f"{what} took more than {_RELEASE_LIMIT_S:.0f} s: {release.get('id')} is at {stage},"
                f" {totals.get('ok')} runs ok, {totals.get('failed')} failed; on a slow machine try fewer --devices"
            ) from None

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _sample_periodically(self) -> None:
        while True:
            await self._sample()
            self._view.update()
            await asyncio.sleep(_SAMPLE_S)

    async def _sample(self) -> None:
        async with self._sampling:  # the latest sample in the record is the one that began last
            await self._take_sample()

    async def _take_sample(self) -> None:
        began_s = self._now_s
        self._summaries = await self._fleet.summaries()
        stats = await self._cloud.gateway.stats()
        active: dict[str, int] = {}
        for device, _ in self._summaries:
            version = device.tasks.get(TASK, "")
            active[version] = active.get(version, 0) + 1
        devices = [device for device, _ in self._summaries]
        failed = sum(device.runs_failed for device in devices)
        release = self._release
        self._record.samples.append(
            Sample(
                began_s=began_s,
                t_s=self._now_s,
                active=active,
                produced=sum(device.produced for device in devices),
                received=stats.received,
                runs=failed + sum(device.runs_ok for device in devices),
                failed=failed,
                release=release["request"]["version"] if release else "",
                state=release["stage"] if release else "",
                share=self._reach(release) / len(self._ids) if release else 0.0,
            )
        )
        self._sampled.set()
        self._to_feature_ms = [value for device in devices for value in device.to_feature_ms]
        self._to_cloud_ms = list(stats.delays_ms)
        for name, values in (("page exit to feature", self._to_feature_ms), ("to cloud receipt", self._to_cloud_ms)):
            self._view.latencies[name] = percentile(values, 0.5), percentile(values, 0.99)

    def _reach(self, release: dict[str, Any]) -> int:
        """Return how many devices a release may reach in its state."""
        state = release["state"]
        if state == "full":
            return len(self._ids)
        if state not in ("beta", "gray"):
            return 0
        step = STEPS[release["step"]] if state == "gray" else 0.0
        reached = {device_id for device_id in self._ids if share(release["id"], device_id) < step}
        return len(reached | set(release["beta_devices"]))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _judge(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        record = self._record
        devices = [device for device, _ in self._summaries]
        drivers = [driver for _, driver in self._summaries]
        last = record.samples[-1]
        produced = sum(device.produced for device in devices)
        stored = sum(device.stored for device in devices)
        runs = sum(device.runs_ok for device in devices)
        record.claim(
            "v1 went through simulation, beta and percentage rollout to every device",
            first["state"] == "full" and self._stages(first) == ["simulation", "beta", "25 %", "50 %", "100 %", "full"],
            " → ".join(self._stages(first)),
        )
        record.claim(
            "encodings produced = received, each with its feature on the device",
            produced == runs == last.received > 0 and stored == produced + runs,
            f"{produced} = {last.received}, {stored - produced} features",
        )
        stage = second["reason"].partition(":")[0]
        record.claim(
            "v2 was rolled back by the monitor, in the beta or the first step of the rollout",
            second["state"] == "rolled_back" and stage in ("beta", stage_text(f"gray {STEPS[0]:g}")),
            second["reason"][:200],
        )
        most = max(sample.active.get("v2", 0) for sample in record.samples)
        allowed = self._reach({**second, "state": "beta" if stage == "beta" else "gray"})
        record.claim(f"v2 never reached more devices than its steps allow ({allowed})", most <= allowed, most)
        record.claim(
            "every device is on v1 again", last.active == {"v1": record.devices}, f"{last.active.get('v1', 0)} devices"
        )
        bare = sum(device.bare_events for device in devices)
        record.claim("no device went without a working version once it had one", bare == 0, f"{bare} events without")
        requests, failed = (sum(driver[key] for driver in drivers) for key in ("requests", "failed_requests"))
        record.claim(
            "every business request was answered", failed == 0 < requests, f"{requests - failed} of {requests}"
        )
        await self._measure(drivers, devices)

    @staticmethod
    def _stages(release: dict[str, Any]) -> list[str]:
        """Return the stages that a release went through, from its journalled events."""
        gates = ["beta", *(f"{step:.0%}".replace("%", " %") for step in STEPS), "full"]
        stages = []
        for entry in release["history"]:
            if entry["event"] == "Create":
                stages.append("simulation")
            elif entry["event"] in ("SimulationPassed", "GateAccepted"):
                stages.append(gates.pop(0))
        return stages

    async def _measure(self, drivers: list[dict[str, Any]], devices: list[DeviceSummary]) -> None:
        figures = self._record.figures
        visits = sum(driver["visits"] for driver in drivers) or 1
        raw_bytes = sum(driver["visit_bytes"] for driver in drivers) / visits
        raw_events = sum(driver["visit_events"] for driver in drivers) / visits
        carts = await fetch_carts(self._cloud.address.url, self._ids)
        visits_encoded: list[EncodedVisit] = []
        uploads = encodings = count = after = 0
        while batch := await self._cloud.gateway.uploads(TASK, after, 1000):
            after = batch[-1][0]
            for _, upload in batch:
                output = plain.decode(upload.payload)
                uploads += len(upload.payload)
                encodings += len(output["encoding"])
                count += 1
                visits_encoded.append(encoded_visit(upload.device_id, output, carts[upload.device_id]))
        self._record.recommendations = recommend(visits_encoded, carts)
        if count:
            figures["bytes a page visit"] = (
                f"{raw_bytes:,.0f} raw ({raw_events:.1f} events) → {encodings / count:,.0f} encoding, "
                f"{uploads / count:,.0f} with its keys"
            )
        for name, values in (
            ("page exit to feature", self._to_feature_ms),
            ("page exit to cloud receipt", self._to_cloud_ms),
        ):
            figures[name] = f"p50 {percentile(values, 0.5):.2f} ms, p99 {percentile(values, 0.99):.2f} ms"
        figures["page visits"] = visits
        figures["phases run by the cloud for a device"] = sum(device.escalated for device in devices)
        figures["whole demo, fleet up to all settled"] = f"{self._now_s:.1f} s"

    # --- set-up -------------------------------------------------------------------------------------------------------

    def _device_config(self, device_id: str) -> DeviceConfig:
        attributes = device_attributes(self._options.seed, device_id)
        address, home = self._cloud.address, self._cloud.home
        return DeviceConfig(
            device_id=device_id,
            folder=self._folder / "devices" / device_id,
            app_version=attributes.app_version,
            attributes=attributes.to_profile(),
            cloud_url=address.url,
            tunnel_host=address.tunnel_host,
            tunnel_port=address.tunnel_port,
            ca_pem=address.ca_pem,
            trusted_keys=home.trusted_keys,
            enrolment_token=home.identities().make_token(device_id, life_s=3600.0),
            vms=2,  # the active version, and one that is being checked
            report_interval_s=0.5,
        )

    def _driver_options(self) -> dict[str, Any]:
        options = self._options
        common: dict[str, Any] = {"seed": options.seed, "log": None, "mapping": None, "streams": {}, "speed": _SPEED}
        if options.events is None:
            if options.mapping is not None:
                raise ConfigError("--mapping says how to read an event log; name the log with --events")
            return common
        log = EventLog(options.events, options.mapping)
        streams: dict[str, None] = {}
        for record in log.records():
            streams.setdefault(record.stream)
        skipped = log.skipped_text()
        if len(streams) < options.devices:
            what = f"{options.events} has {len(streams)} users; give at most as many devices with --devices"
            raise ConfigError(f"{what} ({skipped})" if skipped else what)
        names = list(streams)
        self._record.figures["events in the log"] = f"{log.events:,} of {len(names)} users"
        self._record.figures["lines skipped"] = skipped or "0"
        for line in log.reports[:20]:
            self._record.mark(0.0, f"line {line.line} skipped, {line.fault}: {line.reason}"[:200])
        by_device = {device_id: names[number :: options.devices] for number, device_id in enumerate(self._ids)}
        paths = {
            "log": str(options.events.resolve()),
            "mapping": str(options.mapping.resolve()) if options.mapping else None,
        }
        return {**common, **paths, "streams": by_device, "speed": _LOG_SPEED}
