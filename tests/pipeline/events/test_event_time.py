"""Times of event logs: formats, and what is none."""

import re

import pytest

from walle.pipeline.events.event_time import EventTime, TimeFormatError


@pytest.mark.parametrize(
    ("formats", "text", "ts_ms"),
    [
        (["s"], "1700000000.25", 1_700_000_000_250),
        (["ms"], "1700000000250", 1_700_000_000_250),
        (["us"], "1700000000250999", 1_700_000_000_250),
        (["ns"], "1700000000250999999", 1_700_000_000_250),
        (["us"], "-1000", -1),
        (["iso"], "2026-01-01 00:00:05 UTC", 1_767_225_605_000),
        (["iso"], "2026-01-01T00:00:05.125Z", 1_767_225_605_125),
        (["iso"], "2026-01-01T05:30:05+05:30", 1_767_225_605_000),
        (["iso"], "2026-01-01T00:00:05", 1_767_225_605_000),
        (["%Y-%m-%d %H:%M:%S UTC"], "2026-01-01 00:00:05 UTC", 1_767_225_605_000),
        (["%d/%m/%Y %H:%M:%S %z"], "01/01/2026 02:00:05 +0200", 1_767_225_605_000),
        (["iso", "ms"], "1700000000250", 1_700_000_000_250),
        (["ms", "iso"], "2026-01-01 00:00:05 UTC", 1_767_225_605_000),
    ],
)
def test_a_time_is_read_in_the_first_format_that_fits(formats: list[str], text: str, ts_ms: int) -> None:
    assert EventTime(formats).read(text) == ts_ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "nan", "inf", "1e400"])
def test_a_text_that_is_not_a_time_names_every_format(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not a time in the format 'iso' or 's'")):
        EventTime(["iso", "s"]).read(text)


@pytest.mark.parametrize(
    ("name", "what"), [("unix", "is not s, ms"), ("%H:%M:%S", "has no year"), ("%Y-%q", "cannot be read by strptime")]
)
def test_a_format_that_is_none_is_refused(name: str, what: str) -> None:
    with pytest.raises(TimeFormatError, match=what):
        EventTime([name])
