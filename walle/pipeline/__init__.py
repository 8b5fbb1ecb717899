"""The data pipeline (§5): events, sequences, trigger trie, stream tasks, feature store, tunnel.

Names are loaded at their first use: a task VM that imports `walle.pipeline.stream` loads neither asyncio nor SQLite.
"""

import importlib

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.pipeline.events.event import Event
    from walle.pipeline.events.event_journal import EventJournal
    from walle.pipeline.events.event_log import EventLog
    from walle.pipeline.features.outbox import Outbox
    from walle.pipeline.features.store import FeatureStore
    from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
    from walle.pipeline.ingest.store.upload_store import UploadStore
    from walle.pipeline.ingest.stores import open_uploads
    from walle.pipeline.trigger.stream_engine import StreamEngine, TakenEvent
    from walle.pipeline.trigger.task_results import ResultStream, TaskResult
    from walle.pipeline.trigger.trie import TriggerTrie
    from walle.pipeline.tunnel.client.client import TunnelClient
    from walle.pipeline.tunnel.server.server import TunnelServer

_MODULES = {
    "Event": "events.event",
    "EventJournal": "events.event_journal",
    "EventLog": "events.event_log",
    "FeatureStore": "features.store",
    "Ingest": "ingest.sqlite.store:SqliteUploadStore",
    "Outbox": "features.outbox",
    "ResultStream": "trigger.task_results",
    "StreamEngine": "trigger.stream_engine",
    "TakenEvent": "trigger.stream_engine",
    "TaskResult": "trigger.task_results",
    "TriggerTrie": "trigger.trie",
    "TunnelClient": "tunnel.client.client",
    "TunnelServer": "tunnel.server.server",
    "UploadStore": "ingest.store.upload_store",
    "open_uploads": "ingest.stores",
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
        module, _, attribute = _MODULES[name].partition(":")
        return getattr(importlib.import_module(f"walle.pipeline.{module}"), attribute or name)
    raise AttributeError(f"module 'walle.pipeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
