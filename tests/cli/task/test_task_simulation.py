"""`walle task simulate`: what it shows of a task's runs, and that it needs no package of a cloud."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.program import run_main
from walle import cv, np
from walle.cli.task.simulation import _USERS, _json_bytes, _json_of, own_events
from walle.cloud.simulation.simulation import DEFAULT_USERS

# The packages of walle[cloud], and NumPy.
REFUSED = (
    "aiofastnet dulwich fastapi jinja2 matplotlib numpy onnx packaging prometheus_client ray sse_starlette"
    " starlette uvicorn asyncpg"
)
PROGRAM = f"""
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED.split()!r}:
            raise ModuleNotFoundError(f"refused: {{name}}", name=name)

sys.meta_path.insert(0, Refusing())
from walle.cli import main
main()
"""
CONFIG = (
    '[task]\nname = "small"\n[trigger]\nsequence = ["page_exit"]\n[simulation]\nevents = "simulation/events.jsonl"\n'
)
MAIN = """\
import walle.np as np

def preprocess(ctx, trigger):
    return trigger["event"]["contents"]["n"]

def execute(ctx, n):
    if n == 2:
        raise KeyError(n)
    ctx.store.put("side", [n, np.arange(n)])
    return {"n": n, "values": np.arange(n), "raw": b"xyz"}
