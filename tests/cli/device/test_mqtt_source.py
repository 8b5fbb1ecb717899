"""`walle device run --events mqtt://...`, against a real Mosquitto broker."""

import asyncio
import contextlib
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.mqtt_broker import PROGRAM, MqttBroker
from tests.sim.program import Program, Programs
from tests.sim.traced_memory import traced_memory
from walle.base.address import parse_address
from walle.cli.device.mqtt_source import MqttSource
from walle.errors import ConfigError
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_journal import EventJournal
from walle.pipeline.events.rejected_events import recorded

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt of the extra mqtt is not installed")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")


class Publisher:
    """An app that sends events, and waits for the broker, or with QoS 0 for the socket."""

    def __init__(self, port: int) -> None:
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="app", protocol=paho.MQTTv5)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def send(self, *payloads: bytes, topic: str = "kiosk/1/events", qos: int = 1) -> None:
        for info in [self._client.publish(topic, payload, qos=qos) for payload in payloads]:
            info.wait_for_publish(30)
            assert info.is_published()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def event(number: int) -> bytes:
    found = {"event_id": "click", "page_id": "p", "ts_ms": 1_700_000_000_000 + number, "contents": {"id": f"m{number}"}}
    return json.dumps(found).encode()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    found = MqttBroker(tmp_path / "broker")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def publisher(broker: MqttBroker) -> Iterator[Publisher]:
    found = Publisher(broker.port)
    yield found
    found.close()


def source_of(broker: MqttBroker, options: str = "") -> MqttSource:
    return MqttSource(parse_address(f"{broker.url}/kiosk/+/events{options}", password_in="X"), "d0")


@pytest.mark.asyncio
async def test_a_message_is_acknowledged_when_the_next_is_asked_for(broker: MqttBroker, publisher: Publisher) -> None:
    async with asyncio.timeout(30), contextlib.aclosing(source_of(broker).events(0)) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)  # the session begins
        await asyncio.to_thread(publisher.send, event(1), event(2), event(3))
        assert await first == (None, event(1))
        assert await anext(events) == (None, event(2))  # 1 is acknowledged, 2 is not
        await asyncio.sleep(0.2)
    await asyncio.to_thread(publisher.send, event(4))  # nobody reads meanwhile
    async with asyncio.timeout(30), contextlib.aclosing(source_of(broker).events(0)) as events:
        assert [(await anext(events))[1] for _ in range(3)] == [event(2), event(3), event(4)]


@pytest.mark.asyncio
async def test_a_broker_that_is_away_is_asked_again_and_keeps_the_messages(
    broker: MqttBroker, publisher: Publisher
) -> None:
    source = source_of(broker)
    async with asyncio.timeout(60), contextlib.aclosing(source.events(0)) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(publisher.send, event(1))
        assert (await first)[1] == event(1)
        second = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.2)
        broker.stop()
        while not source.error:  # noqa: ASYNC110 - the source sets no event
            await asyncio.sleep(0.01)
        broker.start()
        while source.error:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        other = Publisher(broker.port)
        await asyncio.to_thread(other.send, event(2))
        other.close()
        assert (await second)[1] == event(2)


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_burst_waits_at_the_broker_and_arrives_whole(broker: MqttBroker, publisher: Publisher) -> None:
    count, size = 3_000, 4096  # more of each QoS than the buffers of a connection hold

    def burst() -> None:
        for start in range(0, count, 200):
            for qos in (0, 1):
                payloads = [f"{qos} {number} ".encode().ljust(size, b".") for number in range(start, start + 200)]
                publisher.send(*payloads, qos=qos)

    async with asyncio.timeout(100), contextlib.aclosing(source_of(broker).events(0)) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(publisher.send, event(1))
        await first
        with traced_memory():
            await asyncio.to_thread(burst)  # the device is busy with the first
            held_bytes, _ = tracemalloc.get_traced_memory()
        assert held_bytes < 2 << 20  # a part of 23 MiB
        found: dict[str, list[int]] = {"0": [], "1": []}
        while min(map(len, found.values())) < count:
            qos, number, _ = (await anext(events))[1].decode().split(" ")
            found[qos].append(int(number))
        assert found["1"] == list(range(count))
        assert found["0"] == list(range(count))


@pytest.mark.asyncio
async def test_messages_of_a_session_that_fill_the_bound_come_before_the_subscription(
    broker: MqttBroker, publisher: Publisher
) -> None:
    async with asyncio.timeout(30), contextlib.aclosing(source_of(broker).events(0)) as events:
        asking = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)  # the session begins
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.to_thread(publisher.send, *map(event, range(300)))
    source = source_of(broker)
    async with asyncio.timeout(30), contextlib.aclosing(source.events(0)) as events:
        assert [(await anext(events))[1] for _ in range(300)] == [event(number) for number in range(300)]
    assert source.error == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("way", [*at_night("kill"), "stop"])
