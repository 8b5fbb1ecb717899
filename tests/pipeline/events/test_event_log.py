import collections
import dataclasses
import gzip
import json
import pathlib
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.night.cases import at_night
from walle.pipeline.events import event_log
from walle.pipeline.events.event import MAX_EVENT_BYTES, PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.event_faults import Fault
from walle.pipeline.events.event_log import MAX_REPORTS, EventLog, EventLogError
from walle.pipeline.events.event_mapping import EventMapping, Mapped, MappingError, StreamOrder
from walle.pipeline.events.event_time import EventTime

ROOT = pathlib.Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "events"
MAPPINGS = ROOT / "apps" / "ipv" / "mappings"

SHOP = """
[fields]
event_id = ["kind", "fallback.name"]
page_id = "page"
time = "at"
stream = "who"
session = "visit"
id = "uuid"
[time]
format = "iso"
[kinds]
open = "page_enter"
shown = "exposure"
[contents]
keep = ["item", "more.price"]
json = ["more", "fallback"]
[pages]
derive = true
gap_s = 60
"""


def write(path: pathlib.Path, *lines: object) -> pathlib.Path:
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def plain_event(ts_ms: int, event_id: str = "click", **more: Any) -> dict[str, Any]:
    return {"event_id": event_id, "page_id": "p", "ts_ms": ts_ms, "contents": {}, **more}


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_json_lines_of_event_fields_need_no_mapping(tmp_path: pathlib.Path, name: str) -> None:
    path = write(tmp_path / name, plain_event(1), plain_event(2, contents={"a": [1.5, None]}), b"\n", plain_event(2))
    log = EventLog(path)
    expected = [
        (0, Event("click", "p", 1, {})),
        (1, Event("click", "p", 2, {"a": [1.5, None]})),
        (2, Event("click", "p", 2, {})),
    ]
    assert list(log) == expected
    assert list(log) == expected  # each iteration starts again, counts included
    assert (log.lines, log.events, sum(log.skipped.values())) == (4, 3, 0)
    assert [record.position for record in log.records(start=2)] == [2]


def test_bad_lines_are_counted_reported_and_skipped(tmp_path: pathlib.Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        plain_event(10, stream="d1"),
        b'{"event_id": "cl\n',
        b"[1, 2]\n",
        plain_event(11, stream="d1") | {"ts_ms": "late"},
        plain_event(9, stream="d1"),
        plain_event(9, stream="d2"),  # each stream has its own order
        plain_event(10, stream="d1"),
        plain_event(12, stream="d1", id="x"),
        plain_event(13, stream="d1", id="x"),
        plain_event(14, stream="d1", contents={"text": "x" * MAX_EVENT_BYTES}),
        plain_event(14, stream="d1", contents={"floats": [0.5] * 40_000}),  # small as JSON, enormous as plain data
        b"\xff\xfe broken\n",
        plain_event(15, stream="d1", contents={"huge": 2**80}),
        plain_event(16, stream="d1"),
        b'{"cut',
    )
    log = EventLog(path)
    assert [event.ts_ms for _, event in log] == [10, 9, 12, 16]
    assert [(report.line, report.fault) for report in log.reports] == [
        (2, Fault.BROKEN),
        (3, Fault.BROKEN),
        (4, Fault.BROKEN),
        (5, Fault.OUT_OF_ORDER),
        (7, Fault.DUPLICATE),
        (9, Fault.DUPLICATE),
        (10, Fault.ENORMOUS),
        (11, Fault.ENORMOUS),
        (12, Fault.BROKEN),
        (13, Fault.BROKEN),
        (15, Fault.BROKEN),
    ]
    assert log.skipped == {Fault.BROKEN: 6, Fault.OUT_OF_ORDER: 1, Fault.DUPLICATE: 2, Fault.ENORMOUS: 2}
    assert all(report.reason for report in log.reports)
    assert log.lines == 15


