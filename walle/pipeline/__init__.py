"""The data pipeline (§5): events, sequences, trigger trie, stream tasks, feature store, tunnel.

Names are loaded at their first use: a task VM that imports `walle.pipeline.stream` loads neither asyncio nor SQLite.
"""

import importlib

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.pipeline.event_journal import EventJournal
    from walle.pipeline.event_log import EventLog
    from walle.pipeline.events import Event
    from walle.pipeline.ingest.stores import open_uploads
    from walle.pipeline.ingest.upload_store import UploadStore
    from walle.pipeline.outbox import Outbox
    from walle.pipeline.store import FeatureStore
    from walle.pipeline.stream_engine import StreamEngine, TakenEvent
    from walle.pipeline.task_results import ResultStream, TaskResult
    from walle.pipeline.trie import TriggerTrie
    from walle.pipeline.tunnel.client import TunnelClient
    from walle.pipeline.tunnel.ingest import Ingest
    from walle.pipeline.tunnel.server import TunnelServer

_MODULES = {
    "Event": "events",
    "EventJournal": "event_journal",
    "EventLog": "event_log",
    "FeatureStore": "store",
    "Ingest": "tunnel.ingest",
    "Outbox": "outbox",
    "ResultStream": "task_results",
    "StreamEngine": "stream_engine",
    "TakenEvent": "stream_engine",
    "TaskResult": "task_results",
    "TriggerTrie": "trie",
    "TunnelClient": "tunnel.client",
    "TunnelServer": "tunnel.server",
    "UploadStore": "ingest.upload_store",
    "open_uploads": "ingest.upload_store",
}

__all__ = [
    "Event",
    "EventJournal",
    "EventLog",
    "FeatureStore",
    "Ingest",
    "Outbox",
    "ResultStream",
    "StreamEngine",
    "TakenEvent",
    "TaskResult",
    "TriggerTrie",
    "TunnelClient",
    "TunnelServer",
    "UploadStore",
    "open_uploads",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(f"walle.pipeline.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'walle.pipeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
