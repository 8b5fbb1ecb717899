"""Rows that a target refuses alone: named by an error, or kept in files and sent again."""

import asyncio
import errno
import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.sim.program import run_main
from tests.sinks.hook import Hook
from tests.sinks.sink_samples import keys_of, kill_at_random, run_once, run_to_end, running, store_uploads, uploads_of
from walle.base.durable_file import write_file
from walle.pipeline.ingest.store.partitions import partition
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.sinks import AsideFolder, Refusal, RunnerConfig, SinkError, SinkRow, SinkRunner
from walle.sinks.webhook import WebhookSink

BAD = "phone-3/e1/7"  # the 124th upload of 20 devices that take turns


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    found.start()
    yield found
    found.stop()


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 50))
    return path


def files_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((folder / "g").iterdir())]


def keys_in(folder: Path) -> list[str]:
    return [one["row"]["key"] for one in files_in(folder)]


def runner_of(store: UploadStore, hook: Hook, aside: AsideFolder | None) -> SinkRunner:
    config = RunnerConfig(group="g", lease_s=2.0)
    return SinkRunner(store, WebhookSink(hook.url, "g"), config, rng=random.Random(1), aside=aside)


def resend(folder: Path, target: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return run_main("features", "resend", str(folder), target, "--group", "g", "--json", **(env or {}))


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_first_refused_row_stops_the_sink_and_is_named_with_the_way_past(
    status: int, hook: Hook, uploads: Path
) -> None:
    hook.refused = {BAD: status}
    refused = run_to_end(hook.url, uploads)
    assert refused.returncode == 1
    text = " ".join(refused.stderr.split())
    place = f"partition {partition('phone-3')}, position 124"
    assert f"refuses the row '{BAD}' (scenario 'shop', topic 'shop/visits', {place}" in text
    assert f"answered {status}: 'a bad row'" in text
    assert "--set-aside FOLDER" in text
    assert keys_of(uploads_of(1, 6)) <= set(hook.keys)
    assert BAD not in hook.keys
    hook.refused.clear()
    run_once(hook.url, uploads)
    assert set(hook.keys) == keys_of(uploads_of(1, 50))


@pytest.mark.night
def test_refused_rows_are_set_aside_counted_and_sent_again(hook: Hook, uploads: Path, tmp_path: Path) -> None:
    folder = tmp_path / "aside"
    also = "phone-19/e1/50"  # the last one
    hook.refused = {BAD: 422, also: 413}
    with running(hook.url, uploads, "--once", "--set-aside", folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"998 features sent, 2 refused and set aside in {folder / 'g'}" in " ".join(out.split())
    assert err.count("it is set aside in") == 2
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)) - {BAD, also})
    first, second = files_in(folder)
    assert (first["group"], first["target"], first["why"]) == ("g", hook.url, "answered 422: 'a bad row'")
    assert (first["scenario"], first["partition"], first["row"]["position"]) == ("shop", partition("phone-3"), 124)
    assert (first["row"]["key"], second["row"]["key"]) == (BAD, also)
    assert "0 features sent" in run_once(hook.url, uploads, "--set-aside", folder)  # the position is behind them

    del hook.refused[BAD]
    again = resend(folder, hook.url)
    assert (again.returncode, json.loads(again.stdout)) == (1, {"target": hook.url, "sent": 1, "refused": 1})
    assert hook.rows[-1] == first["row"]  # the row that it would have been
    assert keys_in(folder) == [also]
    hook.refused.clear()
    again = resend(folder, hook.url)
    assert (again.returncode, json.loads(again.stdout)["sent"]) == (0, 1)
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)))
    assert files_in(folder) == []


def test_each_change_of_the_status_has_the_rows_set_aside(hook: Hook, uploads: Path, tmp_path: Path) -> None:
    hook.refused = {BAD: 400}
    lines = run_once(hook.url, uploads, "--json", "--set-aside", tmp_path / "aside").splitlines()
    assert json.loads(lines[-1])["set_aside"] == 1
    assert json.loads(lines[-1])["sent"] == 999


