"""Simulation of the gate of releases: how often it stops a healthy version, and after how many devices a bad one.

    python benchmarks/gate.py --releases 2000 [--case "bad: 2 %"] [--processes 2] [--by-runs] [--no-guards]

Each release has a beta of two devices and gray steps of 25, 50 and 100 %; devices report once, ten runs each, in random
order, those of the old version too. A device's latency is that of its model (log-normal, σ 0.5), of itself (σ 0.25),
and of each run (a Pareto tail of index 1.5, which has no variance), of which it reports the median; its confidence is
normal (0.8, σ 0.04). Each second one device reports, and is heard again after half of the time within which it must be,
unless it is silent. `--by-runs` judges the same reports by the sequential test of runs that Walle had before (ADR 7),
for comparison.
"""

import argparse
import base64
import collections
import dataclasses
import functools
import html
import json
import math
import multiprocessing.pool
import random
import statistics
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Literal, Protocol, cast

from benchmarks.headline import print_headline
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.gate.step import Step
from walle.protocol import LATENCY_MS, Metric, Outcome, OutcomeKind

TASK = "shop/ipv"
SHARES = (0.25, 0.5, 1.0)
RUNS = 10
GUARDS = ("latency_ms < 1.2x", "confidence > 0.95x")
SILENCE_S = 80.0  # silence on the simulated clock, by which a device reports each second
_POPULAR = {"model": "model-0"}
MOST_DEVICES = 3_000  # devices that have the new version; a release that lasts longer counts as undecided


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A fleet and a version: rates of failed runs of the new and the old one, and devices that are special."""

    new: float
    old: float = 0.005
    always_failing: float = 0.0  # share of devices on which every version fails
    bad_model: float = 0.0  # share of devices of the model on which the new version fails always
    hostile: float = 0.0  # share of devices that lie about the new version
    lie_failed: bool = True  # true: liars say that every run failed; else, that none did
    lie_runs: int = 1_000
    loud: int = 0  # reports of one honest phone, a thousand runs each, before all others
    guards: tuple[str, ...] = GUARDS
    slower: float = 1.0  # latency of the new version, by that of the old one
    slow: float = 1.0  # latency of both
    nonsense: float = 0.0  # share of devices that report extreme metrics, of both versions
    silent: float = 0.0  # share of devices that are silent with the new version
    quiet: float = 0.0  # share of devices that are silent with any version
    hold_s: float = 0.0
    attributes: int = 0  # attributes of each device, beside model, system and app version
    imposters: float = 0.0  # share that states what most devices have, and metrics that make the new version look bad
    shares: tuple[float, ...] = SHARES


CASES = {
    "healthy": Case(new=0.005),
    "healthy, 0.5 % of devices always fail": Case(new=0.005, always_failing=0.005),
    "1 %, as the version before": Case(new=0.01, old=0.01),
    "bad: 2 %": Case(new=0.02),
    "bad: 5 %": Case(new=0.05),
    "bad: always on 2 % of devices": Case(new=0.005, bad_model=0.02),
    "healthy, 1 % hostile say failed": Case(new=0.005, hostile=0.01),
    "bad: 2 %, 1 % hostile say ok": Case(new=0.02, hostile=0.01, lie_failed=False),
    "bad: 2 %, a phone says ok 1,000,000 times": Case(new=0.02, loud=1_000),
    "healthy, a phone says failed 1,000 times": Case(new=0.005, hostile=0.0, loud=-1),
    "slow: +30 %": Case(new=0.005, slower=1.3),
    "slow: +50 %": Case(new=0.005, slower=1.5),
    "slow: 2x": Case(new=0.005, slower=2.0),
    "slow: +10 %, which is allowed": Case(new=0.005, slower=1.1),
    "both slow alike": Case(new=0.005, slow=3.0),
    "healthy, 1 % report nonsense": Case(new=0.005, nonsense=0.01),
    "slow: +50 %, 1 % report nonsense": Case(new=0.005, slower=1.5, nonsense=0.01),
    "silent: 3 %": Case(new=0.005, silent=0.03),
    "silent: 3 %, steps held for 1,000 devices": Case(new=0.005, silent=0.03, hold_s=1_000),
    "silent: 20 %, steps held for 200 devices": Case(new=0.005, silent=0.2, hold_s=200),
    "half of the devices are silent, with both versions": Case(new=0.005, quiet=0.5, hold_s=200),
    "healthy, 12 attributes, 5 % first": Case(new=0.005, attributes=12, shares=(0.05, *SHARES)),
    "healthy, 12 attributes, 5 % first, 1 % in popular groups": Case(
        new=0.005, attributes=12, shares=(0.05, *SHARES), imposters=0.01
    ),
    "healthy, 1 % hostile are silent": Case(new=0.005, silent=0.01, hold_s=200),
}


@dataclasses.dataclass(frozen=True)
class Device:
    id: str
    groups: dict[str, str]
    is_failing: bool
    is_bad_model: bool
    is_hostile: bool
    is_imposter: bool = False


def devices(case: Case, rng: random.Random) -> Iterator[Device]:
    """Yield devices of 20 common models and the bad one, four releases of the OS, and three of the app."""
    while True:
        is_bad = rng.random() < case.bad_model
        model = "model-x" if is_bad else f"model-{int(20 * rng.random() ** 2)}"
        groups = {"model": model, "os": f"os-{rng.randrange(4)}", "app_version": f"10.{rng.randrange(3)}"}
        groups.update({f"attribute-{at}": str(int(6 * rng.random() ** 3)) for at in range(case.attributes)})
        is_imposter = case.imposters > 0 and rng.random() < case.imposters
        if is_imposter:
            groups = {
                key: one if key in ("os", "app_version") else _POPULAR.get(key, "0") for key, one in groups.items()
            }
        yield Device(
            f"{rng.getrandbits(64):016x}",
            groups,
            rng.random() < case.always_failing,
            is_bad,
            rng.random() < case.hostile,
            is_imposter,
        )


def report(case: Case, device: Device, *, is_new: bool, rng: random.Random) -> tuple[int, int]:
    """Return the runs of a device that ended well and that failed."""
    if device.is_hostile and is_new:
        return (0, case.lie_runs) if case.lie_failed else (case.lie_runs, 0)
    if device.is_failing or (is_new and device.is_bad_model):
        return 0, RUNS
    rate = case.new if is_new else case.old
    place, failed, left = rng.random(), 0, (1 - rate) ** RUNS
    chance = left
    while place >= left and failed < RUNS:  # the inverse of the binomial distribution
        failed += 1
        chance *= (RUNS - failed + 1) / failed * rate / (1 - rate)
        left += chance
    return RUNS - failed, failed


def metrics(case: Case, device: Device, *, is_new: bool, rng: random.Random) -> tuple[Metric, ...]:
    """Return what a device reports of its runs: their median latency, and a mean confidence."""
    if not case.guards:
        return ()
    if device.is_imposter:
        worst = 1e308 if is_new else 0.0
        return (Metric(LATENCY_MS, 1, worst), Metric("confidence", 1, -worst if is_new else 1e308))
    if rng.random() < case.nonsense:
        return (Metric(LATENCY_MS, 1, rng.choice((0.0, 1e308))), Metric("confidence", 1, rng.choice((-1e308, 1e308))))
    own_ms = (
        20
        * math.exp(_of_model(device.groups["model"]) + rng.gauss(0, 0.25))
        * case.slow
        * (case.slower if is_new else 1)
    )
    latency_ms = statistics.median(own_ms * rng.paretovariate(1.5) for _ in range(RUNS))
    return (Metric(LATENCY_MS, RUNS, latency_ms), Metric("confidence", RUNS, rng.gauss(0.8, 0.04)))


@functools.lru_cache(maxsize=64)
def _of_model(model: str) -> float:
    """Return the logarithm of how slow the devices of a model are."""
    return random.Random(model).gauss(0, 0.5)


class Judge(Protocol):
    """Gate that is simulated."""

    def begin(self, step: Step, /) -> None: ...
    def take(
        self, device: Device, ok: int, failed: int, /, *, is_new: bool, metrics: tuple[Metric, ...], is_silent: bool
    ) -> Verdict: ...


class ByDevices:
    """The monitor of releases."""

    def __init__(self) -> None:
        self.monitor: Monitor | None = None
        self._now_s = 0.0
        self._contacts: collections.deque[tuple[float, str]] = collections.deque()

    def begin(self, step: Step) -> None:
        if self.monitor is None:
            self.monitor = Monitor(step)
        else:
            self.monitor.begin(step)

    def take(
        self,
        device: Device,
        ok: int,
        failed: int,
        *,
        is_new: bool,
        metrics: tuple[Metric, ...] = (),
        is_silent: bool = False,
    ) -> Verdict:
        assert self.monitor is not None
        release, version = (self.monitor.step.release, "v2") if is_new else ("before", "v1")
        installed = Outcome(task=TASK, version=version, release=release, kind=OutcomeKind.INSTALLED)
        ran = Outcome(
            task=TASK, version=version, release=release, kind=OutcomeKind.RUN, ok=ok, failed=failed, metrics=metrics
        )
        self._now_s += 1
        outcomes = (installed, ran) if is_new else (ran,)
        self.monitor.take(device.id, outcomes, device.groups, self._now_s)
        if not is_silent:
            self._contacts.append((self._now_s + SILENCE_S / 2, device.id))
        while self._contacts and self._contacts[0][0] <= self._now_s:
            self.monitor.hear({self._contacts.popleft()[1]: None}, self._now_s)
        if self._now_s % 10 == 0:
            self.monitor.tick(self._now_s)
        return self.monitor.verdict


class ByRuns:
    """Wald's sequential test of runs, from zero at each step (ADR 7)."""

    def __init__(self) -> None:
        self._ratio = 0.0
        self._verdict = Verdict.CONTINUE

    def begin(self, _step: Step, /) -> None:
        self._ratio, self._verdict = 0.0, Verdict.CONTINUE

    def take(
        self, _device: Device, ok: int, failed: int, /, *, is_new: bool, metrics: tuple[Metric, ...], is_silent: bool
    ) -> Verdict:
        del metrics, is_silent
        if is_new:
            self._ratio += ok * math.log(0.98 / 0.995) + failed * math.log(4)
        if self._ratio >= math.log(99):
            return Verdict.REJECT
        return Verdict.ACCEPT if self._ratio <= -math.log(99) else Verdict.CONTINUE


