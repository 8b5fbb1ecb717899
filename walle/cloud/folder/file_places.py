"""Place of a cloud's files: its folder, or a bucket that files.toml in the folder names; all processes open it there.

The files that devices fetch lie under `files`, those that only the cloud reads under `cloud-files`.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

from walle.base.durable_file import write_file
from walle.deploy.shared_files.folder_store import FolderStore
from walle.deploy.shared_files.s3_store import S3Place, S3Store
from walle.deploy.shared_files.store import FileStore
from walle.errors import ConfigError

STORES = ("files", "cloud-files")
LOCAL = "folder"  # name of a place: the cloud's own folder
_FILE = "files.toml"
_FIELDS = ("store", "endpoint", "region", "public")


def parse_place(store: str, *, endpoint: str = "", region: str = "", public: str = "") -> S3Place | None:
    """Return the place that `store` (s3://BUCKET/PREFIX, or "folder") names, None for the cloud's folder.

    Raises:
        ConfigError: it is neither, or an endpoint is not a URL.
    """
    if store == LOCAL:
        if endpoint or region or public:
            raise ConfigError("an endpoint or region is of a bucket: name it with --files s3://BUCKET/PREFIX")
        return None
    scheme, _, rest = store.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if scheme != "s3" or not bucket or "//" in prefix or any(not part.strip(".") for part in prefix.split("/") if part):
        raise ConfigError(
            f"files cannot be stored in {store[:200]!r}; give s3://BUCKET/PREFIX, or folder for the cloud's own"
        )
    for url in (endpoint, public):
        if url and not url.startswith(("https://", "http://")):
            raise ConfigError(f"{url[:200]!r} is not the URL of an S3 server, such as https://s3.example")
    return S3Place(bucket, prefix, endpoint.rstrip("/"), region or "us-east-1", public.rstrip("/"))


def read_place(folder: Path) -> S3Place | None:
    """Return where the files of the cloud in `folder` lie, None where that is the folder itself.

    Raises:
        ConfigError: files.toml is damaged.
    """
    path = folder / _FILE
    try:
        plain = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(plain.get("store"), str) or not all(
        name in _FIELDS and isinstance(value, str) for name, value in plain.items()
    ):
        raise ConfigError(f"{path}: must have the texts store, endpoint, region and public, and at least store")
    store = plain.pop("store")
    try:
        return parse_place(store, **plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_place(folder: Path, place: S3Place | None) -> None:
    """Write where the files of the cloud in `folder` lie. Keys of a bucket are never written."""
    if place is None:
        (folder / _FILE).unlink(missing_ok=True)
        return
    said = {"store": str(place), "endpoint": place.endpoint, "region": place.region, "public": place.public}
    text = "# Where the files of task versions are stored; walle storage move changes it.\n"
    write_file(folder / _FILE, text + "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items()))


def choose_place(folder: Path, place: S3Place | None) -> None:
    """Write `place` for a cloud that has no files elsewhere yet.

    Raises:
        ConfigError: it has files in another place, from where they have to be moved first.
    """
    present = read_place(folder)
    if _same(present, place):
        write_place(folder, place)  # endpoints may be others
        return
    if any(next(open_store(folder, name).files(), None) for name in STORES if (folder / name).exists()):
        what = f"its files are in {present or 'this folder'}; move them first: walle storage move {folder} --to"
        raise ConfigError(f"{folder}: {what} {place or LOCAL}")
    write_place(folder, place)


def _same(one: S3Place | None, other: S3Place | None) -> bool:
    return str(one) == str(other)


def open_store(folder: Path, name: str) -> FileStore:
    """Return the store `name` (one of STORES) of the cloud in `folder`, where its files lie now.

    Raises:
        ConfigError: files.toml is damaged, or the client of S3 is not installed.
    """
    return store_at(folder, read_place(folder), name)


def store_at(folder: Path, place: S3Place | None, name: str) -> FileStore:
    """Return the store `name` of the cloud in `folder` as it is, or would be, at `place`."""
    if place is None:
        return FolderStore(folder / name)
    prefix = f"{place.prefix}/{name}".lstrip("/")
    # Nothing of the other store is given to devices.
    public = place.public if name == "files" else ""
    return S3Store(dataclasses.replace(place, prefix=prefix, public=public), folder / name)


def move_files(folder: Path, place: S3Place | None, on_file: Callable[[str, int], None]) -> tuple[int, int]:
    """Copy all files of the cloud in `folder` to `place`, where it has them from then on; return how many, and bytes.

    Each file is verified as it is copied. The copies that were left remain, for a restore, until somebody removes them.
    The cloud must not run. `on_file` is called with each sha256 and size.

    Raises:
        FileStoreError: a file is damaged: repair it first (walle storage check). The place is unchanged.
    """
    present, count, size_bytes = read_place(folder), 0, 0
    if not _same(present, place):
        for name in STORES:
            source, target = store_at(folder, present, name), store_at(folder, place, name)
            for file in source.files():
                with target.writer() as writer:
                    for chunk in source.chunks(file.sha256):
                        writer.write(chunk)
                    writer.commit(file.sha256)
                count, size_bytes = count + 1, size_bytes + file.size_bytes
                on_file(file.sha256, file.size_bytes)
    write_place(folder, place)
    return count, size_bytes
