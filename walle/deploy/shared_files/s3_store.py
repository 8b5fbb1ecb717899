"""A `FileStore` in a bucket with the S3 API: objects named by their sha256 under a prefix (Python package `obstore`).

A put makes an object only where there is none (`If-None-Match: *`, where the server has it): of two gateways that put
one file at once, one writes. It leaves one alone that is younger than SKEW_S and whose ETag is that of the bytes. An
older one is overwritten, which renews the time by which retention spares it.

S3 shows an object when it is whole, and files of MULTIPART_BYTES or more are sent in parts that are removed where one
fails. Parts that a killed process left are removed by a rule of the bucket (docs/how-to/files.md).

Keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), else from the file of
credentials that other S3 programs read, else from the machine's role.
"""

import configparser
import contextlib
import dataclasses
import hashlib
import io
import os
from collections.abc import Buffer, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import make_folders
from walle.base.extras import install_hint
from walle.deploy.shared_files.retention import SKEW_S
from walle.deploy.shared_files.store import (
    FileStore,
    FileStoreError,
    FileStoreUnavailableError,
    StoredFile,
    check_name,
    is_name,
)
from walle.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Store as Bucket

MULTIPART_BYTES = 16 << 20
_PART_BYTES, _PARTS_AT_ONCE = 8 << 20, 4  # 32 MiB of memory; at most 10,000 parts
_READ_BYTES = 4 << 20  # bytes read in one request
_RETRIES, _RETRY_S = 3, 20
_NO_BUCKET, _MAKE_BUCKET = "NoSuchBucket", "the bucket does not exist: make it first"


@dataclasses.dataclass(frozen=True)
class S3Place:
    """A prefix in a bucket. `endpoint` "" is that of Amazon for the region; `public` is the one that devices reach.

    Devices are sent there with signed addresses; with "" the gateway reads the files for them.
    """

    bucket: str
    prefix: str
    endpoint: str = ""
    region: str = "us-east-1"
    public: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


