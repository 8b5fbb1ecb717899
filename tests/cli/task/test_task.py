"""`walle task`: new, check and simulate."""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walle.cli import app
from walle.cli.task.folder import TaskFolderError
from walle.errors import WalleError

MAIN = """\
def execute(ctx, trigger):
    events = list(ctx.events)
    if any(event.contents.get("bad") for event in events):
        raise ValueError("a bad event")
    return len(events)
"""
CONFIG = '[task]\nname = "small"\n[trigger]\nsequence = ["page_exit"]\n'


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "task.toml").write_text(CONFIG)
    (folder / "main.py").write_text(MAIN)
    return folder


def run(*arguments: object) -> tuple[int, Any]:
    """Return the exit status and the JSON that a command prints; its errors are raised."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout) if result.stdout else None


def write_events(path: Path, *visits: tuple[str, bool]) -> Path:
    """Write a visit of two events for each (stream, bad), all visits at the same time."""
    lines = []
    for event_id, ts_ms in (("page_enter", 1000), ("page_exit", 2000)):
        for stream, bad in visits:
            event = {"event_id": event_id, "page_id": "item", "ts_ms": ts_ms, "contents": {"bad": bad}}
            lines.append(json.dumps({**event, "stream": stream}) + "\n")
    path.write_text("".join(lines))
    return path


def test_a_new_task_passes_check_and_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "dwell"
    status, report = run("task", "new", "dwell", "--folder", folder)
    assert (status, report["files"]) == (0, ["log.jsonl", "main.py", "simulation/events.jsonl", "task.toml"])
    status, report = run("task", "check", folder)
    assert (status, report["task"], report["sequence"]) == (0, "dwell", ["page_exit"])
    status, report = run("task", "simulate", folder)
    assert (status, report["ok"], report["failures"], report["first_error"]) == (0, True, 0, "")
    assert report["runs"] == 3 * 2  # visits, on each of two kinds of device
    assert [line["text"] for line in report["log"][:3]] == [f"item/{number}: {number} clicks" for number in range(3)]
    status, report = run("task", "simulate", folder, "--events", folder / "log.jsonl")
    assert (status, report["runs"], report["failures"]) == (0, 400 * 2, 0)


def test_simulate_names_events_whose_page_was_never_entered(tmp_path: Path) -> None:
    run("task", "new", "dwell", "--folder", tmp_path / "dwell")
    log = tmp_path / "log.jsonl"
    log.write_text('{"event_id": "page_exit", "page_id": "item/7", "ts_ms": 1700000000000, "contents": {}}\n')
    status, report = run("task", "simulate", tmp_path / "dwell", "--events", log)
    assert (status, report["runs"], report["failures"]) == (1, 0, 1)
    assert "1 matched while their page had no open visit (`without_visit = true`" in report["first_error"]


def test_new_writes_over_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "dwell").mkdir()
    (tmp_path / "dwell" / "mine").write_text("kept")
    with pytest.raises(TaskFolderError, match="--folder"):
        run("task", "new", "dwell", "--folder", tmp_path / "dwell")
    assert [path.name for path in tmp_path.rglob("*")] == ["dwell", "mine"]


@pytest.mark.parametrize("name", ["Dwell", "../x", "", "a b"])
def test_new_refuses_what_cannot_be_a_name(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["task", "new", name, "--folder", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_check_says_what_travels(task: Path) -> None:
    (task / "resources").mkdir()
    (task / "resources" / "table.bin").write_bytes(bytes(1000))
    config = '[files]\n"resources/table.bin" = "shared"\n[reads]\ntopics = ["browse/clicks"]\n'
    (task / "task.toml").write_text(CONFIG + config)
    (task / "README.md").write_text("not sent")
    (task / ".git").mkdir()
    (task / ".git" / "config").write_text("not read")
    status, report = run("task", "check", task)
    assert status == 0
    assert report["files"].keys() == {"main.pyc", "resources/table.bin"}
    assert report["size_bytes"] == report["files"]["main.pyc"] + 1000
    text = CliRunner().invoke(app, ["task", "check", str(task)]).stdout
    assert "resources/table.bin" in text
    assert report["reads"] == ["browse/clicks"]
    assert "reads of other tasks: browse/clicks\n" in text
    assert "1,000 bytes" in text


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("main.py", "import math\nimport socket\n", "main.py:2:8: error: imports socket, which a task may not"),
        ("main.py", "def execute(ctx, x)\n", "main.py:1:20: error: does not compile"),
        (
            "task.toml",
            CONFIG + "[limits]\ndeadline = 5\n",
            "task.toml:6:1: error: [limits] has an unknown key 'deadline'",
        ),
        ("task.toml", "", "task.toml: error: [task] is missing"),
        (
            "task.toml",
            CONFIG + '[reads]\ntopics = ["a b"]\n',
            "task.toml:6:1: error: [reads] topics 'a b' is neither",
        ),
        ("resources/x", "", "task.toml: error: resources/x is not in [files]"),
    ],
)
def test_check_names_the_place_of_a_fault(task: Path, path: str, text: str, found: str) -> None:
    (task / path).parent.mkdir(exist_ok=True)
    (task / path).write_text(text)
    result = CliRunner().invoke(app, ["task", "check", str(task)])
    assert result.exit_code == 1
    assert any(line.startswith(f"{task}/{found}") for line in result.stdout.splitlines()), result.stdout


def test_check_lists_all_findings_as_json(task: Path) -> None:
    (task / "main.py").write_text("import numpy\n\n\ndef exectue(ctx, trigger):\n    return ctx.sesion('a')\n")
    (task / "task.toml").write_text(CONFIG + "[limit]\nqueue = 0\n[limits]\nqueue = 0\n")
    status, report = run("task", "check", task)
    assert (status, report["ok"]) == (1, False)
    assert [(one["file"], one["line"], one["column"], one["code"], one["level"]) for one in report["findings"]] == [
        ("task.toml", 5, 2, "unknown-key", "error"),
        ("task.toml", 8, 1, "config", "error"),
        ("main.py", 1, 8, "import", "error"),
        ("main.py", 4, 1, "phase-name", "error"),
        ("main.py", 5, 12, "ctx-attribute", "error"),
    ]
    text = CliRunner().invoke(app, ["task", "check", str(task)]).stdout
    assert text.splitlines()[-1] == "not good: 5 errors, 0 warnings"


def test_check_compares_the_condition_with_a_log(task: Path, tmp_path: Path) -> None:
    log = write_events(tmp_path / "log.jsonl", ("a", False))
    assert run("task", "check", task, "--events", log)[0] == 0
    (task / "task.toml").write_text(CONFIG.replace('"page_exit"', '"page_exti"'))
    status, report = run("task", "check", task, "--events", log)
    (finding,) = report["findings"]
    assert (status, finding["line"], finding["code"]) == (1, 4, "trigger-event")
    assert "'page_exti'; did you mean page_exit?" in finding["message"]
    status, report = run("task", "check", task)  # no log: other kinds of events than the basic ones may exist
    assert (status, report["findings"][0]["level"]) == (0, "warning")
    assert CliRunner().invoke(app, ["task", "check", str(task), "--mapping", "m.toml"]).exit_code == 2


def test_check_names_a_line_of_a_log_by_the_logs_own_path(task: Path, tmp_path: Path) -> None:
    log = write_events(tmp_path / "log.jsonl", ("a", False))
    log.write_text("{}\n" + log.read_text())
    text = CliRunner().invoke(app, ["task", "check", str(task), "--events", str(log)]).stdout
    assert f"{log}:1: warning: this line is skipped: event_id: is missing" in text.splitlines()[0]
    assert text.startswith(str(log))


def test_check_and_new_work_without_the_clouds_packages(tmp_path: Path) -> None:
    code = """
