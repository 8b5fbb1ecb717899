"""HTTP client of the release API (`/v1/releases`, DESIGN section 3)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NotRequired, Self, TypedDict

import httpx

from walle.errors import DeployError

_TIMEOUT_S = 30.0
_STREAM_TIMEOUT_S = 60.0  # the cloud sends a ping every 15 s
_RECONNECT_S = 0.5
_RECONNECTS = 20  # in a row


class ReleaseClientError(DeployError):
    """A call of the release API that failed."""


class CloudAddressError(ReleaseClientError):
    """An address that is not an HTTP URL. `url` is the address."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url!r} is not the address of a cloud ({reason}); it begins with http:// or https://")
        self.url = url


class CloudRefusedError(ReleaseClientError):
    """An answer with an error. `status` is the HTTP status, `kind` the error's type as the cloud names it."""

    def __init__(self, status: int, what: str, kind: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.kind = kind


class CloudUnreachableError(ReleaseClientError):
    """No answer from `url`."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no cloud answers at {url} ({why}); start one with `walle cloud up FOLDER`, or name another with --url"
        )
        self.url = url


class RequestJson(TypedDict):
    """A release request, as the cloud shows it."""

    scenario: str
    task: str
    version: str
    policy: dict[str, str]
    beta: int | list[str]
    steps: list[float]
    gate: dict[str, float]


class TransitionJson(TypedDict):
    """One line of a release's history."""

    at_s: float
    event: str
    state: str
    details: dict[str, Any]


class FailureJson(TypedDict):
    """A distinct failure of a release: counts and times, and texts of the latest report of it."""

    kind: str
    error_type: str
    error: str
    place: str
    traceback: str
    log: str
    device_id: str
    count: int
    devices: int
    first_s: float
    last_s: float


class FailuresJson(TypedDict):
    """The distinct failures of a release, and the number of the others."""

    failures: list[FailureJson]
    others: int


class ReleaseJson(TypedDict):
    """A release, as the cloud shows it. Only `get` gives `history`."""

    id: str
    number: int
    request: RequestJson
    state: str
    stage: str
    step: int
    beta_devices: list[str]
    manifest: str
    reads: NotRequired[list[str]]  # topics of other tasks; an older cloud sends none
    resumes: str | None
    reason: str
    totals: dict[str, Any]
    history: NotRequired[list[TransitionJson]]


class ReleaseClient:
    """The release API of one cloud, within `async with`.

    Every method raises CloudUnreachableError without an answer, CloudRefusedError where the answer is an error.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._http = cloud_http(url, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def create(
        self,
        scenario: str,
        task: str,
        version: str,
        *,
        policy: Mapping[str, str] | None = None,
        beta: int | Sequence[str] | None = None,
        steps: Sequence[float] | None = None,
        gate: Mapping[str, float] | None = None,
    ) -> ReleaseJson:
        """Make a release, not yet started; the cloud chooses what is None."""
        body: dict[str, Any] = {"scenario": scenario, "task": task, "version": version}
        optional = {"policy": policy, "beta": beta, "steps": steps, "gate": gate}
        body |= {key: value for key, value in optional.items() if value is not None}
        release: ReleaseJson = await self._call("POST", "", body)
        return release

    async def get(self, release_id: str) -> ReleaseJson:
        """Return one release with its history."""
        release: ReleaseJson = await self._call("GET", f"/{release_id}")
        return release

    async def failures(self, release_id: str) -> FailuresJson:
        """Return the distinct failures of a release; this needs the role `read`."""
        failures: FailuresJson = await self._call("GET", f"/{release_id}/failures")
        return failures

    async def list_all(self) -> list[ReleaseJson]:
        """Return every release, newest first."""
        releases: list[ReleaseJson] = await self._call("GET", "")
        return releases

    async def start(self, release_id: str) -> ReleaseJson:
        """Begin with the simulation."""
        return await self._act("start", release_id)

    async def pause(self, release_id: str) -> ReleaseJson:
        """Stop where it is: no further device gets the version."""
        return await self._act("pause", release_id)

    async def resume(self, release_id: str) -> ReleaseJson:
        """Continue a paused release."""
        return await self._act("resume", release_id)

    async def rollback(self, release_id: str, reason: str = "") -> ReleaseJson:
        """Take the version back from every device that has it."""
        return await self._act("rollback", release_id, {"reason": reason})

    async def stream(self, release_id: str) -> AsyncIterator[ReleaseJson]:
        """Yield the release now and after each change until it is over; reconnect after a dropped connection."""
        failures = 0
        while True:
            try:
                async with self._http.stream(
                    "GET", f"/v1/releases/{release_id}/stream", timeout=_STREAM_TIMEOUT_S
                ) as response:
                    if response.is_error:
                        await response.aread()
                        raise_refusal(response)
                    async for line in response.aiter_lines():
                        if line.startswith("data:"):  # each event of this stream has one data line
                            failures = 0
                            yield json.loads(line.removeprefix("data:"))
            except httpx.HTTPError as error:
                failures += 1
                if failures > _RECONNECTS:
                    raise CloudUnreachableError(self.url, str(error) or type(error).__name__) from error
                await asyncio.sleep(_RECONNECT_S)
            else:
                return

    async def _act(self, action: str, release_id: str, body: Mapping[str, Any] | None = None) -> ReleaseJson:
        release: ReleaseJson = await self._call("POST", f"/{release_id}/{action}", body)
        return release

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._reaching():
            response = await self._http.request(method, f"/v1/releases{path}", json=body)
        raise_refusal(response)
        try:
            return response.json()
        except ValueError as error:
            what = f"{self.url} is not a Walle cloud: its answer is not JSON"
            raise CloudRefusedError(response.status_code, what) from error

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise CloudUnreachableError(self.url, str(error) or type(error).__name__) from error


def cloud_http(url: str, token: str) -> httpx.AsyncClient:
    """Return a client of the cloud at `url`, which sends `token` unless it is empty.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
    """
    if not url.startswith(("http://", "https://")):
        raise CloudAddressError(url, "not HTTP")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S)
    except (httpx.InvalidURL, ValueError) as error:
        raise CloudAddressError(url, str(error)) from error


def raise_refusal(response: httpx.Response) -> None:
    """Raise CloudRefusedError with the cloud's reason if the answer is an error; its body must have been read."""
    if not response.is_error:
        return
    kind = ""
    try:
        answer = response.json()
        what, kind = str(answer["error"]), str(answer.get("type", ""))
    except (ValueError, KeyError, TypeError):
        what = f"the answer was {response.status_code} {response.reason_phrase}; is this the address of a Walle cloud?"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        what += " with --token or WALLE_TOKEN; the first token is in the cloud's folder, in admin.token"
    raise CloudRefusedError(response.status_code, what, kind)