class S3Store(FileStore):
    """Files of a place in a bucket. `folder` has temporary files and the lock; it is made.

    Raises:
        ConfigError: the Python package `obstore` is not installed, or an endpoint is not a URL.
    """

    def __init__(
        self,
        place: S3Place,
        folder: Path,
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(str(place), folder)
        try:
            import obstore
        except ImportError:
            raise ConfigError(f"{place}: files in a bucket need the S3 client: {install_hint('s3')}") from None
        make_folders(folder)
        self._s3 = obstore
        self._clock = clock or SystemClock()
        self._takes_conditions = True  # false once the server has refused If-None-Match
        self._bucket = open_bucket(place, place.endpoint, environment)
        self._public = open_bucket(place, place.public, environment) if place.public else None

    def check(self) -> None:
        """Check that the bucket is there and can be listed. Raises FileStoreUnavailableError."""
        with self._errors(""):
            next(iter(self._s3.list(self._bucket, chunk_size=1)), None)

    def put(self, data: bytes) -> str:
        if len(data) >= MULTIPART_BYTES:
            return super().put(data)
        sha256 = hashlib.sha256(data).hexdigest()
        with self._locked(shared=True):
            self._upload(sha256, data, repair=False)
        return sha256

    def stat(self, sha256: str) -> StoredFile:
        check_name(sha256)
        with self._errors(sha256):
            return _stored(self._s3.head(self._bucket, sha256))

    def open(self, sha256: str) -> BinaryIO:
        size_bytes = self.stat(sha256).size_bytes

        def read(start: int, stop: int) -> Buffer:
            with self._errors(sha256):
                data: Buffer = self._s3.get_range(self._bucket, sha256, start=start, end=stop)
                return data

        return cast("BinaryIO", io.BufferedReader(_Ranges(read, size_bytes), _READ_BYTES))

    def files(self) -> Iterator[StoredFile]:
        with self._errors(""):
            for batch in self._s3.list(self._bucket, chunk_size=1000):
                yield from (_stored(found) for found in batch if is_name(found["path"]))

    def remove(self, sha256: str, *, stored_until_s: float | None = None) -> bool:
        with self._locked(shared=False):
            try:
                if stored_until_s is not None and self.stat(sha256).stored_s > stored_until_s:
                    return False
                found = self.has(sha256)
            except FileStoreUnavailableError:
                raise
            except FileStoreError:
                check_name(sha256)
                return False
            with self._errors(sha256):
                self._s3.delete(self._bucket, sha256)
        return found

    def address(self, sha256: str, life_s: int) -> str:
        if self._public is None:
            return ""
        check_name(sha256)
        with self._errors(sha256):
            url: str = self._s3.sign(self._public, "GET", sha256, timedelta(seconds=life_s))
            return url

    def _keep(self, path: Path, sha256: str, repair: bool) -> None:
        with self._locked(shared=True):
            self._upload(sha256, path, repair=repair)

    def _upload(self, sha256: str, data: bytes | Path, *, repair: bool) -> None:
        """Send a file unless its object is there, whole by what the server says, and young."""
        is_large = isinstance(data, Path) and data.stat().st_size >= MULTIPART_BYTES
        if not repair:
            found = self._found(sha256)
            if found is None and not is_large and self._make(sha256, data):
                return
            # A retention that marked a young one does so SKEW_S after its time at least, which is after now.
            is_young = found is not None and found.stored_s >= self._clock.time() - SKEW_S
            if is_young and _is_same(found, data):
                return
        with self._errors(sha256):
            self._s3.put(
                self._bucket,
                sha256,
                data,
                use_multipart=is_large,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _make(self, sha256: str, data: bytes | Path) -> bool:
        """Make an object where there is none; False where there is another one, or the server takes no condition."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        if not self._takes_conditions:
            return False
        try:
            self._s3.put(self._bucket, sha256, data, use_multipart=False, mode="create")
        except AlreadyExistsError:  # another gateway was faster
            return _is_same(self._found(sha256), data)
        except (BaseError, NotImplementedError) as error:  # a put without the condition shows any other error
            # With its words: the message has addresses, names and times, in which there may be a 501 too.
            self._takes_conditions = "status code: 501" not in str(error) and "NotImplemented" not in str(error)
            return False
        return True

    def _found(self, sha256: str) -> StoredFile | None:
        try:
            return self.stat(sha256)
        except FileStoreUnavailableError:
            raise
        except FileStoreError:
            check_name(sha256)
            return None

    @contextlib.contextmanager
    def _errors(self, sha256: str) -> Iterator[None]:
        """Turn errors of the client within the block into ours, which name the place and the file."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise FileStoreUnavailableError(sha256, f"{self.place}: {_MAKE_BUCKET}") from error
            raise FileStoreError(sha256, f"the store {self.place} does not have it") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            what = "refused; check the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they may do there"
            raise FileStoreUnavailableError(sha256, f"{self.place}: {what}: {short_error(error)}") from error
        except (BaseError, OSError) as error:
            what = _MAKE_BUCKET if _NO_BUCKET in str(error) else "the S3 server does not answer, or failed"
            raise FileStoreUnavailableError(sha256, f"{self.place}: {what}: {short_error(error)}") from error


def _is_same(found: StoredFile | None, data: bytes | Path) -> bool:
    """Return whether an object has these bytes by its ETag: the MD5 of the file, or of those of our parts.

    Some servers, and ciphers of buckets, have other ETags: there nothing is the same.
    """
    if found is None:
        return False
    whole, of_parts, count = _md5(), _md5(), 0
    with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as file:
        while part := file.read(_PART_BYTES):
            whole.update(part)
            of_parts.update(_md5(part).digest())
            count += 1
    return found.etag in (whole.hexdigest(), f"{of_parts.hexdigest()}-{count}")


def _md5(data: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)


class _Ranges(io.RawIOBase):
    """Bytes that are read by ranges."""

    def __init__(self, read: Callable[[int, int], Buffer], size_bytes: int) -> None:
        self._read_range = read
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        stop = min(self._position + len(buffer), self._size_bytes)
        if stop <= self._position:
            return 0
        with memoryview(self._read_range(self._position, stop)) as data:
            buffer[: len(data)] = data
            self._position += len(data)
            return len(data)


def open_bucket(place: S3Place, endpoint: str, environment: Mapping[str, str]) -> "Bucket":
    from obstore.exceptions import BaseError
    from obstore.store import S3Store as Bucket

    if endpoint and not endpoint.startswith(("https://", "http://")):
        raise ConfigError(f"{place}: endpoint {endpoint[:100]!r} is not a URL, such as https://s3.example")
    options: dict[str, Any] = {"region": place.region, "checksum_algorithm": "SHA256"}
    if endpoint:
        options["endpoint"] = endpoint
    options |= _keys(environment)
    try:
        return Bucket(
            place.bucket,
            prefix=place.prefix or None,
            client_options={"allow_http": endpoint.startswith("http://"), "connect_timeout": "5s", "timeout": "60s"},
            retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
            **options,
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{place}: endpoint {endpoint!r}: {short_error(error)}") from error


def _keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in the file of credentials, none where the environment has some or the file does not."""
    if "AWS_ACCESS_KEY_ID" in environment:
        names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY",
                 "session_token": "AWS_SESSION_TOKEN"}  # fmt: skip
        return {option: environment[name] for option, name in names.items() if name in environment}
    path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    profile = environment.get("AWS_PROFILE", "default")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
        found = dict(parser[profile]) if parser.has_section(profile) else {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not a file of credentials: {error}") from error
    if "AWS_PROFILE" in environment and not found:
        raise ConfigError(f"{path}: has no profile {profile!r}, which AWS_PROFILE names")
    return {
        name: found[f"aws_{name}"]
        for name in ("access_key_id", "secret_access_key", "session_token")
        if f"aws_{name}" in found
    }


def _stored(found: Any) -> StoredFile:
    return StoredFile(
        found["path"], found["size"], found["last_modified"].timestamp(), (found["e_tag"] or "").strip('"')
    )


def short_error(error: BaseException) -> str:
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:400]
