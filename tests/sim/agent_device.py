"""Simulated device for tests of the agent: an agent on a folder, and the tasks that it activated."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.sim.cloud_files import CloudFiles
from walle.base.clock import ManualClock
from walle.deploy.agent.agent import Agent
from walle.deploy.agent.agent_errors import ActivationPostponedError
from walle.deploy.agent.exclusive import ExclusiveFiles
from walle.deploy.agent.fetch import Fetcher
from walle.deploy.agent.outcomes import OutcomeReport
from walle.deploy.agent.trust import DeviceTrust
from walle.errors import DeployError
from walle.protocol import Directive, Manifest, Outcome

TASK = "shop/ipv"
MODEL = random.Random(7).randbytes(5500)
FILES = {
    "v0": {"main.pyc": b"zero"},
    "v1": {"main.pyc": b"one" * 900, "resources/model.walle": MODEL, "resources/empty": b""},
    "v2": {
        "main.pyc": b"two" * 800,
        "resources/model.walle": MODEL,
        "lib/a/b.pyc": b"b" * 10,
        "lib/copy.pyc": b"b" * 10,
    },
    "v3": {"main.pyc": b"three" * 500},
}


class WatchedClock(ManualClock):
    """A clock that stands still and says when somebody sleeps by it."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        super().__init__(start_s)
        self.is_asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.is_asleep.set()
        await super().sleep(seconds)


class Device:
    """An agent on a folder, and the tasks that it activated: `running` maps tasks to the files they saw."""

    def __init__(
        self,
        folder: Path,
        cloud: CloudFiles,
        *,
        fetcher: Fetcher | None = None,
        jitter_s: float = 0.0,
        room: int = 10**8,
        difference_room: int = 10**8,
        device_id: str = "d1",
        app_version: str = "10.0",
        exclusive: ExclusiveFiles | None = None,
    ) -> None:
        self.folder = folder
        self.cloud = cloud
        self.clock = WatchedClock()
        self.running: dict[str, dict[str, bytes]] = {}
        self.log: list[str] = []
        self.prepared: list[tuple[str, dict[str, str], dict[str, bytes]]] = []  # version, active versions, files
        self.fail_check: str | Exception = ""
        self.fail_activate: set[str] = set()
        self.fail_remove = False
        self.postpone: set[str] = set()
        self.data: set[str] = set()  # tasks that have data of their own
        self.during_check: Callable[[Path], None] = lambda _: None
        self.agent = Agent(
            folder,
            DeviceTrust(cloud.pinned, self.clock, device_id=device_id, app_version=app_version),
            fetcher or cloud,
            self._check,
            self.clock,
            outcomes=OutcomeReport(device_id),
            exclusive=exclusive,
            prepare=self._prepare,
            on_activate=self._on_activate,
            on_suspend=self._on_suspend,
            on_remove=self._on_remove,
            jitter_s=jitter_s,
            random_source=random.Random(1),
            max_bundle_bytes=room,
            max_difference_bytes=difference_room,
        )

    async def _check(self, files: Path, manifest: Manifest) -> None:
        self.log.append(f"check {manifest.version}")
        self.during_check(files)
        if isinstance(self.fail_check, Exception):
            raise self.fail_check
        if self.fail_check:
            raise RuntimeError(self.fail_check)

    async def _prepare(self, files: Path, manifest: Manifest) -> None:
        await asyncio.sleep(0)
        self.prepared.append((manifest.version, self.agent.tasks, read_folder(files)))

    async def _on_activate(self, task: str, files: Path, manifest: Manifest, /, *, may_postpone: bool) -> None:
        await asyncio.sleep(0)
        if may_postpone and manifest.version in self.postpone:
            raise ActivationPostponedError(task, manifest.version, "a run is under way")
        if manifest.version in self.fail_activate:
            raise RuntimeError(f"no room for {manifest.version}")
        self.log.append(f"activate {manifest.version}")
        self.running[task] = read_folder(files)
        self.data.add(task)

    async def _on_suspend(self, task: str) -> None:
        self.log.append("suspend")
        del self.running[task]

    async def _on_remove(self, task: str) -> None:
        self.log.append("remove")
        self.data.discard(task)
        self.running.pop(task, None)
        if self.fail_remove:
            raise RuntimeError("it does not end")

    def outcomes(self) -> list[Outcome]:
        batch = self.agent.outcomes.take_batch()
        if batch is None:
            return []
        self.agent.outcomes.confirm(batch.batch_id)
        return list(batch.outcomes)

    def take_outcomes(self) -> list[str]:
        return [f"{outcome.kind} {outcome.version}".strip() for outcome in self.outcomes()]

    async def do(self, *directives: Directive) -> None:
        assert await self.agent.handle(directives, self.cloud.timestamp()) == []

    async def wait_for_retry(self) -> None:
        """Let the pause after a first failed pull, or one that brought a part, pass."""
        await self.clock.advance(1.0)

    async def refuse(self, *directives: Directive) -> DeployError:
        errors = await self.agent.handle(directives, self.cloud.timestamp())
        assert len(errors) == 1
        return errors[0]


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return [path.name for path in folder.glob(pattern)]


def assert_tidy(folder: Path, versions: int) -> None:
    """Assert that no incomplete version is left, and that exactly `versions` are kept."""
    (task_folder,) = folder.glob("*%2F*")
    assert {path.name for path in task_folder.iterdir()} <= {"state.json", "versions", "staging"}
    assert list(task_folder.glob("staging/*")) == []
    assert len(list(task_folder.glob("versions/*"))) == versions


async def start(folder: Path, cloud: CloudFiles) -> Device:
    device = Device(folder, cloud)
    await device.agent.start()
    return device


def publish(cloud: CloudFiles, version: str) -> Directive:
    return cloud.publish(TASK, version, FILES[version])


async def two_versions(folder: Path, cloud: CloudFiles) -> tuple[Directive, Directive]:
    device = await start(folder, cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    await device.do(second)
    return first, second


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    path.write_bytes(data)