import sys

class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "starlette", "uvicorn", "ray", "dulwich", "numpy", "onnx",
                                      "packaging", "prometheus_client", "jinja2", "matplotlib", "sse_starlette"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse)
try:
    import fastapi
except ModuleNotFoundError:
    from walle.cli import main
    main()
"""
    for arguments in (["new", "dwell", "--folder", f"{tmp_path}/dwell"], ["check", f"{tmp_path}/dwell"]):
        command = [sys.executable, "-c", code, "task", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
    assert "good: dwell" in done.stdout


def test_check_refuses_links(task: Path) -> None:
    (task / "link.py").symlink_to("/etc/hostname")
    with pytest.raises(TaskFolderError, match=r"link\.py: is a symbolic link"):
        run("task", "check", task)


def test_simulate_fails_where_a_run_fails(task: Path, tmp_path: Path) -> None:
    log = write_events(tmp_path / "log.jsonl", ("a", False), ("b", True))
    status, report = run("task", "simulate", task, "--events", log)
    assert (status, report["ok"], report["runs"], report["failures"]) == (1, False, 4, 2)
    assert "a bad event" in report["first_error"]


def test_simulate_shows_what_the_task_logs_and_prints(task: Path, tmp_path: Path) -> None:
    (task / "main.py").write_text(
        "def execute(ctx, trigger):\n    ctx.log.warning('\\x1b[2J[red]seen')\n    print('printed')\n"
    )
    log = write_events(tmp_path / "log.jsonl", ("a", False))
    _, report = run("task", "simulate", task, "--events", log)
    seen = {"device": "simulated-low", "event": 1, "line": 2, "level": "warning", "text": r"\x1b[2J[red]seen"}
    assert report["log"][0] == seen
    assert report["log"][1] == {**seen, "level": "info", "text": "printed"}
    assert (len(report["log"]), report["dropped_log_lines"]) == (4, 0)
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--events", str(log)]).stdout
    assert "\x1b" not in text
    assert r"log: warning: \x1b[2J[red]seen (simulated-low, event 1, line 2)" in text
    assert "log: info: printed (simulated-high, event 1, line 2)" in text


def test_simulate_shows_the_largest_state_and_what_was_evicted(task: Path, tmp_path: Path) -> None:
    task.joinpath("main.py").write_text(
        "def execute(ctx, trigger):\n    ctx.state[str(len(ctx.state))] = 'x' * 700\n    return len(ctx.state)\n"
    )
    log = write_events(tmp_path / "log.jsonl", ("a", False), ("b", False))
    task.joinpath("task.toml").write_text(CONFIG + "[state]\n")
    status, report = run("task", "simulate", task, "--events", log)
    found = status, report["state_bytes"], report["state_max_bytes"], report["state_entries_evicted"]
    assert found == (0, 706, 65536, 0)  # each user has a device
    one_user = tmp_path / "one.jsonl"
    visit = (("page_enter", 1000), ("page_exit", 2000), ("page_enter", 3000), ("page_exit", 4000))
    events = [{"event_id": kind, "page_id": "item", "ts_ms": ts_ms, "contents": {}} for kind, ts_ms in visit]
    one_user.write_text("".join(json.dumps(event) + "\n" for event in events))
    task.joinpath("task.toml").write_text(CONFIG + '[state]\nmax_bytes = 1024\non_full = "evict"\n')
    status, report = run("task", "simulate", task, "--events", one_user)
    found = status, report["state_bytes"], report["state_max_bytes"], report["state_entries_evicted"]
    assert found == (0, 706, 1024, 2)  # one on each kind of device
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--events", str(one_user)]).stdout
    assert "the state reached 706 of 1,024 bytes (69%) on one device; 2 entries were evicted" in text


def test_simulate_bounds_what_it_shows_and_keeps(task: Path, tmp_path: Path) -> None:
    (task / "main.py").write_text("def execute(ctx, trigger):\n    for n in range(150):\n        print(n)\n")
    log = write_events(tmp_path / "log.jsonl", *((str(number), False) for number in range(4)))
    _, report = run("task", "simulate", task, "--events", log)
    assert (len(report["log"]), report["dropped_log_lines"]) == (1_000, 200)
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--events", str(log)]).stdout
    assert text.count("log: info: ") == 20
    assert "log: 1180 more lines; --json gives the first 1000" in text


def test_simulate_shows_the_log_and_place_of_a_failure(task: Path, tmp_path: Path) -> None:
    (task / "main.py").write_text("def execute(ctx, trigger):\n    print('here')\n    return 1 / 0\n")
    log = write_events(tmp_path / "log.jsonl", ("a", False))
    status, report = run("task", "simulate", task, "--events", log)
    assert (status, [line["text"] for line in report["log"]]) == (1, ["here", "here"])
    place = "local/small/v1/main.py:3 in execute"
    assert report["first_error"].endswith(f"ZeroDivisionError: division by zero ({place})")
    failed = [one for one in report["results"] if not one["ok"]]
    assert [(one["device"], one["event"], one["line"], one["error_type"], one["place"]) for one in failed] == [
        ("simulated-low", 1, 2, "ZeroDivisionError", place),
        ("simulated-high", 1, 2, "ZeroDivisionError", place),
    ]
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--events", str(log)]).stdout
    contents = '{"bad": false}'
    assert text.splitlines()[1:] == [
        "failed: ZeroDivisionError: division by zero (2 times)",
        f"  at {task}/main.py:3 in execute: return 1 / 0",
        f"  first at event 1, line 2 of {log}: page_exit item, ts_ms 2000, contents {contents}, user a",
        "  on simulated-low (app_version 1.0, os android, performance low); also on simulated-high",
        "  Traceback (most recent call last):",
        f'    File "{task}/main.py", line 3, in execute',
        "      return 1 / 0",
        "  ZeroDivisionError: division by zero",
        "  logged: info: here",
        "log: info: here (simulated-low, event 1, line 2)",
        "log: info: here (simulated-high, event 1, line 2)",
    ]
    (fault,) = report["faults"]
    assert (fault["count"], fault["event"]["line"], fault["source"]) == (2, 2, "return 1 / 0")


def test_simulate_without_events_says_how_to_give_some(task: Path) -> None:
    result = CliRunner().invoke(app, ["task", "simulate", str(task)])
    assert result.exit_code == 0
    assert "it loads; give it events to run on: [simulation] events in task.toml, or --events" in result.stdout


def test_simulate_plays_each_stream_of_a_log_separately(task: Path, tmp_path: Path) -> None:
    (task / "main.py").write_text("def execute(ctx, trigger):\n    assert len(ctx.events) == 2, len(ctx.events)\n")
    log = write_events(tmp_path / "log.jsonl", *((f"device-{number}", False) for number in range(5)))
    log.write_text(log.read_text() + "broken\n")
    status, report = run("task", "simulate", task, "--events", log)
    assert (status, report["runs"], report["failures"], report["skipped_lines"]) == (0, 10, 0, 1)
    assert report["skipped"] == {"broken": 1}
    (skipped,) = report["skipped_reports"]
    assert (skipped["line"], skipped["fault"]) == (11, "broken")
    assert "not JSON" in skipped["reason"]
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--events", str(log)]).stdout
    assert f"1 lines of {log} were skipped: 1 broken\n  line 11: not JSON" in text


STATEFUL = """\
def execute(ctx, trigger):
    ctx.state["n"] = ctx.state.get("n", 0) + 1
    return {"n": ctx.state["n"], "recent": len(ctx.recent)}
