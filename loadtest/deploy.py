"""Load test of releases: locust users that are devices, while an engineer releases good and bad versions to them.

    python -m loadtest.deploy [--users 80] [--spawn-rate 20] [--seconds 60] [--out FOLDER] [--json]

Each user is a device with the real agent: it enrols, checks in, pulls and verifies, reports its runs, loses its process
in the middle of a pull and returns. Meanwhile versions are pushed and released in steps to a real `walle cloud`
process: a good one until it is full, then one that fails, until the gate has rolled it back, and so on. At the end the
records of all devices are checked (`loadtest.deploy_check`): no device got a version before the step that covers it,
each left a bad version at its first request after the rollback, and what it runs is what was pushed. The exit status is
1 after any wrong result or failed call; an answer of 5xx is one.
"""

import argparse
import hashlib
import importlib.util
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if importlib.util.find_spec("locust") is None:
    sys.exit("the load test needs locust, which is not installed; it is in the extra dev: make setup")

import gevent  # locust is checked first
from locust import User, between, task
from locust.env import Environment

from loadtest import report
from loadtest.cloud_process import SCENARIO, CloudError, CloudProcess
from loadtest.deploy_check import BAD, ROLLBACK_S, WEIGHTS, Played, shares_of, wrong_results
from loadtest.device_process import DeviceProcess, call_rows, call_table

MODULE = "loadtest.deploy_devices"
TASK = "ipv"
_WEIGHTS_BYTES = 300_000
_STEPS = [0.25, 0.5, 1.0]
_TRIAL = {"trial_runs": 200}  # runs decide: there are too few devices for a gate by devices
_TOML = f'[task]\nname = "{TASK}"\n[trigger]\nsequence = ["page_exit"]\n[files]\n"{WEIGHTS}" = "shared"\n'


class DeployUser(User):
    """One device. Its calls follow one another, with a pause."""

    wait_time = between(0.1, 0.5)
    _numbers = itertools.count()

    def on_start(self) -> None:
        self.device_id = f"deploy-{next(self._numbers)}"
        self._call("join")

    @task(8)
    def checkin(self) -> None:
        self._call("checkin")

    @task(4)
    def report(self) -> None:
        self._call("report")

    @task(1)
    def drop(self) -> None:
        self._call("drop")

    def _call(self, call: str) -> None:
        answer = self.environment.deploy_devices.call(call, self.device_id)
        self.environment.events.request.fire(
            request_type="device",
            name=call,
            response_time=answer["ms"],
            response_length=0,
            exception=RuntimeError(answer["error"]) if answer["error"] else None,
            context={},
        )


