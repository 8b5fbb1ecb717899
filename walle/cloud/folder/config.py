"""Configuration of a cloud."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

from walle.base.cloud_options import CloudOptions
from walle.cloud.http.limits import HttpLimits
from walle.deploy.git.git_use import GitQuota
from walle.deploy.git.large_file_store import LargeFileLimits
from walle.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudConfig(CloudOptions):
    """Options of a cloud, and its `folder`, which holds all that it keeps; every node of it sees the same folder.

    With `https` HTTP has TLS, by the cloud's own CA, or by the certificate and key of the options. `http_limits` are
    those of the gateway's HTTP server. Each simulation and fallback inference run tasks in a VM host, a child process
    without the cloud's files, keys and connections, unless `vm_host` is False. At most `simulation_vms` simulations run
    at once, and each ends after `simulation_s` seconds. `parse_resources` reads resources of nodes, `parse_labels`
    their labels.
    """

    folder: Path
    https: bool = False
    http_limits: HttpLimits = dataclasses.field(default_factory=HttpLimits)
    vm_host: bool = True
    simulation_vms: int = 2
    simulation_s: float = 600.0

    @property
    def git_quota(self) -> GitQuota:
        """Bytes that a scenario and a token may keep in git."""
        return GitQuota(scenario_bytes=self.git_gb << 30, token_bytes=self.git_token_gb << 30)

    @property
    def large_file_limits(self) -> LargeFileLimits:
        """Bytes that a scenario may keep as large files."""
        return LargeFileLimits(scenario_bytes=self.large_files_gb << 30)


def parse_resources(texts: Iterable[str]) -> dict[str, float]:
    """Return Ray's resources in texts such as "CPU=2" and "GPU=0.5", each a name and an amount; a later one replaces.

    Raises:
        ConfigError: a text is not one.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            amount = float(value)
        except ValueError:
            amount = math.nan
        if not name or not 0.0001 <= amount < math.inf or (amount > 1 and not amount.is_integer()):
            what = f"resource {text[:100]!r} must be NAME=AMOUNT, an amount of at least 0.0001, and whole above 1"
            raise ConfigError(f"{what}; such as CPU=2")
        found[name] = amount
    return found


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return labels of nodes in texts such as "zone=a", each a name and a value; a later one replaces.

    Raises:
        ConfigError: a text is not one.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise ConfigError(f"label {text[:100]!r} must be NAME=VALUE, such as zone=a")
        found[name] = value
    return found
