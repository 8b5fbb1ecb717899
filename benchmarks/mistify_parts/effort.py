"""Lines and files that a user touches to adapt one model to some goals (Mistify, Table 5).

Counted are the lines of files that run, comments and empty ones left out: each is written and its goals are read; that
of the fewest goals is also adapted. The model and its data are those of a user before any adaptation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.mistify_parts.workloads import whole_costs

GOALS = (2, 10, 100)
_WORKLOAD = "resnet_digits"
_PARTS = Path(__file__).parent


def file_of(goals: int, *, ranges: bool) -> str:
    """Return a file of goals: a range of budgets, or a line for each goal."""
    whole = whole_costs(_WORKLOAD)["operations"]
    first, last = f"{whole / 30 / 1e3:.0f}k", f"{whole / 2 / 1e3:.0f}k"
    head = f'model = "{_PARTS}/given.py:{_WORKLOAD}"\n'
    head += f'data = {{train = "{_PARTS}/given.py:{_WORKLOAD}_train", test = "{_PARTS}/given.py:{_WORKLOAD}_test"}}\n'
    head += "training.learning_rate = 0.002\n"
    if ranges:
        return f'{head}[goals]\nscale.operations = {{from = "{first}", to = "{last}", steps = {goals}}}\n'
    budgets = [whole / 30 * 15 ** (at / (goals - 1)) for at in range(goals)]
    return f"{head}[goals]\n" + "".join(
        f'device-{at}.operations = "{budget / 1e3:.2f}k"\n' for at, budget in enumerate(budgets)
    )


def measure_effort(*, adapts: bool) -> list[dict[str, Any]]:
    """Return for each number of goals the lines and files with a range, and with a line for each goal.

    `adapts` runs the file of the fewest goals.
    """
    from walle.adapt.adaptation import run
    from walle.adapt.collective.plan import plan_stops
    from walle.adapt.goals.config import read_config

    rows = []
    for goals in GOALS:
        row: dict[str, Any] = {"goals": goals}
        for name, ranges in (("ranges", True), ("each", False)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "goals.toml"
                path.write_text(file_of(goals, ranges=ranges))
                (found,) = read_config(path)
                passes = plan_stops(found.goals, whole_costs(_WORKLOAD))
                if len({stop.goal for stops in passes for stop in stops}) != goals:
                    raise ValueError(f"{path.name} has {len(found.goals)} goals, {goals} were written")
                if adapts and goals == GOALS[0]:
                    (outcome,) = run(path, Path(folder) / "out")
                    row.setdefault("adapted", []).append(len(outcome.fitted))
                written = [one for one in path.read_text().splitlines() if one.strip() and not one.startswith("#")]
                row[name] = len(written)
                row["files"] = len(list(Path(folder).glob("*.toml")))
        rows.append(row)
    return rows


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each number of goals."""
    for one in rows:
        ran = f"; {one['adapted'][0]} and {one['adapted'][1]} models adapted" if "adapted" in one else ""
        yield (
            f"{one['goals']} goals: {one['ranges']} lines with a range, {one['each']} with a line for each, "
            f"{one['files']} file{ran}"
        )