"""


def event(event_id: str, n: int, ts_ms: int) -> str:
    return json.dumps({"event_id": event_id, "page_id": f"page/{n}", "ts_ms": ts_ms, "contents": {"n": n}}) + "\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    (folder / "simulation").mkdir(parents=True)
    (folder / "task.toml").write_text(CONFIG)
    (folder / "main.py").write_text(MAIN)
    lines = [event(kind, n, 10 * n + at) for n in range(4) for at, kind in enumerate(("page_enter", "page_exit"))]
    lines.insert(3, '{"event_id": "page_\n')
    lines.append(lines[0])  # a duplicate
    (folder / "simulation" / "events.jsonl").write_text("".join(lines))
    return folder


def simulate(task: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    return run_main("task", "simulate", str(task), *args, COLUMNS="200", NO_COLOR="1")


def test_it_needs_no_package_of_a_cloud_and_reports_everything(task: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "task", "simulate", str(task), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr  # a run failed
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["events"], report["runs"], report["failures"]) == (8, 8, 2)
    assert (report["skipped_lines"], report["skipped"]) == (2, {"broken": 1, "duplicate": 1})
    assert [(one["line"], one["fault"]) for one in report["skipped_reports"]] == [(4, "broken"), (10, "duplicate")]
    assert (report["refused_events"], report["stopped_early"], report["dropped_results"]) == ([], False, 0)
    low = [one for one in report["results"] if one["device"] == "simulated-low"]
    assert [(one["event"], one["line"], one["page_id"], one["ok"]) for one in low] == [
        (1, 2, "page/0", True),
        (3, 5, "page/1", True),
        (5, 7, "page/2", False),
        (7, 9, "page/3", True),
    ]
    assert low[3]["output"] == {"n": 3, "values": [0, 1, 2], "raw": "<3 bytes>"}
    assert low[3]["puts"] == [["local/small/side", [3, [0, 1, 2]]]]
    assert (low[2]["error_type"], low[2]["place"]) == ("KeyError", "local/small/v1/main.py:8 in execute")
    assert low[2]["traceback"].startswith('Traceback (most recent call last):\n  File "local/small/v1/main.py", line 8')
    assert report["phases"].keys() == {"preprocess", "execute"}
    for times in report["phases"].values():
        assert times["runs"] == 6
        assert 0 < times["p50_ms"] <= times["p99_ms"] <= times["max_ms"] < report["took_ms"]


def test_it_shows_outputs_where_asked(task: Path) -> None:
    (task / "main.py").write_text(MAIN.replace("n == 2", "False"))
    shown = simulate(task, "--show")
    assert shown.returncode == 0, shown.stderr
    path = task / "simulation" / "events.jsonl"
    at = f"event 7, line 9 of {path} (page_exit page/3, simulated-high)"
    output, put = '{"n": 3, "values": [0, 1, 2], "raw": "<3 bytes>"}', "put local/small/side: [3, [0, 1, 2]]"
    assert f"{at} → {output}\n    {put}\n" in shown.stdout
    assert "2 lines of" in shown.stdout
    assert "→" not in simulate(task).stdout


@pytest.mark.night
def test_outputs_beyond_the_reports_room_are_left_out_and_counted(task: Path) -> None:
    main = "import walle.np as np\ndef execute(ctx, trigger):\n    return np.zeros(250_000)\n"  # 5 MB as JSON, about
    (task / "main.py").write_text(main)
    done = simulate(task, "--json")
    report = json.loads(done.stdout)
    kept = [one for one in report["results"] if "output" in one]
    left_out = [one for one in report["results"] if "left_out_bytes" in one]
    assert (len(kept), len(left_out), report["left_out_outputs"]) == (3, 5, 5)
    assert kept[0]["output"] == [0.0] * 250_000
    assert report["left_out_bytes"] == sum(one["left_out_bytes"] for one in left_out) == 5 * 5_000_002
    assert len(done.stdout) < 17 << 20
    shown = simulate(task, "--show").stdout
    assert shown.count("→ (left out: about 5000002 bytes as JSON)") == 5
    assert "5 outputs of about 25.0 MB as JSON were left out: the report has room for 16 MB" in shown


@pytest.mark.parametrize(
    "value",
    [None, True, 5, -(10**40), 0.1, float("nan"), "text", b"bytes", [1, [2.5, None]], {"a": {"b": (1, 2)}}, [[[[]]]]],
)
def test_the_size_of_an_output_as_json_is_not_underestimated_by_much(value: Any) -> None:
    assert len(json.dumps(_json_of(value))) <= _json_bytes(value) + 8


def test_it_plays_as_many_users_as_the_cloud_does() -> None:
    assert _USERS == DEFAULT_USERS


def test_wrong_use_ends_with_status_2_and_a_failure_with_1(task: Path) -> None:
    assert simulate(task, "--limit", "0").returncode == 2
    assert simulate(task / "missing").returncode == 1


def test_an_event_that_a_device_refuses_is_named(task: Path) -> None:
    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    line = {"event_id": "page_enter", "page_id": "deep", "ts_ms": 99, "contents": {"n": nested}}
    with (task / "simulation" / "events.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    report = json.loads(simulate(task, "--json").stdout)
    assert [one["line"] for one in report["skipped_reports"]] == [4, 10, 11]
    assert "is nested deeper than" in report["skipped_reports"][2]["reason"]


def test_a_tasks_own_events_keep_their_order_and_lines(tmp_path: Path) -> None:
    lines = [event("a", 1, 1), "x\n", event("b", 2, 2)]
    played = own_events(tmp_path / "events.txt", "".join(lines).encode())
    assert (played.lines, played.data, dict(played.skipped)) == ((1, 3), "".join(lines).encode(), {"broken": 1})


def test_events_may_name_images_beside_the_log(task: Path) -> None:
    (task / "task.toml").write_text(CONFIG.replace("page_exit", "frame"))
    (task / "main.py").write_text(
        "def execute(ctx, trigger):\n    return trigger['event']['contents']['image'][1, 2].tolist()\n"
    )
    image = np.zeros((4, 4, 3), "uint8")
    image[1, 2] = np.asarray([1, 2, 3], "uint8")
    (task / "simulation" / "one.png").write_bytes(bytes(memoryview(cv.imencode(".png", image)[1])))
    lines = [
        {"event_id": "frame", "page_id": "", "ts_ms": number, "contents": {"image": {"$image": name}}}
        for number, name in enumerate(("one.png", "two.png", "../main.py"))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (task / "simulation" / "events.jsonl").write_text(text)
    other = task.parent / "log" / "log.jsonl"
    other.parent.mkdir()
    (other.parent / "two.png").write_bytes((task / "simulation" / "one.png").read_bytes())
    other.write_text(text)
    for arguments, played in (((), 0), (("--events", str(other)), 1)):
        report = json.loads(simulate(task, "--json", *arguments).stdout)
        assert [(one["line"], one["output"]) for one in report["results"]] == [(played + 1, [1, 2, 3])] * 2
        missing = 1 - played
        assert [one["line"] for one in report["refused_events"]] == [missing + 1, 3]
        assert "contents.image: file" in report["refused_events"][0]["reason"]
        assert "is not a path below the folder" in report["refused_events"][1]["reason"]
    shown = simulate(task).stdout
    assert "line 2 was not played, a device refuses it: contents.image: file 'two.png' does not exist" in shown


def test_it_plays_on_the_device_that_is_named(task: Path) -> None:
    (task / "main.py").write_text(
        "def execute(ctx, trigger):\n    return [ctx.device['app_version'], ctx.device['os']]\n"
    )
    done = simulate(task, "--app-version", "10.1", "--os", "harmony", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {one["device"] for one in report["results"]} == {"simulated-10.1-harmony"}
    assert report["results"][0]["output"] == ["10.1", "harmony"]


TIMED = """\
def execute(ctx, trigger):
    print(trigger["event"]["event_id"])
    return [trigger["event"]["event_id"], trigger["event"]["ts_ms"]]
