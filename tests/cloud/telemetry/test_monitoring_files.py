"""The dashboard and the alert rules of packaging/monitoring: by the table of metrics, and by Prometheus' own tool."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from walle.access.identity.authority import Authority
from walle.base.clock import SystemClock
from walle.metrics.table import METRICS, MetricType

_FOLDER = Path(__file__).parents[3] / "packaging/monitoring"
_PROMTOOL = os.environ.get("WALLE_PROMTOOL") or shutil.which("promtool")
_needs_promtool = pytest.mark.skipif(
    _PROMTOOL is None, reason="promtool is not installed: it is in Debian's package prometheus"
)
_NAME = re.compile(r"\bwalle_[a-z_]+\b")
_SELECTOR = re.compile(r"\b(walle_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((_FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _dashboard() -> Any:
    return json.loads((_FOLDER / "dashboard.json").read_text())


def _expressions() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    dashboard = _dashboard()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for note in dashboard["annotations"]["list"]:
        yield note["name"], note["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def _metric(name: str) -> str:
    """Return the metric of the table whose series has that name."""
    for suffix in ("_bucket", "_count", "_sum"):
        base = name.removesuffix(suffix)
        if base != name and base in METRICS and METRICS[base].type is MetricType.HISTOGRAM:
            return base
    return name


def test_every_metric_and_label_that_is_named_is_in_the_table() -> None:
    for where, expression in _expressions():
        names = _NAME.findall(expression)
        assert names or "up{" in expression, where
        for name in names:
            assert _metric(name) in METRICS, f"{where}: unknown metric {name}"
        for name, labels in _SELECTOR.findall(expression):
            known = {*METRICS[_metric(name)].labels, "instance", "job", "le"}
            assert set(_LABEL.findall(labels)) <= known, f"{where}: {name} does not have all of {labels}"


def test_rates_are_of_counters_only() -> None:
    for where, expression in _expressions():
        for name in re.findall(r"(?:rate|increase)\((walle_[a-z_]+)", expression):
            assert METRICS[_metric(name)].type in (MetricType.COUNTER, MetricType.HISTOGRAM), f"{where}: {name}"


def test_every_alert_says_what_to_do_and_has_tests_of_both_kinds() -> None:
    names = [test["name"] for test in yaml.safe_load((_FOLDER / "alerts_test.yml").read_text())["tests"]]
    for rule in _rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]
        assert f"{rule['alert']} fires" in names
        assert f"{rule['alert']} stays quiet" in names


def test_panels_do_not_overlap_and_have_distinct_ids() -> None:
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells |= own


@_needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    assert _PROMTOOL is not None
    result = subprocess.run(
        [_PROMTOOL, "test", "rules", "alerts_test.yml"], cwd=_FOLDER, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@_needs_promtool
def test_the_expressions_of_the_dashboard_and_the_configuration_are_valid(tmp_path: Path) -> None:
    assert _PROMTOOL is not None
    rules = []
    for number, (where, expression) in enumerate(_expressions()):
        if expression.startswith("label_values("):
            continue
        for variable, value in (("$__rate_interval", "5m"), ("$instance", ".*"), ("$task", ".*")):
            expression = expression.replace(variable, value)
        assert "$" not in expression, where
        rules.append({"record": f"dashboard:expression_{number}", "expr": expression})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(_FOLDER / name, tmp_path)
    (tmp_path / "prometheus.token").write_text("token")
    shutil.copy(_certificate(tmp_path), tmp_path / "ca.pem")
    for arguments in (["check", "rules", "rules.yml"], ["check", "config", "prometheus.yml"]):
        result = subprocess.run([_PROMTOOL, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def _certificate(folder: Path) -> Path:
    return Authority(folder / "authority", clock=SystemClock()).ca_path
