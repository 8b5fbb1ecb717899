"""Names of the receipt of uploads (`walle.pipeline.ingest`) with the SQLite store, the default, as `Ingest`."""

from walle.pipeline.ingest.pump import PumpStatus, UploadSource, pump
from walle.pipeline.ingest.receipt import Accepted, RecordedLoss
from walle.pipeline.ingest.sqlite_store import SqliteUploadStore as Ingest
from walle.pipeline.ingest.upload_store import IngestError

__all__ = ["Accepted", "Ingest", "IngestError", "PumpStatus", "RecordedLoss", "UploadSource", "pump"]
