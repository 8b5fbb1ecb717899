"""Options of `walle cloud up`, made from the fields that declare them: a cloud's, and those of the command alone.

The keys of `walle.toml` are made from the same fields. A new option is a new field.
"""

import dataclasses
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walle.base.cloud_options import CloudOptions
from walle.base.option import Option, option, options_of
from walle.cli.declared_options import option_parameter, option_value

if TYPE_CHECKING:
    from walle.cloud import CloudConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options that are not of a cloud's configuration: how the cloud runs, and what its folder keeps (`files.toml`)."""

    plain_http: bool = option(
        False, "gateways.plain_http", "HTTP without TLS: on this machine only, or behind a proxy."
    )
    files: str = option(
        "",
        "files.place",
        "Where files of versions are stored: s3://BUCKET/PREFIX, or folder; as before if empty. See walle storage.",
    )
    s3_endpoint: str = option("", "files.s3_endpoint", "URL of the S3 server; Amazon's if empty.")
    s3_region: str = option("", "files.s3_region", "Region of the bucket; us-east-1 if empty.")
    s3_public: str = option(
        "",
        "files.s3_public",
        "URL at which devices reach the S3 server: files are redirected there, else sent from here.",
    )
    ray: bool = option(False, "placement.ray", "Run gateway, releases, monitor and inference as Ray actors.")
    address: str = option("", "placement.address", "With --ray: the cluster to join; a local Ray is started if empty.")
    detach: bool = option(
        False,
        "cluster.detach",
        "With --address: end once the cloud is up; it runs until `walle cloud down FOLDER`.",
    )


type _Declared = tuple[dataclasses.Field[Any], Option]

# A section's options of the command alone come first, as in `[files] place`.
_DECLARED: list[_Declared] = [*options_of(CommandOptions), *options_of(CloudOptions)]
_SECTIONS = list(dict.fromkeys(shown.section for _, shown in options_of(CloudOptions)))
_DECLARED.sort(key=lambda one: _SECTIONS.index(one[1].section))

SECTIONS: Mapping[str, Mapping[str, str]] = {
    section: {shown.key: field.name for field, shown in _DECLARED if shown.section == section} for section in _SECTIONS
}
"""Keys of `walle.toml` by section, each with the name of its field, which is that of the command's parameter."""

PATHS = frozenset(field.name for field, _ in _DECLARED if field.type == Path | None)


PARAMETERS = [
    option_parameter(field, shown, field.default if shown.at_command is None else shown.at_command)
    for field, shown in _DECLARED
]
"""Parameters of `walle cloud up`."""


def read_options(folder: Path, given: Mapping[str, Any]) -> tuple[CommandOptions, "CloudConfig"]:
    """Return the options that the command was given, with paths from the root, and what depends on others filled in."""
    from walle.cloud import CloudConfig

    values = {field.name: option_value(field, given[field.name]) for field, _ in _DECLARED}
    names = {field.name for field, _ in options_of(CommandOptions)}
    command = CommandOptions(**{name: values.pop(name) for name in names})
    config = CloudConfig(folder=folder.resolve(), https=not command.plain_http, **values)
    if config.gateways < 0:  # check-ins go on while the gateway is moved to another node, or started again
        config = dataclasses.replace(config, gateways=1 if config.shared_folder else 0)
    if not config.tunnel_names and not _is_unspecified(config.host):
        config = dataclasses.replace(config, tunnel_names=(config.host,))
    return command, config


def _is_unspecified(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
