import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.cloud.api.outcomes import MAX_OUTCOMES_BYTES
from walle.deploy.agent.outcomes import OutcomeReport, device_groups
from walle.protocol import Alarm, Attribute, Failure, Metric, Outcome, OutcomeBatch, OutcomeKind, ProtocolError


def _report(max_keys: int = 1000) -> OutcomeReport:
    numbers = itertools.count(1)
    return OutcomeReport("d1", new_id=lambda: f"b{next(numbers)}", max_keys=max_keys)


def failed(error: str, error_type: str = "ValueError", **more: str) -> Failure:
    return Failure(error_type=error_type, error=error, **more)  # type: ignore[arg-type]


def test_there_is_no_batch_without_outcomes() -> None:
    report = _report()
    assert report.take_batch() is None
    report.confirm("b1")
    assert report.take_batch() is None


def test_runs_add_up_and_keep_the_last_error() -> None:
    report = _report()
    report.count_run("s/t", "v1", "r1", failed("first"))
    report.count_run("s/t", "v1", "r1", failed("x" * 5000))
    report.count_run("s/t", "v1", "r1")
    report.count_run("s/t", "v1", "r2")
    batch = report.take_batch()
    assert batch is not None
    first, second = batch.outcomes
    assert (first.release, first.ok, first.failed, len(first.error)) == ("r1", 1, 2, Failure.MAX_ERROR_CHARS)
    assert (second.release, second.ok, second.failed) == ("r2", 1, 0)
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


def test_dropped_triggers_add_up_and_are_reported_once() -> None:
    report = _report()
    report.count_dropped("s/t", "v1", "r1", triggers=3)
    report.count_run("s/t", "v1", "r1")
    report.count_dropped("s/t", "v1", "r1", triggers=1)
    report.count_dropped("s/t", "v1", "r1", uploads=2)
    report.count_dropped("s/u", "v1", "", triggers=10**12)
    batch = report.take_batch()
    assert batch is not None
    first, second = batch.outcomes
    assert (first.ok, first.failed, first.dropped, first.uploads_dropped) == (1, 0, 4, 2)
    assert (second.ok, second.failed, second.dropped) == (0, 0, Outcome.MAX_COUNT)
    plain = json.loads(json.dumps(batch.to_json()))
    assert OutcomeBatch.from_json(plain) == batch
    for wrong in (-1, 10**9 + 1, True, "3"):
        plain["outcomes"][0]["dropped"] = wrong
        with pytest.raises(ProtocolError, match=r"batch.outcomes\[0\].dropped"):
            OutcomeBatch.from_json(plain)
    del plain["outcomes"][0]["dropped"], plain["outcomes"][0]["uploads_dropped"]  # earlier devices do not send them
    assert OutcomeBatch.from_json(plain).outcomes[0].dropped == 0
    report.confirm(batch.batch_id)
    assert report.take_batch() is None


def test_a_report_has_the_size_of_the_versions_state_and_what_it_evicted() -> None:
    sizes = {("s/t", "v2"): (500, 1024)}
    report = OutcomeReport("d1", new_id=lambda: "b1", state_of=lambda task, version: sizes.get((task, version)))
    report.count_run("s/t", "v1", "r1")
    report.count_run("s/t", "v2", "r2")
    report.count_dropped("s/t", "v2", "r2", entries=3)
    sizes["s/t", "v2"] = (900, 1024)
    report.count_dropped("s/t", "v2", "r2", entries=4)
    batch = report.take_batch()
    assert batch is not None
    old, new = batch.outcomes
    assert (old.state_bytes, old.state_max_bytes, old.entries_evicted) == (0, 0, 0)  # the version is no longer active
    assert (new.state_bytes, new.state_max_bytes, new.entries_evicted) == (900, 1024, 7)
    table = json.loads(json.dumps(batch.to_json()))
    assert OutcomeBatch.from_json(table) == batch
    for name in ("state_bytes", "state_max_bytes", "entries_evicted"):
        table["outcomes"][1][name] = -1
        with pytest.raises(ProtocolError, match=rf"batch.outcomes\[1\].{name}"):
            OutcomeBatch.from_json(table)
        del table["outcomes"][1][name]  # earlier devices do not send it
    assert OutcomeBatch.from_json(table).outcomes[1].state_max_bytes == 0


def test_outcomes_that_reach_no_cloud_are_counted() -> None:
    report = _report(max_keys=1)
    report.count_run("s/t", "v1", "r1")
    report.count_run("s/u", "v1", "r1")
    batch = report.take_batch()
    assert batch is not None
    report.refused(batch)
    assert (report.lost, report.take_batch()) == (2, None)


