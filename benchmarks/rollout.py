"""Fig. 13: how a release covers a fleet of 22 million devices, and what a bad version costs before it is stopped.

    python benchmarks/rollout.py [--devices 22000000] [--seed 1] [--real 3000] [--speed 10] [--out out] [--json]

A simulation of the whole fleet, in NumPy, between the decisions of the product's own release state machine, gate and
release table (`benchmarks.fig13.simulation`; its pattern of online devices is in `benchmarks.fig13.fleet`). With
`--real N`, the same release is also played by N devices over HTTP against a real `walle cloud up` process, `--speed`
times as fast as the fleet's time, and the simulation of those N devices must agree with it: the largest difference of
what is covered at any time is printed.

Table, JSON, picture and page are written to the folder --out as rollout.*.
"""

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.fig13 import report  # noqa: E402  # the path must be set first
from benchmarks.fig13.fleet import Fleet  # noqa: E402
from benchmarks.fig13.real_release import RealRun, coverage_gap, play, simulated_plan  # noqa: E402
from benchmarks.fig13.simulation import Outcome, Plan, Simulation, each_second, requests_each_s  # noqa: E402
from benchmarks.headline import print_headline  # noqa: E402

_CASES = (
    ("healthy, 0.5 % fail", 0.005, 2),
    ("2 % of runs fail", 0.02, 2),
    ("2 % of runs fail", 0.02, 0),
    ("every run fails", 1.0, 2),
    ("every run fails", 1.0, 0),
)  # version, failure rate, beta devices
_CURVE_S = 5.0  # time between two points of a curve
_REAL_STEPS = (0.2, 0.5, 1.0)  # a gate needs some hundred devices in a step
_REAL_HORIZON_S = 600.0


def _all_left_s(outcome: Outcome) -> float | None:
    """Return when the last device that had the version left it; None if it was not taken back."""
    left_s = float(outcome.left_s[np.isfinite(outcome.installed_s)].max(initial=0.0))
    return left_s if 0 < left_s < math.inf else None