def release(case: Case, judge: Judge, seed: int) -> tuple[str, int]:
    """Return how a release ended, and how many devices had run the new version."""
    rng = random.Random(seed)
    fleet = devices(case, rng)
    beta = [next(fleet), next(fleet)]
    used = 0
    name = f"r{seed}"
    steps = [(0.0, 0.0), *zip((0.0, *case.shares), case.shares, strict=False)]
    for number, (low, high) in enumerate(steps):
        ids = frozenset(device.id for device in beta)
        step = Step(
            release=name,
            task=TASK,
            version="v2",
            stage=f"step {number}",
            gate=Gate(guards=case.guards, hold_s=case.hold_s, device_silence_s=SILENCE_S),
            steps=len(steps),
            devices=ids if number == 0 else frozenset(),
            earlier_devices=ids if number else frozenset(),
            share_from=low,
            share_to=high,
            control_versions=frozenset({"v1"}),
        )
        judge.begin(step)
        verdict = Verdict.CONTINUE
        waiting = list(beta) if number == 0 else []
        if case.loud and number == 1:
            phone = next(one for one in fleet if step.is_new(one.id))
            for _ in range(abs(case.loud)):
                said = (1_000, 0) if case.loud > 0 else (0, 1_000)
                verdict = judge.take(phone, *said, is_new=True, metrics=(), is_silent=True)
                if verdict is not Verdict.CONTINUE:
                    break
        while verdict is Verdict.CONTINUE:
            if used >= MOST_DEVICES:
                return "undecided", used
            is_again = number == 0 and not waiting  # the devices of a beta go on running
            device = waiting.pop() if waiting else rng.choice(beta) if is_again else next(fleet)
            is_new = step.is_new(device.id)
            if not is_new and not step.is_control(device.id, "v1", {}):
                continue
            used += is_new and not is_again
            verdict = judge.take(
                device,
                *report(case, device, is_new=is_new, rng=rng),
                is_new=is_new,
                metrics=metrics(case, device, is_new=is_new, rng=rng),
                is_silent=rng.random() < case.quiet + (case.silent if is_new else 0),
            )
        if verdict is not Verdict.ACCEPT:
            return verdict.value, used
    return "full", used