def test_place_and_log_are_those_of_the_last_failure() -> None:
    report = _report()
    report.count_run("s/t", "v1", "r1", failed("first", place="main.py:1", log="info: one"))
    report.count_run("s/t", "v1", "r1", failed("last", place="", log="x\n" * 5000 + "info: the end \udcff"))
    report.count_run("s/t", "v1", "r1")
    batch = report.take_batch()
    assert batch is not None
    (outcome,) = batch.outcomes
    assert (outcome.error, outcome.place, len(outcome.log)) == ("last", "", Failure.MAX_LOG_CHARS)
    assert outcome.log.endswith("info: the end ?")
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


def test_failures_are_summed_by_type_and_place_and_the_latest_are_kept() -> None:
    report = _report()
    for number in range(3):
        report.count_run("s/t", "v1", "r1", failed(f"{number}", place="main.py:1 in execute", traceback="t" * 5000))
        report.count_run("s/t", "v1", "r1", failed(f"{number}", "KeyError", place="main.py:1 in execute"))
    batch = report.take_batch()
    assert batch is not None
    (outcome,) = batch.outcomes
    assert (outcome.failed, outcome.error) == (6, "2")
    assert [(one.error_type, one.error, one.count) for one in outcome.failures] == [
        ("ValueError", "2", 3),
        ("KeyError", "2", 3),
    ]
    assert len(outcome.failures[0].traceback) == Failure.MAX_TRACEBACK_CHARS
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    report.confirm(batch.batch_id)
    for number in range(30):
        report.count_run("s/t", "v1", "r1", failed("x", place=f"main.py:{number}"))
    batch = report.take_batch()
    assert batch is not None
    (outcome,) = batch.outcomes
    assert (outcome.failed, len(outcome.failures)) == (30, Outcome.MAX_FAILURES)
    assert outcome.failures[-1].place == "main.py:29"


def test_a_batch_is_never_larger_than_the_cloud_takes() -> None:
    report = _report()
    for number in range(200):
        for place in range(10):
            report.count_run("s/t", f"v{number}", "r1", failed("e" * 2000, place=f"{place}", traceback="\x00" * 4000))
    seen = 0
    while (batch := report.take_batch()) is not None:
        assert len(json.dumps(batch.to_json())) < MAX_OUTCOMES_BYTES
        seen += sum(outcome.failed for outcome in batch.outcomes)
        report.confirm(batch.batch_id)
    assert seen == 2000


def test_an_error_with_lone_surrogates_is_reported_in_valid_characters() -> None:
    report = _report()
    report.count_run("s/t", "v1", "r1", failed("no file named \udcff"))
    batch = report.take_batch()
    assert batch is not None
    assert batch.outcomes[0].error == "no file named ?"
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


def test_an_unconfirmed_batch_is_given_again_and_what_follows_waits() -> None:
    report = _report()
    report.add(Outcome(task="s/t", version="v1", release="r", kind=OutcomeKind.INSTALLED))
    first = report.take_batch()
    report.count_run("s/t", "v1", "r")
    assert report.take_batch() is first
    report.confirm("some other batch")
    assert report.take_batch() is first
    assert first is not None
    report.confirm(first.batch_id)
    second = report.take_batch()
    assert second is not None
    assert second.batch_id != first.batch_id
    assert [outcome.kind for outcome in second.outcomes] == [OutcomeKind.RUN]


def test_memory_is_bounded_and_what_does_not_fit_is_counted() -> None:
    report = _report(max_keys=3)
    for number in range(10):
        report.count_run("s/t", f"v{number}", "")
    report.count_run("s/t", "v0", "")
    batch = report.take_batch()
    assert batch is not None
    assert sorted((outcome.version, outcome.ok) for outcome in batch.outcomes) == [("v0", 2), ("v1", 1), ("v2", 1)]
    assert report.dropped == 7
    report.confirm(batch.batch_id)
    assert report.dropped == 0


_steps = st.lists(st.sampled_from(["ok", "failed", "take", "confirm"]), max_size=60)


@given(_steps)
def test_every_run_is_reported_exactly_once(steps: list[str]) -> None:
    report = _report()
    received: dict[str, OutcomeBatch] = {}
    counted = {"ok": 0, "failed": 0}
    for step in [*steps, "take", "confirm", "take", "confirm"]:
        if step in counted:
            counted[step] += 1
            report.count_run("s/t", "v1", "r", None if step == "ok" else failed("x"))
        elif (batch := report.take_batch()) is not None:
            received[batch.batch_id] = batch
            if step == "confirm":
                report.confirm(batch.batch_id)
    outcomes = [outcome for batch in received.values() for outcome in batch.outcomes]
    assert sum(outcome.ok for outcome in outcomes) == counted["ok"]
    assert sum(outcome.failed for outcome in outcomes) == counted["failed"]
    assert report.take_batch() is None