def test_reports_and_memory_are_bounded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_DUPLICATE_WINDOW", 10)
    path = write(tmp_path / "log.jsonl", *[plain_event(ts, id=str(ts % 50)) for ts in range(200)], *[b"no\n"] * 500)
    log = EventLog(path)
    assert len(list(log)) == 200
    assert log.skipped[Fault.BROKEN] == 500
    assert len(log.reports) == MAX_REPORTS
    assert len(log._seen) == 10


def test_an_enormous_line_is_passed_over_in_pieces(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + json.dumps(plain_event(1)).encode() + b"\n")
    log = EventLog(path)
    assert [event.ts_ms for _, event in log] == [1]
    assert [(report.line, report.fault) for report in log.reports] == [(1, Fault.ENORMOUS)]


def test_a_cut_compressed_file_gives_what_is_whole(tmp_path: pathlib.Path) -> None:
    seed = random.Random(1)
    lines = [plain_event(ts, contents={"n": seed.random()}) for ts in range(2000)]
    path = write(tmp_path / "log.jsonl.gz", *lines)
    path.write_bytes(path.read_bytes()[:-2000])
    log = EventLog(path)
    found = [event.ts_ms for _, event in log]
    assert found == list(range(len(found)))
    assert 1000 < len(found) < 2000
    assert log.reports[-1].fault is Fault.BROKEN
    assert "compressed" in log.reports[-1].reason


def test_a_mapping_says_which_column_is_which(tmp_path: pathlib.Path) -> None:
    mapping = tmp_path / "shop.toml"
    mapping.write_text(SHOP)
    path = tmp_path / "log.csv"
    path.write_bytes(
        b"\xef\xbb\xbfuuid,who,visit,at,kind,page,item,more,fallback,unused\n"
        b'1,u,v1,2024-01-01 00:00:00,open,list,,"{""price"": 3}",,x\n'
        b'2,u,v1,2024-01-01 00:00:01.500,shown,,i1,,,"two\nlines"\n'
        b'3,u,v1,2024-01-01T00:00:02+00:00,,item,,,"[{""name"": ""other""}]",\n'
        b"4,u,v2,2024-01-01 00:00:03,shown,item,i2,,,\n"
        b"5,u,v2,2024-01-01 00:02:00,shown,item,i3,,,\n"
    )
    log = EventLog(path, mapping)
    base = 1_704_067_200_000
    derived = {"derived": True}
    assert [event for _, event in log] == [
        Event(PAGE_ENTER, "list", base, {"more.price": 3}),
        Event("exposure", "list", base + 1500, {"item": "i1"}),
        Event(PAGE_EXIT, "list", base + 2000, derived),
        Event(PAGE_ENTER, "item", base + 2000, derived),
        Event("other", "item", base + 2000, {}),
        Event(PAGE_EXIT, "item", base + 2000, derived),  # a new session
        Event(PAGE_ENTER, "item", base + 3000, derived),
        Event("exposure", "item", base + 3000, {"item": "i2"}),
        Event(PAGE_EXIT, "item", base + 3000, derived),  # a silence
        Event(PAGE_ENTER, "item", base + 120_000, derived),
        Event("exposure", "item", base + 120_000, {"item": "i3"}),
        Event(PAGE_EXIT, "item", base + 120_000, derived),  # the log's end
    ]
    assert sum(log.skipped.values()) == 0
    assert [record.line for record in log.records()] == [2, 3, 5, 5, 5, 6, 6, 6, 7, 7, 7, 0]


def test_a_stray_quote_loses_only_its_line(tmp_path: pathlib.Path) -> None:
    mapping = EventMapping(whole=True, stream=(), time_format=EventTime(["s"]))
    path = tmp_path / "log.csv"
    path.write_text(
        'event_id,page_id,ts_ms\nclick,"p,1\n' + "".join(f"click,p,{ts}\n" for ts in range(2, 300)) + "a,b\n"
    )
    log = EventLog(path, mapping)
    assert [event.ts_ms for _, event in log] == [ts * 1000 for ts in range(2, 300)]
    assert [(report.line, report.fault) for report in log.reports] == [(2, Fault.BROKEN), (301, Fault.BROKEN)]