def case_row(name: str, beta: int, outcome: Outcome, times_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return what happened in one release, as JSON."""
    horizon_s = float(times_s[-1]) + 1
    covered, left = (np.cumsum(each_second(one, horizon_s)) for one in (outcome.installed_s, outcome.left_s))
    at = times_s.astype(np.int64)
    stopped_s = outcome.steps[-1].at_s
    minute_later = min(int(stopped_s) + 60, len(left) - 1)
    return {
        "name": name,
        "beta": beta,
        "state": outcome.state.value,
        "reason": outcome.reason,
        "steps": [vars(step) for step in outcome.steps],
        "stopped_s": stopped_s,
        "covered": int(covered[-1]),
        "left_60_s": int(left[minute_later]),
        "all_left_s": _all_left_s(outcome),
        "curve": covered[at].tolist(),
        "left_curve": left[at].tolist(),
    }


def gray_row(outcome: Outcome, fleet: Fleet, horizon_s: float) -> dict[str, Any]:
    """Return when all devices were covered that were online at that time, and how many in the minute before."""
    covered = np.cumsum(each_second(outcome.installed_s, horizon_s))
    found_s = None
    last_step_s = next((step.at_s for step in outcome.steps if step.stage == "gray 1.0"), horizon_s)
    for at_s in range(int(last_step_s), int(horizon_s), 2):
        is_online = fleet.is_online(slice(None), at_s)
        has = np.count_nonzero(is_online & (outcome.installed_s <= at_s))
        if has >= 0.98 * np.count_nonzero(is_online):  # some have only now come, and their pull is under way
            found_s = float(at_s)
            break
    most = int(np.searchsorted(covered, 0.99 * fleet.count))
    return {
        "online_covered_s": found_s,
        "last_minute": int(covered[int(found_s)] - covered[max(int(found_s) - 60, 0)]) if found_s else 0,
        "most_s": float(most) if most < len(covered) else None,
    }


def simulate(devices: int, seed: int, horizon_s: float) -> dict[str, Any]:
    """Play all cases over one fleet."""
    began_s = time.monotonic()
    fleet, places, rows = Fleet(devices, seed), None, list[dict[str, Any]]()
    times_s = np.arange(0.0, horizon_s, _CURVE_S)
    online = int(np.count_nonzero(fleet.is_online(slice(None), 0.0)))
    load: dict[str, Any] = {}
    for name, rate, beta in _CASES:
        simulation = Simulation(fleet, Plan(new_rate=rate, beta=beta, horizon_s=horizon_s), places)
        places = simulation.places
        outcome = simulation.run()
        row = case_row(name, beta, outcome, times_s)
        if not rows:
            row |= gray_row(outcome, fleet, horizon_s)
            asked, pulls = requests_each_s(fleet, horizon_s), each_second(outcome.installed_s, horizon_s)
            at = times_s.astype(np.int64)
            load = {
                "requests_per_s": round(float(asked.mean())),
                "most_pulls_per_s": int(pulls.max()),
                "requests": asked[at].round().tolist(),
                "pulls": pulls[at].tolist(),
            }
        rows.append(row)
    return {
        "fleet": {"devices": devices, "online": online, "seed": seed, "pattern": vars(fleet.pattern)},
        "cases": rows,
        "load": load,
        "times_s": times_s.tolist(),
        "took_s": time.monotonic() - began_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def real_row(fleet: Fleet, run: RealRun, outcome: Outcome, speed: float, horizon_s: float) -> dict[str, Any]:
    """Return what real devices did beside what the simulation of the same says, as JSON."""
    times_s = np.arange(0.0, horizon_s, _CURVE_S)
    curves = [
        np.cumsum(each_second(one, horizon_s))[times_s.astype(np.int64)].tolist()
        for one in (run.installed_s, outcome.installed_s)
    ]
    simulated = {step.stage: step.at_s for step in outcome.steps}
    traffic = run.traffic
    return {
        "devices": fleet.count,
        "speed": speed,
        "stages": [(stage, at_s, simulated.get(stage, math.nan)) for stage, at_s in run.stages],
        "gap": coverage_gap(run.installed_s, outcome.installed_s, horizon_s),
        "requests": traffic.checkins,
        "reports": traffic.reports,
        "pulled_mb": traffic.pulled_bytes / 1e6,
        "wrong": traffic.wrong,
        "late_ms": run.late_ms,
        "most_waiting": run.most_waiting,
        "cpu_s": run.cpu_s,
        "wall_s": run.wall_s,
        "cloud_peak_mib": round(run.peak_mib),
        "times_s": times_s.tolist(),
        "real_curve": curves[0],
        "simulated_curve": curves[1],
    }


def play_real(devices: int, seed: int, speed: float, horizon_s: float = _REAL_HORIZON_S) -> dict[str, Any]:
    """Play a healthy release with real devices, and simulate the same one."""
    fleet = Fleet(devices, seed)
    plan = Plan(steps=_REAL_STEPS, horizon_s=horizon_s)
    with tempfile.TemporaryDirectory() as folder:
        run = play(fleet, plan, speed, Path(folder) / "cloud")
    outcome = Simulation(fleet, simulated_plan(plan, run, speed)).run()
    return real_row(fleet, run, outcome, speed, horizon_s)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=22_000_000, help="that are simulated (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=20.0, help="that are simulated (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", type=int, default=0, metavar="N", help="also play N real devices over HTTP")
    parser.add_argument(
        "--speed", type=float, default=10.0, help="of the real ones' time; 10 minutes of it (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the report (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    found = simulate(options.devices, options.seed, options.minutes * 60)
    if options.real:
        found["real"] = play_real(options.real, options.seed, options.speed)
    options.out.mkdir(parents=True, exist_ok=True)
    picture, web = options.out / "rollout.png", options.out / "rollout.html"
    (options.out / "rollout.json").write_text(json.dumps(found, indent=1))
    report.plot(found, picture)
    report.page(found, picture, web)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{report.table(found)}\npicture: {picture}, page: {web}")
    print_headlines(found["cases"][0], found["fleet"], options.minutes)


def print_headlines(good: dict[str, Any], fleet: dict[str, Any], minutes: float) -> None:
    """Print when a good version covers the devices that are online, and when nearly all."""
    for devices, at_s, which in (
        (fleet["online"], good["online_covered_s"], "online"),
        (fleet["devices"], good["most_s"], "of the fleet, 99 % of them"),
    ):
        if at_s is not None:
            what = f"simulated release until it covers {devices:,d} devices {which}"
            print_headline(what, unit="minutes", better="lower", ours=at_s / 60)
    if good["online_covered_s"] is None and good["most_s"] is None:
        what = f"simulated release, share of {fleet['devices']:,d} devices covered after {minutes:g} minutes"
        print_headline(what, unit="%", better="higher", ours=100 * good["covered"] / fleet["devices"])


if __name__ == "__main__":
    main()
