"""Replicas on nodes without the cloud's folder: who may connect to them, and how versions' files get there."""

import asyncio
import contextlib
import hashlib
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.inference_versions import home_in, released, request
from tests.sim.shop_cloud import until
from walle.base import plain
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference import InferenceError, ReplicaLostError
from walle.cloud.inference.node_cache import NodeCache, default_folder
from walle.cloud.inference.process_engine import ProcessEngine
from walle.cloud.inference.replica_address import Connection, PeerKey, TlsAddress, connect
from walle.cloud.inference.replica_server import ReplicaServer
from walle.cloud.inference.replica_wire import FrameStream
from walle.cloud.inference.version_files import VersionFiles
from walle.cloud.inference.version_source import PART_BYTES, HomeSource
from walle.errors import ConfigError
from walle.task.format.large_file import LargeFile

MAIN = """\
def execute(ctx, x):
    return [len(ctx.resource("big.bin")), len(ctx.resource("mine.bin")), x]
"""
CONFIG = '[files]\n"resources/big.bin" = "shared"\n"resources/mine.bin" = "cloud"\n'
BIG_BYTES = 2 * PART_BYTES + 17
FILES = {"resources/big.bin": bytes(range(256)) * (BIG_BYTES // 256) + bytes(17), "resources/mine.bin": b"m" * 99}
ANSWER = [BIG_BYTES, 99, 1]


class CountedSource(HomeSource):
    """A cloud's files. `parts` are those that were sent; the next one waits while `gate` is not set."""

    def __init__(self, home: CloudHome) -> None:
        super().__init__(home)
        self.parts: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def read_part(self, sha256: str, offset: int) -> tuple[int, bytes]:
        self.parts.append((sha256, offset))
        assert self.gate.wait(20)
        return super().read_part(sha256, offset)


class FarReplica:
    """A replica that finds nothing in its cloud's folder, with an engine that reaches it by TLS."""

    def __init__(self, home: CloudHome, folder: Path, **changes: Any) -> None:
        self.absent = folder / "not-on-this-node"
        config = CloudConfig(folder=self.absent, inference_vms=1, **changes)
        self.server = ReplicaServer(config, cache=folder / "cache")
        self.source = CountedSource(home)
        self.engine = ProcessEngine(1, self._reach, self.source)

    async def _reach(self, _: int) -> Connection:
        key = PeerKey()
        return await connect(await self.server.listen_tls("127.0.0.1", key.certificate), key)

    async def start(self) -> None:
        await self.server.start()
        await self.engine.start()
        await until(lambda: self.engine.capacity == 1)

    async def close(self) -> None:
        await self.engine.close()
        await self.server.close()


@contextlib.asynccontextmanager
async def far_replica(home: CloudHome, folder: Path, **changes: Any) -> AsyncIterator[FarReplica]:
    far = FarReplica(home, folder, **changes)
    try:
        await far.start()
        yield far
    finally:
        far.source.gate.set()
        await far.close()


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_versions_are_fetched_once_and_kept_on_the_node(tmp_path: Path) -> None:
    home = home_in(tmp_path / "cloud")
    version = released(home, MAIN, CONFIG, files=FILES)
    async with far_replica(home, tmp_path) as far:
        await far.engine.load(version, may_unload=True)
        assert far.engine.is_loaded(version)
        (answer,) = await far.engine.run(version, [request(1)])
        assert isinstance(answer, bytes), answer
        assert plain.decode(answer) == ANSWER
        big = sha256_of(FILES["resources/big.bin"])
        assert [offset for sha256, offset in far.source.parts if sha256 == big] == [0, PART_BYTES, 2 * PART_BYTES]
        assert not far.absent.exists()
    assert [path.name for path in (tmp_path / "cache").glob("run-*")] == []
    async with far_replica(home, tmp_path) as far:  # started again on this node
        (answer,) = await far.engine.run(version, [request(1)])
        assert isinstance(answer, bytes)
        assert plain.decode(answer) == ANSWER
        assert far.source.parts == []


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_version_that_the_cloud_lost_or_that_is_too_large_fails_with_the_reason(tmp_path: Path) -> None:
    home = home_in(tmp_path / "cloud")
    lost = released(home, MAIN, CONFIG, files=FILES)
    large = released(home, MAIN, CONFIG, name="large", files={**FILES, "resources/big.bin": bytes(2 << 20)})
    home.cloud_files.remove(sha256_of(FILES["resources/mine.bin"]))
    async with far_replica(home, tmp_path, inference_mb=1) as far:
        (answer,) = await far.engine.run(lost, [request(1)])
        assert "the cloud does not have it" in str(answer)
        (answer,) = await far.engine.run(large, [request(1)])
        assert "more than the 1048576 that may be loaded here: raise CloudConfig.inference_mb" in str(answer)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_connection_that_ends_in_the_middle_of_a_file_is_made_again(tmp_path: Path) -> None:
    home = home_in(tmp_path / "cloud")
    version = released(home, MAIN, CONFIG, files=FILES)
    async with far_replica(home, tmp_path) as far:
        far.source.gate.clear()
        running = asyncio.create_task(far.engine.run(version, [request(1)]))
        await until(lambda: bool(far.source.parts))
        (link,) = far.engine._links
        assert link.stream is not None
        link.stream.close()
        with pytest.raises(ReplicaLostError):
            await running
        far.source.gate.set()
        await until(lambda: far.engine.capacity == 1)
        (answer,) = await far.engine.run(version, [request(1)])
        assert isinstance(answer, bytes)
        assert plain.decode(answer) == ANSWER


async def says_hello(connection: Connection) -> bool:
    stream = FrameStream(*connection)
    try:
        async with asyncio.timeout(10):
            frame = await stream.receive()
    finally:
        stream.close()
    return frame is not None and frame[0][0] == "hello"


@pytest.mark.asyncio
async def test_only_the_scheduler_may_call_a_replica(tmp_path: Path) -> None:
    server = ReplicaServer(CloudConfig(folder=tmp_path / "absent"), cache=tmp_path / "cache")
    await server.start()
    try:
        key, other = PeerKey(), PeerKey()
        address = await server.listen_tls("127.0.0.1", key.certificate)
        no_certificate = ssl.create_default_context(cadata=address.certificate)
        no_certificate.check_hostname = False
        for context in (None, no_certificate, other.client_context(address.certificate)):
            with contextlib.suppress(OSError):  # the connection ends at once, or with the first frame
                assert not await says_hello(
                    await asyncio.open_connection(address.host, address.port, ssl=context)
                    if context is not None
                    else await plain_connection(address)
                )
        assert await says_hello(await connect(address, key))
        with pytest.raises(ConnectionRefusedError):  # one address takes one connection
            await connect(address, key)
        again = await server.listen_tls("127.0.0.1", other.certificate)
        with contextlib.suppress(OSError):  # a key is for one connection
            assert not await says_hello(await connect(again, key))
    finally:
        await server.close()


async def plain_connection(address: TlsAddress) -> Connection:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    FrameStream(reader, writer).send(["ping"])
    return reader, writer


@pytest.mark.asyncio
async def test_only_the_replica_may_answer_the_scheduler() -> None:
    key, replica, impostor = PeerKey(), PeerKey(), PeerKey()
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=impostor.server_context(key.certificate))
    try:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(TlsAddress("127.0.0.1", port, replica.certificate), key)
        assert received == []
    finally:
        server.close()


@pytest.mark.asyncio
async def test_a_new_connection_of_the_scheduler_ends_the_one_before(tmp_path: Path) -> None:
    server = ReplicaServer(CloudConfig(folder=tmp_path / "absent"), cache=tmp_path / "cache")
    await server.start()
    try:
        streams = []
        for _ in range(2):
            key = PeerKey()
            stream = FrameStream(*await connect(await server.listen_tls("127.0.0.1", key.certificate), key))
            streams.append(stream)
            frame = await stream.receive()
            assert frame is not None
        async with asyncio.timeout(10):
            while await streams[0].receive() is not None:
                pass
        streams[1].send(["ping"])
        async with asyncio.timeout(10):
            while (frame := await streams[1].receive()) is not None and frame[0] != ["pong"]:
                pass
        assert frame is not None
    finally:
        for stream in streams:
            stream.close()
        await server.close()


@pytest.mark.asyncio
async def test_the_cache_is_bounded_and_trusts_no_file(tmp_path: Path) -> None:
    blobs = [bytes([number]) * 400 for number in range(3)]
    held = {sha256_of(blob): blob for blob in blobs}
    names = list(held)
    fetched: list[str] = []

    async def fetch(sha256: str) -> AsyncIterator[bytes]:
        fetched.append(sha256)
        data = held.get(sha256, b"not it")
        yield data[:3]
        yield data[3:]

    cache = NodeCache(tmp_path / "cache", 1000, fetch)
    cache.prepare()
    folder = tmp_path / "cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in names:
        assert await cache.read(name) == held[name]
    assert {path.name for path in folder.iterdir() if path.is_file()} == set(names[1:])  # 800 of 1000 bytes
    (folder / names[1]).write_bytes(b"damaged")
    assert await cache.read(names[1]) == held[names[1]]
    assert fetched == [*names, names[1]]
    with pytest.raises(InferenceError, match="the cloud sent 6 bytes of sha256"):
        await cache.read("0" * 64)
    for bad in ("", "../../etc/passwd", "A" * 64):
        with pytest.raises(InferenceError, match="is not a sha256"):
            await cache.read(bad)
    assert await NodeCache(folder, 100, fetch).read(names[0]) == held[names[0]]  # too large to be kept
    for count, cached in enumerate((names[2], names[0], names[0])):
        copy = tmp_path / f"copy-{count}"
        await cache.copy(cached, copy)
        assert copy.read_bytes() == held[cached]
        copy.unlink()
    assert fetched[6:] == [names[0]]
    (folder / names[0]).unlink()
    (folder / names[0]).write_bytes(b"damaged")
    await cache.copy(names[0], copy)
    assert copy.read_bytes() == (folder / names[0]).read_bytes() == held[names[0]]
    with pytest.raises(InferenceError, match="the cloud sent 6 bytes of sha256"):
        await cache.copy("0" * 64, tmp_path / "none")
    with pytest.raises(InferenceError, match="is not a sha256"):
        await cache.copy("../x", tmp_path / "none")
    killed = folder / "run-1-dead"
    killed.mkdir()
    other = NodeCache(folder, 1000, fetch)
    other.prepare()
    assert not killed.exists()
    assert cache.run_folder.exists()
    cache.close()
    other.close()
    assert list(folder.glob("run-*")) == []


def test_the_cache_is_in_the_users_folder_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder("name") == tmp_path / "walle" / "inference" / "name"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        default_folder("name")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.asyncio
async def test_folders_of_versions_that_nothing_uses_have_a_bound_in_bytes(tmp_path: Path) -> None:
    home = home_in(tmp_path / "cloud")
    text = '[files]\n"resources/big.bin" = "shared"\n'
    versions = [
        released(home, "def execute(ctx, x): pass\n", text, files={"resources/big.bin": bytes([number]) * 5000})
        for number in range(3)
    ]
    files = VersionFiles(HomeSource(home), tmp_path / "versions", 12_000)
    files.prepare()
    for version in versions:
        async with files.use(version.sha256, version.manifest) as folder:
            assert (folder / "resources" / "big.bin").stat().st_size == 5000

    def left() -> set[str]:
        return {path.name for path in (tmp_path / "versions").iterdir()}

    await until(lambda: left() == {version.sha256 for version in versions[1:]})
    await files.close()


def peak_bytes() -> int:
    """Return the most memory that this process has had since `forget_peak`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_large_file_goes_to_a_replica_by_pieces(tmp_path: Path) -> None:
    """Both ends are in this process: the file is read, sent, hashed, written and unpacked in bounded memory."""
    model = tmp_path / "model.bin"
    with model.open("wb") as file:
        for number in range(200):
            file.write(bytes([number]) * (1 << 20))
    home, large = home_in(tmp_path / "cloud"), LargeFile.of(model)
    main = 'def execute(ctx, x):\n    return len(ctx.resource("big.bin"))\n'
    config = '[files]\n"resources/big.bin" = "shared"\n'
    version = released(home, main, config, large={"resources/big.bin": large})
    async with far_replica(home, tmp_path) as far:
        forget_peak()
        before_bytes = peak_bytes()
        await far.engine.load(version, may_unload=True)
        assert peak_bytes() - before_bytes < 48 << 20
        (unpacked,) = (tmp_path / "cache").glob("run-*/versions/*/resources/big.bin")
        assert unpacked.stat().st_size == large.size_bytes
        assert (tmp_path / "cache" / large.sha256).stat().st_nlink == 1  # the copy beside it is gone
