"""Addresses of targets: `https://`, `s3://`, `mqtt://`, `kafka://` and folders, and the sinks that they name."""

import dataclasses
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.deploy.cloud.s3_store import S3Place
from walle.errors import ConfigError
from walle.sinks.object_folder import BucketFolder, DiskFolder
from walle.sinks.parquet import ParquetSink
from walle.sinks.sink import Sink
from walle.sinks.webhook import WebhookSink

PASSWORD = "WALLE_SINK_PASSWORD"  # noqa: S105 - names of environment variables
TOKEN = "WALLE_SINK_TOKEN"  # noqa: S105
CA_FILE = "WALLE_SINK_CA"
_FORMS = "https://HOST/PATH, s3://BUCKET/PREFIX or a folder (Parquet)"


@dataclasses.dataclass(frozen=True)
class Address:
    """A target's address in parts; `options` are those after `?`."""

    scheme: str
    host: str
    port: int | None
    user: str
    path: str
    options: Mapping[str, str]

    def check_options(self, *known: str) -> None:
        """Raises ConfigError where an option is not one of `known`."""
        if unknown := sorted(self.options.keys() - set(known)):
            what = f"the option {unknown[0][:100]!r} of a {self.scheme}:// address is unknown"
            raise ConfigError(f"{what}; it has {', '.join(known) or 'none'}")


def parse_address(text: str) -> Address:
    """Return a URL in parts.

    Raises:
        ConfigError: it is not a URL, or has a password, which other users of the machine could read.
    """
    try:
        parts = urllib.parse.urlsplit(text)
        port, password = parts.port, parts.password
        options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise ConfigError(f"the address {text[:200]!r} is not a URL: {error}") from error
    if password is not None:
        raise ConfigError(f"{parts.scheme}://{parts.hostname}: give the password in {PASSWORD}, not in the address")
    user = urllib.parse.unquote(parts.username or "")
    return Address(parts.scheme, parts.hostname or "", port, user, urllib.parse.unquote(parts.path), options)


def make_sink(target: str, group: str, choice: Mapping[str, Any], environment: Mapping[str, str]) -> Sink:
    """Return the sink that a target's address names.

    Raises:
        ConfigError: the address is not one of a sink, or a package for it is not installed.
    """
    scheme, slashes, _ = target.partition("://")
    if not slashes:
        return ParquetSink(DiskFolder(Path(target)), group, choice)
    match scheme:
        case "http" | "https":
            parse_address(target)
            return WebhookSink(target, group, token=environment.get(TOKEN, ""), ca_file=environment.get(CA_FILE, ""))
        case "s3":
            return ParquetSink(BucketFolder(_place(parse_address(target)), environment), group, choice)
        case _:
            raise ConfigError(f"the target {target[:200]!r} is unknown; give {_FORMS}")


def _place(address: Address) -> S3Place:
    address.check_options("endpoint", "region")
    endpoint, region = address.options.get("endpoint", ""), address.options.get("region", "us-east-1")
    if not address.host:
        raise ConfigError("name the bucket: s3://BUCKET/PREFIX")
    return S3Place(address.host, address.path.strip("/"), endpoint.rstrip("/"), region)