def test_lines_out_of_order_are_sorted_within_the_window(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "log.jsonl", *[plain_event(ts) for ts in (3, 1, 2, 6, 5, 4, 0)])
    log = EventLog(path, EventMapping(sort_window=3))
    assert [event.ts_ms for _, event in log] == [1, 2, 3, 4, 5, 6]
    assert [(report.line, report.fault) for report in log.reports] == [(7, Fault.OUT_OF_ORDER)]


def test_streams_are_parted_and_positions_stay(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "log.jsonl", *[plain_event(ts, stream="ab"[ts % 2]) for ts in range(6)])
    assert EventLog(path).stream_ids() == ["a", "b"]
    assert EventLog(path).stream_ids(limit=1) == ["a"]
    assert [position for position, _ in EventLog(path, streams={"b"})] == [1, 3, 5]
    assert [record.stream for record in EventLog(path).records(4)] == ["a", "b"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("uv"),
            st.sampled_from(["s1", "s2"]),
            st.sampled_from(["", "p", "q"]),
            st.sampled_from([PAGE_ENTER, PAGE_EXIT, "click"]),
            st.integers(0, 90_000),
        ).filter(lambda line: line[2] or line[3] == "click"),
        max_size=40,
    )
)
def test_derived_visits_are_closed_and_of_one_page_at_a_time(lines: list[tuple[str, str, str, str, int]]) -> None:
    order = StreamOrder(derive=True, gap_s=60, max_streams=1)
    found: list[tuple[str, Event]] = []
    clock = {"u": 0, "v": 0}
    for stream, session, page, kind, wait_ms in lines:
        clock[stream] += wait_ms
        found += order.feed(Mapped(stream, session, "", Event(kind, page, clock[stream], {})))
    found += order.finish()
    assert sum(not event.contents for _, event in found) == len(lines)
    for stream in "uv":
        page, last_ms = "", 0
        for event in (event for name, event in found if name == stream):
            assert event.ts_ms >= last_ms
            last_ms = event.ts_ms
            if event.event_id == PAGE_ENTER:
                assert page == ""
                page = event.page_id
            else:
                assert event.page_id == page
                if event.event_id == PAGE_EXIT:
                    assert page
                    page = ""
        assert page == ""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("not toml", "file"),
        ("[fields]\npage_id = 'p'\ntime = 't'", "fields.event_id"),
        ("[fields]\nevent_id = 3", "fields.event_id"),
        (SHOP + "[extra]", "extra"),
        (SHOP + "slack = 1", "pages.slack"),
        (SHOP.replace('"iso"', '"fast"'), "time.format"),
        (SHOP.replace("gap_s = 60", "gap_s = 0"), "pages.gap_s"),
        (SHOP.replace("derive = true", "derive = 1"), "pages.derive"),
        (SHOP.replace('open = "page_enter"', "open = 1"), "kinds.open"),
        (SHOP + "[order]\nsort_window = 10000000", "order.sort_window"),
        ("kinds = 1", "kinds"),
    ],
)
def test_a_bad_mapping_names_its_key(tmp_path: pathlib.Path, text: str, where: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(MappingError, match=r"bad\.toml") as caught:
        EventMapping.load(path)
    assert caught.value.where == where


def test_a_log_that_cannot_be_read_says_why(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EventLogError, match="does not exist or is not a file"):
        EventLog(tmp_path / "none.jsonl")
    with pytest.raises(EventLogError, match=r"must end in \.jsonl"):
        EventLog(write(tmp_path / "log.parquet"))
    with pytest.raises(EventLogError, match="needs a mapping"):
        EventLog(write(tmp_path / "log.csv", b"a,b\n"))
    with pytest.raises(MappingError, match="No such file"):
        EventLog(tmp_path / "log.csv", tmp_path / "none.toml")
    mapping = tmp_path / "shop.toml"
    mapping.write_text(SHOP)
    with pytest.raises(EventLogError, match="no column page, which the mapping names for page_id"):
        list(EventLog(write(tmp_path / "log.csv", b"kind,at,who\n"), mapping))


@pytest.mark.parametrize(
    ("name", "mapping", "lines", "events", "visits", "late", "streams"),
    [
        ("shop_app_events_a.jsonl.gz", "shop_app_events", 5884, 7175, 1284, 0, 49),
        *at_night(("web_shop_hits_a.csv.gz", "web_shop_hits", 12325, 22834, 10548, 0, 465)),
        ("snowplow_ecommerce_events.csv", "snowplow_ecommerce", 835, 1714, 440, 0, 61),
    ],
)
def test_real_logs_play_with_the_mappings_that_are_shipped(
    name: str, mapping: str, lines: int, events: int, visits: int, late: int, streams: int
) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"the real log {name} is not at {DATA}")
    log = EventLog(DATA / name, MAPPINGS / f"{mapping}.toml")
    records = list(log.records())
    assert (log.lines, log.events) == (lines, events)
    assert log.skipped == {Fault.BROKEN: 0, Fault.OUT_OF_ORDER: late, Fault.DUPLICATE: 0, Fault.ENORMOUS: 0}
    assert [record.position for record in records] == list(range(events))
    kinds = collections.Counter(record.event.event_id for record in records)
    assert kinds[PAGE_ENTER] == kinds[PAGE_EXIT] == visits
    assert kinds["click"] > 50
    assert len({record.stream for record in records}) == streams
    open_pages: dict[str, str] = {}
    latest: dict[str, int] = {}
    for record in records:
        event = record.event
        assert event.ts_ms >= latest.get(record.stream, 0)
        latest[record.stream] = event.ts_ms
        if event.event_id == PAGE_ENTER:
            assert record.stream not in open_pages
            open_pages[record.stream] = event.page_id
        elif event.event_id == PAGE_EXIT:
            assert open_pages.pop(record.stream) == event.page_id
    assert open_pages == {}


