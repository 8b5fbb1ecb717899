"""Sinks: stored uploads sent on to Kafka, MQTT, Parquet files or a webhook, as a member of a consumer group."""

from walle.sinks.aside_folder import AsideFolder, ResentRows, resend
from walle.sinks.runner import RunnerConfig, SinkRunner, SinkStatus
from walle.sinks.sink import Refusal, Sink, SinkError, SinkRow

__all__ = [
    "AsideFolder",
    "Refusal",
    "ResentRows",
    "RunnerConfig",
    "Sink",
    "SinkError",
    "SinkRow",
    "SinkRunner",
    "SinkStatus",
    "resend",
]
