"""HTTP client of a cloud's API: address, token, TLS, bound of answers, and errors that say what to do.

httpx is imported when it is needed: all commands import the clients, and httpx takes 0.2 s of a processor.
"""

import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from walle.base.http_roots import http_tls
from walle.errors import DeployError
from walle.protocol import printable

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 30.0
_MAX_REASON_BYTES = 300
_MAX_ANSWER_BYTES = 128 << 20  # a page of features has 12 MiB of payloads at most, up to 8 times as long in JSON


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
    """No answer from `url`; `why` is the reason alone."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no cloud answers at {url} ({why}); start one with `walle cloud up FOLDER`, or name another with --url"
        )
        self.url = url
        self.why = why


class CloudCertificateError(CloudUnreachableError):
    """A server at `url` whose certificate is not trusted; `why` is TLS's reason."""

    def __init__(self, url: str, why: str) -> None:
        DeployError.__init__(
            self, f"the certificate that {url} shows is not trusted; run `walle login {url}` to check and pin it"
        )
        self.url = url
        self.why = why


class CutAnswerError(CloudClientError):
    """An answer that ended early. `url` is the cloud's address."""

    def __init__(self, url: str) -> None:
        super().__init__(f"the answer of {url} ended early; give the same command again")
        self.url = url


class LongAnswerError(CloudClientError):
    """An answer of more than `most` bytes. `url` is the cloud's address."""

    def __init__(self, url: str, most: int) -> None:
        super().__init__(f"the answer of {url} has more than {most} bytes; ask for a part of it")
        self.url = url


class CloudAnswer(NamedTuple):
    """Whole answer of a call that was not refused."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class CloudClient:
    """A client of one cloud, within `async with`. `ca_pem` is the cloud's own CA, where it has one.

    `tls` replaces the context that is made of `ca_pem`. Proxies are those of the environment, unless `is_direct`. No
    redirect is followed: the token goes to this address alone.

    Every call raises CloudUnreachableError without an answer, CloudRefusedError where the answer is an error, and
    LongAnswerError where it has more than 128 MiB (but for `lines`). A redirect is an error.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca_pem: str = "",
        tls: ssl.SSLContext | None = None,
        is_direct: bool = False,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        import httpx

        self.url = _checked(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.AsyncClient(
                base_url=url,
                headers=headers,
                timeout=_TIMEOUT_S,
                verify=tls or http_tls(ca_pem),
                trust_env=not is_direct,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudAddressError(url, str(error)) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def move(self, url: str) -> None:
        """Ask at another address of the same cloud from now on. Raises CloudAddressError."""
        import httpx

        self.url = _checked(url)
        try:
            self._http.base_url = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudAddressError(url, str(error)) from error

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, str | int | float] | None = None,
        **more: Any,
    ) -> Any:
        """Send `body` as JSON, and return the JSON of the answer, None where it has no content; `more` as in `send`."""
        answer = await self.send(method, path, body, parameters=parameters, **more)
        if answer.status == HTTPStatus.NO_CONTENT:
            return None
        try:
            return json.loads(answer.body)
        except ValueError as error:
            what = f"{self.url} is not a Walle cloud: its answer is not JSON"
            raise CloudRefusedError(answer.status, what) from error

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, str | int | float] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
        answer_s: float | None = None,
    ) -> CloudAnswer:
        """Send `body` as JSON, or `content`, and return the answer.

        `timeout_s` is for a connection and for each piece that is sent or comes, `answer_s` for pieces that come.
        """
        import httpx

        timeout = httpx.Timeout(timeout_s, read=answer_s or timeout_s)
        with self._reaching():
            async with self._http.stream(
                method, path, json=body, params=parameters, content=content, headers=headers, timeout=timeout
            ) as response:
                return await self._whole(response)

    async def lines(self, path: str, *, silence_s: float) -> AsyncGenerator[str]:
        """Yield the lines of an answer as they come; `silence_s` without a byte ends it."""
        with self._reaching():
            async with self._http.stream("GET", path, timeout=silence_s) as response:
                if not response.is_success:
                    await self._whole(response)
                async for line in response.aiter_lines():
                    yield line

    async def _whole(self, response: "httpx.Response") -> CloudAnswer:
        """Read an answer to its end. Raises CloudRefusedError, LongAnswerError."""
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_ANSWER_BYTES:
                raise LongAnswerError(self.url, _MAX_ANSWER_BYTES)
        if not response.is_success:
            raise _refusal(response, body)
        return CloudAnswer(response.status_code, response.headers, bytes(body))

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            if "CERTIFICATE_VERIFY_FAILED" in why:
                raise CloudCertificateError(self.url, why) from error
            raise CloudUnreachableError(self.url, why) from error


async def fetch_authority(url: str) -> str:
    """Return the certificate authority that a server at `url` says is its own, in PEM: nobody has checked it.

    It is shown to a person, or compared with a fingerprint, before anything else is sent.

    Raises:
        CloudUnreachableError: there is no answer.
        CloudRefusedError: the answer is an error.
    """
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    async with CloudClient(url, tls=unchecked) as client:
        return (await client.send("GET", "/v1/authority")).body.decode(errors="replace")


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise CloudAddressError(url, "not HTTP")
    return url


def _refusal(response: "httpx.Response", body: bytes | bytearray) -> CloudRefusedError:
    """Return the error of an answer that is one, with the cloud's reason."""
    kind = ""
    try:
        answer = json.loads(body)
        what, kind = str(answer["error"]), str(answer.get("type", ""))
    except (ValueError, KeyError, TypeError):
        what = f"the answer was {response.status_code} {response.reason_phrase}"
        if response.headers.get("content-type", "").startswith("text/plain"):  # a limit of the cloud's HTTP, or a proxy
            what += f": {printable(body[:_MAX_REASON_BYTES].decode(errors='replace').strip())}"
        else:
            what += "; is this the address of a Walle cloud?"
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        what += "; log in with: walle login URL; the first token is in the cloud's folder, in admin.token"
    return CloudRefusedError(response.status_code, what, kind)
