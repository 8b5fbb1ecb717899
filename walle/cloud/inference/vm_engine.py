"""Engine in this process: replicas are VMs of its VM host, loaded within a bound of count and bytes (§4.3)."""

import asyncio
import collections
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from walle.base import plain
from walle.base.clock import Clock
from walle.cloud.inference.engine import EngineState, LoadedVersion, ProcessState, ReleasedVersion
from walle.cloud.inference.failures import InferenceError, InferenceLateError, NoRoomError
from walle.cloud.inference.feature_views import FeatureViews
from walle.cloud.inference.request import PhaseRequest
from walle.cloud.inference.version_files import VersionFiles
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.loop_calls import LimitExceeded
from walle.errors import VMError, WalleError
from walle.pipeline.tunnel.frames import MAX_PAYLOAD_BYTES
from walle.task.run.runner import TaskRunner, check_place

MAX_RESULT_BYTES = MAX_PAYLOAD_BYTES  # limit of one request: no device can be sent more
MAX_RESULTS_BYTES = 256 << 20  # limit of one batch
RECENT_S = 60.0  # time since its last use in which a replica makes no room for a version that no request asked for
MEMORY_FAILURES = 2  # requests of a replica in a row that exceed its memory, after which it is loaded again
UNUSED_S = 600.0  # since its last use, after which a version that no device may get is unloaded

_LOG = logging.getLogger(__name__)

type _Replica = tuple[str, int]  # the version's sha256, and a number from 0


