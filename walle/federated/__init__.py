"""Federated rounds: devices train a model on data that stays with them (§1, §8).

Names are loaded at their first use: a device loads no aggregation.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.federated.coordinator import Coordinator, RoundStore
    from walle.federated.errors import AggregationError, RoundError, UpdateError, UpdateRefusedError, WeightsError
    from walle.federated.proximal import ProximalLoss
    from walle.federated.round import Round, RoundSettings, RoundState, draw_round, replay
    from walle.federated.simulation import Federation, SimulatedRound
    from walle.federated.update import Trained, Update
    from walle.federated.update_codec import Encoding, UpdateLimits, decode_update, encode_update
    from walle.federated.weights import Layout, Weights

_MODULES = {
    "AggregationError": "errors",
    "Coordinator": "coordinator",
    "Encoding": "update_codec",
    "Federation": "simulation",
    "Layout": "weights",
    "ProximalLoss": "proximal",
    "Round": "round",
    "RoundError": "errors",
    "RoundSettings": "round",
    "RoundState": "round",
    "RoundStore": "coordinator",
    "SimulatedRound": "simulation",
    "Trained": "update",
    "Update": "update",
    "UpdateError": "errors",
    "UpdateLimits": "update_codec",
    "UpdateRefusedError": "errors",
    "Weights": "weights",
    "WeightsError": "errors",
    "decode_update": "update_codec",
    "draw_round": "round",
    "encode_update": "update_codec",
    "replay": "round",
}

__all__ = [
    "AggregationError",
    "Coordinator",
    "Encoding",
    "Federation",
    "Layout",
    "ProximalLoss",
    "Round",
    "RoundError",
    "RoundSettings",
    "RoundState",
    "RoundStore",
    "SimulatedRound",
    "Trained",
    "Update",
    "UpdateError",
    "UpdateLimits",
    "UpdateRefusedError",
    "Weights",
    "WeightsError",
    "decode_update",
    "draw_round",
    "encode_update",
    "replay",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(f"walle.federated.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'walle.federated' has no attribute {name!r}")
