"""/metrics of a running cloud against the table of metrics, and what a scrape of very many releases costs."""

import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tests.sim.shop_cloud import User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.cloud.api.release_metrics import release_metrics
from walle.deploy.gate.gate_course import GateTest
from walle.deploy.monitor.release_evidence import Totals
from walle.deploy.releases.release import Release, ReleaseOverview, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.metrics.table import (
    DATABASE,
    EDGE_GATEWAYS,
    FURTHER_GATEWAYS,
    MAX_RELEASES,
    METRICS,
    MetricType,
    counter,
    gauge,
)

_MAIN = """\
def execute(ctx, x):
    return ctx.escalate({"n": 5}) if "event" in x else {"answer": x["n"] * 10}
"""
_AUTO = TASK_CONFIG + '[phases]\nexecute = "auto"\n'


@pytest.mark.asyncio
async def test_a_running_cloud_has_exactly_the_metrics_of_the_table(tmp_path: Path) -> None:
    traced = {"traces": "http://127.0.0.1:9", "trace_ratio": 1e-9}
    options: dict[str, Any] = {"pulls_s": 1000.0, "tunnel_servers": 1, **traced}
    async with shop_cloud(tmp_path, **options) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1", main=_MAIN, config=_AUTO)
        release_id = await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: bool(device.tasks))
        await user.visit()
        await device.settled()
        text = (await shop.http.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family
    here = [name for name, info in METRICS.items() if info.part not in (EDGE_GATEWAYS, FURTHER_GATEWAYS, DATABASE)]
    assert sorted(found) == sorted(here)
    for name, family in found.items():
        info = METRICS[name]
        assert (family.type, family.documentation) == (info.type.value, info.help), name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(info.labels), name
        values = {value for sample in family.samples for value in sample.labels.values()}
        assert "d0" not in values, f"{name} has the id of a device"
    assert any(one.labels.get("release") == release_id for one in found["walle_release_info"].samples)
    assert {one.labels["route"] for one in found["walle_http_duration_seconds"].samples} >= {"push", "api", "git"}
    assert next(one.value for one in found["walle_tunnel_commits_total"].samples) > 0


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, info in METRICS.items():
        assert name.startswith("walle_")
        assert name.endswith("_total") == (info.type is MetricType.COUNTER), name
        assert not name.endswith(("_ms", "_mb", "_s", "_percent", "_count", "_sum", "_bucket", "_created")), name
        assert not {"device", "device_id"} & info.labels.keys(), name
        assert info.help[0].isupper() or info.help[0].isdigit(), name
        assert not info.help.endswith("."), name


def test_a_metric_that_is_not_in_the_table_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        gauge("walle_surprise")
    with pytest.raises(KeyError, match="is a gauge"):
        counter("walle_releases")


def _release(number: int, state: ReleaseState, task: str = "count") -> Release:
    request = ReleaseRequest(scenario="shop", task=task, version=f"v{number}", steps=(0.25, 1.0))
    return Release(
        id=f"r{number}", number=number, request=request, created_s=1.0, updated_s=2.0, state=state, beta_devices=("d",)
    )


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _text(releases: list[Release], totals: dict[str, Totals] | None = None) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(release_metrics(ReleaseOverview.of(releases, MAX_RELEASES), totals or {})))
    return generate_latest(registry).decode()


def test_only_releases_in_use_have_series_and_ten_thousand_others_cost_little() -> None:
    over = (ReleaseState.FULL, ReleaseState.ROLLED_BACK, ReleaseState.FAILED)
    releases = [_release(number, over[number % 3]) for number in range(1, 10_001)]
    releases.append(_release(10_001, ReleaseState.GRAY))
    began_s = time.process_time()
    text = _text(releases)
    took_s = time.process_time() - began_s
    assert 'walle_releases{state="full"} 3333.0' in text
    assert 'walle_releases_ended_total{result="rolled_back"} 3334.0' in text
    info = [line for line in text.splitlines() if line.startswith("walle_release_info{")]
    assert len(info) == 2  # the one under way, and the full one that the devices have
    assert any('release="r10001"' in line and 'state="gray"' in line for line in info)
    assert any('release="r9999"' in line and 'state="full"' in line for line in info)
    assert took_s < 1.0  # 20 ms in fact


def test_series_of_releases_are_bounded_and_those_under_way_come_first() -> None:
    full = [_release(number, ReleaseState.FULL, f"t{number}") for number in range(1000, 2000)]
    text = _text([*full, _release(1, ReleaseState.BETA)])
    info = [line for line in text.splitlines() if line.startswith("walle_release_info{")]
    assert len(info) == MAX_RELEASES
    assert any('release="r1"' in line for line in info)


def test_a_release_that_is_judged_shows_its_evidence() -> None:
    release = _release(7, ReleaseState.GRAY)
    totals = Totals(
        installed=9, stage_devices=8, stage_broken=2, control_devices=40, verdict="pause",
        cause="silence at gray 0.25", heard_s=1234.5, hindered={"network": 3}, ok=70, failed=5,
        dropped=12, uploads_dropped=4, entries_evicted=3, state_bytes=900, state_max_bytes=1024, states_refused=6,
        tests=(GateTest("failed runs", "rolls back", 1.25, 7.5), GateTest("guards hold", "accepts", -2.0, 3.0)),
    )  # fmt: skip
    lines = _text([release], {"r7": totals}).splitlines()
    of_release = '{release="r7",task="shop/count"'
    for expected in (
        f"walle_release_step{of_release}}} 2.0",
        f"walle_release_coverage_ratio{of_release}}} 0.25",
        f"walle_release_changed_timestamp_seconds{of_release}}} 2.0",
        f"walle_release_heard_timestamp_seconds{of_release}}} 1234.5",
        f"walle_release_failing_ratio{of_release}}} 0.25",
        f'walle_release_verdict{{cause="silence",{of_release[1:]},verdict="pause"}} 1.0',
        f'walle_release_test_evidence{of_release},test="failed runs",does="rolls back"}} 1.25',
        f'walle_release_test_boundary{of_release},test="failed runs",does="rolls back"}} 7.5',
        f'walle_release_test_evidence{of_release},test="guards hold",does="accepts"}} -2.0',
        f'walle_release_stage_devices{{kind="sound",{of_release[1:]}}} 6.0',
        f'walle_release_executions_total{of_release},result="failed"}} 5.0',
        f'walle_release_dropped_total{of_release},what="triggers"}} 12.0',
        f'walle_release_dropped_total{of_release},what="uploads"}} 4.0',
        f'walle_release_dropped_total{of_release},what="entries"}} 3.0',
        f"walle_release_state_bytes{of_release}}} 900.0",
        f"walle_release_state_limit_bytes{of_release}}} 1024.0",
        f"walle_release_states_refused_total{of_release}}} 6.0",
    ):
        assert expected in lines or _reordered(expected) in map(_reordered, lines), expected


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("", "none"),
        ("group model=P30", "group"),
        ("unreported guard latency_ms < 1.2x", "guard"),
        ("silent devices at gray 0.5", "silent"),
        ("device at beta", "device"),
        ("<script>", "test"),
    ],
)
def test_the_cause_of_a_verdict_is_one_of_a_few_words(cause: str, kind: str) -> None:
    text = _text([_release(7, ReleaseState.GRAY)], {"r7": Totals(verdict="pause", cause=cause)})
    assert f'cause="{kind}"' in text


def _reordered(line: str) -> str:
    name, _, rest = line.partition("{")
    labels, _, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}"
