"""The PostgreSQL store: the contract, on a real server, and the faults of one."""

import pytest

from tests.pipeline.ingest.upload_store_contract import MakeStore, UploadStoreContract
from tests.sim.postgres_server import PostgresServer
from walle.pipeline.ingest.upload_store import open_uploads


class TestPostgresUploadStore(UploadStoreContract):
    @pytest.fixture
    def make_store(self, postgres: PostgresServer) -> MakeStore:
        dsn = postgres.make_database()
        return lambda: open_uploads(dsn)
