"""A batch of live events in JSON with some that cannot be read: those are recorded, the others are read."""

import json
import pathlib
import random

import pytest

from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_batch import MAX_TEXT_CHARS, read_batch
from walle.pipeline.events.event_log import EventLog
from walle.pipeline.events.rejected_events import MAX_BYTES, MAX_OF_CALL, RejectedEvents, recorded

CASE = pathlib.Path(__file__).parents[4] / "shared/cases/pipeline/cut_emoji.jsonl"


def event(number: int, contents: str = "{}") -> bytes:
    return b'{"event_id": "e", "page_id": "", "ts_ms": %d, "contents": %s}' % (number, contents.encode())


BAD = {
    "large integer": (event(9, '{"n": 18446744073709551616}'), "an integer needs more than 64 bits; send it as text"),
    "no number": (event(9, '{"n": NaN}'), "this is not JSON"),
    "no object": (b"7", "event: must be an object"),
    "no fields": (b"{}", "event_id: is missing"),
    "wrong time": (b'{"event_id": "e", "page_id": "", "ts_ms": -1, "contents": {}}', "ts_ms: is not milliseconds"),
    "empty id": (b'{"event_id": "", "page_id": "", "ts_ms": 1, "contents": {}}', "event_id: is empty"),
    "not UTF-8": (event(9, '{"n": "_"}').replace(b"_", b"\xff"), "not UTF-8"),
    "braces in a text": (event(9, '{"n": "}]{[,", "m": }'), ""),
    "escapes": (event(9, '{"n": "\\\\\\"}", "m": \\x}'), ""),
    "too large": (event(9, json.dumps({"n": "x" * 300_000})), "event: 300"),
    "an element within": (b"[" + event(9) + b"]", "event: must be an object"),
}


@pytest.mark.parametrize("form", ["lines", "list", "pretty"])
@pytest.mark.parametrize("name", BAD)
def test_one_event_that_cannot_be_read_costs_no_other(form: str, name: str) -> None:
    bad, reason = BAD[name]
    good = [event(number, '{"a": {"b": [1, {"c": "d"}]}}') for number in range(4)]
    if form == "pretty":
        good = [json.dumps(json.loads(one), indent=1).encode() for one in good]
    parts = [*good[:2], bad, *good[2:]]
    batch = b" [\n" + b" ,\n".join(parts) + b"]\n" if form == "list" else b"\n".join(parts)
    found = read_batch(batch)
    assert [one.ts_ms for one in found.events] == [0, 1, 2, 3]
    assert found.events[3].contents == {"a": {"b": [1, {"c": "d"}]}}
    (rejected,) = found.rejected
    assert rejected.number == 2
    assert batch.find(bad) <= rejected.byte < batch.find(bad) + len(bad)
    assert reason in rejected.reason
    assert rejected.size_bytes == len(bad)
    assert rejected.text == bad.decode(errors="replace")[:MAX_TEXT_CHARS]


@pytest.mark.parametrize(
    "cut",
    [
        b'{"event_id": "e", "page_id": "", "ts_ms": 9, "contents": {',
        b'{"event_id": "e", "page_id": "", "ts_ms": 9, "contents": {"n": "te',
        b'{"event_id": "e", "page_id": "", "ts_ms": 9, "contents": {}}}',
        b"}",
        b"]",
        b'"',
        b"{",
    ],
)
def test_a_cut_line_costs_no_other(cut: bytes) -> None:
    for place in range(4):
        lines = [event(0), event(1), event(2)]
        lines.insert(place, cut)
        found = read_batch((b"" if place else b"{}\n") + b"\n".join(lines))
        extra = 1 if cut.endswith(b"}}}") else 0  # the event is whole, and a brace follows
        assert [one.ts_ms for one in found.events if one.ts_ms < 9] == [0, 1, 2]
        assert len(found.events) == 3 + extra
        assert len(found.rejected) == 1 + (not place)


def test_a_list_without_its_end_gives_the_events_before_it() -> None:
    found = read_batch(b"[" + event(0) + b"," + event(1) + b",{" + event(2))
    assert [one.ts_ms for one in found.events] == [0, 1]
    assert [(one.number, one.text[:2]) for one in found.rejected] == [(2, "{{")]
    found = read_batch(b"[" + event(0) + b"," + event(1))
    assert [one.ts_ms for one in found.events] == [0, 1]
    assert found.rejected == []  # nothing is missing but the bracket
    assert [one.text for one in read_batch(b"[" + event(0) + b"] more").rejected] == ["more"]


