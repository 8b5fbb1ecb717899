"""Place of a cloud's state (releases, evidence, devices, identities, audit log): files in its folder, or a database.

database.toml in the folder names the database, so that every process and command finds it there. It has no password:
that is of PGPASSWORD, of ~/.pgpass, or of the URL that `walle cloud up --database` was given.
"""

import contextlib
import json
import re
import sqlite3
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from walle.base.durable_file import make_folders, write_file
from walle.errors import ConfigError

MOVED = ".moved"  # ends the names of files whose contents are in the database now
_FILE = "database.toml"
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")
_SCHEMES = ("postgresql://", "postgres://")


def read_database(folder: Path) -> str:
    """Return the URL of the database that has the state of the cloud in `folder`, empty where that is the folder.

    Raises:
        ConfigError: database.toml is damaged.
    """
    path = folder / _FILE
    try:
        plain = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return ""
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error
    url = plain.get("url")
    if plain.keys() != {"url"} or not isinstance(url, str) or not url.startswith(_SCHEMES):
        raise ConfigError(f"{path}: must have the text url, such as postgresql://walle@db.example/walle")
    return url


def write_database(folder: Path, url: str) -> None:
    """Write where the state of the cloud in `folder` is, without a password."""
    from walle.store.postgres_database import without_password

    text = "# The database that has this cloud's state; see docs/how-to/database.md.\n"
    write_file(folder / _FILE, f"{text}url = {json.dumps(without_password(url))}\n")


def check_url(url: str) -> str:
    """Return the URL of a PostgreSQL database.

    Raises:
        ConfigError: it is another text, or no part of it can be told to be the password, which would be shown then.
    """
    if not url.startswith(_SCHEMES):
        raise ConfigError("must be postgresql://USER@HOST/DATABASE")
    if not _is_split_well(url):
        what = "must be postgresql://USER@HOST:PORT/DATABASE, the port a number"
        raise ConfigError(f"{what}; in a password write % / ? # [ as %25 %2F %3F %23 %5B, or give it in PGPASSWORD")
    return url


def _is_split_well(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address is malformed
        return False
    if "@" in parts.path or parts.fragment or not all("=" in one for one in parts.query.split("&") if one):
        return False
    return all(_HOST.fullmatch(host) for host in parts.netloc.rpartition("@")[2].split(","))


def choose_database(folder: Path, url: str) -> str:
    """Return the URL of the database of a cloud that starts with this URL; empty: as before.

    Raises:
        ConfigError: the folder has its own state, or its state is in another database.
    """
    found = read_database(folder)
    if not url:
        return found
    from walle.store.postgres_database import without_password

    check_url(url)
    if not found:
        if has_state(folder):
            raise ConfigError(
                f"{folder} has releases, devices or an audit log in files; move them first:"
                f" walle cloud move-state {folder} --to {without_password(url)}"
            )
        make_folders(folder, mode=0o700)
        write_database(folder, url)
    elif without_password(found) != without_password(url):
        raise ConfigError(
            f"{folder} has its state in {found}, not in {without_password(url)}; where the database itself was moved,"
            f" change {folder / _FILE}"
        )
    return url


def has_state(folder: Path) -> bool:
    """Return whether a folder has state in files that a database would take the place of."""
    if any((folder / "audit").glob("*.jsonl")):
        return True
    path = folder / "releases.db"
    if not path.exists():
        return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        return bool(database.execute("SELECT EXISTS (SELECT 1 FROM releases)").fetchone()[0])
    return True


def has_uploads(folder: Path) -> bool:
    """Return whether a folder has uploads in a file."""
    path = folder / "uploads.db"
    if not path.exists():
        return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT 1 FROM streams LIMIT 1").fetchone() is not None
    return True
