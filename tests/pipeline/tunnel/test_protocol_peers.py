"""A second implementation of the protocol, written from its page alone, at either end of the real tunnel."""

import asyncio
import dataclasses
import zlib
from typing import Any

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from scripts.protocol_vectors import dictionary
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.plain_tunnel import PlainCloud, PlainDevice, next_chain
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, fill, running, stored, until
from walle.pipeline.tunnel.client.client import RequestError
from walle.pipeline.tunnel.dictionaries import Dictionary


def _upload(seq: int, payload: bytes = b"") -> dict[str, Any]:
    return {"seq": seq, "topic": "ipv", "payload": payload or b"feature %d" % seq, "sent_ms": 1000 + seq}


async def _acked(device: PlainDevice, seq: int) -> None:
    while await device.hear() != ("Ack", {"seq": seq}):
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_plain_device_is_served_in_its_protocol_version(
    cloud: TunnelCloud, authority: TunnelAuthority, version: int
) -> None:
    async with cloud, asyncio.timeout(10):
        async with PlainDevice.connect(cloud.server.port, authority.device_context(), version) as device:
            welcome = await device.hello("device-0", "e")
            assert welcome is not None
            assert welcome[0] == "Welcome"
            assert welcome[1].get("protocol", 2) == version
            assert ("window_bytes" in welcome[1]) == (version >= 3)
            device.say("Upload", **_upload(1))
            device.say("Request", request_id=7, topic="ask", payload=b"x" * 2000, priority=1, deadline_ms=10_000)
            device.say("Ping", token=5)
            answer = {"request_id": 7, "payload": b"device-0 ask " + b"x" * 2000, "error": "", "code": ""}
            response = {key: answer[key] for key in list(answer)[: 3 if version == 2 else 4]}
            awaited = [("Pong", {"token": 5}), ("Ack", {"seq": 1}), ("Response", response)]
            while awaited:
                heard = await device.hear()
                if heard != ("Pong", {"token": 0}):  # a probe of the server, where the disk is slow
                    assert heard in awaited
                    awaited.remove(heard)
            device.say("Upload", **_upload(3))
            refusal = await device.hear()
            assert refusal is not None
            assert refusal[1]["code"] == "gap"
            assert ("host" in refusal[1]) == (version >= 3)
        chain = next_chain(zlib.crc32(b"e"), _upload(1))
        async with PlainDevice.connect(cloud.server.port, authority.device_context(), version) as device:
            welcome = await device.hello("device-0", "e", acked=1, chain=chain)
            assert welcome is not None
            assert (welcome[1]["acked"], welcome[1]["chain"]) == (1, chain)
        assert [seq for seq, _, _ in await stored(cloud.ingest)] == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize(("spoken", "answered"), [(99, 4), (1, None)])
async def test_the_lower_version_of_both_sides_is_used_and_an_older_one_is_refused(
    cloud: TunnelCloud, authority: TunnelAuthority, spoken: int, answered: int | None
) -> None:
    async with cloud, PlainDevice.connect(cloud.server.port, authority.device_context()) as device:
        device.version = spoken
        heard = await device.hello("device-0", "e")
        assert heard is not None
        if answered is None:
            assert heard[1]["code"] == "protocol"
            assert "speaks 2 to 4" in heard[1]["message"]
        else:
            assert heard[1]["protocol"] == answered


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("version", "expected"), [(3, [("ipv\0v7", "")] * 4), (4, [("ipv", "v7")] * 3 + [("ipv", "")])]
)
async def test_text_after_a_nul_in_a_topic_is_a_version_only_in_protocol_4(
    cloud: TunnelCloud, authority: TunnelAuthority, version: int, expected: list[tuple[str, str]]
) -> None:
    async with cloud, asyncio.timeout(10):
        async with PlainDevice.connect(cloud.server.port, authority.device_context(), version) as device:
            await device.hello("device-0", "e")
            uploads = [{**_upload(seq), "topic": "ipv\0v7"} for seq in (1, 2, 3, 4)]
            uploads[3]["topic"] += "" if version == 3 else " is not a version"
            device.say("Upload", **uploads[0])
            device.say("UploadBatch", uploads=uploads[1:])
            await _acked(device, 4)
        rows = [row for _, row in await cloud.ingest.query()]
        assert [(row.topic, row.version) for row in rows] == expected
        chain = zlib.crc32(b"e")
        for upload in uploads:
            chain = next_chain(chain, upload if version == 3 else {**upload, "topic": "ipv"})
        async with PlainDevice.connect(cloud.server.port, authority.device_context(), version) as device:
            welcome = await device.hello("device-0", "e", acked=4, chain=chain)
            assert welcome is not None
            assert (welcome[1]["acked"], welcome[1]["chain"]) == (4, chain)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [3, 4])
