"""Dictionaries of the tunnel: agreed on by their hashes, never a wrong one, and done without where there is none."""

import asyncio
import json
import random

import pytest

from benchmarks.tunnel_authority import TunnelAuthority
from tests.sim.memory_outbox import MemoryOutbox
from tests.sim.tunnel_cloud import TunnelCloud
from tests.sim.tunnel_rig import MakeClient, RawDevice, running, stored, until
from walle import protocol
from walle.pipeline.tunnel.dictionaries import Dictionary, DictionaryCache, DictionaryError, train_dictionary
from walle.pipeline.tunnel.frames import Decoder, Encoder, UnknownDictionaryError
from walle.pipeline.tunnel.layouts import UPLOAD
from walle.pipeline.tunnel.received import ResumePoint


def _feature(rng: random.Random) -> bytes:
    words = [rng.choice(["click", "scroll", "add_to_cart", "favourite"]) for _ in range(6)]
    visit = {"page_id": f"item/{rng.randrange(1000)}", "dwell_ms": rng.randrange(100_000), "actions": words}
    return json.dumps({**visit, "price_cents": rng.randrange(10_000), "channel": "mobile application"}).encode()


def _trained(seed: int) -> bytes:
    rng = random.Random(seed)
    return train_dictionary([UPLOAD.pack(protocol.Upload(n, "ipv", _feature(rng), n)) for n in range(400)], 4096)


_DATA = _trained(1)
_OTHER = _trained(2)


class Files:
    """The cloud's shared files by digest, which counts the look-ups."""

    def __init__(self, *files: bytes) -> None:
        self.by_digest = {Dictionary(data).digest: data for data in files}
        self.lookups = 0

    async def __call__(self, digest: str) -> bytes | None:
        self.lookups += 1
        return self.by_digest.get(digest)


def _fill(outbox: MemoryOutbox, count: int, seed: int = 3) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        outbox.add("ipv", _feature(rng))


async def _bytes_for(client_bytes: TunnelCloud, outbox: MemoryOutbox, client: object, count: int) -> int:
    """Return the bytes that arrive while `count` uploads go one at a time."""
    rng = random.Random(4)
    before = client_bytes.server.counts.bytes_in
    for _ in range(count):
        outbox.add("ipv", _feature(rng))
        await client.drained()  # type: ignore[attr-defined]
    return client_bytes.server.counts.bytes_in - before


