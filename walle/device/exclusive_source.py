"""The cloud's /cen over HTTP, with the session of the device (`walle.deploy.agent.exclusive`)."""

import httpx

from walle.deploy.agent.fetch import FetchError, HttpFetcher
from walle.device.credentials import DeviceCredentials
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Profile


class HttpExclusiveSource:
    """An `ExclusiveSource`. Addresses are relative to the fetcher's base address: no other server gets the session.

    By the `profile` the cloud knows the device's groups, which have files too. It has no tasks: groups do not depend on
    them, and those of a large fleet do not fit into a header.
    """

    def __init__(self, fetcher: HttpFetcher, credentials: DeviceCredentials, profile: Profile) -> None:
        self._fetcher = fetcher
        self._credentials = credentials
        self._profile = profile.to_header()

    async def fetch(self, path: str, *, max_bytes: int) -> bytes:
        """Return what is at a path; where the cloud does not know the session any more, with another one."""
        session = await self._session(path)
        try:
            return await self._get(path, session, max_bytes)
        except FetchError as error:
            if error.status != httpx.codes.UNAUTHORIZED:
                raise
        self._credentials.drop_session(session)
        return await self._get(path, await self._session(path), max_bytes)

    async def _session(self, path: str) -> str:
        try:
            return await self._credentials.session()
        except httpx.HTTPError as error:
            raise FetchError(path, f"{type(error).__name__}: {error}") from error

    async def _get(self, path: str, session: str, max_bytes: int) -> bytes:
        headers = {DEVICE_HEADER: session, PROFILE_HEADER: self._profile}
        return await self._fetcher.fetch_small(path, max_bytes=max_bytes, headers=headers)
