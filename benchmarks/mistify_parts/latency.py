"""Latency by the formula, by the engine's rates, by timed steps, and measured, of ten goals of two networks (§4.1).

The goals are adapted with little training: accuracy does not matter here. The hardware of the formula has the rates
of this machine's CPU that the engine uses.
"""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

_GOALS, _STEPS = 12, 12
# Multiply-adds of the smallest and largest goal by network.
_NETWORKS = {"digits": (20e3, 600e3), "mobile": (90e3, 900e3)}
_PER_S = 1e6  # rates are per microsecond
_BY = ("formula", "rates", "steps")


def measure() -> list[dict[str, Any]]:
    """Return for each network the latencies of its goals, in seconds, and errors as shares of the measured ones."""
    from walle.adapt.adaptation import adapt

    found = []
    for network in _NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            outcome = adapt(_job(network), Path(folder))
        formula = {one.goal: one.costs["latency"] for one in outcome.fitted}
        rows: list[dict[str, Any]] = [
            {
                "goal": one.model, "formula": formula[one.model], "rates": one.rates_s, "steps": one.steps_s,
                "measured": one.measured_s,
            }
            for one in outcome.latencies if one.model in formula
        ]  # fmt: skip
        errors = {by: sorted(abs(row[by] / row["measured"] - 1) for row in rows) for by in _BY}
        found.append({
            "network": network, "cpu": outcome.latencies[0].cpu, "source": outcome.latencies[0].source, "rows": rows,
            "errors": errors,
        })  # fmt: skip
    return found


def lines(result: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the errors of each prediction, then a line for each goal."""
    for one in result:
        yield f"{one['network']}, {len(one['rows'])} goals, {one['cpu']}, rates {one['source']}: error against measured"
        for by, errors in one["errors"].items():
            within = sum(error <= 0.05 for error in errors)
            yield (
                f"    {by:8} median {statistics.median(errors):6.1%}, most {errors[-1]:6.1%}, "
                f"within 5 %: {within} of {len(errors)}"
            )
        for row in one["rows"]:
            yield f"    {row['goal']:9} " + ", ".join(f"{by} {row[by] * 1e6:.2f} us" for by in (*_BY, "measured"))


def _job(network: str) -> Any:
    from walle.adapt.costs.hardware import Hardware
    from walle.adapt.goals.config import parse_config
    from walle.engine_ext import _core

    least, most = _NETWORKS[network]
    text = f"""
        model = "{network}.py:make"
        data = {{train = "digits.py:train", test = "digits.py:test"}}
        training = {{steps = {_STEPS}, learning_rate = 0.002}}
        algorithm = {{name = "slimmable", shared_steps = 10}}
        [goals.scale]
        operations = {{from = {least}, to = {most}, steps = {_GOALS}}}
    """
    rates = max((_core.rates(name) for name, here, exact in _core.backends() if here and exact), key=_panel)
    hardware = Hardware.of_rates(rates["panel"] * _PER_S, rates["streamed"] * _PER_S)
    return replace(parse_config(text, Path(__file__).parent, "goals", is_json=False)[0], hardware=hardware)


def _panel(rates: dict[str, float]) -> float:
    return rates["panel"]
