"""The sink to MQTT, against a real Mosquitto broker."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.mqtt_broker import PROGRAM, MqttBroker
from tests.sim.program import run_main
from tests.sinks.sink_samples import (
    keys_of,
    kill_at_random,
    run_once,
    run_to_end,
    running,
    store_uploads,
    uploads_of,
    wait_until,
    words_of,
)
from walle.base import plain
from walle.base.address import parse_address
from walle.client.mqtt import MqttConnection
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received
from walle.sinks import AsideFolder, RunnerConfig, SinkRunner
from walle.sinks.mqtt import MqttSink
from walle.sinks.mqtt_publisher import MqttPublisher, packet_bytes

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt of the extra mqtt is not installed")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")


class Subscriber:
    """A client that keeps what it gets, beside the sink."""

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        self.messages: list[Any] = []
        self._subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="reader", protocol=paho.MQTTv5)
        if user:
            self._client.username_pw_set(user, password)
        self._client.on_message = lambda _c, _u, message: self.messages.append(message)
        self._client.on_connect = lambda client, *_: client.subscribe("features/#", qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(30)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(message.payload) for message in list(self.messages)]

    @property
    def keys(self) -> list[str]:
        return [row["key"] for row in self.rows]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    found = MqttBroker(tmp_path / "broker")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def reader(broker: MqttBroker) -> Iterator[Subscriber]:
    found = Subscriber(broker.port)
    yield found
    found.close()


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 50))
    return path


def test_each_row_is_a_message_below_the_topic_with_its_key(
    broker: MqttBroker, reader: Subscriber, uploads: Path
) -> None:
    run_once(f"{broker.url}/features", uploads)
    wait_until(lambda: len(reader.messages) == 1000)
    assert sorted(reader.keys) == sorted(keys_of(uploads_of(1, 50)))
    message = reader.messages[0]
    assert message.topic == "features/shop/visits"
    assert message.qos == 1
    row = json.loads(message.payload)
    assert dict(message.properties.UserProperty) == {"key": row["key"]}
    assert (row["device"], row["version"], row["position"], row["payload"]) == (
        "phone-0", "v2", 1, {"page": "item/1", "n": 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "sent"),
    [("shop/#/+", "shop/_/_"), ("shop/a\x01b", "shop/a_b"), ("shop/a\nb", "shop/a_b"), ("shop/\ufffe", "shop/_")],
)
def test_no_topic_of_a_device_stops_the_sink(
    broker: MqttBroker, reader: Subscriber, tmp_path: Path, topic: str, sent: str
) -> None:
    path = tmp_path / "uploads.db"
    store_uploads(path, [*uploads_of(1, 1, devices=1, topic=topic), *uploads_of(2, 2, devices=1)])
    run_once(f"{broker.url}/features", path)
    wait_until(lambda: len(reader.messages) == 2)
    assert {message.topic for message in reader.messages} == {f"features/{sent}", "features/shop/visits"}


@pytest.mark.night
def test_a_broker_that_is_down_is_waited_for(broker: MqttBroker, uploads: Path) -> None:
    broker.stop()
    with running(f"{broker.url}/features", uploads, "--once", "--json") as process:
        assert process.stdout is not None
        assert "does not answer" in json.loads(process.stdout.readline())["error"]
        time.sleep(1.5)
        broker.start()
        reader = Subscriber(broker.port)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    last = json.loads(out.splitlines()[-1])
    assert (last["sent"], last["error"]) == (1000, "")
    assert last["retries"] >= 1
    assert err.count("trying again until it works") == 1
    reader.close()


@pytest.mark.night
def test_a_broker_that_is_killed_is_named_as_the_cause_and_sent_to_again(broker: MqttBroker, tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 400))
    reader = Subscriber(broker.port)
    with running(f"{broker.url}/features", path, "--once", "--json") as process:
        wait_until(lambda: len(reader.messages) > 300)
        broker.kill()
        reader.close()
        time.sleep(1.5)  # the sink tries again meanwhile
        broker.start()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert (lines[-1]["sent"], lines[-1]["error"]) == (8000, "")
    assert err.count("trying again until it works") == 1
    assert "the connection was lost: the broker or the network closed it; trying again" in err
    for noise in ("never retrieved", "Traceback", "asyncio"):
        assert noise not in err


def test_a_broker_that_refuses_stops_the_sink_and_nothing_is_skipped(tmp_path: Path, uploads: Path) -> None:
    users = {"sink": "secret", "reader": "secret"}
    broker = MqttBroker(
        tmp_path / "closed",
        users=users,
        rights="user sink\ntopic write features/#\nuser reader\ntopic read features/#\n",
    )
    broker.start()
    reader = Subscriber(broker.port, "reader", "secret")
    try:
        for target, password, words in (
            (f"mqtt://sink@127.0.0.1:{broker.port}/features", "wrong", "Not authorized"),
            (f"mqtt://sink@127.0.0.1:{broker.port}/elsewhere", "secret", "refused a message to 'elsewhere"),
        ):
            refused = run_to_end(target, uploads, env={"WALLE_SINK_PASSWORD": password})
            assert refused.returncode == 1
            assert words in " ".join(refused.stderr.split())
        run_once(f"mqtt://sink@127.0.0.1:{broker.port}/features", uploads, env={"WALLE_SINK_PASSWORD": "secret"})
        wait_until(lambda: set(reader.keys) == keys_of(uploads_of(1, 50)))
    finally:
        reader.close()
        broker.stop()


@pytest.mark.night
@pytest.mark.parametrize("seed", range(2))
def test_a_sink_that_is_killed_loses_nothing(seed: int, broker: MqttBroker, reader: Subscriber, tmp_path: Path) -> None:
    path = tmp_path / "uploads.db"
    store_uploads(path, uploads_of(1, 400))
    killed = kill_at_random(
        f"{broker.url}/features", path, rows=lambda: len(reader.messages), times=4, seed=seed
    )  # fmt: skip
    assert killed >= 2
    wait_until(lambda: set(reader.keys) == keys_of(uploads_of(1, 400)))
    by_key = {row["key"]: row for row in reader.rows}
    assert all(by_key[row["key"]] == row for row in reader.rows)  # a repetition is equal


@pytest.fixture
def narrow_broker(tmp_path: Path) -> Iterator[MqttBroker]:
    """A broker that takes packets of 3,000 bytes."""
    found = MqttBroker(tmp_path / "narrow", options=["max_packet_size 3000"])
    found.start()
    yield found
    found.stop()


def with_large(rows: list[Received], *seqs: int) -> list[Received]:
    return [one._replace(payload=plain.encode("x" * 5000)) if one.seq in seqs else one for one in rows]


def test_a_message_that_is_too_large_stops_the_sink_or_is_set_aside(narrow_broker: MqttBroker, tmp_path: Path) -> None:
    path, folder, rows = tmp_path / "uploads.db", tmp_path / "aside", uploads_of(1, 20)
    store_uploads(path, with_large(rows, 5, 6))
    bad = keys_of([one for one in rows if one.seq in (5, 6)])
    reader = Subscriber(narrow_broker.port)
    try:
        refused = run_to_end(f"{narrow_broker.url}/features", path)
        assert refused.returncode == 1
        text = " ".join(refused.stderr.split())
        assert "refuses the row 'phone-0/e1/5' (scenario 'shop', topic 'shop/visits'" in text
        assert "bytes; the broker accepts 3,000" in text
        assert "--set-aside FOLDER" in text
        out = run_once(f"{narrow_broker.url}/features", path, "--set-aside", folder)
        assert "40 refused and set aside" in " ".join(out.split())
        assert {json.loads(file.read_bytes())["row"]["key"] for file in (folder / "g").iterdir()} == bad
        wait_until(lambda: set(reader.keys) == keys_of(rows) - bad)
    finally:
        reader.close()


@pytest.mark.asyncio
async def test_a_message_that_ends_the_connection_is_found_among_those_sent_at_once(
    narrow_broker: MqttBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not announce its bound. Its reason may be lost behind messages that it has not read."""
    monkeypatch.setattr(MqttPublisher, "_on_connect", MqttConnection._on_connect)
    path, rows = tmp_path / "uploads.db", uploads_of(1, 20)
    bad = {f"phone-3/e1/{seq}" for seq in (5, 20)}
    reader = Subscriber(narrow_broker.port)
    large = [one._replace(payload=plain.encode("x" * 5000)) if keys_of([one]) & bad else one for one in rows]
    try:
        async with asyncio.timeout(60), open_uploads(path, create=True) as store:
            await store.accept(large)
            sink = MqttSink(parse_address(f"{narrow_broker.url}/features", password_in="X"), "g")
            aside = AsideFolder(tmp_path / "aside", "g")
            config = RunnerConfig(group="g", lease_s=2.0)
            runner = SinkRunner(store, sink, config, rng=random.Random(1), aside=aside)
            assert await runner.run(once=True)
        assert {row.key for row in aside.rows()} == bad
        assert (runner.status.set_aside, runner.status.sent) == (2, 398)
        await asyncio.to_thread(wait_until, lambda: set(reader.keys) == keys_of(rows) - bad)
    finally:
        reader.close()


@given(
    topic=st.text(min_size=1, max_size=200),
    payload_bytes=st.sampled_from([0, 10, 100, 126, 127, 128, 16_000, 16_383, 3_000_000]),
    key=st.text(max_size=200),
)
def test_the_size_of_a_packet_is_that_of_the_client(topic: str, payload_bytes: int, key: str) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties, VariableByteIntegers

    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = "application/json"
    properties.UserProperty = [("key", key)]
    remaining_bytes = 4 + len(topic.encode()) + len(properties.pack()) + payload_bytes
    length = VariableByteIntegers.encode(remaining_bytes)  # type: ignore[no-untyped-call]
    expected = 1 + len(length) + remaining_bytes
    assert packet_bytes(topic, bytes(payload_bytes), {"key": key}) == expected


def test_an_address_without_a_topic_is_refused(uploads: Path) -> None:
    for target in ("mqtt://127.0.0.1", "mqtt://127.0.0.1/x?qos=0"):
        found = run_main(*words_of(target, uploads))
        assert found.returncode == 1
        assert "name the broker and a topic" in found.stderr or "option 'qos'" in found.stderr