def test_contents_get_our_names_and_actions(tmp_path: pathlib.Path) -> None:
    mapping = tmp_path / "m.toml"
    mapping.write_text(
        '[fields]\nevent_id = "kind"\npage_id = "page"\ntime = "at"\n'
        '[lists]\nitems = "first"\n[kinds]\nbuy = "click"\n'
        '[contents]\nkeep = ["note"]\nnames = { item_id = ["sku", "items.id"], absent = "nothing" }\n'
        'actions = { buy = "purchase" }\n'
    )
    line = {"kind": "buy", "page": "p", "at": 5, "note": "n", "sku": "", "items": [{"id": "7"}, {"id": "8"}]}
    path = write(tmp_path / "log.jsonl", line, {**line, "kind": "look", "at": 6, "sku": "9"})
    assert [event for _, event in EventLog(path, mapping)] == [
        Event("click", "p", 5, {"note": "n", "item_id": "7", "action": "purchase"}),
        Event("look", "p", 6, {"note": "n", "item_id": "9"}),
    ]


@pytest.mark.parametrize(
    ("text", "where"), [("names = { a = 3 }", "contents.names.a"), ("actions = { a = 3 }", "contents.actions.a")]
)
def test_wrong_names_and_actions_are_named(tmp_path: pathlib.Path, text: str, where: str) -> None:
    mapping = tmp_path / "m.toml"
    mapping.write_text(f'[fields]\nevent_id = "kind"\npage_id = "page"\ntime = "at"\n[contents]\n{text}\n')
    with pytest.raises(MappingError) as caught:
        EventMapping.load(mapping)
    assert caught.value.where == where


# --- lists of events, times, pages, windows ---------------------------------------------------------------------------

