"""Options of a cloud as plain values, each declared once: type, default, bounds, help, flag and key in `walle.toml`.

`walle cloud up` makes its flags from these fields, and `CloudConfig` (`walle.cloud.folder.config`) has them. They are
here, below both, so that a command on a device loads no module of the cloud. A new option is a new field.
"""

import dataclasses
from pathlib import Path

from walle.base.option import option

_LAST_PORT = 65_535


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushOptions:
    """HTTP of a process that answers profiles: the cloud's gateway, or a push gateway (`walle cloud gateway`).

    The files `tls_cert` and `tls_key` are read again when they change. `pulls_s` and `pull_mb_s` are its pull budget
    (`walle.deploy.push.pull_budget`).
    """

    host: str = option("127.0.0.1", "gateways.host", "Address to listen on; 0.0.0.0 for every interface.")
    http_port: int = option(
        0, "gateways.port", "Port of HTTP; 0: chosen by the system.", at_command=8470, least=0, most=_LAST_PORT
    )
    tls_cert: Path | None = option(
        None,
        "gateways.tls_cert",
        "Certificate chain of HTTPS; without it a cloud makes one of its self-signed CA.",
    )
    tls_key: Path | None = option(None, "gateways.tls_key", "Key of that certificate.")
    trusted_proxies: tuple[str, ...] = option(
        (),
        "gateways.trust_proxy",
        "Address or network of a proxy whose X-Forwarded-For is believed; once for each.",
        flag="--trust-proxy",
    )
    business_app: str = option(
        "",
        "gateways.business_app",
        "Factory of your own ASGI app, package.module:function, served with the push answer.",
    )
    pulls_s: float = option(
        0.0,
        "gateways.pulls_per_s",
        "Pulls that the gateway's answers begin in a second; 0: any number.",
        flag="--pulls-per-s",
        least=0,
    )
    pull_mb_s: float = option(
        0.0, "gateways.pull_mb_s", "MB of versions that these pulls may have in a second; 0: any number.", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayOptions(PushOptions):
    """HTTP of the gateway, and the edge gateways in front of it.

    With Ray, `gateways` edge gateways on each node that has the `gateway_labels` share the port of HTTP, each takes the
    `gateway_resources` of its node, and the gateway behind them listens at `gateway_port`; with 0 of them the gateway
    has the port of HTTP. `reports_s` is the pace of reports (`walle.deploy.monitor.report_pace`), and `accel_redirect`
    is for the files under /cdn (`walle.deploy.shared_files.cdn`). The tunnel's certificate has the `tunnel_names` and
    localhost.
    """

    gateways: int = option(
        0,
        "gateways.on_each_node",
        "With --ray: edge gateways on each node, which share the port of HTTP; 0: the gateway alone;"
        " -1: 1 with --shared-folder, else 0.",
        at_command=-1,
        least=-1,
        most=64,
    )
    gateway_port: int = option(
        0,
        "gateways.inner_port",
        "With --gateways: port of the gateway behind them; 0: chosen by the system.",
        least=0,
        most=_LAST_PORT,
    )
    gateway_labels: tuple[str, ...] = option(
        (),
        "gateways.labels",
        "With --gateways: label of the nodes that have them, NAME=VALUE; once for each.",
        flag="--gateway-label",
    )
    gateway_resources: tuple[str, ...] = option(
        (),
        "gateways.resources",
        "With --gateways: resource of its node that each uses, NAME=AMOUNT; once for each.",
        flag="--gateway-resource",
    )
    tunnel_names: tuple[str, ...] = option(
        (),
        "gateways.names",
        "Host name that devices use; once for each name, the first in join.json.",
        flag="--name",
    )
    reports_s: float = option(
        0.0,
        "gateways.reports_per_s",
        "Reports of outcomes of all devices in a second, beyond which they are told to wait; 0: any number.",
        flag="--reports-per-s",
        least=0,
    )
    timestamp_life_s: int = option(
        3600,
        "gateways.timestamp_life",
        "Seconds after which devices install nothing new from a frozen answer.",
        flag="--timestamp-life",
        least=60,
        most=604_800,
    )
    accel_redirect: str = option(
        "",
        "gateways.accel_redirect",
        "Leave whole files to the nginx in front: its internal location over FOLDER/files, such as /stored.",
        metavar="PREFIX",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelOptions:
    """The tunnel's port, and the processes and servers that have it.

    With Ray each node that has the `tunnel_server_labels` has `tunnel_servers` tunnel servers
    (`walle.cloud.nodes.tunnel_node`) at `tunnel_server_port` (0: each at another one), among which the devices are
    divided. When the tunnel closes, devices move to the one at `drain_to` at random times within `drain_s` seconds.
    """

    tunnel_port: int = option(
        0, "tunnel.port", "Port of the tunnel; 0: chosen by the system.", at_command=8471, least=0, most=_LAST_PORT
    )
    tunnel_processes: int = option(
        1,
        "tunnel.processes",
        "Processes that share the tunnel's port; one for each core that it may use.",
        least=1,
        most=256,
    )
    tunnel_servers: int = option(
        0,
        "tunnel.servers",
        "With --ray: tunnel servers on each node, which share the devices; 0: the gateway's alone.",
        least=0,
        most=256,
    )
    tunnel_server_port: int = option(
        0,
        "tunnel.server_port",
        "Port of the tunnel server of each node; 0: chosen by the system.",
        least=0,
        most=_LAST_PORT,
    )
    tunnel_server_labels: tuple[str, ...] = option(
        (),
        "tunnel.server_labels",
        "Label of Ray's nodes that get tunnel servers, NAME=VALUE; once for each.",
        flag="--tunnel-server-label",
    )
    tunnel_server_resources: tuple[str, ...] = option(
        (),
        "tunnel.server_resources",
        "Resource of its node that each tunnel server uses, NAME=AMOUNT; once for each.",
        flag="--tunnel-server-resource",
    )
    drain_to: str = option(
        "",
        "tunnel.drain_to",
        "HOST:PORT of the tunnel where devices go when this cloud stops; here again if empty.",
    )
    drain_s: float = option(
        1.0, "tunnel.drain", "Seconds over which they move; 0: at once.", flag="--drain", least=0, most=3600
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UploadOptions:
    """Place of stored features, and their bounds.

    `uploads` is the URL of a PostgreSQL database, empty for a file in the folder. `parse_rule` reads the rules of
    `retention`, `DeviceQuota.parse` the `device_quota` and `ViewConfig.parse` the views of `features`.
    """

    uploads: str = option(
        "",
        "uploads.place",
        "Where features go: postgresql://USER@HOST/DATABASE, or file; that of --database if empty.",
        envvar="WALLE_UPLOADS",
    )
    retention: tuple[str, ...] = option(
        (),
        "uploads.retain",
        "Bound of a topic's stored features, TOPIC=30d,20GB, or *=30d for all others; once for each.",
        flag="--retain",
    )
    device_quota: str = option(
        "",
        "uploads.device_quota",
        "Stored bytes and topics of one device at most, SIZE,TOPICS; 10GB,1000 if empty.",
    )
    features: tuple[str, ...] = option(
        (),
        "uploads.features",
        "View of features for ctx.features in the cloud, SCENARIO/VIEW=TOPIC:FIELD,...; once for each.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """Fallback inference, which keeps the versions loaded that were asked for last."""

    inference_processes: int = option(
        1,
        "inference.processes",
        "With --ray: processes of fallback inference, spread over the nodes.",
        least=1,
        most=64,
    )
    inference_vms: int = option(
        2, "inference.vms", "VMs of fallback inference, in each of its processes.", least=1, most=256
    )
    inference_mb: int = option(
        2048, "inference.mb", "MiB of files of the versions that they keep loaded, in each process.", least=1
    )
    inference_resources: tuple[str, ...] = option(
        (),
        "placement.resources",
        "With --ray: resource of a node that each of these processes uses, NAME=AMOUNT; once for each.",
        flag="--inference-resource",
    )
    inference_labels: tuple[str, ...] = option(
        (),
        "placement.labels",
        "With --ray: label that a node must have for these processes, NAME=VALUE; once for each.",
        flag="--inference-label",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Check of stored files, and bounds of what a scenario keeps in git and as large files (Git LFS)."""

    scrub_mb_s: float = option(
        0.0,
        "files.scrub_mb_s",
        "MB/s at which stored files are checked; 0: all of them in a week.",
        least=0,
    )
    large_files_gb: int = option(
        64, "files.large_files_gb", "GiB of large files (Git LFS) that a scenario may have.", least=0
    )
    git_gb: int = option(16, "files.git_gb", "GiB that the git repository of a scenario may have.", least=1)
    git_token_gb: int = option(
        4, "files.git_token_gb", "GiB of a scenario's git repository that one token may have pushed.", least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """State of the cloud's services, and what they begin with.

    `database` has the state of releases, monitor, devices, identities, exclusive files and audit log: the URL of a
    PostgreSQL database; if empty, the one that the folder names, or files in it. `scenarios` are made at start.
    `pythons` are executables.
    """

    database: str = option(
        "",
        "services.database",
        "Where state and features go: postgresql://USER@HOST/DATABASE; as before if empty, first in files.",
        envvar="WALLE_DATABASE",
    )
    scenarios: tuple[str, ...] = option(
        (), "services.scenarios", "Task repository to make; once for each.", flag="--scenario"
    )
    pythons: tuple[str, ...] = option(
        (),
        "services.python",
        "Another version of Python, to compile for devices that run it; once for each.",
        flag="--python",
    )
    untrusted_authors: bool = option(
        False,
        "services.untrusted_authors",
        "Refuse to start if the kernel does not support a layer around task code (Landlock, seccomp, ...).",
    )
    join_devices: int = option(
        10,
        "services.join_devices",
        "New devices that join.json admits, within a day; 0: those of `walle device enrol`.",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Traces: the share `trace_ratio` of installs and runs is followed, and its spans go to the receiver `traces`."""

    traces: str = option(
        "",
        "traces.receiver",
        "OTLP receiver for traces, such as http://127.0.0.1:4318; env: by the OTEL_* variables alone.",
        metavar="URL",
    )
    trace_ratio: float = option(
        0.01,
        "traces.ratio",
        "With --traces: the share of installs and runs to follow.",
        least=0.000_001,
        most=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Services on the nodes of Ray: with `shared_folder` every node sees the folder, and services run on any of them.

    Those have the `service_labels`, and each service takes the `service_resources` of its node.
    """

    shared_folder: bool = option(
        False,
        "cluster.shared_folder",
        "With --address: every node sees FOLDER, so that the services may run on any; needs --database.",
    )
    service_labels: tuple[str, ...] = option(
        (),
        "cluster.service_labels",
        "With --shared-folder: label that a node must have for services, NAME=VALUE; once for each.",
        flag="--service-label",
    )
    service_resources: tuple[str, ...] = option(
        (),
        "cluster.service_resources",
        "With --ray: resource of a node that each service uses, such as CPU=1; once for each."
        " The services are gateway, releases, monitor and identities.",
        flag="--service-resource",
    )


# Bases from the last to the first: so a dataclass has its fields in the order of walle.toml.
@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudOptions(
    ClusterOptions,
    TraceOptions,
    ServiceOptions,
    FileOptions,
    InferenceOptions,
    UploadOptions,
    TunnelOptions,
    GatewayOptions,
):
    """All options of a cloud. Ports 0 are chosen by the system."""