async def test_a_broker_that_goes_is_one_line_with_the_cause(
    way: str, broker: MqttBroker, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    source = source_of(broker)
    async with asyncio.timeout(60), contextlib.aclosing(source.events(0)) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(publisher.send, event(1))
        await first
        getattr(broker, way)()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await anext(events)
    gc.collect()
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 1, lines
    assert "the connection was lost: the broker or the network closed it" in lines[0]
    assert "Connection refused" in source.error  # the broker has stopped


def test_wrong_addresses_are_refused(broker: MqttBroker) -> None:
    for address, words in (
        ("mqtt://127.0.0.1", "name the broker and a topic"),
        ("mqtt://127.0.0.1/x?qos=2", "option 'qos'"),
    ):
        with pytest.raises(ConfigError, match=words):
            MqttSource(parse_address(address, password_in="X"), "d0")
    with pytest.raises(ConfigError, match="give the password in WALLE_EVENTS_PASSWORD"):
        parse_address("mqtt://me:secret@127.0.0.1/x", password_in="WALLE_EVENTS_PASSWORD")
    assert parse_address("mqtt://h/site/#?id=uuid", password_in="X").path == "/site/#"


def recorded_events(folder: Path) -> list[Any]:
    """Return the events of a device's journal, whose process has ended."""

    async def read() -> list[Any]:
        async with EventJournal(folder / "events") as journal:
            return [one async for _, one in journal.replay(journal.first_position) if isinstance(one, Event)]

    return asyncio.run(read())


def enrolled(start: Programs, tmp_path: Path, *options: str) -> list[str]:
    """Return the command of a device with an identity, whose cloud is gone."""
    cloud = start("cloud", "up", str(tmp_path / "cloud"), "--http-port=0", "--tunnel-port=0", "--plain-http", "--json")
    join = cloud.wait_for(lambda line: "url" in line)["join_file"]
    device = ["device", "run", str(tmp_path / "device"), f"--join={join}", "--id=d0", "--json", "--status-s=0.05"]
    first = start(*device)
    first.wait_for(lambda line: line["state"] == "running")
    first.process.terminate()
    assert first.end() == 0, first.errors
    return [*device, *options]


def stop(program: Program) -> dict[str, Any]:
    program.process.terminate()
    assert program.end() == 0, program.errors
    return program.lines[-1]


@pytest.mark.system
def test_messages_become_events_and_what_is_none_is_set_aside(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path
) -> None:
    with Programs() as start:
        command = enrolled(start, tmp_path, f"--events={broker.url}/kiosk/#?id=id")
        device = start(*command)
        device.wait_for(lambda line: line["state"] == "playing")
        time.sleep(1.0)  # the device subscribes
        publisher.send(
            event(1), b"no JSON", b"", b'{"event_id": 7}', b"[" + event(2) + b"," + event(3) + b"]", event(1)
        )
        device.wait_for(lambda line: line["events"] >= 4 and line["rejected"] >= 2)
        last = stop(device)
        assert (last["rejected"], last["duplicates"], last["events_error"]) == (2, 1, "")
    found = recorded_events(tmp_path / "device")
    assert [one.contents["id"] for one in found] == ["m1", "m2", "m3"]
    assert [row["text"] for row in recorded(tmp_path / "device")] == ["no JSON", '{"event_id": 7}']


@pytest.mark.night
@pytest.mark.system
@pytest.mark.parametrize("seed", range(2))
def test_a_device_that_is_killed_takes_each_message_once(
    seed: int, broker: MqttBroker, publisher: Publisher, tmp_path: Path
) -> None:
    rng, sent = random.Random(seed), 0
    with Programs() as start:
        command = enrolled(start, tmp_path, f"--events={broker.url}/kiosk/#?id=id")
        first = start(*command)  # makes the session
        first.wait_for(lambda line: line["state"] == "playing")
        time.sleep(1.0)
        first.kill()
        for _ in range(4):
            publisher.send(*map(event, range(sent, sent + 150)))
            sent += 150
            device = start(*command)
            upto = rng.randint(1, 100)
            device.wait_for(lambda line, upto=upto: line["events"] >= upto)  # type: ignore[misc]
            time.sleep(rng.random() * 0.05)
            device.kill()
        device = start(*command)
        publisher.send(event(sent))
        device.wait_for(lambda line: line["events"] > 0)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            before = device.lines[-1]["events"]
            time.sleep(1.5)
            if device.lines[-1]["events"] == before:
                break
        stop(device)
    found = [one.contents["id"] for one in recorded_events(tmp_path / "device")]
    assert sorted(found) == sorted(f"m{number}" for number in range(sent + 1))
