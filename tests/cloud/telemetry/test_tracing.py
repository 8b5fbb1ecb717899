"""Traces of a real device and a real cloud, as an OTLP receiver gets them."""

import asyncio
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from tests.night.cases import at_night
from tests.sim.otlp_receiver import Spans, otlp_receiver
from tests.sim.shop_cloud import User, shop_cloud, until
from walle.base.clock import ManualClock, SystemClock
from walle.cloud.telemetry.tracing import FROM_ENVIRONMENT, Tracer, exporter
from walle.errors import ConfigError
from walle.metrics.span_queue import MAX_SPANS, SpanQueue
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.protocol import OutcomeBatch, ProtocolError
from walle.protocol.traces import DeviceTrace, TracedSpan, TraceKind, is_sampled, ratio_from_header, span_id, trace_id

_PARENTS = {
    "push.answer": "",
    "device.verify": "push.answer",
    "device.pull": "push.answer",
    "device.check": "push.answer",
    "device.activate": "push.answer",
    "device.trigger": "",
    "vm.run": "device.trigger",
    "feature.put": "device.trigger",
    "tunnel.frame": "device.trigger",
    "ingest.store": "tunnel.frame",
    "consume": "ingest.store",
}


def _check_parents(spans: Spans) -> None:
    """Every span has the parent that it should have, in its own trace."""
    for trace in spans.traces().values():
        by_id = {span.span_id: name for name, some in trace.items() for span in some}
        for name, some in trace.items():
            for span in some:
                assert by_id.get(span.parent_span_id, "") == _PARENTS[name], name
                assert (span.parent_span_id == b"") == (_PARENTS[name] == ""), name
                assert span.end_time_unix_nano >= span.start_time_unix_nano, name


@pytest.mark.asyncio
@pytest.mark.parametrize("processes", [1, *at_night(2)])
async def test_an_install_and_a_run_are_each_one_trace_across_device_and_cloud(tmp_path: Path, processes: int) -> None:
    with otlp_receiver() as spans:
        options: dict[str, Any] = {"traces": spans.url, "trace_ratio": 1.0, "tunnel_processes": processes}
        async with shop_cloud(tmp_path, **options) as shop, shop.device(tmp_path / "d0") as device:
            await shop.push("v1")
            release_id = await shop.release("v1", beta=["d0"])
            user = User(device)
            await user.until(lambda: bool(device.tasks))
            await user.visit()
            await device.settled()
            assert await shop.received() >= 1
            await _consume(shop.cloud.home.uploads_db, spans)
            tracer = shop.cloud.gateway._tracer
            assert tracer is not None

            async def has_arrived() -> bool:  # tunnel processes and the exporter tell what they have now and then
                await asyncio.to_thread(tracer.flush)
                stored = [span for span in spans.all if span.name == "ingest.store"]
                return len(stored) == await shop.received()

            await until(has_arrived)
        _check_parents(spans)
        assert spans.services == {"walle"}
        traces = list(spans.traces().values())
        installs = [one for one in traces if "push.answer" in one]
        assert len(installs) == 1
        install = installs[0]
        assert set(install) == {"push.answer", "device.verify", "device.pull", "device.check", "device.activate"}
        named = {one.key: one.value.string_value for one in install["push.answer"][0].attributes}
        assert named["walle.release"] == release_id
        assert named["walle.device"] == "d0"
        runs = [one for one in traces if "device.trigger" in one]
        assert runs
        whole = {"device.trigger", "vm.run", "feature.put", "tunnel.frame", "ingest.store", "consume"}
        assert all(set(run) == whole for run in runs), [set(run) for run in runs]
        run = runs[0]
        order = ["device.trigger", "vm.run", "feature.put"]
        starts = [run[name][0].start_time_unix_nano for name in order]
        assert starts == sorted(starts)
        assert run["vm.run"][0].end_time_unix_nano <= run["device.trigger"][0].end_time_unix_nano


async def _consume(path: Path, spans: Spans) -> None:
    """Use the stored uploads as another process would, with a tracer of its own."""
    clock = SystemClock()
    tracer = Tracer(1.0, exporter(spans.url), clock)
    async with open_uploads(path, create=True, clock=clock) as uploads, uploads.consume("ranker") as consumer:
        began_s = clock.time()
        batch = await anext(consumer)
        await batch.commit()
        tracer.consumed("ranker", batch.uploads, began_s, clock.time())
    tracer.close()


