"""Audience of cloud phases: a device may ask for those of the versions that a release has given it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from walle.base.clock import Clock
from walle.cloud.inference.request import PhaseRequest
from walle.deploy.fleet.registry import UnknownDeviceError
from walle.deploy.releases.extent import may_have_reached, reaches
from walle.deploy.releases.release import Release
from walle.errors import WalleError
from walle.protocol import Profile

_LOG = logging.getLogger(__name__)

REREAD_S = 5.0  # time after which releases are read again for a device that none of them reaches

type _Name = tuple[str, str]  # a task's full name, and a version


class PhaseAudience:
    """The releases of each version, read again before a device is refused where one of them has changed.

    `profile_of` returns what a device last reported about itself, None if unknown, `join` a profile with what was
    uploaded. From `start` on, `all_releases` returns the releases, `versions_of` what a device reported of each task.
    """

    def __init__(
        self, profile_of: Callable[[str], Profile | None], join: Callable[[Profile], Profile], clock: Clock
    ) -> None:
        self._profile_of = profile_of
        self._join = join
        self._clock = clock
        self._all_releases: Callable[[], Awaitable[Iterable[Release]]]
        self._versions_of: Callable[[str], Awaitable[Mapping[str, frozenset[str]]]]
        self._by_version: dict[_Name, list[Release]] = {}
        self._by_task: dict[str, list[Release]] = {}
        self._changes = 0
        self._read_changes = -1  # number of the changes that `_by_version` has
        self._read_s = 0.0
        self._reading: asyncio.Task[None] | None = None

    def start(
        self,
        all_releases: Callable[[], Awaitable[Iterable[Release]]],
        versions_of: Callable[[str], Awaitable[Mapping[str, frozenset[str]]]],
    ) -> None:
        """Know releases and reports from now on."""
        self._all_releases, self._versions_of = all_releases, versions_of

    def note_change(self) -> None:
        """Read the releases again before the next device is refused: one of them has changed."""
        self._changes += 1

    async def has(self, request: PhaseRequest) -> bool:
        """Return whether the device of a request has been given its version by a release, or is given it now.

        Raises:
            WalleError: the releases cannot be read now.
        """
        name = request.task, request.version
        profile = self._profile(request)
        if self._is_reached(name, profile):
            return True
        if not self._is_fresh:
            await self._read()
            if self._is_reached(name, profile):
                return True
        if name not in self._by_version or not await self._has_reported(profile.device_id, name):
            return False
        return self._is_reached(name, profile, has_version=True)

    async def never_had(self, pairs: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those pairs of a device and a task of which no release can have given the device the task.

        A task without releases is nobody's: nothing is known of it, as in a cloud that lost its journal.

        Raises:
            WalleError: the releases cannot be read now.
        """
        found = self._not_reached(pairs)
        if found and not self._is_fresh:
            await self._read()
            found = self._not_reached(found)
        return frozenset(found)

    def _not_reached(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        by_task = self._by_task
        return [
            (device_id, task)
            for device_id, task in pairs
            if not any(may_have_reached(one, device_id) for one in by_task.get(task, ()))
            and (task in by_task or not self._is_fresh)
        ]

    def _profile(self, request: PhaseRequest) -> Profile:
        """Return what the device says of itself, in its last profile and in the request, and what was uploaded."""
        device_id = str(request.device["id"])
        said = {name: value for name, value in request.device.items() if name != "id" and value is not None}
        known = self._profile_of(device_id) or Profile(device_id, "", {})
        return self._join(Profile(device_id, known.app_version, {**known.attributes, **said}))

    def _is_reached(self, name: _Name, profile: Profile, *, has_version: bool = False) -> bool:
        return any(reaches(one, profile, has_version=has_version) for one in self._by_version.get(name, ()))

    async def _has_reported(self, device_id: str, name: _Name) -> bool:
        task, version = name
        try:
            return version in (await self._versions_of(device_id)).get(task, ())
        except UnknownDeviceError:
            return False
        except WalleError as error:
            _LOG.warning("the versions of device %r are not known now: %s", device_id, error)
            return False

    # --- the releases -------------------------------------------------------------------------------------------------

    @property
    def _is_fresh(self) -> bool:
        return self._read_changes == self._changes and self._clock.monotonic() - self._read_s < REREAD_S

    async def _read(self) -> None:
        """Read the releases; concurrent callers share that."""
        while not self._is_fresh:  # a change may come while they are read
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
                self._reading.add_done_callback(self._note_end)
            await asyncio.shield(self._reading)

    async def _read_all(self) -> None:
        changes, now_s = self._changes, self._clock.monotonic()
        by_version: dict[_Name, list[Release]] = {}
        by_task: dict[str, list[Release]] = {}
        for release in await self._all_releases():
            if release.manifest:
                by_version.setdefault((release.request.name, release.request.version), []).append(release)
                by_task.setdefault(release.request.name, []).append(release)
        self._by_version, self._by_task = by_version, by_task
        self._read_changes, self._read_s = changes, now_s

    def _note_end(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # the callers have the exception
