"""The cloud's /cen over HTTP, with the session of the device (`walle.deploy.agent.exclusive`)."""

import httpx

from walle.deploy.agent.fetch import FetchError, WrongLengthError
from walle.device.credentials import DeviceCredentials
from walle.protocol import DEVICE_HEADER, PROFILE_HEADER, Profile

_TIMEOUT_S = 30.0


class HttpExclusiveSource:
    """An `ExclusiveSource`. Addresses are relative to the client's `base_url`: no other server gets the session.

    By the `profile` the cloud knows the device's groups, which have files too. It has no tasks: groups do not depend on
    them, and those of a large fleet do not fit into a header.
    """

    def __init__(self, http: httpx.AsyncClient, credentials: DeviceCredentials, profile: Profile) -> None:
        self._http = http
        self._credentials = credentials
        self._profile = profile.to_header()

    async def fetch(self, path: str, *, max_bytes: int) -> bytes:
        """Return what is at a path; where the cloud does not know the session any more, with another one."""
        try:
            session = await self._credentials.session()
            status, data = await self._get(path, session, max_bytes)
            if status == httpx.codes.UNAUTHORIZED:
                self._credentials.drop_session(session)
                status, data = await self._get(path, await self._credentials.session(), max_bytes)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FetchError(path, f"{type(error).__name__}: {error}") from error
        if status != httpx.codes.OK:
            raise FetchError(path, f"the server answered {status}")
        return data

    async def _get(self, path: str, session: str, max_bytes: int) -> tuple[int, bytes]:
        headers = {DEVICE_HEADER: session, PROFILE_HEADER: self._profile, "Accept-Encoding": "identity"}
        data = bytearray()
        async with self._http.stream("GET", path, headers=headers, timeout=_TIMEOUT_S) as response:
            if response.status_code != httpx.codes.OK:
                return response.status_code, b""
            async for chunk in response.aiter_raw(16 << 10):
                data += chunk
                if len(data) > max_bytes:
                    raise WrongLengthError(path, f"more than {max_bytes} bytes")
        return response.status_code, bytes(data)