def releases(name: str, number: int, *, by_runs: bool, pool: multiprocessing.pool.Pool) -> dict[str, object]:
    """Return the row of a case: how its releases ended, and the devices that had run the new version by then."""
    end = functools.partial(_end, name, by_runs)
    ends = pool.map(end, range(number), chunksize=20)
    counts = collections.Counter(end for end, _ in ends)
    stopped = sorted(used for end, used in ends if end in ("reject", "pause"))
    return {
        "case": name,
        "releases": number,
        **{end: f"{counts[end] / number:.2%}" for end in ("full", "reject", "pause", "undecided")},
        "devices_full_median": statistics.median([used for end, used in ends if end == "full"] or [0]),
        "devices_stopped_median": statistics.median(stopped or [0]),
        "devices_stopped_p90": stopped[int(0.9 * (len(stopped) - 1))] if stopped else 0,
        "stopped_after": stopped,
    }


def _end(name: str, by_runs: bool, seed: int) -> tuple[str, int]:
    return release(CASES[name], ByRuns() if by_runs else ByDevices(), seed)


def plot(file: Path, folder: Path) -> list[Path]:
    """Draw which part of the releases of each case was stopped after how many devices; return a PNG and a page."""
    from matplotlib import pyplot as plt

    rows = [json.loads(line) for line in file.read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(9, 5))
    for row in rows:
        stopped = row["stopped_after"]
        if stopped:
            label = f"{row['case']} ({row['releases']})" + (", by runs" if row["by_runs"] else "")
            axes.step(stopped, [(at + 1) / row["releases"] for at in range(len(stopped))], where="post", label=label)
    axes.axvline(320, color="grey", linestyle=":", label="320 devices")
    axes.set(xlabel="devices with the new version", ylabel="part of the releases that is stopped", ylim=(0, 1.02))
    axes.set_xscale("log")
    axes.legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    image, page = folder / "gate.png", folder / "gate.html"
    figure.savefig(image, dpi=120, bbox_inches="tight")
    keys = [key for key in rows[0] if key != "stopped_after"]
    lines = ["".join(f"<td>{html.escape(str(row[key]))}</td>" for key in keys) for row in rows]
    table = "".join(f"<tr>{line}</tr>" for line in ["".join(f"<th>{key}</th>" for key in keys), *lines])
    picture = base64.b64encode(image.read_bytes()).decode()
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>Gate of releases</title>"
        f"<h1>Gate of releases</h1><img src='data:image/png;base64,{picture}'><table border=1>{table}</table>"
    )
    return [image, page]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=200)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--by-runs", action="store_true", help="judge by runs, as before")
    parser.add_argument("--no-guards", action="store_true", help="judge by failures alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file that gets a JSON line for each case, with each stopped release")
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("FILE", "FOLDER"), help="draw what --out kept, and end")
    args = parser.parse_args()
    if args.plot:
        print(*plot(*args.plot), sep="\n")
        return
    if args.no_guards:
        CASES.update({name: dataclasses.replace(case, guards=()) for name, case in CASES.items()})
    stopped = {}
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        for name in args.case or CASES:
            row = releases(name, args.releases, by_runs=args.by_runs, pool=pool)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps({**row, "by_runs": args.by_runs}) + "\n")
            stopped[name] = len(cast("Sized", row["stopped_after"])) / args.releases
            del row["stopped_after"]
            print(json.dumps(row), flush=True)
    print_headlines(stopped, args.releases)


def print_headlines(stopped: Mapping[str, float], number: int) -> None:
    """Print the shares of healthy releases and of bad ones that were stopped; of other cases the first."""
    wanted: dict[str, Literal["lower", "higher"]] = {"healthy": "lower", "bad: 2 %": "higher"}
    for name in [name for name in wanted if name in stopped] or list(stopped)[:1]:
        better = wanted.get(name, "lower" if name.startswith("healthy") else "higher")
        what = f"stopped of {number} simulated releases, {name.replace(': ', ' ')}"
        print_headline(what, unit="%", better=better, ours=100 * stopped[name])


if __name__ == "__main__":
    main()
