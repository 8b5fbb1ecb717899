"""Predicted against measured costs (§4.1, eq. 3): `plan().costs` of a network and of each of its operators.

An operator's measured time is the least of its runs, because other load only adds; a network's is the sum of these.
"""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from walle.engine_ext import _core, rates


def compare_costs(model: Path, inputs: dict[str, Any], rounds: int, backend: str = "auto") -> dict[str, Any]:
    """Return the predicted and measured microseconds of a network and of its kinds of operators."""
    rates.use_saved()
    session = _core.Session(model, backend)
    session.run(inputs)
    plan = session.plan()
    assert plan is not None, "the model fixes all shapes"
    runs = [session.profile(inputs) for _ in range(max(1, rounds))]
    least = [min(column) for column in zip(*runs, strict=True)]
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    errors = []
    for op, us in zip(plan["ops"], least, strict=True):
        both = kinds[f"{op[1]} {op[2]}".strip()]
        both[0] += op[4]
        both[1] += us
        errors.append(abs(_error(op[4], us)))
    predicted_us, measured_us = plan["costs"][plan["backend"]], sum(least)
    return {
        "model": model.stem,
        "backend": plan["backend"],
        "source": plan["source"],
        "predicted_us": predicted_us,
        "measured_us": measured_us,
        "error": _error(predicted_us, measured_us),
        "median_node_error": statistics.median(errors),
        "kinds": {
            name: {"predicted_us": one[0], "measured_us": one[1]}
            for name, one in sorted(kinds.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
        },
    }


def _error(predicted: float, measured: float) -> float:
    least_us = 0.03  # a tick of the clock
    return predicted / max(measured, least_us) - 1


def table(reports: list[dict[str, Any]]) -> str:
    lines = [f"{'network':16s}{'predicted us':>13s}{'measured us':>13s}{'error':>8s}{'median node':>13s}"]
    for one in reports:
        times = f"{one['predicted_us']:13.1f}{one['measured_us']:13.1f}{100 * one['error']:+7.1f}%"
        lines.append(f"{one['model']:16s}{times}{100 * one['median_node_error']:12.1f}%")
        for name, kind in list(one["kinds"].items())[:3]:
            lines.append(f"  {name}: {kind['predicted_us']:.1f} predicted, {kind['measured_us']:.1f} measured")
    if reports:
        lines.append(f"backend {reports[0]['backend']}, rates: {reports[0]['source']}")
    return "\n".join(lines)
