"""A hardware profile: compute power and memory bandwidth of a class of devices (§4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from walle.engine_ext import rates
from walle.errors import ConfigError

_OWN = "this machine"
_PER_S = 1e6  # rates are per microsecond


@dataclass(frozen=True, slots=True)
class Hardware:
    """Multiply-adds, the operations of §4.1's costs, and bytes a second."""

    compute: float
    bandwidth: float

    @classmethod
    def of_rates(cls, flop_per_s: float, bytes_per_s: float) -> Hardware:
        """Return the profile of rates, of which a multiply-add takes two floating-point operations."""
        return cls(flop_per_s / 2, bytes_per_s)

    @classmethod
    def of_class(cls, name: str) -> Hardware:
        """Return the profile that `walle model calibrate` measured of a CPU, by a part of its name; "this machine".

        Raises:
            ConfigError: no such CPU was calibrated by this user.
        """
        wanted = rates.cpu_model() if name == _OWN else name
        try:
            found = rates.read_every(rates.cache_path())
        except ValueError as error:
            raise ConfigError(f"rates of {name}: {error}") from error
        for cpu, backends in found.items():
            if wanted.lower() in cpu.lower():
                best = max(backends.values(), key=lambda one: one.get("panel", 0.0))
                return cls.of_rates(best["panel"] * _PER_S, best["streamed"] * _PER_S)
        known = f"; calibrated are {', '.join(found)}" if found else ""
        raise ConfigError(f"no rates of {name!r}: run `walle model calibrate` there{known}")

    def latency_s(self, operations: float, weight_bytes: float) -> float:
        """Return the seconds of a run: bytes over bandwidth, and multiply-adds over compute power (§4.1)."""
        return weight_bytes / self.bandwidth + operations / self.compute
