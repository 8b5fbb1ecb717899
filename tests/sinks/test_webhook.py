"""The sink to a webhook, against a real HTTP server that fails, delays and dies."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from tests.night.cases import at_night
from tests.sinks.hook import Hook
from tests.sinks.sink_samples import (
    command,
    keys_of,
    kill_at_random,
    run_once,
    run_to_end,
    running,
    store_uploads,
    uploads_of,
    wait_until,
)
from walle.pipeline.ingest.store.feature_reader import FeatureFilter
from walle.pipeline.ingest.stores import open_uploads
from walle.sinks import RunnerConfig, SinkError, SinkRunner
from walle.sinks.webhook import WebhookSink


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


async def send(path: Path, sink: WebhookSink, **choice: Any) -> SinkRunner:
    async with open_uploads(path, create=True) as store:
        config = RunnerConfig(group="g", wanted=FeatureFilter(**choice), lease_s=2.0)
        runner = SinkRunner(store, sink, config, rng=random.Random(1))
        async with asyncio.timeout(30):
            await runner.run(once=True)
        return runner


def test_each_row_arrives_with_its_lineage(hook: Hook, uploads: Path) -> None:
    lines = run_once(hook.url, uploads, "--json", env={"WALLE_SINK_TOKEN": "s3cret"}).splitlines()
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)))
    assert {header["authorization"] for _, header, _, _ in hook.requests} == {"Bearer s3cret"}
    first = hook.rows[0]
    assert {name: first[name] for name in ("device", "task", "version", "position", "epoch", "seq", "payload")} == {
        "device": "phone-0", "task": "shop/visits", "version": "v2", "position": 1, "epoch": "e1", "seq": 1,
        "payload": {"page": "item/1", "n": 1},
    }  # fmt: skip
    last = json.loads(lines[-1])
    assert last["sent"] == 1000
    assert last["error"] == ""
    assert "s3cret" not in "".join(lines)
    assert "0 features sent" in run_once(hook.url, uploads)  # the group's position stays


@pytest.mark.asyncio
async def test_attempts_that_fail_are_repeated_with_the_same_key_and_after_the_time_asked_for(
    hook: Hook, uploads: Path
) -> None:
    hook.answers = [
        Response(status_code=503, headers={"Retry-After": "1"}),
        Response(status_code=429),
        Response(status_code=500),
    ]
    runner = await send(uploads, WebhookSink(hook.url, "g"))
    assert len({key for key, *_ in hook.requests[:4]}) == 1
    assert hook.requests[1][3] - hook.requests[0][3] >= 1.0
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)))
    assert runner.status.retries == 3
    assert runner.status.error == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [301, 401, 404, 410])
async def test_an_answer_that_no_retry_changes_stops_the_sink_and_skips_nothing(
    status: int, hook: Hook, uploads: Path
) -> None:
    hook.answers = [Response(content="no such hook", status_code=status)]
    with pytest.raises(SinkError, match=f"answered {status}.*no such hook.*nothing is skipped"):
        await send(uploads, WebhookSink(hook.url, "g"))
    await send(uploads, WebhookSink(hook.url, "g"))
    assert set(hook.keys) == keys_of(uploads_of(1, 50))


@pytest.mark.asyncio
async def test_a_request_that_is_too_large_is_halved(hook: Hook, uploads: Path) -> None:
    hook.answers = [Response(status_code=413), Response(status_code=413)]
    await send(uploads, WebhookSink(hook.url, "g"))
    assert [count for _, _, count, _ in hook.requests[:3]] == [500, 250, 125]
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)))


@pytest.mark.asyncio
async def test_only_what_is_chosen_is_sent(hook: Hook, uploads: Path) -> None:
    async with open_uploads(uploads, create=True) as store:
        await store.accept(uploads_of(51, 52, topic="shop/other"))
    runner = await send(uploads, WebhookSink(hook.url, "g"), task="shop/other")
    assert set(hook.keys) == keys_of(uploads_of(51, 52))
    assert runner.status.passed == 1000


@pytest.mark.asyncio
async def test_a_store_that_is_replaced_is_read_from_the_position_in_it(hook: Hook, tmp_path: Path) -> None:
    path, other = tmp_path / "uploads.db", tmp_path / "other.db"
    async with open_uploads(other, create=True) as store:
        await store.accept(uploads_of(1, 3, topic="shop/restored"))
    async with asyncio.timeout(60), open_uploads(path, create=True) as store:
        await store.accept(uploads_of(1, 50))
        runner = SinkRunner(
            store, WebhookSink(hook.url, "g"), RunnerConfig(group="g", lease_s=2.0), rng=random.Random(1)
        )
        run = asyncio.create_task(runner.run())
        while len(hook.rows) < 1000:  # noqa: ASYNC110 - another thread receives them
            await asyncio.sleep(0.01)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        other.replace(path)
        while len(hook.rows) < 1060:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        runner.stop()
        await run
    assert {row["topic"] for row in hook.rows[1000:]} == {"shop/restored"}


@pytest.mark.night
def test_a_receiver_that_is_down_is_waited_for_and_nothing_is_lost(hook: Hook, uploads: Path) -> None:
    hook.stop()
    with running(hook.url, uploads, "--once", "--json") as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert "does not answer" in line["error"]
        time.sleep(2.5)  # longer than the lease
        hook.start()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.count("trying again until it works") == 1
    assert "works again" in err
    last = json.loads(out.splitlines()[-1])
    assert last["sent"] == 1000
    assert last["retries"] >= 2
    assert sorted(hook.keys) == sorted(keys_of(uploads_of(1, 50)))  # the devices were kept meanwhile: none twice


def test_a_stop_ends_it_with_status_0_also_while_the_receiver_is_down(hook: Hook, uploads: Path) -> None:
    hook.stop()
    with running(hook.url, uploads, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    hook.start()
    begin_s = time.monotonic()
    run_once(hook.url, uploads, "--lease-s", "60")  # soon: the devices were released
    assert time.monotonic() - begin_s < 20
    assert set(hook.keys) == keys_of(uploads_of(1, 50))


@pytest.mark.night
def test_several_processes_of_a_group_share_the_devices(hook: Hook, uploads: Path) -> None:
    with running(hook.url, uploads), running(hook.url, uploads):
        wait_until(lambda: set(hook.keys) == keys_of(uploads_of(1, 50)))
        store_uploads(uploads, uploads_of(51, 100))
        wait_until(lambda: set(hook.keys) == keys_of(uploads_of(1, 100)))


@pytest.mark.parametrize("seed", [0, *at_night(1)])
def test_a_sink_that_is_killed_loses_nothing(seed: int, hook: Hook, tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 400))
    hook.delay_s = 0.02
    killed = kill_at_random(hook.url, path, rows=lambda: len(hook.rows), times=4, seed=seed)
    assert killed >= 2
    assert set(hook.keys) == keys_of(uploads_of(1, 400))
    by_key = {row["key"]: row for row in hook.rows}
    assert all(by_key[row["key"]] == row for row in hook.rows)  # a repetition is equal


@pytest.mark.night
def test_wrong_uses_are_named(tmp_path: Path, uploads: Path) -> None:
    import subprocess

    def refusal(target: str, path: Path, *options: str) -> str:
        found = subprocess.run(command(target, path, *options), capture_output=True, text=True, timeout=30, check=False)
        assert found.returncode in (1, 2)
        return " ".join((found.stderr + found.stdout).split())

    assert "the target 'ftp://x/y' is unknown" in refusal("ftp://x/y", uploads)
    assert "give the password in WALLE_SINK_TOKEN" in refusal("https://me:secret@x/y", uploads)
    assert "give the password in WALLE_SINK_PASSWORD" in refusal("mqtt://me:secret@x/y", uploads)
    assert "does not exist" in refusal("https://x/y", tmp_path / "typo.db")
    assert "letters, digits" in refusal("https://x/y", uploads, "--group", "a/b")
    assert "option 'endpont' of a s3:// address is unknown" in refusal("s3://b/p?endpont=x", uploads)
    assert "name the host" in refusal("https:///x", uploads)
    assert "has no // after its scheme" in refusal("kafka:/broker/topic", uploads)
    assert "give the token in WALLE_SINK_TOKEN" in refusal("https://token@x/y", uploads)
    for address in ("mqtt://me:secret@x:18x3/t", "mqtt://me:secret/x@h/t"):
        found = refusal(address, uploads)
        assert "the password in WALLE_SINK_PASSWORD" in found
        assert "secret" not in found


@pytest.mark.parametrize(("token", "what"), [("tök", "printable ASCII"), ("secret", "would be sent unencrypted")])
def test_a_token_that_cannot_be_sent_safely_is_refused(uploads: Path, token: str, what: str) -> None:
    refused = run_to_end("http://hook.example/x", uploads, env={"WALLE_SINK_TOKEN": token})
    assert refused.returncode == 1
    assert what in " ".join(refused.stderr.split())
    assert token not in refused.stderr


def test_once_ends_while_a_store_gets_more(hook: Hook, uploads: Path) -> None:
    with running(hook.url, uploads, "--once") as process:
        seq = 51
        while process.poll() is None and seq < 1000:
            store_uploads(uploads, uploads_of(seq, seq, devices=1))
            seq += 1
            time.sleep(0.1)
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert seq < 200
    assert set(hook.keys) >= keys_of(uploads_of(1, 50))


@pytest.mark.night
def test_once_that_is_stopped_before_its_end_fails(hook: Hook, uploads: Path) -> None:
    hook.stop()
    with running(hook.url, uploads, "--once", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 1
