"""A cloud in memory: signs versions, hands out directives, and serves files as a `Fetcher` that can be made to fail."""

import asyncio
import dataclasses
import hashlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping

from walle.deploy.device.fetch import FetchError, WrongLengthError
from walle.deploy.signing import Signer, TrustedKeys
from walle.protocol import Directive, FileEntry, Manifest, TriggerCondition

CACHE_TAG = sys.implementation.cache_tag or ""
NEVER_S = 4_000_000_000


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_of(task: str, version: str, files: Mapping[str, bytes]) -> Manifest:
    scenario, _, name = task.partition("/")
    entries = tuple(FileEntry(path, sha256_of(data), len(data)) for path, data in files.items())
    return Manifest(
        scenario=scenario,
        task=name,
        version=version,
        commit="0" * 40,
        bytecode=(CACHE_TAG,),
        trigger=TriggerCondition(("page_exit",)),
        phases={"execute": "device"},
        limits={},
        files=entries,
    )


class CloudFiles:
    """Blobs by sha256, and the two keys. `pulls` lists what was asked for: (sha256, offset).

    Faults: `drops[sha256] = n` breaks the link once after n bytes; `longer` has sha256s that are served with a byte too
    many; `offline` refuses everything; while `gate` is cleared, every pull waits before its first byte.
    """

    def __init__(self) -> None:
        self.bundle_signer = Signer.generate()
        self.release_signer = Signer.generate()
        self.keys = TrustedKeys.of(self.bundle_signer, self.release_signer)
        self.blobs: dict[str, bytes] = {}
        self.pulls: list[tuple[str, int]] = []
        self.drops: dict[str, int] = {}
        self.longer: set[str] = set()
        self.offline = False
        self.chunk_bytes = 1000
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self._serial = 0

    def publish(
        self,
        task: str,
        version: str,
        files: Mapping[str, bytes],
        *,
        change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
        signer: Signer | None = None,
    ) -> Directive:
        """Put a version up and return a signed directive for it, newer than any before."""
        envelope = (signer or self.bundle_signer).sign_manifest(change(manifest_of(task, version, files))).to_bytes()
        sha256 = sha256_of(envelope)
        self.blobs |= {sha256_of(data): data for data in (envelope, *files.values())}
        return self.sign(
            Directive(
                task=task,
                version=version,
                manifest=sha256,
                size_bytes=len(envelope),
                serial=0,
                expires_s=NEVER_S,
                url="/cdn",
                release=f"r-{version}",
            )
        )

    def remove(self, task: str) -> Directive:
        return self.sign(
            Directive(task=task, version="", manifest="", size_bytes=0, serial=0, expires_s=NEVER_S, url="", release="")
        )

    def sign(self, directive: Directive, *, keep_serial: bool = False) -> Directive:
        """Return `directive` as the release key signs it now: with the next serial unless told to keep it."""
        if not keep_serial:
            self._serial += 1
            directive = dataclasses.replace(directive, serial=self._serial)
        return self.release_signer.sign_directive(directive)

    async def fetch(self, url: str, *, offset: int, size_bytes: int) -> AsyncGenerator[bytes]:
        sha256 = url.removeprefix("/cdn/")
        self.pulls.append((sha256, offset))
        self.waiting.set()
        await self.gate.wait()
        if self.offline or sha256 not in self.blobs:
            raise FetchError(url, "no such file, or no network")
        data = self.blobs[sha256] + (b"!" if sha256 in self.longer else b"")
        stop = self.drops.pop(sha256, None)
        for start in range(offset, len(data), self.chunk_bytes):
            await asyncio.sleep(0)
            if stop is not None and start >= stop:
                raise FetchError(url, "the link dropped")
            if start + self.chunk_bytes > size_bytes and len(data) > size_bytes:
                raise WrongLengthError(url, "too long")
            yield data[start : start + self.chunk_bytes]
