"""Count of different devices in bounded memory: exact while they are few, within about 1 % when they are many.

A device repeats a report after a lost answer or a restart, so counting reports would count devices twice, and a list of
devices would grow with the fleet. Up to `EXACT` devices their hashes are kept; then they go into a HyperLogLog
of 2**14 registers (16 KiB, standard error 0.8 %). Source: Flajolet et al., "HyperLogLog", AofA 2007.
"""

import base64
import hashlib
import math
from typing import Any, Self

EXACT = 1024
_INDEX_BITS = 14
_REGISTERS = 1 << _INDEX_BITS
_REST_BITS = 64 - _INDEX_BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


class DeviceCount:
    """Estimator of the size of a growing set of devices."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._registers: bytearray | None = None

    def add(self, device_id: str) -> bool:
        """Count a device; return False if it was counted before. Above `EXACT` devices, always return True."""
        hashed = int.from_bytes(hashlib.blake2b(device_id.encode(errors="surrogatepass"), digest_size=8).digest())
        if self._registers is not None:
            self._register(hashed)
            return True
        if hashed in self._hashes:
            return False
        self._hashes.add(hashed)
        if len(self._hashes) > EXACT:
            self._registers = bytearray(_REGISTERS)
            for one in self._hashes:
                self._register(one)
            self._hashes.clear()
        return True

    def __len__(self) -> int:
        """Return the number of devices: exact up to `EXACT`, an estimate above."""
        if self._registers is None:
            return len(self._hashes)
        estimate = _ALPHA * _REGISTERS**2 / math.fsum(2.0**-rank for rank in self._registers)
        empty = self._registers.count(0)
        if estimate <= 2.5 * _REGISTERS and empty:
            estimate = _REGISTERS * math.log(_REGISTERS / empty)
        return round(estimate)

    def _register(self, hashed: int) -> None:
        assert self._registers is not None
        index = hashed >> _REST_BITS
        rest = hashed & ((1 << _REST_BITS) - 1)
        rank = _REST_BITS - rest.bit_length() + 1
        self._registers[index] = max(self._registers[index], rank)

    def to_plain(self) -> dict[str, Any]:
        if self._registers is not None:
            return {"registers": base64.b64encode(self._registers).decode()}
        return {"hashes": sorted(self._hashes)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        count = cls()
        if "registers" in plain:
            count._registers = bytearray(base64.b64decode(plain["registers"]))
        else:
            count._hashes = set(plain["hashes"])
        return count
