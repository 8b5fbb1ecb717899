"""The document of a stream's highlights, and its page."""

import html.parser
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from apps.livestream.document import Stream, document, highlights, write_document
from apps.livestream.page.page import clock, curve_path, script_json, write_page
from apps.livestream.seconds import SecondCounts


def second(number: int, score: float, *, label: str = "", decided: str = "device", **evidence: float) -> dict[str, Any]:
    return {
        "second": number,
        "pts_ms": number * 1000,
        "highlight": score >= 0.5,
        "score": score,
        "decided": decided,
        "why": "",
        "label": label,
        "evidence": evidence,
        "sent_bytes": 100 if decided == "cloud" else 0,
    }


def made(
    seconds: Sequence[dict[str, Any]],
    *,
    source: str = "talk.mp4",
    sound_s: float = 1.0,
    faults: tuple[str, ...] = (),
) -> dict[str, Any]:
    stream = Stream(source=source, duration_s=len(seconds), frames=2 * len(seconds), sound_s=sound_s, faults=faults)
    return document(stream, seconds, SecondCounts(answered={"item": 2}), made_by="a test", made_at="2026-11-23")


def test_neighbouring_seconds_join_across_a_gap_of_one() -> None:
    scores = [0.9, 0.1, 0.7, 0.1, 0.1, 0.6]
    seconds = [second(n, score, label="cup" if n == 2 else "") for n, score in enumerate(scores)]
    found = highlights(seconds)
    assert [(each["start"], each["end"], each["item"], each["score"]) for each in found] == [
        (0, 3, "cup", 0.9),
        (5, 6, "", 0.6),
    ]


def test_seconds_that_were_not_decided_are_a_gap() -> None:
    found = highlights([second(0, 0.9), second(7, 0.9)])
    assert [(each["start"], each["end"]) for each in found] == [(0, 1), (7, 8)]


def test_counts_add_up() -> None:
    seconds = [second(0, 0.9), second(1, 0.6, decided="cloud"), second(2, 0.4, decided="device alone")]
    counts = made(seconds)["counts"]
    assert (counts["by_device"], counts["by_cloud"], counts["alone"], counts["sent_bytes"]) == (2, 1, 1, 100)


def test_sent_bytes_are_counted_apart_from_those_that_gave_an_answer() -> None:
    seconds = [second(0, 0.9, decided="cloud")]
    for number, why in enumerate(("away", "away", "late", "full"), 1):
        seconds.append({**second(number, 0.6, decided="device alone"), "why": why, "sent_bytes": 10**number})
    counts = made(seconds)["counts"]
    assert counts["sent_bytes"] == 100 + 1_000 + 10_000  # nothing was sent while the cloud was away
    assert counts["answered_bytes"] == 100
    assert counts["unanswered"] == {"away": 2, "full": 1, "late": 1}


def test_frames_that_were_not_analysed_are_counted_by_reason() -> None:
    stream = Stream(
        source="talk.mp4", duration_s=10, frames=40, sound_s=1.0, unchanged=20, over_budget=5, budget=0.25,
        cpu_s={"item": 0.5, "face": 0.25},
    )  # fmt: skip
    counts = document(stream, [], SecondCounts(), made_by="a test", made_at="2026-11-23")["counts"]
    assert [counts[name] for name in ("frames", "analysed", "unchanged", "over_budget")] == [40, 15, 20, 5]
    assert (counts["budget"], counts["cpu_s"]) == (0.25, 0.75)
    assert [row["cpu_s"] for row in counts["tasks"]] == [0.5, 0.25, 0, 0]


def test_the_document_is_written_whole(tmp_path: Path) -> None:
    value = made([second(0, 0.9)])
    write_document(value, tmp_path / "highlights.json")
    assert json.loads((tmp_path / "highlights.json").read_text()) == value


