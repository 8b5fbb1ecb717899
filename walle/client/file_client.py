"""HTTP client of what people put into a cloud beside git: large files, exclusive files, tables of attributes."""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

from walle.client.cloud_client import CloudClient, CloudRefusedError

_ATTRIBUTES = "/v1/attributes"
_EXCLUSIVE = "/v1/exclusive"
_CHUNK_BYTES = 1 << 20
_BUILD_S = 900.0  # a table of attributes with millions of rows takes a while
_CUT_S = 5.0  # time in which a cloud notices that an upload was cut
_LOOK_S = 0.25  # interval between two looks at that
_SYNC_S = 600.0  # the cloud syncs a large file to its disk before it answers


class ExclusiveFileJson(TypedDict):
    """An exclusive file of a device. `size_bytes` is that of the sealed file, `put_s` in seconds since the epoch."""

    device_id: str
    generation: int
    task: str
    name: str
    size_bytes: int
    put_s: float
    put_by: str


class GroupFileJson(TypedDict):
    """An exclusive file of a group. `policy` has `app_version`, and `rule` where there is one."""

    number: int
    task: str
    name: str
    policy: dict[str, Any]
    size_bytes: int
    put_s: float
    put_by: str


class AttributeTableJson(TypedDict):
    """A table of uploaded attributes. `put_s` is in seconds since the epoch, `columns` maps names to types."""

    key: str
    columns: dict[str, str]
    rows: int
    size_bytes: int
    put_s: float
    put_by: str
    version: str


class AttributeTablesJson(TypedDict):
    """The tables; `columns` are all that may be uploaded with their types, `keys` what may have the ids of rows."""

    tables: list[AttributeTableJson]
    columns: dict[str, str]
    keys: list[str]


class FileClient(CloudClient):
    """Large files, exclusive files and tables of attributes of one cloud, within `async with`; errors as there.

    A `task` is without its scenario.
    """

    # --- large files: the batch API of Git LFS (`/git/SCENARIO.git/info/lfs`) -----------------------------------------

    async def put_large(
        self, scenario: str, sha256: str, path: Path, size_bytes: int, on_sent: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Send the file at `path`, which has this sha256 and length; return False if the scenario had it already.

        What an earlier call sent before its connection ended is not sent again, where the cloud has the transfer `tus`.
        `on_sent` gets how many bytes of the file are sent, after each piece.

        Raises:
            OSError: the file cannot be read.
        """
        objects = f"/git/{urllib.parse.quote(scenario, safe='')}.git/info/lfs/objects"
        wanted = {
            "operation": "upload",
            "transfers": ["basic", "tus"],
            "objects": [{"oid": sha256, "size": size_bytes}],
        }
        plan = await self.call("POST", f"{objects}/batch", wanted)
        try:
            (one,) = plan["objects"]
            refusal = one.get("error")
            is_wanted = "upload" in one.get("actions", {})
            may_go_on = plan.get("transfer") == "tus"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudRefusedError(200, f"{self.url} is not a Walle cloud: its answer is not of Git LFS") from error
        if refusal:
            raise CloudRefusedError(int(refusal["code"]), str(refusal["message"]))
        if not is_wanted:
            return False
        address = f"{objects}/{sha256}"
        offset, method, kind = 0, "PUT", "application/octet-stream"
        if may_go_on:
            offset = await self._offset(address)
            address, method, kind = f"{address}?size={size_bytes}", "PATCH", "application/offset+octet-stream"
        headers = {"Content-Length": str(size_bytes - offset), "Content-Type": kind}
        if may_go_on:
            headers |= {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)}
        await self.send(method, address, content=_pieces(path, offset, on_sent), headers=headers, answer_s=_SYNC_S)
        return True

    async def _offset(self, address: str) -> int:
        """Return how many bytes of a file the cloud has of an upload that was cut.

        The cloud may notice the cut after this: an upload that is under way is given _CUT_S to end.
        """
        for left in reversed(range(round(_CUT_S / _LOOK_S) + 1)):
            try:
                answer = await self.send("HEAD", address, headers={"Tus-Resumable": "1.0.0"})
                break
            except CloudRefusedError as error:
                if error.status != 423:
                    raise
                if not left:
                    what = "an upload of this file with this token is under way; try again when it ended"
                    raise CloudRefusedError(error.status, what) from error
            await asyncio.sleep(_LOOK_S)
        offset = answer.headers.get("Upload-Offset", "")
        if not offset.isascii() or not offset.isdigit():
            raise CloudRefusedError(200, f"{self.url} does not say how much of the file it has")
        return int(offset)

    # --- exclusive files (`/v1/exclusive`) ----------------------------------------------------------------------------

    async def put_exclusive(
        self,
        scenario: str,
        task: str,
        name: str,
        data: bytes,
        *,
        device: str = "",
        rule: str = "",
        app_version: str = "",
    ) -> None:
        """Give a device, or the devices of a rule, a file in place of the one by this name that is for the same."""
        whose = {"device": device, "rule": rule, "app_version": app_version}
        headers = {"Content-Type": "application/octet-stream"}
        await self.call("PUT", _path(scenario, task, name), parameters=whose, content=data, headers=headers)

    async def remove_exclusive(
        self, scenario: str, task: str, name: str, *, device: str = "", rule: str = "", app_version: str = ""
    ) -> None:
        """Take a file from a device, or from the devices of a rule, which is written as it was put."""
        whose = {"device": device, "rule": rule, "app_version": app_version}
        await self.call("DELETE", _path(scenario, task, name), parameters=whose)

    async def group_files(self, scenario: str, *, task: str = "") -> list[GroupFileJson]:
        """Return the files of groups of a scenario's tasks, the newest first."""
        found = await self.call("GET", _path(scenario), parameters={"task": task, "limit": 1})
        groups: list[GroupFileJson] = found["groups"]
        return groups

    async def exclusive_files(
        self, scenario: str, *, task: str = "", device_id: str = ""
    ) -> AsyncIterator[ExclusiveFileJson]:
        """Yield the files of a scenario's tasks, by device."""
        after = ""
        while True:
            found = await self.call(
                "GET", _path(scenario), parameters={"task": task, "device": device_id, "after": after, "limit": 1000}
            )
            for file in found["files"]:
                yield file
            after = found["after"]
            if not after:
                return

    # --- tables of attributes (`/v1/attributes`) ----------------------------------------------------------------------

    async def tables(self) -> AttributeTablesJson:
        """Return the tables, and what may be put."""
        found: AttributeTablesJson = await self.call("GET", _ATTRIBUTES)
        return found

    async def put_table(self, key: str, pieces: Iterable[bytes]) -> AttributeTableJson:
        """Put a table of JSON lines in place of that by this key."""

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        table: AttributeTableJson = await self.call("PUT", _table(key), content=body(), answer_s=_BUILD_S)
        return table

    async def remove_table(self, key: str) -> None:
        """Remove the table by this key."""
        await self.call("DELETE", _table(key))


async def _pieces(path: Path, offset: int, on_sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
            on_sent(file.tell())


def _path(*parts: str) -> str:
    return "/".join((_EXCLUSIVE, *(urllib.parse.quote(part, safe="") for part in parts)))


def _table(key: str) -> str:
    return f"{_ATTRIBUTES}/{urllib.parse.quote(key, safe='')}"
