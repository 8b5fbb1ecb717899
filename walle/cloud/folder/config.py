"""Configuration of a cloud."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

from walle.cloud.http.limits import HttpLimits
from walle.deploy.git.git_use import GitQuota
from walle.deploy.git.large_file_store import LargeFileLimits
from walle.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """`folder` holds all that the cloud keeps; every node of it sees the same folder.

    `business_app` names a factory (`package.module:function`) of the business's own ASGI app, which the gateway serves
    beside Walle's routes with the push answer added; empty for none. Ports 0 are chosen by the system. With `https`
    HTTP has TLS, by the cloud's own CA, or by the certificate and key in the files `tls_cert` and `tls_key`,
    which are read again when they change. `uploads` is the URL of a PostgreSQL database, empty for a file in `folder`.
    `parse_rule` reads the rules of `retention`, `DeviceQuota.parse` the `device_quota` and `ViewConfig.parse` the views
    of `features`. `tunnel_processes` above 1 share the tunnel's port. With Ray each node that has the
    `tunnel_server_labels` has `tunnel_servers` tunnel servers (`walle.cloud.nodes.tunnel_node`) at `tunnel_server_port`
    (0: each at another one), among which the devices are divided. When the tunnel closes, devices move to the one at
    `drain_to` (HOST:PORT; empty: to the same address again) at random times within `drain_s` seconds. Fallback
    inference keeps the versions that were asked for last loaded, in `inference_vms` VMs and with `inference_mb` MiB of
    files; with Ray in each of `inference_processes`, which each take the `inference_resources` of their node
    (`parse_resources`), which has the `inference_labels` (`parse_labels`). Each simulation and fallback inference run
    tasks in a VM host, a child process without the cloud's files, keys and connections, unless `vm_host` is False. With
    `untrusted_authors` nothing starts where the kernel lacks a layer around them. At most `simulation_vms` simulations
    run at once, and each ends after `simulation_s` seconds. Large files (Git LFS) of a scenario have `large_files_gb`
    GiB at most, its repository `git_gb`, of which one token pushed `git_token_gb`. `http_limits` are those of the
    gateway's HTTP server. Only `trusted_proxies` (addresses, or networks such as 10.0.0.0/8) are believed who their
    clients are. The gateway's answers begin `pulls_s` pulls and `pull_mb_s` MB of them in a second, 0 for any number
    (`walle.deploy.push.pull_budget`). Devices are told to report their outcomes `reports_s` times a second in all, 0
    for any number (`walle.deploy.monitor.report_pace`). Devices take nothing new from an answer whose timestamp is
    older than `timestamp_life_s`. With `accel_redirect`, an internal location of the nginx in front, nginx sends the
    whole files (`walle.deploy.shared_files.cdn`). Stored files are checked at `scrub_mb_s` MB/s, or all within a week
    where it is 0. The share `trace_ratio` of installs and runs is followed, and its spans go to the OTLP receiver at
    `traces` (an address, or "env" for that in OTEL_* variables); empty for none. `database` has the state of releases,
    monitor, devices, identities, exclusive files and audit log: the URL of a PostgreSQL database; if empty, the one
    that `folder` names, or files in it. With `shared_folder` every node of Ray sees the folder, and the cloud's
    services may run on each that has the `service_labels`. With Ray, `gateways` edge gateways on each node that has the
    `gateway_labels` share the port of HTTP, and the gateway behind them listens at `gateway_port`; with 0 of them the
    gateway has the port of HTTP. Each service takes the `service_resources` of its node, each edge the
    `gateway_resources`, each tunnel server the `tunnel_server_resources`.
    """

    folder: Path
    host: str = "127.0.0.1"
    http_port: int = 0
    gateways: int = 0
    gateway_port: int = 0
    gateway_labels: tuple[str, ...] = ()
    gateway_resources: tuple[str, ...] = ()
    https: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[str, ...] = ()
    tunnel_port: int = 0
    tunnel_processes: int = 1
    tunnel_servers: int = 0
    tunnel_server_port: int = 0
    tunnel_server_labels: tuple[str, ...] = ()
    tunnel_server_resources: tuple[str, ...] = ()
    drain_to: str = ""
    drain_s: float = 1.0
    tunnel_names: tuple[str, ...] = ()  # what devices call this host, beside localhost; for the certificate
    join_devices: int = 10  # devices that the token of join.json admits, within a day of each start
    scenarios: tuple[str, ...] = ()  # task repositories to make at start
    business_app: str = ""
    database: str = ""
    uploads: str = ""
    retention: tuple[str, ...] = ()
    device_quota: str = ""
    features: tuple[str, ...] = ()
    simulation_vms: int = 2
    inference_vms: int = 2
    inference_mb: int = 2048
    inference_processes: int = 1
    inference_resources: tuple[str, ...] = ()
    inference_labels: tuple[str, ...] = ()
    vm_host: bool = True
    untrusted_authors: bool = False
    simulation_s: float = 600.0
    large_files_gb: int = 64
    git_gb: int = 16
    git_token_gb: int = 4
    http_limits: HttpLimits = dataclasses.field(default_factory=HttpLimits)
    pulls_s: float = 0.0
    pull_mb_s: float = 0.0
    reports_s: float = 0.0
    timestamp_life_s: int = 3600
    scrub_mb_s: float = 0.0
    traces: str = ""
    trace_ratio: float = 0.01
    accel_redirect: str = ""
    shared_folder: bool = False
    service_labels: tuple[str, ...] = ()
    service_resources: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()  # executables of other versions that compile for devices which have those

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
