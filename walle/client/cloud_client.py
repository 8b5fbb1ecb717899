"""Base of HTTP clients of a cloud: address, token, and errors that say what to do.

These clients import httpx when they need it: all commands import the clients, and httpx takes 0.2 s of a processor.
"""

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

from walle.base.http_roots import http_tls
from walle.errors import DeployError

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 30.0


class CloudClientError(DeployError):
    """A call of a cloud that failed."""


class CloudAddressError(CloudClientError):
    """An address that is not an HTTP URL. `url` is the address."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url!r} is not the address of a cloud ({reason}); it begins with http:// or https://")
        self.url = url


class CloudRefusedError(CloudClientError):
    """An answer with an error. `status` is the HTTP status, `kind` the error's type as the cloud names it."""

    def __init__(self, status: int, what: str, kind: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.kind = kind


class CloudUnreachableError(CloudClientError):
    """No answer from `url`."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no cloud answers at {url} ({why}); start one with `walle cloud up FOLDER`, or name another with --url"
        )
        self.url = url


class CloudCertificateError(CloudUnreachableError):
    """A server at `url` whose certificate is not trusted."""

    def __init__(self, url: str) -> None:
        DeployError.__init__(
            self, f"the certificate that {url} shows is not trusted; run `walle login {url}` to check and pin it"
        )
        self.url = url


class CloudClient:
    """A client of one cloud, within `async with`. `ca_pem` is the cloud's own CA, where it has one.

    Every call raises CloudUnreachableError without an answer, CloudRefusedError where the answer is an error.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
    """

    def __init__(self, url: str, token: str = "", *, ca_pem: str = "") -> None:
        import httpx

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        if not url.startswith(("http://", "https://")):
            raise CloudAddressError(url, "not HTTP")
        try:
            self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, verify=http_tls(ca_pem))
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudAddressError(url, str(error)) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, str | int | float] | None = None,
    ) -> Any:
        with self._reaching():
            response = await self._http.request(method, path, json=body, params=parameters)
        raise_refusal(response)
        try:
            return response.json()
        except ValueError as error:
            what = f"{self.url} is not a Walle cloud: its answer is not JSON"
            raise CloudRefusedError(response.status_code, what) from error

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


def unreachable(url: str, error: "httpx.HTTPError") -> CloudUnreachableError:
    """Return the error to raise where no answer came from `url`."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return CloudCertificateError(url)
    return CloudUnreachableError(url, text or type(error).__name__)


def raise_refusal(response: "httpx.Response") -> None:
    """Raise CloudRefusedError with the cloud's reason if the answer is an error; its body must have been read."""
    if not response.is_error:
        return
    kind = ""
    try:
        answer = response.json()
        what, kind = str(answer["error"]), str(answer.get("type", ""))
    except (ValueError, KeyError, TypeError):
        what = f"the answer was {response.status_code} {response.reason_phrase}; is this the address of a Walle cloud?"
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        what += "; log in with: walle login URL; the first token is in the cloud's folder, in admin.token"
    raise CloudRefusedError(response.status_code, what, kind)
