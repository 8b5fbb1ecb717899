"""What a release service acts upon, in one process: real bundles, blobs and tables.

The test decides what a simulation says, and whether a gateway answers.
"""

import asyncio
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from walle.clock import Clock
from walle.deploy.cloud.bundle import Bundle, build_bundle
from walle.deploy.cloud.files import FileStore
from walle.deploy.cloud.journal import Journal
from walle.deploy.cloud.monitor_service import MonitorService
from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.push import Answerer
from walle.deploy.cloud.release import Release, ReleaseRequest, State
from walle.deploy.cloud.release_service import ReleaseService, SimulationResult, World
from walle.deploy.cloud.release_table import ReleaseTable, plan_row
from walle.deploy.cloud.repo import RepoError, TaskTree
from walle.deploy.signing import Signer
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind

CDN_URL = "http://cdn.test/cdn"
BUNDLE_SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"b" * 32))  # the same in every process of a test
RELEASE_SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"r" * 32))
VERSIONS = ("v1", "v2", "v3")

_TASK_TOML = """
[task]
name = "ipv"
[trigger]
sequence = ["page_exit"]
"""


def tree(version: str) -> TaskTree:
    """Return a small task version as the repositories give it."""
    files = {"task.toml": _TASK_TOML.encode(), "main.py": f"def execute(ctx, x):\n    return {version!r}\n".encode()}
    return TaskTree("shop", "ipv", version, "c" * 40, files)


def table_of(generation: int = 1, **versions: str) -> ReleaseTable:
    """Return a table in which these tasks of scenario `shop` are fully released at these versions."""
    rows = []
    for number, (task, version) in enumerate(versions.items(), 1):
        request = ReleaseRequest("shop", task, version)
        release = Release(f"r{number}", number, request, 0.0, 0.0, State.FULL, manifest=f"{number:064x}", size_bytes=9)
        plan = plan_row(request.name, [release], None, CDN_URL)
        rows.append(plan.sign(RELEASE_SIGNER.sign_directive, 10 * number, 2_000_000_000))
    return ReleaseTable(generation, rows)


class ReleaseWorld:
    """A folder, a gateway's answerer, and the two services on one journal. `simulation` is what the next one says."""

    def __init__(self, folder: Path, clock: Clock, journal: Journal, signer: Signer = RELEASE_SIGNER) -> None:
        self.clock = clock
        self.journal = journal
        self.files = FileStore(folder / "files")
        self.answerer = Answerer()
        self.simulation = SimulationResult(ok=True, runs=3, failures=0)
        self.simulated: list[str] = []
        self.simulating = asyncio.Event()  # one has begun
        self.published = asyncio.Event()  # a table has reached the gateway
        self.go_on = asyncio.Event()  # a simulation and a publication wait for it
        self.go_on.set()
        self.publish_errors = 0  # so many publications fail
        self.monitor = MonitorService(journal, clock)
        self._batches = 0
        world = World(
            self._read,
            self._build,
            self._put,
            self._simulate,
            self._publish,
            self._recent,
            signer.sign_directive,
            self.monitor,
        )
        self.service = ReleaseService(journal, world, clock, cdn_url=CDN_URL)
        self.monitor.on_verdict = self.service.verdict

    async def report(self, release_id: str, ok: int, failed: int, device_id: str = "d1", error: str = "") -> None:
        """Send a report of executions, and wait until everybody was told what follows from it."""
        self._batches += 1
        outcome = Outcome(
            task="shop/ipv", version="v1", release=release_id, kind=OutcomeKind.RUN, ok=ok, failed=failed, error=error
        )
        await self.monitor.take(OutcomeBatch(device_id, f"b{self._batches}", (outcome,)))
        await self.service.settled()

    async def reached(self, release_id: str, stage: str) -> Release:
        """Return the release once it is at `stage` and everybody was told."""
        async for release in self.service.watch(release_id):
            if release.stage == stage:
                await self.service.settled()
                return release
        raise AssertionError(f"{release_id} ended before {stage}: {await self.service.get(release_id)}")

    async def _read(self, scenario: str, task: str, version: str) -> TaskTree:
        if (scenario, task) != ("shop", "ipv") or version not in VERSIONS:
            raise RepoError(f"version {scenario}/{task}/{version}", "there is none")
        return tree(version)

    async def _build(self, task_tree: TaskTree) -> Bundle:
        return build_bundle(task_tree, BUNDLE_SIGNER)

    async def _put(self, data: bytes) -> str:
        return self.files.put(data)

    async def _simulate(self, bundle: Bundle) -> SimulationResult:
        self.simulated.append(bundle.manifest.version)
        self.simulating.set()
        await self.go_on.wait()
        return self.simulation

    async def _publish(self, table: ReleaseTable) -> None:
        await self.go_on.wait()
        if self.publish_errors:
            self.publish_errors -= 1
            raise ConnectionError("no gateway answers")
        self.answerer.swap(table)
        self.published.set()

    async def _recent(self, count: int, policy: Policy) -> tuple[str, ...]:
        return self.answerer.recent(count, policy)