async def test_the_real_client_sends_versions_to_a_cloud_that_reads_them(
    make_client: MakeClient, authority: TunnelAuthority, version: int
) -> None:
    outbox = MemoryOutbox()
    fill(outbox, 30)
    outbox.uploads = [dataclasses.replace(one, version=f"v{1 + one.seq // 10}") for one in outbox.uploads]
    plain = PlainCloud(authority.server_context(), version=version)
    async with plain.serve(), asyncio.timeout(20):
        client = make_client(outbox, plain.port)
        async with running(client):
            await client.drained()
    kept = plain.uploads["device-0", "epoch-1"]
    assert {upload["topic"] for upload in kept} == {"ipv"}
    expected = [f"v{1 + seq // 10}" if version == 4 else "" for seq in range(1, 31)]
    assert [upload.get("version", "") for upload in kept] == expected
    assert plain.chains["device-0", "epoch-1"] == outbox.chains[30]


@pytest.mark.asyncio
async def test_a_plain_device_sends_batches_and_dictionaries(cloud: TunnelCloud, authority: TunnelAuthority) -> None:
    learned = dictionary()

    async def find(digest: str) -> bytes | None:
        return learned if digest == Dictionary(learned).digest else None

    cloud.dictionaries = find
    async with cloud, asyncio.timeout(10):
        async with PlainDevice.connect(cloud.server.port, authority.device_context()) as device:
            welcome = await device.hello("device-0", "e", files=[b"another", learned])
            assert welcome is not None
            assert welcome[1]["dictionaries"] == "2"
            device.say("UploadBatch", uploads=[_upload(1), _upload(2)])
            device.say("UploadBatch", uploads=[_upload(seq, b"x" * 100) for seq in range(3, 9)], number=2)
            device.say("Upload", **_upload(9), number=2)
            await _acked(device, 9)
            device.dictionaries[1] = learned  # the cloud did not say that it has this one
            device.say("Upload", **_upload(10), number=1)
            refusal = await device.hear()
            assert refusal is not None
            assert (refusal[1]["code"], refusal[1]["retry_s"]) == ("dictionary", 0.0)
        assert len(await stored(cloud.ingest)) == 9


@pytest.mark.asyncio
async def test_the_real_client_with_a_plain_cloud(make_client: MakeClient, authority: TunnelAuthority) -> None:
    outbox = MemoryOutbox()
    sent = fill(outbox, 300, size=3000)
    learned = Dictionary(dictionary())
    plain = PlainCloud(authority.server_context())
    plain.files[learned.digest] = dictionary()
    stopped = asyncio.Event()

    async def on_request(request: dict[str, Any]) -> bytes:
        if request["topic"] == "slow":
            stopped.set()
            await asyncio.sleep(60)
        return bytes(request["payload"][::-1])

    plain.on_request = on_request
    async with plain.serve(), asyncio.timeout(20):
        client = make_client(outbox, plain.port)
        client.use_dictionaries({"ipv": learned})
        async with running(client):
            assert await client.request("ask", b"abc", priority=3, timeout=9.0) == b"cba"
            await client.drained()
            with pytest.raises(RequestError) as raised:
                await client.request("slow", b"", timeout=0.3)
            assert raised.value.code == "expired"
            await stopped.wait()
            await until(lambda: plain.heard[-1][0] == "Cancel")
    kept = plain.uploads["device-0", "epoch-1"]
    assert [(upload["seq"], upload["topic"], upload["payload"]) for upload in kept] == sent
    assert plain.chains["device-0", "epoch-1"] == outbox.chains[300]
    requests = [values for name, values in plain.heard if name == "Request"]
    assert (requests[0]["priority"], requests[0]["deadline_ms"] > 8000) == (3, True)
    assert requests[1]["deadline_ms"] <= 300
    # Within the credit: 10 uploads were allowed, so no batch has more.
    sizes = [len(values["uploads"]) for name, values in plain.heard if name == "UploadBatch"]
    assert sizes
    assert max(sizes) <= 10


