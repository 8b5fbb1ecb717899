"""Federated rounds: devices train a model on data that stays with them (§1, §8)."""

from walle.federated.coordinator import Coordinator, RoundStore
from walle.federated.errors import AggregationError, RoundError, UpdateError, UpdateRefusedError, WeightsError
from walle.federated.proximal import ProximalLoss
from walle.federated.round import Round, RoundSettings, RoundState, draw_round, replay
from walle.federated.simulation import Federation, SimulatedRound
from walle.federated.update import Trained, Update
from walle.federated.update_codec import Encoding, UpdateLimits, decode_update, encode_update
from walle.federated.weights import Layout, Weights

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
