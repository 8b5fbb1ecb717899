"""Rules on the options of `walle cloud up`: which of them go together, and which texts are valid."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from walle.cli.cloud.options import CommandOptions
from walle.cli.credentials import is_network

if TYPE_CHECKING:
    from walle.cloud import CloudConfig

IN_FILE = "file"  # value of --uploads: a file in the folder

type _Faults = Iterator[tuple[str, str]]
"""Flags, and why they are refused."""


def check_options(command: CommandOptions, config: "CloudConfig") -> None:
    """Refuse options that do not go together, before anything is made.

    Raises:
        typer.BadParameter: two options exclude each other, or one needs another.
        ConfigError: the text of an option cannot be read.
    """
    for faults in (_without_ray, _edge_gateways, _tunnel_servers, _cluster, _http, _stores):
        for flag, why in faults(command, config):
            raise typer.BadParameter(why, param_hint=flag)
    _check_texts(config)


def _without_ray(command: CommandOptions, config: "CloudConfig") -> _Faults:
    if command.ray:
        return
    if command.address:
        yield "--address", "names a Ray cluster; add --ray"
    if config.inference_resources:
        yield "--inference-resource", "places Ray actors; add --ray"
    if config.service_resources:
        yield "--service-resource", "places Ray actors; add --ray"
    if config.inference_labels:
        yield "--inference-label", "places Ray actors; add --ray"
    if config.inference_processes > 1:
        yield "--inference-processes", "more than one are Ray actors; add --ray"
    if config.gateways:
        yield "--gateways", "are Ray actors; add --ray"
    if config.tunnel_servers:
        yield "--tunnel-servers", "are Ray actors; add --ray"


def _edge_gateways(_: CommandOptions, config: "CloudConfig") -> _Faults:
    if config.gateways:
        return
    given = {
        "--gateway-label": config.gateway_labels,
        "--gateway-resource": config.gateway_resources,
        "--gateway-port": config.gateway_port,
    }
    for flag, value in given.items():
        if value:
            yield flag, "needs edge gateways; add --gateways 1 or more"


def _tunnel_servers(command: CommandOptions, config: "CloudConfig") -> _Faults:
    if config.tunnel_servers:
        if config.tunnel_processes > 1:
            yield "--tunnel-servers", "replace --tunnel-processes; give one of the two"
        if command.address and not config.shared_folder:
            yield "--tunnel-servers", "are on several nodes; add --shared-folder"
        if config.tunnel_servers > 1 and config.tunnel_server_port:
            yield "--tunnel-server-port", "is for one server on each node"
    elif config.tunnel_server_port or config.tunnel_server_labels or config.tunnel_server_resources:
        flags = "--tunnel-server-port, --tunnel-server-label, --tunnel-server-resource"
        yield flags, "is for tunnel servers; add --tunnel-servers"


def _cluster(command: CommandOptions, config: "CloudConfig") -> _Faults:
    for flag, is_given in (("--shared-folder", config.shared_folder), ("--detach", command.detach)):
        if is_given and not command.address:
            yield flag, "is for a Ray cluster; add --ray --address"
    if config.service_labels and not config.shared_folder:
        yield "--service-label", "places services on other nodes; add --shared-folder"


def _http(command: CommandOptions, config: "CloudConfig") -> _Faults:
    if (config.tls_cert is None) != (config.tls_key is None) or (command.plain_http and config.tls_cert is not None):
        yield "--tls-cert, --tls-key", "go together, and not with --plain-http"
    for proxy in config.trusted_proxies:
        if not is_network(proxy):
            yield "--trust-proxy", f"{proxy!r} is neither an address nor a network"
    if config.accel_redirect:
        if not (command.plain_http and re.fullmatch(r"(/[A-Za-z0-9._-]+)+/?", config.accel_redirect)):
            yield "--accel-redirect", "is a path such as /stored, and for --plain-http behind nginx alone"
        if command.files:
            yield "--files", "is for files in FOLDER; those in a bucket come from there"
    if not config.tunnel_names:
        why = f"with --host {config.host}, say what devices call this host, such as --name cloud.example"
        yield "--name", why


def _stores(command: CommandOptions, config: "CloudConfig") -> _Faults:
    if config.uploads and config.uploads != IN_FILE and not config.uploads.startswith(("postgresql://", "postgres://")):
        yield "--uploads", "must be postgresql://USER@HOST/DATABASE, or file, or empty"
    if not command.files and (command.s3_endpoint or command.s3_region or command.s3_public):
        yield "--s3-...", "name the bucket too: --files s3://BUCKET/PREFIX"


def _check_texts(config: "CloudConfig") -> None:
    from walle.cloud.folder.config import parse_labels, parse_resources
    from walle.pipeline.ingest.service import DrainTarget
    from walle.pipeline.ingest.store.feature_view import ViewConfig
    from walle.pipeline.ingest.store.quota import DeviceQuota
    from walle.pipeline.ingest.store.retention import parse_rule

    DrainTarget.parse(config.drain_to, config.drain_s)
    for rule in config.retention:
        parse_rule(rule)
    DeviceQuota.parse(config.device_quota)
    for view in config.features:
        ViewConfig.parse(view)
    for resources in (
        config.inference_resources,
        config.service_resources,
        config.gateway_resources,
        config.tunnel_server_resources,
    ):
        parse_resources(resources)
    for labels in (config.inference_labels, config.service_labels, config.gateway_labels, config.tunnel_server_labels):
        parse_labels(labels)
