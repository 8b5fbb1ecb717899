"""Requests and uploads of devices through the tunnel: who may ask for what, and send what, before anything runs."""

from collections.abc import Callable, Mapping, Sequence

from walle.base.clock import Clock
from walle.cloud.api.interfaces import InferencePeer, MonitorPeer, ReleasesPeer
from walle.cloud.inference.failures import InferenceError, InferenceRefusedError
from walle.cloud.inference.phase_audience import PhaseAudience
from walle.cloud.inference.request import phase_request
from walle.pipeline.ingest.store.topic_check import DeviceTask
from walle.protocol import Profile, version_of
from walle.task.run.runner import PhasePlaceError

RESTORED_S = 30 * 86_400.0  # time after the restore of a cloud in which devices may have tasks that it does not know of


class DeviceRequests:
    """Answers requests of devices from `start` on: phases of versions that a release has given to the device.

    `profile_of` returns what a device last reported about itself, None if unknown, `join` a profile with what was
    uploaded.
    """

    def __init__(
        self, profile_of: Callable[[str], Profile | None], join: Callable[[Profile], Profile], clock: Clock
    ) -> None:
        self._audience = PhaseAudience(profile_of, join, clock)
        self._clock = clock
        self._restored_s = 0.0
        self._inference: InferencePeer | None = None

    def start(
        self, releases: ReleasesPeer, monitor: MonitorPeer, inference: InferencePeer, *, restored_s: float = 0.0
    ) -> None:
        """Answer from now on, by these. `restored_s` is when the cloud was restored from a backup, 0 for never."""
        self._restored_s = restored_s

        async def versions_of(device_id: str) -> Mapping[str, frozenset[str]]:
            device = await monitor.device(device_id, None)
            return {one.task: frozenset({version_of(one.active), one.version}) for one in device.tasks}

        self._audience.start(releases.all, versions_of)
        self._inference = inference

    async def foreign_tasks(self, pairs: Sequence[DeviceTask]) -> frozenset[DeviceTask]:
        """Return those of the pairs whose device surely never had the task, so that it puts no features under it.

        In a cloud that was restored from a backup in the last RESTORED_S none is sure: the backup may lack releases.

        Raises:
            WalleError: the releases cannot be read now.
        """
        if self._clock.time() - self._restored_s < RESTORED_S:
            return frozenset()
        return await self._audience.never_had(pairs)

    def note_change(self) -> None:
        """Take note that a release has changed."""
        self._audience.note_change()

    async def answer(self, device_id: str, topic: str, payload: bytes) -> bytes:
        """Return the result of the phase that the payload names, as plain data.

        A version that was never released and one that is not for this device are refused by the same words, by the
        same look-ups, before any queue.

        Raises:
            InferenceRefusedError: the topic is unknown, the request cannot be read, the device has not been given the
                version, or the version's phase does not run in the cloud.
            InferenceError, VMError: as `InferenceNode.run`.
            WalleError: the releases cannot be read now.
        """
        request = phase_request(device_id, topic, payload)
        if self._inference is None:
            raise InferenceError("fallback inference has not started yet")
        if not await self._audience.has(request):
            what = f"{request.task[:200]} {request.version[:100]} is not a version that this device was given"
            raise InferenceRefusedError(f"{what}; it may ask for phases of those that a release gives it")
        try:
            return await self._inference.run(request)
        except PhasePlaceError as error:
            raise InferenceRefusedError(str(error)) from error