class TestPage:
    def test_the_document_shows_everything_without_scripts(self, tmp_path: Path) -> None:
        value = made([second(0, 0.9, label="cup", held=0.8), second(1, 0.1)], faults=("ended at 2.0 s of 9.0 s",))
        page = write_page(value, tmp_path, video="talk.mp4").read_text()
        without = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        for text in (
            "1 highlight in 0:02",
            "0:00 to 0:01",
            "cup",
            "0.90",
            "decided on the device",
            "ended at 2.0 s of 9.0 s",
            '<video id="video"',
        ):
            assert text in without
        assert 'class="curve held"' in without
        assert "voice (none in this stream)" in without

    def test_a_hostile_name_stays_text(self, tmp_path: Path) -> None:
        hostile = "</script><script>alert(1)</script>"
        value = made([second(0, 0.9, label=hostile)], source=hostile)
        page = write_page(value, tmp_path).read_text()
        scripts: list[str] = []

        class Scripts(html.parser.HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                if tag == "script":
                    scripts.append(str(attrs))

        Scripts().feed(page)
        assert len(scripts) == 2
        assert "alert(1)</script>" not in page

    def test_the_document_fetches_nothing(self, tmp_path: Path) -> None:
        page = write_page(made([second(0, 0.9)]), tmp_path).read_text()
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)

    def test_the_evidence_of_palms_and_articles_is_shown_where_these_tasks_ran(self, tmp_path: Path) -> None:
        stream = Stream(source="talk.mp4", duration_s=2, frames=4, sound_s=1.0, cpu_s={"palm": 0.1, "article": 0.2})
        seconds = [second(0, 0.9, held=0.0, handled=0.25, shown=0.5, face=0.0, voice=0.0)]
        value = document(stream, seconds, SecondCounts(), made_by="a test", made_at="2026-11-23")
        assert [row["task"] for row in value["counts"]["tasks"]][-2:] == ["palm", "article"]
        page = write_page(value, tmp_path).read_text()
        assert "item near a palm" in page
        assert 'class="curve handled" d="M0.0 120.0H1000.0"' in page
        assert 'class="curve shown" d="M0.0 80.0H1000.0"' in page
        assert 'class="curve held"' not in page
        without = write_page(made(seconds), tmp_path).read_text()
        assert 'class="curve held"' in without
        assert 'class="curve shown"' not in without

    def test_a_stream_of_no_second(self, tmp_path: Path) -> None:
        assert "No second of this stream" in write_page(made([]), tmp_path).read_text()

    def test_seconds_that_were_not_decided_keep_their_place(self, tmp_path: Path) -> None:
        page = write_page(made([second(0, 0.1), second(3, 0.9)]), tmp_path).read_text()
        assert 'aria-valuemax="3"' in page
        assert '<rect class="highlight" x="750.0" width="250.0"' in page
        assert 'd="M0.0 144.0H250.0M750.0 16.0H1000.0"' in page
        assert json.loads(page.split('id="data">')[1].split("</script>")[0])["seconds"][1:3] == [None, None]

    def test_a_stream_without_sound_has_no_curve_of_voice(self, tmp_path: Path) -> None:
        seconds = [second(0, 0.1, voice=0.0, face=0.0), second(1, 0.9, voice=0.0, face=0.0)]
        page = write_page(made(seconds, sound_s=0.0), tmp_path).read_text()
        assert "voice (none in this stream)" in page
        assert "face (none in this stream)" not in page
        assert json.loads(page.split('id="data">')[1].split("</script>")[0])["seconds"][0]["evidence"]["voice"] is None

    def test_the_document_lists_frames_without_analysis_and_requests_without_an_answer(self, tmp_path: Path) -> None:
        stream = Stream(
            source="talk.mp4", duration_s=10, frames=4000, sound_s=1.0, unchanged=20, over_budget=5, budget=0.25
        )
        alone = {**second(0, 0.6, decided="device alone"), "why": "late", "sent_bytes": 1234}
        value = document(stream, [alone], SecondCounts(), made_by="a test", made_at="2026-11-23")
        page = " ".join(write_page(value, tmp_path).read_text().split())
        assert "Of 4,000 frames, 3,975 were analysed; 20 were not because nothing had changed" in page
        assert "5 because of the budget of 25 % of a core" in page
        assert "1,234 bytes of images went to the cloud, 0 of them were answered. Without an answer: 1 (late)." in page

    def test_a_curve_has_gaps_where_there_is_no_value(self) -> None:
        path = curve_path([second(0, 0.5, voice=1.0), second(1, 0.5), second(2, 0.5, voice=0.0)], "voice")
        assert path == "M0.0 0.0H333.33M666.67 160.0H1000.0"

    @pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (75.9, "1:15"), (3725, "1:02:05")])
    def test_seconds_are_shown_as_minutes_and_hours(self, seconds: float, shown: str) -> None:
        assert clock(seconds) == shown

    def test_script_json_round_trips(self) -> None:
        value = {"a": "</script>\u2028<!--"}
        assert "<" not in script_json(value)
        assert json.loads(script_json(value)) == value