"""


def test_simulate_gives_each_user_of_the_tasks_own_events_a_device(task: Path, tmp_path: Path) -> None:
    """The users take turns in the file, as the two phones of the trials do."""
    (task / "main.py").write_text(STATEFUL)
    own = '[trigger]\nsequence = ["click"]\nwithout_visit = true\n'
    own += '[state]\nversion = 1\n[simulation]\nevents = "two.jsonl"\n'
    (task / "task.toml").write_text(f'[task]\nname = "small"\n{own}')
    event = {"event_id": "click", "page_id": "", "contents": {}}
    lines = [{"stream": user, "ts_ms": 1000 + n, **event} for n in range(3) for user in ("phone-a", "phone-b")]
    (task / "two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for options in ([], ["--events", task / "two.jsonl"]):
        status, report = run("task", "simulate", task, "--os", "android", "--app-version", "1.0", *options)
        assert (status, report["users"], report["other_users"]) == (0, 2, 0)
        found = {
            user: [(one["line"], one["output"]) for one in report["results"] if one["user"] == user]
            for user in ("phone-a", "phone-b")
        }
        assert found == {
            user: [(line + 2 * n, {"n": n + 1, "recent": n + 1}) for n in range(3)]
            for line, user in ((1, "phone-a"), (2, "phone-b"))
        }
    text = CliRunner().invoke(app, ["task", "simulate", str(task), "--users", "1", "--show"]).stdout
    assert "1 users of 2 (--users plays more), each on a separate device of each kind" in text
    assert "(click, simulated-low-1, user phone-a) → " in text
    assert "phone-b" not in text


def test_simulate_reads_a_log_through_a_mapping(task: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("kind,screen,at\nopen,item,1\nleave,item,2\nopen,item,3\nleave,item,4\n")
    (tmp_path / "map.toml").write_text(
        '[fields]\nevent_id = "kind"\npage_id = "screen"\ntime = "at"\n'
        '[time]\nformat = "s"\n[kinds]\nopen = "page_enter"\nleave = "page_exit"\n'
    )
    log = ["--events", tmp_path / "log.csv", "--mapping", tmp_path / "map.toml"]
    assert run("task", "simulate", task, *log)[1]["runs"] == 4
    assert run("task", "simulate", task, *log, "--limit", 2)[1]["runs"] == 2


def test_simulate_without_events_says_that_it_only_loaded(task: Path) -> None:
    status, report = run("task", "simulate", task)
    assert (status, report["ok"], report["runs"], report["phases"]) == (0, True, 0, {})
    assert "give it events" in CliRunner().invoke(app, ["task", "simulate", str(task)]).stdout


def test_a_log_without_events_is_an_error(task: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("x\ny\n")
    with pytest.raises(WalleError, match="2 lines were skipped"):
        run("task", "simulate", task, "--events", tmp_path / "log.jsonl")


def test_a_mapping_without_a_log_is_a_wrong_use(task: Path) -> None:
    assert CliRunner().invoke(app, ["task", "simulate", str(task), "--mapping", "m.toml"]).exit_code == 2


def test_a_dictionary_is_trained_on_the_tasks_features_and_measured_on_others(tmp_path: Path) -> None:
    folder = tmp_path / "dwell"
    run("task", "new", "dwell", "--folder", folder)
    status, report = run("task", "dictionary", folder, "--events", folder / "log.jsonl", "--size", 2048)
    assert status == 0
    data = (folder / "resources/features.dict").read_bytes()
    assert report["sha256"] == hashlib.sha256(data).hexdigest()
    assert report["trained_on"] + report["measured_on"] == report["features"] == 400
    sizes = report["bytes_per_upload"]
    assert sizes["alone, dictionary"] < 0.8 * sizes["alone"]
    assert report["written"]
    assert 0 < report["pays_after_uploads"] <= 1000
    for _ in range(2):  # task.toml names it, once
        status, checked = run("task", "check", folder)
        assert (status, checked["findings"], "resources/features.dict" in checked["files"]) == (0, [], True)
        assert run("task", "dictionary", folder, "--events", folder / "log.jsonl", "--size", 2048)[0] == 0
    config = tomllib.loads((folder / "task.toml").read_text())
    assert config["tunnel"] == {"dictionary": "resources/features.dict"}
    assert "# event ids" in (folder / "task.toml").read_text()  # the author's comments stay


@pytest.mark.night
def test_a_dictionary_that_does_not_pay_is_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "dwell"
    run("task", "new", "dwell", "--folder", folder)
    (folder / "main.py").write_text("import os\n\ndef execute(ctx, trigger):\n    return ctx.random\n")
    (folder / "main.py").write_text(
        "import hashlib\n\n\ndef execute(ctx, trigger):\n"
        "    return hashlib.sha512(str(trigger['position']).encode()).digest()\n"
    )
    before = (folder / "task.toml").read_bytes()
    status, report = run("task", "dictionary", folder, "--events", folder / "log.jsonl")
    assert (status, report["written"]) == (0, False)
    assert (folder / "task.toml").read_bytes() == before
    assert not (folder / "resources").exists()
    assert run("task", "check", folder)[0] == 0
    status, report = run("task", "dictionary", folder, "--events", folder / "log.jsonl", "--write")
    assert (status, report["written"]) == (0, True)
    assert run("task", "check", folder)[0] == 0


def test_a_dictionary_is_not_trained_on_outputs_that_stay_on_the_device(tmp_path: Path) -> None:
    folder = tmp_path / "dwell"
    run("task", "new", "dwell", "--folder", folder)
    with (folder / "task.toml").open("a") as config:
        config.write('\n[output]\ndestination = "device"\n')
    with pytest.raises(WalleError, match="0 features; at least 50"):
        run("task", "dictionary", folder, "--events", folder / "log.jsonl")


def test_a_dictionary_needs_enough_features(task: Path, tmp_path: Path) -> None:
    with pytest.raises(WalleError, match="at least 50"):
        run("task", "dictionary", task, "--events", write_events(tmp_path / "log.jsonl", ("a", False)))
    with pytest.raises(WalleError, match="name a log with --events"):
        run("task", "dictionary", task)
    with pytest.raises(WalleError, match="the task fails on these events"):
        run("task", "dictionary", task, "--events", write_events(tmp_path / "log.jsonl", ("a", True)))
