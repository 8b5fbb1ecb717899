"""The cloud's part in what devices trust: its online keys, its timestamps, and the metadata that it passes on."""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, HTTPException, Response

from walle.base.clock import Clock
from walle.deploy.exclusive_files.store import DeviceFiles
from walle.deploy.releases.table import ReleaseTable
from walle.errors import ConfigError
from walle.protocol import Directive, ExclusiveList, Timestamp
from walle.trust.folder import TrustFolder, TrustFolderError
from walle.trust.metadata import RELEASE, TIMESTAMP, Root, Scenarios

_LOG = logging.getLogger(__name__)

_WATCH_S = 2.0  # interval between two looks for new metadata


class OnlineRoles:
    """The release and timestamp roles of a fleet, as the release node has them.

    Metadata that are added to the folder while the cloud runs are announced with the next timestamp; those that cannot
    be read are not, and are logged.

    Raises:
        ConfigError: metadata or a key cannot be read, or a key does not have its role.
    """

    def __init__(self, folder: TrustFolder, epoch: int, clock: Clock, *, timestamp_life_s: int) -> None:
        self._folder = folder
        self._epoch = epoch
        self._clock = clock
        self._life_s = timestamp_life_s
        self._names = folder.names()
        self._release = folder.online_signer(RELEASE)
        self._timestamp = folder.online_signer(TIMESTAMP)
        self._root, self._scenarios = self._load()

    def _load(self) -> tuple[Root, Scenarios]:
        root = self._folder.root()
        for role, signer in ((RELEASE, self._release), (TIMESTAMP, self._timestamp)):
            if signer.key_id not in root.roles[role].keys:
                raise TrustFolderError(
                    self._folder.online,
                    f"key {signer.key_id} does not have the role {role} in root version {root.version};"
                    " copy keys/ and trust/ together from where walle trust made them, and start the cloud again",
                )
        return root, self._folder.scenarios(root)

    def sign(self, directive: Directive) -> Directive:
        """Return the directive for the fleet in the present epoch, signed by the release role."""
        return self._release.sign_directive(dataclasses.replace(directive, epoch=self._epoch), self._root.fleet)

    def sign_exclusive(self, device_id: str, generation: int, found: DeviceFiles) -> ExclusiveList:
        """Return the list of what a key of a device has now, signed by the release role; as fresh as a timestamp."""
        files = ExclusiveList(
            device_id=device_id,
            generation=generation,
            serial=found.serial,
            epoch=self._epoch,
            expires_s=int(self._clock.time()) + self._life_s,
            files=found.files,
        )
        return self._release.sign_exclusive(files, self._root.fleet)

    async def stamp(self, table: ReleaseTable) -> str:
        """Return the value of X-Walle-Trust for answers from `table`, signed now by the timestamp role.

        It names the newest metadata: a version in `table` may have been signed by a key that these delegate.
        """
        await asyncio.to_thread(self._reload)
        now_s = int(self._clock.time())
        timestamp = Timestamp(
            fleet=self._root.fleet,
            epoch=self._epoch,
            generation=table.generation,
            floor=table.floor,
            floors=table.floors(Timestamp.MAX_FLOORS),
            root=self._root.version,
            scenarios=self._scenarios.version,
            scenarios_sha256=hashlib.sha256(self._scenarios.data).hexdigest(),
            time_s=now_s,
            expires_s=now_s + self._life_s,
        )
        return self._timestamp.sign_timestamp(timestamp).to_header()

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Call `changed` when newer metadata were put into the folder, until cancelled."""
        known = self._names
        while True:
            await self._clock.sleep(_WATCH_S)
            await asyncio.to_thread(self._reload)
            if self._names != known:
                known = self._names
                await changed()

    def _reload(self) -> None:
        names = self._folder.names()
        if names == self._names:
            return
        try:
            self._root, self._scenarios = self._load()
        except (ConfigError, OSError) as error:  # files may be half copied: looked at again
            _LOG.error("new trust metadata is not used: %s", error)
            return
        self._names = names
        _LOG.info("root version %d, scenarios version %d", self._root.version, self._scenarios.version)


def trust_router(folder: TrustFolder) -> APIRouter:
    """Return the route of signed metadata, which are public."""
    router = APIRouter(tags=["devices"])

    @router.get("/trust/{name}")
    async def metadata(name: str) -> Response:
        """Return root or scenarios metadata of one version, `1.root.json` or `1.scenarios.json`."""
        path = folder.file(name)
        if path is None:
            raise HTTPException(404, "unknown metadata; ask for /trust/VERSION.root.json or .scenarios.json")
        data = await asyncio.to_thread(path.read_bytes)
        return Response(data, media_type="application/json", headers={"Cache-Control": "public, max-age=86400"})

    return router
