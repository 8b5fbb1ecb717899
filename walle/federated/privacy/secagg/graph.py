"""Graph of neighbours, who mask with each other and hold each other's shares; the number of shares that open a seed.

The graph is the Harary graph C(n, k) on a ring in random order: each client's neighbours are the k/2 before it and the
k/2 after it. The order is that of hashes with the digest of the roster, so that everybody computes the same ring. The
server, which sees all keys first, can try rosters until a ring suits it.

Source: Bell et al. 2020, section 3.1 (random k-regular graph, its degree) and theorem 3.10 (hypergeometric bounds).
Departure: the threshold is higher than in the paper's protocol for honest servers. More than half of a client's
neighbours and its corrupt ones together must answer, so that a server that tells some neighbours that the client
delivered, and others that it was lost, opens only one of its seeds (Bonawitz et al. 2017, section 6.2).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from walle.errors import ConfigError

LEAST_CLIENTS = 3  # fewer: who knows one's own vector and the sum of two knows both
MOST_CLIENTS = 1 << 16
_INSECURE = 2.0**-40  # probability that a ring gives some client too many corrupt neighbours
_UNLUCKY = 2.0**-20  # probability that a ring loses too many neighbours of some client, and the round fails
_ROSTER_DOMAIN = b"walle secagg roster 1\0"


@dataclass(frozen=True)
class Degree:
    """Numbers of a graph: each client's neighbours, and the shares that open a seed."""

    neighbours: int
    threshold: int


@functools.lru_cache(maxsize=64)
def degree(clients: int, dropout: float, corrupt: float) -> Degree:
    """Return the least degree that is secure and survives drop-outs; a complete graph where no smaller one is.

    Args:
        clients: clients of the round, n.
        dropout: part of them that may be lost at any moment of it.
        corrupt: part of them that may work with the server.

    Raises:
        ConfigError: no graph of this size survives such parts.
    """
    if not LEAST_CLIENTS <= clients <= MOST_CLIENTS:
        raise ConfigError(f"{clients} clients; secure aggregation takes {LEAST_CLIENTS} to {MOST_CLIENTS}")
    if not (0 <= dropout < 1 and 0 <= corrupt < 1):
        raise ConfigError(f"drop-outs {dropout}, corrupt clients {corrupt}; give two parts from 0 to below 1")
    lost, bad, others = math.floor(dropout * clients), math.floor(corrupt * clients), clients - 1
    gone = dropout + corrupt
    # A ring is cut only where k/2 clients in a row are lost or corrupt.
    half = max(1, math.ceil(math.log(_INSECURE / clients) / math.log(gone))) if 0 < gone < 1 else 1
    for neighbours in range(2 * half, others, 2):
        most_bad = _upper_quantile(others, bad, neighbours, _INSECURE / clients)
        threshold = (neighbours + most_bad) // 2 + 1
        most_lost = _upper_quantile(others, lost, neighbours, _UNLUCKY / clients)
        if threshold <= neighbours - most_lost:
            return Degree(neighbours, threshold)
    threshold = (others + min(bad, others)) // 2 + 1
    if threshold > others - lost:
        raise ConfigError(
            f"{clients} clients with {dropout:g} of them lost and {corrupt:g} corrupt: {threshold} of {others} shares "
            f"open a seed, and {others - lost} remain; assume fewer of either"
        )
    return Degree(others, threshold)


def _upper_quantile(population: int, marked: int, drawn: int, probability: float) -> int:
    """Return the least m so that more than m marked ones are among the drawn with at most the given probability."""
    most = min(marked, drawn)
    tail = 0.0
    for found in range(most, -1, -1):
        tail += math.exp(_log_binomial(marked, found) + _log_binomial(population - marked, drawn - found)
                         - _log_binomial(population, drawn))  # fmt: skip
        if tail > probability:
            return found
    return 0


def _log_binomial(whole: int, part: int) -> float:
    if not 0 <= part <= whole:
        return -math.inf
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


def roster_digest(plan_digest: bytes, leaves: Sequence[bytes]) -> bytes:
    """Return the digest of a round and its clients, which are hashes of their keys in ascending order."""
    return hashlib.sha256(_ROSTER_DOMAIN + plan_digest + b"".join(leaves)).digest()


def ring_order(roster: bytes, leaves: Sequence[bytes]) -> list[int]:
    """Return the indices of the clients in the order of the ring of a roster's digest."""
    return sorted(range(len(leaves)), key=lambda index: hashlib.sha256(roster + leaves[index]).digest())


def neighbours_on(ring: Sequence[int], position: int, count: int) -> list[int]:
    """Return the indices of the `count` clients around a position of the ring, in ascending order."""
    size = len(ring)
    if count == size - 1:
        return sorted(index for index in ring if index != ring[position])
    steps = range(1, count // 2 + 1)
    return sorted(ring[(position + step) % size] for distance in steps for step in (-distance, distance))
