"""A cloud's folder on a file system that all of its nodes see, and how a process knows that it sees that one."""

import secrets
from pathlib import Path

from walle.base.durable_file import make_folders, write_file
from walle.errors import ConfigError

NOTES = "cluster"  # folder of what the cloud's processes tell each other
_FILE = "cloud-id"


class OtherFolderError(ConfigError):
    """A node on which the cloud's folder is another one, or missing."""


def read_cloud_id(folder: Path) -> str:
    """Return the id of the cloud that shares a folder, empty where none does."""
    try:
        return (folder / _FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def make_cloud_id(folder: Path) -> str:
    """Return the id of the cloud in a folder, made where it has none."""
    found = read_cloud_id(folder)
    if not found:
        found = secrets.token_hex(8)
        write_file(folder / _FILE, f"{found}\n")
    make_folders(folder / NOTES, mode=0o700)
    return found


def check_cloud_id(folder: Path, cloud_id: str) -> None:
    """Check that this node sees the folder of the cloud with this id; an empty id is not checked.

    Raises:
        OtherFolderError: it does not.
    """
    if not cloud_id:
        return
    found = read_cloud_id(folder)
    if found != cloud_id:
        what = f"the cloud {found!r}" if found else "no cloud"
        raise OtherFolderError(f"{folder} has {what} on this node, not {cloud_id!r}: mount the cloud's folder there")
