"""A process with replicas: runs batches that come over its scheduler's connection, in the VMs of its own VM host."""

import asyncio
import collections
import itertools
import math
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from walle.base.clock import Clock, SystemClock
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference.engine import ReleasedVersion
from walle.cloud.inference.failures import InferenceError, InferenceLateError, NoRoomError, ReplicaLostError
from walle.cloud.inference.local_engine import LocalEngine
from walle.cloud.inference.node_cache import NodeCache
from walle.cloud.inference.replica_address import TlsAddress, TlsListener, UnixAddress
from walle.cloud.inference.replica_wire import FrameStream, WireError, parts
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.inference.version_source import HomeSource, VersionSource
from walle.cloud.inference.versions import MAX_VERSIONS


class ReplicaServer:
    """Serves the scheduler of its cloud between `start` and `close`. `number` tells it from the cloud's others.

    With `cache`, a folder of this node, it reads nothing in the cloud's folder: it fetches versions from the scheduler,
    and keeps at most `inference_mb` MiB of their files there, beside those that are unpacked.
    """

    def __init__(
        self, config: CloudConfig, number: int = 0, *, cache: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._max_bytes = config.inference_mb << 20
        self._cache = None if cache is None else NodeCache(cache, self._max_bytes, self._fetch)
        home = CloudHome(config.folder)
        self._source: VersionSource = self._cache or HomeSource(home)
        folder = self._cache.run_folder if self._cache else home.inference_folder / f"replica-{number}"
        self._engine = LocalEngine(config, self._clock, source=self._source, folder=folder / "versions")
        self._versions: collections.OrderedDict[str, ReleasedVersion] = collections.OrderedDict()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._listener = TlsListener(self._serve_alone)
        self._scheduler: FrameStream | None = None
        self._fetches: dict[int, tuple[FrameStream, asyncio.Future[tuple[int, memoryview]]]] = {}
        self._numbers = itertools.count()
        self._sent_loads: weakref.WeakKeyDictionary[FrameStream, int] = weakref.WeakKeyDictionary()

    async def start(self) -> None:
        """Make the engine; `listen` or `listen_tls` lets the scheduler reach it.

        Raises:
            OSError: the folder of the cache cannot be made.
            ConfigError, IngestError: as `FeatureViews.start`.
        """
        if self._cache is not None:
            await asyncio.to_thread(self._cache.prepare)
        await self._engine.start()

    async def listen(self, path: Path) -> UnixAddress:
        """Listen at `path`, a socket in a folder that lets only this user in; one that an ended process left goes.

        Raises:
            OSError: the folder does not exist, or the path is too long for a socket.
        """
        await asyncio.to_thread(path.unlink, missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)
        return UnixAddress(path)

    async def listen_tls(self, host: str, certificate: str) -> TlsAddress:
        """Listen for one connection, of the scheduler with this certificate (PEM); it ends the one before.

        Raises:
            OSError: `host` is not an address of this node.
        """
        return await self._listener.listen(host, certificate)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._engine.close()
        if self._cache is not None:
            await asyncio.to_thread(self._cache.close)

    async def _serve_alone(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the scheduler's new connection. The one before may be lost without this end knowing."""
        for task in list(self._connections):
            task.cancel()
        await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        stream = self._scheduler = FrameStream(reader, writer)
        batches: dict[int, asyncio.Task[None]] = {}
        try:
            stream.send(["hello", self._engine.vms.capacity])
            self._tell_loaded(stream)
            while frame := await stream.receive():
                self._take(stream, batches, *frame)
        except asyncio.CancelledError:  # this closes; the server's own task of the connection ends quietly
            pass
        finally:
            if self._scheduler is stream:
                self._scheduler = None
            for other, part in list(self._fetches.values()):
                if other is stream and not part.done():
                    part.set_exception(ReplicaLostError("the connection to the cloud ended"))
            for batch in batches.values():
                batch.cancel()
            await asyncio.gather(*batches.values(), return_exceptions=True)
            stream.close()
            self._connections.discard(task)

    def _take(
        self, stream: FrameStream, batches: dict[int, asyncio.Task[None]], head: list[Any], body: memoryview
    ) -> None:
        match head:
            case ["run", int(number), str(sha256), str(phase), int(max_batch), list(members)]:
                batch = asyncio.create_task(self._run(stream, number, sha256, phase, max_batch, members, body))
                batches[number] = batch
                batch.add_done_callback(lambda _: batches.pop(number, None))
            case ["cancel", int(number)]:
                if number in batches:
                    batches[number].cancel()
            case ["load", int(number), str(sha256), bool(may_unload)]:
                load = asyncio.create_task(self._load(stream, number, sha256, may_unload))
                batches[number] = load
                load.add_done_callback(lambda _: batches.pop(number, None))
            case ["keep", list(manifests)]:
                self._engine.vms.keep_loaded(manifests)
            case ["ping"]:
                stream.send(["pong"])
            case ["part", int(number), int(size_bytes), str(error)]:
                _, part = self._fetches.get(number, (None, None))
                if part is not None and not part.done():
                    if error:
                        part.set_exception(InferenceError(error))
                    else:
                        part.set_result((size_bytes, body))
            case _:
                raise WireError(f"a frame {head[0]!r:.100} of {len(head)} parts")

    async def _run(
        self,
        stream: FrameStream,
        number: int,
        sha256: str,
        phase: str,
        max_batch: int,
        members: list[Any],
        body: memoryview,
    ) -> None:
        answers: list[bytes | Exception]
        version: ReleasedVersion | None = None
        try:
            version = await self._version(sha256)
            version.max_batch = max_batch
            now_s, manifest = self._clock.monotonic(), version.manifest
            requests = [
                PhaseRequest(
                    task=manifest.name,
                    version=manifest.version,
                    phase=phase,
                    payload=payload,
                    device=device,
                    due_s=math.inf if left_s is None else now_s + left_s,
                )
                for (device, left_s, _), payload in zip(
                    members, parts(body, [length for _, _, length in members]), strict=True
                )
            ]
            answers = await self._engine.vms.run(version, requests)
            max_batch = version.max_batch
        except Exception as error:  # noqa: BLE001 -- the scheduler's, whatever it is
            answers = [error] * len(members)
        kinds, results = [], []
        for answer in answers:
            if isinstance(answer, Exception):
                kinds.append("late" if isinstance(answer, InferenceLateError) else "failed")
                results.append((str(answer) or type(answer).__name__).encode(errors="replace"))
            else:
                kinds.append("")
                results.append(answer)
        ends = [[kind, len(result)] for kind, result in zip(kinds, results, strict=True)]
        self._tell_loaded(stream)
        stream.send(["ran", number, max_batch, ends], results)
        await stream.drain()

    async def _load(self, stream: FrameStream, number: int, sha256: str, may_unload: bool) -> None:
        kind, text = "", ""
        try:
            await self._engine.vms.load(await self._version(sha256), may_unload=may_unload)
        except Exception as error:  # noqa: BLE001 -- the scheduler's, whatever it is
            kind = "room" if isinstance(error, NoRoomError) else "failed"
            text = str(error) or type(error).__name__
        self._tell_loaded(stream)
        stream.send(["load", number, kind, text.encode(errors="replace").decode()])

    def _tell_loaded(self, stream: FrameStream) -> None:
        """Send what is loaded if it has changed."""
        vms = self._engine.vms
        if self._sent_loads.get(stream) != vms.loads:
            self._sent_loads[stream] = vms.loads
            state = vms.state()
            (process,) = state.processes
            loaded = [[one.sha256, one.name, one.vms, one.size_bytes] for one in process.loaded]
            stream.send(["loaded", loaded, dict(state.discarded)])

    async def _version(self, sha256: str) -> ReleasedVersion:
        version = self._versions.get(sha256)
        if version is None:
            version = ReleasedVersion.of(sha256, await self._source.manifest(sha256))
            version = self._versions.setdefault(sha256, version)
            if len(self._versions) > MAX_VERSIONS:
                self._versions.popitem(last=False)
        return version

    async def _fetch(self, sha256: str) -> AsyncIterator[memoryview]:
        """Yield a file that the scheduler has, part by part: batches go between them, and memory is bounded.

        Raises:
            InferenceError: it does not have the file, or it is larger than what may be loaded here.
            ReplicaLostError: the connection ended.
        """
        came_bytes, size_bytes = 0, -1
        while came_bytes != size_bytes:
            if (stream := self._scheduler) is None:
                raise ReplicaLostError("the connection to the cloud ended")
            number, part = next(self._numbers), asyncio.get_running_loop().create_future()
            self._fetches[number] = stream, part
            try:
                stream.send(["fetch", number, sha256, came_bytes])
                size_bytes, received = await part
            finally:
                del self._fetches[number]
            came_bytes += len(received)
            if size_bytes > self._max_bytes:
                what = f"the file {sha256} has {size_bytes} bytes, more than the {self._max_bytes} that may be loaded"
                raise InferenceError(f"{what} here: raise CloudConfig.inference_mb")
            if came_bytes > size_bytes or (not received and size_bytes):
                raise InferenceError(f"the cloud sent {came_bytes} bytes of the file {sha256}, which has {size_bytes}")
            yield received
