"""Sinks: stored uploads sent on to Kafka, MQTT, Parquet files or a webhook, as a member of a consumer group."""

from walle.sinks.runner import RunnerConfig, SinkRunner, SinkStatus
from walle.sinks.sink import Sink, SinkError, SinkRow

__all__ = ["RunnerConfig", "Sink", "SinkError", "SinkRow", "SinkRunner", "SinkStatus"]
