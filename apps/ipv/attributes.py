"""Device attributes, drawn from a seed: app version, operating system, performance class and the user's age band.

Releases target devices by them (§6), and a task sees them as `ctx.device`.
"""

import dataclasses
import random

from walle.protocol import Attribute

APP_VERSIONS = {"10.1.0": 10, "10.2.1": 15, "10.3.0": 25, "11.0.0": 20, "11.1.0": 20, "11.2.0": 10}
OPERATING_SYSTEMS = {"android": 62, "ios": 38}
PERFORMANCE_CLASSES = {"low": 35, "middle": 40, "high": 25}
USER_AGES = {"under 18": 6, "18-24": 24, "25-34": 32, "35-44": 20, "45-54": 11, "55+": 7}


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """A device's attributes in its profile."""

    app_version: str
    os: str
    performance: str  # low, middle or high
    user_age: str

    def to_profile(self) -> dict[str, Attribute]:
        """Return the attributes of `walle.protocol.Profile`; the app version is a separate field there."""
        return {"os": self.os, "performance": self.performance, "user_age": self.user_age}


def device_attributes(seed: int, device_id: str) -> DeviceAttributes:
    """Return one device's attributes, the same for the same seed and id. Shares are the weights above, in percent."""
    rng = random.Random(f"attributes/{seed}/{device_id}")
    tables = (APP_VERSIONS, OPERATING_SYSTEMS, PERFORMANCE_CLASSES, USER_AGES)
    return DeviceAttributes(*(rng.choices(tuple(table), tuple(table.values()))[0] for table in tables))
