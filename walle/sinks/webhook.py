"""Sink to a webhook: batches of rows as JSON by POST, at least once.

The body is {"group": ..., "rows": [...]}. `Idempotency-Key` is the SHA-256 of the body, equal for each attempt at one
batch; after a restart of the sink the same rows may come in other batches, so a receiver that must not count twice
remembers the `key` of each row.
"""

import hashlib
import time
from collections.abc import Sequence

import httpx

from walle.base.backoff import retry_after_s
from walle.base.plain_json import dumps
from walle.sinks.sink import Refusal, Sink, SinkError, SinkRow, rows_refused

_TIMEOUT_S = 30.0
_MAX_ROWS, _MAX_BYTES = 500, 1 << 20  # limits of a request; a row that is larger goes alone
_MAY_PASS = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS}
_OF_CONTENT = {httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE, httpx.codes.UNPROCESSABLE_ENTITY}
_SHOWN_CHARS = 200  # characters of an answer in an error


class WebhookSink(Sink):
    """POST requests to `url`; `token` is sent as a bearer token.

    2xx is success. Statuses 408, 425, 429 and 5xx, and connections that fail, are tried again, after Retry-After where
    the answer has it. 400, 413 and 422 halve the request, down to the row that is refused alone. Any other answer,
    redirects too, is an error that does not pass: nothing is skipped.
    """

    def __init__(
        self,
        url: str,
        group: str,
        *,
        token: str = "",
        ca_file: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.target = url.partition("?")[0]
        self._url = url
        self._group = dumps(group)
        self._token = token
        self._ca_file = ca_file
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        import ssl

        headers = {"Content-Type": "application/json", "User-Agent": "walle-sink"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            verify = ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            what = f"the file of authorities {self._ca_file!r} cannot be read: {error}"
            raise SinkError(self.target, what, may_pass=False) from error
        self._client = httpx.AsyncClient(
            headers=headers, timeout=_TIMEOUT_S, verify=verify, transport=self._transport, trust_env=True
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def write(self, rows: Sequence[SinkRow]) -> None:
        written, limit = 0, _MAX_ROWS
        encoded: list[bytes] = []
        while written < len(rows):
            encoded = encoded or [row.encode() for row in rows[written : written + limit]]
            count = _fitting(encoded[:limit])
            try:
                await self._post(encoded[:count])
            except _ContentRefusedError as error:
                if count == 1:
                    refusal = Refusal(rows[written], str(error))
                    raise rows_refused(self.target, [refusal], written=written + 1) from error
                limit = count // 2
                continue
            except SinkError as error:
                error.written = written
                raise
            written += count
            encoded = encoded[count:]

    async def _post(self, encoded: Sequence[bytes]) -> None:
        assert self._client is not None
        body = b'{"group":' + self._group.encode() + b',"rows":[' + b",".join(encoded) + b"]}"
        key = hashlib.sha256(body).hexdigest()
        try:
            answer = await self._client.post(self._url, content=body, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            what = f"does not answer ({str(error) or type(error).__name__})"
            raise SinkError(self.target, what, may_pass=True) from error
        except httpx.HTTPError as error:
            raise SinkError(self.target, str(error), may_pass=False) from error
        if answer.is_success:
            return
        what = f"answered {answer.status_code}: {answer.text[:_SHOWN_CHARS]!r}"
        if answer.status_code in _OF_CONTENT:
            raise _ContentRefusedError(what)
        if answer.is_server_error or answer.status_code in _MAY_PASS:
            wait_s = retry_after_s(answer.headers.get("Retry-After"), time.time())
            raise SinkError(self.target, what, may_pass=True, wait_s=wait_s)
        what += "; the sink stops, and nothing is skipped: correct the address or the receiver, and start it again"
        raise SinkError(self.target, what, may_pass=False)


class _ContentRefusedError(Exception):
    """An answer that blames the rows of the request: a part of them may be taken."""


def _fitting(encoded: Sequence[bytes]) -> int:
    """Return how many of the rows go into one request, 1 at least."""
    size_bytes = 0
    for count, one in enumerate(encoded):
        size_bytes += len(one)
        if size_bytes > _MAX_BYTES and count:
            return count
    return len(encoded)
