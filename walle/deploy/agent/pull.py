"""Pull of one version: from a verified directive to whole, verified and synced files in staging (§6).

No byte from the network is trusted. The directive's signature covers the envelope's sha256 and length, and the
envelope's signature covers those of each file; their limits are enforced before a byte is written.
"""

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from walle.base.file_coding import DCZ, XOR, ZSTD
from walle.base.waiting import to_the_end
from walle.deploy.agent.coded_file import Base, CodingError
from walle.deploy.agent.fetch import Fetcher, FetchError, WrongLengthError
from walle.deploy.agent.installed import InstalledTasks, Staging
from walle.deploy.agent.trust import DeviceTrust
from walle.errors import DeployError
from walle.protocol import Directive, Failure, FailureClass, FileEntry, Manifest
from walle.trust.signing import SignatureError

MAX_MANIFEST_BYTES = 4 << 20
MIN_CODED_BYTES = 4096  # smallest file that is asked for in a content coding
_LOG = logging.getLogger(__name__)
_MAX_PATH_BYTES = 1024
_CONCURRENT_FETCHES = 4


class BundleRejectedError(DeployError):
    """A version refused before activation. `final` where the same directive need not be tried again.

    `failure` is that of the version's code, None where none of it ran; `failure_class` is what is at fault.
    """

    def __init__(
        self,
        directive: Directive,
        reason: str,
        *,
        final: bool,
        failure: Failure | None = None,
        failure_class: FailureClass = FailureClass.VERSION,
    ) -> None:
        super().__init__(f"{directive.task} {directive.version or '(removal)'} is refused: {reason}")
        self.task = directive.task
        self.version = directive.version
        self.reason = reason
        self.final = final
        self.failure = failure
        self.failure_class = failure_class


@dataclasses.dataclass(frozen=True)
class KeptFiles:
    """Files of a task's installed versions: all by their sha256, and those of the active version by their paths."""

    by_sha256: Mapping[str, Sequence[Path]] = dataclasses.field(default_factory=dict)
    by_path: Mapping[str, Base] = dataclasses.field(default_factory=dict)


