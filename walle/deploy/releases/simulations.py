"""Simulations of releases (§6): a version is built once enough keys have signed it, then run, then its files stored."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from walle.base.clock import Clock
from walle.deploy.releases.effects import Effects
from walle.deploy.releases.release import Release, ReleaseEvent, SimulationFailed, SimulationPassed
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.signatures import SignatureAwaitedError
from walle.deploy.releases.simulated_fault import MAX_KEPT
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.variants import BuiltVariant
from walle.task.format.bundle import CONFIG_FILE, Bundle, TaskVersion

_LOG = logging.getLogger(__name__)

type Bases = Callable[[ReleaseRequest], list[str]]
"""Returns the manifests of versions to which differences are made."""
type OnWait = Callable[[str], Awaitable[None]]
"""Is called with the reason why a version waits for signatures."""


class Simulations:
    """The simulations that run, one for each release at most."""

    def __init__(self, effects: Effects, clock: Clock) -> None:
        self.running: dict[str, asyncio.Task[ReleaseEvent]] = {}  # by id of the release
        self._effects = effects
        self._clock = clock
        self._signed = asyncio.Event()  # replaced when a version is signed, or may now be

    async def run(self, release: Release, bases: Bases, on_wait: OnWait) -> ReleaseEvent:
        """Simulate the version of a release, and return the event that ends it; it failed where `cancel` was called."""
        simulation = self.running[release.id] = asyncio.create_task(self._outcome(release, bases, on_wait))
        try:
            await asyncio.wait([simulation])
        finally:
            del self.running[release.id]
            simulation.cancel()  # no-op unless the caller is cancelled
            await asyncio.gather(simulation, return_exceptions=True)
        if simulation.cancelled():
            return SimulationFailed(self._clock.time(), "the simulation was cancelled")
        return simulation.result()

    def cancel(self, release_id: str) -> None:
        """Cancel the simulation of a release, if it runs."""
        if simulation := self.running.get(release_id):
            simulation.cancel()

    def check_signatures(self) -> None:
        """Check again whether the versions that wait for a signature have one."""
        signed, self._signed = self._signed, asyncio.Event()
        signed.set()

    async def _outcome(self, release: Release, bases: Bases, on_wait: OnWait) -> ReleaseEvent:
        request = release.request
        try:
            version = await self._effects.read_version(request.scenario, request.task, request.version)
            bundle = await self._build(version, on_wait)
            variants = bundle.variants
            if [one.manifest.variant for one in variants] != [one.name for one in release.variants]:
                reason = f"{CONFIG_FILE} could not be read when the release was made: start another one"
                return SimulationFailed(self._clock.time(), reason)
            results = []
            policies = [request.policy, *(one.policy for one in release.variants)]
            for one, policy in zip((bundle, *variants), policies, strict=True):
                events, files = version.simulation_events, version.simulation_files
                results.append(await self._effects.simulate(one, events, files, policy))
                if not results[-1].ok:
                    return self._failed(version, one.manifest.variant, results[-1])
            result = results[0]
            await self._effects.store_bundle(bundle, bases(request))
        except Exception as error:  # noqa: BLE001 - any error fails the release; it must not stay here
            _LOG.info("%s failed in simulation", request.tag, exc_info=True)
            return SimulationFailed(self._clock.time(), f"{type(error).__name__}: {error}")
        reads = tuple(sorted(bundle.manifest.readable_topics))
        state = bundle.manifest.state
        return SimulationPassed(
            self._clock.time(),
            bundle.sha256,
            len(bundle.envelope),
            reads,
            groups=result.groups,
            other_groups=result.other_groups,
            other_names=result.other_names,
            state_bytes=result.state_bytes,
            state_max_bytes=0 if state is None else state.max_bytes,
            variants=envelopes(variants),
        )

    def _failed(self, version: TaskVersion, variant: str, result: SimulationResult) -> SimulationFailed:
        of_variant = f" of variant {variant}" if variant else ""
        reason = f"{result.failures} of {result.runs} simulated runs{of_variant} failed: {result.first_error}"
        name, files = version.name, version.traced_files
        log_name = version.config.simulation_events
        faults = tuple(one.in_sources(name, files, log_name=log_name) for one in result.faults[:MAX_KEPT])
        return SimulationFailed(self._clock.time(), reason, faults)

    async def _build(self, version: TaskVersion, on_wait: OnWait) -> Bundle:
        """Return the signed bundle once enough keys have signed it."""
        while True:
            signed = self._signed  # taken before the look, so that a signature that comes meanwhile is not missed
            try:
                return await self._effects.build(version)
            except SignatureAwaitedError as error:
                await on_wait(str(error))
                await signed.wait()


def envelopes(variants: Sequence[Bundle]) -> tuple[BuiltVariant, ...]:
    """Return the envelopes of the bundles of a version's variants."""
    return tuple(BuiltVariant(one.manifest.variant, one.sha256, len(one.envelope)) for one in variants)
