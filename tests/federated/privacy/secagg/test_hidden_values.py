"""Values of a client in what it sends: none, and masked vectors look random; and the bytes that a round costs."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.federated.privacy.secagg.rounds import Exchange, names, plain_sum
from walle import np
from walle.federated.privacy.keystream import add_mask, subtract_mask
from walle.federated.privacy.secagg.agreement import pair_mask_key, self_mask_key
from walle.federated.privacy.secagg.plan import SecAggPlan

COUNT = 4000


def occurrences(vector: Any, sent: bytes) -> int:
    """Return how many runs of two neighbouring values of the vector are in the bytes, at any offset."""
    raw = vector.tobytes()
    return sum(raw[start : start + 8] in sent for start in range(0, len(raw) - 4, 4))


def one_bits(data: bytes) -> float:
    return int.from_bytes(data).bit_count() / (8 * len(data))


def whole_round(vectors: dict[str, Any], lost: list[str]) -> Exchange:
    devices = list(vectors)
    live = [device for device in devices if device not in lost]
    exchange = Exchange(SecAggPlan("round", COUNT, 4), devices)
    requests = exchange.mask(live, exchange.share(devices), vectors)
    found = exchange.unmask(live, requests)
    assert found.total.tolist() == plain_sum([vectors[one] for one in live]).tolist()
    return exchange


def test_no_values_of_a_client_are_in_what_it_sends() -> None:
    numbers = random.Random(7)
    vectors = {
        device: np.asarray([numbers.randrange(-(1 << 15), 1 << 15) for _ in range(COUNT)], "int32").view("uint32")
        for device in names(6)
    }
    exchange = whole_round(vectors, lost=["device-5"])
    assert occurrences(vectors["device-0"], vectors["device-0"].tobytes()) == COUNT - 1  # the search finds plain ones
    for device, messages in exchange.sent.items():
        for message in messages:
            assert occurrences(vectors[device], message) == 0
        for other in vectors.values():  # forwarded messages have none either
            assert all(occurrences(other, message) == 0 for message in exchange.received[device])


@pytest.mark.parametrize("value", [0, 0xFFFFFFFF])
def test_a_masked_vector_of_equal_values_looks_random(value: int) -> None:
    vectors = {device: np.zeros((COUNT,), "uint32") + np.asarray(value, "uint32") for device in names(6)}
    exchange = whole_round(vectors, lost=["device-5"])
    masked = [exchange.sent[device][2] for device in names(5)]
    assert all(abs(one_bits(message) - 0.5) < 0.01 for message in masked)
    assert all(len(set(memoryview(message[8 : 8 + 4 * COUNT]).cast("I"))) > COUNT - 20 for message in masked)


def test_a_masked_vector_has_the_self_mask_and_a_mask_with_each_neighbour() -> None:
    """One of the two kinds hides the values from a server that knows the other, by a client lost or delivered."""
    vectors = {device: np.zeros((COUNT,), "uint32") + at for at, device in enumerate(names(4))}
    exchange = whole_round(vectors, lost=[])
    for device, client in exchange.clients.items():
        assert client._roster is not None
        digest = client._roster.digest
        masked = np.array(np.frombuffer(exchange.sent[device][2][-34 - 4 * COUNT : -34], "uint32"))
        without_own = np.array(masked)
        subtract_mask(without_own, self_mask_key(client._self_seed, digest))
        without_pairs = np.array(masked)
        for one in client._roster.neighbours.values():
            key = pair_mask_key(client._mask_private, one.keys.mask_key, digest)
            (subtract_mask if client._leaf < one.leaf else add_mask)(without_pairs, key)
        assert all(abs(one_bits(part.tobytes()) - 0.5) < 0.01 for part in (without_own, without_pairs))
        subtract_mask(without_pairs, self_mask_key(client._self_seed, digest))
        assert without_pairs.tolist() == vectors[device].tolist()


def test_only_the_sum_of_all_clients_has_no_pairwise_masks() -> None:
    vectors = dict.fromkeys(names(4), np.zeros((COUNT,), "uint32"))
    exchange = whole_round(vectors, lost=[])
    parts = []
    for device, client in exchange.clients.items():
        assert client._roster is not None
        part = np.array(np.frombuffer(exchange.sent[device][2][-34 - 4 * COUNT : -34], "uint32"))
        subtract_mask(part, self_mask_key(client._self_seed, client._roster.digest))
        parts.append(part)
    for size in (1, 2, 3):
        for chosen in itertools.combinations(parts, size):
            assert abs(one_bits(plain_sum(chosen).tobytes()) - 0.5) < 0.01
    assert not any(plain_sum(parts).tolist())


def test_bytes_of_a_client_are_at_most_twice_the_plain_update() -> None:
    """100 clients, a model of 20,000 parameters, 30 % lost, a third of them after they shared their seeds."""
    devices, values = names(100), 20_000
    vectors = dict.fromkeys(devices, np.zeros((values,), "uint32"))
    exchange = Exchange(SecAggPlan("round", values, 70), devices)
    boxes = exchange.share(devices[20:])
    live = devices[30:]
    exchange.unmask(live, exchange.mask(live, boxes, vectors))
    plain_bytes = 4 * values
    for device in live:
        used = sum(map(len, exchange.sent[device])) + sum(map(len, exchange.received[device]))
        assert plain_bytes < used <= 1.4 * plain_bytes