SESSION = {"session": 1, "events": [{"aid": 7, "ts": 10, "type": "clicks"}, {"aid": 7, "ts": 10, "type": "clicks"}]}
NESTED = '[fields]\nevent_id = "events.type"\npage_id = "events.aid"\ntime = "events.ts"\nstream = "session"\n'


def mapped(tmp_path: pathlib.Path, text: str, *lines: object) -> EventLog:
    (tmp_path / "m.toml").write_text(text)
    return EventLog(write(tmp_path / "log.jsonl", *lines), tmp_path / "m.toml")


def test_a_list_of_events_is_read_whole_or_refused(tmp_path: pathlib.Path) -> None:
    log = mapped(tmp_path, NESTED, SESSION)
    assert list(log) == []
    assert 'is a list of 2; the mapping must say in [lists]: "events" = "each" or "first"' in log.skipped_text()
    log = mapped(tmp_path, NESTED + '[lists]\nevents = "each"\n[contents]\nkeep = ["events.type"]', SESSION)
    assert [event for _, event in log] == [Event("clicks", "7", 10, {"events.type": "clicks"})] * 2  # equal, both kept
    assert [record.line for record in log.records()] == [1, 1]
    assert log.skipped_text() == ""
    assert len(list(mapped(tmp_path, NESTED + '[lists]\nevents = "first"', SESSION))) == 1
    assert len(list(mapped(tmp_path, NESTED, {**SESSION, "events": SESSION["events"][:1]}))) == 1  # type: ignore[index]


def test_a_bad_event_of_a_list_does_not_cost_the_others(tmp_path: pathlib.Path) -> None:
    line = {**SESSION, "events": [{"aid": 1, "ts": "no", "type": "clicks"}, {"aid": 2, "ts": 5, "type": "clicks"}]}
    log = mapped(tmp_path, NESTED + '[lists]\nevents = "each"', line, {**SESSION, "events": 3}, {"session": 1})
    assert [event.page_id for _, event in log] == ["2"]
    assert [(report.line, report.reason) for report in log.reports] == [
        (1, "ts_ms: 'no' is not a time in the format 'ms'"),
        (2, "events: is int; the mapping's [lists] names it as a list of events"),
        (3, "events: is missing; the mapping's [lists] names it as a list of events"),
    ]


def test_a_list_within_objects_is_read(tmp_path: pathlib.Path) -> None:
    text = NESTED.replace("events.", "batch.events.") + '[lists]\n"batch.events" = "each"'
    log = mapped(tmp_path, text, {"session": 1, "batch": [{"events": SESSION["events"]}]})
    assert len(list(log)) == 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[lists]\nevents = "all"', "lists.events"),
        ('[lists]\na = "each"\nb = "each"', "lists"),
        ('[time]\nformat = "unix"', "time.format"),
        ("[time]\nformat = []", "time.format"),
        ('[order]\nsort_window = "all"', "order.sort_window"),
        ("[order]\nsort_window = true", "order.sort_window"),
    ],
)
def test_a_wrong_value_of_a_mapping_is_named(tmp_path: pathlib.Path, text: str, where: str) -> None:
    with pytest.raises(MappingError) as caught:
        mapped(tmp_path, NESTED + text)
    assert caught.value.where == where


def test_a_log_without_pages_has_events_of_no_page(tmp_path: pathlib.Path) -> None:
    text = '[fields]\nevent_id = "clicked"\ntime = "timestamp"\nstream = "user"\n[time]\nformat = "iso"\n'
    (tmp_path / "m.toml").write_text(text)
    path = write(tmp_path / "log.csv", b"timestamp,item,clicked,user\n2026-01-01 00:00:00+00:00,5,1,u1\n")
    ((_, event),) = EventLog(path, tmp_path / "m.toml")
    assert (event.event_id, event.page_id, event.ts_ms) == ("1", "", 1_767_225_600_000)


