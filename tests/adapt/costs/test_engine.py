"""Latency of models: by rates, by timed steps, and measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from walle import nn, np
from walle.adapt.adaptation import Fitted, Outcome
from walle.adapt.costs.engine import Latency, latencies_of, predicted_by_steps
from walle.adapt.costs.measured import Measured
from walle.adapt.report import GIVEN, rows_of, write_report
from walle.errors import EngineError

_IMAGE = np.ones((1, 1, 32, 32), "float32")


class Wide(nn.Module):
    """Two convolutions of some width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.Flatten())

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, Path]]:
    found = []
    for width in (2, 16, 128):
        path = tmp_path / f"{width}.walle"
        nn.to_walle(Wide(width).eval(), str(path), _IMAGE)
        found.append((str(width), path))
    return found


def test_wider_networks_take_longer_by_each_figure(files: list[tuple[str, Path]]) -> None:
    found = latencies_of(files, [_IMAGE])
    assert [one.model for one in found] == ["2", "16", "128"]
    for figure in ("rates_s", "steps_s", "measured_s"):
        seconds = [getattr(one, figure) for one in found]
        assert seconds == sorted(seconds)
        assert 1e-6 < seconds[-1] < 1
    assert all(one.source and one.cpu for one in found)


def test_the_fixed_time_comes_from_other_models(files: list[tuple[str, Path]]) -> None:
    times = [Measured(10.0, 8.0), Measured(20.0, 15.0), Measured(9.0, None), Measured(30.0, 27.0)]  # outside: 2, 5, 3
    assert predicted_by_steps(times) == [8 + 4.0, 15 + 2.5, None, 27 + 3.5]
    assert predicted_by_steps(times[1:3]) == [None, None]
    (alone,) = latencies_of(files[:1], [_IMAGE])
    assert (alone.steps_s, alone.error) == (None, None)


def test_many_models_are_measured_a_few_at_a_time(
    files: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.adapt.costs.engine._AT_ONCE", 2)
    found = latencies_of(files, [_IMAGE])
    assert [one.model for one in found] == ["2", "16", "128"]
    assert all(one.steps_s is not None for one in found)


def test_a_model_of_other_inputs_is_refused(files: list[tuple[str, Path]]) -> None:
    with pytest.raises(EngineError):
        latencies_of(files, [np.ones((1, 3, 32, 32), "float32")])


def test_a_measured_latency_above_the_budget_is_marked(tmp_path: Path) -> None:
    costs = {"operations": 9.0, "parameters": 2.0, "memory": 8.0, "latency": 1e-4, "accuracy": 0.5}
    fitted = [
        Fitted(name, f"{name}.walle", costs, meets_budgets=True, meets_accuracy=name != "c", steps=1, seconds=1.0,
               latency_budget=budget)
        for name, budget in (("a", 2e-3), ("b", 4e-3), ("c", None))
    ]  # fmt: skip
    latency = Latency(GIVEN, 1e-3, "calibrated", 2.5e-3, 3e-3, "a <CPU>")
    latencies = tuple(replace(latency, model=name) for name in (GIVEN, "a", "b", "c"))
    outcome = Outcome(costs, tuple(fitted), 1, 3.0, latencies)
    assert [missed for *_, missed in rows_of(outcome)] == ["", "latency as measured", "", "accuracy"]
    write_report(outcome, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<td>0.1<td>1<td>2.5<td>3<") == 4
    assert "a &lt;CPU&gt;, one thread" in page
    assert "(calibrated)" in page
    write_report(replace(outcome, latencies=()), tmp_path)
    assert "one thread" not in (tmp_path / "report.html").read_text()
