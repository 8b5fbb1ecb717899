"""Plan of a round of secure aggregation: the public parameters that every client and the server must agree on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgpack

from walle.errors import ConfigError
from walle.federated.privacy.secagg.graph import LEAST_CLIENTS, Degree, degree

_DOMAIN = b"walle secagg plan 1\0"
_MOST_VALUES = 1 << 28  # 1 GiB of uint32 values


@dataclass(frozen=True)
class SecAggPlan:
    """Parameters of one round. Clients and server that differ in one of them refuse each other's messages.

    Raises:
        ConfigError: a parameter is out of bounds, or no graph of `minimum` clients survives the assumed parts.
    """

    round_name: str  # name of fleet, task and round; never used for two rounds
    values: int  # length of each client's vector
    minimum: int  # clients whose vectors must be in the sum that the server tells of
    dropout: float = 0.3  # part of the clients that may be lost
    corrupt: float = 0.05  # part of the clients that may work with the server

    def __post_init__(self) -> None:
        if not self.round_name:
            raise ConfigError("a round of secure aggregation needs a name that no other round has")
        if not 1 <= self.values <= _MOST_VALUES:
            raise ConfigError(f"vectors of {self.values} values; give 1 to {_MOST_VALUES}")
        if self.minimum < LEAST_CLIENTS:
            raise ConfigError(f"minimum of {self.minimum} clients; a sum of fewer than {LEAST_CLIENTS} hides nobody")
        self.degree(self.minimum)

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the parameters, which every signature and derived key includes."""
        fields: list[Any] = [self.round_name, self.values, self.minimum, float(self.dropout), float(self.corrupt)]
        return hashlib.sha256(_DOMAIN + msgpack.packb(fields)).digest()

    def degree(self, clients: int) -> Degree:
        """Return the number of neighbours and the threshold for n clients of the round."""
        return degree(clients, self.dropout, self.corrupt)