def test_an_automatic_window_keeps_what_any_window_could(tmp_path: pathlib.Path) -> None:
    rng = random.Random(7)
    times = {stream: sorted(rng.randrange(10_000) for _ in range(300)) for stream in "abc"}
    lines = [
        plain_event(times[stream][place], stream=stream, id=f"{stream}{place}")
        for place in range(300)
        for stream in "abc"
    ]
    shuffled = [line for _, line in sorted(enumerate(lines), key=lambda pair: pair[0] + rng.uniform(0, 40))]
    path = write(tmp_path / "log.jsonl", *shuffled)
    unsorted = EventLog(path)
    kept = len(list(unsorted))
    assert kept < 900
    needed = int(unsorted.skipped_text().partition("sort_window = ")[2].split()[0])
    assert len(list(EventLog(path, EventMapping(sort_window=needed)))) == 900
    assert len(list(EventLog(path, EventMapping(sort_window=needed - 1)))) < 900
    automatic = EventLog(path, EventMapping(sort_window=None))
    assert len(list(automatic)) == 900
    assert automatic.skipped_text() == ""


def test_a_log_beyond_every_window_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_SORT_WINDOW", 10)
    times = [5, 100, *range(101, 140), 50]
    path = write(tmp_path / "log.jsonl", *[plain_event(ts) for ts in times])
    log = EventLog(path, EventMapping(sort_window=None))
    assert len(list(log)) == len(times) - 1
    assert "more than 10 events out of their order: sort the file by time" in log.skipped_text()


@pytest.mark.parametrize("case", ["iso_with_utc.csv", "sessions_in_a_line.jsonl", "exposures_without_page.csv"])
def test_logs_that_could_not_be_read(tmp_path: pathlib.Path, case: str) -> None:
    path = ROOT.parent / "shared" / "cases" / "pipeline" / case
    if not path.exists():
        pytest.skip(f"the case {case} is not at {path.parent}")
    texts = {
        "iso_with_utc.csv": "",
        "sessions_in_a_line.jsonl": '[fields]\nevent_id = "events.type"\ntime = "events.ts"\npage_id = "events.item"\n'
        'stream = "session"\n[lists]\nevents = "each"\n',
        "exposures_without_page.csv": '[fields]\nevent_id = "clicked"\ntime = "timestamp"\nstream = "user"\n'
        '[time]\nformat = "iso"\n',
    }
    mapping = path.with_suffix(".toml")
    if texts[case]:
        mapping = tmp_path / "m.toml"
        mapping.write_text(texts[case])
    log = EventLog(path, mapping)
    assert len(list(log)) == (1 if case.startswith("exposures") else 2)
    assert log.skipped_text() == ""


def test_the_mappings_of_the_reference_page_can_be_used(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs" / "reference" / "event-log.md").read_text()
    texts = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    shop = {"event_type": "screen_view", "url": "a", "timestamp": "2026-01-01 00:00:00 UTC", "user_id": "u"}
    nested = {"session": 1, "events": [{"type": "clicks", "aid": 7, "ts": 5}, {"type": "orders", "aid": 7, "ts": 6}]}
    counts = []
    for text, line in zip(texts, (shop, nested), strict=True):
        log = mapped(tmp_path, text, line)
        counts.append([event.event_id for _, event in log])
        assert log.skipped_text() == ""
    assert counts == [[PAGE_ENTER, PAGE_EXIT], ["clicks", "orders"]]


def test_the_reference_page_has_every_key_of_a_mapping() -> None:
    page = (ROOT / "docs" / "reference" / "event-log.md").read_text()
    fields = {field.name for field in dataclasses.fields(EventMapping)}
    keys = set(re.findall(r"^\| `(?:\w+\.)?(\w+)", page, re.MULTILINE))
    ours = {"format": "time_format", "json": "json_fields", "derive": "derive_pages", "lists": "each"}
    assert {ours.get(key, key) for key in keys} == fields - {"whole", "firsts"}
