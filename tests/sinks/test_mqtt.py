"""The sink to MQTT, against a real Mosquitto broker."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.mqtt_broker import PROGRAM, MqttBroker
from tests.sinks.sink_samples import (
    command,
    keys_of,
    kill_at_random,
    run_once,
    running,
    store_uploads,
    uploads_of,
    wait_until,
)

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
            with running(target, uploads, "--once", env={"WALLE_SINK_PASSWORD": password}) as process:
                _, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert words in " ".join(err.split())
        run_once(f"mqtt://sink@127.0.0.1:{broker.port}/features", uploads, env={"WALLE_SINK_PASSWORD": "secret"})
        wait_until(lambda: set(reader.keys) == keys_of(uploads_of(1, 50)))
    finally:
        reader.close()
        broker.stop()


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


def test_an_address_without_a_topic_is_refused(uploads: Path) -> None:
    import subprocess

    for target in ("mqtt://127.0.0.1", "mqtt://127.0.0.1/x?qos=0"):
        found = subprocess.run(command(target, uploads), capture_output=True, text=True, timeout=30, check=False)
        assert found.returncode == 1
        assert "name the broker and a topic" in found.stderr or "option 'qos'" in found.stderr
