"""Folders of objects that are made whole and only where their name is free: on a disk, or in a bucket (S3 API)."""

import abc
import asyncio
import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from walle.base.durable_file import UNFINISHED, NoExclusiveNamesError, make_folders, remove_unfinished, write_new_file
from walle.base.extras import install_hint
from walle.deploy.shared_files.s3_store import S3Place, open_bucket, short_error
from walle.errors import ConfigError
from walle.sinks.sink import SinkError


class ObjectFolder(abc.ABC):
    """Objects by their paths; several processes and machines may write at once."""

    name: str

    @abc.abstractmethod
    async def start(self) -> None:
        """Check that it can be used. Raises SinkError."""

    @abc.abstractmethod
    async def create(self, path: str, data: bytes) -> bool:
        """Make an object, whole; return False where one is there. After an error it may be there, whole, or not.

        Raises:
            SinkError: it cannot be made.
        """

    @abc.abstractmethod
    async def read(self, path: str) -> bytes:
        """Return an object. Raises SinkError."""


class DiskFolder(ObjectFolder):
    """A folder, which is made. Its file system has hard links, or renames that replace no file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._used: set[Path] = set()
        self._cleaning = threading.Lock()

    async def start(self) -> None:
        try:
            await asyncio.to_thread(make_folders, self._path, mode=0o700)  # features are what users did
        except OSError as error:
            raise SinkError(self.name, f"cannot be made ({error.strerror})", may_pass=False) from error
        try:
            await asyncio.to_thread(self._check_exclusive)
        except NoExclusiveNamesError as error:
            raise self._not_exclusive(error) from error
        except OSError as error:
            may_pass = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise SinkError(self.name, f"cannot be written ({error.strerror})", may_pass=may_pass) from error

    def _check_exclusive(self) -> None:
        """Make a file as `create` does, and remove it."""
        probe = self._path / f".{os.urandom(6).hex()}{UNFINISHED}"
        try:
            write_new_file(probe, b"", strict=True)
        finally:
            probe.unlink(missing_ok=True)

    def _not_exclusive(self, error: NoExclusiveNamesError) -> SinkError:
        what = f"{error.strerror}, so that a row could be written twice; name a local or NFS folder, or a bucket"
        return SinkError(self.name, what, may_pass=False)

    async def create(self, path: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._create, path, data)

    def _create(self, path: str, data: bytes) -> bool:
        file = self._path / path
        try:
            self._clean(file.parent)
            return write_new_file(file, data, strict=True)
        except NoExclusiveNamesError as error:
            raise self._not_exclusive(error) from error
        except OSError as error:
            raise SinkError(self.name, f"{path} cannot be written ({error.strerror})", may_pass=True) from error

    def _clean(self, folder: Path) -> None:
        """Make a folder, or remove what a killed writer left there; a live one in another process writes again."""
        with self._cleaning:
            if folder not in self._used:
                make_folders(folder, mode=0o700)
                remove_unfinished(folder)
                self._used.add(folder)

    async def read(self, path: str) -> bytes:
        try:
            return await asyncio.to_thread((self._path / path).read_bytes)
        except OSError as error:
            raise SinkError(self.name, f"{path} cannot be read ({error.strerror})", may_pass=True) from error


class BucketFolder(ObjectFolder):
    """A prefix in a bucket of a server that takes conditional writes (`If-None-Match: *`).

    Raises:
        ConfigError: obstore is not installed, or the endpoint is not a URL.
    """

    def __init__(self, place: S3Place, environment: Mapping[str, str] = os.environ) -> None:
        self.name = str(place)
        try:
            import obstore
        except ImportError:
            raise ConfigError(f"{place}: files in a bucket need the S3 client: {install_hint('s3')}") from None
        self._s3 = obstore
        self._bucket = open_bucket(place, place.endpoint, environment)

    async def start(self) -> None:
        """Nothing: the first object shows what the server says."""

    async def create(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            await self._s3.put_async(self._bucket, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError, NotImplementedError) as error:
            raise self._error(path, error) from error
        return True

    async def read(self, path: str) -> bytes:
        from obstore.exceptions import BaseError

        try:
            found = await self._s3.get_async(self._bucket, path)
            return bytes(await found.bytes_async())
        except (BaseError, OSError) as error:
            raise self._error(path, error) from error

    def _error(self, path: str, error: BaseException) -> SinkError:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        text = short_error(error)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            what = "is refused; check the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they may do there"
            return SinkError(self.name, f"{path} {what}: {text}", may_pass=False)
        if "NoSuchBucket" in text:
            return SinkError(self.name, "the bucket does not exist: make it first", may_pass=False)
        if isinstance(error, NotImplementedError) or "status code: 501" in text or "NotImplemented" in text:
            what = "the server does not support conditional writes, without which a row could be written twice"
            return SinkError(self.name, f"{what}: {text}", may_pass=False)
        return SinkError(self.name, f"the S3 server does not answer, or failed: {text}", may_pass=True)
