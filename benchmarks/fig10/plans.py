"""Quality of search (§4.1): every candidate of every convolution is timed and compared with the chosen one.

Session k forces the k-th candidate of each convolution that has one, so that about five sessions, whose profiled runs
alternate, time all candidates of a network. The least time of a candidate counts, because other load only adds. Then
the plan of the fastest candidates and the plan of search are run as a whole, in CPU time.
"""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.engine_ext import _core, rates

type Choice = tuple[str, int]  # algorithm and parameter


def _choices(session: _core.Session) -> dict[str, list[tuple[Choice, float]]]:
    """Return, for each operator with candidates, the candidates and their predicted times, the chosen one first."""
    plan = session.plan() or {"ops": []}
    return {op[0]: [((name, number), us) for name, number, us in op[-1]] for op in plan["ops"] if op[-1]}


def _places(session: _core.Session) -> dict[str, int]:
    """Return the index in a profile of each operator with candidates."""
    plan = session.plan() or {"ops": []}
    return {op[0]: place for place, op in enumerate(plan["ops"]) if op[-1]}


def _cpu_ms(session: _core.Session, inputs: dict[str, Any]) -> float:
    begin = time.thread_time()
    session.run(inputs)
    return (time.thread_time() - begin) * 1e3


def quality(model: Path, inputs: dict[str, Any], rounds: int, backend: str = "auto") -> dict[str, Any]:
    """Return the microseconds of search's plan and of the fastest plan, and the operators in which they differ."""
    rates.use_saved()
    searched = _core.Session(model, backend)
    choices = _choices(searched)
    sessions = []
    for place in range(max(map(len, choices.values()), default=0)):
        forced = {name: all_[place][0] for name, all_ in choices.items() if place < len(all_)}
        session = _core.Session(model, backend, algorithms=forced)
        session.run(inputs)
        sessions.append((forced, session, _places(session)))
    least: dict[str, dict[Choice, float]] = {name: {} for name in choices}
    for _ in range(rounds):
        for forced, session, places in sessions:
            times = session.profile(inputs)
            for name, choice in forced.items():
                us = times[places[name]]
                least[name][choice] = min(us, least[name].get(choice, us))
    found = {name: min(times, key=lambda choice: times[choice]) for name, times in least.items()}
    chosen_us = {name: least[name][all_[0][0]] for name, all_ in choices.items()}
    best_us = {name: least[name][found[name]] for name in choices}
    report = {
        "model": model.stem,
        "backend": (searched.plan() or {})["backend"],
        "operators": len(choices),
        "candidates": sum(map(len, choices.values())),
        "chosen_us": sum(chosen_us.values()),
        "best_us": sum(best_us.values()),
        "wrong": _wrong(choices, least, found),
    }
    best = _core.Session(model, backend, algorithms=found)
    best.run(inputs)
    pairs = [(_cpu_ms(searched, inputs), _cpu_ms(best, inputs)) for _ in range(rounds)]
    chosen_ms, best_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
    return report | {"chosen_run_ms": chosen_ms, "best_run_ms": best_ms}


def _wrong(
    choices: Mapping[str, list[tuple[Choice, float]]],
    least: Mapping[str, Mapping[Choice, float]],
    found: Mapping[str, Choice],
) -> list[dict[str, Any]]:
    """Return the operators whose fastest candidate was not chosen, by decreasing loss, with predictions and times."""
    rows = []
    for name, all_ in choices.items():
        chosen, best = all_[0][0], found[name]
        lost = least[name][chosen] - least[name][best]
        if chosen != best:
            weighed = [
                {"algorithm": one[0], "parameter": one[1], "predicted_us": us, "least_us": least[name][one]}
                for one, us in all_
            ]
            rows.append({"node": name, "lost_us": lost, "chosen": chosen, "best": best, "candidates": weighed})
    return sorted(rows, key=lambda row: -float(row["lost_us"]))


def excess(report: dict[str, Any]) -> float:
    """Return the excess of search's plan over the fastest plan, as a share of the latter's time."""
    return float(report["chosen_us"] / report["best_us"] - 1) if report["best_us"] else 0.0


def table(reports: list[dict[str, Any]]) -> str:
    times = f"{'chosen us':>11s}{'best us':>10s}{'excess':>8s}{'run ms':>9s}{'best run':>9s}"
    lines = [f"{'network':16s}{'weighed':>8s}{'candidates':>11s}{times}"]
    for one in reports:
        sums = f"{one['chosen_us']:11.0f}{one['best_us']:10.0f}{100 * excess(one):7.1f}%"
        runs = f"{one['chosen_run_ms']:9.3f}{one['best_run_ms']:9.3f}"
        lines.append(f"{one['model']:16s}{one['operators']:8d}{one['candidates']:11d}{sums}{runs}")
        for wrong in one["wrong"][:5]:
            weighed = ", ".join(
                f"{c['algorithm']}({c['parameter']}) {c['predicted_us']:.0f} -> {c['least_us']:.0f}"
                for c in wrong["candidates"]
            )
            lines.append(f"  {wrong['node']}: {wrong['lost_us']:.0f} us lost; predicted -> least us: {weighed}")
    return "\n".join(lines)
