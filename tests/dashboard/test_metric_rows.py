"""Metrics as the dashboard shows them: with units, histograms as shares, and charts of metrics that exist."""

from prometheus_client.core import Metric

from walle.cloud.dashboard.metric_pages import rows_of
from walle.cloud.dashboard.metric_series import CHARTS
from walle.metrics.histogram import Histogram
from walle.metrics.table import METRICS, histogram


def shown(name: str, kind: str, *samples: tuple[dict[str, str], float]) -> list[tuple[str, str, bool]]:
    metric = Metric(name, "meaning", kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return [(row["labels"], str(row["value"]), row["begins"]) for row in rows_of(metric)]


def test_numbers_have_the_unit_that_their_name_says() -> None:
    assert shown("walle_disk_free_bytes", "gauge", ({}, 71_877_066_750.0)) == [("", "72 GB", True)]
    assert shown("walle_tunnel_lag_seconds", "gauge", ({}, 1.25)) == [("", "1.25 s", True)]
    assert shown("walle_release_failing_ratio", "gauge", ({}, 0.025)) == [("", "2.5 %", True)]
    assert shown("walle_tunnel_sent_bytes_total", "counter", ({}, 9_999.0)) == [("", "9,999 B", True)]
    (row,) = shown("walle_audit_head_timestamp_seconds", "gauge", ({}, 1_795_851_118.0))
    assert "28 Nov 07:31:58 UTC" in row[1]
    assert shown("walle_lost", "gauge", ({"cause": "damaged"}, 2.0), ({"cause": "refused"}, 1_000.0)) == [
        ("damaged", "2", True),
        ("refused", "1,000", False),
    ]


def test_a_histogram_is_shown_by_its_count_p50_and_p99() -> None:
    metric = histogram("walle_http_duration_seconds")
    fast, slow = Histogram((0.005, 0.1)), Histogram((0.005, 0.1))
    for value in (0.001, 0.002, 0.05):
        fast.add(value)
    slow.add(5.0)
    metric.add_metric(["api"], fast.buckets(), fast.total)
    metric.add_metric(["git"], slow.buckets(), slow.total)
    metric.add_metric(["cdn"], Histogram((0.005, 0.1)).buckets(), 0.0)
    assert [(row["labels"], row["value"]) for row in rows_of(metric)] == [
        ("api", "3: p50 ≤ 0.005 s, p99 ≤ 0.1 s"),
        ("git", "1: p50 > 0.1 s, p99 > 0.1 s"),
        ("cdn", "0"),
    ]


def test_each_chart_is_of_a_metric_that_exists() -> None:
    known = {name.removesuffix("_total") for name in METRICS}
    assert {name for name, *_ in CHARTS} <= known
