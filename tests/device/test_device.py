"""One device as its app sees it: restarts, an unreachable cloud, two devices on one folder, kill -9 in mid-stream."""

import asyncio
import dataclasses
import errno
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.dashboard.visitor import log_in
from tests.sim.device_session import session_headers
from tests.sim.offline_device import NO_CLOUD
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, User, device_config, no_task_left, shop_cloud
from tests.sim.visits import TASK_CONFIG, event_at
from walle.base import plain
from walle.cli import app
from walle.device import Device, DeviceConfig
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.live_source import LatePolicy, LivePolicy
from walle.pipeline.features.database import StoreLockedError
from walle.protocol import Directive, Outcome, OutcomeBatch, OutcomeKind, directives_to_header

ROOT = Path(__file__).parents[2]
ESCALATING = """\
def execute(ctx, trigger):
    if trigger["event"]["contents"]["n"] < 20:
        return ctx.escalate(trigger["event"]["contents"])
    raise ValueError("not for want of a cloud")
"""


def ports_of(shop: ShopCloud) -> dict[str, Any]:
    address = shop.cloud.address
    return {"http_port": int(address.url.rpartition(":")[2]), "tunnel_port": address.tunnel_port}


async def installed(shop: ShopCloud, device: Device, main: str | None = None, config: str = TASK_CONFIG) -> User:
    """Release v1 to a device that is at work, and wait until it has it."""
    await shop.push("v1", config=config, **({} if main is None else {"main": main}))
    await shop.release("v1", beta=[device.config.device_id])
    async with asyncio.timeout(LIMIT_S):
        while not device.tasks:
            await device.checkin()
            await asyncio.sleep(0.005)
    return User(device)


def away(folder: Path, config: DeviceConfig) -> DeviceConfig:
    """Return a device whose cloud is nowhere."""
    return dataclasses.replace(config, folder=folder, **NO_CLOUD)


async def pages(shop: ShopCloud) -> list[str]:
    uploads = await shop.cloud.gateway.uploads("shop/count", 0, 100_000)
    return [plain.decode(upload.payload)["page"] for _, upload in uploads]


