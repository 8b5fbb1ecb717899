"""Fixtures: a PostgreSQL server for the session, and databases on it."""

from collections.abc import Iterator

import pytest

from tests.sim.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
