"""`walle cloud up`: its options, and the commands of the group `walle cloud`."""

import asyncio
import contextlib
import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from walle.cli import event_loop
from walle.cli.cloud import backup
from walle.cli.cloud import config as cloud_config
from walle.cli.cloud.folder_lock import new_folder, only_one
from walle.cli.cloud.nodes import down, drain, restart
from walle.cli.cloud.program import detach_cloud, serve_cloud
from walle.cli.cloud.push_gateway import gateway
from walle.cli.cloud.status import status
from walle.cli.credentials import is_network
from walle.cli.join import JOIN_FILE
from walle.cli.output import JsonLinesFlag
from walle.errors import ConfigError

DEFAULT_HTTP_PORT = 8470
DEFAULT_TUNNEL_PORT = 8471
_IN_FILE = "file"  # value of --uploads: a file in the folder


def up(
    folder: Annotated[Path, typer.Argument(help="Where the cloud keeps everything; made if it is not there.")],
    config: Annotated[  # noqa: ARG001 - its callback has read it
        Path | None,
        typer.Option(
            "--config",
            help="walle.toml with these options as keys; an option that is given here goes first.",
            callback=cloud_config.load,
            is_eager=True,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(help="Port of HTTP; 0: chosen by the system.", min=0, max=65535)
    ] = DEFAULT_HTTP_PORT,
    gateways: Annotated[
        int,
        typer.Option(
            help="With --ray: edge gateways on each node, which share the port of HTTP; 0: the gateway alone;"
            " -1: 1 with --shared-folder, else 0.",
            min=-1,
            max=64,
        ),
    ] = -1,
    gateway_port: Annotated[
        int,
        typer.Option(
            help="With --gateways: port of the gateway behind them; 0: chosen by the system.", min=0, max=65535
        ),
    ] = 0,
    gateway_label: Annotated[
        list[str] | None,
        typer.Option(help="With --gateways: label of the nodes that have them, NAME=VALUE; once for each."),
    ] = None,
    gateway_resource: Annotated[
        list[str] | None,
        typer.Option(help="With --gateways: resource of its node that each takes, NAME=AMOUNT; once for each."),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="HTTP without TLS: on this machine only, or behind a proxy.")
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate chain of HTTPS; one of the cloud's own self-signed CA if not given."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of that certificate.")] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address or network of a proxy whose X-Forwarded-For is believed; once for each."),
    ] = None,
    tunnel_port: Annotated[
        int, typer.Option(help="Port of the tunnel; 0: chosen by the system.", min=0, max=65535)
    ] = DEFAULT_TUNNEL_PORT,
    tunnel_processes: Annotated[
        int,
        typer.Option(help="Processes that share the tunnel's port; one for each core that it may use.", min=1, max=256),
    ] = 1,
    tunnel_servers: Annotated[
        int,
        typer.Option(
            help="With --ray: tunnel servers on each node, which share the devices; 0: the gateway's alone.",
            min=0,
            max=256,
        ),
    ] = 0,
    tunnel_server_port: Annotated[
        int, typer.Option(help="Port of the tunnel server of each node; 0: chosen by the system.", min=0, max=65535)
    ] = 0,
    tunnel_server_label: Annotated[
        list[str] | None,
        typer.Option(help="Label of Ray's nodes that get tunnel servers, NAME=VALUE; once for each."),
    ] = None,
    tunnel_server_resource: Annotated[
        list[str] | None,
        typer.Option(help="Resource of its node that each tunnel server takes, NAME=AMOUNT; once for each."),
    ] = None,
    drain_to: Annotated[
        str,
        typer.Option(help="HOST:PORT of the tunnel where devices go when this cloud stops; here again if empty."),
    ] = "",
    drain: Annotated[float, typer.Option(help="Seconds over which they move; 0: at once.", min=0, max=3600)] = 1.0,
    database: Annotated[
        str,
        typer.Option(
            help="Where state and features go: postgresql://USER@HOST/DATABASE; as before if empty, first in files.",
            envvar="WALLE_DATABASE",
        ),
    ] = "",
    uploads: Annotated[
        str,
        typer.Option(
            help="Where features go: postgresql://USER@HOST/DATABASE, or file; that of --database if empty.",
            envvar="WALLE_UPLOADS",
        ),
    ] = "",
    retain: Annotated[
        list[str] | None,
        typer.Option(
            help="Bound of a topic's stored features, TOPIC=30d,20GB, or *=30d for all others; once for each."
        ),
    ] = None,
    device_quota: Annotated[
        str,
        typer.Option(help="Stored bytes and topics of one device at most, SIZE,TOPICS; 10GB,1000 if empty."),
    ] = "",
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="View of features for ctx.features in the cloud, SCENARIO/VIEW=TOPIC:FIELD,...; once for each."
        ),
    ] = None,
    inference_vms: Annotated[
        int, typer.Option(min=1, max=256, help="VMs of fallback inference, in each of its processes.")
    ] = 2,
    inference_mb: Annotated[
        int, typer.Option(min=1, help="MiB of files of the versions that they keep loaded, in each process.")
    ] = 2048,
    inference_processes: Annotated[
        int, typer.Option(min=1, max=64, help="With --ray: processes of fallback inference, spread over the nodes.")
    ] = 1,
    inference_resource: Annotated[
        list[str] | None,
        typer.Option(
            help="With --ray: resource of a node that each of these processes takes, NAME=AMOUNT; once for each."
        ),
    ] = None,
    inference_label: Annotated[
        list[str] | None,
        typer.Option(help="With --ray: label that a node must have for these processes, NAME=VALUE; once for each."),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="What devices call this host; once for each name, the first in join.json.")
    ] = None,
    files: Annotated[
        str,
        typer.Option(
            help="Where files of versions lie: s3://BUCKET/PREFIX, or folder; as before if empty. See walle storage."
        ),
    ] = "",
    s3_endpoint: Annotated[str, typer.Option(help="URL of the S3 server; Amazon's if empty.")] = "",
    s3_region: Annotated[str, typer.Option(help="Region of the bucket; us-east-1 if empty.")] = "",
    s3_public: Annotated[
        str,
        typer.Option(help="URL at which devices reach the S3 server: files are redirected there, else sent from here."),
    ] = "",
    scenario: Annotated[list[str] | None, typer.Option(help="Task repository to make; once for each.")] = None,
    large_files_gb: Annotated[
        int, typer.Option(help="GiB of large files (Git LFS) that a scenario may have.", min=0)
    ] = 64,
    git_gb: Annotated[int, typer.Option(help="GiB that the git repository of a scenario may have.", min=1)] = 16,
    git_token_gb: Annotated[
        int, typer.Option(help="GiB of a scenario's git repository that one token may have pushed.", min=1)
    ] = 4,
    business_app: Annotated[
        str, typer.Option(help="Factory of your own ASGI app, package.module:function, served with the push answer.")
    ] = "",
    python: Annotated[
        list[str] | None,
        typer.Option(help="Another version of Python, to compile for devices that run it; once for each."),
    ] = None,
    untrusted_authors: Annotated[
        bool,
        typer.Option(
            "--untrusted-authors",
            help="Refuse to start where the kernel lacks a layer around task code (Landlock, seccomp, ...).",
        ),
    ] = False,
    join_devices: Annotated[
        int,
        typer.Option(help="New devices that join.json admits, within a day; 0: those of `walle device enrol`.", min=0),
    ] = 10,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run gateway, releases, monitor and inference as Ray actors.")
    ] = False,
    address: Annotated[
        str, typer.Option(help="With --ray: the cluster to join; a local Ray is started if empty.")
    ] = "",
    shared_folder: Annotated[
        bool,
        typer.Option(
            "--shared-folder",
            help="With --address: every node sees FOLDER, so that the services may run on any; needs --database.",
        ),
    ] = False,
    service_label: Annotated[
        list[str] | None,
        typer.Option(help="With --shared-folder: label that a node must have for services, NAME=VALUE; once for each."),
    ] = None,
    service_resource: Annotated[
        list[str] | None,
        typer.Option(
            help="With --ray: resource of a node that each service takes, such as CPU=1; once for each."
            " The services are gateway, releases, monitor and identities."
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="With --address: end once the cloud is up; it goes on until `walle cloud down FOLDER`."
        ),
    ] = False,
    timestamp_life: Annotated[
        int,
        typer.Option(min=60, max=604_800, help="Seconds after which devices install nothing new from a frozen answer."),
    ] = 3600,
    scrub_mb_s: Annotated[
        float,
        typer.Option("--scrub-mb-s", min=0, help="MB/s at which stored files are checked; 0: all of them in a week."),
    ] = 0.0,
    traces: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="OTLP receiver for traces, such as http://127.0.0.1:4318; env: by the OTEL_* variables alone.",
        ),
    ] = "",
    trace_ratio: Annotated[
        float, typer.Option(min=0.000_001, max=1, help="With --traces: the share of installs and runs to follow.")
    ] = 0.01,
    pulls_per_s: Annotated[
        float, typer.Option(min=0, help="Pulls that the gateway's answers begin in a second; 0: any number.")
    ] = 0.0,
    pull_mb_s: Annotated[
        float,
        typer.Option(min=0, help="MB of versions that these pulls may have in a second; 0: any number."),
    ] = 0.0,
    reports_per_s: Annotated[
        float,
        typer.Option(
            min=0, help="Reports of outcomes of all devices in a second, which are told to wait; 0: any number."
        ),
    ] = 0.0,
    accel_redirect: Annotated[
        str,
        typer.Option(
            metavar="PREFIX",
            help="Leave whole files to the nginx in front: its internal location over FOLDER/files, such as /stored.",
        ),
    ] = "",
    as_json: JsonLinesFlag = False,
) -> None:
    """Run a cloud until Ctrl-C; a second one ends it without waiting for its devices to move.

    With --ray each part is a separate process; one that dies is started again and continues where it was.
    What a device needs to join is written to FOLDER/join.json, for its owner only.
    """
    if gateways < 0:  # check-ins go on while the gateway is moved to another node, or started again
        gateways = 1 if shared_folder else 0
    if address and not ray:
        raise typer.BadParameter("names a Ray cluster; add --ray", param_hint="--address")
    if inference_resource and not ray:
        raise typer.BadParameter("places Ray actors; add --ray", param_hint="--inference-resource")
    if service_resource and not ray:
        raise typer.BadParameter("places Ray actors; add --ray", param_hint="--service-resource")
    if inference_label and not ray:
        raise typer.BadParameter("places Ray actors; add --ray", param_hint="--inference-label")
    if inference_processes > 1 and not ray:
        raise typer.BadParameter("more than one are Ray actors; add --ray", param_hint="--inference-processes")
    if gateways and not ray:
        raise typer.BadParameter("are Ray actors; add --ray", param_hint="--gateways")
    if (gateway_label or gateway_resource or gateway_port) and not gateways:
        what = "is about edge gateways; add --gateways 1 or more"
        flag = "--gateway-label" if gateway_label else "--gateway-resource" if gateway_resource else "--gateway-port"
        raise typer.BadParameter(what, param_hint=flag)
    if tunnel_servers and not ray:
        raise typer.BadParameter("are Ray actors; add --ray", param_hint="--tunnel-servers")
    if tunnel_servers and tunnel_processes > 1:
        raise typer.BadParameter("take the place of --tunnel-processes; give one", param_hint="--tunnel-servers")
    if tunnel_servers and address and not shared_folder:
        raise typer.BadParameter("are on several nodes; add --shared-folder", param_hint="--tunnel-servers")
    if tunnel_servers > 1 and tunnel_server_port:
        raise typer.BadParameter("is for one server on each node", param_hint="--tunnel-server-port")
    if (tunnel_server_port or tunnel_server_label or tunnel_server_resource) and not tunnel_servers:
        flags = "--tunnel-server-port, --tunnel-server-label, --tunnel-server-resource"
        raise typer.BadParameter("is for tunnel servers; add --tunnel-servers", param_hint=flags)
    for flag, given in (("--shared-folder", shared_folder), ("--detach", detach)):
        if given and not address:
            raise typer.BadParameter("is for a Ray cluster; add --ray --address", param_hint=flag)
    if service_label and not shared_folder:
        raise typer.BadParameter("places services on other nodes; add --shared-folder", param_hint="--service-label")
    if (tls_cert is None) != (tls_key is None) or (plain_http and tls_cert is not None):
        raise typer.BadParameter("go together, and not with --plain-http", param_hint="--tls-cert, --tls-key")
    for proxy in trust_proxy or ():
        if not is_network(proxy):
            raise typer.BadParameter(f"{proxy!r} is neither an address nor a network", param_hint="--trust-proxy")
    if accel_redirect and not (plain_http and re.fullmatch(r"(/[A-Za-z0-9._-]+)+/?", accel_redirect)):
        raise typer.BadParameter(
            "is a path such as /stored, and for --plain-http behind nginx alone", param_hint="--accel-redirect"
        )
    if accel_redirect and files:
        raise typer.BadParameter("is for files in FOLDER; those in a bucket come from there", param_hint="--files")
    names = tuple(name or ())
    if not names and _is_unspecified(host):
        raise typer.BadParameter(
            f"with --host {host}, say what devices call this host, such as --name cloud.example", param_hint="--name"
        )
    from walle.cloud.http.inherited_sockets import InheritedSocketError, InheritedSockets

    sockets = InheritedSockets.take(os.environ, host, http_port=http_port, tunnel_port=tunnel_port)
    if sockets and (ray or tunnel_processes > 1):
        raise InheritedSocketError(
            "sockets were handed over (LISTEN_FDS), on which other processes would have to listen with"
            f" {'--ray' if ray else '--tunnel-processes'}: leave that out, or stop the .socket unit"
        )
    if business_app:
        sys.path.append(str(Path.cwd()))  # an installed command looks in its own folder only
    with contextlib.ExitStack() as undo:
        # A database may have the state of the cloud already, and then needs the keys in the folder.
        if not database and not address:
            undo.enter_context(new_folder(folder, JOIN_FILE))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        undo.enter_context(only_one(folder, is_standby=_is_in_database(folder, database)))
        from walle.cloud import CloudConfig
        from walle.cloud.folder.config import parse_labels, parse_resources
        from walle.cloud.folder.file_places import choose_place, parse_place
        from walle.cloud.folder.state_place import choose_database, has_uploads
        from walle.cloud.http.malloc import map_tls_buffers
        from walle.pipeline.ingest.service import DrainTarget
        from walle.pipeline.ingest.store.feature_view import ViewConfig
        from walle.pipeline.ingest.store.quota import DeviceQuota
        from walle.pipeline.ingest.store.retention import parse_rule

        DrainTarget.parse(drain_to, drain)
        for rule in retain or ():
            parse_rule(rule)
        DeviceQuota.parse(device_quota)
        for resources in (inference_resource, service_resource, gateway_resource, tunnel_server_resource):
            parse_resources(resources or ())
        parse_labels(inference_label or ())
        for view in features or ():
            ViewConfig.parse(view)
        if uploads and uploads != _IN_FILE and not uploads.startswith(("postgresql://", "postgres://")):
            what = "must be postgresql://USER@HOST/DATABASE, or file, or empty"
            raise typer.BadParameter(what, param_hint="--uploads")
        try:
            database = choose_database(folder, database)
        except ConfigError as error:
            raise typer.BadParameter(str(error), param_hint="--database") from error
        if database and not uploads and has_uploads(folder):
            what = (
                f"{folder} has features in a file: give file to keep them there, or the URL of a database for new ones"
            )
            raise typer.BadParameter(what, param_hint="--uploads")
        uploads = "" if uploads == _IN_FILE else uploads or database
        if shared_folder and not (database and uploads):
            what = "needs --database, which has state and features: files of SQLite are for one node"
            raise typer.BadParameter(what, param_hint="--shared-folder")
        parse_labels(service_label or ())
        parse_labels(gateway_label or ())
        parse_labels(tunnel_server_label or ())
        if not files and (s3_endpoint or s3_region or s3_public):
            raise typer.BadParameter("name the bucket too: --files s3://BUCKET/PREFIX", param_hint="--s3-...")
        if files:
            choose_place(folder, parse_place(files, endpoint=s3_endpoint, region=s3_region, public=s3_public))
        map_tls_buffers()
        cloud_of = CloudConfig(
            folder=folder.resolve(),
            host=host,
            http_port=http_port,
            gateways=gateways,
            gateway_port=gateway_port,
            gateway_labels=tuple(gateway_label or ()),
            gateway_resources=tuple(gateway_resource or ()),
            https=not plain_http,
            tls_cert=tls_cert.resolve() if tls_cert else None,
            tls_key=tls_key.resolve() if tls_key else None,
            trusted_proxies=tuple(trust_proxy or ()),
            tunnel_port=tunnel_port,
            tunnel_names=names or (host,),
            tunnel_processes=tunnel_processes,
            tunnel_servers=tunnel_servers,
            tunnel_server_port=tunnel_server_port,
            tunnel_server_labels=tuple(tunnel_server_label or ()),
            tunnel_server_resources=tuple(tunnel_server_resource or ()),
            drain_to=drain_to,
            drain_s=drain,
            database=database,
            uploads=uploads,
            retention=tuple(retain or ()),
            device_quota=device_quota,
            features=tuple(features or ()),
            inference_vms=inference_vms,
            inference_mb=inference_mb,
            inference_processes=inference_processes,
            inference_resources=tuple(inference_resource or ()),
            inference_labels=tuple(inference_label or ()),
            join_devices=join_devices,
            scenarios=tuple(scenario or ()),
            large_files_gb=large_files_gb,
            git_gb=git_gb,
            git_token_gb=git_token_gb,
            business_app=business_app,
            pythons=tuple(python or ()),
            untrusted_authors=untrusted_authors,
            timestamp_life_s=timestamp_life,
            scrub_mb_s=scrub_mb_s,
            traces=traces,
            trace_ratio=trace_ratio,
            pulls_s=pulls_per_s,
            pull_mb_s=pull_mb_s,
            reports_s=reports_per_s,
            accel_redirect=accel_redirect,
            shared_folder=shared_folder,
            service_labels=tuple(service_label or ()),
            service_resources=tuple(service_resource or ()),
        )
        try:
            if detach:
                event_loop.run(detach_cloud(cloud_of, address, as_json=as_json))
            else:
                event_loop.run(serve_cloud(cloud_of, sockets, ray=ray, ray_address=address, as_json=as_json))
        except asyncio.CancelledError:  # a signal before it was up, or a second one
            raise typer.Exit(130) from None


def _is_unspecified(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_in_database(folder: Path, database: str) -> bool:
    from walle.cloud.folder.state_place import read_database

    return bool(database or read_database(folder))


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run, back up and restore a cloud.", no_args_is_help=True)

    @group.callback()
    def cloud() -> None:
        """Run, back up and restore a cloud."""

    group.command(epilog="Example: walle cloud up shop-cloud --scenario shop")(up)
    group.command(epilog="Example: walle cloud gateway --url https://cloud.example --http-port 8480")(gateway)
    group.command("config", epilog="Example: walle cloud config walle.toml")(cloud_config.config)
    group.command(epilog="Example: walle cloud status --url https://cloud.example:8470")(status)
    group.command(epilog="Example: walle cloud drain node-3 --url https://cloud.example:8470")(drain)
    group.command(epilog="Example: walle cloud restart --url https://cloud.example:8470")(restart)
    group.command(epilog="Example: walle cloud down /srv/shop-cloud --address auto")(down)
    backup.register(group)
    app.add_typer(group, name="cloud")
