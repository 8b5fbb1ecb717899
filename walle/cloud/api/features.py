"""Features over HTTP: /v1/features."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from walle.access.access import Identifier, Identity, Role
from walle.access.errors import AccessError
from walle.base.plain_json import dumps
from walle.pipeline.ingest.store.feature_reader import (
    MAX_LATEST,
    MAX_PAGE,
    FeatureFilter,
    FeaturePage,
    FeatureReader,
    feature_row,
)
from walle.pipeline.ingest.store.upload_store import IngestError, UploadStore
from walle.pipeline.tunnel.received import Received
from walle.protocol import MAX_VERSION_CHARS, UNKNOWN_VERSION

_LOG = logging.getLogger(__name__)
_MAX_READERS = 4  # pages that are read at once: one read may have 32 MiB of payloads
_RETRY_AFTER_S = 5
_LINES_AT_ONCE = 64
_BYTES_AT_ONCE = 256 << 10  # payload bytes

type Uploads = Callable[[], UploadStore]
"""The gateway's store of uploads, which is open while it serves."""


def feature_router(uploads: Uploads, access: Identifier) -> APIRouter:
    """Return the routes of features; a token reads those of the scenarios in which it has the role `reader`."""
    router = APIRouter(tags=["features"])
    reading = asyncio.Semaphore(_MAX_READERS)

    @router.get("/v1/features", response_class=StreamingResponse)
    async def features(
        task: Annotated[str, Query(description="SCENARIO/TASK; all if empty", max_length=200)] = "",
        topic: Annotated[str, Query(description="all if empty", max_length=1024)] = "",
        group: Annotated[str, Query(description="of scenarios; all if empty", max_length=200)] = "",
        device: Annotated[str, Query(description="all if empty", max_length=1024)] = "",
        version: Annotated[
            str, Query(description=f"of the task; all if empty, {UNKNOWN_VERSION} is one", max_length=MAX_VERSION_CHARS)
        ] = "",
        since_ms: Annotated[int | None, Query(description="received from this time on", ge=0, le=2**53)] = None,
        until_ms: Annotated[int | None, Query(description="received before this time", ge=0, le=2**53)] = None,
        after: Annotated[int, Query(description="position after which to begin", ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(description="features of this page at most", ge=1, le=MAX_PAGE)] = 1000,
        latest: Annotated[
            int, Query(description="the latest ones instead of those after a position", ge=0, le=MAX_LATEST)
        ] = 0,
        authorization: Annotated[str, Header()] = "",
    ) -> Response:
        """Return features as JSON lines, in the order of receipt; the last line says where the next page begins.

        A feature: {"position", "time", "device", "task", "version", "topic", "page", "sent_ms", "received_ms",
        "payload"}, and "error" where the payload cannot be decoded. The last line: {"after", "head", "more"}. An
        answer without it was cut. For the next page, pass its `after`.
        """
        identity = _reader(access, authorization)
        wanted = FeatureFilter(
            task=task, topic=topic, device=device, version=version, since_ms=since_ms, until_ms=until_ms
        )
        for named in (task, topic):
            if named and not may_read(identity, named):
                raise AccessError(403, f"{identity.name} does not have the role reader for features of {named[:200]}")

        def is_listed(found: str) -> bool:
            its = identity.groups.group_of(found.partition("/")[0]) if group else ""
            return its == group and may_read(identity, found)

        reader = FeatureReader(uploads(), wanted, is_listed)
        async with reading:
            try:
                page = await (reader.latest(latest) if latest else reader.page(after, limit))
            except IngestError as error:
                _LOG.warning("features cannot be read: %s", error)
                what = "the store of uploads cannot be read now; the cloud's log says why"
                headers = {"Retry-After": str(_RETRY_AFTER_S)} if error.may_pass else None
                return JSONResponse({"error": what, "type": type(error).__name__}, 503, headers)
        return StreamingResponse(_lines(page), media_type="application/x-ndjson")

    return router


def may_read(identity: Identity, topic: str) -> bool:
    """Return whether the features of a topic, or of a task, may be read: `read` in its scenario, its first part.

    A topic that names no scenario is for those who may read all of them.
    """
    scenario, slash, _ = topic.partition("/")
    return identity.role(scenario if slash else "*") >= Role.READER


def _reader(access: Identifier, authorization: str) -> Identity:
    identity = access.identify_header(authorization)
    if identity is None:
        raise AccessError(401, "this needs a valid token: send the header Authorization: Bearer TOKEN")
    if identity.highest_role < Role.READER:
        raise AccessError(403, f"{identity.name} does not have the role reader in any scenario")
    return identity


async def _lines(page: FeaturePage) -> AsyncIterator[str]:
    """Yield the page as JSON lines, some at a time; another thread decodes them, so that other requests continue."""
    part: list[tuple[int, Received]] = []
    for one in page.uploads:
        part.append(one)
        if len(part) == _LINES_AT_ONCE or sum(len(received.payload) for _, received in part) >= _BYTES_AT_ONCE:
            yield await asyncio.to_thread(_text_of, part)
            part = []
    yield await asyncio.to_thread(_text_of, part)
    yield dumps({"after": page.after, "head": page.head, "more": page.more}) + "\n"


def _text_of(uploads: Sequence[tuple[int, Received]]) -> str:
    return "".join(f"{dumps(feature_row(*one))}\n" for one in uploads)