@pytest.mark.asyncio
async def test_the_real_client_reads_an_answer_with_a_dictionary(
    make_client: MakeClient, authority: TunnelAuthority
) -> None:
    learned = Dictionary(dictionary())
    plain = PlainCloud(authority.server_context())
    plain.files[learned.digest] = dictionary()

    async def on_request(request: dict[str, Any]) -> bytes:
        answer = {"request_id": request["request_id"], "payload": b"y" * 500, "error": "", "code": ""}
        plain.ends[-1].say("Response", number=1, **answer)
        return b"a second answer is ignored"

    plain.on_request = on_request
    async with plain.serve(), asyncio.timeout(10):
        client = make_client(MemoryOutbox(), plain.port)
        client.use_dictionaries({"ipv": learned})
        async with running(client):
            assert await client.request("ask", b"") == b"y" * 500
            assert client.connections == 1


@pytest.mark.asyncio
async def test_the_real_client_follows_a_plain_cloud_that_drains(
    make_client: MakeClient, authority: TunnelAuthority
) -> None:
    outbox = MemoryOutbox()
    context = authority.server_context()
    first, second = PlainCloud(context), PlainCloud(context)
    async with first.serve(), second.serve(), asyncio.timeout(10):
        client = make_client(outbox, first.port)
        async with running(client):
            fill(outbox, 5)
            await client.drained()
            second.uploads["device-0", "epoch-1"] = list(first.uploads["device-0", "epoch-1"])
            second.chains["device-0", "epoch-1"] = first.chains["device-0", "epoch-1"]
            first.ends[0].say("Drain", after_s=0.0, spread_s=0.05, host="127.0.0.1", port=second.port)
            await until(lambda: len(second.ends) == 1 and client.connected)
            fill(outbox, 5)
            await client.drained()
            assert len(first.uploads["device-0", "epoch-1"]) == 5
            assert len(second.uploads["device-0", "epoch-1"]) == 10


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Drain", {"after_s": 0.0, "spread_s": 0.0, "host": "bad host\0", "port": 80}),
        ("Drain", {"after_s": 0.0, "spread_s": 0.0, "host": "a..b", "port": 80}),
        ("Drain", {"after_s": 0.0, "spread_s": 0.0, "host": "fine", "port": 70_000}),
        ("Refusal", {"code": "draining", "message": "", "retry_s": 0.0, "host": "x" * 64, "port": 80}),
        ("Ack", {"seq": 6}),  # only 5 were made
    ],
)
async def test_impossible_values_of_a_cloud_end_the_connection_and_nothing_else(
    make_client: MakeClient, authority: TunnelAuthority, name: str, values: dict[str, Any]
) -> None:
    outbox = MemoryOutbox()
    plain = PlainCloud(authority.server_context())
    async with plain.serve(), asyncio.timeout(10):
        client = make_client(outbox, plain.port)
        async with running(client) as task:
            fill(outbox, 5)
            await client.drained()
            plain.ends[-1].say(name, **values)
            await until(lambda: len(plain.ends) == 2 and client.connected)
            fill(outbox, 5)
            await client.drained()
            assert not task.done()
        assert len(plain.uploads["device-0", "epoch-1"]) == 10


@pytest.mark.asyncio
@pytest.mark.parametrize("window", [0, -1])
async def test_a_welcome_with_impossible_values_is_refused(
    make_client: MakeClient, authority: TunnelAuthority, window: int
) -> None:
    plain = PlainCloud(authority.server_context(), window=window)
    async with plain.serve(), asyncio.timeout(10):
        client = make_client(MemoryOutbox(), plain.port)
        async with running(client):
            await until(lambda: len(plain.ends) >= 3)
            assert "impossible values" in str(client.last_error)
            assert not client.connected