async def on_disk[**P, T](function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking `function` in a thread and return its result; a cancellation waits until it has ended."""
    return await to_the_end(asyncio.to_thread(function, *args, **kwargs))


class Puller:
    """Pulls versions into `InstalledTasks`, at most a few files at a time over all tasks.

    A file is asked for as the difference to the one that it replaces where both together have at most
    `max_difference_bytes` bytes: so much memory, and the replaced file once more, is what it takes to put it together.
    As the exclusive or with it, which takes the memory of some blocks, it is asked for where both are equally long.
    """

    def __init__(
        self,
        installed: InstalledTasks,
        trust: DeviceTrust,
        fetcher: Fetcher,
        *,
        cache_tag: str,
        max_bundle_bytes: int,
        max_difference_bytes: int,
    ) -> None:
        self._installed = installed
        self._trust = trust
        self._fetcher = fetcher
        self._cache_tag = cache_tag
        self._max_bundle_bytes = max_bundle_bytes
        self._max_difference_bytes = max_difference_bytes
        self._slots = asyncio.Semaphore(_CONCURRENT_FETCHES)

    async def pull(self, directive: Directive, staging: Staging, kept: KeptFiles) -> tuple[Path, Manifest]:
        """Return the folder of the files and the manifest of the version that `directive` asks for.

        Files that the versions on this disk have too are linked, not pulled. A pull resumes from the blobs that an
        earlier try left in `staging`; cancellation keeps them.

        Raises:
            FetchError: a transport failure; the pieces that came stay in `staging`.
            BundleRejectedError: signature, hash, length, name, version, interpreter or path is wrong.
            OSError: a disk error, such as a full disk.
        """
        envelope = await self._pull_envelope(directive)
        manifest = self._judge(directive, envelope)
        await on_disk(staging.prepare)
        entries = {entry.sha256: entry for entry in manifest.files}
        missing_bytes = 0
        for entry in entries.values():
            if entry.sha256 not in kept.by_sha256:
                missing_bytes += max(0, entry.size_bytes - await on_disk(staging.held_bytes, entry.sha256))
        if missing_bytes > await on_disk(self._installed.free_bytes):
            await on_disk(staging.drop_coded)  # what came in a coding takes room beside the file that it becomes
            if missing_bytes > await on_disk(self._installed.free_bytes):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        remaining = iter(entries.values())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_CONCURRENT_FETCHES, len(entries))):
                    group.create_task(self._obtain_all(directive, staging, kept, remaining))
        except ExceptionGroup as group:
            raise _first(group) from None
        files = await on_disk(staging.assemble, envelope, manifest.files)
        return files, manifest

    async def _pull_envelope(self, directive: Directive) -> bytes:
        if not 0 < directive.size_bytes <= MAX_MANIFEST_BYTES:
            reason = f"a manifest of {directive.size_bytes} bytes; from 1 to {MAX_MANIFEST_BYTES} are allowed"
            raise BundleRejectedError(directive, reason, final=True)
        data = bytearray()
        url = f"{directive.url.rstrip('/')}/{directive.manifest}"
        try:
            async with contextlib.aclosing(self._rest(url, 0, directive.size_bytes)) as chunks:
                async for chunk in chunks:
                    data += chunk
        except WrongLengthError as error:
            raise _misserved(directive, str(error)) from error
        if hashlib.sha256(data).hexdigest() != directive.manifest:
            raise _misserved(directive, f"{url} is not the manifest that was signed for")
        return bytes(data)

    def _judge(self, directive: Directive, envelope: bytes) -> Manifest:
        """Return the manifest in an envelope that has the directive's sha256, if it may run here."""

        def refuse(reason: str) -> BundleRejectedError:
            return BundleRejectedError(directive, reason, final=True)

        try:
            manifest = self._trust.verify_manifest(envelope)
        except SignatureError as error:
            raise refuse(str(error)) from error
        if (manifest.name, manifest.version) != (directive.task, directive.version):
            raise refuse(f"the manifest is of {manifest.name[:200]!r} {manifest.version[:80]!r}")
        if self._cache_tag not in manifest.bytecode:
            carried = ", ".join(map(str, manifest.bytecode))[:200] or "none"
            raise refuse(f"it carries no bytecode for {self._cache_tag}, only for: {carried}")
        total_bytes = sum(entry.size_bytes for entry in manifest.files)
        if total_bytes > self._max_bundle_bytes:
            raise refuse(f"its files have {total_bytes} bytes, this device accepts {self._max_bundle_bytes}")
        sizes: dict[str, int] = {}
        folders = {str(parent) for entry in manifest.files for parent in list(Path(entry.path).parents)[:-1]}
        for entry in manifest.files:
            if sizes.setdefault(entry.sha256, entry.size_bytes) != entry.size_bytes:
                raise refuse(f"{entry.path[:200]!r} and another file have one sha256 and two lengths")
            if entry.path in folders:
                raise refuse(f"{entry.path[:200]!r} is a file and a folder at once")
            if not _is_possible(entry.path):
                raise refuse(f"{entry.path[:200]!r} cannot be a path here")
        return manifest

    async def _obtain_all(
        self, directive: Directive, staging: Staging, kept: KeptFiles, entries: Iterator[FileEntry]
    ) -> None:
        for entry in entries:
            for source in kept.by_sha256.get(entry.sha256, ()):
                if await on_disk(staging.take, source, entry):
                    break
            else:
                if not await self._obtain_coded(directive, staging, entry, kept.by_path.get(entry.path)):
                    await self._obtain(directive, staging, entry)

    async def _obtain_coded(self, directive: Directive, staging: Staging, entry: FileEntry, base: Base | None) -> bool:
        """Return whether the file was had in a smaller form; if not, it is to be pulled as it is.

        Raises:
            FetchError: a transport failure; what came is kept, and a later pull continues from there.
        """
        if entry.size_bytes < MIN_CODED_BYTES or await on_disk(staging.held_bytes, entry.sha256) > 0:
            return False
        codings = self._codings(entry, base)
        if codings == [ZSTD]:
            base = None
        dictionary = base.sha256 if base else ""
        part = staging.coded(entry.sha256)
        url = f"{directive.url.rstrip('/')}/{entry.sha256}"
        held = await on_disk(part.held, dictionary)
        try:
            async with (
                self._slots,
                self._fetcher.fetch_coded(
                    url, codings=codings, dictionary=dictionary, held=held, max_bytes=entry.size_bytes
                ) as answer,
            ):
                if not answer.coding:  # the file itself
                    await on_disk(part.drop)
                    async for chunk in answer.chunks:
                        staging.received_bytes += len(chunk)
                        await on_disk(staging.append, entry.sha256, chunk)
                    return await on_disk(staging.seal, entry)
                if not answer.offset:
                    await on_disk(part.begin, answer.coding, answer.etag, dictionary)
                async for chunk in answer.chunks:
                    staging.received_bytes += len(chunk)
                    await on_disk(part.append, chunk)
            await on_disk(staging.decode, entry, answer.coding, base)
        except (WrongLengthError, CodingError) as error:
            _LOG.warning("%s of %s is pulled whole: %s", entry.path, directive.task, error)
            await on_disk(part.drop)
            await on_disk(staging.drop, entry.sha256)
            return False
        return await on_disk(staging.seal, entry)

    def _codings(self, entry: FileEntry, base: Base | None) -> list[str]:
        """Return the codings in which a file is asked for; `base` is the file of its path that is here."""
        differences = []
        if base is not None and base.size_bytes + entry.size_bytes <= self._max_difference_bytes:
            differences.append(DCZ)
        if base is not None and base.size_bytes == entry.size_bytes:  # decoded block by block
            differences.append(XOR)
        return [*differences, ZSTD]

    async def _obtain(self, directive: Directive, staging: Staging, entry: FileEntry) -> None:
        url = f"{directive.url.rstrip('/')}/{entry.sha256}"
        held_bytes = await on_disk(staging.held_bytes, entry.sha256)
        if held_bytes > entry.size_bytes:
            await on_disk(staging.drop, entry.sha256)
            held_bytes = 0
        # Where a power cut corrupted the held bytes, the second pass pulls the file from its start.
        for offset in sorted({held_bytes, 0}, reverse=True):
            try:
                async with contextlib.aclosing(self._rest(url, offset, entry.size_bytes)) as chunks:
                    async for chunk in chunks:
                        staging.received_bytes += len(chunk)
                        await on_disk(staging.append, entry.sha256, chunk)
            except WrongLengthError as error:
                raise _misserved(directive, f"{entry.path}: {error}") from error
            if await on_disk(staging.seal, entry):
                return
        raise _misserved(directive, f"{entry.path}: sha256 of {url} differs from its name")

    async def _rest(self, url: str, offset: int, size_bytes: int) -> AsyncGenerator[bytes]:
        """Yield exactly the bytes from `offset` to `size_bytes`, or raise a FetchError."""
        if offset == size_bytes:
            return
        position = offset
        async with (
            self._slots,
            contextlib.aclosing(self._fetcher.fetch(url, offset=offset, size_bytes=size_bytes)) as chunks,
        ):
            async for chunk in chunks:
                position += len(chunk)
                if position > size_bytes:
                    raise WrongLengthError(url, f"more than the {size_bytes} bytes that are signed")
                yield chunk
        if position < size_bytes:
            raise FetchError(url, f"ended after {position} bytes of {size_bytes}")


def _misserved(directive: Directive, reason: str) -> BundleRejectedError:
    """Return the error of a store that gives other bytes than were signed."""
    return BundleRejectedError(directive, reason, final=False, failure_class=FailureClass.CLOUD)


def _is_possible(path: str) -> bool:
    try:
        return len(path.encode()) <= _MAX_PATH_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