@pytest.mark.asyncio
async def test_without_traces_nothing_is_asked_of_devices_nor_reported(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: bool(device.tasks))
        answers = await device._requests.checkin()
        assert answers[2] == ""
        assert shop.cloud.gateway._answers.answerer.on_directives is None
        assert not device.agent.traces.follows_run("shop/count", 1.0)
        await device.settled()


def _trace(**changes: object) -> dict[str, object]:
    trace = DeviceTrace(TraceKind.RUN, "shop/count", "1700000000000", (TracedSpan("vm.run", 5, 6),))
    return {**dataclasses.asdict(trace), "spans": [dataclasses.asdict(span) for span in trace.spans], **changes}


def _batch(**trace: object) -> dict[str, object]:
    return {"device_id": "d0", "batch_id": "b", "outcomes": [], "traces": [_trace(**trace)]}


def test_a_report_with_traces_is_read_back_and_one_without_is_as_before() -> None:
    batch = OutcomeBatch.from_json(_batch())
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    assert "traces" not in dataclasses.replace(batch, traces=()).to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "other"},
        {"spans": [{"name": "push.answer", "start_us": 1, "length_us": 1}]},
        {"spans": [{"name": "vm.run", "start_us": 1, "length_us": 1}] * 2},
        {"spans": [{"name": "vm.run", "start_us": -1, "length_us": 1}]},
        {"spans": [{"name": "vm.run", "start_us": 1, "length_us": 1 << 60}]},
        {"spans": [{"name": "vm.run", "start_us": True, "length_us": 1}]},
        {"spans": ["vm.run"] * 9},
        {"spans": ["vm.run"]},
        {"task": "x" * 201},
        {"key": 5},
    ],
)
def test_a_trace_that_no_device_sends_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="traces"):
        OutcomeBatch.from_json(_batch(**changes))


def test_a_report_has_a_bounded_number_of_traces() -> None:
    with pytest.raises(ProtocolError, match="21 traces"):
        OutcomeBatch.from_json({**_batch(), "traces": [_trace()] * 21})


def _upload(device_id: str, sent_ms: int) -> Received:
    return Received(device_id, "e", 1, "shop/count", b"", sent_ms, sent_ms + 9)


def test_a_device_cannot_name_the_trace_of_another() -> None:
    """The id is computed from the proven device; what a report says can only select among the device's own."""
    victim = trace_id(TraceKind.RUN, "victim", "shop/count", "1700000000000")
    with otlp_receiver() as spans:
        tracer = Tracer(1.0, exporter(spans.url), SystemClock())
        for task in ("shop/count", "victim\0shop/count", victim.hex()):
            batch = OutcomeBatch.from_json({**_batch(task=task), "device_id": "d0"})
            tracer.reported(batch)
        tracer.stored([_upload("victim", 1_700_000_000_000)], 1_700_000_001.0)
        tracer.close()
        traces = spans.traces()
    assert set(traces[victim]) == {"tunnel.frame", "ingest.store"}
    assert len(traces) == 4


def test_one_device_cannot_crowd_out_others() -> None:
    with otlp_receiver() as spans:
        tracer = Tracer(1.0, exporter(spans.url), ManualClock())  # all within a minute
        tracer.stored([_upload("flood", number) for number in range(1000)], 1.0)
        tracer.stored([_upload("honest", 7)], 1.0)
        tracer.close()
    devices = [one.value.string_value for span in spans.all for one in span.attributes if one.key == "walle.device"]
    assert devices.count("flood") <= 600
    assert devices.count("honest") == 2
    assert tracer.queue.dropped == {"device": 1400}
    assert tracer.queue.exported == len(spans.all) == 602


def _dropped(tracer: Tracer) -> dict[str, float]:
    return {
        sample.labels["cause"]: sample.value
        for metric in tracer.queue.metrics()
        for sample in metric.samples
        if sample.name == "walle_trace_spans_dropped_total"
    }


