"""Ray on this machine alone: it listens on the loopback interface, has a token, and ends with its process."""

import contextlib
import dataclasses
import ipaddress
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import ray
from ray._private import ray_constants

from walle.actors.ray_token import prepare_token
from walle.actors.reaper import MARKER, Reaper
from walle.errors import ConfigError

_OBJECT_STORE_BYTES = 100 << 20  # messages between actors are small; we put nothing into the object store
_PARENT_CHARS = 20  # a socket's path has at most 107
_RAY_FOLDER = "r"  # within the folder: Ray changes the permissions of the one that it gets


@dataclasses.dataclass(frozen=True)
class LocalRay:
    """A Ray that this process has started, between `start` and `close`. Its files are in `folder`, which goes with it.

    Only this user may enter the folder: Ray makes its own folders within writable to everyone.
    It has nothing in common with others on the machine: it is not looked for at RAY_ADDRESS.
    """

    folder: Path
    reaper: Reaper

    @classmethod
    def start(cls, python_path: str, **options: object) -> Self:
        """Start a Ray with these options of `ray.init`; its workers import from `python_path`.

        Raises:
            ConfigError: it cannot be started, has no token, or would listen on other interfaces than loopback.
        """
        prepare_token(os.environ, Path.home())
        folder = _make_folder()
        reaper = Reaper.start(secrets.token_hex(8), folder)
        local = cls(folder, reaper)
        try:
            # Inherited: with a runtime_env, Ray would start other workers than those that it has already.
            with _variables(PYTHONPATH=python_path, RAY_ADDRESS=None, **{MARKER: reaper.marker}), _loopback_alone():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(folder / _RAY_FOLDER),
                    **options,  # type: ignore[arg-type]
                )
            _check_address(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        except BaseException as error:
            local.close()
            if isinstance(error, ConfigError) or not isinstance(error, Exception):
                raise
            # Of any class: Ray raises Exception itself where a start takes too long.
            raise ConfigError(f"Ray cannot be started on this machine: {error}") from error
        return local

    def close(self) -> None:
        """End it with all its processes, and remove its files."""
        ray.shutdown()
        self.reaper.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # a killed reaper leaves it


def _make_folder() -> Path:
    """Make a folder, for this user alone, for the files of a Ray.

    Its path is short, because sockets are in it: Ray adds up to 66 characters, and takes 103 at most.
    """
    parent = tempfile.gettempdir()
    parent = parent if len(parent) < _PARENT_CHARS else "/tmp"  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="wray-", dir=parent)).resolve()  # /proc shows the resolved name


@contextlib.contextmanager
def _loopback_alone() -> Iterator[None]:
    """Have Ray choose the loopback interface within the block.

    Ray replaces an address of loopback by one of another interface, and then listens on all, except where it has no
    clusters, as on macOS. It reads that from the environment once, when it is imported.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _check_address(node_ip: str) -> None:
    if not ipaddress.ip_address(node_ip).is_loopback:
        raise ConfigError(
            f"Ray {ray.__version__} listens at {node_ip}, where other machines may reach it, and not on the loopback"
            " interface alone; install a version that pyproject.toml names"
        )


@contextlib.contextmanager
def _variables(**values: str | None) -> Iterator[None]:
    """Set variables of the environment within the block, None for none."""
    before = {name: os.environ.get(name) for name in values}
    _set_variables(values)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
