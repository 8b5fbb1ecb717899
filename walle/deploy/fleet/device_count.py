"""Count of different devices in bounded memory: exact while they are few, an estimate when they are many.

A device repeats a report after a lost answer or a restart, so counting reports would count devices twice, and a list of
devices would grow with the fleet. Up to a number of devices their hashes are kept; then they go into a HyperLogLog, by
default of 2**14 registers (16 KiB, standard error 0.8 %). Source: Flajolet et al., "HyperLogLog", AofA 2007.
"""

import base64
import hashlib
import math
from typing import Any, Self

EXACT = 1024
_INDEX_BITS = 14


class DeviceCount:
    """Estimator of the size of a growing set of devices: exact up to `exact` of them.

    Above, it has 2**`index_bits` registers of a byte each, 128 at least, and a standard error of 1.04 / their root.
    """

    def __init__(self, *, exact: int = EXACT, index_bits: int = _INDEX_BITS) -> None:
        self._exact = exact
        self._index_bits = index_bits
        self._hashes: set[int] = set()
        self._registers: bytearray | None = None

    def add(self, device_id: str) -> bool:
        """Count a device; return False if it was counted before. Above `exact` devices, always return True."""
        hashed = int.from_bytes(hashlib.blake2b(device_id.encode(errors="surrogatepass"), digest_size=8).digest())
        if self._registers is not None:
            self._register(hashed)
            return True
        if hashed in self._hashes:
            return False
        self._hashes.add(hashed)
        if len(self._hashes) > self._exact:
            self._registers = bytearray(1 << self._index_bits)
            for one in self._hashes:
                self._register(one)
            self._hashes.clear()
        return True

    def __len__(self) -> int:
        """Return the number of devices: exact up to `exact`, an estimate above."""
        if self._registers is None:
            return len(self._hashes)
        count = len(self._registers)
        alpha = 0.7213 / (1 + 1.079 / count)
        estimate = alpha * count**2 / math.fsum(2.0**-rank for rank in self._registers)
        empty = self._registers.count(0)
        if estimate <= 2.5 * count and empty:
            estimate = count * math.log(count / empty)
        return round(estimate)

    def _register(self, hashed: int) -> None:
        assert self._registers is not None
        rest_bits = 64 - self._index_bits
        index = hashed >> rest_bits
        rest = hashed & ((1 << rest_bits) - 1)
        rank = rest_bits - rest.bit_length() + 1
        self._registers[index] = max(self._registers[index], rank)

    def to_plain(self) -> dict[str, Any]:
        if self._registers is not None:
            return {"registers": base64.b64encode(self._registers).decode()}
        return {"hashes": sorted(self._hashes)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], *, exact: int = EXACT, index_bits: int = _INDEX_BITS) -> Self:
        count = cls(exact=exact, index_bits=index_bits)
        if "registers" in plain:
            count._registers = bytearray(base64.b64decode(plain["registers"]))
        else:
            count._hashes = set(plain["hashes"])
        return count