@pytest.mark.parametrize("json_text", [b"hello", b"7", b'"text"', b"\xff", b"null"])
def test_json_that_is_not_a_list_of_events_is_refused(json_text: bytes) -> None:
    with pytest.raises(EventError):
        read_batch(json_text)


def test_damaged_batches_lose_no_event_on_another_line() -> None:
    rng = random.Random(7)
    lines = [event(number, json.dumps({"t": "a{b}[\\n]\\u00e9"})) for number in range(6)]
    for _ in range(2_000):
        damaged, index = list(lines), rng.randrange(6)
        line = bytearray(damaged[index])
        for _ in range(rng.randrange(1, 4)):
            line[rng.randrange(len(line))] = rng.choice(b'{}[]",:\\ux0 ')
        damaged[index] = bytes(line)
        times = [one.ts_ms for one in read_batch(b"\n".join(damaged)).events] if line[0] in b"{[" or index else None
        if times is not None and not (index == 0 and line[0] != ord("{")):
            assert set(range(6)) - {index} <= set(times), damaged


def test_indented_lines_are_found_behind_one_that_is_cut() -> None:
    found = read_batch(b"\n".join([b"  " + event(0), b'  {"event_id": "e", ', b"  " + event(1), b"\t" + event(2)]))
    assert [one.ts_ms for one in found.events] == [0, 1, 2]
    assert len(found.rejected) == 1


def test_a_large_damaged_batch_is_read_in_linear_time() -> None:
    found = read_batch(event(0) + b"\n" + b"{\n" * 20_000 + event(1))
    assert (len(found.events), len(found.rejected)) == (2, 20_000)


# --- the meaning of texts and numbers ---------------------------------------------------------------------------------


def test_a_cut_emoji_becomes_the_replacement_character_live_and_in_a_log(tmp_path: pathlib.Path) -> None:
    texts = {r"abc\ud83d": "abc\ufffd", r"\udE00x": "\ufffdx", r"\ud83d\ud83d\ude00": "\ufffd\U0001f600"}
    for written, expected in texts.items():
        line = event(1, f'{{"text": "{written}", "{written}": [1]}}')
        (live,) = read_batch(line).events
        (tmp_path / "log.jsonl").write_bytes(line)
        ((_, logged),) = EventLog(tmp_path / "log.jsonl")
        assert live.contents == logged.contents == {"text": expected, expected: [1]}
        assert Event.list_from_json(line)[0].encode() == live.encode()
    with pytest.raises(EventError, match="contents"):
        Event("e", "", 1, {"text": "abc\ud83d"}).encode()


@pytest.mark.skipif(not CASE.exists(), reason="../shared/cases is not beside this checkout")
def test_the_case_of_a_cut_emoji_gives_all_its_events() -> None:
    found = read_batch(CASE.read_bytes())
    assert [one.event_id for one in found.events] == ["page_enter", "search", "page_exit"]
    assert found.rejected == []


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_record_is_bounded_and_readable(tmp_path: pathlib.Path) -> None:
    log = RejectedEvents(tmp_path)
    bad = event(9, json.dumps({"n": 1 << 64, "t": "\u00e9" * 4_000}, ensure_ascii=False))
    rejected = read_batch(b"\n".join([bad] * (MAX_OF_CALL + 5))).rejected
    for time_s in range(20):
        log.add(rejected, float(time_s))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * MAX_BYTES
    assert log.count == 20 * (MAX_OF_CALL + 5)
    rows = list(recorded(tmp_path))
    assert rows[-1] == {"time_ms": 19_000, "more": 5}
    assert rows[-2]["where"].startswith(f"event {MAX_OF_CALL - 1}, byte ")
    assert rows[-2]["reason"] == "an integer needs more than 64 bits; send it as text"
    assert len(rows[-2]["text"]) == MAX_TEXT_CHARS
    (tmp_path / "rejected.jsonl").write_bytes(b'{"time_ms": 1, "where": "event 0"}\n{"time_ms": 2, "wh')
    assert list(recorded(tmp_path))[-1] == {"time_ms": 1, "where": "event 0"}


def test_a_record_that_cannot_be_written_is_logged_and_counts(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RejectedEvents(tmp_path / "nowhere")
    log.add(read_batch(b"{}").rejected, 0.0)
    assert log.count == 1
    assert "cannot be written" in caplog.text
