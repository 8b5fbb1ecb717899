"""Aggregation algorithms: one class each, behind `Aggregator`."""

from walle.federated.aggregation.adaptive import FedAdam, FedYogi
from walle.federated.aggregation.aggregator import AggregationReport, Aggregator
from walle.federated.aggregation.coordinates import CoordinateMedian, TrimmedMean
from walle.federated.aggregation.fedavg import FedAvg
from walle.federated.aggregation.fedbuff import FedBuff
from walle.federated.aggregation.krum import MultiKrum
from walle.federated.aggregation.named import AGGREGATORS, make_aggregator
from walle.federated.aggregation.norm_bound import NormBound

__all__ = [
    "AGGREGATORS",
    "AggregationReport",
    "Aggregator",
    "CoordinateMedian",
    "FedAdam",
    "FedAvg",
    "FedBuff",
    "FedYogi",
    "MultiKrum",
    "NormBound",
    "TrimmedMean",
    "make_aggregator",
]
