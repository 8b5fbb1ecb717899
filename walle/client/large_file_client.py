"""HTTP client of large files, by the batch API of Git LFS (`/git/SCENARIO.git/info/lfs`).

An upload that was cut continues where it ended, by the transfer `tus`, where the cloud has it.
"""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path

from walle.client.cloud_client import CloudClient, CloudRefusedError, raise_refusal

_CHUNK_BYTES = 1 << 20


class LargeFileClient(CloudClient):
    """The large files of one cloud, within `async with`; errors as there."""

    async def put(
        self, scenario: str, sha256: str, path: Path, size_bytes: int, on_sent: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Send the file at `path`, which has this sha256 and length; return False if the scenario had it already.

        What an earlier call sent before its connection ended is not sent again. `on_sent` gets how many bytes of the
        file are sent, after each piece.

        Raises:
            OSError: the file cannot be read.
        """
        import httpx

        address = f"/git/{urllib.parse.quote(scenario, safe='')}.git/info/lfs/objects"
        wanted = {"oid": sha256, "size": size_bytes}
        plan = await self._call(
            "POST", f"{address}/batch", {"operation": "upload", "transfers": ["basic", "tus"], "objects": [wanted]}
        )
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
        address = f"{address}/{sha256}"
        offset, method, kind = 0, "PUT", "application/octet-stream"
        if may_go_on:
            offset = await self._offset(address)
            address, method, kind = f"{address}?size={size_bytes}", "PATCH", "application/offset+octet-stream"
        headers = {"Content-Length": str(size_bytes - offset), "Content-Type": kind}
        if may_go_on:
            headers |= {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)}
        with self._reaching():
            response = await self._http.request(
                method,
                address,
                content=_pieces(path, offset, on_sent),
                headers=headers,
                timeout=httpx.Timeout(30.0, read=600.0),  # the cloud syncs what came before it answers
            )
        raise_refusal(response)
        return True

    async def _offset(self, address: str) -> int:
        """Return how many bytes of a file the cloud has of an upload that was cut."""
        with self._reaching():
            response = await self._http.head(address, headers={"Tus-Resumable": "1.0.0"})
        if response.status_code == HTTPStatus.LOCKED:
            raise CloudRefusedError(423, "an upload of this file with this token is under way; try again when it ended")
        raise_refusal(response)
        offset = response.headers.get("Upload-Offset", "")
        if not offset.isascii() or not offset.isdigit():
            raise CloudRefusedError(200, f"{self.url} does not say how much of the file it has")
        return int(offset)


async def _pieces(path: Path, offset: int, on_sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
            on_sent(file.tell())