@pytest.mark.asyncio
async def test_a_device_that_is_restarted_keeps_its_task_and_runs_nothing_again(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            assert (tmp_path / "d0").stat().st_mode & 0o777 == 0o700  # features.db holds what the user did
            user = await installed(shop, device)
            for _ in range(5):
                await user.visit()
            await device.on_event(event_at(15), 15)  # a page is open when the device stops
            await device.settled()
        async with shop.device(tmp_path / "d0") as device:
            assert device.tasks == {"shop/count": "v1"}
            assert device.resume_from <= 15 == device.store.position
            for position in range(device.resume_from, 16):
                await device.on_event(event_at(position), position)
            await device.stream.settle()
            summary = await device.summary()
            assert (summary.runs_ok, summary.produced, summary.stored) == (0, 5, 5)
            for position in (16, 17):
                await device.on_event(event_at(position), position)
            await device.settled()
            summary = await device.summary()
            assert (summary.runs_ok, summary.produced, summary.stored) == (1, 6, 6)
        assert await pages(shop) == [f"page/{number}" for number in range(6)]
        uploads = await shop.cloud.gateway.uploads("shop/count", 0, 10)
        assert plain.decode(uploads[-1][1].payload)["events"] == 3  # the page's events from before the restart too


@pytest.mark.asyncio
async def test_the_first_run_of_a_version_does_not_load_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = 'print("loading")\n\ndef execute(ctx, trigger):\n    ctx.log("running")\n    return 1\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        with caplog.at_level(logging.INFO, "walle.task"):
            user = await installed(shop, device, main)
            lines = [record.message for record in caplog.records if record.message.startswith("d0")]
            assert lines
            assert all("loading" in line for line in lines)
            caplog.clear()
            await user.visit()
            await device.stream.settle()
            (line,) = (record.message for record in caplog.records if record.message.startswith("d0"))
            assert "running" in line
        runner = device._runs._runner
        assert len(runner._pool) == 1  # the VM of the check is closed


@pytest.mark.asyncio
async def test_two_devices_on_one_folder_are_refused_and_the_first_works_on(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = await installed(shop, device)
        second = Device(dataclasses.replace(device.config, ca_pem="of another cloud"))
        with (
            # Of the cloud, which goes on beside the block, also with requests of the first device.
            no_task_left(besides=("MonitorService._save_group", "RequestResponseCycle.run_asgi")),
            pytest.raises(StoreLockedError, match="is open elsewhere; stop the other process"),
        ):
            await second.start()
        await second.close()  # closing a device that did not start does nothing
        await user.visit()
        await device.settled()
        assert (device.config.folder / "ca.pem").read_text() == shop.cloud.address.ca_pem
        assert await shop.received() == 1


@pytest.mark.asyncio
async def test_a_changed_certificate_authority_replaces_ca_pem_in_one_step(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            config = device.config
        path, before = config.folder / "ca.pem", tmp_path / "before.pem"
        before.hardlink_to(path)
        (config.folder / ".ca.pem.0a.unfinished").write_text("half")  # a device that was killed leaves this
        new = f"{config.ca_pem}\n# renewed\n"
        async with Device(dataclasses.replace(config, ca_pem=new)):
            assert (path.read_text(), before.read_text()) == (new, config.ca_pem)
            assert list(config.folder.glob("*.unfinished")) == list(config.folder.glob(".*.unfinished")) == []


@pytest.mark.asyncio
async def test_a_device_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            config = device.config
            await installed(shop, device)

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        for module in ("walle.device.device", "walle.deploy.agent.installed"):
            monkeypatch.setattr(f"{module}.write_file", full)
        async with Device(config) as device:
            assert device.tasks == {"shop/count": "v1"}


@pytest.mark.asyncio
async def test_a_device_whose_cloud_is_down_works_on_and_delivers_later(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path, outlived=True) as shop:
        ports = ports_of(shop)
        device = shop.device(tmp_path / "d0")
        await device.start()
        user = await installed(shop, device)
        await user.visit()
        await device.settled()
    for number in range(1, 30):
        for part in range(3):
            await device.on_event(event_at(3 * number + part), 3 * number + part, can_wait=True)
    await device.stream.settle()
    await device.store.flush()
    summary = await device.summary()
    assert (summary.runs_ok, summary.runs_failed, summary.unsent) == (30, 0, 29)
    async with shop_cloud(tmp_path, outlived=True, **ports) as shop, asyncio.timeout(LIMIT_S):
        await device.settled()
        assert await pages(shop) == [f"page/{number}" for number in range(30)]
        (release,) = await shop.releases.list_all()
        assert release["totals"]["ok"] == 30
        await device.close()


@pytest.mark.asyncio
async def test_a_device_that_is_started_without_its_cloud_starts_works_and_stops(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await installed(shop, device)
        config = device.config
    with no_task_left():
        async with Device(away(tmp_path / "d0", config)) as device:
            assert device.tasks == {"shop/count": "v1"}
            for position in range(3):
                await device.on_event(event_at(position), position)
            await device.stream.settle()
            await device.store.flush()
            assert (await device.summary()).unsent == 1
        async with Device(away(tmp_path / "d0", config)) as device:
            assert (await device.summary()).unsent == 1


@pytest.mark.night
@pytest.mark.asyncio
async def test_failures_for_want_of_the_cloud_are_not_the_versions(tmp_path: Path) -> None:
    config_toml = TASK_CONFIG + '[phases]\nexecute = "auto"\n[limits]\ndeadline_ms = 2000\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await installed(shop, device, ESCALATING, config_toml)
        config = device.config
    config = dataclasses.replace(away(tmp_path / "d0", config), report_interval_s=3600, escalation_connect_s=0.01)
    async with Device(config) as device:
        installed_again = device.agent.outcomes.take_batch()
        assert installed_again is not None
        device.agent.outcomes.confirm(installed_again.batch_id)
        for number in range(20):
            for part in range(3):
                await device.on_event(event_at(3 * number + part), 3 * number + part, can_wait=True)
        await device.stream.settle()
        summary = await device.summary()
        assert (summary.runs_failed, summary.escalated) == (20, 20)
        assert device.tasks == {"shop/count": "v1"}
        assert device.agent.outcomes.take_batch() is None  # nothing to blame the version for
        for number in range(20, 60):
            if not device.tasks:
                break
            for part in range(3):
                await device.on_event(event_at(3 * number + part), 3 * number + part)
            await asyncio.sleep(0.01)
        assert device.tasks == {}
        assert "not for want of a cloud" in (await device.summary()).last_error


@pytest.mark.night
@pytest.mark.asyncio
async def test_an_output_that_cannot_be_stored_is_a_failed_run_and_not_produced(tmp_path: Path) -> None:
    main = "def execute(ctx, trigger):\n    return 1 << (70 if trigger['event']['contents']['n'] % 2 else 3)\n"
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = await installed(shop, device, main)
        for _ in range(4):
            await user.visit()
        await device.settled()
        summary = await device.summary()
        assert (summary.runs_ok, summary.runs_failed, summary.produced, summary.stored) == (2, 2, 2, 2)
        assert await shop.received() == 2
        (release,) = await shop.releases.list_all()
        assert (release["totals"]["ok"], release["totals"]["failed"]) == (2, 2)


@pytest.mark.asyncio
async def test_a_tasks_log_reaches_the_devices_log_and_a_failure_the_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = """\
print("loaded")
def execute(ctx, trigger):
    number = trigger["event"]["contents"]["n"]
    ctx.log.warning(f"visit {number}\\x1b[2J")
    print("printed")
    if number == 2:
        raise ValueError("\\x1b]0;broken\\x07")
"""
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        with caplog.at_level(logging.INFO, "walle"):
            user = await installed(shop, device, main)
            for _ in range(4):
                await user.visit()
            await device.settled()
        lines = [(record.levelname, record.message) for record in caplog.records if record.name == "walle.task"]
        named = "d0: shop/count v1: "
        place = "shop/count/v1/main.py:7 in execute"

        def lines_of(visit: int) -> list[tuple[str, str]]:
            logged = [("WARNING", rf"{named}visit {visit}\x1b[2J"), ("INFO", f"{named}printed")]
            if visit != 2:
                return logged
            error = r"ValueError: \x1b]0;broken\x07"
            failed = [
                f"failed: task shop/count v1: {error} ({place})",
                "Traceback (most recent call last):",
                '  File "shop/count/v1/main.py", line 7, in execute',
                error,
            ]
            return [*logged, *(("INFO", f"{named}{line}") for line in failed)]

        assert [line for line in lines if line[1].startswith(named)] == [
            *[("INFO", f"{named}loaded")] * 2,  # for the check before activation, and for the first run
            *(line for number in range(4) for line in lines_of(number)),
        ]
        assert "\x1b" not in (await device.summary()).last_error
        (release,) = (await shop.http.get("/v1/releases")).json()
        totals = release["totals"]
        assert totals["last_error"] == rf"task shop/count v1: ValueError: \x1b]0;broken\x07 ({place})"
        assert (totals["last_place"], totals["distinct_failures"]) == (place, 1)
        (failure,) = (await shop.releases.failures(release["id"]))["failures"]
        assert (failure["error_type"], failure["kind"], failure["count"], failure["devices"]) == (
            "ValueError",
            "run",
            totals["failed"],
            1,
        )
        assert failure["log"].endswith("\\x1b[2J\ninfo: printed")
        command = ["release", "status", release["id"], "--url", shop.cloud.address.url]
        as_admin = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        assert f"  at: {place}\n" in shown
        assert '  File "shop/count/v1/main.py", line 7, in execute\n' in shown
        assert "\\x1b[2J\n  logged: info: printed\n" in shown


@pytest.mark.asyncio
async def test_a_hostile_devices_report_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        release_id = await shop.release("v1", beta=["d0"])
        await shop.until(release_id, "beta")
        outcome = Outcome(
            task="shop/count",
            version="v1",
            release=release_id,
            kind=OutcomeKind.RUN,
            failed=1,
            error="\x1b[2Jerror",
            place="\x1b[2Jplace",
            log="\x1b[2Jlog\r\nnext",
        )
        device_token = session_headers(shop.cloud.home, "d0")
        batch = OutcomeBatch("d0", "b", (outcome,)).to_json()
        (await shop.http.post("/v1/outcomes", json=batch, headers=device_token)).raise_for_status()
        command = ["release", "status", release_id, "--url", shop.cloud.address.url]
        as_admin = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        assert "\x1b" not in shown
        assert "\r" not in shown
        assert r"logged: \x1b[2Jlog\r" in shown


@pytest.mark.asyncio
async def test_a_task_removed_between_trigger_and_run_does_not_count_as_a_failure(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = await installed(shop, device)
        active = device._versions.active.pop("shop/count")
        await user.visit()
        device._versions.active["shop/count"] = active
        summary = await device.summary()
        assert (summary.runs_ok, summary.runs_failed, summary.produced) == (0, 0, 0)


@pytest.mark.asyncio
async def test_a_summary_counts_what_queues_dropped_and_what_had_no_visit(tmp_path: Path) -> None:
    main = "import time\ndef execute(ctx, trigger):\n    time.sleep(0.2)\n    return 1\n"
    config_toml = TASK_CONFIG + '[limits]\nqueue = 2\nqueue_full = "drop-oldest"\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = await installed(shop, device, main, config_toml)
        first = 3 * user.visits
        await device.on_event(Event("page_exit", "never entered", 1, {}), first)
        for part in range(30):
            await device.on_event(event_at(part), first + 1 + part)
        summary = await device.summary()
        assert summary.queued == {"shop/count": 3}
        await device.settled()
        summary = await device.summary()
        assert summary.runs_ok + summary.dropped["shop/count"] == 10
        assert (summary.runs_failed, summary.without_visit, summary.queued) == (0, 1, {})
        assert summary.to_feature_ms[-1] > 100  # counted from the event's arrival: two runs were before it


@pytest.mark.asyncio
async def test_what_a_device_dropped_is_in_the_release_the_metrics_and_on_its_page(tmp_path: Path) -> None:
    main = "import time\ndef execute(ctx, trigger):\n    time.sleep(0.05)\n    return 1\n"
    config = TASK_CONFIG + '[limits]\nqueue = 1\nqueue_full = "drop-newest"\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await installed(shop, device, main, config)
        lines = [json.dumps(event_at(position).to_dict()).encode() for position in range(60)]
        await device.on_json(b"\n".join(lines))
        await device.settled()
        dropped = (await device.summary()).dropped["shop/count"]
        assert 0 < dropped < 20
        (release,) = await shop.releases.list_all()
        assert (release["totals"]["dropped"], release["totals"]["ok"]) == (dropped, 20 - dropped)
        assert release["totals"]["uploads_dropped"] == 0
        bearer = {"Authorization": f"Bearer {shop.cloud.home.admin_token}"}
        metrics = (await shop.http.get("/metrics", headers=bearer)).text
        of_release = f'release="{release["id"]}",task="shop/count"'
        assert f'walle_release_dropped_total{{{of_release},what="triggers"}} {dropped}.0' in metrics
        async with httpx.AsyncClient(base_url=shop.cloud.address.url) as person:
            await log_in(person, shop.cloud.home.admin_token)
            page = (await person.get(f"/dashboard/releases/{release['id']}")).text
        assert f"<dt>triggers dropped</dt><dd>{dropped}</dd>" in page


@pytest.mark.asyncio
async def test_answers_that_are_none_and_answers_after_the_end_do_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop_cloud(tmp_path) as shop:
        device = shop.device(tmp_path / "d0")
        directive = Directive(
            task="shop/count",
            version="v1",
            manifest="0" * 64,
            size_bytes=1,
            serial=1,
            expires_s=1 << 40,
            url="/cdn",
            release="r",
        )
        await device.close()  # never started
        async with device:
            await device.handle_answer(None)
            await device.handle_answer("")
            with caplog.at_level(logging.WARNING):
                await device.handle_answer("{]")
            assert "an answer that is not a list of directives" in caplog.text
        with no_task_left():
            await device.handle_answer(directives_to_header([directive]))
            await device.close()


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_cloud_that_is_silent(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await installed(shop, device)
        config = device.config
    accepted: list[asyncio.StreamWriter] = []

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    silent = Device(dataclasses.replace(away(tmp_path / "d0", config), cloud_url=url))
    await silent.start()
    async with asyncio.timeout(5):
        await silent.close()
    assert accepted
    for writer in accepted:
        writer.close()
    server.close()
    await server.wait_closed()


@pytest.mark.night
@pytest.mark.system
@pytest.mark.asyncio
async def test_kill_9_in_mid_stream_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        config = device_config(shop.cloud.address, shop.cloud.home, tmp_path / "d0")
        config_file = tmp_path / "config"
        config_file.write_bytes(pickle.dumps(config))

        async def play(*visits: str) -> asyncio.subprocess.Process:
            command = [sys.executable, "-m", "tests.sim.visits", str(config_file), *visits]
            return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)

        for _ in range(2):
            before = await shop.received()
            process = await play()
            try:
                async with asyncio.timeout(60):
                    while await shop.received() < before + 50:
                        assert process.returncode is None
                        await asyncio.sleep(0.002)
            finally:
                os.kill(process.pid, signal.SIGKILL)
                await process.communicate()
        process = await play("50")
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        assert process.returncode == 0
        visits, produced, stored = map(int, output.split())
        assert visits >= 150  # at least 50 in each of the three processes
        assert produced == stored == visits == await shop.received()
        assert await pages(shop) == [f"page/{number}" for number in range(visits)]


@pytest.mark.asyncio
async def test_events_in_json_become_features_and_one_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    policy = LivePolicy(drop_equal=True)
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", live=policy) as device:
        await installed(shop, device)
        lines = [json.dumps(event_at(position).to_dict()).encode() for position in range(6)]
        assert await device.on_json(b"\n".join(lines[:3])) == 3
        with pytest.raises(EventError, match="event: of event 0 must be an object"):
            await device.on_json(b"visit")
        assert await device.on_json(b"[%s, {}]" % b",".join(lines[3:])) == 3
        assert await device.on_json(b"[%s, {}]" % b",".join(lines[3:])) == 3  # the app repeats its call
        async with asyncio.timeout(LIMIT_S):
            await device.settled()
        assert device.stream.counts.events == 6
        assert await pages(shop) == ["page/0", "page/1"]
        assert (await device.summary()).rejected == 2
    result = CliRunner().invoke(app, ["device", "log", str(tmp_path / "d0"), "--rejected", "--json"])
    assert [row["reason"] for row in json.loads(result.stdout)] == ["event_id: is missing"] * 2
    result = CliRunner().invoke(app, ["device", "log", str(tmp_path / "d1"), "--rejected"])
    assert (result.exit_code != 0, "d1" in str(result.output) + str(result.exception)) == (True, True)


@pytest.mark.asyncio
async def test_a_burst_in_one_call_gives_a_feature_for_each_visit(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await installed(shop, device)
        lines = [json.dumps(event_at(position).to_dict()).encode() for position in range(300)]
        assert await device.on_json(b"\n".join(lines)) == 300
        async with asyncio.timeout(LIMIT_S):
            await device.settled()
        assert (await device.summary()).dropped == {}
        assert await pages(shop) == [f"page/{number}" for number in range(100)]


@pytest.mark.night
@pytest.mark.asyncio
async def test_kill_9_loses_no_live_event_whose_call_returned(tmp_path: Path) -> None:
    rng, sent = random.Random(5), 0
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", config=TASK_CONFIG)
        await shop.release("v1", beta=["d0"])
        config_file = tmp_path / "config"
        config_file.write_bytes(pickle.dumps(device_config(shop.cloud.address, shop.cloud.home, tmp_path / "d0")))

        async def tell(process: asyncio.subprocess.Process, count: int) -> None:
            """Send that many events, each after the call for the one before has returned."""
            nonlocal sent
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(count):
                process.stdin.write(b"%d\n" % sent)
                assert await process.stdout.readline() == b"%d\n" % sent
                sent += 1

        for life in range(4):
            command = [sys.executable, "-m", "tests.sim.live", str(config_file)]
            pipe = subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
            try:
                async with asyncio.timeout(60):
                    assert process.stdout is not None
                    assert await process.stdout.readline() == b"ready\n"
                    await tell(process, rng.randrange(20, 60))
                    if life == 3:
                        await tell(process, -sent % 3)  # up to the end of a visit
                        output, _ = await process.communicate()
                        break
            finally:
                if process.returncode is None:
                    os.kill(process.pid, signal.SIGKILL)
                    await process.wait()
        assert list(map(int, output.split())) == [sent // 3, sent // 3]
        assert await pages(shop) == [f"page/{number}" for number in range(sent // 3)]


@pytest.mark.asyncio
async def test_a_live_device_drops_late_events_and_duplicates_and_counts_them(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        policy = LivePolicy(late_ms=5, jump_ms=1000, late=LatePolicy.DROP, drop_equal=True)
        async with shop.device(tmp_path / "d0", live=policy) as device:
            await shop.push("v1")
            await shop.release("v1", beta=["d0"])
            async with asyncio.timeout(LIMIT_S):
                while not device.tasks:
                    await device.checkin()
            for position in (0, 1, 2, 2, 10, 9, 4, 3, 11):  # 2 again; 9 out of order; 4 and 3 late
                await device.on_event(event_at(position))
            await device.settled()
            summary = await device.summary()
            assert (summary.late, summary.out_of_order, summary.duplicates, summary.clock_jumps) == (2, 1, 1, 0)
            assert device.stream.counts.events == 6
        async with shop.device(tmp_path / "d0", live=policy) as device:  # the journal has the latest events
            await device.on_event(event_at(11))
            await device.on_event(event_at(12))
            summary = await device.summary()
            assert summary.duplicates == 1
            assert device.stream.counts.events - device.stream.counts.replayed == 1


@pytest.mark.asyncio
async def test_interpreters_that_a_task_cost_are_in_the_summary(tmp_path: Path) -> None:
    main = """\
import string

def execute(ctx, trigger):
    if ctx.device["id"] == "d0":  # not in simulation, which would fail the version
        string.Template.__new__ = lambda *args, **options: None
    return 1
"""
    honest = 'import string\n\ndef execute(ctx, trigger):\n    return string.Template("$a").substitute(a=1)\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=1) as device:
        user = User(device)
        await shop.push("v1", main=main)
        release = await shop.release("v1", beta=["d0"])
        await user.until(lambda: device.tasks == {"shop/count": "v1"})
        await user.visit()
        await shop.releases.rollback(release)
        await user.until(lambda: device.tasks == {})
        await shop.push("v2", main=honest)
        await shop.release("v2", beta=["d0"])
        await user.until(lambda: device.tasks == {"shop/count": "v2"})
        await user.visit()  # the one VM runs it: that of v1 is closed
        summary = await device.summary()
        async with asyncio.timeout(LIMIT_S):
            while not summary.discarded:
                await asyncio.sleep(0.02)
                summary = await device.summary()
        assert summary.discarded == {"shop/count v1": 1}
        assert summary.runs_failed == 0


@pytest.mark.night
@pytest.mark.asyncio
async def test_events_that_a_tasks_history_lost_are_in_the_summary(tmp_path: Path) -> None:
    history_config = f"{TASK_CONFIG}[history]\nrows = 1000\n"
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0") as device:
            await shop.push("v1", config=history_config)
            await shop.release("v1", beta=["d0"])
            async with asyncio.timeout(LIMIT_S):
                while not device.tasks:
                    await device.checkin()
            assert (await device.summary()).history_dropped == 0
        (tmp_path / "d0" / "history.db").unlink(missing_ok=True)
        (tmp_path / "d0" / "history.db").mkdir()  # a folder cannot be opened as a database
        async with shop.device(tmp_path / "d0") as device:
            for position in range(12):
                await device.on_event(Event("scroll", "page/0", position, {"text": "x" * 200_000}), position)
            await device._history.flush()
            summary = await device.summary()
            assert summary.history_dropped > 0
            assert summary.losses == ()
        (tmp_path / "d0" / "history.db").rmdir()
        (tmp_path / "d0" / "history.db").write_bytes(b"no database" * 1000)
        async with shop.device(tmp_path / "d0") as device:
            for position in range(12, 24):
                await device.on_event(Event("scroll", "page/0", position, {"text": "x" * 200_000}), position)
            await device._history.flush()
            summary = await device.summary()
            assert summary.losses == ("the longer history of events was damaged and began again",)
            assert summary.history_dropped == 0
