"""Uploaded attributes over HTTP: people put, list and remove tables under /v1/attributes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request

from walle.access.access import ANY_SCENARIO, Identifier, Identity, Role
from walle.access.audit import Audit
from walle.base.clock import Clock
from walle.cloud.api.releases import check_role, identify
from walle.deploy.policies.attribute_schema import UPLOADED, ColumnType, Schema, read_schema, uploaded_columns
from walle.deploy.policies.attribute_table import DEVICE_ID, MAX_TABLE_BYTES, AttributeTableError, TableFacts
from walle.deploy.policies.uploaded_attributes import UploadedAttributes
from walle.errors import DeployError
from walle.store.disk_space import DiskFullError, DiskSpace, is_full

_PIECE_BYTES = 1 << 20

Authorization = Annotated[str, Header()]


class UnknownTableError(DeployError):
    """A table of this key does not exist. Over HTTP: 404."""

    status = 404

    def __str__(self) -> str:
        return f"a table by {str(self.args[0])[:100]!r} does not exist; list them with: walle attributes list"


class TableBusyError(DeployError):
    """Another table is being made by the gateway. Over HTTP: 409."""

    status = 409

    def __str__(self) -> str:
        return "another table is being uploaded; try again once that has ended"


def attribute_router(
    uploaded: UploadedAttributes,
    schema_path: Path,
    access: Identifier,
    *,
    on_change: Callable[[], Awaitable[None]],
    space: DiskSpace,
    audit: Audit,
    clock: Clock,
) -> APIRouter:
    """Return /v1/attributes. `on_change` is called after a table was put or removed through this gateway.

    Attributes are of the whole fleet, and decide on releases of all scenarios: roles are those on `*`.
    """
    router = APIRouter(prefix="/v1/attributes", tags=["uploaded attributes"])
    putting = asyncio.Lock()

    def releaser(authorization: str) -> Identity:
        identity = identify(access, authorization)
        check_role(identity, ANY_SCENARIO, Role.RELEASER)
        return identity

    async def schema() -> Schema:
        return await asyncio.to_thread(read_schema, schema_path)

    @router.get("")
    async def list_tables(authorization: Authorization = "") -> dict[str, Any]:
        """List the tables, without what is in them, and the declared columns; this needs the role `reader` on `*`."""
        check_role(identify(access, authorization), ANY_SCENARIO, Role.READER)
        await asyncio.to_thread(uploaded.read)
        declared = await schema()
        return {
            "tables": [
                {**table.facts.to_plain(), "size_bytes": table.size_bytes, "version": table.version}
                for table in uploaded.current.tables
            ],
            "columns": uploaded_columns(declared),
            "keys": _keys(declared),
        }

    @router.put("/{key}")
    async def put(key: str, request: Request, authorization: Authorization = "") -> dict[str, Any]:
        """Put a table, in place of the one by this key; this needs the role `releaser` on `*`.

        The body is of JSON lines, an object for each device or user: its id under the key, which is `device_id` or an
        attribute of profiles, and values of attributes that [uploaded] of attributes.toml declares. Where a line is
        wrong, nothing changes. Every gateway answers by the new table within about a second.
        """
        identity = releaser(authorization)
        declared = await schema()
        if key not in _keys(declared):
            what = f"{key[:100]!r} is neither {DEVICE_ID} nor an attribute of type string in attributes.toml"
            raise AttributeTableError(what)
        columns = uploaded_columns(declared)
        if not columns:
            raise AttributeTableError("attributes.toml declares no attribute in a section [uploaded]; add them first")
        if putting.locked():
            raise TableBusyError
        async with putting:
            with uploaded.receive() as (path, file):
                await _spool(request, path.parent, file.write, space)
                facts = TableFacts(key=key, columns=columns, rows=0, put_s=clock.time(), put_by=identity.name)
                staged = await asyncio.to_thread(uploaded.stage, path, facts)
                try:
                    details = {"rows": staged.table.facts.rows, "columns": list(staged.table.facts.columns)}
                    await audit.record("attributes.put", who=identity.name, subject=key, details=details)
                    await asyncio.to_thread(staged.commit)
                finally:
                    staged.discard()
        await on_change()
        return {**staged.table.facts.to_plain(), "size_bytes": staged.table.size_bytes, "version": staged.table.version}

    @router.delete("/{key}", status_code=204)
    async def remove(key: str, authorization: Authorization = "") -> None:
        """Remove a table: rules over what it had take no device by it; this needs the role `releaser` on `*`."""
        identity = releaser(authorization)
        if not await asyncio.to_thread(uploaded.has, key):  # what cannot be done leaves no record
            raise UnknownTableError(key)
        await audit.record("attributes.remove", who=identity.name, subject=key, details={}, must=False)
        if not await asyncio.to_thread(uploaded.remove, key):
            raise UnknownTableError(key)
        await on_change()

    return router


def _keys(declared: Schema) -> list[str]:
    """Return what may have the ids of a table's rows."""
    texts = [name for name, kind in declared.items() if kind is ColumnType.STRING]
    return [DEVICE_ID, *(name for name in texts if not name.startswith(UPLOADED) and name != DEVICE_ID)]


async def _spool(request: Request, folder: Path, write: Callable[[bytes], object], space: DiskSpace) -> None:
    """Write a request's body, in pieces, as long as there is room on the disk."""
    piece, size_bytes = bytearray(), 0

    def flush() -> None:
        space.check()
        try:
            write(bytes(piece))
        except OSError as error:
            if is_full(error):
                raise DiskFullError.of(error, folder) from error
            raise
        piece.clear()

    async for chunk in request.stream():
        piece += chunk
        size_bytes += len(chunk)
        if size_bytes > MAX_TABLE_BYTES:
            raise AttributeTableError(f"the rows have more than {MAX_TABLE_BYTES} bytes")
        if len(piece) >= _PIECE_BYTES:
            await asyncio.to_thread(flush)
    await asyncio.to_thread(flush)
