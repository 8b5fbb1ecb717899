"""Metrics of an answerer, which every gateway has."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from walle.deploy.cloud.push import Answerer


def answerer_metrics(answerer: Answerer) -> list[Metric]:
    """Return the counts of profiles, and the generation of the table."""
    profiles = CounterMetricFamily("walle_profiles", "Profiles checked by this gateway", labels=["kind"])
    for kind in ("repeated", "fresh", "broken", "foreign", "asked"):
        profiles.add_metric([kind], getattr(answerer, kind))
    answered = CounterMetricFamily("walle_profiles_answered", "Fresh profiles that were answered with directives")
    answered.add_metric([], answerer.answered)
    generation = GaugeMetricFamily("walle_table_generation", "Generation of this gateway's release table")
    generation.add_metric([], answerer.table.generation)
    return [profiles, answered, generation]