class VmEngine:
    """At most `vms` VMs, each with a replica of a version, which stays loaded. Those that were used longest ago are
    unloaded where another needs their place, or where the files of all loaded ones have more than `max_bytes`.

    A version that no request has asked for yet (`load`) takes the place of one that was not used for RECENT_S, or that
    has another replica. `unload_unused` unloads what was not used for UNUSED_S, unless devices may get it (`keep`).
    A replica of which MEMORY_FAILURES requests in a row exceed its memory is loaded again: the task may keep too much.
    `loads` grows with each replica that has loaded its version or is unloaded.

    Requests of one batch whose execution fails together are run alone, one after the other.
    """

    def __init__(
        self, vms: int, max_bytes: int, *, files: VersionFiles, views: FeatureViews, host: VmHost | None, clock: Clock
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._vms = vms
        self._max_bytes = max_bytes
        self._files = files
        self._views = views
        self._clock = clock
        self._runner = TaskRunner(vms, host=host)
        self._loaded: collections.OrderedDict[_Replica, _Loaded] = collections.OrderedDict()  # last used last
        self._freed = asyncio.Event()
        self._kept: frozenset[str] = frozenset()
        self.loads = 0

    @property
    def capacity(self) -> int:
        return self._vms

    def state(self) -> EngineState:
        ready = {key: one for key, one in self._loaded.items() if one.is_ready}
        vms = collections.Counter(sha256 for sha256, _ in ready)
        sizes = {sha256: (one.version.name, one.size_bytes) for (sha256, _), one in ready.items()}
        loaded = tuple(LoadedVersion(key, name, vms[key], vms[key] * size) for key, (name, size) in sizes.items())
        running = sum(one.is_used for one in self._loaded.values())
        discarded = {name: one.count for name, one in self._runner.discarded().items()}
        return EngineState((ProcessState(True, running, loaded),), discarded=discarded)

    def is_loaded(self, version: ReleasedVersion) -> bool:
        return any(one.is_ready for key, one in self._loaded.items() if key[0] == version.sha256)

    async def load(self, version: ReleasedVersion, *, may_unload: bool) -> None:
        """Load a version on one replica, unless one has it; see `Engine.load`. One that fails to load takes no room."""
        if self.is_loaded(version):
            return
        may_go = self._is_unneeded if may_unload else _never
        async with self._files.use(version.sha256, version.manifest) as files:
            size_bytes = self._size_bytes(version)
            while not self.is_loaded(version) and self._is_used(version):  # a request loads it
                self._freed.clear()
                await self._freed.wait()
            if self.is_loaded(version):
                return
            number = self._idle_number(version)  # a replica whose run could not load the version
            if number is None:
                if not self._make_room(size_bytes, may_go):
                    raise NoRoomError(
                        f"{version.name} is not loaded in advance: the versions in use need all the memory"
                    )
                number = 0
                self._add(version, files, number, size_bytes)
            key = version.sha256, number
            # What takes no room from others gives its own to the first that asks for it.
            used_s = self._clock.monotonic() if may_unload else -math.inf
            try:
                async with self._used(key, used_s):
                    await self._runner.load_replica(files, version.manifest, number)
            finally:
                if (one := self._loaded.get(key)) is not None and not (one.is_ready or one.is_used):
                    self._unload(key)

    def keep(self, versions: Sequence[ReleasedVersion]) -> None:
        self.keep_loaded(version.sha256 for version in versions)

    def keep_loaded(self, manifests: Iterable[str]) -> None:
        """As `keep`, for the hashes of manifests."""
        self._kept = frozenset(manifests)

    def unload_unused(self) -> None:
        """Unload what no device may get any more and was not used for UNUSED_S."""
        before_s = self._clock.monotonic() - UNUSED_S
        for key, one in list(self._loaded.items()):
            if not one.is_used and one.used_s < before_s and key[0] not in self._kept:
                self._unload(key)

    async def run(self, version: ReleasedVersion, requests: Sequence[PhaseRequest]) -> list[bytes | Exception]:
        """Run requests of one phase; return the encoded result, or the error, of each.

        Raises:
            PhasePlaceError: task.toml does not allow the phase on the cloud.
            InferenceError: the version's files have more bytes than may be loaded.
        """
        check_place(version.manifest, requests[0].phase)
        async with (
            self._files.use(version.sha256, version.manifest) as files,
            self._replica(version, files) as replica,
        ):
            loaded = self._loaded[version.sha256, replica]
            answers = await self._run_together(version, requests, files, replica) if len(requests) > 1 else None
            if answers is None:
                answers = []
                for request in requests:
                    answers.append(await self._run_alone(version, request, files, replica))
                    if sum(len(answer) for answer in answers if isinstance(answer, bytes)) > MAX_RESULTS_BYTES:
                        what = f"the results of one batch of {version.name} have more than {MAX_RESULTS_BYTES} bytes"
                        answers[-1] = InferenceError(f"{what}; return less, or lower max_batch")
            for answer in answers:
                loaded.note_end(answer)
            return answers

    async def close(self) -> None:
        await self._runner.close()
        await self._files.close()

    # --- one batch ----------------------------------------------------------------------------------------------------

    async def _run_together(
        self, version: ReleasedVersion, requests: Sequence[PhaseRequest], files: Path, replica: int
    ) -> list[bytes | Exception] | None:
        """Return what `execute_batch` gives; None if the task has none, or it failed as a whole.

        It gets the payloads that can be decoded; the others have their errors.
        """
        values = [_value(request) for request in requests]
        good = [index for index, value in enumerate(values) if not isinstance(value, InferenceError)]
        if not good:
            return values
        callbacks = {"features": functools.partial(self._views.latest, version.manifest)}
        try:
            outputs = await self._runner.phase_batch(
                files,
                version.manifest,
                [values[index] for index in good],
                [requests[index].device for index in good],
                callbacks=callbacks,
                replica=replica,
            )
        except VMError:
            return None
        if outputs is None:
            version.max_batch = 1
            return None
        limit_bytes = version.manifest.limits.get("output_kb", 0) << 10
        for index, output in zip(good, outputs, strict=True):
            is_error = isinstance(output, Exception)
            values[index] = output if is_error else _encoded(version, "execute", output, limit_bytes)
        return values

    async def _run_alone(
        self, version: ReleasedVersion, request: PhaseRequest, files: Path, replica: int
    ) -> bytes | Exception:
        if request.due_s <= self._clock.monotonic():
            return InferenceLateError(f"the deadline passed before {version.name} could run")
        callbacks = {"features": functools.partial(self._views.latest, version.manifest)}
        try:
            result = await self._runner.phase(
                files,
                version.manifest,
                request.phase,
                request.value(),
                request.device,
                callbacks=callbacks,
                replica=replica,
            )
        except WalleError as error:
            return error
        return _encoded(version, request.phase, result)

    # --- replicas -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _replica(self, version: ReleasedVersion, files: Path) -> AsyncIterator[int]:
        """Give the number of a replica that nothing else uses, a loaded one if there is any."""
        size_bytes = self._size_bytes(version)
        while (number := self._idle_number(version)) is None:
            number = next(number for number in range(self._vms + 1) if (version.sha256, number) not in self._loaded)
            if self._make_room(size_bytes, _always):
                self._add(version, files, number, size_bytes)
                break
            self._freed.clear()
            await self._freed.wait()
        async with self._used((version.sha256, number)):
            yield number

    @contextlib.asynccontextmanager
    async def _used(self, key: _Replica, used_s: float | None = None) -> AsyncIterator[None]:
        """Use a replica within the block; it counts as used until now, or as `used_s` says."""
        one = self._loaded[key]
        self._loaded.move_to_end(key)
        one.is_used = True
        try:
            yield
        finally:
            one.is_used = False
            if not one.is_ready and self._runner.has_loaded(one.files, one.version.manifest, key[1]):
                one.is_ready = True
                self.loads += 1
            one.used_s = self._clock.monotonic() if used_s is None else used_s
            if one.memory_failures >= MEMORY_FAILURES:
                _LOG.warning("%s: a replica is loaded again, since it is out of memory", one.version.name)
                self._unload(key)
            self._freed.set()

    def _size_bytes(self, version: ReleasedVersion) -> int:
        entries = (*version.manifest.files, *version.manifest.cloud_files)
        size_bytes = sum(entry.size_bytes for entry in entries)
        if size_bytes > self._max_bytes:
            what = f"the files of {version.name} have {size_bytes} bytes, more than the {self._max_bytes} that may be"
            raise InferenceError(f"{what} loaded here: raise CloudConfig.inference_mb")
        return size_bytes

    def _idle_number(self, version: ReleasedVersion) -> int | None:
        numbers = (key[1] for key, one in self._loaded.items() if key[0] == version.sha256 and not one.is_used)
        return min(numbers, default=None)

    def _is_used(self, version: ReleasedVersion) -> bool:
        return any(one.is_used for key, one in self._loaded.items() if key[0] == version.sha256)

    def _make_room(self, size_bytes: int, may_go: Callable[["_Loaded", int], bool]) -> bool:
        """Unload what was used longest ago, of those that may go, until one more fits; nothing where it cannot.

        `may_go` gets a replica that is not used now, and how many others its version has.
        """
        left_vms, left_bytes = self._vms - len(self._loaded), self._max_bytes - size_bytes
        left_bytes -= sum(one.size_bytes for one in self._loaded.values())
        replicas, going = collections.Counter(sha256 for sha256, _ in self._loaded), []
        for key, one in self._loaded.items():
            if left_vms > 0 and left_bytes >= 0:
                break
            if not one.is_used and may_go(one, replicas[key[0]] - 1):
                replicas[key[0]] -= 1
                left_vms, left_bytes = left_vms + 1, left_bytes + one.size_bytes
                going.append(key)
        if left_vms <= 0 or left_bytes < 0:
            return False
        for key in going:
            self._unload(key)
        return True

    def _is_unneeded(self, one: "_Loaded", others: int) -> bool:
        """Return whether a replica makes room for a version that no request has asked for yet."""
        return others > 0 or one.used_s + RECENT_S <= self._clock.monotonic()

    def _add(self, version: ReleasedVersion, files: Path, number: int, size_bytes: int) -> None:
        self._loaded[version.sha256, number] = _Loaded(version, files, size_bytes)

    def _unload(self, key: _Replica) -> None:
        one = self._loaded.pop(key)
        self._runner.unload(one.files, one.version.manifest, key[1])
        self.loads += 1


class _Loaded:
    """A replica that has a VM, or gets one with its next run; it takes room from its first one on."""

    def __init__(self, version: ReleasedVersion, files: Path, size_bytes: int) -> None:
        self.version = version
        self.files = files
        self.size_bytes = size_bytes
        self.is_used = False
        self.is_ready = False  # true once its VM has loaded the version
        self.used_s = -math.inf
        self.memory_failures = 0  # failures in a row

    def note_end(self, answer: bytes | Exception) -> None:
        """Count requests that ended by the memory limit, one after the other: what the task keeps may take it all."""
        is_memory = isinstance(answer, LimitExceeded) and answer.limit == "memory_mb"
        self.memory_failures = self.memory_failures + 1 if is_memory else 0


def _always(_: _Loaded, __: int) -> bool:
    return True


def _never(_: _Loaded, __: int) -> bool:
    return False


def _value(request: PhaseRequest) -> Any:
    """Return the payload, or the InferenceError of one that cannot be decoded."""
    try:
        return request.value()
    except InferenceError as error:
        return error


def _encoded(version: ReleasedVersion, phase: str, result: Any, limit_bytes: int = 0) -> bytes | Exception:
    try:
        data = plain.encode(result)
    except plain.PlainDataError as error:
        return InferenceError(f"{phase} of {version.name} returned a value that cannot be sent: {error}")
    if len(data) > MAX_RESULT_BYTES:
        what = f"{phase} of {version.name} returned {len(data)} bytes"
        return InferenceError(f"{what}, more than the {MAX_RESULT_BYTES} that can be sent to a device")
    if 0 < limit_bytes < len(data):
        what = f"{phase} of {version.name} returned {len(data)} bytes for one payload of a batch"
        return InferenceError(f"{what}, more than its limit output_kb allows")
    return data
