"""Fixtures: a PostgreSQL server for the session, and databases on it."""

from collections.abc import Iterator

import pytest

from tests.sim.postgres_server import PostgresServer, missing, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if reason := missing():
        pytest.skip(reason)
    with postgres_server() as server:
        yield server
