"""Rounds of secure aggregation for tests: devices with keys, the exchange step by step, and all bytes of it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from walle import np
from walle.federated.privacy.secagg.client import SecAggClient
from walle.federated.privacy.secagg.identity import VouchedDevices, voucher
from walle.federated.privacy.secagg.plan import SecAggPlan
from walle.federated.privacy.secagg.server import SecAggServer, SecureSum

AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(32))
# Evidence of a device is verified once: rounds of many clients take half the time.
ADMITS = functools.cache(VouchedDevices(AUTHORITY.public_key().public_bytes_raw()))


def device_key(device: str) -> Ed25519PrivateKey:
    """Return the key of a device, the same in each test."""
    return Ed25519PrivateKey.from_private_bytes(device.encode().rjust(32, b"\1"))


def client_of(plan: SecAggPlan, device: str, seed: int = 0) -> SecAggClient:
    """Return a client whose secrets the seed determines."""
    key = device_key(device)
    evidence = voucher(AUTHORITY, device, key.public_key().public_bytes_raw())
    secrets = random.Random(f"{seed} {device}").randbytes
    return SecAggClient(plan, device, key, ADMITS, evidence=evidence, random_bytes=secrets)


def vector_of(numbers: random.Random, count: int) -> Any:
    return np.frombuffer(numbers.randbytes(4 * count), "uint32")


def plain_sum(vectors: Collection[Any]) -> Any:
    first, *others = vectors
    total = np.array(first)
    for one in others:
        total += one
    return total


@dataclass
class Exchange:
    """One round, a step at a time. Devices that a step does not name are lost from there on."""

    plan: SecAggPlan
    devices: list[str]
    seed: int = 0
    sent: dict[str, list[bytes]] = field(default_factory=dict)  # messages of each device
    received: dict[str, list[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = {device: client_of(self.plan, device, self.seed) for device in self.devices}
        self.server = SecAggServer(self.plan, ADMITS)

    def restart(self) -> None:
        """Continue with a server in the state of this one's checkpoint."""
        self.server = SecAggServer.restored(self.plan, ADMITS, self.server.checkpoint())

    def _exchange(
        self,
        live: Collection[str],
        messages: Mapping[str, bytes],
        answer: Callable[[str, bytes], bytes],
        add: Callable[[str, bytes], bool],
    ) -> None:
        for device in live:
            if device in messages:
                self.received.setdefault(device, []).append(messages[device])
                reply = answer(device, messages[device])
                self.sent.setdefault(device, []).append(reply)
                assert add(device, reply)

    def advertise(self) -> dict[str, bytes]:
        nothing = dict.fromkeys(self.devices, b"")
        self._exchange(self.devices, nothing, lambda device, _: self.clients[device].advertise(), self.server.add_keys)
        return self.server.close_keys()

    def share(self, live: Collection[str]) -> dict[str, bytes]:
        rosters = self.advertise()
        self._exchange(live, rosters, lambda device, data: self.clients[device].share(data), self.server.add_shares)
        return self.server.close_shares()

    def mask(self, live: Collection[str], boxes: Mapping[str, bytes], vectors: Mapping[str, Any]) -> dict[str, bytes]:
        def masked(device: str, data: bytes) -> bytes:
            return self.clients[device].mask(data, vectors[device])

        self._exchange(live, boxes, masked, self.server.add_masked)
        return self.server.close_masked()

    def unmask(self, live: Collection[str], requests: Mapping[str, bytes]) -> SecureSum:
        self._exchange(live, requests, lambda device, data: self.clients[device].unmask(data), self.server.add_answer)
        return self.server.finish()


def names(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]