class Engineer:
    """Pushes versions and releases them, the first one before the users come."""

    def __init__(self, cloud: CloudProcess, seed: int) -> None:
        self.played: list[Played] = []
        self.push_s: list[float] = []
        self._cloud = cloud
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)

    def start(self, *, is_bad: bool = False) -> tuple[str, str, str]:
        """Push the next version and start its release; return its id, the version, and the hash of its weights."""
        version = f"v{next(self._numbers)}"
        weights = (BAD if is_bad else b"good") + self._rng.randbytes(_WEIGHTS_BYTES)
        code = f"def execute(ctx, x):\n    return {version!r}\n"
        files = {"task.toml": _TOML.encode(), "main.py": code.encode(), WEIGHTS: weights}
        self.push_s.append(self._cloud.push(TASK, version, files))
        release_id = self._cloud.start_release(TASK, version, beta=0, steps=_STEPS, gate=_TRIAL)
        return release_id, version, hashlib.sha256(weights).hexdigest()

    def finish(self, started: tuple[str, str, str], stage: str) -> None:
        """Wait until a release is at its last stage, and note how it went.

        Raises:
            CloudError: it does not get there.
        """
        release_id, version, weights = started
        release = self._cloud.wait_release(release_id, [stage])
        over_s = time.time() if stage == "rolled_back" else None
        shares = shares_of(release)
        self.played.append(
            Played(release_id=release_id, version=version, weights=weights, shares=shares, rolled_back_s=over_s)
        )

    def work(self, first: tuple[str, str, str], seconds: float) -> None:
        """Release a good version, then a bad one, until the time is over; at least once each."""
        ends_s = time.monotonic() + seconds
        self.finish(first, "full")
        while True:
            self.finish(self.start(), "full")
            self.finish(self.start(is_bad=True), "rolled_back")
            gevent.sleep(ROLLBACK_S + 1.0)  # check-ins after the rollback
            if time.monotonic() > ends_s:
                return


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return calls, releases, and everything that went wrong."""
    (folder / "devices").mkdir()
    with CloudProcess.start(folder / "cloud") as cloud:
        engineer = Engineer(cloud, options.seed)
        first = engineer.start()
        with DeviceProcess.start(MODULE, cloud.join_file, folder / "devices") as devices:
            environment = Environment(user_classes=[DeployUser], stop_timeout=60)  # calls under way end first
            environment.deploy_devices = devices
            runner = environment.create_local_runner()
            runner.start(options.users, spawn_rate=options.spawn_rate)
            try:
                engineer.work(first, options.seconds)
            finally:
                runner.quit()
                runner.greenlet.join(timeout=90)
            finished = devices.call("finish")
        if finished["error"]:
            raise CloudError(f"the devices did not end: {finished['error']}")
        peak_mib, cpu_s = cloud.peak_mib(), cloud.cpu_s()
        cloud.stop()
    records: dict[str, Any] = finished["result"]
    failed = [f"{error.name}: {error.error} ({error.occurrences} times)" for error in environment.stats.errors.values()]
    activations = sum(len(record["activations"]) for record in records.values())
    back = [one for one in engineer.played if one.rolled_back_s is not None]
    return {
        "users": options.users,
        "devices": len(records),
        "releases": len(engineer.played),
        "rolled_back": len(back),
        "devices_that_had_a_bad_version": sum(
            any(version in {one.version for one in back} for _, _, version, _ in record["activations"])
            for record in records.values()
        ),
        "activations": activations,
        "checkins": sum(len(record["checkins"]) for record in records.values()),
        "drops": sum(record["drops"] for record in records.values()),
        "waits": sum(record["waits"] for record in records.values()),
        "push_s": [round(one, 2) for one in engineer.push_s],
        "cloud_peak_mib": round(peak_mib),
        "cloud_cpu_s": round(cpu_s, 1),
        "calls": call_rows(environment),
        "wrong": [*failed, *wrong_results(f"{SCENARIO}/{TASK}", engineer.played, records)],
    }


def table(found: dict[str, Any]) -> str:
    lines = call_table(found["calls"])
    lines.append(
        f"{found['devices']} devices, {found['releases']} releases, {found['rolled_back']} of them rolled back"
        f" ({found['devices_that_had_a_bad_version']} devices had one of these), {found['activations']} activations,"
        f" {found['checkins']} check-ins, {found['drops']} drops, {found['waits']}"
        f" refusals of a candidate by devices that went back; the cloud: {found['cloud_cpu_s']} s of CPU time,"
        f" peak {found['cloud_peak_mib']} MiB"
    )
    wrong = found["wrong"]
    return "\n".join([*lines, *(f"WRONG: {line}" for line in wrong), f"{len(wrong)} wrong results"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=80, help="devices (default: %(default)s)")
    parser.add_argument(
        "--spawn-rate", type=float, default=20, help="devices that join a second (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of load at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the versions' bytes")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="where the page goes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(options, Path(folder))
        except CloudError as error:
            sys.exit(f"load test: {error}")
    report.write_report(
        options.out,
        "deploy",
        title="Load test of releases",
        command=f"python -m loadtest.deploy --users {options.users} --seconds {options.seconds:g}",
        text=table(found),
        summary=f"{found['devices']} devices, {found['releases']} releases, {found['activations']} activations",
        wrong=found["wrong"],
    )
    sys.stdout.write((json.dumps(found) if options.json else table(found)) + "\n")
    if found["wrong"] or not found["activations"] or not found["rolled_back"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
