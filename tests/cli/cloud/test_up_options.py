"""Options of `walle cloud up`: each is a field that is declared once, and those that do not go together are refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import typer

from walle.base.option import options_of
from walle.cli.cloud.config import up_parameters
from walle.cli.cloud.options import CommandOptions, read_options
from walle.cli.cloud.up_rules import check_options
from walle.cloud import CloudConfig
from walle.errors import ConfigError

NO_OPTIONS = {"folder", "https", "http_limits", "vm_host", "simulation_vms", "simulation_s"}
DATABASE = "postgresql://walle@localhost/cloud"


def read(**given: Any) -> tuple[CommandOptions, CloudConfig]:
    """Return the options of a command with these parameters, and the defaults of all others."""
    defaults = {name: getattr(one, "default", None) for name, one in up_parameters().items()}
    return read_options(Path("cloud"), defaults | given)


def test_every_field_of_the_configuration_is_an_option_or_known_as_none() -> None:
    fields = {field.name for field in dataclasses.fields(CloudConfig)}
    assert fields - {field.name for field, _ in options_of(CloudConfig)} == NO_OPTIONS


def test_the_configuration_of_a_command_without_options_is_that_of_an_embedded_cloud_but_for_ports_and_tls() -> None:
    command, config = read()
    assert command == CommandOptions()
    changes = {"http_port": 8470, "tunnel_port": 8471, "https": True, "tunnel_names": ("127.0.0.1",)}
    assert config == dataclasses.replace(CloudConfig(folder=Path("cloud").resolve()), **changes)  # type: ignore[arg-type]


def test_lists_are_tuples_and_paths_begin_at_the_root() -> None:
    _, config = read(scenarios=["shop", "live"], tls_cert=Path("chain.pem"), plain_http=True)
    assert config.scenarios == ("shop", "live")
    assert config.tls_cert == Path.cwd() / "chain.pem"
    assert not config.https


@pytest.mark.parametrize(
    ("given", "flag", "why"),
    [
        ({"address": "auto"}, "--address", "add --ray"),
        ({"inference_resources": ["CPU=1"]}, "--inference-resource", "add --ray"),
        ({"service_resources": ["CPU=1"]}, "--service-resource", "add --ray"),
        ({"inference_labels": ["zone=a"]}, "--inference-label", "add --ray"),
        ({"inference_processes": 2}, "--inference-processes", "add --ray"),
        ({"gateways": 1}, "--gateways", "add --ray"),
        ({"tunnel_servers": 1}, "--tunnel-servers", "add --ray"),
        ({"gateway_labels": ["zone=a"]}, "--gateway-label", "add --gateways 1 or more"),
        ({"gateway_resources": ["CPU=1"]}, "--gateway-resource", "add --gateways 1 or more"),
        ({"gateway_port": 1}, "--gateway-port", "add --gateways 1 or more"),
        ({"ray": True, "tunnel_servers": 1, "tunnel_processes": 2}, "--tunnel-servers", "give one"),
        ({"ray": True, "address": "auto", "tunnel_servers": 1}, "--tunnel-servers", "add --shared-folder"),
        ({"ray": True, "tunnel_servers": 2, "tunnel_server_port": 1}, "--tunnel-server-port", "one server"),
        ({"tunnel_server_labels": ["zone=a"]}, "--tunnel-server-label", "add --tunnel-servers"),
        ({"shared_folder": True, "gateways": 0}, "--shared-folder", "add --ray --address"),
        ({"detach": True}, "--detach", "add --ray --address"),
        ({"service_labels": ["zone=a"]}, "--service-label", "add --shared-folder"),
        ({"tls_cert": Path("chain.pem")}, "--tls-cert", "go together"),
        ({"tls_cert": Path("a"), "tls_key": Path("b"), "plain_http": True}, "--tls-cert", "not with --plain-http"),
        ({"trusted_proxies": ["proxy"]}, "--trust-proxy", "neither an address nor a network"),
        ({"accel_redirect": "/stored"}, "--accel-redirect", "for --plain-http"),
        ({"accel_redirect": "stored", "plain_http": True}, "--accel-redirect", "a path such as /stored"),
        ({"accel_redirect": "/stored", "plain_http": True, "files": "s3://a/b"}, "--files", "files in FOLDER"),
        ({"host": "0.0.0.0"}, "--name", "say what devices call this host"),
        ({"uploads": "mysql://host/a"}, "--uploads", "must be postgresql:"),
        ({"s3_region": "eu-1"}, "--s3-...", "name the bucket too"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_the_flag_to_change(
    given: dict[str, Any], flag: str, why: str
) -> None:
    with pytest.raises(typer.BadParameter, match=why) as refused:
        check_options(*read(**given))
    assert str(refused.value.param_hint).find(flag) >= 0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"host": "::", "tunnel_names": ["cloud.example"]},
        {"uploads": "file", "database": DATABASE},
        {"accel_redirect": "/stored", "plain_http": True},
        {"files": "s3://bucket/a", "s3_region": "eu-1"},
        {"ray": True, "tunnel_servers": 1, "tunnel_server_port": 1, "tunnel_server_labels": ["zone=a"]},
        {"ray": True, "address": "auto", "shared_folder": True, "service_labels": ["zone=a"], "detach": True},
    ],
)
def test_options_that_go_together_are_accepted(given: dict[str, Any]) -> None:
    check_options(*read(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"drain_to": "nowhere"},
        {"retention": ["photos"]},
        {"device_quota": "many"},
        {"features": ["shop"]},
        {"ray": True, "service_resources": ["CPU"]},
        {"ray": True, "inference_labels": ["zone"]},
    ],
)
def test_a_text_that_cannot_be_read_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_options(*read(**given))


def test_a_shared_folder_has_an_edge_gateway_on_each_node_unless_another_number_is_given() -> None:
    assert read(shared_folder=True)[1].gateways == 1
    assert read(shared_folder=True, gateways=0)[1].gateways == 0
    assert read()[1].gateways == 0
