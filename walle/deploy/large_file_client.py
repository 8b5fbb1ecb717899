"""HTTP client of large files, by the batch API of Git LFS (`/git/SCENARIO.git/info/lfs`)."""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx

from walle.deploy.cloud_client import CloudClient, CloudRefusedError, raise_refusal

_CHUNK_BYTES = 1 << 20


class LargeFileClient(CloudClient):
    """The large files of one cloud, within `async with`; errors as there."""

    async def put(
        self, scenario: str, sha256: str, path: Path, size_bytes: int, on_sent: Callable[[int], None] = lambda _: None
    ) -> bool:
        """Send the file at `path`, which has this sha256 and length; return False if the scenario had it already.

        `on_sent` gets how many bytes were sent, after each piece.

        Raises:
            OSError: the file cannot be read.
        """
        address = f"/git/{urllib.parse.quote(scenario, safe='')}.git/info/lfs/objects"
        wanted = {"oid": sha256, "size": size_bytes}
        plan = await self._call(
            "POST", f"{address}/batch", {"operation": "upload", "transfers": ["basic"], "objects": [wanted]}
        )
        try:
            (one,) = plan["objects"]
            refusal = one.get("error")
            is_wanted = "upload" in one.get("actions", {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudRefusedError(200, f"{self.url} is not a Walle cloud: its answer is not of Git LFS") from error
        if refusal:
            raise CloudRefusedError(int(refusal["code"]), str(refusal["message"]))
        if not is_wanted:
            return False
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        with self._reaching():
            response = await self._http.put(
                f"{address}/{sha256}",
                content=_pieces(path, on_sent),
                headers=headers,
                timeout=httpx.Timeout(30.0, read=600.0),  # the cloud syncs what came before it answers
            )
        raise_refusal(response)
        return True


async def _pieces(path: Path, on_sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
            on_sent(file.tell())
