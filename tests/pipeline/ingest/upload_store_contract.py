"""Contract of the stores of uploads, which the tests of each store inherit; a module for each part."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.pipeline.ingest.claims_contract import ClaimsContract
from tests.pipeline.ingest.epochs_contract import EpochsContract
from tests.pipeline.ingest.groups_contract import GroupsContract
from tests.pipeline.ingest.lineage_contract import LineageContract
from tests.pipeline.ingest.losses_contract import LossesContract
from tests.pipeline.ingest.quarantine_contract import QuarantineContract
from tests.pipeline.ingest.quota_contract import QuotaContract
from tests.pipeline.ingest.receipt_contract import ReceiptContract
from tests.pipeline.ingest.retention_contract import RetentionContract
from tests.pipeline.ingest.upload_samples import MakeStore
from walle.pipeline.ingest.store.upload_store import UploadStore


class UploadStoreContract(
    ReceiptContract,
    LineageContract,
    LossesContract,
    EpochsContract,
    ClaimsContract,
    QuarantineContract,
    QuotaContract,
    GroupsContract,
    RetentionContract,
):
    """Tests of a store. A subclass has a fixture `make_store`, which makes stores at one place, and `refuse_topic`.

    The latter makes the database refuse uploads of a topic.
    """

    @pytest_asyncio.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[UploadStore]:
        async with make_store() as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, store: UploadStore, make_store: MakeStore) -> AsyncIterator[UploadStore]:
        """The same store, as another process has it."""
        async with make_store() as other:
            yield other
