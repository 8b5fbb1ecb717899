"""Side effects of a release service in one process, on real bundles, blobs and tables.

The test decides the result of a simulation, and whether a gateway answers.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from walle.base.clock import Clock
from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.gate.step import Step
from walle.deploy.git.repo import RepoError
from walle.deploy.monitor.service import MonitorService
from walle.deploy.policies.attribute_schema import ColumnType, Schema
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.effects import Effects
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.service import ReleaseService
from walle.deploy.releases.signatures import SignatureAwaitedError, SigningState
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.table import ReleaseTable, plan_row
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import Directive, Outcome, OutcomeBatch, OutcomeKind
from walle.task.format.bundle import Bundle, TaskVersion, build_bundle
from walle.task.format.config import TaskConfig
from walle.task.format.tree import TaskTree
from walle.trust.signing import Signer

CDN_URL = "http://cdn.test/cdn"
BUNDLE_SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"b" * 32))  # the same in every process of a test
RELEASE_SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"r" * 32))
FLEET = "test-fleet"
VERSIONS = ("v1", "v2", "v3", "v4")

_TASK_TOML = """
[task]
name = "ipv"
[trigger]
sequence = ["page_exit"]
"""


def signs(signer: Signer = RELEASE_SIGNER) -> Callable[[Directive], Directive]:
    return functools.partial(signer.sign_directive, fleet=FLEET)


def verify(directive: Directive, signer: Signer = RELEASE_SIGNER) -> None:
    """Assert that `signer` signed `directive`."""
    assert signs(signer)(directive) == directive


def tree(version: str, tables: str = "", resources: Mapping[str, bytes] | None = None) -> TaskTree:
    """Return a small task version as the repositories give it; `tables` are more of its task.toml."""
    text = _TASK_TOML + tables
    files = {"task.toml": text.encode(), "main.py": f"def execute(ctx, x):\n    return {version!r}\n".encode()}
    files |= resources or {}
    return TaskTree(scenario="shop", task="ipv", version=version, commit="c" * 40, files=files)


def table_of(generation: int = 1, **versions: str) -> ReleaseTable:
    """Return a table in which these tasks of scenario `shop` are fully released at these versions."""
    rows = []
    for number, (task, version) in enumerate(versions.items(), 1):
        request = ReleaseRequest(scenario="shop", task=task, version=version)
        release = Release(
            id=f"r{number}",
            number=number,
            request=request,
            created_s=0.0,
            updated_s=0.0,
            state=ReleaseState.FULL,
            manifest=f"{number:064x}",
            size_bytes=9,
        )
        plan = plan_row(request.name, [release], CDN_URL)
        rows.append(plan.sign(signs(), 10 * number, 2_000_000_000))
    return ReleaseTable(generation, rows)


class ReleaseWorld(Effects):
    """A folder, a gateway's answerer, and the two services on one journal. `simulation` is what the next one says."""

    def __init__(self, folder: Path, clock: Clock, journal: Journal, signer: Signer = RELEASE_SIGNER) -> None:
        self.clock = clock
        self.journal = journal
        self.files = FolderStore(folder / "files")
        self.answerer = Answerer()
        self.simulation = SimulationResult(ok=True, runs=3, failures=0)
        self.simulated: list[str] = []
        self.coded: list[tuple[str, tuple[str, ...]]] = []  # versions whose files were coded, and against which
        self.simulating = asyncio.Event()  # one has begun
        self.published = asyncio.Event()  # a table has reached the gateway
        self.go_on = asyncio.Event()  # a simulation and a publication wait for it
        self.go_on.set()
        self._release_signer = signer
        self.signer = BUNDLE_SIGNER  # signer of the versions
        self.trees: dict[str, TaskTree] = {version: tree(version) for version in VERSIONS}
        self.failing_variant = ""  # simulations of this variant fail
        self.commit = ""  # another one than the version was simulated with
        self.unsigned = False  # the versions wait for a signature
        self.schema: Schema = {"os": ColumnType.STRING, "memory_mb": ColumnType.INT}
        self.publish_errors = 0  # count of the next publications that fail
        self.monitor = MonitorService(journal, clock)
        self._batches = 0
        self.service = ReleaseService(journal, self, clock, cdn_url=lambda: CDN_URL)
        self.monitor.on_verdict = self.service.verdict

    async def report(self, release_id: str, ok: int, failed: int, device_id: str = "d1", error: str = "") -> None:
        """Send a report of executions, and wait until its effects have run."""
        self._batches += 1
        installed = Outcome(task="shop/ipv", version="v1", release=release_id, kind=OutcomeKind.INSTALLED)
        ran = Outcome(
            task="shop/ipv", version="v1", release=release_id, kind=OutcomeKind.RUN, ok=ok, failed=failed, error=error
        )
        await self.monitor.take(OutcomeBatch(device_id, f"b{self._batches}", (installed, ran)))
        await self.service.settled()

    async def reached(self, release_id: str, stage: str) -> Release:
        """Return the release once it is at `stage` and its effects have run."""
        async for release in self.service.watch(release_id):
            if release.stage == stage:
                await self.service.settled()
                return release
        raise AssertionError(f"{release_id} ended before {stage}: {await self.service.get(release_id)}")

    async def exclusive_files(self, device_id: str, generation: int, groups: GroupPart) -> bytes:
        raise NotImplementedError(f"no exclusive files here, of {device_id} {generation} {groups}")

    async def check_version(self, scenario: str, task: str, version: str) -> None:
        if (scenario, task) != ("shop", "ipv") or version not in VERSIONS:
            raise RepoError(f"version {scenario}/{task}/{version}", "there is none")

    async def read_config(self, scenario: str, task: str, version: str) -> TaskConfig:
        return (await self.read_version(scenario, task, version)).config

    async def read_schema(self) -> Schema:
        return self.schema

    async def read_version(self, scenario: str, task: str, version: str) -> TaskVersion:
        await self.check_version(scenario, task, version)
        return TaskVersion.parse(self.trees[version])

    async def build(self, version: TaskVersion) -> Bundle:
        if self.unsigned:
            raise SignatureAwaitedError("shop/ipv", version.tree.version, "sign it with: walle sign")
        if self.commit:
            version = dataclasses.replace(version, tree=dataclasses.replace(version.tree, commit=self.commit))
        return build_bundle(version, self.signer)

    async def stamp(self, table: ReleaseTable) -> str:
        return f"{table.generation}:{table.floor}"

    async def signing(self, version: TaskVersion) -> SigningState:
        return SigningState(version.tree.version.encode(), 1, {}, ())

    async def add_signatures(self, version: TaskVersion, signatures: Mapping[str, bytes]) -> SigningState:
        self.unsigned = False
        return SigningState(version.tree.version.encode(), 1, {}, tuple(signatures))

    async def store_bundle(self, bundle: Bundle, older: Sequence[str]) -> None:
        assert not [*bundle.large, *bundle.cloud_large]
        envelopes = (one.envelope for one in (bundle, *bundle.variants))
        for data in (*bundle.blobs.values(), *bundle.cloud_blobs.values(), *envelopes):
            self.files.put(data)
        self.coded.append((bundle.manifest.version, tuple(older)))

    async def store_envelope(self, envelope: bytes) -> None:
        self.files.put(envelope)

    async def read_envelope(self, sha256: str) -> bytes:
        return self.files.path(sha256).read_bytes()

    async def simulate(
        self, bundle: Bundle, events: bytes | None, files: Mapping[str, bytes], policy: Policy
    ) -> SimulationResult:
        self.simulated.append(bundle.manifest.installed_as)
        self.simulating.set()
        await self.go_on.wait()
        if bundle.manifest.variant and bundle.manifest.variant == self.failing_variant:
            return SimulationResult(ok=False, runs=3, failures=3, first_error="ValueError: too small")
        return self.simulation

    async def publish(self, table: ReleaseTable) -> None:
        await self.go_on.wait()
        if self.publish_errors:
            self.publish_errors -= 1
            raise ConnectionError("no gateway answers")
        self.answerer.swap(table)
        self.published.set()

    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]:
        return self.answerer.recent(count, policy, task)

    def sign(self, directive: Directive) -> Directive:
        return signs(self._release_signer)(directive)

    async def watch(self, step: Step) -> None:
        await self.monitor.watch(step)

    async def unwatch(self, release_id: str) -> None:
        await self.monitor.unwatch(release_id)