def test_alarms_travel_with_outcomes_the_last_of_each_kind() -> None:
    report = OutcomeReport("d1", new_id=lambda: "b1")
    report.alarm(Alarm("frozen", "first", 1.0))
    report.alarm(Alarm("frozen", "x" * 900, 2.0))
    report.alarm(Alarm("clock", "late", 3.0))
    batch = report.take_batch()
    assert batch is not None
    read = OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json())))
    assert read.alarms == (Alarm("frozen", "x" * Alarm.MAX_TEXT_CHARS, 2.0), Alarm("clock", "late", 3.0))
    assert report.take_batch() is batch
    report.confirm("b1")
    assert report.take_batch() is None


@pytest.mark.parametrize(
    ("alarms", "field"),
    [
        ([1], "must be an object"),
        ([{"kind": "fire", "text": "", "time_s": 1}], "is not one of frozen, clock, metadata"),
        ([{"kind": "clock", "text": 1, "time_s": 1}], "text: must be str"),
        ([{"kind": "clock", "text": "", "time_s": "now"}], "time_s: must be a number"),
        ([{"kind": "clock", "text": "", "time_s": float("nan")}], "time_s: must be a number"),
        ([{"kind": "clock", "text": "", "time_s": 1}] * 11, "11 alarms, more than 10"),
    ],
)
def test_wrong_alarms_are_refused(alarms: list[object], field: str) -> None:
    with pytest.raises(ProtocolError, match=field):
        OutcomeBatch.from_json({"device_id": "d1", "batch_id": "b", "outcomes": [], "alarms": alarms})


def test_a_report_names_the_groups_of_its_device_within_the_bounds_of_the_cloud() -> None:
    attributes: dict[str, Attribute] = {
        "os": 12,
        "model": "x" * 100,
        "beta": True,
        "load": 0.5,
        "name": "\ud800",
        "none": "",
    }
    groups = device_groups("10.1", {**attributes, **{str(number): number for number in range(20)}})
    assert list(groups)[:5] == ["app_version", "os", "model", "beta", "name"]
    assert (groups["os"], groups["model"], groups["beta"], len(groups)) == ("12", "x" * 64, "True", 8)
    report = OutcomeReport("d1", groups)
    report.count_run("s/t", "v1", "r1")
    batch = report.take_batch()
    assert batch is not None
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()).encode())).groups == groups


def test_the_metrics_of_runs_are_a_median_latency_and_means_and_begin_again_with_each_report() -> None:
    report = OutcomeReport("d1")
    for latency_ms, found in ((1.0, 2.0), (3.0, 4.0), (1_000.0, 9.0)):
        report.count_run("shop/ipv", "v1", "r1", metrics={"latency_ms": latency_ms, "found": found})
    report.count_run("shop/ipv", "v1", "r1", Failure(error_type="E", error="E: x"))
    report.count_run("shop/ipv", "v2", "r2")
    batch = report.take_batch()
    assert batch is not None
    assert OutcomeBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    first, second = batch.outcomes
    assert first.metrics == (Metric("latency_ms", 3, 3.0), Metric("found", 3, 5.0))
    assert second.metrics == ()
    report.confirm(batch.batch_id)
    report.count_run("shop/ipv", "v1", "r1", metrics={"found": 1.0})
    later = report.take_batch()
    assert later is not None
    assert later.outcomes[0].metrics == (Metric("found", 1, 1.0),)


def test_metrics_are_bounded() -> None:
    report = OutcomeReport("d1")
    for number in range(200):
        report.count_run("a/b", "v1", "r1", metrics={"latency_ms": float(number), f"m{number}": 1e308})
    batch = report.take_batch()
    assert batch is not None
    (outcome,) = batch.outcomes
    assert len(outcome.metrics) == Outcome.MAX_METRICS
    assert outcome.metrics[0] == Metric("latency_ms", 200, 167.5)  # median of the latest 64
    assert outcome.metrics[1].value == 1e100


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "A", "count": 1, "value": 1},
        {"name": "a", "count": 0, "value": 1},
        {"name": "a", "count": 1, "value": float("nan")},
        {"name": "a", "count": 1, "value": 10**400},
        {"name": "a", "count": 1, "value": True},
        {"name": "a", "count": 1},
        7,
    ],
)
def test_a_report_with_a_metric_that_is_none_is_refused_with_its_place(wrong: object) -> None:
    outcome = Outcome(task="a/b", version="v1", release="r1", kind=OutcomeKind.RUN, ok=1)
    plain = json.loads(json.dumps(OutcomeBatch("d", "b", (outcome,)).to_json()))
    plain["outcomes"][0]["metrics"] = [wrong]
    with pytest.raises(ProtocolError, match=r"batch\.outcomes\[0\]\.metrics\[0\]"):
        OutcomeBatch.from_json(plain)
    del plain["outcomes"][0]["metrics"]  # earlier devices do not send them
    assert OutcomeBatch.from_json(json.loads(json.dumps(plain))).outcomes == (outcome,)