@pytest.mark.asyncio
async def test_a_dictionary_that_the_cloud_has_halves_small_uploads(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    cloud.dictionaries = files = Files(_DATA)
    sizes = {}
    async with cloud:
        for name, known in (("without", {}), ("with", {"ipv": Dictionary(_DATA)})):
            outbox = MemoryOutbox(name)
            client = make_client(outbox, cloud.server.port)
            client.use_dictionaries(known)
            async with running(client), asyncio.timeout(10):
                await until(lambda client=client: client.connected)  # type: ignore[misc]
                sizes[name] = await _bytes_for(cloud, outbox, client, 50)
        assert files.lookups == 1
        assert await cloud.ingest.count() == 100
        payloads = [payload for _, _, payload in await stored(cloud.ingest)]
        assert payloads[:50] == payloads[50:]
    assert sizes["with"] < 0.5 * sizes["without"]


@pytest.mark.asyncio
async def test_a_dictionary_that_comes_later_renews_the_connection_once(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    cloud.dictionaries = Files(_DATA)
    async with cloud:
        outbox = MemoryOutbox()
        client = make_client(outbox, cloud.server.port)
        async with running(client), asyncio.timeout(10):
            await until(lambda: client.connected)
            _fill(outbox, 20)
            client.use_dictionaries({"ipv": Dictionary(_DATA)})
            await until(lambda: client.connections == 2 and client.connected)
            assert client._link is not None
            assert list(client._link.numbers.values()) == [1]
            client.use_dictionaries({"ipv": Dictionary(_DATA), "other": Dictionary(_DATA)})
            client.use_dictionaries({})
            client.use_dictionaries({"ipv": Dictionary(_DATA)})
            _fill(outbox, 20)
            await client.drained()
            assert client.connections == 2
            assert client.last_error is None
        assert await cloud.ingest.count() == 40


@pytest.mark.asyncio
async def test_a_dictionary_that_comes_after_the_hello_renews_the_connection(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    cloud.dictionaries = Files(_DATA)
    asked, answer = asyncio.Event(), asyncio.Event()
    async with cloud:
        resume = cloud.server.resume

        async def slow(hello: protocol.Hello) -> ResumePoint:
            asked.set()
            await answer.wait()
            return await resume(hello)

        cloud.server.resume = slow
        client = make_client(MemoryOutbox(), cloud.server.port)
        async with running(client), asyncio.timeout(10):
            await asked.wait()
            client.use_dictionaries({"ipv": Dictionary(_DATA)})
            answer.set()
            await until(lambda: client._link is not None and list(client._link.numbers.values()) == [1])
            assert client.connections == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["unknown", "wrong bytes", "no dictionary", "unreadable"])
async def test_uploads_go_without_a_dictionary_that_the_cloud_cannot_use(
    cloud: TunnelCloud, make_client: MakeClient, kind: str
) -> None:
    digest = Dictionary(_DATA).digest
    files = Files()
    if kind == "wrong bytes":
        files.by_digest[digest] = _OTHER
    elif kind == "no dictionary":
        files.by_digest[digest] = b"something else"

    async def find(wanted: str) -> bytes | None:
        if kind == "unreadable":
            raise OSError("the disk is away")
        return await files(wanted)

    cloud.dictionaries = find
    async with cloud:
        outbox = MemoryOutbox()
        _fill(outbox, 30)
        client = make_client(outbox, cloud.server.port)
        client.use_dictionaries({"ipv": Dictionary(_DATA)})
        async with running(client), asyncio.timeout(10):
            await client.drained()
            assert client.connections == 1
        rng = random.Random(3)
        assert await stored(cloud.ingest) == [(n, "ipv", _feature(rng)) for n in range(1, 31)]
        assert await cloud.ingest.count() == 30


@pytest.mark.asyncio
async def test_a_device_that_uses_an_unknown_dictionary_is_refused_and_sends_without(
    cloud: TunnelCloud, make_client: MakeClient
) -> None:
    async with cloud:
        outbox = MemoryOutbox()
        client = make_client(outbox, cloud.server.port)
        client.use_dictionaries({"ipv": Dictionary(_DATA)})
        async with running(client), asyncio.timeout(10):
            await until(lambda: client.connected)
            assert client._link is not None
            client._link.numbers = {Dictionary(_DATA).digest: 1}  # the Welcome could have named it
            _fill(outbox, 30)
            await client.drained()
            assert client.connections == 2
        assert cloud.server.counts.refusals == {"dictionary": 1}
        assert await cloud.ingest.count() == 30


@pytest.mark.asyncio
@pytest.mark.parametrize("digests", ["x" * 64, "A" * 64, "a" * 63, ",".join(["a" * 64] * 17), "a" * 64 + ","])
async def test_a_hello_with_impossible_dictionaries_is_refused(
    cloud: TunnelCloud, authority: TunnelAuthority, digests: str
) -> None:
    async with cloud, RawDevice.connect(authority, cloud.server.port) as device:
        device.say(protocol.Hello("device-0", "e", "", dictionaries=digests))
        refusal = await device.hear()
        assert isinstance(refusal, protocol.Refusal)
        assert (refusal.code, "hello.dictionaries" in refusal.message) == ("hello", True)


def test_a_frame_names_its_dictionary_and_only_that_one_reads_it() -> None:
    upload = protocol.Upload(1, "ipv", _feature(random.Random(9)), 5)
    frame = Encoder().encode(upload, number=2, dictionary=Dictionary(_DATA))
    decoder = Decoder()
    decoder.dictionaries = {2: Dictionary(_DATA)}
    assert decoder.feed(frame) == [upload]
    with pytest.raises(UnknownDictionaryError, match="2 is not one of this connection's"):
        Decoder().feed(frame)


@pytest.mark.asyncio
async def test_the_cache_keeps_the_ones_used_last() -> None:
    files = Files(_DATA, _OTHER)
    cache = DictionaryCache(files, limit=1)
    first, second = files.by_digest
    assert await cache.get(first) is await cache.get(first)
    assert files.lookups == 1
    await cache.get(second)
    await cache.get(first)
    assert files.lookups == 3


def test_training_is_reproducible_and_refuses_too_few_samples() -> None:
    assert _trained(1) == _DATA != _OTHER
    with pytest.raises(DictionaryError, match="at least 50"):
        train_dictionary([b"x" * 100] * 49)
    with pytest.raises(DictionaryError):
        train_dictionary([b""] * 100)
    with pytest.raises(DictionaryError, match="zstd's mark"):
        Dictionary(b"not one")
    with pytest.raises(DictionaryError):
        Dictionary(_DATA[:40])