"""


@pytest.fixture
def timed_task(task: Path) -> Path:
    """Return a task with a timer of a page, and the events of two users, one after the other in the log."""
    (task / "main.py").write_text(TIMED)
    (task / "task.toml").write_text(CONFIG.replace('sequence = ["page_exit"]', "idle_s = 60"))
    lines = []
    for user in ("ann", "ben"):
        for at_ms, page in ((0, "p"), (10_000, "q")):
            fields = {"stream": user, "event_id": "page_enter", "page_id": page, "ts_ms": 1_000_000 + at_ms}
            lines.append(json.dumps({**fields, "contents": {}}) + "\n")
    (task / "simulation" / "events.jsonl").write_text("".join(lines))
    return task


def test_a_timer_after_the_last_event_has_no_line_of_another_users_event(timed_task: Path) -> None:
    report = json.loads(simulate(timed_task, "--json").stdout)
    low = [one for one in report["results"] if one["device"].startswith("simulated-low")]
    assert [(one["user"], one["event"], one["line"], one["page_id"]) for one in low] == [
        (user, None, 0, page) for user in ("ann", "ben") for page in ("p", "q")
    ]
    assert {(one["event"], one["line"]) for one in report["log"]} == {(None, None)}
    shown = simulate(timed_task, "--show").stdout
    assert "after the last event of" in shown
    assert "line" not in shown.replace("events.jsonl", "")


def test_a_timer_that_fails_after_the_last_event_names_no_event(timed_task: Path) -> None:
    (timed_task / "main.py").write_text("def execute(ctx, trigger):\n    raise KeyError(1)\n")
    (fault,) = json.loads(simulate(timed_task, "--json").stdout)["faults"]
    assert (fault["event"]["event_id"], fault["event"]["position"], fault["event"]["line"]) == ("@idle", None, 0)
    assert "first at a timer after the last event of" in simulate(timed_task).stdout


@pytest.mark.parametrize(
    ("until", "pages", "timers"),
    [("+30s", [], 2), ("+55s", ["p"], 1), ("1065000", ["p"], 1), ("1970-01-01T00:17:50+00:00", ["p", "q"], 0)],
)
def test_time_passes_until_the_moment_that_is_asked_for(
    timed_task: Path, until: str, pages: list[str], timers: int
) -> None:
    done = simulate(timed_task, "--json", "--until", until)
    report = json.loads(done.stdout)
    found = [one["page_id"] for one in report["results"] if one["device"] == "simulated-low-1"]
    assert (found, report["timers"]) == (pages, {"@idle": 2 * timers} if timers else {}), done.stderr
    if not pages:
        assert f"{2 * timers} timers were still running at the end ({2 * timers} @idle)" in report["first_error"]
    shown = simulate(timed_task, "--until", until).stdout
    assert (f"timers that were still running at the end: {2 * timers} @idle" in shown) is bool(timers)


def test_a_moment_that_cannot_be_is_refused(timed_task: Path) -> None:
    done = simulate(timed_task, "--until", "1005000")
    assert (done.returncode, "is before the last event of" in done.stderr) == (2, True)
    assert "ts_ms is 1010000" in done.stderr.replace("\n", " ")
    assert "cannot be read; write how long" in simulate(timed_task, "--until", "soon").stderr
    (timed_task / "task.toml").write_text(CONFIG)
    assert "has no timer that time could trigger" in simulate(timed_task, "--until", "+1h").stderr


def test_windows_close_at_the_end_and_evicted_events_are_counted(timed_task: Path) -> None:
    config = CONFIG.replace('sequence = ["page_exit"]', "window_s = 60\ngrace_s = 5")
    (timed_task / "task.toml").write_text(config)
    main = "def execute(ctx, trigger):\n    return [trigger['event']['contents'], len(ctx.events), ctx.visit]\n"
    (timed_task / "main.py").write_text(main)
    times = [900_000 + number for number in range(6)] + [965_000]
    lines = [{"event_id": "tap", "page_id": "", "ts_ms": ts_ms, "contents": {"text": "x" * 200_000}} for ts_ms in times]
    (timed_task / "simulation" / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    report = json.loads(simulate(timed_task, "--json").stdout)
    found = [one["output"] for one in report["results"] if one["device"] == "simulated-low"]
    assert found == [
        [{"start_ms": 900_000, "end_ms": 960_000, "evicted": 1}, 5, "cut"],
        [{"start_ms": 960_000, "end_ms": 1_020_000, "evicted": 0}, 1, "whole"],
    ]
    assert (report["window_evicted"], report["timers"]) == (1, {})
    assert "1 events were too many for their windows" in simulate(timed_task).stdout
