"""A cloud and two devices as processes of their own, from the command line alone: push, release, features, kill -9."""

import asyncio
import collections
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.engineer import Engineer
from tests.sim.program import Program, Programs, walle
from walle.base import plain
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest

VISITS = 200
VISIT_MS = 1000
SPEED = 40  # a device plays for VISITS / SPEED = 5 s

MAIN = """\
def execute(ctx, trigger):
    ctx.state[str(ctx.events[0].ts_ms)] = len(ctx.events)
    return {"enter_ms": ctx.events[0].ts_ms, "exit_ms": ctx.events[-1].ts_ms, "events": len(ctx.events)}
"""
CONFIG = """\
[task]
name = "dwell"
[trigger]
sequence = ["page_exit"]
[limits]
queue_full = "block"
[state]
max_bytes = 1024
on_full = "evict"
"""  # a busy machine may be slower than the events, of which none may be dropped


@pytest.fixture
def start() -> Iterator[Programs]:
    with Programs() as programs:
        yield programs


def write_log(path: Path, first_ms: int) -> list[int]:
    """Write VISITS page visits, with a broken line among them; return the times of their exits."""
    exits = []
    with path.open("w") as file:
        for visit in range(VISITS):
            enter_ms = first_ms + visit * VISIT_MS
            for event_id, after_ms in (("page_enter", 0), ("page_scroll", 200), ("click", 400), ("page_exit", 600)):
                event = {
                    "event_id": event_id,
                    "page_id": f"item/{visit % 7}",
                    "ts_ms": enter_ms + after_ms,
                    "contents": {},
                }
                file.write(json.dumps(event) + "\n")
            exits.append(enter_ms + 600)
            if visit == VISITS // 2:
                file.write('{"event_id": "page_e\n')
    return exits


async def received(database: Path) -> dict[str, collections.Counter[int]]:
    """Return, of each device, the exit times of the features that the cloud has, with how often it has each."""
    found: dict[str, collections.Counter[int]] = {}
    async with Ingest(database) as ingest:
        for _, upload in await ingest.query(topic="shop/dwell", limit=100_000):
            feature = plain.decode(upload.payload)
            assert (feature["events"], feature["exit_ms"] - feature["enter_ms"]) == (4, 600)
            found.setdefault(upload.device_id, collections.Counter())[feature["exit_ms"]] += 1
    return found


@pytest.mark.night
@pytest.mark.system
def test_features_of_a_device_that_is_killed_arrive_once_each(tmp_path: Path, start: Programs) -> None:
    cloud = start(
        "cloud",
        "up",
        str(tmp_path / "cloud"),
        "--http-port=0",
        "--tunnel-port=0",
        "--plain-http",
        "--scenario=shop",
        "--json",
    )
    up = cloud.wait_for(lambda line: "url" in line)
    join_file = Path(up["join_file"])
    assert join_file.stat().st_mode & 0o777 == 0o600
    token = Path(up["admin_token_file"]).read_text().strip()
    Engineer(tmp_path, up["url"], "shop", token).push("dwell", "v1", {"main.py": MAIN, "task.toml": CONFIG})

    exits = {}

    def device(name: str) -> Program:
        log = tmp_path / f"{name}.jsonl"
        paths = [str(tmp_path / name), f"--join={join_file}", f"--id={name}", f"--events={log}"]
        pace = [f"--speed={SPEED}", "--wait-for-task", "--checkin-s=0.2", "--report-s=0.2", "--status-s=0.1"]
        return start("device", "run", *paths, *pace, "--app-version=10.1", "--attribute=os=linux", "--json")

    for number, name in enumerate(("device-a", "device-b")):
        exits[name] = write_log(tmp_path / f"{name}.jsonl", 1_700_000_000_000 + number)
    first, second = device("device-a"), device("device-b")
    for program in (first, second):
        assert program.wait_for(lambda line: line["state"] == "waiting for a task")["tasks"] == {}

    reached = {"WALLE_URL": up["url"], "WALLE_TOKEN": token}
    gate = ["--gate=p_good=0.05", "--gate=p_bad=0.5", "--gate=trial_runs=1000"]
    stages = ["--beta-device=device-a", "--step=1", "--app-version=>=10"]
    release = start("release", "start", "shop", "dwell", "v1", *stages, *gate, "--watch", "--json", **reached)

    killed = second.wait_for(lambda line: VISITS // 4 <= line["stored"] < line["produced"])  # some is in memory only
    second.kill()
    assert killed["produced"] < VISITS
    again = device("device-b")

    assert release.end() == 0, release.errors
    assert release.lines[-1]["state"] == "full"
    assert {"beta", "gray"} <= {line["state"] for line in release.lines}
    for program in (first, again):
        assert program.end() == 0, program.errors
        last = program.lines[-1]
        assert (last["state"], last["unsent"], last["skipped"], last["runs_failed"]) == ("done", 0, 1, 0)
        assert last["dropped"] == {}
        assert last["tasks"] == {"shop/dwell": "v1"}
        assert last["produced"] == VISITS
        state = last["states"]["shop/dwell"]
        assert (state["max_bytes"], state["entries"], state["size_bytes"]) == (1024, 68, 3 + 68 * 15)
    assert 0 < again.lines[-1]["runs_ok"] <= VISITS - killed["stored"]  # the device resumed, and did not start again

    back = walle("release", "rollback", release.lines[-1]["id"], "--reason=the test is over", "--json", **reached)
    assert (back["state"], back["reason"]) == ("rolled_back", "by admin: the test is over")
    cloud.process.send_signal(signal.SIGTERM)
    assert cloud.end() == 0, cloud.errors
    assert asyncio.run(received(tmp_path / "cloud" / "uploads.db")) == {
        name: collections.Counter(times) for name, times in exits.items()
    }
