"""Configuration of a cloud."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """`folder` holds all that the cloud keeps; every node of it sees the same folder.

    `business_app` names a factory (`package.module:function`) of the business's own ASGI app, which the gateway serves
    beside Walle's routes with the push answer added; empty for none. Ports 0 are chosen by the system.
    With `https` HTTP has TLS, by the cloud's own authority, or by the certificate and key in the files `tls_cert` and
    `tls_key`, which are read again when they change. Only `trusted_proxies` (addresses or networks) are believed who
    their clients are. `uploads` is the URL of a PostgreSQL database, empty for a file in `folder`. `parse_rule` reads
    the rules of `retention`, `DeviceQuota.parse` the `device_quota`, `ViewConfig.parse` the views of `features`.
    `tunnel_processes` above 1 share the tunnel's port. When it closes, devices move to the tunnel at `drain_to`
    (HOST:PORT; empty: to the same address again) at random times within `drain_s` seconds. Fallback inference keeps the
    versions that were asked for last loaded, in `inference_vms` VMs and with `inference_mb` MiB of files; with Ray in
    each of `inference_processes`. Simulation and fallback inference run tasks in a VM
    host, a child process without the cloud's files, keys and connections, unless `vm_host` is False.
    """

    folder: Path
    host: str = "127.0.0.1"
    http_port: int = 0
    https: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[str, ...] = ()
    tunnel_port: int = 0
    tunnel_processes: int = 1
    drain_to: str = ""
    drain_s: float = 1.0
    tunnel_names: tuple[str, ...] = ()  # what devices call this host, beside localhost; for the certificate
    scenarios: tuple[str, ...] = ()  # task repositories to make at start
    business_app: str = ""
    uploads: str = ""
    retention: tuple[str, ...] = ()
    device_quota: str = ""
    features: tuple[str, ...] = ()
    simulation_vms: int = 2
    inference_vms: int = 2
    inference_mb: int = 2048
    inference_processes: int = 1
    vm_host: bool = True
    pythons: tuple[str, ...] = ()  # executables of other versions that compile for devices which have those