def test_spans_beyond_the_queue_are_counted_and_none_is_lost_silently() -> None:
    """The receiver holds the first batch back until all spans were made."""
    with otlp_receiver() as spans:
        spans.may_answer.clear()
        queue = SpanQueue(OTLPSpanExporter(endpoint=f"{spans.url}/v1/traces"), max_spans=600)
        tracer = Tracer(1.0, queue, SystemClock())
        for number in range(2000):
            tracer.stored([_upload(f"d{number % 100}", number)], 1.0)
        assert len(queue) <= 600
        spans.may_answer.set()
        tracer.close()
        assert len(queue) == 0
        dropped = _dropped(tracer)
        assert dropped["queue"] > 0
        assert (dropped["device"], dropped["export"]) == (0, 0)
        assert len(spans.all) + dropped["queue"] == 4000
        assert queue.exported == len(spans.all) >= 600


def test_spans_that_the_receiver_does_not_take_are_counted() -> None:
    with otlp_receiver() as spans:
        spans.status = 400
        tracer = Tracer(1.0, exporter(spans.url), SystemClock())
        tracer.stored([_upload("d0", 5)], 1.0)
        tracer.close()
    assert _dropped(tracer) == {"device": 0, "queue": 0, "export": 2}
    assert tracer.queue.exported == 0


def test_the_length_of_the_queue_is_the_standards_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = exporter("http://127.0.0.1:9")
    assert queue.max_spans == MAX_SPANS
    queue.close()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "700")
    queue = exporter("http://127.0.0.1:9")
    assert queue.max_spans == 700
    queue.close()


def test_a_device_whose_clock_is_before_1970_costs_no_other_its_spans() -> None:
    with otlp_receiver() as spans:
        tracer = Tracer(1.0, exporter(spans.url), SystemClock())
        early = Received("nonsense", "e", 1, "shop/count", b"", -(1 << 63), 1_700_000_000_000)
        tracer.stored([early, _upload("honest", 7)], 1_700_000_001.0)
        tracer.close()
    devices = [one.value.string_value for span in spans.all for one in span.attributes if one.key == "walle.device"]
    assert sorted(devices) == ["honest", "honest", "nonsense", "nonsense"]


def test_the_share_of_traces_is_kept() -> None:
    traces = [trace_id(TraceKind.RUN, "d", "shop/count", str(number)) for number in range(4000)]
    kept = sum(is_sampled(trace, 0.1) for trace in traces)
    assert 300 < kept < 500  # 400 expected, 19 the standard deviation
    assert not any(is_sampled(trace, 0.0) for trace in traces)
    assert all(is_sampled(trace, 1.0) for trace in traces)


def test_wrong_shares_and_addresses_are_refused_or_ignored() -> None:
    assert [ratio_from_header(text) for text in ("", "x", "nan", "-1", "2", "0.5")] == [0, 0, 0, 0, 0, 0.5]
    with pytest.raises(ConfigError, match="OTLP"):
        exporter("localhost:4318")
    processor = exporter("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="share"):
        Tracer(0.0, processor, SystemClock())
    processor.close()


def test_the_exporter_follows_the_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as spans:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", spans.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=shop")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our-cloud")
        tracer = Tracer(1.0, exporter(FROM_ENVIRONMENT), SystemClock())
        tracer.stored([_upload("d0", 5)], 1.0)
        tracer.close()
    assert spans.services == {"our-cloud"}
    assert spans.headers[0]["x-scope"] == "shop"


def test_the_vectors_of_the_protocol_are_what_the_code_and_a_second_writing_make() -> None:
    text = (Path(__file__).parents[3] / "docs/vectors/traces.jsonl").read_text()
    vectors = [json.loads(line) for line in text.splitlines()]
    assert {vector["kind"] for vector in vectors} == set(TraceKind)
    for one in vectors:
        data = b"\0".join(one[field].encode() for field in ("kind", "device", "task", "key"))
        trace = hashlib.blake2b(data, digest_size=16, person=b"walle trace").digest()
        span = hashlib.blake2b(one["span_name"].encode(), digest_size=8, key=trace, person=b"walle span").digest()
        assert trace_id(TraceKind(one["kind"]), one["device"], one["task"], one["key"]) == trace
        assert span_id(trace, one["span_name"]) == span
        assert (trace.hex(), span.hex()) == (one["trace"], one["span"])
        assert is_sampled(trace, 0.5) is one["sampled_at_half"] is (trace[8] < 128)
