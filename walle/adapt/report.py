"""The report of an adaptation: a page and a picture of accuracy against cost (Fig. 8)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from walle.base.durable_file import write_file

if TYPE_CHECKING:
    from walle.adapt.adaptation import Outcome
    from walle.adapt.costs.engine import Latency

GIVEN = "(the model)"
LATENCIES = ("formula", "engine: rates", "engine: steps", "measured")
_AXES = (("operations", "multiply-adds of one sample", 1.0), ("memory", "KB of weights", 1e-3))
_WIDTH, _HEIGHT, _EDGE = 460, 300, 50
_STYLE = """body{font:15px system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1f2937}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #e5e7eb}
td:first-child,th:first-child{text-align:left}.missed{color:#b91c1c}svg{max-width:48%}"""


def front(outcome: Outcome, cost: str) -> list[str]:
    """Return the goals whose models are the most accurate of those that cost as much or less."""
    best, found = -1.0, []
    for one in sorted(outcome.fitted, key=lambda one: (one.costs[cost], -one.costs["accuracy"])):
        if one.costs["accuracy"] > best:
            best = one.costs["accuracy"]
            found.append(one.goal)
    return found


def write_report(outcome: Outcome, folder: Path) -> None:
    """Write `report.html`, and `report.png` where matplotlib is installed.

    Raises:
        OSError: a file cannot be written.
    """
    drawings = "".join(_drawing(outcome, *axis) for axis in _AXES)
    latencies = {one.model: one for one in outcome.latencies}
    rows = "".join(_row(name, costs, latencies.get(name), missed) for name, costs, missed in rows_of(outcome))
    page = (
        f"<!doctype html><meta charset=utf-8><title>Adapted models</title><style>{_STYLE}</style>"
        f"<h1>{len(outcome.fitted)} models in {outcome.passes} passes, {outcome.seconds:.0f} s</h1>{drawings}"
        "<table><tr><th rowspan=2>goal<th rowspan=2>multiply-adds<th rowspan=2>parameters<th rowspan=2>KB"
        f"<th colspan={len(LATENCIES)}>latency of one sample, ms<th rowspan=2>accuracy<th rowspan=2>missed<tr>"
        f"{''.join(f'<th>{title}' for title in LATENCIES)}{rows}</table><p>{escape(describe_latencies(outcome))}\n"
    )
    write_file(folder / "report.html", page, mode=0o644)
    _picture(outcome, folder / "report.png")


def rows_of(outcome: Outcome) -> list[tuple[str, dict[str, float], str]]:
    """Return the name of each model, the given one first, its costs, and what of its goal it misses."""
    rows = [(GIVEN, outcome.whole, "")]
    measured = {one.model: one.measured_s for one in outcome.latencies}
    for one in outcome.fitted:
        missed = [name for name, met in (("budgets", one.meets_budgets), ("accuracy", one.meets_accuracy)) if not met]
        if one.latency_budget is not None and measured.get(one.goal, 0.0) > one.latency_budget:
            missed.append("latency as measured")
        rows.append((one.goal, one.costs, ", ".join(missed)))
    return rows


def latency_cells(costs: dict[str, float], latency: Latency | None) -> list[str]:
    """Return milliseconds under each title of `LATENCIES`; an empty text for one that is not known."""
    found = [costs.get("latency")]
    found += [None] * 3 if latency is None else [latency.rates_s, latency.steps_s, latency.measured_s]
    return ["" if seconds is None else f"{seconds * 1e3:.3g}" for seconds in found]


def describe_latencies(outcome: Outcome) -> str:
    """Return where the latencies come from."""
    text = "Latency by formula: bytes over bandwidth and operations over compute power, of [hardware]."
    if not outcome.latencies:
        return text
    one = outcome.latencies[0]
    return (
        f"{text} Others are of the machine that ran the adaptation ({one.cpu}, one thread): by the engine's rates "
        f"({one.source}); by steps, each timed, and the fixed time of other models' runs; measured, least CPU time."
    )


def _row(name: str, costs: dict[str, float], latency: Latency | None, missed: str) -> str:
    return (
        f"<tr><td>{escape(name)}<td>{costs['operations']:.4g}<td>{costs['parameters']:.4g}<td>"
        f"{costs['memory'] / 1e3:.4g}{''.join(f'<td>{cell}' for cell in latency_cells(costs, latency))}"
        f"<td>{costs['accuracy']:.4f}<td class=missed>{missed}"
    )


def _points(outcome: Outcome, cost: str, factor: float) -> list[tuple[str, float, float]]:
    points = [(one.goal, one.costs[cost] * factor, one.costs["accuracy"]) for one in outcome.fitted]
    return [(GIVEN, outcome.whole[cost] * factor, outcome.whole["accuracy"]), *points]


def _drawing(outcome: Outcome, cost: str, title: str, factor: float) -> str:
    """Return a drawing of accuracy against the logarithm of a cost."""
    from math import log10

    points = _points(outcome, cost, factor)
    xs, ys = [log10(x) for _, x, _ in points], [y for *_, y in points]
    low, high = min(ys), max(ys)
    spread, width = max(high - low, 1e-9), max(max(xs) - min(xs), 1e-9)
    best = set(front(outcome, cost))
    marks = []
    for (name, x, y), at in zip(points, xs, strict=True):
        left = _EDGE + (at - min(xs)) / width * (_WIDTH - 2 * _EDGE)
        top = _HEIGHT - _EDGE - (y - low) / spread * (_HEIGHT - 2 * _EDGE)
        colour = "#2563eb" if name in best else "#9ca3af" if name != GIVEN else "#f97316"
        text = escape(f"{name}: {x:.4g}, accuracy {y:.4f}")
        marks.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"><title>{text}</title></circle>')
    labels = (
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(title)}: {10 ** min(xs):.3g} to '
        f'{10 ** max(xs):.3g}</text><text x="4" y="{_EDGE - 12}">accuracy {high:.4f}</text>'
        f'<text x="4" y="{_HEIGHT - _EDGE + 4}">{low:.4f}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12">{labels}{"".join(marks)}</svg>'


def _picture(outcome: Outcome, path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        return  # the page has the same drawings
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, places = plt.subplots(1, len(_AXES), figsize=(10, 4))
    for axes, (cost, title, factor) in zip(places, _AXES, strict=True):
        points = _points(outcome, cost, factor)
        _scatter(axes, points[1:], "#2563eb", "adapted")
        _scatter(axes, points[:1], "#f97316", "the model")
        axes.set_xscale("log")
        axes.set_xlabel(title)
        axes.set_ylabel("accuracy")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _scatter(axes: object, points: Sequence[tuple[str, float, float]], colour: str, label: str) -> None:
    axes.scatter([x for _, x, _ in points], [y for *_, y in points], color=colour, label=label)  # type: ignore[attr-defined]
