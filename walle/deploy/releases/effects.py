"""Side effects of the release service: the interface of what it does outside of its journal."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from walle.deploy.exclusive_files.groups import GroupPart
from walle.deploy.gate.step import Step
from walle.deploy.policies.attribute_schema import Schema
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.signatures import SigningState
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import Directive
from walle.task.format.bundle import Bundle, TaskVersion
from walle.task.format.config import TaskConfig


class Effects(Protocol):
    """Side effects of the release service. Every call may be repeated.

    A call that raises is retried, except during a simulation, where it fails the release.
    """

    async def check_version(self, scenario: str, task: str, version: str) -> None:
        """Raise RepoError unless the version exists."""

    async def read_config(self, scenario: str, task: str, version: str) -> TaskConfig:
        """Return the version's task.toml. Raises RepoError where the version does not exist."""

    async def read_version(self, scenario: str, task: str, version: str) -> TaskVersion:
        """Return the version. Raises RepoError where it does not exist."""

    async def read_schema(self) -> Schema:
        """Return the declared attributes of devices."""

    async def build(self, version: TaskVersion) -> Bundle:
        """Return the signed bundle. Raises SignatureAwaitedError while too few keys have signed the version."""

    async def signing(self, version: TaskVersion) -> SigningState:
        """Return what there is to sign, as `Signatures.state` does."""

    async def add_signatures(self, version: TaskVersion, signatures: Mapping[str, bytes]) -> SigningState:
        """Keep signatures of the version, as `Signatures.add` does."""

    async def simulate(
        self, bundle: Bundle, events: bytes | None, files: Mapping[str, bytes], policy: Policy
    ) -> SimulationResult:
        """Run the version on its own events, None without any, and the files that they may name.

        It is run for the kinds of devices that there are, and for the groups of devices that the policy reaches.
        """

    async def store_bundle(self, bundle: Bundle, older: Sequence[str]) -> None:
        """Store the files and the envelope of a bundle, those that only the cloud reads apart from the others.

        Devices that have a version with one of the manifests `older` (sha256) get smaller forms of the files.
        """

    async def store_envelope(self, envelope: bytes) -> None:
        """Store the envelope of a bundle whose files are stored."""

    async def read_envelope(self, sha256: str) -> bytes:
        """Return a stored envelope."""

    async def recent_devices(self, count: int, policy: Policy, task: str) -> tuple[str, ...]:
        """Return the ids of `count` recently seen devices at most that would get the task by the policy."""

    def sign(self, directive: Directive) -> Directive:
        """Return the signed directive. The same directive gets the same signature."""

    async def stamp(self, table: ReleaseTable) -> str:
        """Return the signed timestamp of a table."""

    async def publish(self, table: ReleaseTable) -> None:
        """Swap the table in all gateways."""

    async def watch(self, step: Step) -> None:
        """Have the monitor judge a step from now on."""

    async def unwatch(self, release_id: str) -> None:
        """Have the monitor judge the release no more."""

    async def exclusive_files(self, device_id: str, generation: int, groups: GroupPart) -> bytes:
        """Return the signed list of a device's exclusive files; `groups` is what its groups give it."""