@pytest.mark.asyncio
async def test_a_row_is_on_disk_before_the_position_moves_past_it(
    hook: Hook, uploads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends between the two: the row comes again, and has one file."""
    folder = tmp_path / "aside"
    hook.refused = {BAD: 422}
    async with asyncio.timeout(60), open_uploads(uploads) as store:
        real, seen = store.commit, list[list[str]]()

        async def commit(group: str, member: str, positions: Mapping[int, int], generation: int) -> set[int]:
            if positions.get(partition("phone-3"), 0) >= 124:
                seen.append(keys_in(folder))
                if len(seen) == 1:
                    raise RuntimeError("killed")
            return await real(group, member, positions, generation)

        monkeypatch.setattr(store, "commit", commit)
        with pytest.raises(RuntimeError, match="killed"):
            await runner_of(store, hook, AsideFolder(folder, "g")).run(once=True)
        assert (await store.group_lags())["g"].uploads == 1000
        assert await runner_of(store, hook, AsideFolder(folder, "g")).run(once=True)
    assert seen[:2] == [[BAD], [BAD]]
    assert keys_in(folder) == [BAD]
    assert set(hook.keys) == keys_of(uploads_of(1, 50)) - {BAD}


@pytest.mark.night
def test_a_sink_that_is_killed_sends_each_row_or_sets_it_aside(hook: Hook, tmp_path: Path) -> None:
    path, folder = tmp_path / "uploads.db", tmp_path / "aside"
    store_uploads(path, uploads_of(1, 400))
    bad = {f"phone-{device}/e1/{seq}" for device in range(0, 20, 7) for seq in range(1, 400, 80)}
    hook.refused = dict.fromkeys(bad, 422)
    hook.delay_s = 0.005
    killed = kill_at_random(
        hook.url, path, "--set-aside", folder, rows=lambda: len(hook.rows) // 4, times=4, seed=3
    )  # fmt: skip
    assert killed >= 2
    assert sorted(keys_in(folder)) == sorted(bad)
    assert set(hook.keys) == keys_of(uploads_of(1, 400)) - bad


@pytest.mark.asyncio
async def test_a_folder_of_refused_rows_is_bounded(hook: Hook, uploads: Path, tmp_path: Path) -> None:
    folder = tmp_path / "aside"
    bad = [f"phone-{device}/e1/30" for device in range(3)]
    hook.refused = dict.fromkeys(bad, 422)
    async with asyncio.timeout(60), open_uploads(uploads) as store:
        with pytest.raises(SinkError, match=r"has 2 rows.*also refuses the row 'phone-2/e1/30'.*features resend"):
            await runner_of(store, hook, AsideFolder(folder, "g", max_rows=2)).run(once=True)
        assert keys_in(folder) == bad[:2]
        hook.refused = {bad[2]: 422}
        assert await runner_of(store, hook, AsideFolder(folder, "g", max_rows=3)).run(once=True)
    assert keys_in(folder) == bad
    assert set(hook.keys) == keys_of(uploads_of(1, 50)) - {bad[2]}


@pytest.mark.asyncio
async def test_a_full_disk_is_waited_for_before_the_position_moves(
    hook: Hook, uploads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = write_file, [errno.ENOSPC, errno.ENOSPC]

    def write(path: Path, data: bytes | str) -> None:
        if path.suffix == ".json" and failures:
            raise OSError(failures.pop(), "the disk is full")
        real(path, data)

    monkeypatch.setattr("walle.sinks.aside_folder.write_file", write)
    hook.refused = {BAD: 422}
    async with asyncio.timeout(60), open_uploads(uploads) as store:
        runner = runner_of(store, hook, AsideFolder(tmp_path / "aside", "g"))
        assert await runner.run(once=True)
    assert (runner.status.retries, runner.status.set_aside, runner.status.sent) == (2, 1, 999)
    assert keys_in(tmp_path / "aside") == [BAD]
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)) - {BAD})


@pytest.mark.asyncio
async def test_a_folder_that_cannot_be_written_is_refused_at_the_start(
    hook: Hook, uploads: Path, tmp_path: Path
) -> None:
    (tmp_path / "aside").write_text("a file")
    async with asyncio.timeout(60), open_uploads(uploads) as store:
        with pytest.raises(SinkError, match="aside/g: cannot be written"):
            await runner_of(store, hook, AsideFolder(tmp_path / "aside", "g")).run(once=True)
    assert hook.rows == []


@pytest.mark.asyncio
async def test_a_row_is_read_from_its_file_as_it_was(tmp_path: Path) -> None:
    folder = AsideFolder(tmp_path, "g")
    await folder.start()
    rows = [
        SinkRow(position, one._replace(device_id=device, payload=payload))
        for position, (one, device, payload) in enumerate(
            zip(uploads_of(1, 3, devices=1), ("d", "../é/\u2028", "d"), (b"\xff\xff", b"\xc0", b"\x01"), strict=True), 1
        )
    ]
    for row in reversed(rows):
        await folder.put(Refusal(row, "no"), "t")
    assert list(folder.rows()) == rows
    (tmp_path / "g" / "x.json").write_text("{}")
    with pytest.raises(SinkError, match=r"x\.json is not a row that a sink set aside"):
        list(folder.rows())


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    found = resend(tmp_path / "typo", "https://x/y")
    assert found.returncode == 1
    assert "typo/g: does not exist; give the folder of --set-aside" in " ".join(found.stderr.split())
    assert not (tmp_path / "typo").exists()
