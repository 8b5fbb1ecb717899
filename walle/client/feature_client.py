"""HTTP client of a cloud's features (`GET /v1/features`)."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from walle.client.cloud_client import (
    CloudClient,
    CloudClientError,
    CloudRefusedError,
    raise_refusal,
    unreachable,
)

_MAX_ANSWER_BYTES = 128 << 20  # a page has payloads of 12 MiB at most, which JSON makes up to 8 times as long


class CutAnswerError(CloudClientError):
    """An answer that ended early, or is too long. `url` is the cloud's address."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the answer of {url} {why}; the same command again goes on")
        self.url = url


class ClientPage(NamedTuple):
    """Features as the cloud shows them; the next page is after `after`, the newest upload at `head`.

    `head` is below `after` if the store of uploads went back in time.
    """

    rows: list[dict[str, Any]]
    after: int
    head: int
    more: bool


class FeatureClient(CloudClient):
    """The features of one cloud, within `async with`. `wanted` are the query's fields: task, topic, device and so on.

    Raises:
        CloudAddressError: `url` is not an HTTP address.
    """

    def __init__(self, url: str, token: str, wanted: Mapping[str, str | int], *, ca_pem: str = "") -> None:
        super().__init__(url, token, ca_pem=ca_pem)
        self._wanted = dict(wanted)

    async def page(self, after: int, limit: int) -> ClientPage:
        """Return at most `limit` features after a position, in the order of receipt.

        Raises:
            CloudUnreachableError: the cloud does not answer.
            CloudRefusedError: the answer is an error.
            CutAnswerError: the answer ended early.
        """
        return await self._get({"after": after, "limit": limit})

    async def latest(self, count: int) -> ClientPage:
        """Return the latest features, at most `count`, in the order of receipt; raises as `page`."""
        return await self._get({"latest": count})

    async def _get(self, query: Mapping[str, str | int]) -> ClientPage:
        body = bytearray()
        try:
            async with self._http.stream("GET", "/v1/features", params={**self._wanted, **query}) as response:
                if response.is_error:
                    await response.aread()
                    raise_refusal(response)
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise CutAnswerError(self.url, f"has more than {_MAX_ANSWER_BYTES} bytes")
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        try:
            lines: list[dict[str, Any]] = [json.loads(line) for line in body.splitlines()]
        except ValueError as error:
            what = f"{self.url} is not a Walle cloud: its answer is not JSON lines"
            raise CloudRefusedError(httpx.codes.OK, what) from error
        end = lines.pop() if lines else {}
        if not isinstance(end, dict) or not {"after", "head", "more"} <= end.keys():
            raise CutAnswerError(self.url, "ended early")
        return ClientPage(lines, end["after"], end["head"], end["more"])
